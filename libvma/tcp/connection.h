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

#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "libvma/ring/ring.h"
#include "libvma/runtime/lock.h"
#include "libvma/tcp/handshake/opening.h"
#include "libvma/tcp/migrate/freeze.h"
#include "libvma/tcp/path.h"
#include "libvma/tcp/phase.h"
#include "libvma/tcp/published.h"
#include "libvma/tcp/receive/acceptance.h"
#include "libvma/tcp/receive/backlog.h"
#include "libvma/tcp/receive/receiver.h"
#include "libvma/tcp/recovery/loss_recovery.h"
#include "libvma/tcp/recovery/scoreboard.h"
#include "libvma/tcp/route.h"
#include "libvma/tcp/send/ack_policy.h"
#include "libvma/tcp/send/send_queue.h"
#include "libvma/tcp/timers/connection_timers.h"
#include "libvma/tcp/timers/engine.h"

struct tcp_pcb;
struct tcp_seg;
struct pbuf;
struct tcp_hdr;

namespace vma::tcp {

class Listener;
struct Handshake;
struct SegmentBoard;

inline constexpr std::uint32_t kTimestampBytes = 12;  // of options in each segment

// What the program may set (socket options), in the units of the options. A listener's are copied to what it
// accepts.
struct Options {
    PathOptions path;
    bool nodelay = false, cork = false, keepalive = false;
    bool quickack = true;  // TCP_QUICKACK as read: true while not "pingpong"
    bool timestamps = true, sack = true, window_scaling = true;
    unsigned keep_idle_s = 7200, keep_interval_s = 75, keep_count = 9;
    std::uint32_t user_timeout_ms = 0;        // TCP_USER_TIMEOUT, 0: by retransmissions
    unsigned syn_retries = 6, retries2 = 15;  // TCP_SYNCNT, net.ipv4.tcp_retries2
    unsigned synack_retries = 5;              // TCP_SYNCNT of a listener, net.ipv4.tcp_synack_retries
    unsigned syncookies = 1;           // net.ipv4.tcp_syncookies: never, when the table is full, always
    int linger2_s = 60;                // TCP_LINGER2: FIN_WAIT_2 of a closed socket; < 0: none
    std::uint32_t maxseg = 0;          // TCP_MAXSEG, 0: the path's
    std::uint32_t receive_window = 0;  // bytes of data we let the peer have under way and unread
    std::uint32_t send_buffer =
        0;  // bytes of data that may wait to be acknowledged; 0: grows with the window
    std::uint32_t window_clamp = 0;
    std::uint32_t notsent_lowat = 0xffffffff;
    std::uint32_t receive_lowat = 1;  // SO_RCVLOWAT
    unsigned defer_accept_s = 0;
    bool reuse_address = false;  // SO_REUSEADDR: others may bind the port while the connection lives
    std::uint32_t delayed_ack_ms = 40;
    unsigned mtu_expires_s = 600;  // net.ipv4.route.mtu_expires: how long what ICMP said of the path holds
    CongestionAlgorithm congestion = CongestionAlgorithm::cubic;
};

// What a connection is good for at the moment; for statistics and tests.
struct Counters {
    std::uint64_t segments_in = 0, segments_out = 0, bytes_in = 0, bytes_out = 0;
    std::uint64_t retransmits = 0, fast_recoveries = 0, timeouts = 0, tail_probes = 0, dup_acks_in = 0,
                  out_of_order = 0;
    std::uint64_t challenge_acks = 0, unacceptable = 0, paws = 0, bad_options = 0, probes = 0, keepalives = 0,
                  dsacks = 0;
    std::uint64_t merged = 0;  // received frames that shared a pass through the state machine
    // As TCP_INFO counts: sequence numbers, each once, and what was sent again.
    std::uint64_t acked = 0, received = 0, bytes_again = 0, data_segments_in = 0, data_segments_out = 0;
};

// What getsockopt(TCP_INFO) tells: the kernel's struct tcp_info (linux/tcp.h), of which the C library's
// header has the beginning only. Fields up to snd_wnd; what follows is newer than the features here.
struct Info {
    ::tcp_info basic;
    std::uint64_t pacing_rate, max_pacing_rate, bytes_acked, bytes_received;
    std::uint32_t segs_out, segs_in, notsent_bytes, min_rtt, data_segs_in, data_segs_out;
    std::uint64_t delivery_rate, busy_time, rwnd_limited, sndbuf_limited;
    std::uint32_t delivered, delivered_ce;
    std::uint64_t bytes_sent, bytes_retrans;
    std::uint32_t dsack_dups, reord_seen, rcv_ooopack, snd_wnd;
};
static_assert(offsetof(Info, bytes_acked) == 120 && offsetof(Info, snd_wnd) == 228);

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
    static Connection* create(PathSource& paths, const Endpoints& ends, const Options& options) noexcept;

