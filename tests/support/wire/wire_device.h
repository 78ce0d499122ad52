// SPDX-License-Identifier: BSD-2-Clause
// An end point of the wire: a host with a kernel, and a software RDMA device that takes the frames of its
// flow rules.
//
// To the ring it is like any other device. It is stricter than one, though: a buffer posted twice, a send
// buffer posted again before its completion, or bytes outside the memory region are refused and counted in
// violations(), where hardware would silently do harm. A posted receive buffer is overwritten at once, so
// that whoever still reads it notices, and a send request's frame is read when it leaves (at the kick), not
// when it is posted.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "libvma/runtime/internal_fd.h"
#include "libvma/verbs/lazy_kick.h"
#include "libvma/verbs/send_slots.h"
#include "libvma/verbs/software_device.h"
#include "tests/support/wire/wire.h"

namespace vma::verbs::wire {

// What the device does with IBV_SEND_IP_CSUM.
enum class TxChecksum {
    none,      // it has no checksum offload (attr().tx_checksum is false)
    complete,  // completes UDP and TCP sums, like a NIC
    partial,   // leaves the pseudo-header sum as it is, like a virtual link inside a host
};

enum class LazyTx {
    off,
    fake_clock,  // by the wire's clock; the wire is also the flusher, so real threads see nothing held
    real_clock,  // by clock::ticks(), for the real flusher thread
};

struct WireConfig {
    std::string name = "wire";
    MacAddress mac{};  // all 0: one is chosen
    std::uint32_t mtu = 1500;
    std::uint32_t chunk_size = 2048;
    std::uint32_t rx_offset = 256;
    std::uint32_t tx_headroom = 64;
    std::uint32_t max_send_sge = 17;
    std::uint32_t max_send_wr = 256;  // a power of two
    std::uint32_t max_recv_wr = 1024;
    std::uint32_t recv_wr_hint = 0;
    TxChecksum tx_checksum = TxChecksum::none;
    LazyTx lazy_tx = LazyTx::off;
    std::uint64_t burst_gap_ns = LazyKick::kBurstGapNs;  // longer, and even a slow test's frames are a burst
    // By the wire's clock, what a kick or a super-frame takes of the sender's time.
    std::uint64_t kick_ns = 0;
    // What hardware can do; see DeviceAttr.
    int ifindex = 0;
    bool events =
        false;  // one event for each ibv_req_notify_cq(), as verbs have it; else the channel tells the level
    bool rx_checksum = false;
    std::uint16_t datagrams_type = 0;
    std::uint32_t flow_tags = 0;
    bool arrival_times = false;     // the wire's clock, from arrival_base_ns on
    bool arrival_realtime = false;  // only says so
    std::uint64_t arrival_base_ns = 1'000'000'000'000;
    std::uint32_t max_inline = 0;
    std::uint32_t max_tso = 0;
    bool tso_copies = false;
    bool super_frames = false;  // what tso_copies takes arrives whole, as over a veth device
    bool kernel_moves_bulk = false;
    bool kernel_receives_bulk = false;
    bool moderation = false;
    bool coarse_steering = false;
    bool partial_sums = true;
};

class WireDevice final : public SoftwareDevice {
  public:
    ~WireDevice() override;

    Result<ibv_mr*> reg_mr(void* addr, std::size_t length) override;
    Result<ibv_comp_channel*> create_comp_channel() override;
    Result<ibv_qp*> create_qp(const ibv_qp_init_attr& init) override;
    // EEXIST when there is the same rule already, as hardware says.
    Result<Flow*> create_flow(ibv_qp* qp, const FlowSpec& spec, std::uint32_t tag = 0) override;
    void destroy_flow(Flow* flow) noexcept override;
    void flush(ibv_qp* qp) noexcept override;
    void gather(ibv_qp*, bool on) noexcept override;
    bool kick(ibv_qp*) noexcept override;
    void kick_again(ibv_qp*) noexcept override;
    unsigned tx_held(const ibv_qp*) const noexcept override {
        return visible_held_.load(std::memory_order_relaxed);
    }
    std::uint64_t tx_held_since(const ibv_qp*) const noexcept override {
        return held_since_.load(std::memory_order_relaxed);
    }
    void link_changed(const MacAddress& mac, std::uint32_t mtu) noexcept override;
    std::uint64_t rx_device_drops() noexcept override;
    void consume_events(ibv_comp_channel*) noexcept override;
    void moderate(ibv_cq*, std::uint16_t count, std::uint16_t period_usec) noexcept override;
    void stop(ibv_qp*) noexcept override;
    bool recover(ibv_qp*) noexcept override;
    bool failed() const noexcept override { return dead_.load(std::memory_order_relaxed); }
    void on_failure(std::function<void()> tell) override;

    // ---- the host's kernel ----
    // A frame that the kernel of this host sends.
    void kernel_send(Frame frame);
    // What no rule matched since the last call, in order; and how many there ever were.
    std::vector<Frame> take_kernel_frames();
    std::uint64_t kernel_frames() const;

