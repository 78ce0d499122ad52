// SPDX-License-Identifier: BSD-2-Clause
// TCP segments as values: what a test says and hears on a wire, byte by byte, with no code of the library.
//
// Used by the unit tests (tcp_wiretap.h), the fuzz targets and the attacker on a packet socket (tests/apps).
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace attacker {

using Frame = std::vector<std::uint8_t>;
using Mac = std::array<std::uint8_t, 6>;

enum Flag : std::uint8_t {
    kFin = 1,
    kSyn = 2,
    kRst = 4,
    kPsh = 8,
    kAck = 16,
    kUrg = 32,
    kEce = 64,
    kCwr = 128
};

struct Segment {
    in_addr_t from = 0, to = 0;
    std::uint16_t from_port = 0, to_port = 0;  // host order, as all below
    std::uint32_t seq = 0, ack = 0;
    std::uint8_t flags = 0;
    std::uint16_t window = 65535, urgent = 0;
    std::uint8_t tos = 0, reserved = 0;  // IP's type of service; the bits behind TCP's data offset
    std::string options;                 // a multiple of 4 bytes
    std::string payload;

    std::uint32_t end() const {
        return seq + static_cast<std::uint32_t>(payload.size()) + ((flags & kSyn) != 0) +
               ((flags & kFin) != 0);
    }
};

// What the options of a segment say.
struct Said {
    std::optional<std::uint16_t> mss;
    std::optional<std::uint8_t> scale;
    bool sack_allowed = false;
    std::optional<std::uint32_t> stamp, echo;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> sacks;
};

namespace option {
inline std::string be16(std::uint16_t v) { return {static_cast<char>(v >> 8), static_cast<char>(v)}; }
inline std::string be32(std::uint32_t v) {
    return be16(static_cast<std::uint16_t>(v >> 16)) + be16(static_cast<std::uint16_t>(v));
}
inline std::string mss(std::uint16_t v) { return std::string("\x02\x04", 2) + be16(v); }
inline std::string scale(std::uint8_t shift) {
    return std::string("\x01\x03\x03", 3) + static_cast<char>(shift);
}
inline std::string sack_allowed() { return std::string("\x01\x01\x04\x02", 4); }
inline std::string stamps(std::uint32_t value, std::uint32_t echo) {
    return std::string("\x01\x01\x08\x0a", 4) + be32(value) + be32(echo);
}
inline std::string sack(const std::vector<std::pair<std::uint32_t, std::uint32_t>>& blocks) {
    std::string s("\x01\x01\x05", 3);
    s += static_cast<char>(2 + 8 * blocks.size());
    for (auto [left, right] : blocks) s += be32(left) + be32(right);
    return s;
}
}  // namespace option

inline Said said(const Segment& s) {
    Said out;
    const auto& o = s.options;
    auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(o[i]); };
    auto word = [&](std::size_t i) {
        return std::uint32_t{byte(i)} << 24 | std::uint32_t{byte(i + 1)} << 16 |
               std::uint32_t{byte(i + 2)} << 8 | byte(i + 3);
    };
    for (std::size_t i = 0; i < o.size() && o[i] != 0;) {
        if (o[i] == 1) {
            i++;
            continue;
        }
        if (i + 1 >= o.size() || byte(i + 1) < 2 || i + byte(i + 1) > o.size()) break;
        const std::size_t n = byte(i + 1);
        if (o[i] == 2 && n == 4) out.mss = static_cast<std::uint16_t>(word(i) & 0xffff);
        if (o[i] == 3 && n == 3) out.scale = byte(i + 2);
        if (o[i] == 4 && n == 2) out.sack_allowed = true;
        if (o[i] == 8 && n == 10) out.stamp = word(i + 2), out.echo = word(i + 6);
        if (o[i] == 5)
            for (std::size_t b = i + 2; b + 8 <= i + n; b += 8) out.sacks.emplace_back(word(b), word(b + 4));
        i += n;
    }
    return out;
}

// ---- frames ----

inline constexpr std::size_t kEthernet = 14, kIp = 20, kTcp = 20;

// RFC 1071, slowly; `start` is in the same (host) order as 16-bit words of the network are read.
inline std::uint16_t checksum(const std::uint8_t* p, std::size_t n, std::uint32_t start = 0) {
    std::uint64_t total = start;
    for (std::size_t i = 0; i < n; i++) total += i % 2 ? p[i] : std::uint32_t{p[i]} << 8;
    while (total >> 16) total = (total & 0xffff) + (total >> 16);
    return static_cast<std::uint16_t>(~total);
}
inline void put16(std::uint8_t* at, std::uint32_t v) {
    at[0] = static_cast<std::uint8_t>(v >> 8);
    at[1] = static_cast<std::uint8_t>(v);
}
inline void put32(std::uint8_t* at, std::uint32_t v) {
    put16(at, v >> 16);
    put16(at + 2, v & 0xffff);
}
inline std::uint32_t get16(const std::uint8_t* at) { return std::uint32_t{at[0]} << 8 | at[1]; }
inline std::uint32_t get32(const std::uint8_t* at) { return get16(at) << 16 | get16(at + 2); }

