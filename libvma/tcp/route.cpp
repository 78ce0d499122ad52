// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/route.h"

#include <errno.h>
#include <netinet/in.h>

#include <algorithm>

#include "libvma/tcp/connection.h"
#include "libvma/tcp/sequence.h"
#include "libvma/tcp/tcb_inline.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {
namespace {

constexpr std::uint32_t kMinSendMss = 48;  // the kernel's net.ipv4.tcp_min_snd_mss
constexpr Nsec kNeighbourPatience = 3 * kSecond;
constexpr Nsec kNeighbourRetry{1'000'000}, kRouteRetry{20'000'000};

}  // namespace

int Route::find() noexcept {
    Path path = path_;
    const int error = source_.find(tcb_.ends, tcb_.options.path, path);
    if (error != 0 && error != -EAGAIN) {
        known_ = false;
        return error;
    }
    if (path.ring == nullptr) return error != 0 ? error : -EOPNOTSUPP;
    // The rule stays on the ring where it is: a route over another interface is used for sending only.
    const std::uint32_t mss_before = wanted_mss();
    path_ = path;
    known_ = error == 0;
    if (known_) tcb_.writer.use(path);
    if (wanted_mss() != mss_before) mss_changed();
    return error;
}

void Route::adopt(const Path& path, bool resolved, ring::Ring& rule_ring) noexcept {
    path_ = path;
    rule_ring_ = &rule_ring;
    known_ = resolved;
    if (resolved) tcb_.writer.use(path);
}

void Route::wait(int error, Time now) noexcept {
    if (tries_++ == 0) tries_since_ = now;
    const bool asking = error == -EAGAIN;
    soft_error_ = asking ? 0 : -error;
    if (!tcb_.phase.established && (!asking || now - tries_since_ > kNeighbourPatience)) {
        tcb_.give_up(asking ? EHOSTUNREACH : -error, false);
        return;
    }
    // A neighbour answers in microseconds as a rule; a route that went may come back.
    const unsigned shift = std::min(tries_, 8u);
    tcb_.timers.path_at = now + (asking ? kNeighbourRetry : kRouteRetry) * (std::uint64_t{1} << (shift - 1));
}

void Route::confirm_stale() noexcept {
    source_.confirm(path_, tcb_.ends.remote.address.v4());
    path_.stale = false;
}

void Route::doubt() noexcept { source_.doubt(path_, tcb_.ends.remote.address.v4()); }

std::uint32_t Route::wanted_mss() const noexcept {
    std::uint32_t mtu = path_.mtu != 0 ? path_.mtu : 1500;
    if (learnt_mtu_ != 0) mtu = std::min(mtu, learnt_mtu_);
    std::uint32_t mss = mtu > 40 + 88 ? mtu - 40 : 88;
    if (tcb_.options.maxseg != 0) mss = std::min(mss, tcb_.options.maxseg);
    return std::min<std::uint32_t>(mss, 0xffff - 40);
}

// As the kernel's tcp_mtu_to_mss(): what the peer asks for is raised to kMinSendMss, and our options take
// their room of that.
std::uint32_t Route::path_mss() const noexcept {
    static_assert(kMinSendMss > kTimestampBytes);
    std::uint32_t mss = wanted_mss();
    if (tcb_.pcb != nullptr) mss = std::min<std::uint32_t>(mss, tcb_.pcb->mss());
    mss = std::max(mss, kMinSendMss);
    return tcb_.pcb != nullptr && tcb_.pcb->timestamps() ? mss - kTimestampBytes : mss;
}

// At most half of the largest window that the peer has shown, as the kernel's tcp_bound_to_half_wnd(): a
// segment need not wait for the ACK of the one before.
std::uint32_t Route::window_bound() const noexcept {
    constexpr std::uint32_t kSmall = 536, kLeastPacket = 68, kTcpHeader = 20;
    const std::uint32_t window = tcb_.pcb != nullptr ? tcb_.pcb->max_snd_wnd() : 0;
    if (window == 0) return UINT32_MAX;
    const std::uint32_t headers = kTcpHeader + (tcb_.pcb->timestamps() ? kTimestampBytes : 0);
    return std::max(window > kSmall ? window / 2 : window, kLeastPacket - headers);
}

std::uint32_t Route::send_mss() const noexcept {
    const std::uint32_t mss = std::min(path_mss(), window_bound());
    return hole_mss_ != 0 ? std::min(mss, hole_mss_) : mss;
}

// The kernel's tcp_mtu_probing(). That looks for longer segments again; here they stay short.
void Route::suspect_black_hole() noexcept {
    const Options& o = tcb_.options;
    if (o.mtu_probing == 0) return;
    if (hole_mss_ == 0)
        hole_mss_ = o.base_mss;
    else
        hole_mss_ = std::max(std::min(o.base_mss, hole_mss_ / 2), o.mtu_probe_floor);
    hole_mss_ = std::max(hole_mss_, kMinSendMss);
    mss_changed();
}

void Route::mss_changed() noexcept {
    if (!tcb_.phase.established) return;
    const std::uint32_t mss = send_mss();
    bounded_ = window_bound() < path_mss();
    if (mss == tcb_.shown.mss()) return;
    tcb_.shown.set_mss(mss);
    tcb_.recovery.set_mss(mss);
}

void Route::learn_mtu(std::uint32_t mtu) noexcept {
    // Shorter ones are not believed; a router may cut those that are as short.
    const bool cuts = mtu < tcb_.options.min_pmtu;
    mtu = std::max(mtu, tcb_.options.min_pmtu);
    if (learnt_mtu_ != 0 && mtu > learnt_mtu_) return;
    // After this time a longer segment tries again, as in the kernel: the path may have become better.
    learnt_until_ = Clock::now() + tcb_.options.mtu_expires;
    if (mtu == learnt_mtu_) return;
    learnt_mtu_ = mtu;
    may_be_cut_ = cuts;
    if (known_) tcb_.writer.use(path_);
    if (tcb_.pcb == nullptr || !tcb_.phase.established) return;
    const std::uint32_t before = tcb_.shown.mss();
    mss_changed();
    if (send_mss() >= before)
        return;  // segments were that short already: it is not for this that one was lost
    tcb_.queue.resegment();
    tcb_.sender.output();
}

void Route::forget_mtu() noexcept {
    learnt_mtu_ = 0;
    may_be_cut_ = false;
    if (known_) tcb_.writer.use(path_);
    mss_changed();
}

// As the kernel's tcp_v4_err(): only what quotes a segment under way counts. Fatal while connecting, else a
// hint why retransmissions may fail; a smaller MTU is obeyed.
void Route::icmp_error(const ring::IcmpError& error) noexcept {
    if (tcb_.pcb == nullptr || tcb_.freeze.frozen() || tcb_.phase.in_time_wait) return;
    if (seq_before(error.seq, tcb_.pcb->snd_una()) || seq_before(tcb_.pcb->snd_nxt(), error.seq)) return;
    if (error.error == EMSGSIZE) {
        learn_mtu(error.mtu);
    } else if (tcb_.pcb->in(State::syn_sent) || tcb_.pcb->in(State::syn_recv)) {
        tcb_.give_up(error.error, false);
    } else {
        soft_error_ = error.error;
    }
}

}  // namespace vma::tcp
