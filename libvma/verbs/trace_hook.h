// SPDX-License-Identifier: BSD-2-Clause
// The door for vma_trace (tools/vma_trace), which times work requests.
//
// It follows what libibverbs opens. Whoever fills in an ibv_context that leads to queues of its own (software
// devices, direct mlx5 queues) offers it through these weak functions, which exist only while libvma_trace.so
// is preloaded as well. Afterwards post_send, post_recv and poll_cq in context->ops are the tracer's, and
// lead to the device's own. Facades whose functions call those of another context (VLANs, time stamps) are
// not offered: the tracer has that other one, and would count their requests twice.
#pragma once

#include <infiniband/verbs.h>

// Before the first request. A second call for the same context changes nothing.
extern "C" __attribute__((weak)) void vma_trace_context(ibv_context* context);
// Before the context's memory is given back, or after its queues were reset: the functions are the device's
// own again, and the tracer forgets the context's objects, whose addresses others may get.
extern "C" __attribute__((weak)) void vma_trace_context_gone(ibv_context* context);

namespace vma::verbs {

inline void offer_to_tracer(ibv_context* context) noexcept {
    if (vma_trace_context != nullptr && context != nullptr) vma_trace_context(context);
}
inline void withdraw_from_tracer(ibv_context* context) noexcept {
    if (vma_trace_context_gone != nullptr) vma_trace_context_gone(context);
}

}  // namespace vma::verbs
