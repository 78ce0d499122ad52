// SPDX-License-Identifier: BSD-2-Clause
// The parser is the first code to see bytes from the network. So it checks every length against the bytes
// that exist before it uses the length. Its checks have the kernel's order (ip_rcv, udp_rcv, tcp_v4_rcv), and
// the drop reasons follow that order. The common frame, one piece and a partial or absent checksum, costs the
// 20-byte IP sum and some compares.
// IP sum and some compares.
#include "libvma/net/frame.h"

#include <string.h>

#include <atomic>

#include "libvma/net/checksum.h"
#include "libvma/runtime/clock.h"

namespace vma::net {
namespace {

constexpr std::size_t kIpOffset = sizeof(EthernetHeader);
constexpr std::size_t kL4Offset = kIpOffset + sizeof(Ipv4Header);
constexpr std::uint8_t kVersion4Ihl5 = 0x45;  // rules leave packets with IP options to the kernel

std::uint64_t ip_header_sum(const std::uint8_t* header) noexcept {
    std::uint32_t words[sizeof(Ipv4Header) / 4];
    memcpy(words, header, sizeof words);
    std::uint64_t sum = 0;
    for (std::uint32_t word : words) sum += word;
    return sum;
}

// The sum of `length` bytes from `offset` of the frame, which must hold them. A piece may start at an odd
// place in the data. Its bytes then sit in the other halves of the 16-bit words, so its sum is swapped (RFC
// 1071, section 2(B)).
std::uint64_t sum_pieces(FramePieces frame, std::size_t offset, std::size_t length,
                         std::uint64_t sum) noexcept {
    bool odd = false;
    for (auto piece : frame) {
        if (length == 0) break;
        if (offset >= piece.size()) {
            offset -= piece.size();
            continue;
        }
        std::size_t take = piece.size() - offset < length ? piece.size() - offset : length;
        std::uint16_t part = checksum_fold(checksum_add(piece.data() + offset, take, 0));
        sum += odd ? __builtin_bswap16(part) : part;
        odd ^= (take & 1) != 0;
        length -= take;
        offset = 0;
    }
    return sum;
}

// `field` is the checksum of the header.
bool l4_sum_acceptable(FramePieces frame, std::size_t l4_length, const ParsedFrame& parsed,
                       std::uint16_t field, bool partial_sums) noexcept {
    if (field == 0 && parsed.protocol == IPPROTO_UDP) return true;
    std::uint64_t pseudo = pseudo_header_sum(parsed.src_addr, parsed.dst_addr, parsed.protocol,
                                             static_cast<std::uint32_t>(l4_length));
    // The partial sum comes first: it costs nothing, and on a host's own links nearly every frame has it.
    if (partial_sums && field == checksum_fold(pseudo)) return true;
    auto first = frame[0];
    std::uint64_t sum = kL4Offset + l4_length <= first.size()
                            ? checksum_add(first.data() + kL4Offset, l4_length, pseudo)
                            : sum_pieces(frame, kL4Offset, l4_length, pseudo);
    return checksum_fold(sum) == 0xffff;
}

// The identification for datagrams that a router may fragment (RFC 6864). Its first value is arbitrary.
std::atomic<std::uint32_t> g_next_id{static_cast<std::uint32_t>(clock::Ticks::now().count() >> 4)};

std::uint16_t next_id() noexcept {
    return static_cast<std::uint16_t>(g_next_id.fetch_add(1, std::memory_order_relaxed));
}

// RFC 1624, equation 3, with ~HC kept uncomplemented: the header's sum with one field changed.
std::uint64_t replace(std::uint64_t sum, std::uint16_t before, std::uint16_t after) noexcept {
    return sum + static_cast<std::uint16_t>(~before) + after;
}

}  // namespace

const char* drop_name(Drop drop) noexcept {
    switch (drop) {
        case Drop::none:
            return "none";
        case Drop::short_frame:
            return "short_frame";
        case Drop::bad_ethertype:
            return "bad_ethertype";
        case Drop::bad_ip_header:
            return "bad_ip_header";
        case Drop::bad_ip_checksum:
            return "bad_ip_checksum";
        case Drop::fragment:
            return "fragment";
        case Drop::bad_protocol:
            return "bad_protocol";
        case Drop::bad_l4_length:
            return "bad_l4_length";
        case Drop::bad_l4_checksum:
            return "bad_l4_checksum";
        case Drop::count_:
            break;
    }
    return "unknown";
}

Drop parse(FramePieces frame, bool checksum_good, ParsedFrame& out, bool partial_sums) noexcept {
    if (frame.empty() || frame[0].size() < sizeof(EthernetHeader)) return Drop::short_frame;
    const std::span<const std::uint8_t> first = frame[0];
    const auto* eth = reinterpret_cast<const EthernetHeader*>(first.data());
    if (eth->type != htons(kEthertypeIpv4)) return Drop::bad_ethertype;
    if (first.size() < kL4Offset) return Drop::short_frame;

    const auto* ip = reinterpret_cast<const Ipv4Header*>(first.data() + kIpOffset);
    if (ip->version_ihl != kVersion4Ihl5) return Drop::bad_ip_header;
    if (!checksum_good && checksum_fold(ip_header_sum(first.data() + kIpOffset)) != 0xffff)
        return Drop::bad_ip_checksum;
    const std::size_t total = ntohs(ip->total_length);
    if (total < sizeof(Ipv4Header)) return Drop::bad_ip_header;
    if (kIpOffset + total > first.size()) [[unlikely]] {
        std::size_t have = 0;
        for (auto piece : frame) have += piece.size();
        if (kIpOffset + total > have) return Drop::short_frame;
    }
    if ((ip->fragment & htons(kMoreFragments | kFragmentOffset)) != 0) return Drop::fragment;

    out.ip = ip;
    out.src_addr = ip->src;
    out.dst_addr = ip->dst;
    out.protocol = ip->protocol;
    out.tos = ip->tos;
    out.ttl = ip->ttl;
    out.l4_offset = kL4Offset;

    const std::size_t l4_room = total - sizeof(Ipv4Header);
    std::size_t l4_length;
    std::uint16_t sum_field;
    if (ip->protocol == IPPROTO_UDP) {
        if (l4_room < sizeof(UdpHeader)) return Drop::bad_l4_length;
        if (first.size() < kL4Offset + sizeof(UdpHeader)) return Drop::short_frame;
        const auto* udp = reinterpret_cast<const UdpHeader*>(first.data() + kL4Offset);
        l4_length = ntohs(udp->length);
        if (l4_length < sizeof(UdpHeader) || l4_length > l4_room) return Drop::bad_l4_length;
        out.src_port = udp->src_port;
        out.dst_port = udp->dst_port;
        out.payload_offset = kL4Offset + sizeof(UdpHeader);
        out.payload_length = static_cast<std::uint32_t>(l4_length - sizeof(UdpHeader));
        sum_field = udp->checksum;
    } else if (ip->protocol == IPPROTO_TCP) {
        if (l4_room < sizeof(TcpHeader)) return Drop::bad_l4_length;
        if (first.size() < kL4Offset + sizeof(TcpHeader)) return Drop::short_frame;
        const auto* tcp = reinterpret_cast<const TcpHeader*>(first.data() + kL4Offset);
        const std::size_t header = static_cast<std::size_t>(tcp->data_offset >> 4) * 4;
        if (header < sizeof(TcpHeader) || header > l4_room) return Drop::bad_l4_length;
        if (first.size() < kL4Offset + header) return Drop::short_frame;
        l4_length = l4_room;
        out.src_port = tcp->src_port;
        out.dst_port = tcp->dst_port;
        out.payload_offset = static_cast<std::uint32_t>(kL4Offset + header);
        out.payload_length = static_cast<std::uint32_t>(l4_length - header);
        sum_field = tcp->checksum;
    } else {
        return Drop::bad_protocol;
    }
    if (!checksum_good && !l4_sum_acceptable(frame, l4_length, out, sum_field, partial_sums))
        return Drop::bad_l4_checksum;
    return Drop::none;
}

std::size_t remove_priority_tag(std::span<std::uint8_t> first) noexcept {
    constexpr std::size_t kAddresses = 12, kTag = 4;
    constexpr std::uint16_t kTagged = 0x8100, kVlanId = 0x0fff;
    std::uint16_t tag[2];
    if (first.size() < sizeof(EthernetHeader) + kTag) return first.size();
    memcpy(tag, first.data() + kAddresses, sizeof tag);
    if (tag[0] != htons(kTagged) || (tag[1] & htons(kVlanId)) != 0) return first.size();
    memmove(first.data() + kAddresses, first.data() + kAddresses + kTag, first.size() - kAddresses - kTag);
    return first.size() - kTag;
}

void complete_sum(std::span<std::uint8_t> first, FramePieces frame) noexcept {
    ParsedFrame f;
    if (parse(frame, true, f) != Drop::none) return;
    const std::size_t at = f.l4_offset + (f.protocol == IPPROTO_UDP ? offsetof(UdpHeader, checksum)
                                                                    : offsetof(TcpHeader, checksum));
    const std::size_t length = f.payload_offset + f.payload_length - f.l4_offset;
    const std::uint64_t pseudo =
        pseudo_header_sum(f.src_addr, f.dst_addr, f.protocol, static_cast<std::uint32_t>(length));
    std::uint16_t field;
    memcpy(&field, first.data() + at, sizeof field);
    if (field != checksum_fold(pseudo)) return;
    field = 0;
    memcpy(first.data() + at, &field, sizeof field);
    field = static_cast<std::uint16_t>(~checksum_fold(sum_pieces(frame, f.l4_offset, length, pseudo)));
    if (field == 0) field = 0xffff;  // UDP: 0 would mean no checksum. TCP: 0xffff is the same number
    memcpy(first.data() + at, &field, sizeof field);
}

void build_ip_headers(const UdpTemplate& from, std::uint8_t protocol, std::uint8_t* out) noexcept {
    EthernetHeader eth{};
    memcpy(eth.dst, from.dst_mac.data(), sizeof eth.dst);
    memcpy(eth.src, from.src_mac.data(), sizeof eth.src);
    eth.type = htons(kEthertypeIpv4);
    Ipv4Header ip{};
    ip.version_ihl = kVersion4Ihl5;
    ip.tos = from.tos;
    ip.fragment = from.dont_fragment ? htons(kDontFragment) : 0;
    ip.id = from.dont_fragment ? 0 : htons(next_id());
    ip.ttl = from.ttl;
    ip.protocol = protocol;
    ip.src = from.src_addr;
    ip.dst = from.dst_addr;
    memcpy(out, &eth, sizeof eth);
    memcpy(out + kIpOffset, &ip, sizeof ip);
}

void renew_ip_id(std::uint8_t* headers) noexcept {
    reinterpret_cast<Ipv4Header*>(headers + kIpOffset)->id = htons(next_id());
}

void build_udp_headers(const UdpTemplate& from, std::uint16_t payload, std::uint8_t* out) noexcept {
    build_ip_headers(from, IPPROTO_UDP, out);
    auto* ip = reinterpret_cast<Ipv4Header*>(out + kIpOffset);
    ip->total_length = htons(static_cast<std::uint16_t>(sizeof(Ipv4Header) + sizeof(UdpHeader) + payload));
    ip->checksum = static_cast<std::uint16_t>(~checksum_fold(ip_header_sum(out + kIpOffset)));
    UdpHeader udp{};
    udp.src_port = from.src_port;
    udp.dst_port = from.dst_port;
    udp.length = htons(static_cast<std::uint16_t>(sizeof(UdpHeader) + payload));
    memcpy(out + kL4Offset, &udp, sizeof udp);
}

void finish_udp_headers(std::uint8_t* headers, std::uint16_t payload) noexcept {
    auto* ip = reinterpret_cast<Ipv4Header*>(headers + kIpOffset);
    auto* udp = reinterpret_cast<UdpHeader*>(headers + kL4Offset);
    const std::uint16_t total =
        htons(static_cast<std::uint16_t>(sizeof(Ipv4Header) + sizeof(UdpHeader) + payload));
    std::uint64_t sum = replace(static_cast<std::uint16_t>(~ip->checksum), ip->total_length, total);
    ip->total_length = total;
    if ((ip->fragment & htons(kDontFragment)) == 0) [[unlikely]] {
        const std::uint16_t id = htons(next_id());
        sum = replace(sum, ip->id, id);
        ip->id = id;
    }
    ip->checksum = static_cast<std::uint16_t>(~checksum_fold(sum));
    udp->length = htons(static_cast<std::uint16_t>(sizeof(UdpHeader) + payload));
    udp->checksum = 0;
}

}  // namespace vma::net
