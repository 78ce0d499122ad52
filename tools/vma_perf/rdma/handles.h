// SPDX-License-Identifier: BSD-2-Clause
// Verbs objects that destroy themselves.
#pragma once

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <memory>

namespace vma_perf::rdma {

template <auto Destroy>
struct Destroyer {
    template <class T>
    void operator()(T* object) const noexcept {
        Destroy(object);
    }
};

using ContextPtr = std::unique_ptr<ibv_context, Destroyer<ibv_close_device>>;
using PdPtr = std::unique_ptr<ibv_pd, Destroyer<ibv_dealloc_pd>>;
using MrPtr = std::unique_ptr<ibv_mr, Destroyer<ibv_dereg_mr>>;
using CqPtr = std::unique_ptr<ibv_cq, Destroyer<ibv_destroy_cq>>;
using QpPtr = std::unique_ptr<ibv_qp, Destroyer<ibv_destroy_qp>>;
using AhPtr = std::unique_ptr<ibv_ah, Destroyer<ibv_destroy_ah>>;
using CompChannelPtr = std::unique_ptr<ibv_comp_channel, Destroyer<ibv_destroy_comp_channel>>;
using EventChannelPtr = std::unique_ptr<rdma_event_channel, Destroyer<rdma_destroy_event_channel>>;
using CmEventPtr = std::unique_ptr<rdma_cm_event, Destroyer<rdma_ack_cm_event>>;

// Its QP, if it has one, goes first.
struct CmIdDestroyer {
    void operator()(rdma_cm_id* id) const noexcept {
        if (id->qp != nullptr) rdma_destroy_qp(id);
        rdma_destroy_id(id);
    }
};
using CmIdPtr = std::unique_ptr<rdma_cm_id, CmIdDestroyer>;

}  // namespace vma_perf::rdma
