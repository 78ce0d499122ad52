// SPDX-License-Identifier: BSD-2-Clause
// Frames for the tests of the simulated adapter, made without its code.
#include "tests/support/mlx5_sim/tests/nic/nic_rig.h"

namespace mlx5_sim {
namespace {

void put16(Frame& frame, std::size_t at, std::size_t value) {
    frame[at] = static_cast<std::uint8_t>(value >> 8);
    frame[at + 1] = static_cast<std::uint8_t>(value);
}
std::size_t get16(const Frame& frame, std::size_t at) { return std::size_t{frame[at]} << 8 | frame[at + 1]; }
std::size_t ip_at(const Frame& frame) { return get16(frame, 12) == 0x8100 ? 18 : 14; }

}  // namespace

std::uint16_t plain_sum(std::span<const std::uint8_t> bytes, std::uint64_t start) {
    for (std::size_t i = 0; i < bytes.size(); ++i)
        start += i % 2 == 0 ? std::uint64_t{bytes[i]} << 8 : bytes[i];
    while (start > 0xffff) start = (start & 0xffff) + (start >> 16);
    return static_cast<std::uint16_t>(start);
}

Frame make_frame(const Make& make) {
    Frame frame = {make.dst_first, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2};
    if (make.vlan) {
        frame.insert(frame.end(), {0x81, 0x00, 0, 0});
        put16(frame, 14, *make.vlan);
    }
    frame.insert(frame.end(), {0x08, 0x00});
    const std::size_t ip = frame.size(), l4 = ip + 20, header = make.tcp ? 20 : 8;
    frame.resize(l4 + header + make.payload);
    frame[ip] = 0x45;
    put16(frame, ip + 2, frame.size() - ip);
    put16(frame, ip + 4, 0x4321);
    put16(frame, ip + 6, make.fragment);
    frame[ip + 8] = 64;
    frame[ip + 9] = make.tcp ? IPPROTO_TCP : IPPROTO_UDP;
    const std::uint8_t addresses[] = {198, 18, 1, 2, 198, 18, 1, 1};
    std::memcpy(&frame[ip + 12], addresses, 8);
    put16(frame, l4, make.src_port);
    put16(frame, l4 + 2, make.dst_port);
    if (make.tcp) {
        put16(frame, l4 + 4, 0xfffff000u >> 16);
        put16(frame, l4 + 6, 0xf000);
        frame[l4 + 12] = 0x50;
        frame[l4 + 13] = make.tcp_flags;
    } else {
        put16(frame, l4 + 4, 8 + make.payload);
    }
    for (std::size_t i = 0; i < make.payload; ++i) frame[l4 + header + i] = static_cast<std::uint8_t>(i * 7);
    if (!make.sums) return frame;
    put16(frame, ip + 10, static_cast<std::uint16_t>(~plain_sum(std::span(frame).subspan(ip, 20))));
    const std::size_t field = l4 + (make.tcp ? 16 : 6);
    const std::uint64_t pseudo =
        plain_sum(std::span(frame).subspan(ip + 12, 8)) + frame[ip + 9] + (frame.size() - l4);
    put16(frame, field, static_cast<std::uint16_t>(~plain_sum(std::span(frame).subspan(l4), pseudo)));
    return frame;
}

bool sums_right(const Frame& frame) {
    const std::size_t ip = ip_at(frame), l4 = ip + 20, bytes = get16(frame, ip + 2) - 20;
    if (plain_sum(std::span(frame).subspan(ip, 20)) != 0xffff) return false;
    const std::uint64_t pseudo =
        std::uint64_t{plain_sum(std::span(frame).subspan(ip + 12, 8))} + frame[ip + 9] + bytes;
    return plain_sum(std::span(frame).subspan(l4, bytes), pseudo) == 0xffff;
}

}  // namespace mlx5_sim