    // ---- controls for tests ----
    // Gives a frame to the queue pair whatever the rules say, as a device with coarser rules would.
    void receive_unsteered(Frame frame);
    // The same for a frame in pieces of any lengths, 0 included, each in a buffer of its own. Not `finished`:
    // more of it follows.
    void receive_pieces(const std::vector<Frame>& pieces, bool finished = true);
    // While on, posting a send fails as if the queue were full.
    void refuse_sends(bool on);
    // After `accepted` requests more, posting fails `times` times with `error`.
    void refuse_some_sends(unsigned accepted, unsigned times, int error);
    // From now on the kick of a lone frame is the caller's, where it takes that upon itself. It calls `hook`
    // first, without a lock. False: the kick fails.
    void leave_kicks_to(std::function<bool()> hook) { kick_hook_ = std::move(hook); }
    // While on, there is no room for another rule of five numbers.
    void refuse_flows(bool on);
    // While on, frames leave but their completions stay away.
    void hold_completions(bool on);
    // Frames that the lazy policy holds back now, by either clock.
    unsigned held() const;
    std::size_t rules() const;
    // Receive buffers in the device: waiting for a frame, or filled and not yet polled.
    std::uint32_t receives_posted() const;
    std::uint32_t receives_filled() const;
    // Frames sent and dropped by the device: longer than the MTU allows, or shorter than an Ethernet header.
    // Such a request completes all the same.
    std::uint64_t tx_invalid() const;
    std::uint64_t violations() const;
    // The next request completes with an error, and the QP stops: what is posted before recover() is flushed.
    void fail_next_send();
    // The next frame's receive completes with an error, and the QP stops. Or the QP's receive side does, and
    // what was posted for sending stays under way.
    void fail_next_receive(bool whole_qp = true);
    void refuse_recovery(bool on);
    std::uint64_t recoveries() const;
    // An adapter that is pulled out. Calls what on_failure() was given.
    void die();
    // An event without a completion; and so many of the next events that do not come.
    void spurious_event();
    void lose_events(unsigned count);
    // What moderate() was given last: count and microseconds.
    std::pair<unsigned, unsigned> moderation() const;
    // TSO requests and inline requests there were.
    std::uint64_t tso_requests() const;
    std::uint64_t inline_requests() const;

  private:
    friend class Wire;
    WireDevice(Wire& wire, const WireConfig& config);

    static int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad);
    static int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad);
    static int poll_cq(ibv_cq* cq, int count, ibv_wc* wc);
    static int req_notify_cq(ibv_cq* cq, int solicited_only);

    // All below want the wire's lock held.
    int send_copying(const ibv_send_wr& wr);
    int refusal() noexcept;  // 0: the request is not refused
    void transmit_all(std::vector<Frame> frames, bool checksum);
    int send_one(const ibv_send_wr& wr);
    void kick();
    void complete_sent();
    void flush_locked();
    std::optional<std::uint64_t> hold_ends() const;  // by the fake clock
    std::uint64_t lazy_now() const noexcept;
    void publish_held() noexcept;
    void arrive(const Frame& frame);
    // The tag of the rule that takes the frame (0: it has none), or nothing if none does.
    std::optional<std::uint32_t> steered(const Frame& frame) const;
    void receive(const Frame& frame, std::uint32_t tag = 0);
    ibv_wc& fill(std::span<const std::uint8_t> bytes);
    void notify();
    void break_qp();
    void flush_receives();
    bool valid_send(const ibv_send_wr& wr, std::size_t& length) const;
    int poll_recv(int count, ibv_wc* wc);
    bool in_region(const ibv_sge& sge) const noexcept;
    std::uint32_t chunk_of(std::uint64_t address) const noexcept {
        return static_cast<std::uint32_t>((address - reinterpret_cast<std::uintptr_t>(mr_.addr)) /
                                          attr_.chunk_size);
    }

    enum class Owner : std::uint8_t { caller, receive_queue, send_queue };
    struct PostedReceive {
        std::uint64_t wr_id;
        std::uint64_t address;
    };
    struct Completion {
        ibv_wc wc;
        std::uint32_t chunk;
    };
    struct PostedSend {
        std::uint32_t slot;
        bool checksum;
        std::vector<ibv_sge> pieces;  // in buffers that are the queue's; empty: posted inline
        Frame copied;                 // the frame of an inline request, the headers of a TSO request
        std::uint32_t mss;            // of a TSO request, else 0
    };
    std::vector<Frame> frames_of(const PostedSend& send) const;

    Wire& wire_;
    WireConfig config_;
    InternalFd
        event_;  // holds 1 exactly while completions wait; with config_.events: the events not yet consumed
    bool armed_ = false;
    unsigned events_to_lose_ = 0;
    std::vector<Owner> owner_;  // of each chunk
    std::map<FlowSpec, std::unique_ptr<Flow>> flows_;
    std::map<FlowSpec, std::uint32_t> tags_;

    std::deque<PostedReceive> receives_;
    std::deque<Completion> received_;
    std::uint64_t rx_drops_ = 0;
    std::deque<Frame> to_kernel_;
    std::uint64_t kernel_frames_ = 0;

    SendSlots slots_;
    std::deque<PostedSend> unsent_;
    std::deque<PostedSend> sent_;  // without their completion (hold_completions)
    LazyKick lazy_;
    std::atomic<unsigned> visible_held_{0};
    std::atomic<std::uint64_t> held_since_{0};
    struct {
        unsigned after = 0, times = 0;
        int error = 0;
    } refusals_;
    bool refuse_sends_ = false, refuse_flows_ = false, hold_completions_ = false;
    std::uint64_t tx_invalid_ = 0, violations_ = 0;
    std::uint64_t tso_requests_ = 0, inline_requests_ = 0, recoveries_ = 0;
    std::pair<unsigned, unsigned> moderation_{0, 0};

    bool stopped_ = false;  // the QP is in the error state
    bool fail_send_ = false, fail_receive_ = false, fail_whole_qp_ = true, refuse_recovery_ = false;
    std::deque<ibv_wc> send_errors_;  // completions of requests that failed or were flushed
    std::atomic<bool> dead_{false};
    std::function<void()> on_failure_;
    std::function<bool()> kick_hook_;
};

}  // namespace vma::verbs::wire
