// SPDX-License-Identifier: BSD-2-Clause
// Bad buffer pointers: EFAULT, as from the kernel, not a fault inside the library.
//
// The kernel finds out while it copies. We would have to ask it before each copy, so the answer is remembered
// for each thread and page: a program uses the same buffers again and again. What is remembered is not
// forgotten when the program unmaps the page; using such a buffer afterwards faults, which is the price of
// not asking.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vma::sockets {

class UserMemory {
  public:
    // Can all `length` bytes be read (written)? Some loads when the pages are known, else a system call.
    [[gnu::always_inline]] static bool readable(const void* start, std::size_t length) noexcept {
        return on_known_page(start, length, 0) || check(start, length, 0);
    }
    [[gnu::always_inline]] static bool writable(void* start, std::size_t length) noexcept {
        return on_known_page(start, length, 1) || check(start, length, 1);
    }

  private:
    static constexpr unsigned kPageBits = 12;
    // Pages that a thread remembers for reading and for writing. The tables are small because a library that
    // dlopen(3) loads finds 1,664 bytes of static thread storage at most, for all it has (glibc).
    static constexpr std::size_t kEntries = 16;
    // Long buffers, which would not fit there, and pages whose entry another page took: programs like buffers
    // whose distance is a power of two, and such pages share an entry.
    static constexpr std::size_t kRanges = 8;

    struct Range {
        std::uintptr_t first, end;  // pages
    };
    struct Known {
        std::uintptr_t page[2][kEntries];  // page number + 1
        Range range[2][kRanges];
        std::uint8_t oldest[2];  // the next range to be forgotten
    };

    // Most buffers of a call lie on one page, which the call before used, too.
    static bool on_known_page(const void* start, std::size_t length, unsigned kind) noexcept {
        const auto first = reinterpret_cast<std::uintptr_t>(start);
        const std::uintptr_t page = first >> kPageBits, before = first & ((1u << kPageBits) - 1);
        return length - 1 < (1u << kPageBits) - before &&  // neither none nor more than the page has
               known_.page[kind][page % kEntries] == page + 1;
    }
    static bool check(const void* start, std::size_t length, unsigned kind) noexcept;
    static bool ask(std::uintptr_t page, std::uintptr_t end, std::uintptr_t start, unsigned kind) noexcept;
    static bool in_known_range(unsigned kind, std::uintptr_t from, std::uintptr_t end) noexcept;
    static void remember_range(unsigned kind, std::uintptr_t from, std::uintptr_t end) noexcept;

    static thread_local constinit Known known_;
};

}  // namespace vma::sockets
