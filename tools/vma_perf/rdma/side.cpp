// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/rdma/side.h"

namespace vma_perf::rdma {

void VerbsSide::make_lanes(ibv_context* context) {
    pd_.reset(ibv_alloc_pd(context));
    if (!pd_) fail_errno("a protection domain");
    for (unsigned i = 0; i < params_.threads; i++)
        lanes_.push_back(std::make_unique<VerbsLane>(context, pd(), type_, params_, i, *place_.stop));
}

nlohmann::json VerbsSide::report() const {
    VerbsLane::Counts sum;
    for (const auto& lane : lanes_) sum += static_cast<const VerbsLane&>(*lane).counts();
    return {{"device", ibv_get_device_name(pd_->context->device)},
            {"sends", sum.sends},
            {"signalled", sum.signalled},
            {"send_completions", sum.send_completions},
            {"receives", sum.receives},
            {"events", sum.events},
            {"inline", sum.inlined}};
}

}  // namespace vma_perf::rdma
