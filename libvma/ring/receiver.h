// SPDX-License-Identifier: BSD-2-Clause
// The receive side of a ring: completions become frames, and frames find their sinks.
//
// poll() takes completions in batches, parses each frame once, finds the sink in the flow table and hands the
// buffer over. What no sink wants is the kernel's (net::KernelPath), or is dropped and counted.
//
// Locks: lock() guards everything here, with the queue and the flow table, except where "any thread" is said.
// Sinks are called with the lock held.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "libvma/net/frame.h"
#include "libvma/net/kernel_path.h"
#include "libvma/ring/flow_table.h"
#include "libvma/ring/frame_sink.h"
#include "libvma/ring/idle_sinks.h"
#include "libvma/ring/receive_lock.h"
#include "libvma/ring/ring_config.h"
#include "libvma/ring/ring_counters.h"
#include "libvma/ring/rx_queue.h"
#include "libvma/verbs/device.h"

namespace vma::ring {

class Receiver {
  public:
    explicit Receiver(Ring& ring) noexcept : lock_(ring), ring_(ring) {}

    // Completions of receives come from `cq`. The device outlives the receiver. To be called once, before
    // queue().open(). May throw std::bad_alloc.
    void open(verbs::Device& device, ibv_qp* qp, ibv_cq* cq, const RingConfig& config);

    ReceiveLock& lock() noexcept { return lock_; }
    const ReceiveLock& lock() const noexcept { return lock_; }
    RxQueue& queue() noexcept { return queue_; }
    FlowTable& flows() noexcept { return flows_; }
    const RxQueue& queue() const noexcept { return queue_; }

    // ---- any thread ----
    // As Ring::poll(); takes the lock.
    unsigned poll() noexcept;
    // How many times poll() was called, and frames taken, ever.
    std::uint32_t polls() const noexcept { return polls_.load(std::memory_order_relaxed); }
    std::uint64_t frames() const noexcept { return frames_.load(std::memory_order_relaxed); }
    bool give_to_kernel(const RxBuffer& frame) noexcept;
    bool give_back(const RxBuffer& frame) noexcept;  // takes the lock
    // As Ring::take_stray(); takes the lock.
    bool take_stray(std::span<std::uint8_t> frame, const net::ParsedFrame& parsed, bool own_rule) noexcept;
    // One socket more, one fewer of the process wants arrival times.
    static void want_timestamps(bool on) noexcept {
        timestamps_.fetch_add(on ? 1 : -1, std::memory_order_relaxed);
    }

    // ---- with the lock held ----
    // Takes everything that is there. A peer that sends faster than this takes also sends afterwards.
    void take_all() noexcept;
    // As Ring::detach_soon() when its time has come.
    void detach(const verbs::FlowSpec& spec, FrameSink* sink, bool drain) noexcept;
    // Moves a flow from `from`, whose lock the caller holds, too (FlowTable::take). No frame of the flow
    // comes out of this ring before those that `from` has got.
    Result<void> take(const verbs::FlowSpec& spec, FrameSink* sink, Share share, Receiver& from);
    void at_batch_end(FrameSink* sink) noexcept { batch_.push_back(sink); }
    void when_idle(FrameSink* sink, Idle when) noexcept { idle_.add(sink, when); }
    RxBuffer* swap_for_copy(RxBuffer* frame, std::uint64_t queued) noexcept {
        return queue_.swap_for_copy(frame, queued, flows_.sinks(), counters_);
    }
    // For Recovery: the device has no receive any more.
    void reclaim() noexcept;
    void count(RxCounters& out) const noexcept;
    void reset_drained_max() noexcept { counters_.rx_drained_max = 0; }

  private:
    static constexpr unsigned kMaxPieces = 64;  // of a received frame; the longest IP packet needs fewer

    unsigned poll_locked() noexcept;
    void handle_frame(RxBuffer* first, const ibv_wc& wc) noexcept;
    net::Drop parse(RxBuffer& first, bool good, net::ParsedFrame& f) const noexcept;
    std::uint32_t take_mark(RxBuffer& first) const noexcept;
    static bool untag(RxBuffer& first) noexcept;  // true: the frame had a priority tag, and parses anew
    void split(RxBuffer* first, const net::ParsedFrame& f, const ibv_wc& wc,
               std::uint32_t datagram_length) noexcept;
    RxBuffer* cut(const RxBuffer& whole, std::size_t from, std::uint32_t length) noexcept;
    void to_sink(RxBuffer* first, const net::ParsedFrame& f, const ibv_wc& wc) noexcept;
    RxBuffer* add_piece(RxBuffer* piece, bool more) noexcept;
    void lose_pieces() noexcept;
    void stamp(RxBuffer& frame, const ibv_wc& wc) const noexcept;
    void end_batch() noexcept;
    bool give(const RxBuffer& frame) noexcept;
    bool hand_on(RxBuffer* first, const net::ParsedFrame& f) noexcept;
    bool take_late(RxBuffer* first, const net::ParsedFrame& f, Receiver& from) noexcept;

    alignas(64) ReceiveLock lock_;
    // What each poll touches.
    ibv_cq* cq_ = nullptr;
    std::vector<ibv_wc> wc_;         // room for a batch
    std::vector<FrameSink*> batch_;  // sinks that want batch_end()
    IdleSinks idle_;
    std::uint32_t room_ = 0;     // bytes of a frame in one buffer
    std::uint32_t pieces_ = 0;   // of the unfinished frame; above kMaxPieces the rest of it is dropped
    bool partial_sums_ = false;  // the device's attribute
    std::atomic<std::uint32_t> polls_{0};
    std::atomic<std::uint64_t> frames_{0};
    RxQueue queue_;
    FlowTable flows_;
    RxCounters counters_;
    // What few frames touch.
    Ring& ring_;
    verbs::Device* device_ = nullptr;
    RxBuffer* partial_first_ = nullptr;  // frame whose last piece has not arrived
    RxBuffer* partial_last_ = nullptr;
    net::KernelPath kernel_path_;  // open where the device steers coarsely, and after give_back()
    std::function<bool(in_addr_t)> is_local_;
    std::atomic<std::uint64_t> to_kernel_{0};  // frames
    static inline std::atomic<int> timestamps_{0};
};

}  // namespace vma::ring
