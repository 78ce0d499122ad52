// SPDX-License-Identifier: BSD-2-Clause
// A ring: one QP with its completion queues and registered buffers, and the table that tells which socket a
// frame is for. This class is what sockets and connections see; the state is that of its parts:
//
//   PacketMemory       the registered region and the descriptors of receive buffers
//   Receiver           completions become frames, and frames find their sinks; it has
//     RxQueue            the receive buffers and their way
//     FlowTable          the flow rules, and the sinks of each
//   TxQueue            frames are built and posted; it has TxBuffers and
//     Tso                segments that become one request
//   Recovery           errors of requests, and a device that fails
//   CompletionEvents   how threads sleep, and are woken
//
// Locks: the receive lock (ReceiveLock) serialises poll() and everything of Receiver; TxQueue's lock, which
// is taken inside it, everything posted for sending. Neither is held while calling into a program. A socket's
// queue lock is taken inside the receive lock. Unless said otherwise a method may be called by any thread.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "libvma/ring/bulk_streams.h"
#include "libvma/ring/completion_events.h"
#include "libvma/ring/first_writes.h"
#include "libvma/ring/frame_sink.h"
#include "libvma/ring/held_senders.h"
#include "libvma/ring/moderation.h"
#include "libvma/ring/packet_memory.h"
#include "libvma/ring/receiver.h"
#include "libvma/ring/recovery.h"
#include "libvma/ring/ring_config.h"
#include "libvma/ring/ring_counters.h"
#include "libvma/ring/rx_buffer.h"
#include "libvma/ring/silence.h"
#include "libvma/ring/strays/stray_segments.h"
#include "libvma/ring/tx_queue.h"
#include "libvma/verbs/device.h"

namespace vma::ring {

class Ring {
  public:
    // Registers memory, makes the QP and posts the receives. Takes over the device. Errors: those of the
    // device's calls. May throw std::bad_alloc.
    static Result<std::unique_ptr<Ring>> create(std::unique_ptr<verbs::Device> device,
                                                const RingConfig& config);
    ~Ring();

    const verbs::DeviceAttr& attr() const noexcept { return device_->attr(); }
    verbs::Device& device() noexcept { return *device_; }
    // Its number among the rings of the interface.
    unsigned lane() const noexcept { return lane_; }
    // The ring of the interface that has the rule already, else this one: where a sink for `spec` belongs.
    Ring& home_of(const verbs::FlowSpec& spec) noexcept {
        Ring* home = owners_ != nullptr ? owners_->find(spec) : nullptr;
        return home != nullptr ? *home : *this;
    }

