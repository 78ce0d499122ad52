// SPDX-License-Identifier: BSD-2-Clause
// RAW_PACKET queue pairs.
#include <infiniband/verbs.h>
#include <rdma/mlx5-abi.h>

#include <bit>
#include <cerrno>

#include "tests/support/mlx5_sim/uverbs.h"

namespace mlx5_sim {
namespace {

constexpr std::uint32_t kMaxEntries = 1 << 15;

// A doorbell register for a new QP, chosen as the kernel does: one of the low-latency ones if there is a free
// one, else the least used of the shared ones; the first of all has no BlueFlame and is the last resort.
std::uint32_t take_bfreg(Context& context) {
    auto& users = context.bfreg_users;
    const auto first_low_latency = users.end() - context.low_latency_bfregs;
    auto chosen = std::find(first_low_latency, users.end(), 0u);
    if (chosen == users.end()) {
        chosen = first_low_latency - users.begin() > 1
                     ? std::min_element(users.begin() + 1, first_low_latency)
                     : users.begin();
    }
    ++*chosen;
    return static_cast<std::uint32_t>(chosen - users.begin());
}

// libmlx5 counts four registers to a page, of which two exist for it.
std::uint32_t index_for_libmlx5(std::uint32_t bfreg) { return bfreg / 2 * 4 + bfreg % 2; }

int check_buffers(const mlx5_ib_create_qp& mlx5, std::uint32_t max_send_wr, std::uint32_t max_recv_wr) {
    constexpr std::uint32_t kSimulated = MLX5_QP_FLAG_SCATTER_CQE;  // means nothing for RAW_PACKET
    if ((mlx5.flags & ~kSimulated) != 0) return EOPNOTSUPP;
    if (max_send_wr == 0 && max_recv_wr == 0) return EINVAL;
    if (max_send_wr != 0 && (!std::has_single_bit(mlx5.sq_wqe_count) || mlx5.sq_wqe_count > kMaxEntries))
        return EINVAL;
    if (max_recv_wr != 0) {
        if (!std::has_single_bit(mlx5.rq_wqe_count) || mlx5.rq_wqe_count > kMaxEntries) return EINVAL;
        if (mlx5.rq_wqe_shift < 4 || mlx5.rq_wqe_shift > 9) return EINVAL;
    }
    if (mlx5.db_addr == 0 || (max_send_wr != 0 && mlx5.sq_buf_addr == 0) ||
        (max_recv_wr != 0 && mlx5.buf_addr == 0))
        return EFAULT;
    return 0;
}

int make_qp(Context& context, Request& request, const ib_uverbs_ex_create_qp& wish,
            ib_uverbs_create_qp_resp& resp) {
    if (wish.qp_type != IBV_QPT_RAW_PACKET) return EOPNOTSUPP;
    if (!may_use_raw()) return EPERM;
    PdObject* const pd = context.pds.find(wish.pd_handle);
    CqObject* const send_cq = context.cqs.find(wish.send_cq_handle);
    CqObject* const recv_cq = context.cqs.find(wish.recv_cq_handle);
    if (pd == nullptr || send_cq == nullptr || recv_cq == nullptr || wish.is_srq != 0) return EINVAL;
    if (wish.max_send_wr > kMaxEntries || wish.max_recv_wr > kMaxEntries) return EINVAL;
    if (wish.max_send_sge > kMaxSge || wish.max_recv_sge > kMaxSge) return EINVAL;
    const auto mlx5 = request.driver<mlx5_ib_create_qp>();
    if (request.driver_bytes() < offsetof(mlx5_ib_create_qp, ece_options)) return EINVAL;
    if (const int error = check_buffers(mlx5, wish.max_send_wr, wish.max_recv_wr)) return error;

    QpObject qp;
    qp.qpn = context.device.next_qpn++;
    qp.user_handle = wish.user_handle;
    qp.pd = wish.pd_handle;
    qp.send_cq = wish.send_cq_handle;
    qp.recv_cq = wish.recv_cq_handle;
    qp.state = IBV_QPS_RESET;
    qp.sq_sig_all = wish.sq_sig_all;
    qp.max_recv_wr = wish.max_recv_wr != 0 ? mlx5.rq_wqe_count : 0;
    qp.max_recv_sge = wish.max_recv_wr != 0 ? (1u << mlx5.rq_wqe_shift) / sizeof(mlx5_wqe_data_seg) : 0;
    qp.bfreg = take_bfreg(context);

    QpAttr attr;
    attr.qpn = qp.qpn;
    attr.user_index = mlx5.uidx;
    attr.send_buffer = reinterpret_cast<void*>(mlx5.sq_buf_addr);  // NOLINT(performance-no-int-to-ptr)
    attr.send_entries = wish.max_send_wr != 0 ? mlx5.sq_wqe_count : 0;
    attr.recv_buffer = reinterpret_cast<void*>(mlx5.buf_addr);  // NOLINT(performance-no-int-to-ptr)
    attr.recv_entries = qp.max_recv_wr;
    attr.recv_shift = mlx5.rq_wqe_shift;
    attr.doorbell_record = reinterpret_cast<void*>(mlx5.db_addr);  // NOLINT(performance-no-int-to-ptr)
    attr.send_cqn = send_cq->cqn;
    attr.recv_cqn = recv_cq->cqn;
    attr.uar = context.first_uar + qp.bfreg / 2;
    context.device.nic.create_qp(attr);

    ++pd->users;
    ++send_cq->users;
    ++recv_cq->users;
    resp.qpn = qp.qpn;
    resp.max_send_wr = wish.max_send_wr;
    resp.max_recv_wr = wish.max_recv_wr;
    resp.max_send_sge = wish.max_send_sge;
    resp.max_recv_sge = wish.max_recv_sge;
    resp.max_inline_data = wish.max_inline_data;
    resp.qp_handle = context.qps.add(qp);
    mlx5_ib_create_qp_resp driver{};
    driver.bfreg_index = index_for_libmlx5(qp.bfreg);
    request.answer_driver(driver);
    return 0;
}

// The state as it is: the adapter puts a queue into error by itself.
std::uint8_t current_state(const Context& context, const QpObject& qp) {
    switch (context.device.nic.qp_state(qp.qpn)) {
        case QpState::error:
            return IBV_QPS_ERR;
        case QpState::send_error:
            return IBV_QPS_SQE;
        default:
            return qp.state;
    }
}

bool may_become(std::uint8_t from, std::uint8_t to) {
    switch (to) {
        case IBV_QPS_RESET:
            return true;
        case IBV_QPS_ERR:
            return from != IBV_QPS_RESET;
        case IBV_QPS_INIT:
            return from == IBV_QPS_RESET || from == IBV_QPS_INIT;
        case IBV_QPS_RTR:
            return from == IBV_QPS_INIT;
        case IBV_QPS_RTS:
            return from == IBV_QPS_RTR || from == IBV_QPS_RTS;
        default:
            return false;
    }
}

QpState model_state(std::uint8_t state) {
    switch (state) {
        case IBV_QPS_RESET:
            return QpState::reset;
        case IBV_QPS_INIT:
            return QpState::init;
        case IBV_QPS_RTR:
            return QpState::rtr;
        case IBV_QPS_RTS:
            return QpState::rts;
        default:
            return QpState::error;
    }
}

int change_qp(Context& context, const ib_uverbs_modify_qp& wish) {
    QpObject* const qp = context.qps.find(wish.qp_handle);
    if (qp == nullptr) return EINVAL;
    const std::uint8_t now = current_state(context, *qp);
    if ((wish.attr_mask & IBV_QP_CUR_STATE) != 0 && wish.cur_qp_state != now) return EINVAL;
    const std::uint8_t next = (wish.attr_mask & IBV_QP_STATE) != 0 ? wish.qp_state : now;
    if (!may_become(now, next)) return EINVAL;
    if ((wish.attr_mask & IBV_QP_PORT) != 0 && wish.port_num != 1) return EINVAL;
    if (now == IBV_QPS_RESET && next == IBV_QPS_INIT && (wish.attr_mask & IBV_QP_PORT) == 0) return EINVAL;
    // Of the rest a raw QP has nothing: no keys, no path, no sequence numbers.
    constexpr std::uint32_t kKnown = IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_PORT;
    if ((wish.attr_mask & ~kKnown) != 0) return EINVAL;
    if ((wish.attr_mask & IBV_QP_PORT) != 0) qp->port = wish.port_num;
    if ((wish.attr_mask & IBV_QP_STATE) == 0) return 0;
    qp->state = next;
    if (next == IBV_QPS_RESET) qp->port = 0;
    context.device.nic.modify_qp(qp->qpn, model_state(next));
    return 0;
}

// Ends it; tells how many of its asynchronous events were read.
std::uint32_t remove_qp(Context& context, std::uint32_t handle) {
    const QpObject qp = *context.qps.find(handle);
    context.device.nic.destroy_qp(qp.qpn);
    context.qps.erase(handle);
    --context.bfreg_users[qp.bfreg];
    --context.pds.find(qp.pd)->users;
    --context.cqs.find(qp.send_cq)->users;
    --context.cqs.find(qp.recv_cq)->users;
    return context.async->forget(qp.user_handle);
}

}  // namespace

int create_qp(Context& context, Request& request) {
    const auto plain = request.core<ib_uverbs_create_qp>();
    ib_uverbs_ex_create_qp wish{};
    wish.user_handle = plain.user_handle;
    wish.pd_handle = plain.pd_handle;
    wish.send_cq_handle = plain.send_cq_handle;
    wish.recv_cq_handle = plain.recv_cq_handle;
    wish.max_send_wr = plain.max_send_wr;
    wish.max_recv_wr = plain.max_recv_wr;
    wish.max_send_sge = plain.max_send_sge;
    wish.max_recv_sge = plain.max_recv_sge;
    wish.max_inline_data = plain.max_inline_data;
    wish.sq_sig_all = plain.sq_sig_all;
    wish.qp_type = plain.qp_type;
    wish.is_srq = plain.is_srq;
    ib_uverbs_create_qp_resp resp{};
    if (const int error = make_qp(context, request, wish, resp)) return error;
    request.answer(resp);
    return 0;
}

int create_qp_ex(Context& context, Request& request) {
    const auto wish = request.core<ib_uverbs_ex_create_qp>();
    if ((wish.comp_mask & ~IB_UVERBS_CREATE_QP_SUP_COMP_MASK) != 0 || wish.reserved != 0) return EINVAL;
    if (wish.comp_mask != 0 || wish.create_flags != 0)
        return EOPNOTSUPP;  // no RSS, no stripping of VLAN tags, no FCS
    ib_uverbs_ex_create_qp_resp resp{};
    if (const int error = make_qp(context, request, wish, resp.base)) return error;
    resp.response_length = static_cast<__u32>(std::min(sizeof(resp), request.out_bytes()));
    request.answer(resp);
    return 0;
}

int modify_qp(Context& context, Request& request) {
    return change_qp(context, request.core<ib_uverbs_modify_qp>());
}

int modify_qp_ex(Context& context, Request& request) {
    const auto wish = request.core<ib_uverbs_ex_modify_qp>();
    if ((wish.base.attr_mask & IBV_QP_RATE_LIMIT) != 0) return EOPNOTSUPP;
    if (const int error = change_qp(context, wish.base)) return error;
    request.answer(ib_uverbs_ex_modify_qp_resp{
        0, static_cast<__u32>(std::min(sizeof(ib_uverbs_ex_modify_qp_resp), request.out_bytes()))});
    return 0;
}

int query_qp(Context& context, Request& request) {
    const QpObject* const qp = context.qps.find(request.core<ib_uverbs_query_qp>().qp_handle);
    if (qp == nullptr) return EINVAL;
    ib_uverbs_query_qp_resp resp{};
    resp.max_recv_wr = qp->max_recv_wr;
    resp.max_recv_sge = qp->max_recv_sge;
    resp.qp_state = current_state(context, *qp);
    resp.cur_qp_state = resp.qp_state;
    resp.port_num = qp->port;
    resp.sq_sig_all = qp->sq_sig_all;
    request.answer(resp);
    return 0;
}

int destroy_qp(Context& context, Request& request) {
    const auto handle = request.core<ib_uverbs_destroy_qp>().qp_handle;
    const QpObject* const qp = context.qps.find(handle);
    if (qp == nullptr) return ENOENT;
    if (qp->users != 0) return EBUSY;
    request.answer(ib_uverbs_destroy_qp_resp{remove_qp(context, handle)});
    return 0;
}

void destroy_qp(Context& context, std::uint32_t handle) { remove_qp(context, handle); }

}  // namespace mlx5_sim
