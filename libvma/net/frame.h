// SPDX-License-Identifier: BSD-2-Clause
// Ethernet II + IPv4 + UDP/TCP: the wire formats, and the one place that parses a received frame.
#pragma once

#include <netinet/in.h>

#include <array>
#include <cstdint>
#include <span>

namespace vma::net {

using MacAddress = std::array<std::uint8_t, 6>;

struct [[gnu::packed]] EthernetHeader {
    std::uint8_t dst[6];
    std::uint8_t src[6];
    std::uint16_t type;  // network order
};
struct [[gnu::packed]] Ipv4Header {
    std::uint8_t version_ihl;
    std::uint8_t tos;
    std::uint16_t total_length;
    std::uint16_t id;
    std::uint16_t fragment;  // flags and offset
    std::uint8_t ttl;
    std::uint8_t protocol;
    std::uint16_t checksum;
    std::uint32_t src;
    std::uint32_t dst;
};
struct [[gnu::packed]] UdpHeader {
    std::uint16_t src_port;
    std::uint16_t dst_port;
    std::uint16_t length;
    std::uint16_t checksum;
};
struct [[gnu::packed]] TcpHeader {
    std::uint16_t src_port;
    std::uint16_t dst_port;
    std::uint32_t seq;
    std::uint32_t ack;
    std::uint8_t data_offset;  // in its upper half, in words of 4 bytes
    std::uint8_t flags;
    std::uint16_t window;
    std::uint16_t checksum;
    std::uint16_t urgent;
};
static_assert(sizeof(EthernetHeader) == 14 && sizeof(Ipv4Header) == 20 && sizeof(UdpHeader) == 8 &&
              sizeof(TcpHeader) == 20);

inline constexpr std::uint16_t kEthertypeIpv4 = 0x0800;
inline constexpr std::uint16_t kDontFragment = 0x4000, kMoreFragments = 0x2000, kFragmentOffset = 0x1fff;
inline constexpr std::size_t kUdpHeaders = sizeof(EthernetHeader) + sizeof(Ipv4Header) + sizeof(UdpHeader);

// Why a frame was not accepted. Each reason has a counter; the statistics print these names.
enum class Drop : std::uint8_t {
    none,
    short_frame,    // shorter than the headers, or than IP's total length
    bad_ethertype,  // not IPv4
    bad_ip_header,  // version, IHL, total length
    bad_ip_checksum,
    fragment,       // rules should leave fragments to the kernel
    bad_protocol,   // neither UDP nor TCP
    bad_l4_length,  // UDP length or TCP data offset does not fit
    bad_l4_checksum,
    count_
};
const char* drop_name(Drop drop) noexcept;

// A frame as pieces in memory order: the first piece holds at least all headers that parse() accepts.
using FramePieces = std::span<const std::span<const std::uint8_t>>;

struct ParsedFrame {
    const Ipv4Header* ip = nullptr;
    in_addr_t src_addr = 0, dst_addr = 0;  // network order
    in_port_t src_port = 0, dst_port = 0;  // network order
    std::uint8_t protocol = 0, tos = 0, ttl = 0;
    std::uint32_t l4_offset = 0;       // bytes from the start of the frame to the UDP or TCP header
    std::uint32_t payload_offset = 0;  // bytes from the start of the frame
    std::uint32_t payload_length = 0;  // UDP: the UDP length less 8; TCP: what IP's total length leaves
};

// Parses and validates one received frame. Never reads outside the pieces, whatever they contain. Ignores
// bytes after IP's total length (Ethernet padding). `checksum_good` skips the IP and L4 sums, because the
// device has checked them. Otherwise the L4 sum must be right or absent (UDP 0, RFC 768). With `partial_sums`
// it may also be exactly the pseudo-header sum: a frame that never left this host carries the kernel's
// partial checksum. Returns Drop::none when `out` is valid.
Drop parse(FramePieces frame, bool checksum_good, ParsedFrame& out, bool partial_sums = true) noexcept;

// The same for a frame in one piece.
inline Drop parse(std::span<const std::uint8_t> frame, bool checksum_good, ParsedFrame& out,
                  bool partial_sums = true) noexcept {
    return parse(FramePieces(&frame, 1), checksum_good, out, partial_sums);
}

// Takes the tag out of a frame that has a priority tag (IEEE 802.1Q: VLAN 0), which belongs to the untagged
// interface: the bytes behind it move. The result is the first piece's new length; the same one: nothing was
// done.
std::size_t remove_priority_tag(std::span<std::uint8_t> first) noexcept;

// Turns the partial checksum (see parse()) of a UDP or TCP frame that parse() accepted into a full one.
// `first` is the frame's first piece again, writable.
void complete_sum(std::span<std::uint8_t> first, FramePieces frame) noexcept;

// Writes Ethernet, IPv4 and UDP headers at `out` (kUdpHeaders bytes) for a datagram of `payload` bytes. The
// IP sum is complete, the UDP checksum field is 0. A destination caches the result as its template.
struct UdpTemplate {
    MacAddress src_mac{}, dst_mac{};
    in_addr_t src_addr = 0, dst_addr = 0;
    in_port_t src_port = 0, dst_port = 0;
    std::uint8_t tos = 0, ttl = 64;
    bool dont_fragment = true;
};
void build_udp_headers(const UdpTemplate& from, std::uint16_t payload, std::uint8_t* out) noexcept;
// Writes the Ethernet and IPv4 headers of a flow (34 bytes) for IP protocol `protocol`, with IP's length and
// checksum 0.
void build_ip_headers(const UdpTemplate& from, std::uint8_t protocol, std::uint8_t* out) noexcept;

// Gives headers of build_ip_headers() a new identification where a router may fragment the packet (RFC 6864).
// Leaves the checksum alone.
void renew_ip_id(std::uint8_t* headers) noexcept;

// Completes the template `headers` for `payload` bytes: lengths, the IP checksum (incrementally), and a fresh
// identification where fragmentation is allowed (RFC 6864). The UDP checksum is 0.
void finish_udp_headers(std::uint8_t* headers, std::uint16_t payload) noexcept;

}  // namespace vma::net
