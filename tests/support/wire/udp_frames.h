// SPDX-License-Identifier: BSD-2-Clause
// UDP frames for tests, made and summed without the library's own code, so that neither can hide the other's
// mistakes.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace udp_frames {

using Bytes = std::vector<std::uint8_t>;
using Mac = std::array<std::uint8_t, 6>;

constexpr std::size_t kIp = 14, kUdp = 34, kPayload = 42;

// Sum of big-endian 16-bit words, folded, the slow way.
inline std::uint16_t slow_sum(const std::uint8_t* p, std::size_t length, std::uint32_t sum = 0) {
    for (std::size_t i = 0; i < length; i++) {
        sum += i % 2 ? p[i] : p[i] << 8;
        sum = (sum & 0xffff) + (sum >> 16);
    }
    return static_cast<std::uint16_t>(sum);
}
inline void put16(Bytes& frame, std::size_t at, unsigned value) {
    frame.at(at) = static_cast<std::uint8_t>(value >> 8);
    frame.at(at + 1) = static_cast<std::uint8_t>(value);
}
inline unsigned get16(const Bytes& frame, std::size_t at) { return frame.at(at) << 8 | frame.at(at + 1); }

struct Udp {
    Mac src_mac{}, dst_mac{};
    const char* src = "198.18.0.1";
    const char* dst = "198.18.0.2";
    std::uint16_t src_port = 1000, dst_port = 2000;
    std::string payload;
};

inline std::uint16_t pseudo_sum(const Bytes& frame) {
    return slow_sum(&frame[kIp + 12], 8, frame[kIp + 9] + get16(frame, kUdp + 4));
}
// Right again after a change of the IP header.
inline void seal_ip(Bytes& frame) {
    put16(frame, kIp + 10, 0);
    put16(frame, kIp + 10, 0xffff & ~slow_sum(&frame[kIp], 20));
}
// Right again after a change of ports, addresses or payload.
inline void seal_udp(Bytes& frame) {
    put16(frame, kUdp + 6, 0);
    const std::uint16_t sum =
        static_cast<std::uint16_t>(~slow_sum(&frame[kUdp], get16(frame, kUdp + 4), pseudo_sum(frame)));
    put16(frame, kUdp + 6, sum == 0 ? 0xffff : sum);
}
// Is the full sum there and right?
inline bool udp_sum_right(const Bytes& frame) {
    return get16(frame, kUdp + 6) != 0 &&
           slow_sum(&frame[kUdp], get16(frame, kUdp + 4), pseudo_sum(frame)) == 0xffff;
}

inline Bytes make(const Udp& u) {
    Bytes frame(kPayload);
    std::memcpy(&frame[0], u.dst_mac.data(), 6);
    std::memcpy(&frame[6], u.src_mac.data(), 6);
    put16(frame, 12, 0x0800);
    frame[kIp] = 0x45;
    put16(frame, kIp + 2, static_cast<unsigned>(28 + u.payload.size()));
    put16(frame, kIp + 6, 0x4000);
    frame[kIp + 8] = 64;
    frame[kIp + 9] = IPPROTO_UDP;
    const in_addr_t src = inet_addr(u.src), dst = inet_addr(u.dst);
    std::memcpy(&frame[kIp + 12], &src, 4);
    std::memcpy(&frame[kIp + 16], &dst, 4);
    put16(frame, kUdp, u.src_port);
    put16(frame, kUdp + 2, u.dst_port);
    put16(frame, kUdp + 4, static_cast<unsigned>(8 + u.payload.size()));
    frame.insert(frame.end(), u.payload.begin(), u.payload.end());
    seal_ip(frame);
    seal_udp(frame);
    return frame;
}
inline std::string payload_of(const Bytes& frame) {
    return frame.size() < kPayload ? "" : std::string(frame.begin() + kPayload, frame.end());
}
// `length` bytes that differ from one another and from those of another `seed`.
inline std::string pattern(std::size_t length, unsigned seed = 0) {
    std::string text(length, '\0');
    std::uint32_t state = seed * 2654435761u + 12345;
    for (char& c : text) c = static_cast<char>((state = state * 1664525u + 1013904223u) >> 24);
    return text;
}

}  // namespace udp_frames
