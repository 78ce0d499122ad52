// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/verbs/rdma/stamped_cq.h"

#include <errno.h>

#include "libvma/verbs/device.h"

namespace vma::verbs::rdma {

StampedCq::StampedCq(ibv_cq_ex* below, const HwClock& clock, bool tags) noexcept
    : below_(below), clock_(clock), tags_(tags) {
    context_.abi_compat = this;
    context_.cmd_fd = context_.async_fd = -1;
    context_.ops.poll_cq = &StampedCq::poll;
    context_.ops.req_notify_cq = &StampedCq::arm;
    cq_.context = &context_;
    cq_.channel = below->channel;
    cq_.cq_context = below->cq_context;
    cq_.cqe = below->cqe;
}

void StampedCq::read(ibv_wc& wc) noexcept {
    wc.wr_id = below_->wr_id;
    wc.status = below_->status;
    wc.opcode = IBV_WC_RECV;
    wc.wc_flags = 0;
    if (wc.status != IBV_WC_SUCCESS) {
        wc.vendor_err = ibv_wc_read_vendor_err(below_);
        return;
    }
    wc.byte_len = ibv_wc_read_byte_len(below_);
    wc.wc_flags = ibv_wc_read_wc_flags(below_);
    set_arrival_ns(wc, clock_.to_ns(ibv_wc_read_completion_ts(below_)));
    if (!tags_) return;
    if (const std::uint32_t tag = ibv_wc_read_flow_tag(below_)) set_flow_tag(wc, tag);
}

int StampedCq::poll(ibv_cq* cq, int count, ibv_wc* wc) {
    auto& self = *static_cast<StampedCq*>(cq->context->abi_compat);
    ibv_cq_ex* below = self.below_;
    if (!Device::arrival_times_wanted()) return ibv_poll_cq(ibv_cq_ex_to_cq(below), count, wc);
    if (count <= 0) return 0;
    ibv_poll_cq_attr attr{};
    int error = ibv_start_poll(below, &attr);
    if (error != 0)
        return error == ENOENT ? 0 : -1;  // without ibv_end_poll(), because the poll did not start
    int n = 0;
    do {
        self.read(wc[n++]);
    } while (n < count && (error = ibv_next_poll(below)) == 0);
    ibv_end_poll(below);
    return n;
}

int StampedCq::arm(ibv_cq* cq, int solicited_only) {
    auto& self = *static_cast<StampedCq*>(cq->context->abi_compat);
    return ibv_req_notify_cq(ibv_cq_ex_to_cq(self.below_), solicited_only);
}

}  // namespace vma::verbs::rdma
