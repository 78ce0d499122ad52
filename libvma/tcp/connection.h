// SPDX-License-Identifier: BSD-2-Clause
// One TCP connection: lwIP's PCB and what lwIP does not do.
//
// lwIP keeps the state machine, takes received segments apart, queues out-of-order ones and says what to acknowledge.
// Here are the checks in front of it (RFC 9293 acceptability, RFC 5961, PAWS), the send queue and everything that is sent,
// loss recovery, congestion control, RTT, all timers, and the receive queue. A connection knows nothing of descriptors:
// sockets::TcpSocket owns it while the program does, and it lives on alone until it has said its goodbye to the peer.
//
// Threads: all functions may be called by any thread; the connection's lock is inside. Frames that arrive while the lock is
// taken go on a backlog, which the lock's owner works off before it lets go, so a ring never waits for a connection.
// Functions that find the lock held by their own thread (a signal handler interrupted one of them) return -EWOULDBLOCK, or
// leave the matter to the interrupted call.
//
// Results: ssize_t and int functions return -errno.
#pragma once

#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/uio.h>

#include <atomic>
#include <cstdint>

#include "libvma/ring/ring.h"
#include "libvma/runtime/lock.h"
#include "libvma/tcp/congestion.h"
#include "libvma/tcp/path.h"
#include "libvma/tcp/rtt.h"
#include "libvma/tcp/sack.h"
#include "libvma/tcp/timer_wheel.h"

struct tcp_pcb;
struct tcp_seg;
struct pbuf;
struct tcp_hdr;

namespace vma::tcp {

class Listener;

// What the program may set (socket options), in the units of the options. A listener's are copied to what it accepts.
struct Options {
    PathOptions path;
    bool nodelay = false, cork = false, keepalive = false;
    bool quickack = true;                   // TCP_QUICKACK as read: true while not "pingpong"
    bool timestamps = true, sack = true, window_scaling = true;
    unsigned keep_idle_s = 7200, keep_interval_s = 75, keep_count = 9;
    std::uint32_t user_timeout_ms = 0;      // TCP_USER_TIMEOUT, 0: by retransmissions
    unsigned syn_retries = 6, retries2 = 15;  // TCP_SYNCNT, net.ipv4.tcp_retries2
    int linger2_s = 60;                     // TCP_LINGER2: FIN_WAIT_2 of a closed socket; < 0: none
    std::uint32_t maxseg = 0;               // TCP_MAXSEG, 0: the path's
    std::uint32_t receive_window = 0;       // bytes of data we let the peer have under way and unread
    std::uint32_t send_buffer = 0;          // bytes of data that may wait to be acknowledged; 0: grows with the window
    std::uint32_t window_clamp = 0;
    std::uint32_t notsent_lowat = 0xffffffff;
    std::uint32_t receive_lowat = 1;        // SO_RCVLOWAT
    unsigned defer_accept_s = 0;
    std::uint32_t delayed_ack_ms = 40;
    Algorithm congestion = Algorithm::cubic;
};

// What a connection is good for at the moment; for statistics and tests.
struct Counters {
    std::uint64_t segments_in = 0, segments_out = 0, bytes_in = 0, bytes_out = 0;
    std::uint64_t retransmits = 0, fast_recoveries = 0, timeouts = 0, dup_acks_in = 0, out_of_order = 0;
    std::uint64_t challenge_acks = 0, unacceptable = 0, paws = 0, bad_options = 0, probes = 0, keepalives = 0, dsacks = 0;
    std::uint64_t merged = 0;               // received frames that shared a pass through the state machine
};

// States as TCP_INFO numbers them.
enum class State : std::uint8_t {
    established = 1, syn_sent, syn_recv, fin_wait1, fin_wait2, time_wait, close, close_wait, last_ack, listen, closing
};

// Whoever shows a connection to a program. Called with the connection's lock held: note it, wake sleepers, and return.
class Owner {
  public:
    virtual void changed() noexcept = 0;

  protected:
    ~Owner() = default;
};

// All there is of a live connection, to go on elsewhere (tcp/handover.h says how).
struct KernelState;

class Connection final : public ring::FrameSink, public ring::HeldSender {
  public:
    // For an active open; CLOSED, one reference, the caller's. Null without memory. `paths` lives as long as the process.
    static Connection* create(PathSource& paths, const Endpoints& ends, const Options& options) noexcept;

    void ref() noexcept { refs_.fetch_add(1, std::memory_order_relaxed); }
    void unref() noexcept;

