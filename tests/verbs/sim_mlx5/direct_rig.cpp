// SPDX-License-Identifier: BSD-2-Clause
#include "tests/verbs/sim_mlx5/direct_rig.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace mlx5_sim::test {
namespace {

template <class T>
T check(T value, const char* what) {
    if (!value) {
        std::fprintf(stderr, "%s: %s\n", what, std::strerror(errno));
        std::abort();
    }
    return value;
}
void check_zero(int error, const char* what) {
    if (error != 0) {
        std::fprintf(stderr, "%s: %s\n", what, std::strerror(error));
        std::abort();
    }
}

ibv_context* open(const std::string& name) {
    int count = 0;
    ibv_device** list = check(ibv_get_device_list(&count), "ibv_get_device_list");
    ibv_context* context = nullptr;
    for (int i = 0; i < count; i++)
        if (name == ibv_get_device_name(list[i])) context = ibv_open_device(list[i]);
    ibv_free_device_list(list);
    return check(context, name.c_str());
}

}  // namespace

Side::Side(const std::string& device, const SideOptions& options) : memory_(std::size_t{kSlot} * kSlots) {
    namespace mlx5 = vma::verbs::mlx5;
    owns_context_ = options.context == nullptr;
    context = owns_context_ ? open(device) : options.context;
    pd_ = check(ibv_alloc_pd(context), "ibv_alloc_pd");
    mr_ = check(ibv_reg_mr(pd_, memory_.data(), memory_.size(), IBV_ACCESS_LOCAL_WRITE), "ibv_reg_mr");
    if (options.with_channel) channel = check(ibv_create_comp_channel(context), "ibv_create_comp_channel");
    setenv("MLX5_CQE_SIZE", options.cqe_size == 128 ? "128" : "64", 1);
    const auto send_cqes = static_cast<int>(options.send_cqes != 0 ? options.send_cqes : options.sends);
    const auto recv_cqes =
        static_cast<int>(options.receive_cqes != 0 ? options.receive_cqes : options.receives);
    real_send_cq = check(ibv_create_cq(context, send_cqes, nullptr, nullptr, 0), "ibv_create_cq");
    real_recv_cq = check(ibv_create_cq(context, recv_cqes, this, channel, 0), "ibv_create_cq");
    ibv_qp_init_attr_ex init{};
    init.send_cq = real_send_cq;
    init.recv_cq = real_recv_cq;
    init.cap = {options.sends, options.receives, options.max_sge, 1, options.max_inline};
    init.qp_type = IBV_QPT_RAW_PACKET;
    init.comp_mask = IBV_QP_INIT_ATTR_PD;
    init.pd = pd_;
    if (options.max_tso_header != 0) {
        init.comp_mask |= IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
        init.max_tso_header = static_cast<std::uint16_t>(options.max_tso_header);
    }
    real_qp = check(ibv_create_qp_ex(context, &init), "ibv_create_qp_ex");
    for (ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) to(state);
    qp = real_qp;
    send_cq = real_send_cq;
    recv_cq = real_recv_cq;
    if (!options.direct) return;

    if (options.shared == nullptr)
        own_direct_ = mlx5::Direct::create({mlx5dv_init_obj}, options.config).value();
    direct = options.shared != nullptr ? options.shared : own_direct_.get();
    send_cq = direct->wrap_cq(real_send_cq).value();
    recv_cq = direct->wrap_cq(real_recv_cq).value();
    mlx5::QpLimits limits = options.limits;
    if (limits.max_send_wr == 0) limits.max_send_wr = options.sends;
    if (limits.max_recv_wr == 0) limits.max_recv_wr = options.receives;
    limits.max_send_sge = options.max_sge;
    limits.max_inline = options.max_inline;
    limits.max_tso = options.max_tso_header != 0 ? 65536 : 0;
    limits.max_tso_header = options.max_tso_header;
    auto wrapped = direct->wrap_qp(real_qp, send_cq, recv_cq, limits);
    qp = wrapped ? *wrapped : nullptr;
    if (!wrapped) refused = wrapped.error().what;
}

Side::~Side() {
    if (flow_ != nullptr) check_zero(ibv_destroy_flow(flow_), "ibv_destroy_flow");
    check_zero(ibv_destroy_qp(real_qp), "ibv_destroy_qp");
    check_zero(ibv_destroy_cq(real_recv_cq), "ibv_destroy_cq");
    check_zero(ibv_destroy_cq(real_send_cq), "ibv_destroy_cq");
    if (channel != nullptr) check_zero(ibv_destroy_comp_channel(channel), "ibv_destroy_comp_channel");
    check_zero(ibv_dereg_mr(mr_), "ibv_dereg_mr");
    check_zero(ibv_dealloc_pd(pd_), "ibv_dealloc_pd");
    if (owns_context_) check_zero(ibv_close_device(context), "ibv_close_device");
}

int Side::send(std::uint64_t id, std::span<const std::uint8_t> frame, unsigned flags) {
    std::memcpy(tx_slot(id), frame.data(), frame.size());
    ibv_sge piece = sge(kHalf + id % kHalf, 0, static_cast<std::uint32_t>(frame.size()));
    ibv_send_wr wr{}, *bad = nullptr;
    wr.wr_id = id;
    wr.sg_list = &piece;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = flags;
    return ibv_post_send(qp, &wr, &bad);
}

int Side::receive(std::uint64_t id) {
    ibv_sge piece = sge(id % kHalf, 0, kSlot);
    ibv_recv_wr wr{id, nullptr, &piece, 1}, *bad = nullptr;
    return ibv_post_recv(qp, &wr, &bad);
}

std::vector<ibv_wc> Side::poll(ibv_cq* cq, int count) {
    std::vector<ibv_wc> wc(static_cast<std::size_t>(count));
    const int n = ibv_poll_cq(cq, count, wc.data());
    wc.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    return wc;
}

void Side::take_all() {
    struct {
        ibv_flow_attr attr;
        ibv_flow_spec_eth eth;
    } rule{};
    rule.attr.type = IBV_FLOW_ATTR_NORMAL;
    rule.attr.size = sizeof rule;
    rule.attr.port = 1;
    rule.attr.num_of_specs = 1;
    rule.eth.type = IBV_FLOW_SPEC_ETH;
    rule.eth.size = sizeof rule.eth;
    flow_ = check(ibv_create_flow(real_qp, &rule.attr), "ibv_create_flow");
}

void Side::to(ibv_qp_state state) {
    ibv_qp_attr attr{};
    attr.qp_state = state;
    attr.port_num = 1;
    check_zero(ibv_modify_qp(real_qp, &attr, IBV_QP_STATE | (state == IBV_QPS_INIT ? IBV_QP_PORT : 0)),
               "ibv_modify_qp");
}

void Side::restart() {
    for (ibv_qp_state state : {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) to(state);
    if (direct != nullptr) direct->reset(qp);
}

}  // namespace mlx5_sim::test
