// SPDX-License-Identifier: BSD-2-Clause
// Written plainly, and without the library's own checksum code, which it is to test.
#include "tests/support/wire/segments.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstddef>

namespace vma::verbs::wire {
namespace {

constexpr std::size_t kIp = 14, kL4 = kIp + 20;
constexpr std::uint8_t kFin = 0x01, kPsh = 0x08;

std::uint32_t get(const Frame& frame, std::size_t at, std::size_t bytes) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < bytes; i++) value = value << 8 | frame[at + i];
    return value;
}
void put(Frame& frame, std::size_t at, std::size_t bytes, std::uint32_t value) {
    for (std::size_t i = 0; i < bytes; i++)
        frame[at + i] = static_cast<std::uint8_t>(value >> (8 * (bytes - 1 - i)));
}

// RFC 1071, of the bytes [from, to), added to `sum`.
std::uint16_t sum_of(const Frame& frame, std::size_t from, std::size_t to, std::uint32_t sum) {
    for (std::size_t i = from; i < to; i++) sum += (i - from) % 2 == 0 ? frame[i] << 8 : frame[i];
    while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
    return static_cast<std::uint16_t>(sum);
}

bool is_tcp(const Frame& frame) { return frame[kIp + 9] == IPPROTO_TCP; }
std::size_t end_of(const Frame& frame) {
    return std::min<std::size_t>(frame.size(), kIp + get(frame, kIp + 2, 2));
}

std::uint32_t pseudo_sum(const Frame& frame, std::size_t l4_length) {
    return get(frame, kIp + 12, 2) + get(frame, kIp + 14, 2) + get(frame, kIp + 16, 2) +
           get(frame, kIp + 18, 2) + frame[kIp + 9] + static_cast<std::uint32_t>(l4_length);
}

}  // namespace

// The sum over the segment as it is, complemented, is the checksum.
void complete_sums(Frame& frame) {
    if (frame.size() < kL4) return;
    const std::size_t field = kL4 + (is_tcp(frame) ? 16 : 6), end = end_of(frame);
    if (field + 2 > end) return;
    std::uint16_t checksum = static_cast<std::uint16_t>(~sum_of(frame, kL4, end, 0));
    if (checksum == 0 && !is_tcp(frame)) checksum = 0xffff;  // 0 would mean "none" (RFC 768)
    put(frame, field, 2, checksum);
}

bool sums_right(const Frame& frame) {
    if (frame.size() < kL4 + 8 || get(frame, 12, 2) != 0x0800 || frame[kIp] != 0x45) return false;
    if (sum_of(frame, kIp, kL4, 0) != 0xffff) return false;
    const bool udp = frame[kIp + 9] == IPPROTO_UDP;
    if (!udp && !is_tcp(frame)) return false;
    const std::size_t end = end_of(frame);
    if (end < kL4 + 8 || (udp && get(frame, kL4 + 6, 2) == 0)) return false;
    return sum_of(frame, kL4, end, pseudo_sum(frame, end - kL4)) == 0xffff;
}

std::vector<Frame> cut_segments(const Frame& header, const Frame& payload, std::uint32_t mss) {
    std::vector<Frame> segments;
    const bool counts = (get(header, kIp + 6, 2) & 0x4000) == 0;
    for (std::size_t at = 0; at < payload.size(); at += mss) {
        const std::size_t length = std::min<std::size_t>(mss, payload.size() - at);
        Frame f = header;
        f.insert(f.end(), payload.begin() + static_cast<std::ptrdiff_t>(at),
                 payload.begin() + static_cast<std::ptrdiff_t>(at + length));
        put(f, kIp + 2, 2, static_cast<std::uint32_t>(f.size() - kIp));
        if (counts) put(f, kIp + 4, 2, get(header, kIp + 4, 2) + static_cast<std::uint32_t>(segments.size()));
        put(f, kIp + 10, 2, 0);
        put(f, kIp + 10, 2, static_cast<std::uint16_t>(~sum_of(f, kIp, kL4, 0)));
        put(f, kL4 + 4, 4, get(header, kL4 + 4, 4) + static_cast<std::uint32_t>(at));
        if (at + length < payload.size()) f[kL4 + 13] &= static_cast<std::uint8_t>(~(kFin | kPsh));
        std::uint32_t pseudo = pseudo_sum(f, f.size() - kL4);
        while (pseudo > 0xffff) pseudo = (pseudo & 0xffff) + (pseudo >> 16);
        put(f, kL4 + 16, 2, pseudo);
        segments.push_back(std::move(f));
    }
    return segments;
}

}  // namespace vma::verbs::wire
