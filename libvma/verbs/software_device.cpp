// SPDX-License-Identifier: BSD-2-Clause
// Fills in the verbs objects of software devices; see software_device.h.
#include "libvma/verbs/software_device.h"

#include <cstring>

#include "libvma/verbs/trace_hook.h"

namespace vma::verbs {

SoftwareDevice::~SoftwareDevice() { withdraw_from_tracer(&context_); }

void SoftwareDevice::set_calls(const Calls& calls) noexcept {
    std::strncpy(verbs_device_.name, attr_.name.c_str(), sizeof verbs_device_.name - 1);
    verbs_device_.transport_type = IBV_TRANSPORT_UNKNOWN;
    context_.device = &verbs_device_;
    context_.cmd_fd = context_.async_fd = -1;
    context_.abi_compat = static_cast<SoftwareDevice*>(this);
    context_.ops.post_send = calls.post_send;
    context_.ops.post_recv = calls.post_recv;
    context_.ops.poll_cq = calls.poll_cq;
    context_.ops.req_notify_cq = calls.req_notify_cq;
    pd_.context = &context_;
    offer_to_tracer(&context_);
}

Result<ibv_cq*> SoftwareDevice::create_cq(int entries, ibv_comp_channel* channel) {
    const bool receive = channel != nullptr && !have_recv_cq_;
    ibv_cq& cq = receive ? recv_cq_ : send_cq_;
    if (receive) have_recv_cq_ = true;
    cq.context = &context_;
    cq.channel = channel;
    cq.cqe = entries;
    return &cq;
}

ibv_mr* SoftwareDevice::fill_mr(void* addr, std::size_t length) noexcept {
    mr_.context = &context_;
    mr_.pd = &pd_;
    mr_.addr = addr;
    mr_.length = length;
    mr_.lkey = 1;
    have_mr_ = true;
    return &mr_;
}

ibv_comp_channel* SoftwareDevice::fill_channel(int fd) noexcept {
    channel_.context = &context_;
    channel_.fd = fd;
    return &channel_;
}

ibv_qp* SoftwareDevice::fill_qp(const ibv_qp_init_attr& init) noexcept {
    qp_.context = &context_;
    qp_.pd = &pd_;
    qp_.send_cq = init.send_cq;
    qp_.recv_cq = init.recv_cq;
    qp_.qp_type = IBV_QPT_RAW_PACKET;
    qp_.state = IBV_QPS_RTS;
    have_qp_ = true;
    return &qp_;
}

}  // namespace vma::verbs
