// SPDX-License-Identifier: BSD-2-Clause
// The sum is one's complement, so any wider word may be added as long as every carry comes back in: 2^64 = 1
// modulo 2^16 - 1. Most data is short; it is added 64 bits at a time with the processor's carry chain. From
// kWide bytes on, a processor with AVX2 adds eight 32-bit words at a time into 64-bit lanes, which cannot
// overflow before 2^32 steps. A plain branch on a remembered CPUID answer makes the choice. An ifunc could
// not: ifunc resolvers of a preloaded library run before libc is relocated.
#include "libvma/net/checksum.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#include <atomic>
#endif

namespace vma::net {
namespace {

template <class T>
T load(const std::uint8_t* p) noexcept {
    T value;
    memcpy(&value, p, sizeof value);
    return value;
}

template <class T>
T copy_word(std::uint8_t* to, const std::uint8_t* from) noexcept {
    auto value = load<T>(from);
    memcpy(to, &value, sizeof value);
    return value;
}

// Adds `value` to `sum`, with the carry brought back in.
std::uint64_t add(std::uint64_t sum, std::uint64_t value) noexcept {
    std::uint64_t result;
    return __builtin_add_overflow(sum, value, &result) ? result + 1 : result;
}

// The last up to seven bytes as one word in memory order, zero-padded.
std::uint64_t tail(const std::uint8_t* p, std::size_t length) noexcept {
    std::uint64_t word = 0;
    unsigned shift = 0;
    if (length & 4) {
        word = load<std::uint32_t>(p);
        p += 4;
        shift = 32;
    }
    if (length & 2) {
        word |= static_cast<std::uint64_t>(load<std::uint16_t>(p)) << shift;
        p += 2;
        shift += 16;
    }
    if (length & 1) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        word |= static_cast<std::uint64_t>(*p) << shift;
#else
        word |= static_cast<std::uint64_t>(*p) << (shift + 8);
#endif
    }
    return word;
}

std::uint64_t add_words(const std::uint8_t* p, std::size_t length, std::uint64_t sum) noexcept {
#if defined(__x86_64__)
    // The compiler breaks a chain of carries into compare and add; the processor does the same in one
    // instruction a word.
    for (; length >= 64; p += 64, length -= 64) {
        asm("addq 0(%1), %0\n\t"
            "adcq 8(%1), %0\n\t"
            "adcq 16(%1), %0\n\t"
            "adcq 24(%1), %0\n\t"
            "adcq 32(%1), %0\n\t"
            "adcq 40(%1), %0\n\t"
            "adcq 48(%1), %0\n\t"
            "adcq 56(%1), %0\n\t"
            "adcq $0, %0"
            : "+r"(sum)
            : "r"(p), "m"(*reinterpret_cast<const std::uint8_t(*)[64]>(p))
            : "cc");
    }
    if (length & 32) {
        asm("addq 0(%1), %0\n\t"
            "adcq 8(%1), %0\n\t"
            "adcq 16(%1), %0\n\t"
            "adcq 24(%1), %0\n\t"
            "adcq $0, %0"
            : "+r"(sum)
            : "r"(p), "m"(*reinterpret_cast<const std::uint8_t(*)[32]>(p))
            : "cc");
        p += 32;
        length -= 32;
    }
#endif
    for (; length >= 8; p += 8, length -= 8) sum = add(sum, load<std::uint64_t>(p));
    return length == 0 ? sum : add(sum, tail(p, length));
}

#if defined(__x86_64__)

// Below this size the set-up and the final addition across lanes cost more than they save (measured: equal
// near 128).
constexpr std::size_t kWide = 256;

// __builtin_cpu_supports() would bring a constructor of libgcc into the library: a dozen CPUID instructions
// in each process. In a virtual machine every CPUID leaves the guest, which takes as long as a few system
// calls.
bool ask_for_avx2() noexcept {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_OSXSAVE) == 0) return false;
    unsigned low = 0, high = 0;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    constexpr unsigned kVectorState = 6;  // the operating system keeps XMM and YMM registers
    return (low & kVectorState) == kVectorState && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 &&
           (b & bit_AVX2) != 0;
}

