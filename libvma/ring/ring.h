// SPDX-License-Identifier: BSD-2-Clause
// A ring: one QP with its completion queues and registered buffers, and the table that tells which socket a
// frame is for.
//
// Receive: poll() takes completions in batches, parses each frame once, finds the socket in the flow table
// and hands it the buffer. Buffers come back from any thread (RxBuffer::release) over a lock-free list and
// are posted again in batches. Send: send_udp() fills a registered buffer and posts it; the device may hold
// it back within a burst, and the receive calls, or the flusher thread, send it on.
//
// Locks: rx_lock_ serialises poll() and the flow table, tx_lock_ everything posted for sending; it is taken
// inside rx_lock_. Neither is held while calling into a program. The socket's queue lock is taken inside
// rx_lock_.
//
// Errors: a completion with an error status stops the QP. Who holds rx_lock_ then recovers it: what was
// posted is lost (TCP repairs it), receives are posted anew. A device that needs this again and again, or
// dies, has failed: config.on_failure is called.
#pragma once

#include <netinet/in.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "libvma/net/frame.h"
#include "libvma/net/kernel_path.h"
#include "libvma/ring/moderation.h"
#include "libvma/runtime/lock.h"
#include "libvma/verbs/device.h"

namespace vma::ring {

class Ring;

// One receive buffer's descriptor. A frame in several buffers is a chain over `more`, the first one describes
// it. Everything but the time stamp lies in one cache line; the second line is the owner's, as long as it has
// the buffer.
struct alignas(64) RxBuffer {
    RxBuffer* next = nullptr;  // list the buffer is on
    RxBuffer* more = nullptr;  // continuation of the frame
    Ring* ring = nullptr;
    std::uint8_t* frame = nullptr;  // first byte of the frame (or of its continuation)
    std::uint32_t length = 0;       // bytes in this buffer; 0: posted, or free to be posted
    std::uint32_t payload_offset = 0;
    std::uint32_t payload_length = 0;
    in_addr_t src_addr = 0, dst_addr = 0;
    in_port_t src_port = 0, dst_port = 0;
    std::uint8_t tos = 0, ttl = 0;
    bool copied = false;  // not a buffer of the ring: memory of its own, in one piece (Ring::swap_for_copy)
    std::uint32_t drops_before = 0;  // the socket's drop count when this was queued (SO_RXQ_OVFL)
    std::int64_t timestamp_ns =
        0;  // CLOCK_REALTIME on arrival, 0 unless somebody asked (Ring::want_timestamps)
    std::uint64_t device_ns =
        0;  // the device's own time of arrival, 0: it has none; only where timestamp_ns is not 0
    std::uint16_t l4_offset = 0;      // of the UDP or TCP header, from the start of the frame
    alignas(8) std::byte user[40]{};  // whatever the sink that holds the buffer needs with it

    // Copies up to the iovecs' room from payload byte `from` on. Returns bytes copied.
    std::size_t copy_to(const iovec* iov, std::size_t count, std::size_t from = 0) const noexcept;
    // Gives the whole chain back to its ring. Any thread.
    void release() noexcept;
};

// What ICMP said about a segment that was sent (RFC 792): the errno it means to a socket, the next hop's MTU
// (0: not the matter, or not told), and the quoted sequence number.
struct IcmpError {
    int error = 0;
    std::uint32_t mtu = 0;
    std::uint32_t seq = 0;
};

// Who receives the frames of a flow. deliver() is called with the ring's rx_lock_ held: it queues and
// returns.
class FrameSink {
  public:
    virtual ~FrameSink() = default;
    // True: the sink owns the buffer now and will release() it. False: dropped by the sink (it counted why).
    virtual bool deliver(RxBuffer* buffer) noexcept = 0;
    // The batch is over in which deliver() called Ring::at_batch_end(this). With rx_lock_ held; it may send.
    virtual void batch_end(Ring& ring) noexcept { (void)ring; }
    // The time of Ring::when_idle() has come. With rx_lock_ held; it may send.
    virtual void idle(Ring& ring) noexcept { (void)ring; }
    // See Ring::icmp_error(). With rx_lock_ held.
    virtual void icmp_error(Ring& ring, const IcmpError& error) noexcept { (void)ring, (void)error; }
    // After Ring::detach_soon(): no deliver() will come for that flow. With rx_lock_ held.
    virtual void detached(Ring& ring) noexcept { (void)ring; }
};

// A sender that keeps back the last, short piece of a burst, to fill it up (see Ring::hold).
class HeldSender {
  public:
    virtual ~HeldSender() = default;
    // Send it now. Any thread, no lock of the ring held.
    virtual void send_held() noexcept = 0;

