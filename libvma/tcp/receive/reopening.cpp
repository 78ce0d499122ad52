// SPDX-License-Identifier: BSD-2-Clause
// A SYN ends TIME_WAIT: the peer begins a new connection with the numbers of the old one.
#include <netinet/in.h>

#include <algorithm>
#include <span>

#include "libvma/tcp/connection.h"
#include "libvma/tcp/handshake/syn.h"
#include "libvma/tcp/lwip/frames.h"
#include "libvma/tcp/receive/acceptance.h"
#include "libvma/tcp/sequence.h"
#include "libvma/tcp/tcb_inline.h"

namespace vma::tcp {
namespace {

std::span<const std::uint8_t> options_of(const ring::RxBuffer& b) noexcept {
    const std::uint32_t from = b.l4_offset + sizeof(net::TcpHeader),
                        to = std::min(b.payload_offset, b.length);
    if (from >= to) return {};
    return {b.frame + from, to - from};
}

}  // namespace

// RFC 9293 section 3.10.7.4 and RFC 6191, as the kernel does it: a SYN beyond the old connection's numbers
// begins anew.
bool Acceptance::reopens(const ring::RxBuffer& buffer) const noexcept {
    const net::TcpHeader& h = header_of(buffer);
    if ((h.flags & (TCP_SYN | TCP_ACK | TCP_RST)) != TCP_SYN || !tcb_.origin.passive()) return false;
    const lwip::Pcb& pcb = *tcb_.pcb;
    Stamps stamps;
    const bool stamped = pcb.timestamps() && read_stamps(options_of(buffer), stamps);
    if (stamped && seq_before(stamps.value, pcb.ts_recent())) return false;
    return seq_before(pcb.rcv_nxt(), ntohl(h.seq)) || (stamped && stamps.value != pcb.ts_recent());
}

void Acceptance::reopen(ring::RxBuffer* buffer) noexcept {
    // From the backlog the ring is not ours to use; the peer's next SYN then finds the listener alone.
    if (!buffer->ring->rx_owned_by_me()) {
        tcb_.abandon(false);
        buffer->release();
        return;
    }
    // Beyond any segment of the old connection's that may still be on its way, as the kernel's
    // tcp_timewait_state_process().
    const std::uint32_t iss = tcb_.pcb->snd_nxt() + 65537;
    tcb_.abandon(false);
    // The listener's table has no rule of ours to compete with: it answers the SYN now, and the rule that
    // goes is replaced when the handshake is complete.
    if (!tcb_.origin.deliver_again(buffer, iss)) buffer->release();
}

}  // namespace vma::tcp
