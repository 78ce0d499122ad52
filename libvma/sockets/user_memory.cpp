// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/user_memory.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/uio.h>

#include <algorithm>

#include "libvma/os/raw_syscall.h"
#include "libvma/ring/packet_regions.h"

namespace vma::sockets {
namespace {

constexpr std::size_t kAtOnce = 64;  // pages a system call asks about
constexpr std::size_t kLong = 8;     // a buffer of more pages is remembered as a range

// process_vm_readv(2) refuses memory that has no pages of the system, or hides them: a device's,
// memfd_secret(2)'s. There two calls tell that read and write as the processor does, and without effect: a
// signal mask that is refused for another reason, and a futex operation that adds no bit (it is atomic, so it
// loses no other thread's write).
[[gnu::cold]] bool touch(std::uintptr_t address, unsigned kind) noexcept {
    const std::uintptr_t word = std::max<std::uintptr_t>(address & ~std::uintptr_t{7}, 8);  // 0 is "none"
    if (kind == 0) {
        constexpr int kNoSuchAction = -1;
        return os::raw_syscall(SYS_rt_sigprocmask, kNoSuchAction, word, 0L, sizeof(std::uint64_t)) != -EFAULT;
    }
    std::uint32_t nobody = 0;
    return os::raw_syscall(SYS_futex, &nobody, FUTEX_WAKE_OP_PRIVATE, 0L, 0L, word,
                           FUTEX_OP(FUTEX_OP_OR, 0, FUTEX_OP_CMP_EQ, 0)) != -EFAULT;
}

// A packet that the program keeps (the extra API). It is there as long as the process, but not in a forked
// child, so nothing is remembered.
bool in_packet(const void* start, std::size_t length) noexcept {
    return ring::PacketRegions::hold(start, length);
}

}  // namespace

thread_local constinit UserMemory::Known UserMemory::known_{};

// Copies a byte of each page onto itself (written), or into a local byte (read), with the kernel's checks.
// The bytes are the first ones of the pages [page, end) that are not before `start`.
bool UserMemory::ask(std::uintptr_t page, std::uintptr_t end, std::uintptr_t start, unsigned kind) noexcept {
    char byte;
    iovec from[kAtOnce], to[kAtOnce];
    const long pid = os::raw_syscall(SYS_getpid);
    while (page < end) {
        std::size_t n = 0;
        for (; n < kAtOnce && page < end; n++, page++) {
            const std::uintptr_t address = std::max(page << kPageBits, start);
            from[n] = {reinterpret_cast<void*>(address), 1};
            to[n] = kind == 1 ? from[n] : iovec{&byte, 1};
        }
        const long done = os::raw_syscall(SYS_process_vm_readv, pid, to, n, from, n, 0L);
        // Where the call itself is forbidden (seccomp), nothing can be said against the pages.
        if (done < 0 && done != -EFAULT) continue;
        for (auto i = static_cast<std::size_t>(std::max(done, 0L)); i < n; i++)
            if (!touch(reinterpret_cast<std::uintptr_t>(from[i].iov_base), kind)) return false;
    }
    return true;
}

bool UserMemory::in_known_range(unsigned kind, std::uintptr_t from, std::uintptr_t end) noexcept {
    for (const Range& r : known_.range[kind])
        if (from >= r.first && end <= r.end) return true;
    return false;
}

// Buffers that lie side by side are one range, so that a pool of them needs no more.
void UserMemory::remember_range(unsigned kind, std::uintptr_t from, std::uintptr_t end) noexcept {
    for (Range& r : known_.range[kind]) {
        if (end < r.first || from > r.end) continue;
        r = {std::min(from, r.first), std::max(end, r.end)};
        return;
    }
    known_.range[kind][known_.oldest[kind]++ % kRanges] = {from, end};
}

bool UserMemory::check(const void* start, std::size_t length, unsigned kind) noexcept {
    if (length == 0) return true;
    const auto first = reinterpret_cast<std::uintptr_t>(start);
    if (first + length < first) return false;
    const std::uintptr_t from = first >> kPageBits, end = ((first + length - 1) >> kPageBits) + 1;
    if (end - from > kLong) {
        if (in_known_range(kind, from, end) || in_packet(start, length)) return true;
        if (!ask(from, end, first, kind)) return false;
        remember_range(kind, from, end);
        return true;
    }
    for (std::uintptr_t page = from; page < end; page++) {
        std::uintptr_t& entry = known_.page[kind][page % kEntries];
        if (entry == page + 1) continue;
        if (in_packet(start, length)) return true;
        if (!in_known_range(kind, page, page + 1) && !ask(page, page + 1, first, kind)) return false;
        if (entry != 0) remember_range(kind, entry - 1, entry);
        entry = page + 1;
    }
    return true;
}

}  // namespace vma::sockets
