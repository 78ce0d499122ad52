// SPDX-License-Identifier: BSD-2-Clause
// The data path of ConnectX adapters without libmlx5. It writes requests into the adapter's queues and reads
// completions from them in the adapter's own formats (infiniband/mlx5dv.h).
//
// The control path stays with the objects' maker (rdma/), which creates, modifies and destroys them through
// libibverbs. mlx5dv_init_obj() tells Direct where their queues are, and Direct makes facades: an ibv_cq and
// an ibv_qp whose ibv_context carries the functions of this folder. So ibv_post_send(), ibv_post_recv(),
// ibv_poll_cq() and ibv_req_notify_cq() on a facade go straight to the queues, and the caller sees no
// difference. Every other verb needs the real object.
//
// One opcode goes beyond verbs for such a QP: IBV_WR_DRIVER1 sends no frame, and completes (Device::mark).
//
// Direct is faster than libmlx5 because it leaves work out. It has one QP type, one QP for each side of a CQ,
// and no lookup of the QP for a completion. It takes no locks: the caller serialises each side (sends and
// polls of the send CQ; receives and polls of the receive CQ).
#pragma once

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "libvma/runtime/error.h"

namespace vma::verbs::mlx5 {

// The functions of libmlx5 that Direct needs; libmlx5 is opened at run time.
struct Functions {
    int (*init_obj)(mlx5dv_obj* obj,
                    std::uint64_t type) = nullptr;  // mlx5dv_init_obj, version MLX5_1.2 (the default one)
};

// Turns the time stamp of a completion into nanoseconds of the chosen clock. The polling thread calls it for
// each received frame, so it must be quick and take no lock.
class Clock {
  public:
    virtual ~Clock() = default;
    virtual std::uint64_t to_ns(std::uint64_t device_ticks) noexcept = 0;
};

struct Config {
    bool blue_flame = true;  // VMA_BF: also writes a single short request into the doorbell page
    bool rx_checksum =
        false;  // sets IBV_WC_IP_CSUM_OK where the adapter found the sums of IP and of UDP or TCP right
    bool flow_tags = false;  // sets kWcFlowTag and flow_tag(), where a rule has a tag
    // For kWcTimestamp and arrival_ns(), while Device::arrival_times_wanted(); must outlive Direct.
    Clock* clock = nullptr;
    // VMA_RX_PREFETCH_BYTES: bytes of a received frame to fetch into the cache.
    std::uint32_t rx_prefetch = 0;
    // VMA_RX_PREFETCH_BYTES_BEFORE_POLL: bytes of the next buffer to fetch when a poll finds no frame.
    std::uint32_t rx_prefetch_before_poll = 0;
};

// The limits of the real QP, as ibv_create_qp() returned them in ibv_qp_init_attr(_ex).
struct QpLimits {
    std::uint32_t max_send_wr = 0, max_recv_wr = 0;
    std::uint32_t max_send_sge = 1, max_recv_sge = 1;
    std::uint32_t max_inline = 0;      // bytes of a frame with IBV_SEND_INLINE
    std::uint32_t max_tso = 0;         // payload bytes of IBV_WR_TSO, 0: none
    std::uint32_t max_tso_header = 0;  // bytes of wr.tso.hdr (IBV_QP_INIT_ATTR_MAX_TSO_HEADER)
};

struct CompletionQueue;  // queues.h
struct QueuePair;

// One for each opened device. Control functions: one thread at a time, and none during a call of the data
// path on the same object.
class Direct {
  public:
    // EINVAL: `functions` is empty. (EOPNOTSUPP comes from wrap_cq() and wrap_qp(): this code does not read
    // that form of queue.)
    static Result<std::unique_ptr<Direct>> create(const Functions& functions, const Config& config);
    ~Direct();
    Direct(const Direct&) = delete;
    Direct& operator=(const Direct&) = delete;

    // A facade of a CQ that was never polled. From here on libmlx5 must not poll or arm the CQ. The facade
    // lives as long as Direct; the real CQ must outlive the facade's use. The facade has the real CQ's
    // `channel`, `cqe` and `cq_context`.
    Result<ibv_cq*> wrap_cq(ibv_cq* real);
    // A facade of a RAW_PACKET QP in state RTS, before its first request. `send` and `recv` are facades of
    // the CQs it was created with (they may be the same). EBUSY: a CQ serves another QP already. EINVAL: a CQ
    // is smaller than the number of requests that the QP may have outstanding.
    Result<ibv_qp*> wrap_qp(ibv_qp* real, ibv_cq* send, ibv_cq* recv, const QpLimits& limits);

    // Forgets all posted requests, and all their completions that are still in the CQs. Call it after the
    // real QP went through RESET and is in RTS again, before the first new request. No thread may use the
    // facades meanwhile.
    void reset(ibv_qp* facade) noexcept;
    // Counts a completion event that ibv_get_cq_event() returned for the real CQ. The adapter wants the
    // number of events with each arming, and ignores an arming with an answered number. Any thread. Ignores
    // CQs that were not wrapped.
    void event(const ibv_cq* real) noexcept;

    // The object behind a facade, for every verb beyond the four.
    static ibv_cq* real(const ibv_cq* facade) noexcept;
    static ibv_qp* real(const ibv_qp* facade) noexcept;

  private:
    Direct(const Functions& functions, const Config& config) noexcept;

    Functions functions_;
    Config config_;
    ibv_context context_{};
    std::vector<std::unique_ptr<CompletionQueue>> cqs_;
    std::vector<std::unique_ptr<QueuePair>> qps_;
};

}  // namespace vma::verbs::mlx5
