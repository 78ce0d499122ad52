// SPDX-License-Identifier: BSD-2-Clause
// The data path of ConnectX adapters without libmlx5: requests are written into the adapter's queues and
// completions read from them in the adapter's own formats (infiniband/mlx5dv.h).
//
// The control path stays with whoever made the objects (rdma/): they are created, modified and destroyed
// through libibverbs. Direct learns from mlx5dv_init_obj() where their queues are, and hands out facades: an
// ibv_cq and an ibv_qp whose ibv_context carries the functions of this folder, so ibv_post_send(),
// ibv_post_recv(), ibv_poll_cq() and ibv_req_notify_cq() on a facade go straight to the queues, and their
// caller cannot tell. Every other verb needs the real object.
//
// One opcode is more than verbs have for such a QP: IBV_WR_DRIVER1 sends nothing, and completes
// (Device::mark).
//
// Why it is faster than libmlx5 is what it leaves out: one QP type, one QP for each side of a CQ, no locks
// (the caller serialises each side: sends and polls of the send CQ; receives and polls of the receive CQ), no
// lookup of the QP for a completion.
#pragma once

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "libvma/runtime/error.h"

namespace vma::verbs::mlx5 {

// What is needed of libmlx5, which is opened at run time.
struct Functions {
    int (*init_obj)(mlx5dv_obj* obj,
                    std::uint64_t type) = nullptr;  // mlx5dv_init_obj, version MLX5_1.2 (the default one)
};

// Turns the time stamp of a completion into nanoseconds of whatever clock was chosen. Called for each
// received frame by the thread that polls, so it must be quick and needs no lock.
class Clock {
  public:
    virtual ~Clock() = default;
    virtual std::uint64_t to_ns(std::uint64_t device_ticks) noexcept = 0;
};

struct Config {
    bool blue_flame = true;    // VMA_BF: a single short request is written into the doorbell page as well
    bool rx_checksum = false;  // IBV_WC_IP_CSUM_OK, where the adapter found IP's and UDP's or TCP's sum right
    bool flow_tags = false;    // kWcFlowTag and flow_tag(), where a rule has a tag
    Clock* clock =
        nullptr;  // kWcTimestamp and arrival_ns(), while Device::arrival_times_wanted(); must outlive Direct
    std::uint32_t rx_prefetch =
        0;  // VMA_RX_PREFETCH_BYTES: bytes of a received frame to fetch into the cache
    std::uint32_t rx_prefetch_before_poll =
        0;  // VMA_RX_PREFETCH_BYTES_BEFORE_POLL: of the next buffer, when a poll finds nothing
};

// What the real QP was created with, as ibv_create_qp() returned it in ibv_qp_init_attr(_ex).
struct QpLimits {
    std::uint32_t max_send_wr = 0, max_recv_wr = 0;
    std::uint32_t max_send_sge = 1, max_recv_sge = 1;
    std::uint32_t max_inline = 0;      // bytes of a frame with IBV_SEND_INLINE
    std::uint32_t max_tso = 0;         // payload bytes of IBV_WR_TSO, 0: none
    std::uint32_t max_tso_header = 0;  // bytes of wr.tso.hdr (IBV_QP_INIT_ATTR_MAX_TSO_HEADER)
};

struct CompletionQueue;  // queues.h
struct QueuePair;

// One for each opened device. Control functions: one thread at a time, and none while the data path of the
// same object is in use.
class Direct {
  public:
    // EINVAL: no function. (EOPNOTSUPP comes from wrap_cq() and wrap_qp(): a form of queue that this code
    // does not read.)
    static Result<std::unique_ptr<Direct>> create(const Functions& functions, const Config& config);
    ~Direct();
    Direct(const Direct&) = delete;
    Direct& operator=(const Direct&) = delete;

    // A facade of a CQ that was never polled. From here on libmlx5 must not poll or arm it. The facade lives
    // as long as Direct; the real CQ must outlive its use. Its `channel`, `cqe` and `cq_context` are those of
    // the real CQ.
    Result<ibv_cq*> wrap_cq(ibv_cq* real);
    // A facade of a RAW_PACKET QP in state RTS on which nothing was posted yet. `send` and `recv` are facades
    // of the CQs it was created with (they may be the same). A CQ serves one QP only: EBUSY. EINVAL: a CQ is
    // smaller than what the QP may have outstanding.
    Result<ibv_qp*> wrap_qp(ibv_qp* real, ibv_cq* send, ibv_cq* recv, const QpLimits& limits);

    // After the real QP went through RESET and is in RTS again, before anything is posted: forgets everything
    // that was posted, and all completions of it that are still in the CQs. Nobody uses the facades
    // meanwhile.
    void reset(ibv_qp* facade) noexcept;
    // Counts a completion event that ibv_get_cq_event() returned for the real CQ: the adapter wants their
    // number with each arming and ignores an arming with one that it has answered. Any thread. CQs that were
    // not wrapped are ignored.
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
