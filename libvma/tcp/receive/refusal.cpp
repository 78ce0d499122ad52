// SPDX-License-Identifier: BSD-2-Clause
// What is not taken as it comes: a segment that is refused, one that somebody else shall have, and the SYN
// that ends TIME_WAIT.
#include <netinet/in.h>

#include <algorithm>
#include <span>

#include "libvma/tcp/connection.h"
#include "libvma/tcp/handshake/syn.h"
#include "libvma/tcp/lwip/frames.h"
#include "libvma/tcp/lwip/received_header.h"
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

// Tells the sender of a segment that is not taken what is wanted. Data comes again when an ACK got lost, and
// is never an answer to one.
void Acceptance::refuse(std::uint8_t flags, std::uint32_t length, std::uint32_t seq) noexcept {
    if ((length != 0 || (flags & TCP_FIN)) && !(flags & TCP_SYN)) {
        if (seq_before(seq, tcb_.pcb->rcv_nxt()))
            tcb_.receiver.note_old(seq, seq + length + ((flags & TCP_FIN) != 0));
        tcb_.pcb->ack_now();
    } else {
        challenge();
    }
}

// An ACK that may itself be refused, and answered. So there is one in a while, as in the kernel
// (tcp_oow_rate_limited()): else two ends that disagree, or two victims of one liar, would go on for ever.
void Acceptance::challenge() noexcept {
    if (challenged_at_ != kNoTime && last_rx_ - challenged_at_ < tcb_.options.invalid_ratelimit) return;
    challenged_at_ = last_rx_;
    tcb_.counters.challenge_acks++;
    tcb_.pcb->ack_now();
}

// An ACK without data, whose time stamp is old. Where packets overtake each other that is one that repeats
// what is known, and comes soon: then it counts (the kernel's tcp_disordered_ack_check()).
bool Acceptance::old_stamp_counts(const lwip::ReceivedHeader& h, std::uint32_t stamp) const noexcept {
    const lwip::Pcb* const pcb = tcb_.pcb;
    const std::uint32_t window = std::uint32_t{h.window()} << (pcb->window_scaling() ? pcb->snd_scale() : 0);
    const bool news = seq_before(window_seq_, h.seq()) ||
                      (h.seq() == window_seq_ && (window > pcb->snd_wnd() || window == 0));
    return h.seq() == pcb->rcv_nxt() && h.ack() == pcb->snd_una() && !news &&
           Msec(pcb->ts_recent() - stamp) <= tcb_.recovery.rto() * 6 / 5;
}

// Does the segment announce urgent data that somebody may want to know of? Then it is not for us.
bool Acceptance::urgent_wanted(const lwip::ReceivedHeader& h) noexcept {
    const std::uint32_t offset = h.urgent_offset();
    const std::uint32_t urgent =
        h.seq() + (offset != 0 ? offset - 1 : 0);               // RFC 6093: the kernel takes the byte before
    if (seq_before(urgent, tcb_.pcb->rcv_nxt())) return false;  // of the past
    if (tcb_.phase.orphan || tcb_.shown.urgent_kept()) return false;
    tcb_.shown.see_urgent();
    if (tcb_.owner != nullptr) tcb_.owner->changed();
    return true;
}

// Older than any window that the peer can have seen, or than all that it has acknowledged (RFC 5961 section
// 5.2)?
bool Acceptance::too_old(std::uint32_t ack) const noexcept {
    const auto most =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(tcb_.pcb->max_snd_wnd(), tcb_.counters.acked));
    return seq_before(ack, tcb_.pcb->snd_una() - most);
}

}  // namespace vma::tcp
