// SPDX-License-Identifier: BSD-2-Clause
// State of the process that a forked child must not keep: locks that another thread of the parent may hold,
// counts of threads that the child lacks, numbers of descriptors that the child has closed.
//
// The file that owns such state says so beside it:
//
//     void renew() noexcept { new (&g_lock) Lock; g_count = 0; }
//     VMA_RENEW_IN_CHILD(renew);
//
// runtime::run_fork_child() calls all of these functions, in no particular order, before the hooks that
// at_fork() registered. By then the library's descriptors are closed and the internal thread is forgotten.
// The functions run in the child of a program with threads: they neither allocate nor wait, and they call
// nothing whose state another renewal renews.
#pragma once

namespace vma::runtime {

struct Renewal {
    void (*renew)() noexcept;
};

}  // namespace vma::runtime

#define VMA_RENEWAL_NAME_(number) vma_renewal_##number
#define VMA_RENEWAL_NAME(number) VMA_RENEWAL_NAME_(number)
// The linker collects these objects into one array: no file has to know them all.
#define VMA_RENEW_IN_CHILD(function)                                                                       \
    [[gnu::section("vma_renewals"), gnu::used]] static constinit ::vma::runtime::Renewal VMA_RENEWAL_NAME( \
        __COUNTER__) {                                                                                     \
        &function                                                                                          \
    }
