// SPDX-License-Identifier: BSD-2-Clause
// The hook for vma_trace (tools/vma_trace), which times work requests.
//
// vma_trace follows the contexts that libibverbs opens. A device with queues of its own (software devices,
// direct mlx5 queues) offers its ibv_context through these weak functions. They exist only while
// libvma_trace.so is preloaded as well. Afterwards post_send, post_recv and poll_cq in context->ops are the
// tracer's, and call the device's own. Facades whose functions call those of another context (VLANs, time
// stamps) are not offered. The tracer has that other context, and would count their requests twice.
#pragma once

#include <infiniband/verbs.h>

// Called before the first request. A second call for the same context changes nothing.
extern "C" __attribute__((weak)) void vma_trace_context(ibv_context* context);
// Called before the context's memory is freed, or after its queues were reset. It restores the device's own
// functions. The tracer forgets the context's objects, because others may get their addresses.
extern "C" __attribute__((weak)) void vma_trace_context_gone(ibv_context* context);

namespace vma::verbs {

inline void offer_to_tracer(ibv_context* context) noexcept {
    if (vma_trace_context != nullptr && context != nullptr) vma_trace_context(context);
}
inline void withdraw_from_tracer(ibv_context* context) noexcept {
    if (vma_trace_context_gone != nullptr) vma_trace_context_gone(context);
}

}  // namespace vma::verbs
