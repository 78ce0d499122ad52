// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/os/calls.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#include "libvma/os/raw_syscall.h"

namespace vma::os {

#define VMA_SYM(ret, name, params, args) std::atomic<detail::name##_fn> detail::name##_ptr{nullptr};
#include "libvma/os/symbols.def"
#undef VMA_SYM

void* resolve_optional(const char* name) noexcept {
    int saved = errno;
    void* fn = dlsym(RTLD_NEXT, name);
    errno = saved;
    return fn;
}

void* resolve(const char* name) noexcept {
    void* fn = resolve_optional(name);
    if (fn == nullptr) {
        // The caller cannot go on without the function, and a null call would hide the cause.
        const char text[] = "VMA PANIC: libc has no function ";
        raw_syscall(SYS_write, STDERR_FILENO, text, sizeof(text) - 1);
        raw_syscall(SYS_write, STDERR_FILENO, name, strlen(name));
        raw_syscall(SYS_write, STDERR_FILENO, "\n", 1);
        abort();
    }
    return fn;
}

}  // namespace vma::os
