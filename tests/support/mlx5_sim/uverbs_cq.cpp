// SPDX-License-Identifier: BSD-2-Clause
// Completion queues.
#include <infiniband/verbs.h>
#include <rdma/mlx5-abi.h>

#include <bit>
#include <cerrno>

#include "tests/support/mlx5_sim/uverbs.h"

namespace mlx5_sim {
namespace {

constexpr std::uint32_t kMaxEntries = 1 << 22;

struct CqWish {
    std::uint64_t user_handle = 0;
    std::uint32_t cqe = 0, comp_vector = 0;
    std::int32_t channel = -1;
};

int make_cq(Context& context, Request& request, const CqWish& wish, ib_uverbs_create_cq_resp& resp) {
    const auto mlx5 = request.driver<mlx5_ib_create_cq>();
    if (request.driver_bytes() < offsetof(mlx5_ib_create_cq, flags)) return EINVAL;
    if (wish.comp_vector != 0 || wish.cqe == 0 || wish.cqe >= kMaxEntries) return EINVAL;
    if (mlx5.cqe_size != 64 && mlx5.cqe_size != 128) return EINVAL;
    if (mlx5.flags != 0 || mlx5.cqe_comp_en != 0)
        return EOPNOTSUPP;  // neither padding nor compressed completions
    if (mlx5.buf_addr == 0 || mlx5.db_addr == 0) return EFAULT;

    std::shared_ptr<EventPipe> channel;
    if (wish.channel >= 0) {
        const auto found = std::find_if(context.channels.begin(), context.channels.end(),
                                        [&](const auto& pipe) { return pipe->is(wish.channel); });
        if (found == context.channels.end()) return EBADF;
        channel = *found;
    }
    CqAttr attr;
    attr.cqn = context.device.next_cqn++;
    attr.buffer = reinterpret_cast<void*>(mlx5.buf_addr);          // NOLINT(performance-no-int-to-ptr)
    attr.doorbell_record = reinterpret_cast<void*>(mlx5.db_addr);  // NOLINT(performance-no-int-to-ptr)
    attr.entries = std::bit_ceil(wish.cqe + 1);
    attr.cqe_size = mlx5.cqe_size;
    if (channel != nullptr) attr.event = [channel, object = wish.user_handle] { channel->post(object); };
    attr.failed = [async = context.async, object = wish.user_handle] {
        async->post(object, IBV_EVENT_CQ_ERR);
    };
    context.device.nic.create_cq(attr);

    resp.cq_handle = context.cqs.add({attr.cqn, wish.user_handle, channel, 0});
    resp.cqe = attr.entries - 1;
    request.answer_driver(mlx5_ib_create_cq_resp{attr.cqn, 0});
    return 0;
}

// Ends the queue; tells how many of its events were read.
ib_uverbs_destroy_cq_resp remove_cq(Context& context, std::uint32_t handle) {
    const CqObject cq = *context.cqs.find(handle);
    context.device.nic.destroy_cq(cq.cqn);
    context.cqs.erase(handle);
    ib_uverbs_destroy_cq_resp resp{};
    if (cq.channel != nullptr) resp.comp_events_reported = cq.channel->forget(cq.user_handle);
    resp.async_events_reported = context.async->forget(cq.user_handle);
    return resp;
}

}  // namespace

int create_cq(Context& context, Request& request) {
    const auto wish = request.core<ib_uverbs_create_cq>();
    ib_uverbs_create_cq_resp resp{};
    if (const int error = make_cq(context, request,
                                  {wish.user_handle, wish.cqe, wish.comp_vector, wish.comp_channel}, resp)) {
        return error;
    }
    request.answer(resp);
    return 0;
}

int create_cq_ex(Context& context, Request& request) {
    const auto wish = request.core<ib_uverbs_ex_create_cq>();
    if (wish.comp_mask != 0 || wish.reserved != 0) return EINVAL;
    // Time stamps come with every completion. A CQ that may be overrun is not simulated.
    if ((wish.flags & ~IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION) != 0) return EOPNOTSUPP;
    ib_uverbs_ex_create_cq_resp resp{};
    const CqWish plain{wish.user_handle, wish.cqe, wish.comp_vector, wish.comp_channel};
    if (const int error = make_cq(context, request, plain, resp.base)) return error;
    resp.response_length = static_cast<__u32>(std::min(sizeof(resp), request.out_bytes()));
    request.answer(resp);
    return 0;
}

int modify_cq_ex(Context& context, Request& request) {
    const auto wish = request.core<ib_uverbs_ex_modify_cq>();
    if (wish.attr_mask == 0 || wish.reserved != 0) return EINVAL;
    if ((wish.attr_mask & ~IBV_CQ_ATTR_MODERATE) != 0) return EOPNOTSUPP;
    const CqObject* const cq = context.cqs.find(wish.cq_handle);
    if (cq == nullptr) return EINVAL;
    if (wish.attr.cq_period > kMaxModerationUsec) return EINVAL;
    context.device.nic.moderate_cq(cq->cqn, wish.attr.cq_count, wish.attr.cq_period);
    return 0;
}

int destroy_cq(Context& context, Request& request) {
    const auto handle = request.core<ib_uverbs_destroy_cq>().cq_handle;
    const CqObject* const cq = context.cqs.find(handle);
    if (cq == nullptr) return ENOENT;
    if (cq->users != 0) return EBUSY;
    request.answer(remove_cq(context, handle));
    return 0;
}

void destroy_cq(Context& context, std::uint32_t handle) { remove_cq(context, handle); }

}  // namespace mlx5_sim