    // Starts the handshake: 0, or -errno where there is no way at all. The outcome is an event (EPOLLOUT, or EPOLLERR and
    // take_error()).
    int connect() noexcept;
    // Null: nobody any more. After it returned, the old owner is not called again.
    void set_owner(Owner* owner) noexcept;

    // ---- data ----
    enum : unsigned { kMore = 1, kPeek = 2, kDiscard = 4, kQuiet = 8 };
    // Queues what there is room for. -EAGAIN: no room; -EPIPE: shut down for sending; -ENOTCONN; or the pending error.
    // kMore: more follows (MSG_MORE). kQuiet: do not start sending (the caller will call push()).
    ssize_t send(const iovec* iov, std::size_t count, std::size_t length, unsigned flags) noexcept;
    void push() noexcept;
    // Copies out what is there (kPeek: and leaves it; kDiscard: copies nothing, MSG_TRUNC). `skip`: bytes to pass over when
    // peeking. 0: the peer has closed, or receiving is shut down. -EAGAIN: nothing yet; -ENOTCONN; or the pending error.
    ssize_t receive(const iovec* iov, std::size_t count, std::size_t length, unsigned flags, std::size_t skip = 0) noexcept;

    // ---- end ----
    // SHUT_RD, SHUT_WR, SHUT_RDWR: 0 or -ENOTCONN.
    int shutdown(int how) noexcept;
    // The program has let go of it. With unread data, or `reset` (SO_LINGER of 0 seconds): RST; else FIN after what is
    // queued. The connection then ends by itself; the caller's reference is not taken.
    void close(bool reset) noexcept;
    // Is everything that was sent acknowledged, our FIN included, or the connection gone? (SO_LINGER waits for it.)
    bool drained() const noexcept;

    // ---- state ----
    State state() const noexcept { return state_.load(std::memory_order_acquire); }
    // EPOLL* bits that are true now.
    std::uint32_t events() const noexcept { return events_.load(std::memory_order_acquire); }
    // Counts wake-ups as Socket::edges() does.
    std::uint32_t edges(std::uint32_t interest) const noexcept;
    // Takes the pending error (SO_ERROR); 0: none.
    int take_error() noexcept;
    int peek_error() const noexcept { return error_.load(std::memory_order_acquire); }
    std::size_t readable() const noexcept { return readable_.load(std::memory_order_acquire); }  // FIONREAD
    std::size_t unacked_bytes() const noexcept;   // SIOCOUTQ: not yet acknowledged, sent or not
    std::size_t unsent_bytes() const noexcept;    // SIOCOUTQNSD
    void info(tcp_info& out) noexcept;
    Counters counters() noexcept;
    const Endpoints& endpoints() const noexcept { return ends_; }
    std::uint32_t mss() const noexcept { return mss_.load(std::memory_order_relaxed); }
    Algorithm algorithm() noexcept;
    ring::Ring* ring() const noexcept { return ring_.load(std::memory_order_acquire); }
    std::uint32_t send_space() const noexcept;    // bytes that send() would take now
    std::uint32_t send_buffer() const noexcept;   // its limit now

    // Applies `edit(options)` under the lock, with what follows from it (cork released, window changed, ...).
    template <class F>
    void change(F&& edit) noexcept {
        if (!enter()) return;
        edit(options_);
        options_changed();
        leave();
    }
    Options options() noexcept;
    void quick_ack(bool on) noexcept;             // TCP_QUICKACK

    // ICMP said that packets of the flow may have `mtu` bytes at most (checked by the kernel's socket error queue's owner).
    void path_mtu(std::uint32_t mtu) noexcept;

    // ---- moving to the kernel ----
    // Stops the connection: frames are dropped, timers rest. Fills `out`, whose queues point into this connection.
    // 0; -EOPNOTSUPP in a state that cannot be moved. Then finish_freeze(moved): true ends it silently (no FIN, no RST,
    // flow rule withdrawn), false lets it go on.
    int freeze(KernelState& out) noexcept;
    void finish_freeze(bool moved) noexcept;
    // Urgent data was sent by the peer: only the kernel serves that.
    bool urgent_seen() const noexcept { return urgent_seen_.load(std::memory_order_relaxed); }

    // ring::FrameSink
    bool deliver(ring::RxBuffer* buffer) noexcept override;
    void batch_end(ring::Ring& ring) noexcept override;
    void detached(ring::Ring& ring) noexcept override;
    // ring::HeldSender
    void send_held() noexcept override;

    // Bytes of memory of all connections of the process, without queued data; and how many there are.
    static std::size_t count() noexcept;
    // In a forked child: connections are the parent's. Forget all.
    static void reset_in_child() noexcept;