  private:
    friend class Ring;
    HeldSender* next_held_ = nullptr;
};

// How a flow is shared by several sinks with the same rule (SO_REUSEADDR, SO_REUSEPORT), as the kernel does
// it: the latest gets all, or the peers are spread. `spread_any` is for sockets bound to INADDR_ANY, which
// get what no socket is there for that is bound to the address. `only` does not share: EEXIST if there is a
// sink.
enum class Share { latest, spread, spread_any, only };

struct RingCounters {
    std::uint64_t rx_frames = 0, rx_bytes = 0, tx_frames = 0, tx_bytes = 0;
    std::uint64_t rx_no_socket = 0;   // a rule matched, but its socket has just gone
    std::uint64_t rx_no_buffer = 0;   // datagrams dropped to keep the queue filled
    std::uint64_t rx_copied = 0;      // datagrams copied out of the ring's buffers, since these became few
    std::uint64_t rx_bad_source = 0;  // the kernel would not have taken it either: martians, rp_filter
    std::uint64_t rx_refused = 0;     // the socket's queue was full
    std::uint64_t rx_to_kernel = 0;   // nobody's here, given to the kernel (DeviceAttr::coarse_steering)
    std::uint64_t rx_error = 0;       // completions with an error status, without those of flushed requests
    std::uint64_t tx_error = 0;
    std::uint64_t tx_lost = 0;     // requests that such an error took with it
    std::uint64_t recoveries = 0;  // the QP was brought back to work
    std::array<std::uint64_t, static_cast<std::size_t>(net::Drop::count_)> rx_bad{};  // by net::Drop
    std::uint64_t tcp_connections = 0;  // had a rule of their own here
    std::uint64_t tx_no_buffer = 0;     // a send found no free buffer even after a kick
    std::uint64_t tx_retransmits = 0;   // TCP segments sent again
    std::uint64_t rx_drained_max = 0;   // most frames taken by one poll, since reset_drained_max()
    std::uint64_t rules = 0;            // flow rules now
};

// Where a ring's buffers are. What is in none of these places is held by sinks, or waits in the device's CQ.
struct BufferCounts {
    std::uint32_t rx_total = 0, rx_posted = 0, rx_free = 0;
    std::uint32_t tx_total = 0, tx_free = 0;
};

struct RingConfig {
    std::uint32_t batch = 16;       // completions in one poll
    std::uint32_t post_batch = 64;  // receives posted at a time
    std::uint32_t max_rx_buffers = 200000;
    std::uint32_t max_tx_buffers = 200000;
    std::uint64_t max_copied = 64u << 20;  // bytes of datagrams that sockets may hold beside the buffers
    std::uint32_t signal_every =
        32;  // send requests that share a completion, at most; twice as many send buffers stay warm
    std::uint32_t idle_usec =
        20;  // from when_idle() on; 0 makes what happens independent of how fast it happens
    bool huge_pages = true;
    bool warn_ordinary = false;  // say so when there are not enough of them
    // Is it an address of this host? Asked before a frame is given to the kernel, which would forward it
    // otherwise.
    std::function<bool(in_addr_t)> is_local;
    // The device works no more. Once, from the internal thread, no lock held.
    std::function<void(Ring&)> on_failure;
    ModerationConfig moderation = {};
};

class Ring {
  public:
    // Registers memory, makes the QP and posts the receives. Takes over the device.
    static Result<std::unique_ptr<Ring>> create(std::unique_ptr<verbs::Device> device,
                                                const RingConfig& config);
    ~Ring();