// Ethernet and IPv4 around `length` bytes of a protocol, which the caller fills in behind kEthernet + kIp.
inline Frame packet(in_addr_t from, in_addr_t to, std::uint8_t protocol, std::size_t length,
                    const Mac& source, const Mac& target) {
    Frame frame(kEthernet + kIp + length);
    std::copy(target.begin(), target.end(), frame.begin());
    std::copy(source.begin(), source.end(), frame.begin() + 6);
    put16(&frame[12], 0x0800);
    std::uint8_t* ip = &frame[kEthernet];
    ip[0] = 0x45;
    put16(ip + 2, static_cast<std::uint32_t>(kIp + length));
    put16(ip + 6, 0x4000);
    ip[8] = 64;
    ip[9] = protocol;
    std::memcpy(ip + 12, &from, 4);
    std::memcpy(ip + 16, &to, 4);
    put16(ip + 10, checksum(ip, kIp));
    return frame;
}

inline Frame build(const Segment& s, const Mac& source, const Mac& target) {
    const std::size_t header = kTcp + s.options.size(), length = header + s.payload.size();
    Frame frame = packet(s.from, s.to, IPPROTO_TCP, length, source, target);
    if (s.tos != 0) {
        std::uint8_t* ip = &frame[kEthernet];
        ip[1] = s.tos;
        put16(ip + 10, 0);
        put16(ip + 10, checksum(ip, kIp));
    }
    std::uint8_t* tcp = &frame[kEthernet + kIp];
    put16(tcp, s.from_port);
    put16(tcp + 2, s.to_port);
    put32(tcp + 4, s.seq);
    put32(tcp + 8, s.ack);
    tcp[12] = static_cast<std::uint8_t>(header / 4 << 4 | s.reserved);
    tcp[13] = s.flags;
    put16(tcp + 14, s.window);
    put16(tcp + 18, s.urgent);
    std::copy(s.options.begin(), s.options.end(), tcp + kTcp);
    std::copy(s.payload.begin(), s.payload.end(), tcp + header);
    std::uint32_t pseudo = IPPROTO_TCP + static_cast<std::uint32_t>(length);
    for (in_addr_t address : {s.from, s.to}) pseudo += (ntohl(address) >> 16) + (ntohl(address) & 0xffff);
    put16(tcp + 16, checksum(tcp, length, pseudo));
    return frame;
}

// Nothing when it is not a TCP segment in one IPv4 packet without IP options. Checksums are not looked at.
inline std::optional<Segment> parse(std::span<const std::uint8_t> frame) {
    if (frame.size() < kEthernet + kIp + kTcp || get16(&frame[12]) != 0x0800 || frame[kEthernet] != 0x45)
        return {};
    const std::uint8_t* ip = &frame[kEthernet];
    const std::size_t total = get16(ip + 2);
    if (ip[9] != IPPROTO_TCP || (get16(ip + 6) & 0x3fff) != 0) return {};
    if (total < kIp + kTcp || total > frame.size() - kEthernet) return {};
    const std::uint8_t* tcp = ip + kIp;
    const std::size_t header = std::size_t{tcp[12]} >> 4 << 2;
    if (header < kTcp || header > total - kIp) return {};
    Segment s;
    std::memcpy(&s.from, ip + 12, 4);
    std::memcpy(&s.to, ip + 16, 4);
    s.from_port = static_cast<std::uint16_t>(get16(tcp));
    s.to_port = static_cast<std::uint16_t>(get16(tcp + 2));
    s.seq = get32(tcp + 4);
    s.ack = get32(tcp + 8);
    s.flags = tcp[13];
    s.tos = ip[1];
    s.reserved = tcp[12] & 15;
    s.window = static_cast<std::uint16_t>(get16(tcp + 14));
    s.urgent = static_cast<std::uint16_t>(get16(tcp + 18));
    s.options.assign(tcp + kTcp, tcp + header);
    s.payload.assign(tcp + header, ip + total);
    return s;
}

// An ICMP message (RFC 792) that quotes `quoted` bytes of a packet as if the victim had sent it. `rest`: the
// second word of its header, where "fragmentation needed" has the next hop's MTU.
inline Frame build_icmp(in_addr_t from, in_addr_t to, std::uint8_t type, std::uint8_t code,
                        std::uint32_t rest, std::span<const std::uint8_t> quoted, const Mac& source,
                        const Mac& target) {
    Frame frame = packet(from, to, IPPROTO_ICMP, 8 + quoted.size(), source, target);
    std::uint8_t* icmp = &frame[kEthernet + kIp];
    icmp[0] = type;
    icmp[1] = code;
    put32(icmp + 4, rest);
    std::copy(quoted.begin(), quoted.end(), icmp + 8);
    put16(icmp + 2, checksum(icmp, 8 + quoted.size()));
    return frame;
}

// Byte `i` of the stream with this seed: content that its place alone determines.
inline char stream_byte(std::uint64_t i, std::uint32_t seed) {
    std::uint64_t z = (i >> 3) * 0x9e3779b97f4a7c15u + seed;
    z = (z ^ z >> 29) * 0xbf58476d1ce4e5b9u;
    return static_cast<char>(z >> (8 * (i & 7)));
}

}  // namespace attacker
