// SPDX-License-Identifier: BSD-2-Clause
// The library refuses io_uring: see guard.h. Programs reach it by syscall(), which syscalls.def decodes, or
// by liburing, whose own functions contain the instruction. So this file interposes those functions of
// liburing that begin with a ring. The library does not see a statically linked liburing, or the instruction
// in the program's own code.
#include <cstddef>

#include "libvma/preload/guard.h"
#include "libvma/runtime/log.h"

using namespace vma;
using namespace vma::preload;

namespace vma::preload {

bool refuses_io_uring() noexcept {
    if (runtime::inert()) return false;
    log::once(log::Level::debug, "io_uring is refused: it reaches sockets past this library");
    return true;
}

}  // namespace vma::preload

namespace {

// In a set-uid program the library does nothing, so liburing's own function has to answer.
template <class... Args>
int begin_ring(const char* name, Args... args) noexcept {
    if (refuses_io_uring()) return -ENOSYS;
    auto fn = reinterpret_cast<int (*)(Args...)>(os::resolve_optional(name));
    return fn != nullptr ? fn(args...) : -ENOSYS;
}

}  // namespace

VMA_EXPORT int io_uring_setup(unsigned entries, void* params) noexcept {
    return begin_ring("io_uring_setup", entries, params);
}
VMA_EXPORT int io_uring_queue_init(unsigned entries, void* ring, unsigned flags) noexcept {
    return begin_ring("io_uring_queue_init", entries, ring, flags);
}
VMA_EXPORT int io_uring_queue_init_params(unsigned entries, void* ring, void* params) noexcept {
    return begin_ring("io_uring_queue_init_params", entries, ring, params);
}
VMA_EXPORT int io_uring_queue_init_mem(unsigned entries, void* ring, void* params, void* memory,
                                       size_t size) noexcept {
    return begin_ring("io_uring_queue_init_mem", entries, ring, params, memory, size);
}