    const verbs::DeviceAttr& attr() const noexcept { return device_->attr(); }
    verbs::Device& device() noexcept { return *device_; }

    // ---- receive ----
    // Takes completions, a few batches at most, and delivers the frames. Returns frames handled; 0 also when
    // another thread is polling. Cheap when there is nothing.
    unsigned poll() noexcept;
    // Steers `spec` to `sink`. The rule is installed with the first sink of a spec and goes with the last.
    Result<void> attach(const verbs::FlowSpec& spec, FrameSink* sink, Share share);
    // The sockets on this ring may hold `delta` datagrams more (fewer): receives are posted for that many, so
    // that a burst which the kernel would queue while the program is busy finds buffers.
    void expect(std::int64_t delta) noexcept;
    // A TCP connection more, one fewer. A peer's window does not count whole: few send at the same time, loss
    // is repaired, and each posted buffer is one more that has left the caches when its turn comes.
    void expect_stream(bool more) noexcept;
    // One of them receives in bulk: a whole window of it may come while nobody polls. Any thread, any lock
    // held; the next poll() that finds frames posts for it. Before that its peer has not so much under way
    // (RFC 5681), and buffers that are used in turn, but never all at once, only leave the caches.
    void expect_bulk() noexcept {
        if (!bulk_.load(std::memory_order_relaxed)) bulk_.store(true, std::memory_order_relaxed);
    }
    // After this no deliver() to `sink` for `spec` is running or will come.
    void detach(const verbs::FlowSpec& spec, FrameSink* sink) noexcept;
    // The same for callers that may hold locks of sinks, or are inside deliver() or batch_end(): now or,
    // where the ring is in use, when its user lets go. sink->detached() tells when. `drain`: what is in the
    // device's queue by then still comes to the sink; otherwise it is for whoever has the flow next.
    void detach_soon(const verbs::FlowSpec& spec, FrameSink* sink, bool drain = false) noexcept;
    // For deliver(): calls sink->batch_end() when the frames of this poll have been handed out. Once a batch
    // and sink.
    void at_batch_end(FrameSink* sink) noexcept { batch_.push_back(sink); }
    // With rx_lock_ held: calls sink->idle() in a poll() that finds nothing and comes RingConfig::idle_usec
    // or more from now. Not called while nobody polls. The sink must not be detached meanwhile, or it is
    // forgotten.
    void when_idle(FrameSink* sink) noexcept;
    // The frame is nobody's here (where the device leaves such frames to us), or was in the queue already
    // when its rule went, so the kernel gets it; the buffer stays the caller's. False: the kernel did not
    // take it. Any thread.
    bool give_to_kernel(const RxBuffer& frame) noexcept;
    // The same for a UDP frame that a sink has kept and that another process is to have. Any thread; no lock
    // of a sink held.
    bool give_back(const RxBuffer& frame) noexcept;
    // With rx_lock_ held: are buffers getting scarce? Sinks then copy what they keep, and release.
    bool scarce() const noexcept { return posted_ + rx_free_.size() < rx_buffers_.size() / 4; }
    // The same for datagrams, which are copied one by one: may a sink that holds `held` of them not keep
    // another buffer?
    bool should_copy(std::uint32_t held) noexcept {
        return __builtin_expect(held >= hold_limit_ || posted_ + rx_free_.size() < plenty_, 0) &&
               still_short(held);
    }
    // With rx_lock_ held, in deliver(): a copy of a datagram in memory of its own, and the buffer goes back
    // to the ring. Null (and the buffer stays the caller's): no memory, or copies take up
    // RingConfig::max_copied and this sink, with `queued` bytes, has its share of that already. So the
    // fullest lose theirs, and all together hold twice max_copied at most.
    RxBuffer* swap_for_copy(RxBuffer* frame, std::uint64_t queued) noexcept;
    std::uint64_t copied_bytes() const noexcept { return copied_bytes_.load(std::memory_order_relaxed); }
    // From which sources frames are taken that only a 3-tuple rule matches. May throw std::bad_alloc.
    void set_sources(verbs::Sources sources);
    // Tells the sinks of `spec`, if there are any.
    void icmp_error(const verbs::FlowSpec& spec, const IcmpError& error) noexcept;
    // How many times this ring was polled: a thread that helps out sees whether somebody else does.
    std::uint32_t polls() const noexcept { return polls_.load(std::memory_order_relaxed); }
    // One socket more, one fewer of the process wants arrival times; while there are any, all rings take
    // them.
    static void want_timestamps(bool on) noexcept {
        timestamps_.fetch_add(on ? 1 : -1, std::memory_order_relaxed);
        verbs::Device::want_arrival_times(on);
    }
    // Sleep: arm(), poll() once more, then wait for channel_fd() to be readable.
    // Where notifications are events (attr().level_events is false), arm() takes in what is there already,
    // since only what comes afterwards notifies; so call it when the waiter is on the socket.
    void arm() noexcept;
    // After such a sleep, in place of the first poll(): counts, waits for more frames if wake-ups are to be
    // moderated, and polls. Takes up to VMA_CQ_AIM_MAX_PERIOD_USEC. Events are consumed, and others who sleep
    // on the channel go on being notified.
    unsigned woken() noexcept;
    // The same for somebody who always watches the channel: nothing is counted or moderated.
    void channel_ready() noexcept;
    // Once a second or so, by the internal thread: makes good for an event that did not come, and for a
    // recovery that had to wait.
    void check() noexcept;
    ModerationCounters moderation_counters() noexcept;
    int channel_fd() const noexcept { return channel_->fd; }
    bool rx_owned_by_me() const noexcept { return rx_lock_.owned_by_me(); }

