// SPDX-License-Identifier: BSD-2-Clause
// One TCP connection: lwIP's PCB and what lwIP does not do.
//
// lwIP keeps the state machine, takes received segments apart, queues out-of-order ones and says what to
// acknowledge. Here are the checks in front of it (RFC 9293 acceptability, RFC 5961, PAWS), the send queue
// and everything that is sent, loss recovery, congestion control, RTT, all timers, and the receive queue. A
// connection knows nothing of descriptors: sockets::TcpSocket owns it while the program does, and it lives on
// alone until it has said its goodbye to the peer.
//
// Threads: all functions may be called by any thread; the connection's lock is inside. Frames that arrive
// while the lock is taken go on a backlog, which the lock's owner works off before it lets go, so a ring
// never waits for a connection. Functions that find the lock held by their own thread (a signal handler
// interrupted one of them) return -EWOULDBLOCK, or leave the matter to the interrupted call.
//
// Results: ssize_t and int functions return -errno.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "libvma/ring/ring.h"
#include "libvma/runtime/lock.h"
#include "libvma/tcp/options.h"
#include "libvma/tcp/path.h"
#include "libvma/tcp/published.h"
#include "libvma/tcp/receive/backlog.h"
#include "libvma/tcp/tcb.h"
#include "libvma/tcp/timers/background.h"

namespace vma::tcp {

class Listener;
struct Handshake;

// Whoever shows a connection to a program. Called with the connection's lock held: note it, wake sleepers,
// and return.
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
    // For an active open; CLOSED, one reference, the caller's. Null without memory. `paths` lives as long as
    // the process.
    static Connection* create(PathSource& paths, const net::Endpoints& ends, const Options& options) noexcept;

    void ref() noexcept { refs_.fetch_add(1, std::memory_order_relaxed); }
    void unref() noexcept;

    // Starts the handshake: 0, or -errno where there is no way at all. The outcome is an event (EPOLLOUT, or
    // EPOLLERR and take_error()).
    int connect() noexcept;
    // Null: nobody any more. After it returned, the old owner is not called again.
    void set_owner(Owner* owner) noexcept;

    // ---- data ----
    enum : unsigned { kMore = 1, kPeek = 2, kDiscard = 4, kQuiet = 8, kBegun = 16, kRecord = 32 };
    // Queues what there is room for. -EAGAIN: no room; -EPIPE: shut down for sending; -ENOTCONN; or the
    // pending error. kMore: more follows (MSG_MORE). kRecord: a record ends here (MSG_EOR). kQuiet: do not
    // start sending (the caller will call push()). kBegun: the program's call has moved bytes already, so the
    // error stays for the next call.
    ssize_t send(const iovec* iov, std::size_t count, std::size_t length, unsigned flags) noexcept;
    void push() noexcept;
    // Copies out what is there (kPeek: and leaves it; kDiscard: copies nothing, MSG_TRUNC). `skip`: bytes to
    // pass over when peeking. 0: the peer has closed, or receiving is shut down. -EAGAIN: nothing yet;
    // -ENOTCONN; or the pending error.
    ssize_t receive(const iovec* iov, std::size_t count, std::size_t length, unsigned flags,
                    std::size_t skip = 0) noexcept;

    // ---- the extra API ----
    // As receive(), but lends at most `most` pieces of what is there to the program. `undecided`: of what its
    // callback is to judge; -EAGAIN: there is nothing. Later data is not judged before judged() says so.
    // `bytes`: no more than these, unless the first piece is longer.
    ssize_t lend(LentData& out, unsigned most, bool undecided, std::size_t bytes = ~std::size_t{0}) noexcept;
    // `charge` of what was lent is back.
    void given_back(std::uint32_t charge) noexcept;
    // A callback of the program is to judge what comes, or is not any more.
    void filter(bool on) noexcept;
    bool undecided() const noexcept { return tcb_.receiver.undecided(); }
    // It has: `data` becomes readable, and what follows it; null: none of it.
    void judged(LentData* data) noexcept;
    void decide_all() noexcept;
    // The Ethernet, IPv4 and TCP headers of its next segment, without options, lengths and checksums. Puts at
    // most `room` bytes at `out`; the whole length, or -ENOTCONN.
    int network_header(void* out, std::size_t room) noexcept;

    // ---- end ----
    // SHUT_RD, SHUT_WR, SHUT_RDWR: 0 or -ENOTCONN.
    int shutdown(int how) noexcept;
    // The program has let go of it. With unread data, or `reset` (SO_LINGER of 0 seconds): RST; else FIN
    // after what is queued. The connection then ends by itself; the caller's reference is not taken.
    void close(bool reset) noexcept;
    // There will be no path any more: it ends with `error`, without a word to the peer.
    void lose_path(int error) noexcept;
    // Is everything that was sent acknowledged, our FIN included, or the connection gone? (SO_LINGER waits
    // for it.)
    bool drained() const noexcept;

