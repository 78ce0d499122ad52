// SPDX-License-Identifier: BSD-2-Clause
// How the fuzz targets take their input apart, and how they say that something is wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>

namespace fuzz {

// Numbers from the front of the input, zeros when it is used up; rest() is what follows them.
class Input {
  public:
    Input(const std::uint8_t* data, std::size_t size) : left_(data, size) {}
    template <class T>
    T take() {
        T value{};
        std::size_t n = left_.size() < sizeof value ? left_.size() : sizeof value;
        if (n != 0) memcpy(&value, left_.data(), n);
        left_ = left_.subspan(n);
        return value;
    }
    std::span<const std::uint8_t> rest() const { return left_; }

  private:
    std::span<const std::uint8_t> left_;
};

// A copy of exactly these bytes, so that the address sanitizer sees one byte too far.
class Exact {
  public:
    explicit Exact(std::span<const std::uint8_t> bytes)
        : memory_(new std::uint8_t[bytes.size()]), size_(bytes.size()) {
        if (size_ != 0) memcpy(memory_.get(), bytes.data(), size_);
    }
    std::uint8_t* data() { return memory_.get(); }
    std::span<const std::uint8_t> span() const { return {memory_.get(), size_}; }

  private:
    std::unique_ptr<std::uint8_t[]> memory_;
    std::size_t size_;
};

#define FUZZ_CHECK(condition)                                                         \
    do {                                                                              \
        if (!(condition)) {                                                           \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                  \
        }                                                                             \
    } while (0)

}  // namespace fuzz

// Most of an input's time would be the sanitizer's: its record of who allocated what, and fresh pages for
// what it keeps of freed memory. An address that was freed is known for the last 16 MB, and the innermost
// frames are those that matter.
extern "C" [[gnu::used]] inline const char* __asan_default_options() {
    return "malloc_context_size=3:quarantine_size_mb=16:thread_local_quarantine_size_kb=256";
}
