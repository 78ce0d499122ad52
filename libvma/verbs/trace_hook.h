// SPDX-License-Identifier: BSD-2-Clause
// The door for vma_trace (tools/vma_trace), which times work requests.
//
// It follows what libibverbs opens. A device that fills in an ibv_context itself offers it through this weak
// function, which exists only while libvma_trace.so is preloaded as well. Afterwards post_send, post_recv and
// poll_cq in context->ops are the tracer's, and lead to the device's own.
#pragma once

#include <infiniband/verbs.h>

// Before the first request. A second call for the same context changes nothing.
extern "C" __attribute__((weak)) void vma_trace_context(ibv_context* context);

namespace vma::verbs {

inline void offer_to_tracer(ibv_context* context) noexcept {
    if (vma_trace_context != nullptr && context != nullptr) vma_trace_context(context);
}

}  // namespace vma::verbs
