// SPDX-License-Identifier: BSD-2-Clause
// The exported functions. Those of libibverbs, under their own names and versions (exports.map), learn of
// objects as the program makes them. vma_trace_context() is for devices outside libibverbs.
#include "tools/vma_trace/exports.h"

#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <string.h>

#include <atomic>

#include "tools/vma_trace/hooks.h"
#include "tools/vma_trace/lifecycle.h"
#include "tools/vma_trace/lookup.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace vma_trace {
namespace {

enum Index {
    kOpenDevice,
    kImportDevice,
    kCloseDevice,
    kCreateCq,
    kDestroyCq,
    kCreateQp,
    kModifyQp,
    kDestroyQp,
    kDestroySrq,
    kQpToQpEx
};

void* real_of(Export& row) noexcept {
    std::atomic_ref<void*> known(row.real);
    if (void* found = known.load(std::memory_order_acquire)) return found;
    void* found = real_dlvsym(RTLD_NEXT, row.name, row.version);
    if (found == nullptr) {
        // The program has loaded it for itself.
        if (void* handle = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD))
            found = real_dlvsym(handle, row.name, row.version);
    }
    if (found != nullptr) known.store(found, std::memory_order_release);
    return found;
}

}  // namespace

extern Export exports[];

template <class Function>
Function real(Index index) noexcept {
    return reinterpret_cast<Function>(real_of(exports[index]));
}

}  // namespace vma_trace

using namespace vma_trace;

// The device's functions in `context->ops` are traced from now on. For devices that fill in an ibv_context
// themselves; declare it weak, and call it where it is not null, before the first request.
EXPORT void vma_trace_context(ibv_context* context) {
    start();
    registry().add_context(context);
}

// Undoes vma_trace_context(): the device's own functions are back, and the context and its objects are
// forgotten. Reports still hold their numbers.
EXPORT void vma_trace_context_gone(ibv_context* context) { registry().remove_context(context); }

EXPORT ibv_context* ibv_open_device(ibv_device* device) {
    start();
    auto* open = real<decltype(&ibv_open_device)>(kOpenDevice);
    if (open == nullptr) return errno = ENOSYS, nullptr;
    ibv_context* context = open(device);
    if (context != nullptr) registry().add_context(context);
    return context;
}

EXPORT ibv_context* ibv_import_device(int fd) {
    start();
    auto* import = real<decltype(&ibv_import_device)>(kImportDevice);
    if (import == nullptr) return errno = ENOSYS, nullptr;
    ibv_context* context = import(fd);
    if (context != nullptr) registry().add_context(context);
    return context;
}

EXPORT int ibv_close_device(ibv_context* context) {
    auto* close = real<decltype(&ibv_close_device)>(kCloseDevice);
    if (close == nullptr) return errno = ENOSYS, -1;
    registry().remove_context(context);
    return close(context);
}

EXPORT ibv_cq* ibv_create_cq(ibv_context* context, int entries, void* cq_context, ibv_comp_channel* channel,
                             int vector) {
    auto* create = real<CreateCq>(kCreateCq);
    if (create == nullptr) return errno = ENOSYS, nullptr;
    return create_cq(create, context, entries, cq_context, channel, vector);
}

EXPORT int ibv_destroy_cq(ibv_cq* cq) {
    auto* destroy = real<decltype(&ibv_destroy_cq)>(kDestroyCq);
    if (destroy == nullptr) return ENOSYS;
    const int error = destroy(cq);
    if (error == 0) registry().remove_cq(cq);
    return error;
}

// Some versions of verbs.h hide the function behind a macro of the same name.
#undef ibv_create_qp
EXPORT ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) {
    auto* create = real<decltype(&ibv_create_qp)>(kCreateQp);
    if (create == nullptr) return errno = ENOSYS, nullptr;
    ibv_qp* qp = create(pd, attr);
    if (qp != nullptr) registry().add_qp(qp, &attr->cap, attr->sq_sig_all != 0);
    return qp;
}

EXPORT int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
    auto* modify = real<decltype(&ibv_modify_qp)>(kModifyQp);
    if (modify == nullptr) return ENOSYS;
    const int error = modify(qp, attr, mask);
    if (error == 0 && (mask & IBV_QP_STATE) != 0 && attr->qp_state == IBV_QPS_RESET) {
        if (Qp* traced = registry().qp(qp)) {
            traced->send->forget_outstanding();
            if (!traced->shared_receives) traced->receive->forget_outstanding();
        }
    }
    return error;
}

EXPORT int ibv_destroy_qp(ibv_qp* qp) {
    auto* destroy = real<decltype(&ibv_destroy_qp)>(kDestroyQp);
    if (destroy == nullptr) return ENOSYS;
    const int error = destroy(qp);
    if (error == 0) registry().remove_qp(qp);
    return error;
}

EXPORT int ibv_destroy_srq(ibv_srq* srq) {
    auto* destroy = real<decltype(&ibv_destroy_srq)>(kDestroySrq);
    if (destroy == nullptr) return ENOSYS;
    const int error = destroy(srq);
    if (error == 0) registry().remove_srq(srq);
    return error;
}

// A program reaches the ibv_wr_ functions only through this one.
EXPORT ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* qp) {
    auto* convert = real<decltype(&ibv_qp_to_qp_ex)>(kQpToQpEx);
    if (convert == nullptr) return nullptr;
    ibv_qp_ex* extended = convert(qp);
    if (extended != nullptr) install(*extended);
    return extended;
}

namespace vma_trace {

#define ROW(function, version) \
    { #function, version, reinterpret_cast < void*>(function), nullptr }
// In the order of Index.
constinit Export exports[] = {
    ROW(ibv_open_device, "IBVERBS_1.1"),  ROW(ibv_import_device, "IBVERBS_1.10"),
    ROW(ibv_close_device, "IBVERBS_1.1"), ROW(ibv_create_cq, "IBVERBS_1.1"),
    ROW(ibv_destroy_cq, "IBVERBS_1.1"),   ROW(ibv_create_qp, "IBVERBS_1.1"),
    ROW(ibv_modify_qp, "IBVERBS_1.1"),    ROW(ibv_destroy_qp, "IBVERBS_1.1"),
    ROW(ibv_destroy_srq, "IBVERBS_1.1"),  ROW(ibv_qp_to_qp_ex, "IBVERBS_1.6"),
};
#undef ROW

Export* find_export(const char* name) noexcept {
    if (strncmp(name, "ibv_", 4) != 0) return nullptr;
    for (Export& row : exports)
        if (strcmp(row.name, name) == 0) return &row;
    return nullptr;
}

namespace {

__attribute__((destructor)) void at_end() { finish(); }

}  // namespace
}  // namespace vma_trace
