// SPDX-License-Identifier: BSD-2-Clause
// The content of test datagrams. Each is a function of its length and a seed, so a receiver can tell from a
// datagram alone which one it is and whether every byte is right, and two transcripts can be compared by a
// short hash.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace payload {

// The bytes 0, step, 2 * step...; where any byte stands, the rest of such a row goes on. Programs fill and
// check megabytes, so rows are copied.
template <unsigned step>
class Ramp {
  public:
    // 256 bytes that begin with `first`.
    static const std::uint8_t* from(std::size_t first) {
        return kBytes.data() + static_cast<std::uint8_t>(first * kInverse);
    }

  private:
    static constexpr unsigned inverse() {
        unsigned n = 1;
        while (n * step % 256 != 1) n += 2;
        return n;
    }
    static constexpr std::array<std::uint8_t, 512> row() {
        std::array<std::uint8_t, 512> bytes{};
        for (unsigned i = 0; i < bytes.size(); i++) bytes[i] = static_cast<std::uint8_t>(i * step);
        return bytes;
    }
    static constexpr unsigned kInverse = inverse();
    static constexpr std::array<std::uint8_t, 512> kBytes = row();
};

// Datagrams of at least four bytes begin with their seed, big endian.
inline void fill(std::uint8_t* out, std::size_t length, std::uint32_t seed) {
    for (std::size_t at = 0; at < length; at += 256)
        std::memcpy(out + at, Ramp<7>::from(seed * 31 + (at >> 8) * 3 + length),
                    std::min<std::size_t>(256, length - at));
    if (length >= 4)
        for (int i = 0; i < 4; i++) out[i] = static_cast<std::uint8_t>(seed >> (24 - 8 * i));
}

inline std::vector<std::uint8_t> make(std::size_t length, std::uint32_t seed) {
    std::vector<std::uint8_t> bytes(length);
    fill(bytes.data(), length, seed);
    return bytes;
}

inline std::uint32_t seed_of(const std::uint8_t* in, std::size_t length) {
    if (length < 4) return 0;
    return std::uint32_t{in[0]} << 24 | std::uint32_t{in[1]} << 16 | std::uint32_t{in[2]} << 8 | in[3];
}

inline bool intact(const std::uint8_t* in, std::size_t length) {
    return length < 4 || std::memcmp(make(length, seed_of(in, length)).data(), in, length) == 0;
}

// FNV-1a.
inline std::uint32_t hash(const std::uint8_t* in, std::size_t length) {
    std::uint32_t h = 2166136261u;
    for (std::size_t i = 0; i < length; i++) h = (h ^ in[i]) * 16777619u;
    return h;
}

}  // namespace payload
