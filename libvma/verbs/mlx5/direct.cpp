// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/verbs/mlx5/direct.h"

#include <errno.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "libvma/verbs/mlx5/queues.h"
#include "libvma/verbs/trace_hook.h"

namespace vma::verbs::mlx5 {
namespace {

constexpr std::uint32_t kMaxEntries = 1u << 15;  // of a work queue: 16-bit counters must tell full from empty
constexpr std::uint32_t kMaxCompletions = 1u << 23;  // of a CQ: likewise, 24 bits
constexpr std::uint32_t kMaxFlame = 256;             // bytes of a BlueFlame buffer in any adapter so far

// The longest frame that a request can carry: its three leading units hold 18 bytes, the inline segment needs
// 4 for its length.
constexpr std::uint32_t kMaxInline = (kMaxUnits - 3) * kUnit - sizeof(mlx5_wqe_inl_data_seg) + kInlineHeader;
constexpr std::uint32_t kMaxSendSge = kMaxUnits - 3;

bool power_of_two(std::uint32_t n, std::uint32_t max) noexcept { return std::has_single_bit(n) && n <= max; }

std::uint32_t lines(std::uint32_t bytes) noexcept {
    return std::min((bytes + kCacheLine - 1) / kCacheLine, 255u);
}

}  // namespace

Direct::Direct(const Functions& functions, const Config& config) noexcept
    : functions_(functions), config_(config) {
    context_.ops.post_send = post_send;
    context_.ops.post_recv = post_recv;
    context_.ops.poll_cq = poll_cq;
    context_.ops.req_notify_cq = req_notify_cq;
    context_.cmd_fd = context_.async_fd = -1;
    offer_to_tracer(&context_);
}

Direct::~Direct() { withdraw_from_tracer(&context_); }

Result<std::unique_ptr<Direct>> Direct::create(const Functions& functions, const Config& config) {
    if (functions.init_obj == nullptr) return fail(EINVAL, "libmlx5 has no mlx5dv_init_obj");
    return {std::unique_ptr<Direct>(new Direct(functions, config))};
}

Result<ibv_cq*> Direct::wrap_cq(ibv_cq* real) {
    mlx5dv_cq queue{};
    mlx5dv_obj object{};
    object.cq.in = real;
    object.cq.out = &queue;
    if (int error = functions_.init_obj(&object, MLX5DV_OBJ_CQ); error != 0)
        return fail(error, "mlx5dv_init_obj of a CQ");
    if (!power_of_two(queue.cqe_cnt, kMaxCompletions) || (queue.cqe_size != 64 && queue.cqe_size != 128))
        return fail(EOPNOTSUPP, fmt::format("CQ with {} entries of {} bytes", queue.cqe_cnt, queue.cqe_size));
    if (queue.buf == nullptr || queue.dbrec == nullptr || queue.cq_uar == nullptr)
        return fail(EOPNOTSUPP, "CQ without a queue");

    context_.device = real->context->device;  // its name, for callers that print the device of a facade

    auto cq = std::make_unique<CompletionQueue>();
    cq->context = &context_;
    cq->channel = real->channel;
    cq->cq_context = real->cq_context;
    cq->handle = real->handle;
    cq->cqe = real->cqe;
    cq->last64 = static_cast<std::uint8_t*>(queue.buf) + queue.cqe_size - sizeof(mlx5_cqe64);
    cq->doorbell_record = queue.dbrec;
    cq->entries = queue.cqe_cnt;
    cq->shift = static_cast<std::uint8_t>(std::countr_zero(queue.cqe_size));
    cq->tag_mask = config_.flow_tags ? 0xffffffu : 0u;
    cq->checksum_good = config_.rx_checksum ? kChecksumGood : kChecksumNever;
    cq->prefetch_lines = static_cast<std::uint8_t>(lines(config_.rx_prefetch));
    cq->prefetch_lines_before_poll = lines(config_.rx_prefetch_before_poll);
    cq->clock = config_.clock;
    cq->number = queue.cqn;
    cq->uar = static_cast<std::uint8_t*>(queue.cq_uar);
    cq->real = real;
    cqs_.push_back(std::move(cq));
    return static_cast<ibv_cq*>(cqs_.back().get());
}

Result<ibv_qp*> Direct::wrap_qp(ibv_qp* real, ibv_cq* send_facade, ibv_cq* recv_facade,
                                const QpLimits& limits) {
    auto& send_cq = static_cast<CompletionQueue&>(*send_facade);
    auto& recv_cq = static_cast<CompletionQueue&>(*recv_facade);
    for (const CompletionQueue* cq : {&send_cq, &recv_cq})
        if (cq->sender != nullptr || cq->receiver != nullptr)
            return fail(EBUSY, fmt::format("CQ {} serves another QP", cq->number));
    mlx5dv_qp queues{};
    mlx5dv_obj object{};
    object.qp.in = real;
    object.qp.out = &queues;
    if (int error = functions_.init_obj(&object, MLX5DV_OBJ_QP); error != 0)
        return fail(error, "mlx5dv_init_obj of a QP");
    const auto& sq = queues.sq;
    const auto& rq = queues.rq;
    if (!power_of_two(sq.wqe_cnt, kMaxEntries) || sq.stride != kBlock || sq.buf == nullptr)
        return fail(EOPNOTSUPP, fmt::format("send queue with {} entries of {} bytes", sq.wqe_cnt, sq.stride));
    if (!power_of_two(rq.wqe_cnt, kMaxEntries) || !power_of_two(rq.stride, 512) || rq.stride < kUnit ||
        rq.buf == nullptr)
        return fail(EOPNOTSUPP,
                    fmt::format("receive queue with {} entries of {} bytes", rq.wqe_cnt, rq.stride));
    if (queues.dbrec == nullptr || queues.bf.reg == nullptr) return fail(EOPNOTSUPP, "QP without a doorbell");

    auto qp = std::make_unique<QueuePair>();
    static_cast<ibv_qp&>(*qp) = {};
    qp->context = &context_;
    qp->qp_context = real->qp_context;
    qp->pd = real->pd;
    qp->send_cq = send_facade;
    qp->recv_cq = recv_facade;
    qp->handle = real->handle;
    qp->qp_num = real->qp_num;
    qp->state = IBV_QPS_RTS;
    qp->qp_type = IBV_QPT_RAW_PACKET;
    qp->real = real;

    // Every request may end with a completion of its own (after an error), so outstanding requests must not
    // exceed the CQ's entries.
    ReceiveQueue& receive = qp->receive;
    qp->receive_wr_ids = std::make_unique<std::uint64_t[]>(rq.wqe_cnt);
    receive.buffer = static_cast<std::uint8_t*>(rq.buf);
    receive.wr_ids = qp->receive_wr_ids.get();
    receive.doorbell_record = queues.dbrec + MLX5_RCV_DBR;
    receive.mask = rq.wqe_cnt - 1;
    receive.max_requests = std::min(rq.wqe_cnt, recv_cq.entries);
    receive.max_sge = std::min(limits.max_recv_sge, rq.stride / kUnit);
    receive.shift = static_cast<std::uint8_t>(std::countr_zero(rq.stride));

    const std::uint32_t room = send_cq.entries - (&send_cq == &recv_cq ? receive.max_requests : 0);
    if (room < limits.max_send_wr || receive.max_requests < limits.max_recv_wr)
        return fail(EINVAL, fmt::format("CQs for {} sends and {} receives, wanted {} and {}", room,
                                        receive.max_requests, limits.max_send_wr, limits.max_recv_wr));
    SendQueue& send = qp->send;
    qp->send_slots = std::make_unique<SendSlot[]>(sq.wqe_cnt);
    send.buffer = static_cast<std::uint8_t*>(sq.buf);
    send.slots = qp->send_slots.get();
    send.doorbell_record = queues.dbrec + MLX5_SND_DBR;
    send.doorbell = static_cast<std::uint8_t*>(queues.bf.reg);
    send.mask = sq.wqe_cnt - 1;
    send.qpn_shifted = real->qp_num << 8;
    send.max_requests = std::min(sq.wqe_cnt, room);
    send.set_done(0, 0);
    send.max_sge = std::min(limits.max_send_sge, kMaxSendSge);
    send.max_inline = std::min(limits.max_inline, kMaxInline);
    send.max_tso = limits.max_tso;
    send.max_tso_header = limits.max_tso_header;
    if (config_.blue_flame && power_of_two(queues.bf.size, kMaxFlame) && queues.bf.size >= kBlock)
        send.flame_bytes = static_cast<std::uint16_t>(queues.bf.size);
    // Two QPs may have the same register. Doorbells of 8 bytes can share it without a lock, longer ones
    // cannot.
    for (auto& other : qps_) {
        if (other->send.doorbell != send.doorbell) continue;
        other->send.flame_bytes = other->send.flame_toggle = 0;
        send.flame_bytes = 0;
    }
    send_cq.sender = qp.get();
    recv_cq.receiver = qp.get();
    qps_.push_back(std::move(qp));
    return static_cast<ibv_qp*>(qps_.back().get());
}

void Direct::reset(ibv_qp* facade) noexcept {
    auto& qp = static_cast<QueuePair&>(*facade);
    discard_completions(static_cast<CompletionQueue&>(*qp.send_cq));
    discard_completions(static_cast<CompletionQueue&>(*qp.recv_cq));
    qp.send.posted_blocks = qp.send.posted = 0;
    qp.send.set_done(0, 0);
    qp.receive.posted = qp.receive.done = 0;
    // As libmlx5 left them in state RESET.
    *qp.send.doorbell_record = *qp.receive.doorbell_record = 0;
    // Requests posted before the reset will not complete, so the tracer must forget them.
    withdraw_from_tracer(&context_);
    offer_to_tracer(&context_);
}

void Direct::event(const ibv_cq* real) noexcept {
    for (auto& cq : cqs_)
        if (cq->real == real) cq->armings.fetch_add(1, std::memory_order_relaxed);
}

ibv_cq* Direct::real(const ibv_cq* facade) noexcept {
    return static_cast<const CompletionQueue*>(facade)->real;
}
ibv_qp* Direct::real(const ibv_qp* facade) noexcept { return static_cast<const QueuePair*>(facade)->real; }

}  // namespace vma::verbs::mlx5
