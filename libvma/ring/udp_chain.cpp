// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/ring/udp_chain.h"

#include <cstring>

#include "libvma/net/checksum.h"
#include "libvma/net/frame.h"
#include "libvma/net/udp_headers.h"

namespace vma::ring {

unsigned UdpChain::build(TxBuffers& buffers, const Way& way, std::uint32_t unsignalled,
                         const std::uint8_t* headers, const iovec* datagrams, unsigned count) noexcept {
    const std::size_t room = buffers.room() - net::kUdpHeaders;
    unsigned made = 0;
    for (; made < count; made++) {
        const std::size_t length = datagrams[made].iov_len;
        if (length > room) break;
        std::uint8_t* const frame = buffers.take();
        std::memcpy(frame, headers, net::kUdpHeaders);
        const bool offload = length >= way.offload_from;
        std::uint64_t sum = 0;
        std::uint8_t* const payload = frame + net::kUdpHeaders;
        if (offload)
            std::memcpy(payload, datagrams[made].iov_base, length);
        else
            sum = net::checksum_copy(payload, datagrams[made].iov_base, length, 0);
        net::finish_udp_frame(frame, length, sum, offload);

        const auto bytes = static_cast<std::uint32_t>(net::kUdpHeaders + length);
        pieces_[made] = {reinterpret_cast<std::uintptr_t>(frame), bytes, buffers.lkey()};
        ibv_send_wr& request = requests_[made];
        request.wr_id = buffers.posted();
        request.next = &request + 1;
        request.sg_list = &pieces_[made];
        request.num_sge = 1;
        request.opcode = IBV_WR_SEND;
        request.send_flags = offload ? static_cast<unsigned>(IBV_SEND_IP_CSUM) : 0u;
        if (bytes <= way.max_inline) request.send_flags |= IBV_SEND_INLINE;
        if (++unsignalled >= way.signal_every) {
            request.send_flags |= IBV_SEND_SIGNALED;
            unsignalled = 0;
        }
    }
    if (made != 0) requests_[made - 1].next = nullptr;
    return made;
}

void UdpChain::posted(TxBuffers& buffers, unsigned first, unsigned made) const noexcept {
    buffers.untake(made - first);
    for (unsigned i = 0; i < first; i++)
        if (requests_[i].send_flags & IBV_SEND_INLINE) buffers.free_last(first - i);
}

}  // namespace vma::ring
