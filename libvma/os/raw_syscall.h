// SPDX-License-Identifier: BSD-2-Clause
// System calls without libc, for the library's own work (kicks, futexes, its log). They are no cancellation
// points, leave errno alone, and bypass the syscall() that this library exports. They return what the kernel
// returns: -errno on failure.
#pragma once

#include <sys/syscall.h>

namespace vma::os {

template <class A = long, class B = long, class C = long, class D = long, class E = long, class F = long>
inline long raw_syscall(long number, A a = {}, B b = {}, C c = {}, D d = {}, E e = {}, F f = {}) noexcept {
#if defined(__x86_64__)
    long result;
    register long r10 asm("r10") = (long)d;
    register long r8 asm("r8") = (long)e;
    register long r9 asm("r9") = (long)f;
    asm volatile("syscall"
                 : "=a"(result)
                 : "a"(number), "D"((long)a), "S"((long)b), "d"((long)c), "r"(r10), "r"(r8), "r"(r9)
                 : "rcx", "r11", "memory");
    return result;
#elif defined(__aarch64__)
    register long x8 asm("x8") = number;
    register long x0 asm("x0") = (long)a;
    register long x1 asm("x1") = (long)b;
    register long x2 asm("x2") = (long)c;
    register long x3 asm("x3") = (long)d;
    register long x4 asm("x4") = (long)e;
    register long x5 asm("x5") = (long)f;
    asm volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
#else
#error "libvma supports x86-64 and aarch64"
#endif
}

}  // namespace vma::os
