// SPDX-License-Identifier: BSD-2-Clause
// What both sides of rc and of ud have: a protection domain, and lanes of queue pairs in it.
#pragma once

#include "tools/vma_perf/rdma/handles.h"
#include "tools/vma_perf/rdma/lane.h"
#include "tools/vma_perf/side.h"

namespace vma_perf::rdma {

class VerbsSide : public Side {
  protected:
    VerbsSide(const Params& params, const Place& place, ibv_qp_type type)
        : Side(params, place), type_(type) {}
    ~VerbsSide() { lanes_.clear(); }  // their memory is registered in the protection domain

    // One for each thread, without queue pairs so far. Throws Failure.
    void make_lanes(ibv_context* context);
    VerbsLane& lane_of(unsigned connection) const {
        return static_cast<VerbsLane&>(*lanes_[connection % params_.threads]);
    }
    unsigned number_of(unsigned connection) const noexcept { return connection / params_.threads; }
    ibv_pd* pd() const noexcept { return pd_.get(); }
    // The device's name, and what all lanes counted. After make_lanes().
    nlohmann::json report() const;

    ContextPtr context_;  // ud; rc's is RDMA-CM's

  private:
    const ibv_qp_type type_;
    PdPtr pd_;
};

}  // namespace vma_perf::rdma
