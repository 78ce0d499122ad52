// SPDX-License-Identifier: BSD-2-Clause
// The way a connection's segments take, and what ICMP said of it.
//
// Under the connection's lock.
#pragma once

#include <cstdint>
#include <utility>

#include "libvma/tcp/path.h"
#include "libvma/tcp/timers/time.h"

namespace vma::ring {
struct IcmpError;
}

namespace vma::tcp {

struct Tcb;

class Route {
  public:
    Route(Tcb& tcb, PathSource& source) noexcept : tcb_(tcb), source_(source) {}

    // Looks the way up: 0, or -errno of PathSource.
    int find() noexcept;
    // As found by a listener. `resolved`: the neighbour's address is known. `rule_ring`: where the peer's SYN
    // came in; answers may go another way.
    void adopt(const Path& path, bool resolved, ring::Ring& rule_ring) noexcept;
    // The rule, and what is sent, move from one ring of an interface to another.
    void move(const ring::Ring& from, ring::Ring& to) noexcept {
        rule_ring_ = &to;
        if (path_.ring == &from) path_.ring = &to;
    }
    bool known() const noexcept { return known_; }
    // Is the way known, and does it still hold?
    bool holds() const noexcept { return known_ && path_.generation == source_.generation(); }
    // The ring that sends, and the one that has the rule. Null before find().
    ring::Ring* ring() const noexcept { return path_.ring; }
    ring::Ring* rule_ring() const noexcept { return rule_ring_ != nullptr ? rule_ring_ : path_.ring; }
    const Path& path() const noexcept { return path_; }

    // No way to the peer at the moment, for `error` (-errno): tries again later, or gives up.
    void wait(int error, Time now) noexcept;
    void found() noexcept { tries_ = 0; }
    // The peer has answered; or it has not.
    void confirm() noexcept {
        if (path_.stale) confirm_stale();
    }
    void doubt() noexcept;
    // Why retransmissions fail, as far as anybody has said; 0: unknown.
    int soft_error() const noexcept { return soft_error_; }
    void clear_soft_error() noexcept { soft_error_ = 0; }
    int take_soft_error() noexcept { return std::exchange(soft_error_, 0); }

    // Bytes of data in a segment as the path and the program allow; the same with the peer's word and
    // windows, and without the options of each segment; and what the path takes with headers.
    std::uint32_t wanted_mss() const noexcept;
    std::uint32_t send_mss() const noexcept;
    std::uint32_t mtu() const noexcept {
        return learnt_mtu_ != 0 && learnt_mtu_ < path_.mtu ? learnt_mtu_ : path_.mtu;
    }
    // The path, or the program, allows segments of another size.
    void mss_changed() noexcept;
    // A larger window of the peer's may change that.
    inline bool bound_by_window() const noexcept;
    // Retransmissions are in vain: perhaps segments are too long, and nobody says so (RFC 4821). They become
    // shorter.
    void suspect_black_hole() noexcept;
    // ICMP says that packets have to be as short as `mtu`; that holds for some minutes.
    void learn_mtu(std::uint32_t mtu) noexcept;
    void expire_mtu(Time now) noexcept {
        if (learnt_mtu_ != 0 && now >= learnt_until_) forget_mtu();
    }
    // Routers may cut what this end sends (no DF).
    bool may_be_cut() const noexcept { return may_be_cut_; }
    void icmp_error(const ring::IcmpError& error) noexcept;

  private:
    void confirm_stale() noexcept;
    void forget_mtu() noexcept;
    std::uint32_t path_mss() const noexcept;
    std::uint32_t window_bound() const noexcept;

    Tcb& tcb_;
    PathSource& source_;
    Path path_;
    bool known_ = false;
    std::uint32_t learnt_mtu_ = 0;  // by ICMP, 0: none
    bool may_be_cut_ = false;       // it was too short to be believed
    bool bounded_ = false;          // the peer's window is what bounds a segment
    std::uint32_t hole_mss_ = 0;    // bytes of data that may get through a black hole, 0: none is suspected
    Time learnt_until_;
    ring::Ring* rule_ring_ = nullptr;
    int soft_error_ = 0;
    unsigned tries_ = 0;  // to find the way, without success
    Time tries_since_;
};

}  // namespace vma::tcp