    // ---- send ----
    // Sends one UDP datagram: `headers` is a template of net::kUdpHeaders bytes (see
    // net::finish_udp_headers), the payload (`length` bytes) follows from the iovecs. 0, or ENOBUFS when no
    // buffer came free, or EBUSY when this thread already holds the send lock (a signal handler): then
    // nothing was sent.
    int send_udp(const std::uint8_t* headers, const iovec* iov, std::size_t count,
                 std::size_t length) noexcept;
    std::uint32_t max_udp_payload() const noexcept;
    // Sends one TCP segment: `headers` are Ethernet, IPv4 (without options) and TCP with its options,
    // complete but for IP's length, IP's checksum and TCP's checksum, which are filled in here. Otherwise as
    // send_udp.
    int send_tcp(const std::uint8_t* headers, std::size_t header_length, const iovec* iov, std::size_t count,
                 std::size_t length) noexcept;
    // Has `sender` called when the burst ends: with the next flush(), or when the flusher finds it 50 us old.
    // Only where the device is lazy anyway (attr().lazy_tx). Each hold() brings one send_held().
    void hold(HeldSender* sender) noexcept;
    // While one of these lives, frames wait for one another where the device is lazy: the sender has more
    // than one. Where the device has TSO, TCP segments of a connection that follow one another become one
    // request.
    class Gather {
      public:
        explicit Gather(Ring* ring) noexcept : ring_(ring != nullptr && ring->gather(+1) ? ring : nullptr) {}
        ~Gather() {
            if (ring_ != nullptr) ring_->gather(-1);
        }
        Gather(const Gather&) = delete;
        Gather& operator=(const Gather&) = delete;

