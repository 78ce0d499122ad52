// SPDX-License-Identifier: BSD-2-Clause
// See lookup.h.
//
// The dlsym() and dlvsym() here have glibc's newest version of these names. The tracer itself calls the older
// version of dlvsym(), which is libc's. dlsym(RTLD_NEXT) means the object after the caller's, and libc tells
// the caller by the return address. So for all names that exports.cpp lacks, the stubs jump and leave nothing
// on the stack.
#include "tools/vma_trace/lookup.h"

#include <string.h>

#include "tools/vma_trace/exports.h"

// NOLINTBEGIN
asm(".symver vma_trace_libc_dlvsym, dlvsym@GLIBC_2.2.5");

extern "C" {
void* vma_trace_libc_dlvsym(void* handle, const char* name, const char* version);

// Where the stubs jump to.
__attribute__((visibility("hidden"))) void* vma_trace_libc_lookups[2];

__attribute__((visibility("hidden"))) bool vma_trace_wants(const char* name);
__attribute__((visibility("hidden"))) void* vma_trace_dlsym(void* handle, const char* name);
__attribute__((visibility("hidden"))) void* vma_trace_dlvsym(void* handle, const char* name,
                                                             const char* version);
}

asm(R"(
        .text
        .macro  lookup name, index
        .globl  \name
        .type   \name, @function
        .p2align 4
\name:
        .cfi_startproc
        endbr64
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        pushq   %rsi
        .cfi_adjust_cfa_offset 8
        pushq   %rdx
        .cfi_adjust_cfa_offset 8
        movq    %rsi, %rdi
        call    vma_trace_wants
        popq    %rdx
        .cfi_adjust_cfa_offset -8
        popq    %rsi
        .cfi_adjust_cfa_offset -8
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        testb   %al, %al
        jne     vma_trace_\name
        jmp     *(vma_trace_libc_lookups + 8 * \index)(%rip)
        .cfi_endproc
        .size   \name, . - \name
        .endm
        lookup  dlsym, 0
        lookup  dlvsym, 1
        .purgem lookup
)");
// NOLINTEND

namespace {

using namespace vma_trace;

void* libc_lookup(int index) noexcept {
    return __atomic_load_n(&vma_trace_libc_lookups[index], __ATOMIC_ACQUIRE);
}

// The function that the program gets for an exported name, if the real function exists.
void* exchange_for_ours(Export& row, void* real) noexcept {
    if (real == nullptr || real == row.ours) return real;
    void* unknown = nullptr;
    __atomic_compare_exchange_n(&row.real, &unknown, real, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return row.ours;
}

}  // namespace

void* vma_trace::real_dlvsym(void* handle, const char* name, const char* version) noexcept {
    return vma_trace_libc_dlvsym(handle, name, version);
}

bool vma_trace_wants(const char* name) {
    // Others may look up names before our constructors have run. Handle -1 is RTLD_NEXT: what comes after us
    // is libc.
    if (libc_lookup(0) == nullptr) {
        void* const next = reinterpret_cast<void*>(-1);
        __atomic_store_n(&vma_trace_libc_lookups[1], real_dlvsym(next, "dlvsym", "GLIBC_2.34"),
                         __ATOMIC_RELEASE);
        __atomic_store_n(&vma_trace_libc_lookups[0], real_dlvsym(next, "dlsym", "GLIBC_2.34"),
                         __ATOMIC_RELEASE);
    }
    return name != nullptr && find_export(name) != nullptr;
}

void* vma_trace_dlsym(void* handle, const char* name) {
    void* real = reinterpret_cast<void* (*)(void*, const char*)>(libc_lookup(0))(handle, name);
    return exchange_for_ours(*find_export(name), real);
}

void* vma_trace_dlvsym(void* handle, const char* name, const char* version) {
    void* real =
        reinterpret_cast<void* (*)(void*, const char*, const char*)>(libc_lookup(1))(handle, name, version);
    Export& row = *find_export(name);
    return strcmp(version, row.version) == 0 ? exchange_for_ours(row, real) : real;
}
