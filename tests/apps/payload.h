// SPDX-License-Identifier: BSD-2-Clause
// The content of test datagrams. Each is a function of its length and a seed, so a receiver can tell from a
// datagram alone which one it is and whether every byte is right, and two transcripts can be compared by a
// short hash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace payload {

// Datagrams of at least four bytes begin with their seed, big endian.
inline void fill(std::uint8_t* out, std::size_t length, std::uint32_t seed) {
    for (std::size_t i = 0; i < length; i++)
        out[i] = static_cast<std::uint8_t>(seed * 31 + i * 7 + (i >> 8) * 3 + length);
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
    return length < 4 || make(length, seed_of(in, length)) == std::vector<std::uint8_t>(in, in + length);
}

// FNV-1a.
inline std::uint32_t hash(const std::uint8_t* in, std::size_t length) {
    std::uint32_t h = 2166136261u;
    for (std::size_t i = 0; i < length; i++) h = (h ^ in[i]) * 16777619u;
    return h;
}

}  // namespace payload