      private:
        Ring* ring_;
    };
    // The program turned to receiving: sends what the device holds back, and the next frame is not part of a
    // burst. Costs a load when nothing was sent since the last time.
    void flush() noexcept {
        if (in_burst_.load(std::memory_order_relaxed)) flush_slow();
    }
    // For the flusher: flushes if frames are held for at least `age` ticks at `now`. Returns the tick when
    // the oldest held frame will be that old, or 0 when none is held.
    std::uint64_t flush_older(std::uint64_t now, std::uint64_t age) noexcept;
    // For the end of the process, with which an adapter forgets what it has not read yet. While `on`, each
    // frame asks for a completion.
    void ending(bool on) noexcept;
    // Waits until the device has sent what was posted: some 20 ms at most.
    void drain() noexcept;
    bool tx_owned_by_me() const noexcept { return tx_lock_.owned_by_me(); }

    // The device has failed: it will neither send nor receive. See RingConfig::on_failure.
    bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }

    // Of TCP, for the counters: a segment was sent again.
    void note_retransmit() noexcept { tx_retransmits_.fetch_add(1, std::memory_order_relaxed); }

    RingCounters counters() noexcept;
    void reset_drained_max() noexcept;
    // Takes back what was released so far, polls send completions, and counts. Waits for the ring's locks.
    BufferCounts buffer_counts() noexcept;

  private:
    struct FlowEntry {
        verbs::FlowSpec spec;
        verbs::Flow* flow = nullptr;
        std::uint32_t tag = 0;
        std::uint32_t place = 0;                          // in five_tuples_
        std::vector<std::pair<FrameSink*, Share>> sinks;  // in order of attachment
    };
    struct FlowKey {
        std::uint64_t a, b;
        friend bool operator==(const FlowKey&, const FlowKey&) = default;
    };
    struct FlowHash {
        std::size_t operator()(const FlowKey& k) const noexcept {
            std::uint64_t h = (k.a ^ (k.b * 0x9e3779b97f4a7c15u)) * 0xff51afd7ed558ccdu;
            return static_cast<std::size_t>(h ^ (h >> 32));
        }
    };
    static FlowKey key_of(const verbs::FlowSpec& s) noexcept {
        return {(std::uint64_t{s.dst_addr} << 32) | s.src_addr,
                (std::uint64_t{s.dst_port} << 32) | (std::uint64_t{s.src_port} << 16) | s.protocol};
    }

    static constexpr unsigned kMaxPieces = 17;    // of a frame to be sent
    static constexpr unsigned kMaxRxPieces = 64;  // of a received one; the longest IP packet needs fewer

