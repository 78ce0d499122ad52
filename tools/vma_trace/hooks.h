// SPDX-License-Identifier: BSD-2-Clause
// The functions that replace those of verbs objects while they are traced.
#pragma once

#include <infiniband/verbs.h>

#include "tools/vma_trace/registry.h"

namespace vma_trace {

// Replaces the functions of a context by the tracer's. `context.calls` must hold the device's own already.
void install(Context& context) noexcept;
// Restores the device's own functions.
void uninstall(Context& context) noexcept;
bool is_hooked(const ibv_context_ops& ops) noexcept;

// The same for the ibv_wr_ functions of a QP (ibv_wr_start() to ibv_wr_complete()), once.
void install(ibv_qp_ex& qp) noexcept;
// And for the poll functions of an extended CQ, once.
void install(ibv_cq_ex& cq) noexcept;

// A CQ as ibv_create_cq() makes it, with time stamps where the device has them and the options want them.
// `create` is the real ibv_create_cq(). What follows the arguments is as in ibv_create_cq(3).
using CreateCq = ibv_cq* (*)(ibv_context*, int, void*, ibv_comp_channel*, int);
ibv_cq* create_cq(CreateCq create, ibv_context* context, int entries, void* cq_context,
                  ibv_comp_channel* channel, int vector);

// Counts one completion. Call with the lock of `cq` held, in the order in which the device gave them.
void take_completion(Cq& cq, std::uint32_t qp_number, ibv_wc_opcode opcode, const Completion& completion,
                     std::uint64_t now) noexcept;

}  // namespace vma_trace