    void ref() noexcept { refs_.fetch_add(1, std::memory_order_relaxed); }
    void unref() noexcept;

    // Starts the handshake: 0, or -errno where there is no way at all. The outcome is an event (EPOLLOUT, or
    // EPOLLERR and take_error()).
    int connect() noexcept;
    // Null: nobody any more. After it returned, the old owner is not called again.
    void set_owner(Owner* owner) noexcept;

    // ---- data ----
    enum : unsigned { kMore = 1, kPeek = 2, kDiscard = 4, kQuiet = 8 };
    // Queues what there is room for. -EAGAIN: no room; -EPIPE: shut down for sending; -ENOTCONN; or the
    // pending error. kMore: more follows (MSG_MORE). kQuiet: do not start sending (the caller will call
    // push()).
    ssize_t send(const iovec* iov, std::size_t count, std::size_t length, unsigned flags) noexcept;
    void push() noexcept;
    // Copies out what is there (kPeek: and leaves it; kDiscard: copies nothing, MSG_TRUNC). `skip`: bytes to
    // pass over when peeking. 0: the peer has closed, or receiving is shut down. -EAGAIN: nothing yet;
    // -ENOTCONN; or the pending error.
    ssize_t receive(const iovec* iov, std::size_t count, std::size_t length, unsigned flags,
                    std::size_t skip = 0) noexcept;

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
    State state() const noexcept { return shown_.state.load(std::memory_order_acquire); }
    // EPOLL* bits that are true now.
    std::uint32_t events() const noexcept { return shown_.events.load(std::memory_order_acquire); }
    // The same for somebody who will be woken by a hook: as with the kernel's poll, who was told that there
    // is no room for data hears when there is (and who was not, does not).
    std::uint32_t events_asked() const noexcept {
        std::uint32_t now = events();
        if ((now & EPOLLOUT) != 0) return now;
        if (!shown_.room_wanted.load(std::memory_order_relaxed))
            shown_.room_wanted.store(true, std::memory_order_seq_cst);
        return shown_.events.load(std::memory_order_seq_cst);
    }
    // Counts wake-ups as Socket::edges() does.
    std::uint32_t edges(std::uint32_t interest) const noexcept;
    // Takes the pending error (SO_ERROR); 0: none.
    int take_error() noexcept;
    int peek_error() const noexcept { return shown_.error.load(std::memory_order_acquire); }
    std::size_t readable() const noexcept {
        return shown_.readable.load(std::memory_order_acquire);
    }                                            // FIONREAD
    std::size_t unacked_bytes() const noexcept;  // SIOCOUTQ: not yet acknowledged, sent or not
    std::size_t unsent_bytes() const noexcept;   // SIOCOUTQNSD
    void info(Info& out) noexcept;
    Counters counters() noexcept;
    // Counters and gauges, in bytes and microseconds; false in a signal handler that interrupted the
    // connection's own code.
    struct Sample {
        Counters counters;
        std::uint32_t rtt_us = 0, rttvar_us = 0, rto_us = 0;
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
    const Endpoints& endpoints() const noexcept { return ends_; }
    std::uint32_t mss() const noexcept { return shown_.mss.load(std::memory_order_relaxed); }
    CongestionAlgorithm algorithm() noexcept;
    ring::Ring* ring() const noexcept { return ring_.load(std::memory_order_acquire); }
    std::uint32_t send_space() const noexcept;   // bytes that send() would take now
    std::uint32_t send_buffer() const noexcept;  // its limit now