    explicit Ring(std::unique_ptr<verbs::Device> device, const RingConfig& config);
    Result<void> start();
    Result<void> register_memory(std::uint32_t& rx_count, std::uint32_t& tx_count);
    unsigned poll_locked() noexcept;
    void handle_frame(RxBuffer* first, const ibv_wc& wc) noexcept;
    // Level finer: one line for a frame of `length` bytes. Of `head`, its first bytes, the addresses are
    // shown if they are there.
    void log_frame(const char* way, std::span<const std::uint8_t> head, std::size_t length,
                   net::Drop drop) const noexcept;
    RxBuffer* add_piece(RxBuffer* piece, bool more) noexcept;
    void lose_pieces() noexcept;
    void stamp(RxBuffer& frame, const ibv_wc& wc) const noexcept;
    FlowEntry* find_flow(const net::ParsedFrame& f) noexcept;
    FlowEntry* flow_of_tag(std::uint32_t tag, const net::ParsedFrame& f) const noexcept;
    std::uint32_t take_tag(FlowEntry& entry);
    void drop_tag(FlowEntry& entry) noexcept;
    static FrameSink* pick_sink(const FlowEntry& entry, const net::ParsedFrame& f) noexcept;
    std::uint32_t index_of(const RxBuffer* b) const noexcept {
        return static_cast<std::uint32_t>(b - rx_buffers_.data());
    }
    void recycle(RxBuffer* chain) noexcept;
    void take_returned() noexcept;
    void post_free(bool all) noexcept;
    // Both: takes back what was released, and posts it; `all`: also less than a batch.
    void refill(bool all) noexcept;
    bool still_short(std::uint32_t held) noexcept;
    friend void free_copy(RxBuffer* copy) noexcept;
    // Fewer receives in the device than this is a shortage: partial batches are posted, and sinks that kept
    // datagrams in spite of should_copy() get no more.
    std::uint32_t low_water() const noexcept { return depth_ / 4; }
    void grow_if_behind() noexcept;
    void flush_slow() noexcept;
    bool gather(int change) noexcept;
    bool reap_tx() noexcept;
    void deepen() noexcept;
    void end_batch() noexcept;
    void serve_idle() noexcept;
    void detach_locked(const verbs::FlowSpec& spec, FrameSink* sink, bool drain) noexcept;
    void detach_doomed() noexcept;
    void send_all_held() noexcept;
    template <class Finish>
    int send_frame(const std::uint8_t* headers, std::size_t header_length, const iovec* iov,
                   std::size_t count, std::size_t length, Finish&& finish) noexcept;
    // Posts `wr`, which has the last `pieces` places in the queue. 0, or ENOBUFS: then these are free again.
    // With tx_lock_ held. Inline, for each frame comes here.
    [[gnu::always_inline]] int post_tx(ibv_send_wr& wr, std::uint32_t pieces) noexcept {
        wr.wr_id = tx_posted_;
        const bool signalled = unsignalled_ + pieces >= signal_every_;
        if (signalled) wr.send_flags |= IBV_SEND_SIGNALED;
        ibv_send_wr* bad = nullptr;
        const int error = ibv_post_send(qp_, &wr, &bad);
        if (__builtin_expect(error != 0, 0) && !post_again(wr, pieces, error)) return ENOBUFS;
        unsignalled_ = signalled ? 0 : unsignalled_ + pieces;  // a refused request will not complete
        return 0;
    }
    bool post_again(ibv_send_wr& wr, std::uint32_t pieces, int error) noexcept;
    bool tx_room(std::uint32_t pieces) noexcept;
    bool gather_segment(const std::uint8_t* headers, std::size_t header_length, const iovec* iov,
                        std::size_t count, std::size_t length, int& error) noexcept;
    bool continues_tso(const std::uint8_t* headers, std::size_t header_length,
                       std::size_t length) const noexcept;
    void add_to_tso(const iovec* iov, std::size_t count, std::size_t length) noexcept;
    void end_tso() noexcept;
    void look_after_arming() noexcept;
    void moderate_device() noexcept;
    void note_error() noexcept;
    void recover() noexcept;
    void reclaim_receives() noexcept;
    void fail() noexcept;
    friend struct RxBuffer;

