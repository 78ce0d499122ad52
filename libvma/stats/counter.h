// SPDX-License-Identifier: BSD-2-Clause
// Access to words that other processes read while this one writes (layout.h): relaxed, whole, without a lock.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>

namespace vma::stats {

template <class T>
inline T load(const T& word) noexcept {
    return std::atomic_ref<T>(const_cast<T&>(word)).load(std::memory_order_relaxed);
}
template <class T>
inline void store(T& word, std::type_identity_t<T> value) noexcept {
    std::atomic_ref<T>(word).store(value, std::memory_order_relaxed);
}
// Stores a word that, when it is not 0, says that the block is described: a reader that sees the word sees
// the description.
template <class T>
inline void publish(T& word, std::type_identity_t<T> value) noexcept {
    std::atomic_ref<T>(word).store(value, std::memory_order_release);
}
template <class T>
inline bool published(const T& word) noexcept {
    return std::atomic_ref<T>(const_cast<T&>(word)).load(std::memory_order_acquire) != 0;
}
// For callers that hold a lock which all writers of the word take.
inline void add(std::uint64_t& word, std::uint64_t n) noexcept { store(word, load(word) + n); }
inline void raise(std::uint64_t& word, std::uint64_t value) noexcept {
    if (value > load(word)) store(word, value);
}
// For callers without a common lock.
inline void add_shared(std::uint64_t& word, std::uint64_t n) noexcept {
    std::atomic_ref<std::uint64_t>(word).fetch_add(n, std::memory_order_relaxed);
}
inline std::uint64_t take(std::uint64_t& word) noexcept {
    return std::atomic_ref<std::uint64_t>(word).exchange(0, std::memory_order_relaxed);
}

// Writes a text, cut to the room, always with its terminating zero. Inside Describe, or before the first
// reader.
template <std::size_t N>
inline void put_text(char (&out)[N], std::string_view text) noexcept {
    const std::size_t n = text.copy(out, N - 1);
    std::memset(out + n, 0, N - n);
}
template <std::size_t N>
inline std::string_view text_of(const char (&text)[N]) noexcept {
    return {text, strnlen(text, N)};
}

// While it lives, only this thread writes the description of the block that `sequence` guards. Writers are
// rare and quick, so a thread waits for another writer, but not for ever. The other writer may be this
// thread, interrupted by a signal handler. False: the caller must not write; the next refresh updates the
// description.
class Describe {
  public:
    explicit Describe(std::uint32_t& sequence) noexcept : sequence_(sequence) {
        for (int tries = 0; tries < kTries; tries++) {
            std::uint32_t even = sequence_.load(std::memory_order_relaxed) & ~1u;
            if (sequence_.compare_exchange_weak(even, even + 1, std::memory_order_acquire,
                                                std::memory_order_relaxed)) {
                mine_ = true;
                // A reader must see the odd number before the writes that follow.
                std::atomic_thread_fence(std::memory_order_release);
                return;
            }
        }
    }
    ~Describe() {
        if (mine_) sequence_.fetch_add(1, std::memory_order_release);
    }
    Describe(const Describe&) = delete;
    Describe& operator=(const Describe&) = delete;
    explicit operator bool() const noexcept { return mine_; }

  private:
    static constexpr int kTries = 2000;
    std::atomic_ref<std::uint32_t> sequence_;
    bool mine_ = false;
};

}  // namespace vma::stats
