// SPDX-License-Identifier: BSD-2-Clause
// What completes the headers of a UDP datagram that was copied to a send buffer.
#pragma once

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>

#include "libvma/net/checksum.h"
#include "libvma/net/frame.h"

namespace vma::ring {

// `frame`: net::kUdpHeaders bytes, a template; `sum`: of the `length` bytes of payload; `offload`: the device
// sums, and needs the pseudo header's sum only.
inline void finish_udp_frame(std::uint8_t* frame, std::size_t length, std::uint64_t sum,
                             bool offload) noexcept {
    net::finish_udp_headers(frame, static_cast<std::uint16_t>(length));
    auto* ip = reinterpret_cast<const net::Ipv4Header*>(frame + sizeof(net::EthernetHeader));
    auto* udp =
        reinterpret_cast<net::UdpHeader*>(frame + sizeof(net::EthernetHeader) + sizeof(net::Ipv4Header));
    const std::uint32_t udp_length = static_cast<std::uint32_t>(length) + sizeof(net::UdpHeader);
    std::uint64_t pseudo = net::pseudo_header_sum(ip->src, ip->dst, IPPROTO_UDP, udp_length);
    if (offload) {
        udp->checksum = net::checksum_fold(pseudo);
        return;
    }
    sum = net::checksum_add(udp, sizeof *udp, sum + pseudo);
    std::uint16_t folded = static_cast<std::uint16_t>(~net::checksum_fold(sum));
    udp->checksum = folded == 0 ? 0xffff : folded;  // 0 would mean "none" (RFC 768)
}

// For TxQueue::post_frame().
struct UdpSums {
    std::size_t length;
    void operator()(std::uint8_t* frame, std::uint64_t sum, bool offload) const noexcept {
        finish_udp_frame(frame, length, sum, offload);
    }
};

}  // namespace vma::ring
