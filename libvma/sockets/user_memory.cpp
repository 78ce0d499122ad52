// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/user_memory.h"

#include <errno.h>
#include <sys/uio.h>

#include "libvma/os/raw_syscall.h"

namespace vma::sockets {
namespace {

constexpr unsigned kPageBits = 12;
constexpr std::size_t kEntries = 32;  // pages remembered for each kind; static thread storage is scarce in a preloaded library

struct Known {
    std::uintptr_t page[2][kEntries];  // page number + 1
    std::uintptr_t first[2], end[2];   // pages of the last long buffer, which would not fit above
};
thread_local Known t_known;

// Copies one byte of the page onto itself (written), or into a byte of ours (read), with the kernel's checks.
bool ask(std::uintptr_t address, unsigned kind) noexcept {
    char byte;
    iovec from{reinterpret_cast<void*>(address), 1};
    iovec to{kind == 1 ? reinterpret_cast<void*>(address) : &byte, 1};
    long pid = os::raw_syscall(SYS_getpid);
    long n = os::raw_syscall(SYS_process_vm_readv, pid, &to, 1L, &from, 1L, 0L);
    // Where the call itself is forbidden (seccomp), nothing can be said against the page.
    return n == 1 || (n != 0 && n != -EFAULT);
}

}  // namespace

bool UserMemory::check(const void* start, std::size_t length, unsigned kind) noexcept {
    if (length == 0) return true;
    const auto first = reinterpret_cast<std::uintptr_t>(start);
    if (first + length < first) return false;
    const std::uintptr_t from = first >> kPageBits, end = ((first + length - 1) >> kPageBits) + 1;
    if (from >= t_known.first[kind] && end <= t_known.end[kind]) return true;
    for (std::uintptr_t page = from; page < end; page++) {
        std::uintptr_t& known = t_known.page[kind][page % kEntries];
        if (known == page + 1) continue;
        std::uintptr_t address = page << kPageBits;
        if (!ask(address < first ? first : address, kind)) return false;
        known = page + 1;
    }
    if (end - from > kEntries / 2) {
        t_known.first[kind] = from;
        t_known.end[kind] = end;
    }
    return true;
}

}  // namespace vma::sockets