    // ---- state ----
    State state() const noexcept { return tcb_.shown.state(); }
    // EPOLL* bits that are true now.
    std::uint32_t events() const noexcept { return tcb_.shown.events(); }
    // The same for somebody who will be woken by a hook: as with the kernel's poll, who was told that there
    // is no room for data hears when there is (and who was not, does not).
    std::uint32_t events_asked() const noexcept { return tcb_.shown.events_asked(); }
    // Counts wake-ups as Socket::edges() does.
    std::uint32_t edges(std::uint32_t interest) const noexcept { return tcb_.shown.edges(interest); }
    // Takes the pending error (SO_ERROR); 0: none.
    int take_error() noexcept;
    int peek_error() const noexcept { return tcb_.shown.error(); }
    std::size_t readable() const noexcept { return tcb_.shown.readable(); }
    std::size_t told() const noexcept { return tcb_.shown.told(); }  // FIONREAD
    // SIOCOUTQ: not yet acknowledged, sent or not; SIOCOUTQNSD: not sent.
    std::size_t unacked_bytes() const noexcept { return tcb_.shown.queued(); }
    std::size_t unsent_bytes() const noexcept { return tcb_.shown.unsent(); }
    void info(Info& out) noexcept;
    Counters counters() noexcept;
    // Counters and gauges, in bytes and microseconds; false in a signal handler that interrupted the
    // connection's own code.
    struct Sample {
        Counters counters;
        Usec rtt{}, rttvar{}, rto{};
        std::uint32_t cwnd = 0, ssthresh = 0, mss = 0, send_window = 0;  // ssthresh 0: none yet
        std::uint32_t receive_window = 0, send_limit = 0;                // what the queues may hold
    };
    bool sample(Sample& out) noexcept;
    // What received data that was not read takes; `steps` as in ReceiveQueue and Reassembly. For tests.
    struct Held {
        std::size_t bytes = 0, memory = 0;
        std::uint64_t steps = 0;
    };
    Held held() noexcept;
    const net::Endpoints& endpoints() const noexcept { return tcb_.ends; }
    std::uint32_t mss() const noexcept { return tcb_.shown.mss(); }
    CongestionAlgorithm algorithm() noexcept;
    ring::Ring* ring() const noexcept { return ring_.load(std::memory_order_acquire); }
    // Bytes that send() would take now.
    std::uint32_t send_space() const noexcept {
        const std::uint32_t used = tcb_.shown.queued(), limit = tcb_.shown.limit();
        return used < limit ? limit - used : 0;
    }
    std::uint32_t send_buffer() const noexcept { return tcb_.shown.limit(); }  // its limit now

    // Applies `edit(options)` under the lock, with what follows from it (cork released, window changed, ...).
    template <class F>
    void change(F&& edit) noexcept {
        if (!enter()) return;
        edit(tcb_.options);
        options_changed();
        leave();
    }
    Options options() noexcept;
    // An edge, if there is enough to read: setting SO_RCVLOWAT makes one (tcp_set_rcvlowat()).
    void tell_readable() noexcept;
    void quick_ack(bool on) noexcept;  // TCP_QUICKACK
    void nodelay(bool on) noexcept;  // TCP_NODELAY; setting it sends what waits, even what is corked (tcp(7))

    // Packets of the flow may have `mtu` bytes at most.
    void path_mtu(std::uint32_t mtu) noexcept;

    // ---- moving to another ring ----
    // Its rule and what it sends move to `to`, of the same interface, which is the ring of `lane`. No segment
    // is lost, and none overtakes another. EAGAIN: it begins, ends, or moves; and as Ring::take(). Callers
    // hold the control lock. May throw std::bad_alloc.
    Result<void> move_to(ring::Ring& to, unsigned lane);