    // Holds rx_lock_ against a thread that polls without pause. Inside deliver() and batch_end() it is held
    // already.
    struct RxHold {
        explicit RxHold(Ring& r) noexcept : ring(r), mine(!r.rx_lock_.owned_by_me()) {
            if (!mine) return;
            ring.rx_waiters_.fetch_add(1, std::memory_order_relaxed);
            ring.rx_lock_.lock();
            ring.rx_waiters_.fetch_sub(1, std::memory_order_relaxed);
        }
        ~RxHold() {
            if (mine) ring.rx_unlock();
        }
        RxHold(const RxHold&) = delete;
        RxHold& operator=(const RxHold&) = delete;
        Ring& ring;
        const bool mine;
    };
    void rx_unlock() noexcept;
    // Has tx_lock_, which the caller took, until it goes.
    struct TxHold {
        explicit TxHold(Ring& r) noexcept : ring(&r) {}
        ~TxHold() {
            if (ring != nullptr) ring->tx_lock_.unlock();
        }
        TxHold(const TxHold&) = delete;
        TxHold& operator=(const TxHold&) = delete;
        // Lets go of the lock here, if there is an error to recover from, and sees to it.
        void attend() noexcept {
            if (__builtin_expect(!ring->broken_.load(std::memory_order_relaxed), 1)) return;
            Ring* r = ring;
            ring = nullptr;
            r->tx_lock_.unlock();
            r->attend();
        }
        Ring* ring;
    };
    std::uint32_t signal_every() const noexcept {
        return std::clamp(tx_count_ / 4, 1u, std::max(config_.signal_every, 1u));
    }
    // False: this thread has it already (a signal handler).
    bool lock_tx() noexcept {
        if (tx_lock_.try_lock()) return true;
        if (tx_lock_.owned_by_me()) return false;
        tx_lock_.lock();
        return true;
    }
    // Does what is marked for whoever lets go of rx_lock_, unless somebody has it, who will.
    void attend() noexcept;
    static constexpr std::uint32_t kNoChunk = ~0u;  // in tx_outstanding_: a request posted inline

    std::unique_ptr<verbs::Device> device_;
    RingConfig config_;
    ibv_comp_channel* channel_ = nullptr;
    ibv_cq* recv_cq_ = nullptr;
    ibv_cq* send_cq_ = nullptr;
    ibv_qp* qp_ = nullptr;
    ibv_mr* mr_ = nullptr;
    std::uint8_t* memory_ = nullptr;
    std::size_t memory_length_ = 0;

    // receive side
    alignas(64) Lock rx_lock_;
    std::atomic<unsigned> rx_waiters_{0};
    std::vector<RxBuffer> rx_buffers_;
    bool partial_sums_ = false;  // the device's attribute
    std::uint32_t pieces_ =
        0;  // of the unfinished frame; more than kMaxRxPieces: the rest of it is dropped as it comes
    std::vector<std::uint32_t> rx_free_;  // numbers of buffers to post; the last one was in use last
    std::uint32_t posted_ = 0;
    std::uint32_t hold_limit_ = 0;  // datagrams that one sink may keep in buffers
    std::uint32_t plenty_ = 0;      // buffers not held by sinks; with fewer, no datagram stays in one
    std::uint32_t sinks_ = 0;       // attached
    std::uint32_t max_depth_ = 0;   // what the device's queue takes, and there are buffers for
    std::uint32_t depth_ = 0;       // receives to keep posted; grows with demand up to the device's queue
    std::int64_t expected_ = 0;     // datagrams
    std::uint32_t streams_ = 0;
    std::uint32_t full_batches_ = 0;     // polls in a row that found as much as they could take
    RxBuffer* partial_first_ = nullptr;  // frame whose last piece has not arrived
    RxBuffer* partial_last_ = nullptr;
    std::vector<ibv_wc> wc_;
    std::vector<ibv_recv_wr> recv_wr_;
    std::vector<ibv_sge> recv_sge_;
    std::unordered_map<FlowKey, std::unique_ptr<FlowEntry>, FlowHash> flows_;
    std::vector<FlowEntry*> tags_;  // by tag; null: not in use
    std::vector<std::uint32_t> free_tags_;
    std::vector<std::uint32_t> five_tuples_;  // rules with a peer, by a hash of their 3-tuple: there a
                                              // 3-tuple's tag does not say it all
    std::unique_ptr<const verbs::Sources>
        sources_;                  // where the device steers coarsely; else it knows them, and this is null
    net::KernelPath kernel_path_;  // open where the device steers coarsely
    bool give(net::KernelPath& path, const RxBuffer& frame) noexcept;
    FlowKey last_key_{};  // the flow of the frame before: usually this frame's, too
    FlowEntry* last_flow_ = nullptr;
    static inline std::atomic<int> timestamps_{0};
    RingCounters rx_counters_;
    std::vector<FrameSink*> batch_;  // who wants batch_end()
    std::vector<FrameSink*> idle_;   // who wants idle()
    std::uint64_t idle_due_ = 0;     // ticks
    std::atomic<bool> bulk_{false};  // see expect_bulk()
    bool bulk_posted_ = false;
    std::atomic<std::uint32_t> polls_{0};
    std::atomic<std::uint64_t> frames_{0}, arms_{0};
    Lock moderation_lock_;  // a leaf
    Moderation moderation_;
    Lock doomed_lock_;  // a leaf
    struct Doomed {
        verbs::FlowSpec spec;
        FrameSink* sink;
        bool drain;
    };
    std::vector<Doomed> doomed_;  // detach_soon(), not done yet
    std::atomic<bool> any_doomed_{
        false};                        // something is to be done when rx_lock_ is let go: doomed_, or broken_
    std::atomic<bool> broken_{false};  // a completion told of an error: recover()
    std::atomic<bool> failed_{false};
    std::array<std::uint64_t, 4> recovered_at_{};  // ns; the last ones
    std::atomic<bool> postponed_{false};           // recover() could not take the lock: check() does it
    bool recovering_ = false;                      // nothing is posted
    std::uint32_t polls_seen_ = 0;                 // by check()
    std::atomic<bool> armed_{false};               // since the last check()
    alignas(64) std::atomic<RxBuffer*> returned_{nullptr};  // released by other threads, not yet taken
    std::atomic<std::uint64_t> copied_bytes_{0};
    std::atomic<std::uint64_t> to_kernel_{0};  // frames

