// SPDX-License-Identifier: BSD-2-Clause
// The queue pairs of one thread, two completion queues for all of them, and the memory they send from and
// receive to.
//
// A queue pair has a ring of places to send from. A place is free again when a completion says so, its own or
// that of a later send: only every n-th send asks for one. Receives stay posted; what has been taken is
// posted again, in chains.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tools/vma_perf/rdma/handles.h"
#include "tools/vma_perf/transport.h"

namespace vma_perf::rdma {

inline constexpr std::size_t kGrh = 40;  // bytes in front of a datagram that arrived

// Lengths of the queues, from the parameters and what their messages need; `head`: bytes in front of a
// received message.
struct Depths {
    unsigned send, receive;
    unsigned signal_every;  // 0: never
};
Depths depths_of(const Params& params, std::size_t head) noexcept;

class VerbsLane final : public Lane {
  public:
    // For lane `number` of the run. `type`: IBV_QPT_RC or IBV_QPT_UD. Throws Failure.
    VerbsLane(ibv_context* context, ibv_pd* pd, ibv_qp_type type, const Params& params, unsigned number,
              const std::atomic<bool>& stop);
    ~VerbsLane() override;
    VerbsLane(const VerbsLane&) = delete;
    VerbsLane& operator=(const VerbsLane&) = delete;

    // Calls `create` with the attributes of a queue pair of this lane. If the device refuses, tries with less
    // inline data, unless the parameters fix the number. `create` returns nullptr with errno. The queue pair
    // stays the caller's. The queue pair must take receives already (RTS of ud, INIT of rc).
    using Create = ibv_qp* (*)(void* context, ibv_qp_init_attr_ex& attr);
    void add_queue_pair(unsigned connection, Create create, void* context);
    // Posts its receives.
    void start_receiving(unsigned connection);
    // ud: where the connection's messages go. The address handle must outlive the lane's use.
    void set_destination(unsigned connection, ibv_ah* handle, std::uint32_t number,
                         std::uint32_t key) noexcept;
    ibv_qp* queue_pair(unsigned connection) const noexcept { return queues_[connection].qp; }

    unsigned connections() const noexcept override { return static_cast<unsigned>(queues_.size()); }
    std::byte* prepare(unsigned connection) override;
    bool send(unsigned connection, std::size_t length, bool more) override;
    bool answer(const Arrival& arrival) override;
    std::size_t receive(Receiver& receiver, bool may_wait) override;

    struct Counts {
        std::uint64_t sends = 0, signalled = 0, send_completions = 0, receives = 0, events = 0, inlined = 0;
        Counts& operator+=(const Counts& other) noexcept;
    };
    const Counts& counts() const noexcept { return counts_; }
    unsigned max_inline() const noexcept { return max_inline_; }

  private:
    struct Queue {
        ibv_qp* qp = nullptr;
        ibv_qp_ex* builder = nullptr;
        std::byte* memory = nullptr;  // places to send from, then places to receive to
        std::uint64_t sent = 0;       // sends handed to send()
        std::uint64_t started = 0;    // of those, posted
        std::uint64_t completed = 0;  // of those, known to be done
        ibv_ah* handle = nullptr;     // ud
        std::uint32_t peer = 0, key = 0;
        std::vector<std::uint32_t> lengths;  // of the places to send from
    };
    static constexpr int kBatch = 32;

    std::byte* send_place(const Queue& queue, std::uint64_t number) const noexcept {
        return queue.memory + number % depths_.send * send_stride_;
    }
    std::byte* receive_place(const Queue& queue, std::uint64_t number) const noexcept {
        return queue.memory + depths_.send * send_stride_ + number * receive_stride_;
    }
    bool signals(std::uint64_t number) const noexcept {
        return depths_.signal_every != 0 && number % depths_.signal_every == depths_.signal_every - 1;
    }
    // Posts what send() collected. Throws Failure.
    void start(Queue& queue);
    void start_classic(Queue& queue);
    void start_builder(Queue& queue);
    void post_receives(Queue& queue, const std::uint64_t* places, std::size_t count);
    void reap_sends();
    // Sleeps until a receive completes, or kTick.
    void wait_for_event();
    [[noreturn]] void fail(const ibv_wc& wc) const;
    Queue& queue_of(std::uint32_t number, unsigned& connection);

    const Params params_;
    const bool datagrams_;
    const std::atomic<bool>& stop_;
    const Depths depths_;
    const std::size_t send_stride_, receive_stride_;
    unsigned max_inline_ = 0;
    std::byte* memory_ = nullptr;
    std::size_t mapped_ = 0;
    MrPtr mr_;
    CompChannelPtr channel_;
    CqPtr send_cq_, receive_cq_;
    std::vector<Queue> queues_;
    std::vector<std::pair<std::uint32_t, unsigned>> by_number_;  // QP number, connection; sorted
    std::array<ibv_wc, kBatch> completions_;
    std::vector<ibv_send_wr> send_wr_;
    std::vector<ibv_sge> send_sge_;
    Counts counts_;
};

}  // namespace vma_perf::rdma