    // ---- receive ----
    // Takes completions, a few batches at most, and delivers the frames. Returns frames handled; 0 also when
    // another thread is polling. Cheap when there is nothing.
    unsigned poll() noexcept { return rx_.poll(); }
    // Steers `spec` to `sink`. The rule is installed with the first sink of a spec and goes with the last.
    Result<void> attach(const verbs::FlowSpec& spec, FrameSink* sink, Share share);
    // The sockets on this ring may hold `delta` datagrams more (fewer): receives are posted for that many, so
    // that a burst which the kernel would queue while the program is busy finds buffers.
    void expect(std::int64_t delta) noexcept;
    // A further device on this one's takes receives that this ring posts (DeviceAttr::borrowed_recv): posts
    // as many more, for good.
    void post_for_others(std::uint32_t receives) noexcept;
    // A TCP connection more, one fewer. A peer's window does not count whole: few send at the same time, loss
    // is repaired, and each posted buffer is one more that has left the caches when its turn comes.
    void expect_stream(bool more) noexcept;
    // One of them receives in bulk: a whole window of it, in bytes, may come while no thread polls. Any lock
    // held; the next poll() that finds frames posts for it. Before that its peer has not so much under way
    // (RFC 5681). Buffers that are used in turn, but never all at once, only leave the caches.
    void expect_bulk(std::uint32_t window) noexcept { rx_.queue().expect_bulk(window); }
    // Those that do so at present: they share a window.
    BulkStreams& bulk_streams() noexcept { return bulk_streams_; }
    // Of those that this process opens.
    FirstWrites& first_writes() noexcept { return first_writes_; }
    // After this no deliver() to `sink` for `spec` is running or will come.
    void detach(const verbs::FlowSpec& spec, FrameSink* sink) noexcept;
    // Moves the flow of `spec`, which is attached to `from` for `sink` alone, to this ring: it loses no frame
    // and none comes early. Takes 100 us, during which neither ring is polled. EBUSY: other sockets share the
    // flow or its rule; EOPNOTSUPP, and what Device::take_flow() says: it stays. Callers hold the control
    // lock and none of a ring. May throw std::bad_alloc.
    Result<void> take(const verbs::FlowSpec& spec, FrameSink* sink, Share share, Ring& from);
    // The same for callers that may hold locks of sinks, or are inside deliver() or batch_end(): now or,
    // where the ring is in use, when its user lets go. sink->detached() tells when. `drain`: what is in the
    // device's queue by then still comes to the sink; otherwise it is for the next sink that has the flow.
    void detach_soon(const verbs::FlowSpec& spec, FrameSink* sink, bool drain = false) noexcept;
    // For deliver(): calls sink->batch_end() when the frames of this poll have been handed out. Once a batch
    // and sink.
    void at_batch_end(FrameSink* sink) noexcept { rx_.at_batch_end(sink); }
    // With the receive lock held: calls sink->idle() in a poll() that finds nothing and comes late enough.
    // Not called while no thread polls. A sink that is detached meanwhile is forgotten. Once for each `when`
    // until then.
    void when_idle(FrameSink* sink, Idle when) noexcept { rx_.when_idle(sink, when); }
    // Gives the kernel a frame that no sink here wants. The device steers coarsely, or the frame was in the
    // queue already when its rule went. The buffer stays the caller's. False: the kernel did not take it.
    bool give_to_kernel(const RxBuffer& frame) noexcept { return rx_.give_to_kernel(frame); }
    // The same for a UDP frame that a sink has kept and that another process is to have. No lock of a sink
    // held.
    bool give_back(const RxBuffer& frame) noexcept { return rx_.give_back(frame); }
    // With the receive lock held: are buffers getting scarce? Sinks then copy what they keep, and release.
    bool scarce() const noexcept { return rx_.queue().scarce(); }
    // The same for datagrams, which are copied one by one: may a sink that holds `held` of them not keep
    // another buffer?
    bool should_copy(std::uint32_t held) noexcept { return rx_.queue().should_copy(held); }
    // With the receive lock held, in deliver(): a copy of a datagram in memory of its own, and the buffer
    // goes back to the ring. Null (and the buffer stays the caller's): no memory, or copies take up
    // RingConfig::max_copied and this sink, with `queued` bytes, has its share of that already. So the
    // fullest lose theirs, and all together hold twice max_copied at most.
    RxBuffer* swap_for_copy(RxBuffer* frame, std::uint64_t queued) noexcept {
        return rx_.swap_for_copy(frame, queued);
    }
    std::uint64_t copied_bytes() const noexcept { return rx_.queue().copied_bytes(); }
    // With the receive lock held, in deliver(): one frame for several sinks. begin() of the frame, one
    // share() for each sink that is to have it, and end(). See RxShares.
    RxShares& shares() noexcept { return rx_.queue().shares(); }
    // Runs `change` while no deliver() runs. Not in a signal handler that interrupted the ring.
    template <class Change>
    void while_quiet(Change&& change) noexcept {
        const ReceiveLock::Hold hold(rx_.lock());
        change();
    }
    // From which sources frames are taken that only a 3-tuple rule matches. May throw std::bad_alloc.
    void set_sources(net::SourceFilter sources);
    // Tells the sinks of `spec`, if there are any.
    void icmp_error(const verbs::FlowSpec& spec, const IcmpError& error) noexcept;
    // Whose segments of connections that reach the kernel come here, too.
    StraySegments& strays() noexcept { return strays_; }
    // Such a segment: gives a copy to the sink of its flow. `own_rule`: not to that of a rule for all peers.
    // False: there is no such sink.
    bool take_stray(std::span<std::uint8_t> frame, const net::ParsedFrame& parsed, bool own_rule) noexcept {
        return rx_.take_stray(frame, parsed, own_rule);
    }
    // How many times this ring was polled: a thread that helps out sees whether another one does.
    std::uint32_t polls() const noexcept { return rx_.polls(); }
    // One socket more, one fewer of the process wants arrival times; while there are any, all rings take
    // them.
    static void want_timestamps(bool on) noexcept {
        Receiver::want_timestamps(on);
        verbs::Device::want_arrival_times(on);
    }
    Receiver& receiver() noexcept { return rx_; }
    bool rx_owned_by_me() const noexcept { return rx_.lock().owned_by_me(); }

