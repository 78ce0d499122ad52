// SPDX-License-Identifier: BSD-2-Clause
// lwIP's memory: PCBs, segments, pbufs and the buffers of control segments.
//
// Blocks of a few sizes, each with a free list per thread and one for all, carved out of larger mappings. In
// steady state a block costs a few instructions, no lock and no malloc(): the program may call us from a
// signal handler that interrupted its own malloc(), and an ACK must not wait for a heap. The price: what was
// once taken stays with the process for later connections. A thread's free blocks go back to all when it
// ends. Under AddressSanitizer every block is a malloc() of its own, so that it sees wrong accesses.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace vma::tcp::lwip {

// Under AddressSanitizer false: each block is a malloc() of its own.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kPooled = false;
#else
inline constexpr bool kPooled = true;
#endif

// A block of at least `size` bytes, aligned to 16; null when there is none (then errno is as it was). Blocks
// above kLargestBlock come from malloc().
inline constexpr std::size_t kLargestBlock = 4096;
void* allocate(std::size_t size) noexcept;
// What a block of mem_malloc() has in front.
inline constexpr std::size_t kHeaderBytes = 16;
// Bytes from `memory`, which mem_malloc() gave (as pbufs of type PBUF_RAM are), to the end of its block: all
// of them may be used.
std::size_t room_of(const void* memory) noexcept;
// Gives back a block of allocate(size); `size` is the same number. Any thread may do so.
void deallocate(void* block, std::size_t size) noexcept;

struct MemoryUse {
    std::size_t used;  // bytes in blocks that are handed out; a thread's last 4 KiB of changes may be missing
    std::size_t mapped;  // bytes taken from the system for blocks of any kind, used or free
};
MemoryUse memory_use() noexcept;

// How near all of it is to its bounds (the kernel's tcp_mem). Until set_bounds() there are none. `pressure`
// begins above the second bound, and ends at the first; `over`: above the third.
enum class MemoryLevel : std::uint8_t { none, pressure, over };
void set_bounds(std::size_t low, std::size_t pressure, std::size_t high) noexcept;
namespace internal {
inline constinit std::atomic<MemoryLevel> g_level{MemoryLevel::none};
}
inline MemoryLevel memory_level() noexcept { return internal::g_level.load(std::memory_order_relaxed); }
std::size_t memory_bound() noexcept;        // the third
std::uint64_t memory_pressures() noexcept;  // how often it began

// For blocks of other kinds: counts bytes, which may be negative, with the others.
void count_used(std::int64_t bytes) noexcept;
void count_mapped(std::int64_t bytes) noexcept;

// Gives the calling thread's free blocks to all, and its count to memory_use().
void flush_thread_cache() noexcept;

}  // namespace vma::tcp::lwip