    // send side
    alignas(64) Lock tx_lock_;
    std::uint32_t tx_count_ = 0;                   // send buffers
    std::vector<std::uint32_t> tx_free_;           // chunk indices
    std::vector<std::uint32_t> tx_outstanding_;    // ring of chunk indices in post order
    std::uint64_t tx_posted_ = 0, tx_reaped_ = 0;  // chunks, running
    std::uint32_t tx_room_ = 0;                    // bytes of a frame in one buffer
    std::uint32_t offload_from_ = 0;               // bytes of payload from which on the device sums
    std::uint32_t max_inline_ = 0;
    std::uint32_t max_tso_ = 0;
    bool tx_extras_ = false;  // one of the two is not 0
    std::uint32_t unsignalled_ = 0;
    std::uint32_t signal_every_ = 1;     // send requests, one of which asks for a completion
    std::atomic<bool> in_burst_{false};  // sent since the last flush()
    std::atomic<HeldSender*> held_{nullptr};
    std::atomic<std::uint64_t> held_since_{0};  // ticks of the oldest hold()
    std::atomic<int> gathering_{0};             // Gather objects; changed with the lock held
    std::uint8_t* tx_base_ = nullptr;
    // Segments that wait to become one request: their payload lies in buffers already, behind the first one's
    // headers.
    struct Tso {
        std::uint32_t segments = 0;  // 0: there is none
        std::uint32_t mss = 0, payload = 0;
        std::uint32_t header_length = 0;
        std::uint32_t next_seq = 0;
        std::uint32_t pieces = 0;     // buffers
        std::uint32_t space = 0;      // bytes left in the last one
        std::uint8_t last_flags = 0;  // TCP's, of the last segment
        bool complete = false;        // nothing may follow: it was short, or had PSH or FIN
        std::uint8_t* headers = nullptr;
        std::vector<ibv_sge> sge;
    };
    Tso tso_;
    RingCounters tx_counters_;  // written with tx_lock_, read without
    static void bump(std::uint64_t& counter, std::uint64_t n = 1) noexcept {
        const std::atomic_ref word(counter);
        word.store(word.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    }
    std::atomic<std::uint64_t> tx_retransmits_{0};
};

}  // namespace vma::ring
