// SPDX-License-Identifier: BSD-2-Clause
// What completes the headers of a UDP datagram whose payload is where it leaves from.
#pragma once

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>

#include "libvma/net/checksum.h"
#include "libvma/net/frame.h"

namespace vma::net {

// `frame`: kUdpHeaders bytes, a template; `sum`: of the `length` bytes of payload; `offload`: the device
// sums, and needs the pseudo header's sum only.
inline void finish_udp_frame(std::uint8_t* frame, std::size_t length, std::uint64_t sum,
                             bool offload) noexcept {
    finish_udp_headers(frame, static_cast<std::uint16_t>(length));
    auto* ip = reinterpret_cast<const Ipv4Header*>(frame + sizeof(EthernetHeader));
    auto* udp = reinterpret_cast<UdpHeader*>(frame + sizeof(EthernetHeader) + sizeof(Ipv4Header));
    const std::uint32_t udp_length = static_cast<std::uint32_t>(length) + sizeof(UdpHeader);
    std::uint64_t pseudo = pseudo_header_sum(ip->src, ip->dst, IPPROTO_UDP, udp_length);
    if (offload) {
        udp->checksum = checksum_fold(pseudo);
        return;
    }
    sum = checksum_add(udp, sizeof *udp, sum + pseudo);
    std::uint16_t folded = static_cast<std::uint16_t>(~checksum_fold(sum));
    udp->checksum = folded == 0 ? 0xffff : folded;  // 0 would mean "none" (RFC 768)
}

}  // namespace vma::net