bool have_avx2() noexcept {
    static std::atomic<int> known{-1};
    int answer = known.load(std::memory_order_relaxed);
    if (answer < 0) [[unlikely]] {
        answer = ask_for_avx2() ? 1 : 0;
        known.store(answer, std::memory_order_relaxed);
    }
    return answer != 0;
}

// Sums 64-byte blocks, and copies them to `to` with Copy. `length` is a multiple of 64.
template <bool Copy>
[[gnu::target("avx2")]] std::uint64_t add_blocks_avx2(std::uint8_t* to, const std::uint8_t* p,
                                                      std::size_t length, std::uint64_t sum) noexcept {
    const __m256i low_half = _mm256_set1_epi64x(0xffffffff);
    __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
    for (std::size_t i = 0; i < length; i += 64) {
        __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + i));
        __m256i y = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + i + 32));
        if constexpr (Copy) {
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), x);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i + 32), y);
        }
        a = _mm256_add_epi64(a, _mm256_and_si256(x, low_half));
        b = _mm256_add_epi64(b, _mm256_srli_epi64(x, 32));
        c = _mm256_add_epi64(c, _mm256_and_si256(y, low_half));
        d = _mm256_add_epi64(d, _mm256_srli_epi64(y, 32));
    }
    // Each lane is below 2^32 times the number of blocks, so these additions do not overflow either.
    a = _mm256_add_epi64(_mm256_add_epi64(a, b), _mm256_add_epi64(c, d));
    __m128i half = _mm_add_epi64(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    auto lanes = static_cast<std::uint64_t>(_mm_extract_epi64(half, 0)) +
                 static_cast<std::uint64_t>(_mm_extract_epi64(half, 1));
    return add(sum, lanes);
}

#endif

}  // namespace

std::uint64_t checksum_add(const void* data, std::size_t length, std::uint64_t sum) noexcept {
    const auto* p = static_cast<const std::uint8_t*>(data);
#if defined(__x86_64__)
    if (length >= kWide && have_avx2()) {
        std::size_t blocks = length & ~std::size_t{63};
        sum = add_blocks_avx2<false>(nullptr, p, blocks, sum);
        p += blocks;
        length -= blocks;
    }
#endif
    return add_words(p, length, sum);
}

std::uint64_t checksum_copy(void* to, const void* from, std::size_t length, std::uint64_t sum) noexcept {
    const auto* p = static_cast<const std::uint8_t*>(from);
    auto* q = static_cast<std::uint8_t*>(to);
#if defined(__x86_64__)
    if (length >= kWide && have_avx2()) {
        std::size_t blocks = length & ~std::size_t{63};
        sum = add_blocks_avx2<true>(q, p, blocks, sum);
        p += blocks;
        q += blocks;
        length -= blocks;
    }
#endif
    // Each word is read once, so the sum is that of the copy even if another thread changes the source
    // meanwhile. Summing the copy afterwards would wait for the copy's stores.
    std::uint64_t second = 0;
    for (; length >= 16; p += 16, q += 16, length -= 16) {
        auto x = copy_word<std::uint64_t>(q, p), y = copy_word<std::uint64_t>(q + 8, p + 8);
        sum = add(sum, x);
        second = add(second, y);
    }
    if (length & 8) {
        sum = add(sum, copy_word<std::uint64_t>(q, p));
        p += 8;
        q += 8;
    }
    // The rest fits 64 bits without overflow: at most 2^32 + 2^16 + 2^16.
    std::uint64_t rest = 0;
    if (length & 4) {
        rest = copy_word<std::uint32_t>(q, p);
        p += 4;
        q += 4;
    }
    if (length & 2) {
        rest += copy_word<std::uint16_t>(q, p);
        p += 2;
        q += 2;
    }
    if (length & 1) rest += tail(&(*q = *p), 1);
    return add(add(sum, second), rest);
}

}  // namespace vma::net
