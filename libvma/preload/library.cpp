// SPDX-License-Identifier: BSD-2-Clause
// Loading and unloading. A program that opens no socket pays for what stands here and nothing else; the
// library starts when the first socket wants it, and works before this constructor has run.
#include <stdlib.h>

#include "libvma/preload/guard.h"
#include "libvma/runtime/fatal_signals.h"
#include "libvma/runtime/log.h"

using namespace vma;
using namespace vma::preload;

namespace {

__attribute__((constructor)) void loaded() noexcept {
    if (runtime::inert()) return;
    log::remember_stderr();
    // Registered before the program's own, so that it runs after them.
    at_quick_exit(before_end);
    runtime::fatal_signals::set_end(before_end);
    // A vfork of another thread does not go on in the child.
    runtime::at_fork({.child = [] { g_vforks.store(0, std::memory_order_relaxed); }});
}

__attribute__((destructor)) void unloading() noexcept { before_end(); }

}  // namespace

// For programs that opened the library with dlopen and end without exit handlers: everything sent leaves now.
VMA_EXPORT void vma_exit() noexcept { flush_all(); }
