// SPDX-License-Identifier: BSD-2-Clause
#include "tests/support/mlx5_sim/nic/nic_frames.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

namespace mlx5_sim {
namespace {

constexpr std::uint16_t kIpv4 = 0x0800, kIpv6 = 0x86dd, kVlan = 0x8100;
// l4_hdr_type_etc: the L4 header's type in bits 4 to 6, the L3 header's (MLX5_CQE_L3_HDR_TYPE_*) in bits 2
// and 3.
constexpr unsigned kL4None = 0, kL4TcpWithoutAck = 1, kL4Udp = 2, kL4TcpAckOnly = 3, kL4TcpAckAndData = 4;
constexpr std::uint8_t kFin = 0x01, kPsh = 0x08, kAck = 0x10, kCwr = 0x80;

std::uint16_t be16(const std::uint8_t* p) { return static_cast<std::uint16_t>(p[0] << 8 | p[1]); }
std::uint32_t be32(const std::uint8_t* p) { return std::uint32_t{be16(p)} << 16 | be16(p + 2); }
void put16(std::uint8_t* p, std::size_t value) {
    p[0] = static_cast<std::uint8_t>(value >> 8);
    p[1] = static_cast<std::uint8_t>(value);
}
void put32(std::uint8_t* p, std::uint32_t value) {
    put16(p, value >> 16);
    put16(p + 2, value & 0xffff);
}
template <class T>
T raw(const std::uint8_t* p) {
    T value;
    std::memcpy(&value, p, sizeof value);
    return value;
}

// RFC 1071, word by word; not folded.
std::uint64_t sum(std::span<const std::uint8_t> bytes) {
    std::uint64_t total = 0;
    for (std::size_t i = 0; i + 1 < bytes.size(); i += 2) total += be16(&bytes[i]);
    if (bytes.size() % 2 != 0) total += std::uint64_t{bytes.back()} << 8;
    return total;
}
std::uint16_t folded(std::uint64_t total) {
    while (total > 0xffff) total = (total & 0xffff) + (total >> 16);
    return static_cast<std::uint16_t>(total);
}

// Over pseudo header, L4 header and payload; 0xffff if the sum in the frame is right.
std::uint16_t l4_sum(std::span<const std::uint8_t> frame, const Headers& h) {
    const std::size_t addresses = h.ip_version == 4 ? h.l3 + 12 : h.l3 + 8;
    const std::size_t address_bytes = h.ip_version == 4 ? 8 : 32;
    return folded(sum(frame.subspan(addresses, address_bytes)) + h.protocol + h.l4_bytes +
                  sum(frame.subspan(h.l4, h.l4_bytes)));
}

void parse_l4(std::span<const std::uint8_t> frame, std::size_t ip_bytes, Headers& h) {
    const std::size_t at = h.l3 + h.l3_bytes;
    if (h.fragment || ip_bytes < h.l3_bytes || h.l3 + ip_bytes > frame.size()) return;
    const std::size_t bytes = ip_bytes - h.l3_bytes;
    std::size_t header = 0;
    if (h.protocol == IPPROTO_UDP && bytes >= 8) header = 8;
    if (h.protocol == IPPROTO_TCP && bytes >= 20) header = std::size_t{frame[at + 12]} / 16 * 4;
    if (header == 0 || header > bytes || (h.protocol == IPPROTO_TCP && header < 20)) return;
    h.l4 = at;
    h.l4_header_bytes = header;
    h.l4_bytes = bytes;
}

template <class T>
bool differ(T value, T wanted, T mask) {
    return ((value ^ wanted) & mask) != 0;
}
bool differ(const std::uint8_t* value, const std::array<std::uint8_t, 6>& wanted,
            const std::array<std::uint8_t, 6>& mask) {
    for (std::size_t i = 0; i < 6; ++i)
        if (((value[i] ^ wanted[i]) & mask[i]) != 0) return true;
    return false;
}

}  // namespace

Headers parse(std::span<const std::uint8_t> frame) {
    Headers h;
    if (frame.size() < 14) return h;
    h.ether_type = raw<std::uint16_t>(&frame[12]);
    std::size_t at = 14;
    if (h.ether_type == htons(kVlan) && frame.size() >= 18) {
        h.tagged = true;
        h.tci = raw<std::uint16_t>(&frame[14]);
        h.ether_type = raw<std::uint16_t>(&frame[16]);
        at = 18;
    }
    if (h.ether_type == htons(kIpv4) && frame.size() >= at + 20 && frame[at] >> 4 == 4) {
        const std::size_t bytes = std::size_t{frame[at]} % 16 * 4;
        if (bytes < 20 || frame.size() < at + bytes) return h;
        h.l3 = at;
        h.l3_bytes = bytes;
        h.ip_version = 4;
        h.fragment = (be16(&frame[at + 6]) & 0x3fff) != 0;
        h.protocol = frame[at + 9];
        parse_l4(frame, be16(&frame[at + 2]), h);
    } else if (h.ether_type == htons(kIpv6) && frame.size() >= at + 40 && frame[at] >> 4 == 6) {
        h.l3 = at;
        h.l3_bytes = 40;
        h.ip_version = 6;
        h.protocol = frame[at + 6];
        parse_l4(frame, 40 + std::size_t{be16(&frame[at + 4])}, h);
    }
    return h;
}

bool matches(const Match& m, std::span<const std::uint8_t> frame, const Headers& h) {
    if (frame.size() < 14) return false;
    if (differ(&frame[0], m.dst_mac, m.dst_mac_mask) || differ(&frame[6], m.src_mac, m.src_mac_mask))
        return false;
    if (m.vlan_mask != 0 && (!h.tagged || differ(h.tci, m.vlan, m.vlan_mask))) return false;
    if (differ(h.ether_type, m.ether_type, m.ether_type_mask)) return false;
    const bool ports = m.src_port_mask != 0 || m.dst_port_mask != 0;
    if (m.src_ip_mask == 0 && m.dst_ip_mask == 0 && m.protocol_mask == 0 && !ports) return true;
    if (h.ip_version != 4) return false;
    if (differ(raw<std::uint32_t>(&frame[h.l3 + 12]), m.src_ip, m.src_ip_mask)) return false;
    if (differ(raw<std::uint32_t>(&frame[h.l3 + 16]), m.dst_ip, m.dst_ip_mask)) return false;
    if (differ(h.protocol, m.protocol, m.protocol_mask)) return false;
    if (!ports) return true;
    return h.l4 != 0 && !differ(raw<std::uint16_t>(&frame[h.l4]), m.src_port, m.src_port_mask) &&
           !differ(raw<std::uint16_t>(&frame[h.l4 + 2]), m.dst_port, m.dst_port_mask);
}

void complete_checksums(Frame& frame, bool l3, bool l4) {
    const Headers h = parse(frame);
    if (l4 && h.l4 != 0) {
        std::uint8_t* field = &frame[h.l4 + (h.protocol == IPPROTO_UDP ? 6 : 16)];
        put16(field, 0);
        auto value = static_cast<std::uint16_t>(~l4_sum(frame, h));
        if (value == 0 && h.protocol == IPPROTO_UDP) value = 0xffff;
        put16(field, value);
    }
    if (l3 && h.ip_version == 4) {
        put16(&frame[h.l3 + 10], 0);
        put16(&frame[h.l3 + 10],
              static_cast<std::uint16_t>(~folded(sum(std::span(frame).subspan(h.l3, h.l3_bytes)))));
    }
}

ReceiveBits receive_bits(std::span<const std::uint8_t> frame) {
    const Headers h = parse(frame);
    ReceiveBits bits;
    bits.hds_ip_ext = MLX5_CQE_L2_OK;
    unsigned l3_type = MLX5_CQE_L3_HDR_TYPE_NONE, l4_type = kL4None;
    if (h.ip_version == 4) {
        l3_type = MLX5_CQE_L3_HDR_TYPE_IPV4;
        if (folded(sum(frame.subspan(h.l3, h.l3_bytes))) == 0xffff) bits.hds_ip_ext |= MLX5_CQE_L3_OK;
    } else if (h.ip_version == 6) {
        l3_type = MLX5_CQE_L3_HDR_TYPE_IPV6;
        bits.hds_ip_ext |= MLX5_CQE_L3_OK;
    }
    if (h.l4 != 0) {
        const bool udp = h.protocol == IPPROTO_UDP;
        const bool unsummed = udp && h.ip_version == 4 && be16(&frame[h.l4 + 6]) == 0;
        if (unsummed || l4_sum(frame, h) == 0xffff) bits.hds_ip_ext |= MLX5_CQE_L4_OK;
        if (udp) {
            l4_type = kL4Udp;
        } else if ((frame[h.l4 + 13] & kAck) == 0) {
            l4_type = kL4TcpWithoutAck;
        } else {
            l4_type = h.l4_bytes == h.l4_header_bytes ? kL4TcpAckOnly : kL4TcpAckAndData;
        }
    }
    bits.l4_hdr_type_etc = static_cast<std::uint8_t>(l4_type << 4 | l3_type << 2);
    return bits;
}

std::vector<Frame> cut(std::span<const std::uint8_t> header, std::span<const std::uint8_t> payload,
                       std::size_t mss) {
    // The length in the header may be that of the header alone, of the whole, or 0: it says nothing.
    Frame whole(header.begin(), header.end());
    std::size_t l3 = 14;
    if (whole.size() >= 18 && be16(&whole[12]) == kVlan) l3 = 18;
    if (mss == 0 || whole.size() < l3 + 40) return {};
    const unsigned version = whole[l3] >> 4;
    const std::size_t ip_bytes = version == 4 ? std::size_t{whole[l3]} % 16 * 4 : 40;
    if ((version != 4 && version != 6) || ip_bytes < 20 || whole.size() < l3 + ip_bytes + 20) return {};
    const std::size_t l4 = l3 + ip_bytes;
    if (whole[l3 + (version == 4 ? 9 : 6)] != IPPROTO_TCP ||
        std::size_t{whole[l4 + 12]} / 16 * 4 != whole.size() - l4)
        return {};

    const std::uint32_t sequence = be32(&whole[l4 + 4]);
    const std::uint16_t id = version == 4 ? be16(&whole[l3 + 4]) : std::uint16_t{0};
    std::vector<Frame> frames;
    std::size_t done = 0;
    do {
        const std::size_t piece = std::min(mss, payload.size() - done);
        Frame frame = whole;
        frame.insert(frame.end(), payload.begin() + static_cast<std::ptrdiff_t>(done),
                     payload.begin() + static_cast<std::ptrdiff_t>(done + piece));
        if (version == 4) {
            put16(&frame[l3 + 2], frame.size() - l3);
            put16(&frame[l3 + 4], id + frames.size());
        } else {
            put16(&frame[l3 + 4], frame.size() - l4);
        }
        put32(&frame[l4 + 4], sequence + static_cast<std::uint32_t>(done));
        if (!frames.empty()) frame[l4 + 13] &= static_cast<std::uint8_t>(~kCwr);
        if (done + piece < payload.size()) frame[l4 + 13] &= static_cast<std::uint8_t>(~(kFin | kPsh));
        frames.push_back(std::move(frame));
        done += piece;
    } while (done < payload.size());
    return frames;
}

}  // namespace mlx5_sim
