// SPDX-License-Identifier: BSD-2-Clause
#pragma once

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "libvma/net/address.h"
#include "libvma/net/frame.h"
#include "libvma/ring/ring.h"
#include "libvma/tcp/lwip/segment.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {

// A received segment, taken apart.
struct ArrivedSegment {
    explicit ArrivedSegment(ring::RxBuffer* b) noexcept
        : buffer(b), ends{{b->dst_addr, b->dst_port}, {b->src_addr, b->src_port}}, now(Clock::now()) {
        const auto* at = b->frame + b->l4_offset;
        net::TcpHeader h;
        std::memcpy(&h, at, sizeof h);
        seq = ntohl(h.seq);
        ack = ntohl(h.ack);
        flags = h.flags;
        reserved = h.data_offset & 15;
        end = seq + b->payload_length + ((flags & TCP_SYN) != 0) + ((flags & TCP_FIN) != 0);
        const std::uint32_t from = b->l4_offset + sizeof h, to = std::min(b->payload_offset, b->length);
        if (from < to) options = {at + sizeof h, to - from};
    }
    bool is_syn() const noexcept { return (flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == TCP_SYN; }

    ring::RxBuffer* buffer;
    net::Endpoints ends;
    Time now;
    std::uint32_t seq = 0, ack = 0, end = 0;
    std::uint8_t flags = 0, reserved = 0;
    std::span<const std::uint8_t> options;
};

}  // namespace vma::tcp
