// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/message.h"

#include <algorithm>

namespace vma_perf {
namespace {

// The 64-bit words of the pattern, by position; splitmix64's steps, so neighbouring numbers share nothing.
struct Words {
    explicit Words(const Header& header) noexcept
        : state(header.sequence * 0x9e3779b97f4a7c15u + header.connection * 0xbf58476d1ce4e5b9u +
                header.length) {}
    std::uint64_t next() noexcept {
        std::uint64_t z = state += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    std::uint64_t state;
};

}  // namespace

void fill_pattern(std::span<std::byte> message) noexcept {
    Words words(read_header(message.data()));
    for (std::size_t at = sizeof(Header); at < message.size(); at += 8) {
        const std::uint64_t word = words.next();
        memcpy(message.data() + at, &word, std::min<std::size_t>(8, message.size() - at));
    }
}

bool has_pattern(std::span<const std::byte> message) noexcept {
    Words words(read_header(message.data()));
    for (std::size_t at = sizeof(Header); at < message.size(); at += 8) {
        const std::uint64_t word = words.next();
        if (memcmp(message.data() + at, &word, std::min<std::size_t>(8, message.size() - at)) != 0)
            return false;
    }
    return true;
}

}  // namespace vma_perf
