// SPDX-License-Identifier: BSD-2-Clause
// Loads and unloads the library. A program that opens no socket pays for this file's code only. The library
// starts with the first offloadable socket, and works before this constructor has run.
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
    // Registered before the program's functions, so that it runs after them.
    at_quick_exit(before_end);
    runtime::fatal_signals::set_end(before_end);
    // In the child, another thread's vfork does not continue.
    runtime::at_fork({.child = [] { g_vforks.store(0, std::memory_order_relaxed); }});
}

__attribute__((destructor)) void unloading() noexcept { before_end(); }

}  // namespace

// For programs that opened the library with dlopen and end without exit handlers: sends all held-back frames
// now.
VMA_EXPORT void vma_exit() noexcept { flush_all(); }
