// SPDX-License-Identifier: BSD-2-Clause
// The real libc functions behind the ones this library interposes.
//
// The library reaches the kernel as the program would without the library: through libc. So cancellation
// points, errno and libc's own bookkeeping stay as they are. One table, symbols.def, names each function
// once; a row gives a pointer, its resolution on first use and an inline call. Resolution is lazy because the
// program may call an interposed function before the library's constructor has run: from another library's
// constructor, or from malloc.
#pragma once

#include <atomic>

#include "libvma/os/libc_types.h"

namespace vma::os {

// The next definition of `name` after this library in the order of symbol search. Aborts with a message if
// libc has none. Async-signal-safe only after the first call for a given name.
void* resolve(const char* name) noexcept;

// Same, but returns nullptr where libc has no function of that name (newer or older glibc).
void* resolve_optional(const char* name) noexcept;

#define VMA_SYM(ret, name, params, args)                              \
    namespace detail {                                                \
    using name##_fn = ret(*) params;                                  \
    extern std::atomic<name##_fn> name##_ptr;                         \
    }                                                                 \
    inline ret name params {                                          \
        auto fn = detail::name##_ptr.load(std::memory_order_relaxed); \
        if (__builtin_expect(fn == nullptr, 0)) {                     \
            fn = reinterpret_cast<detail::name##_fn>(resolve(#name)); \
            detail::name##_ptr.store(fn, std::memory_order_relaxed);  \
        }                                                             \
        return fn args;                                               \
    }
#include "libvma/os/symbols.def"
#undef VMA_SYM

}  // namespace vma::os