    // ---- sleep ----
    // arm(), poll() once more, then wait for channel_fd() to be readable.
    // Where notifications are events (attr().level_events is false), arm() takes in what is there already,
    // since only what comes afterwards notifies; so call it when the waiter is on the socket.
    void arm() noexcept { events_.arm(); }
    // After such a sleep, in place of the first poll(): counts, waits for more frames if wake-ups are to be
    // moderated, and polls. Takes up to VMA_CQ_AIM_MAX_PERIOD_USEC. Events are consumed, and other
    // threads that sleep on the channel go on being notified. Returns frames handled.
    unsigned woken() noexcept { return events_.woken(); }
    // The same for a thread that always watches the channel: nothing is counted or moderated.
    void channel_ready() noexcept { events_.channel_ready(); }
    int channel_fd() const noexcept { return events_.channel_fd(); }
    // Interrupt moderation is this from now on, instead of what the parameters say.
    void fix_moderation(std::uint32_t count, clock::Usec period) noexcept {
        events_.fix_moderation(count, period);
    }
    ModerationCounters moderation_counters() noexcept { return events_.counters(); }
    // Once a second or so, by the internal thread: makes good for an event that did not come, and for a
    // recovery that had to wait; looks for new queues. True: attr().details has changed.
    bool check() noexcept;
    // Then: why the device is silent, where it should not be (Silence); null: it is not. `link`: the
    // interface is up and has a carrier.
    const char* silent(bool link) noexcept;

    // ---- send ----
    // Sends one UDP datagram: `headers` is a template of net::kUdpHeaders bytes (see
    // net::finish_udp_headers), the payload (`length` bytes) follows from the iovecs. 0, or ENOBUFS when no
    // buffer came free, or EBUSY when this thread already holds the send lock (a signal handler): then
    // nothing was sent.
    int send_udp(const std::uint8_t* headers, const iovec* iov, std::size_t count,
                 std::size_t length) noexcept {
        return tx_.send_udp(headers, iov, count, length);
    }
    // The same for several datagrams, an iovec each. How many were sent; what stopped it, send_udp() tells.
    unsigned send_udp_many(const std::uint8_t* headers, const iovec* datagrams, unsigned count) noexcept {
        return tx_.send_udp_many(headers, datagrams, count);
    }
    // Send buffers for the program to fill (the extra API), `count` of them: 0, or ENOBUFS where the program
    // would have more than a quarter of the buffers, or EBUSY as above. Each goes one of two ways:
    int lend_send_buffers(SendBuffer** out, unsigned count) noexcept { return tx_.lend(out, count); }
    // back unused (0 or EBUSY);
    int end_loan(SendBuffer& buffer) noexcept { return tx_.end_loan(buffer); }
    // or to the peer of `headers`, as by send_udp(), with its first `length` bytes. After an error it is
    // still the program's.
    int send_lent_udp(const std::uint8_t* headers, SendBuffer& buffer, std::size_t length) noexcept {
        return tx_.send_lent_udp(headers, buffer, length);
    }
    // Bytes.
    std::uint32_t max_udp_payload() const noexcept { return tx_.max_udp_payload(); }
    // Sends one TCP segment: `headers` are Ethernet, IPv4 (without options) and TCP with its options. They
    // are complete but for IP's length, IP's checksum and TCP's checksum. Otherwise as send_udp.
    int send_tcp(const std::uint8_t* headers, std::size_t header_length, const iovec* iov, std::size_t count,
                 std::size_t length) noexcept {
        return tx_.send_tcp(headers, header_length, iov, count, length);
    }
    // Sends one stretch of payload as segments of `mss` bytes, in one request that the device cuts: only
    // where it copies payload while posting (DeviceAttr::tso_copies). `headers` are those of the first
    // segment; PSH and FIN are the last one's. EINVAL: the device takes no such request; else as send_tcp().
    int send_long_tcp(const std::uint8_t* headers, std::size_t header_length, const iovec& payload,
                      std::uint32_t mss) noexcept {
        return tx_.send_long_tcp(headers, header_length, payload, mss);
    }
    // Has `sender` called when the burst ends: with the next flush(), or when the flusher finds it 50 us old.
    // Only where the device is lazy anyway (attr().lazy_tx). Each hold() brings one send_held().
    void hold(HeldSender* sender) noexcept { tx_.hold(sender); }
    // While one of these lives, frames wait for one another where the device is lazy: the sender has more
    // than one. Where the device has TSO, TCP segments of a connection that follow one another become one
    // request. Unless `keeps`: then frames of several senders share a kick, and each sender's are posted.
    class Gather {
      public:
        explicit Gather(Ring* ring, bool keeps = true) noexcept
            : ring_(ring != nullptr && ring->tx_.gather(+1, keeps) ? ring : nullptr), keeps_(keeps) {}
        ~Gather() {
            if (ring_ != nullptr) ring_->tx_.gather(-1, keeps_);
        }
        Gather(const Gather&) = delete;
        Gather& operator=(const Gather&) = delete;

