// SPDX-License-Identifier: BSD-2-Clause
// lwIP's segments as the sending half sees them: numbers, and where the data is.
#pragma once

#include <netinet/in.h>

#include <cstdint>

#include "libvma/net/frame.h"
#include "libvma/tcp/lwip/lwip.h"

namespace vma::tcp {

inline std::uint32_t seq_of(const tcp_seg* segment) noexcept { return ntohl(segment->tcphdr->seqno); }
// How many sequence numbers it takes.
inline std::uint32_t span_of(const tcp_seg* segment) noexcept { return TCP_TCPLEN(segment); }
inline std::uint8_t* data_of(const tcp_seg* segment) noexcept {
    return reinterpret_cast<std::uint8_t*>(segment->tcphdr) + sizeof(net::TcpHeader);
}

}  // namespace vma::tcp