    // Applies `edit(options)` under the lock, with what follows from it (cork released, window changed, ...).
    template <class F>
    void change(F&& edit) noexcept {
        if (!enter()) return;
        edit(options_);
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

    // ---- moving to the kernel ----
    // Stops the connection: frames are dropped, timers rest. Fills `out`, whose queues point into this
    // connection. 0; -EOPNOTSUPP in a state that cannot be moved. Then finish_freeze(moved): true ends it
    // silently (no FIN, no RST, flow rule withdrawn), false lets it go on. From freeze() on send(), receive()
    // and shutdown() say -EREMOTE, and events and state stay as they were: the owner knows who answers now.
    int freeze(KernelState& out) noexcept;
    void finish_freeze(bool moved) noexcept;
    // Urgent data was sent by the peer: only the kernel serves that. The segments with it are dropped, so
    // that the peer repeats them to whoever serves the connection then; the owner is told. keep_urgent(): it
    // cannot be moved, so urgent data is a part of the stream from now on.
    bool urgent_seen() const noexcept { return shown_.urgent_seen.load(std::memory_order_relaxed); }
    void keep_urgent() noexcept { shown_.urgent_kept.store(true, std::memory_order_relaxed); }

    // ring::FrameSink
    bool deliver(ring::RxBuffer* buffer) noexcept override;
    void batch_end(ring::Ring& ring) noexcept override;
    void idle(ring::Ring& ring) noexcept override;
    void icmp_error(ring::Ring& ring, const ring::IcmpError& error) noexcept override;
    void detached(ring::Ring& ring) noexcept override;
    // ring::HeldSender
    void send_held() noexcept override;

    // Bytes of memory of all connections of the process, without queued data; and how many there are.
    static std::size_t count() noexcept;
    // Has any been moved to the kernel, in this process? Then a segment of no connection of ours may be one
    // of the kernel's.
    static bool any_moved() noexcept;
    static void note_moved() noexcept;

  private:
    friend class Listener;
    friend struct Callbacks;  // what lwIP calls

    Connection(PathSource& paths, const Endpoints& ends, const Options& options);
    ~Connection() override;
    // For a PCB that lwIP made of a SYN (state SYN_RCVD), whose answer `origin` has sent. `from`: where the
    // peer's segments come in.
    static Connection* adopt(PathSource& paths, tcp_pcb* pcb, const Handshake& handshake,
                             const Options& options, const Path& path, bool resolved, ring::Ring& from,
                             Listener* origin) noexcept;

    // ---- lock (connection.cpp) ----
    bool enter() noexcept;  // false: this thread has it already
    void leave() noexcept;  // works off the backlog, publishes what changed, unlocks, and does what must wait
                            // for that
    void settle() noexcept;  // state, events, timers, owner
    template <class F>
    void in_lwip(F&& call) noexcept;  // enters lwIP with this PCB; notices when lwIP freed it
    void publish() noexcept;
    std::uint32_t compute_events() const noexcept;
    void fail(int error) noexcept;  // the connection is over, with this error for the program
    void gone() noexcept;           // lwIP has freed the PCB
    void free_queues() noexcept;
    int attach() noexcept;  // 0 or errno; EADDRNOTAVAIL: the four numbers are in use
    verbs::FlowSpec flow() const noexcept {
        return {IPPROTO_TCP, ends_.local_addr, ends_.local_port, ends_.remote_addr, ends_.remote_port};
    }
    void options_changed() noexcept;
    void set_pcb_options() noexcept;

    // ---- path ----
    int find_path() noexcept;  // 0, or an errno of PathSource
    void use_path(const Path& path) noexcept;
    std::uint32_t wanted_mss() const noexcept;
    std::uint32_t send_mss() const noexcept;

    // ---- receive (input.cpp) ----
    void take_batch(ring::Ring& ring, ring::RxBuffer* list, ring::RxBuffer* last) noexcept;
    void input_list(ring::RxBuffer* list) noexcept;
    void kernels_frame(ring::RxBuffer* buffer) noexcept;
    void input(pbuf* p, std::uint64_t now) noexcept;
    void trim_to_window(pbuf* p) noexcept;
    std::uint32_t receive_capacity() const noexcept;
    void keep_early(std::uint32_t seq, const pbuf& p, bool fin) noexcept;
    void take_early() noexcept;
    void count_data(std::uint32_t length) noexcept;
    void choose_window(std::uint32_t seq, std::uint32_t ack, std::uint32_t window) noexcept;
    bool check(tcp_hdr& header, unsigned option_bytes, const pbuf& p) noexcept;  // the hook in front of lwIP
    bool urgent_wanted(const tcp_hdr& header) noexcept;
    void challenge() noexcept;
    void learn_mtu(std::uint32_t mtu) noexcept;
    void forget_mtu() noexcept;
    void mss_changed() noexcept;
    void icmp_error_locked(const ring::IcmpError& error) noexcept;
    void received(pbuf* p) noexcept;
    void peer_finished() noexcept;
    void established() noexcept;
    void simultaneous_open(const tcp_hdr& header, unsigned option_bytes) noexcept;
    bool time_wait_reopens(const ring::RxBuffer& buffer) const noexcept;
    void reopen(ring::RxBuffer* buffer) noexcept;
    void widen_window() noexcept;
    void open_window() noexcept;
    // Ends without a word to the peer. Any thread; if the lock is taken its owner does it.
    void abandon_quietly() noexcept;
    void unref_later() noexcept { later_unrefs_++; }  // with the lock held: leave() does it

    // ---- loss (recovery.cpp) ----
    struct AckInfo {
        std::uint32_t ack = 0, window = 0;
        bool data = false;
        const SackBlock* blocks = nullptr;
        unsigned block_count = 0;
        std::uint32_t echo = 0;  // time stamp that came back, 0: none
    };
    void before_ack(const AckInfo& info) noexcept;
    std::uint32_t pipe() const noexcept;  // bytes that are in the network, as far as we know
    void retransmit_lost() noexcept;
    void start_recovery() noexcept;  // the handshake is done: what was negotiated is known
    void split_sent(tcp_seg* first, tcp_seg* second) noexcept;
    bool recovering() const noexcept;
    bool after_timeout() const noexcept;
    void schedule_tail_probe(std::uint64_t now) noexcept;
    void all_lost() noexcept;
    void on_timeout(std::uint64_t now) noexcept;
    void tail_loss_probe() noexcept;
    void restart_after_idle(std::uint64_t now) noexcept;
    void scoreboard_reset() noexcept;

    // ---- send (output.cpp) ----
    void output() noexcept;  // whatever may be sent now: retransmissions, data, an ACK
    void output(std::uint64_t now) noexcept;
    void acknowledge(std::uint64_t now) noexcept;
    void resegment() noexcept;
    std::uint32_t timestamp(std::uint64_t now) const noexcept;
    bool send_segment(tcp_seg* seg, bool again) noexcept;
    void send_ack(std::uint32_t back = 0) noexcept;
    void send_control(pbuf* p) noexcept;
    int transmit(const std::uint8_t* tcp_header, std::size_t header_length, const iovec* iov,
                 std::size_t count, std::size_t length) noexcept;
    std::size_t put_options(std::uint8_t* at, const tcp_seg* seg, std::uint64_t now) noexcept;
    bool keep_back(const tcp_seg* seg) noexcept;
    bool split(tcp_seg* seg, std::uint32_t length) noexcept;
    tcp_seg* new_segment(std::uint32_t room) noexcept;
    std::size_t append(const iovec* iov, std::size_t count, std::size_t length) noexcept;
    void ack_sent() noexcept;
    std::uint32_t queued() const noexcept;
    std::uint32_t send_limit() const noexcept;

    // ---- time (timers.cpp) ----
    static void timer_fired(Timer& timer) noexcept;
    void on_timer() noexcept;
    void run_timers(std::uint64_t now) noexcept;
    void retransmission_timeout(std::uint64_t now) noexcept;
    void probe(std::uint64_t now) noexcept;
    void keep_alive(std::uint64_t now) noexcept;
    void arm_timers() noexcept;
    bool retried_too_long(std::uint64_t now) const noexcept;
    void enter_time_wait() noexcept;
    void start_fin_wait2() noexcept;
    void give_up(int error) noexcept;
    void wait_for_path(int error, std::uint64_t now) noexcept;
    void close_locked(bool reset) noexcept;

    friend class Engine;

    const Endpoints ends_;
    std::atomic<std::uint32_t> refs_{1};
    Listener* origin_ = nullptr;  // of an accepted connection; a reference
    bool counted_reuse_ = false;  // options_.reuse_address as origin_ knows it
    bool handed_out_ = false;     // to origin_'s queue
    Owner* owner_ = nullptr;

    mutable Lock lock_;
    Staging staged_;
    Backlog backlog_;
    Published shown_;
    std::atomic<ring::Ring*> ring_{nullptr};

    // All below: under lock_.
    tcp_pcb* pcb_ = nullptr;
    Options options_;
    Phase phase_;
    bool attached_ = false, detaching_ = false;
    std::uint32_t later_unrefs_ = 0;
    Freeze freeze_;
    Route route_;
    Receiver receiver_;
    Acceptance check_;
    AckPolicy acks_;
    Opening opening_;
    SendQueue send_;
    LossRecovery recovery_;
    ConnectionTimers timers_{*this, &Connection::timer_fired};
    EngineLinks links_;
    Counters counters_;
};

}  // namespace vma::tcp