      private:
        Ring* ring_;
        bool keeps_;
    };
    // The program turned to receiving: sends what the device holds back, and the next frame is not part of a
    // burst. Costs a load when nothing was sent since the last time.
    void flush() noexcept { tx_.flush(); }
    // For the flusher: flushes if frames are held for at least `age` ticks at `now`, and adds to `look`.
    void flush_older(std::uint64_t now, std::uint64_t age, LookAtHeld& look) noexcept {
        tx_.flush_older(now, age, look);
    }
    // For the end of the process, with which an adapter forgets what it has not read yet. While `on`, each
    // frame asks for a completion.
    void ending(bool on) noexcept { tx_.ending(on); }
    // Waits until the device has sent what was posted: some 20 ms at most.
    void drain() noexcept {
        if (!failed()) tx_.drain();
    }
    // Sends what this ring holds back, and waits until the device has taken it (hardware: sent it): a frame
    // of another ring does not overtake it. 20 ms at most.
    void send_all() noexcept {
        if (!failed()) tx_.send_all();
    }
    // Of TCP, for the counters: a segment was sent again.
    void note_retransmit() noexcept { tx_.note_retransmit(); }

    // ---- state ----
    // The device has failed: it will neither send nor receive. See RingConfig::on_failure.
    bool failed() const noexcept { return recovery_.failed(); }
    // The kernel serves its sockets better, for the reason `why`: as if the device had failed.
    void give_up(const char* why) noexcept { recovery_.fail(why); }
    RingCounters counters() noexcept;
    void reset_drained_max() noexcept;
    // Takes back what was released so far, polls send completions, and counts. Waits for the ring's locks.
    BufferCounts buffer_counts() noexcept;

  private:
    friend class ReceiveLock;
    friend struct RxBuffer;
    friend struct SendBuffer;

    Ring(std::unique_ptr<verbs::Device> device, const RingConfig& config);
    Result<void> start(const RingConfig& config);
    // With the receive lock held: does what was noted with it (ReceiveLock::note_detach, note_error).
    void run_deferred() noexcept;

    PacketMemory memory_;  // outlives the device, which has it registered
    std::unique_ptr<verbs::Device> device_;
    ibv_qp* qp_ = nullptr;
    Receiver rx_;
    TxQueue tx_;
    BulkStreams bulk_streams_;
    FirstWrites first_writes_;
    Recovery recovery_;
    Silence silence_;
    CompletionEvents events_;
    const unsigned lane_;
    const std::shared_ptr<RuleOwners> owners_;
    StraySegments no_strays_, &strays_;
};

}  // namespace vma::ring
