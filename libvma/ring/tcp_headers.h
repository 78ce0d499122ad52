// SPDX-License-Identifier: BSD-2-Clause
// The last touch to the headers of a TCP segment that is to be sent.
#pragma once

#include <cstddef>
#include <cstdint>

#include "libvma/net/checksum.h"
#include "libvma/net/frame.h"

namespace vma::ring {

// `frame`: Ethernet, IPv4 without options, TCP with options (`header_length` bytes), with `length` bytes of
// payload behind. Fills in IP's length and sum, and TCP's sum: with `sum`, that of the payload, or for a
// device that `offload`s with the pseudo header's.
inline void finish_tcp_headers(std::uint8_t* frame, std::size_t header_length, std::size_t length,
                               std::uint64_t sum, bool offload) noexcept {
    constexpr std::size_t kTcpAt = sizeof(net::EthernetHeader) + sizeof(net::Ipv4Header);
    auto* ip = reinterpret_cast<net::Ipv4Header*>(frame + sizeof(net::EthernetHeader));
    ip->total_length =
        htons(static_cast<std::uint16_t>(header_length - sizeof(net::EthernetHeader) + length));
    ip->checksum = 0;
    ip->checksum = static_cast<std::uint16_t>(~net::checksum_fold(net::checksum_add(ip, sizeof *ip, 0)));
    auto* tcp = reinterpret_cast<net::TcpHeader*>(frame + kTcpAt);
    const std::size_t tcp_header = header_length - kTcpAt;
    const std::uint64_t pseudo = net::pseudo_header_sum(ip->src, ip->dst, IPPROTO_TCP,
                                                        static_cast<std::uint32_t>(tcp_header + length));
    tcp->checksum = 0;
    if (offload)
        tcp->checksum = net::checksum_fold(pseudo);
    else
        tcp->checksum =
            static_cast<std::uint16_t>(~net::checksum_fold(net::checksum_add(tcp, tcp_header, sum + pseudo)));
}

// For TxQueue::post_frame().
struct TcpSums {
    std::size_t header_length, length;
    void operator()(std::uint8_t* frame, std::uint64_t sum, bool offload) const noexcept {
        finish_tcp_headers(frame, header_length, length, sum, offload);
    }
};

}  // namespace vma::ring
