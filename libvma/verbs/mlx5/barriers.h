// SPDX-License-Identifier: BSD-2-Clause
// The order in which an adapter on the bus sees the processor's writes, and the processor sees the adapter's.
//
// Three parties need an order. The adapter reads and writes ordinary memory by DMA (queues, doorbell records,
// frames). The adapter's registers are mapped write-combining (BlueFlame and the send doorbell). The compiler
// may reorder accesses to both. x86 keeps ordinary stores in order among themselves and loads in order among
// themselves, so most of these barriers only hold the compiler there. arm64 keeps no order by itself. "osh"
// (outer shareable) is the domain that holds devices on the bus.
#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace vma::verbs::mlx5 {

// Between filling a request (and its frame) and the doorbell record that announces it: an adapter that sees
// the record sees the request. Both are ordinary memory.
inline void before_doorbell_record() noexcept {
#if defined(__x86_64__)
    asm volatile("" ::: "memory");
#elif defined(__aarch64__)
    asm volatile("dmb oshst" ::: "memory");
#else
#error "no memory barriers for this processor"
#endif
}

// Between the doorbell record and the doorbell: the adapter may read the record as soon as it gets the
// doorbell. Stores to write-combining memory may overtake ordinary ones even on x86. On arm64 a barrier of
// order alone (dmb) does not hold between ordinary memory and a bus transaction from a write buffer. dsb
// waits until the stores are done.
inline void before_register() noexcept {
#if defined(__x86_64__)
    asm volatile("sfence" ::: "memory");
#else
    asm volatile("dsb st" ::: "memory");
#endif
}

// After a doorbell: sends the doorbell now, because a write-combining buffer may wait for neighbours. Keeps
// the next doorbell apart, which could otherwise merge with this one or overtake it.
inline void after_register() noexcept { before_register(); }

// Between seeing a written completion (its owner bit) and reading the rest of it, and the frame. The adapter
// writes the owner bit last, so the processor must not read ahead of it.
inline void after_owner_bit() noexcept {
#if defined(__x86_64__)
    asm volatile("" ::: "memory");
#else
    asm volatile("dmb oshld" ::: "memory");
#endif
}

// Between reading completions and returning their entries by the consumer index: the adapter may overwrite
// them from then on. (On x86 no store overtakes an earlier load; dmb ld orders loads against later stores as
// well.)
inline void before_consumer_index() noexcept { after_owner_bit(); }

// An 8-byte store to a register: one bus transaction.
inline void write_register(void* reg, std::uint64_t value) noexcept {
    *static_cast<volatile std::uint64_t*>(reg) = value;
}

// Writes 64 bytes to a write-combining register, in rising order, each byte once. memcpy() guarantees
// neither.
inline void write_block(void* reg, const void* block) noexcept {
#if defined(__SSE2__)
    auto* to = static_cast<__m128i*>(reg);
    auto* from = static_cast<const __m128i*>(block);
    const __m128i a = _mm_load_si128(from), b = _mm_load_si128(from + 1);
    const __m128i c = _mm_load_si128(from + 2), d = _mm_load_si128(from + 3);
    asm volatile("movaps %1, %0" : "=m"(to[0]) : "x"(a));
    asm volatile("movaps %1, %0" : "=m"(to[1]) : "x"(b));
    asm volatile("movaps %1, %0" : "=m"(to[2]) : "x"(c));
    asm volatile("movaps %1, %0" : "=m"(to[3]) : "x"(d));
#else
    auto* to = static_cast<volatile std::uint64_t*>(reg);
    auto* from = static_cast<const std::uint64_t*>(block);
    for (int i = 0; i < 8; i++) to[i] = from[i];
#endif
}

}  // namespace vma::verbs::mlx5
