// SPDX-License-Identifier: BSD-2-Clause
// A listening port: answers SYNs, keeps the half-open connections and the established ones nobody has
// accepted yet.
//
// It is the sink of 3-tuple rules, which the layer above puts on the rings. A half-open connection is an
// entry in a table (half_open.h), for anybody can have one made, under any address; a Connection, with all
// its memory, is made when the handshake's last ACK has come, and gets its own 5-tuple rule. When the table
// is full, SYNs are answered with cookies (syn_cookie.h), where the kernel would; nobody is evicted. A flood
// of SYNs costs no system calls but the shared kick of the answers: more than some hundred new SYNs a second
// are answered the way they came, without a look at the routes.
//
// As in the kernel, a queue that is full of connections to accept drops the handshake's last ACK; the peer's
// retransmission, or ours of the SYN-ACK, tries again. TCP_DEFER_ACCEPT drops it, too, until data comes or
// the time is over.
#pragma once

#include <chrono>
#include <deque>
#include <mutex>

#include "libvma/runtime/internal_fd.h"
#include "libvma/tcp/connection.h"
#include "libvma/tcp/handshake/arrived_segment.h"
#include "libvma/tcp/handshake/half_open.h"
#include "libvma/tcp/handshake/handshake_answers.h"
#include "libvma/tcp/handshake/kernel_connections.h"

namespace vma::tcp {

class Listener final : public ring::FrameSink {
  public:
    struct Counters {
        std::uint64_t syns = 0, accepted = 0;    // SYNs seen, connections completed
        std::uint64_t refused = 0;               // SYNs for which the table had no room, and cookies are off
        std::uint64_t overflows = 0;             // handshakes held up by a full accept queue
        std::uint64_t limited = 0;               // SYNs beyond VMA_TCP_MAX_SYN_RATE
        std::uint64_t resets_sent = 0, bad = 0;  // segments that belonged to nothing; malformed ones
        std::uint64_t cookies_sent = 0, cookies_accepted = 0;
    };
    // The most half-open connections a listener keeps, by its backlog; beyond that there are cookies.
    static constexpr std::size_t kMinHalfOpen = 256, kMaxHalfOpen = 4096;

    // One reference, the caller's; null without memory. `port` in network order. `backlog` as listen(2)'s,
    // already clamped to somaxconn.
    static Listener* create(PathSource& paths, in_port_t port, const Options& options,
                            unsigned backlog) noexcept;
    void ref() noexcept { refs_.fetch_add(1, std::memory_order_relaxed); }
    void unref() noexcept;

    void set_backlog(unsigned backlog) noexcept;  // listen() again
    void set_owner(Owner* owner) noexcept;        // changed(): something to accept
    // The oldest established connection, with a reference for the caller, or null. It has no owner yet.
    Connection* accept() noexcept;
    unsigned pending() const noexcept { return pending_.load(std::memory_order_acquire); }
    std::uint32_t arrivals() const noexcept { return arrivals_.load(std::memory_order_acquire); }
    // What new connections inherit.
    template <class F>
    void change(F&& edit) noexcept {
        const std::lock_guard guard(lock_);
        edit(options_);
    }
    // No more: pending connections are reset, half-open ones forgotten. The rules must be withdrawn by the
    // caller.
    void close() noexcept;
    // A connection keeps its port busy also when the listener has gone. `socket`, a socket of the kernel's
    // with the port, is held until the last connection that came from here has ended; while all of these have
    // SO_REUSEADDR, so has it.
    void hold_port(InternalFd socket) noexcept;
    bool has_connections() noexcept;
    Counters counters() noexcept;
    std::size_t half_open() noexcept;
    // The rules are about to go, or stay after all. Handshakes that are under way go on here, others are the
    // kernel's from their SYN on.
    void leave_new_to_kernel(bool on) noexcept;

    bool deliver(ring::RxBuffer* buffer) noexcept override;
    void batch_end(ring::Ring& ring) noexcept override;
    // The same for a SYN that begins anew where a connection in TIME_WAIT has used up the numbers before
    // `iss`.
    bool deliver_again(ring::RxBuffer* buffer, std::uint32_t iss) noexcept;

  private:
    friend class Origin;

    Listener(PathSource& paths, in_port_t port, const Options& options,
             unsigned backlog);  // may throw bad_alloc
    ~Listener() override;

    // ---- with the lock held ----
    bool full() const noexcept;  // the accept queue, with those on their way into it
    std::size_t most_half_open() const noexcept;
    unsigned retries_now() const noexcept;
    static unsigned defer_timeouts(std::chrono::seconds time) noexcept;
    bool within_syn_rate(Time now) noexcept;
    void arm() noexcept;

    // ---- segments; each takes the buffer, or says false ----
    bool take(ring::RxBuffer* buffer, const std::uint32_t* iss) noexcept;
    bool on_syn(const ArrivedSegment& segment, const std::uint32_t* iss) noexcept;
    bool on_half_open(const ArrivedSegment& segment,
                      HalfOpen& entry) noexcept;  // with the lock held; lets go of it
    bool on_cookie(const ArrivedSegment& segment) noexcept;
    bool on_stray(const ArrivedSegment& segment) noexcept;
    // The last ACK of `handshake`, whose entry is opening: makes the connection, which gets the segment.
    bool open(const ArrivedSegment& segment, const Handshake& handshake, bool cookie) noexcept;
    Connection* make(const Handshake& handshake, const Options& options, const Path& path, bool resolved,
                     ring::Ring& from) noexcept;

    // ---- time ----
    struct OwnTimer : Timer {
        explicit OwnTimer(Listener* l) noexcept : Timer(&Listener::timer_fired), listener(l) {}
        Listener* listener;
    };
    static void timer_fired(Timer& timer) noexcept;
    void on_timer() noexcept;

    // ---- from connections ----
    // The handshake is done and the rule is in place; or it has ended before.
    bool completed(Connection& connection) noexcept;
    void lost(Connection& connection) noexcept;
    // Is there no room for one more established connection? Then its last ACK does not count yet.
    bool hold_up() noexcept;
    // A connection has begun, or ended; `reuse`: with SO_REUSEADDR.
    void joined(bool reuse) noexcept;
    void left(bool reuse) noexcept;
    void set_reuse() noexcept;

    PathSource& paths_;
    const in_port_t port_;
    std::atomic<std::uint32_t> refs_{1};
    std::atomic<unsigned> pending_{0};
    std::atomic<std::uint32_t> arrivals_{0};

    Lock lock_;  // taken inside connections' locks; inside it nothing but the owner's and the timer wheel's
    Options options_;
    unsigned backlog_;
    bool closed_ = false, leaving_ = false;
    Owner* owner_ = nullptr;
    HalfOpenTable table_;
    std::deque<Connection*> ready_;             // references
    std::size_t alive_ = 0, alive_strict_ = 0;  // connections from here; those without SO_REUSEADDR
    InternalFd held_port_;
    struct ThisSecond {
        Time began;
        std::int64_t count = 0;
        // Counts one more, unless that is above `limit` in this second.
        bool one_more(Time now, std::int64_t limit) noexcept;
    };
    ThisSecond syns_;   // SYNs that were answered
    ThisSecond looks_;  // look-ups of paths
    struct Cookies {
        Time sent_at;            // the last cookie; all of a time announce one scale,
        std::uint8_t scale = 0;  // which the ACK does not bring back
    } cookies_;
    Time armed_for_;
    OwnTimer timer_{this};
    Counters counters_;
    KernelConnections kernels_;
    HandshakeAnswers answers_{*this, paths_};
};

}  // namespace vma::tcp
