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
    static bool readable(const void* start, std::size_t length) noexcept { return check(start, length, 0); }
    static bool writable(void* start, std::size_t length) noexcept { return check(start, length, 1); }

  private:
    static bool check(const void* start, std::size_t length, unsigned kind) noexcept;
};

}  // namespace vma::sockets