    // ---- moving to the kernel ----
    // Stops the connection: frames are dropped, timers rest. Fills `out`, whose queues point into this
    // connection. 0; -EOPNOTSUPP in a state that cannot be moved. Then finish_freeze(moved): true ends it
    // silently (no FIN, no RST, flow rule withdrawn), false lets it go on. From freeze() on send(), receive()
    // and shutdown() say -EREMOTE, and events and state stay as they were: the owner knows who answers now.
    int freeze(KernelState& out) noexcept;
    void finish_freeze(bool moved) noexcept;
    // Before freeze(), of a connection that moves bulk: takes what is under way and acknowledges none of it,
    // until the peer has filled the window and waits. So no segment overtakes one that the kernel gets from
    // here. Some 0.2 ms, 2 at most. end_silence(): it goes on here.
    void begin_silence() noexcept;
    void end_silence() noexcept;
    // Urgent data was sent by the peer: only the kernel serves that. The segments with it and behind it wait,
    // so that the kernel gets them behind the connection; the owner is told. keep_urgent(): it cannot be
    // moved, so urgent data is a part of the stream from now on.
    bool urgent_seen() const noexcept { return tcb_.shown.urgent_seen(); }
    void keep_urgent() noexcept;
    // It has moved so much that the kernel should have it (BulkRun). keep_bulk(): it stays all the same.
    bool bulk_seen() const noexcept { return tcb_.shown.bulk_seen(); }
    void keep_bulk() noexcept { tcb_.shown.keep_bulk(); }

    // ring::FrameSink
    bool deliver(ring::RxBuffer* buffer) noexcept override;
    void batch_end(ring::Ring& ring) noexcept override;
    void idle(ring::Ring& ring, ring::Idle when) noexcept override;
    void icmp_error(ring::Ring& ring, const ring::IcmpError& error) noexcept override;
    void detached(ring::Ring& ring) noexcept override;
    // ring::HeldSender
    bool send_held() noexcept override;
    // Is it in a burst of writes, whose end the ring will tell? Any thread.
    bool holds() const noexcept { return backlog_.held(); }

    // Bytes of memory of all connections of the process, without queued data; and how many there are.
    static std::size_t count() noexcept;
    // Has any been moved to the kernel, in this process? Then a segment of no connection of ours may be one
    // of the kernel's.
    static bool any_moved() noexcept;
    static void note_moved() noexcept;

    // ---- for the connection's own parts, and for the engine ----
    // Puts the flow rule on the ring: 0 or -errno; -EADDRNOTAVAIL: the four numbers are in use. May be called
    // with the lock held.
    int attach() noexcept;
    // With the lock held: the connection ends when that is given back; by a RST, or without a word.
    void reset_soon() noexcept { backlog_.ask_close(true); }
    void abandon_soon() noexcept { backlog_.ask_abandon(); }
    // With the lock held: send_held() when the ring says that a burst is over.
    void hold(ring::Ring& ring) noexcept;
    // Ends without a word to the peer. Any thread; if the lock is taken its owner does it.
    void abandon_quietly() noexcept;
    // With the lock held: unref() when that is given back.
    void unref_later() noexcept { later_unrefs_++; }
    // ref(), unless the last reference has gone.
    bool try_ref() noexcept;
    // The lock. False: this thread has it already. leave() works off the backlog, publishes what changed,
    // unlocks, and does what must wait for that.
    bool enter() noexcept;
    void leave() noexcept;
    EngineLinks& links() noexcept { return links_; }

  private:
    friend class Listener;

    Connection(PathSource& paths, const net::Endpoints& ends, const Options& options);
    ~Connection() override;
    // For a PCB that lwIP made of a SYN (state SYN_RCVD), whose answer `origin` has sent. `from`: where the
    // peer's segments come in.
    static Connection* adopt(PathSource& paths, lwip::Pcb* pcb, const Handshake& handshake,
                             const Options& options, const Path& path, bool resolved, ring::Ring& from,
                             Listener* origin) noexcept;

    void try_leave() noexcept;  // leave(), if the lock is free; else its owner sees the backlog
    void serve_backlog() noexcept;
    void take_batch(ring::Ring& ring, ring::RxBuffer* list, ring::RxBuffer* last) noexcept;
    void options_changed() noexcept;
    int nothing_to_read(unsigned flags, std::size_t skip) noexcept;
    int error_for_call(unsigned flags) noexcept {
        return __builtin_expect(flags & kBegun, 0) ? tcb_.shown.error() : tcb_.shown.take_error_locked();
    }
    void close_locked(bool reset) noexcept;
    void keep_urgent_locked() noexcept;
    verbs::FlowSpec flow() const noexcept { return verbs::FlowSpec::of_tcp(tcb_.ends); }

    std::atomic<std::uint32_t> refs_{1};
    std::atomic<ring::Ring*> ring_{nullptr};
    Lock lock_;
    Staging staged_;
    Backlog backlog_;
    EngineLinks links_;
    // Under lock_.
    bool attached_ = false, detaching_ = false, moving_ = false;
    std::uint32_t later_unrefs_ = 0;
    Tcb tcb_;
};

}  // namespace vma::tcp
