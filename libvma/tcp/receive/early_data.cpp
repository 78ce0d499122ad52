// SPDX-License-Identifier: BSD-2-Clause
// What comes behind a gap, or twice.
#include <netinet/in.h>

#include <cstddef>

#include "libvma/tcp/connection.h"
#include "libvma/tcp/lwip/entry.h"
#include "libvma/tcp/lwip/piece.h"
#include "libvma/tcp/lwip/received_header.h"
#include "libvma/tcp/memory_bound.h"
#include "libvma/tcp/receive/receiver.h"
#include "libvma/tcp/sequence.h"
#include "libvma/tcp/tcb_inline.h"

namespace vma::tcp {

bool Receiver::tells_duplicates() const noexcept {
    return tcb_.pcb->sack() && tcb_.options.dsack && !tcb_.phase.in_time_wait;
}

void Receiver::note_old(std::uint32_t left, std::uint32_t right) noexcept {
    constexpr std::uint32_t kLargestWindow = 1u << 30;  // RFC 7323: what is older was never sent twice
    const std::uint32_t next = tcb_.pcb->rcv_nxt();
    if (!seq_before(next, right)) tcb_.acks.duplicate_received();
    if (tells_duplicates() && next - left <= kLargestWindow) duplicate_.set({left, seq_min(right, next)});
}

std::size_t Receiver::sack_blocks(SackBlock* out, std::size_t most) const noexcept {
    std::size_t n = 0;
    if (duplicate_.due()) out[n++] = duplicate_.block();
    return n + early_.blocks(out + n, most - n);
}

void Receiver::clear_early() noexcept { early_.clear(); }

// Data, or a FIN, behind a gap. lwIP will not see it before the gap is filled. The ACK goes at once (RFC 5681
// section 4.2): a peer without SACK counts them.
void Receiver::keep_early(std::uint32_t seq, const lwip::Piece& p, bool fin) noexcept {
    // After the FIN, or when nobody can read it any more, it is of no use.
    if (!tcb_.pcb->peer_finished() && !tcb_.pcb->refuses_data()) {
        const std::uint32_t length = p.total();
        if (const SackBlock twice = early_.known(seq, seq + length + (fin ? 1 : 0));
            twice.left != twice.right && tells_duplicates())
            duplicate_.set(twice);
        const bool scarce =
            __builtin_expect(memory_bound::scarce(), 0) && early_.held() >= memory_bound::early_limit();
        if (scarce && length != 0) memory_bound::note_drop();
        const bool whole = length == 0 || (!scarce && early_.keep(seq, &p, length, capacity()));
        if (fin && whole) early_.keep_fin(seq + length);
    }
    lwip::ReceivedHeader::drop_text();
    if (!tcb_.pcb->in(State::syn_recv)) tcb_.writer.send_ack();
}

// Data came in sequence: what lay behind the gap may follow now.
void Receiver::take_early() noexcept {
    if (tcb_.pcb->peer_finished()) {  // the peer's FIN came in sequence: there was nothing behind it
        clear_early();
        return;
    }
    tcb_.pcb->ack_now();  // RFC 5681 section 4.2: a gap is filled, wholly or in part
    std::uint32_t bytes = 0;
    SackBlock twice;
    lwip::Piece* const chain = early_.take(tcb_.pcb->rcv_nxt(), bytes, twice);
    if (twice.left != twice.right && tells_duplicates()) duplicate_.extend(twice);
    if (chain != nullptr) {
        tcb_.pcb->received(bytes, tcb_.opening.full_window());
        received(chain);
    }
    const std::uint32_t fin_at = early_.fin_at();
    if (!early_.has_fin() || seq_before(tcb_.pcb->rcv_nxt(), fin_at)) return;
    const bool now = tcb_.pcb->rcv_nxt() == fin_at;
    early_.drop_fin();
    if (!now) return;  // the peer sent data behind its FIN
    early_.clear();
    net::TcpHeader h{};
    h.src_port = tcb_.ends.remote.port;
    h.dst_port = tcb_.ends.local.port;
    h.seq = htonl(fin_at);
    h.ack = htonl(tcb_.pcb->snd_una());
    h.data_offset = sizeof h / 4 << 4;
    h.flags = TCP_ACK | TCP_FIN;
    lwip::Piece* p = lwip::Piece::copy_of(&h, sizeof h);
    if (p == nullptr) return;                                // the peer sends it again
    if (tcb_.pcb->rcv_wnd() == 0) tcb_.pcb->set_rcv_wnd(1);  // a FIN needs no room
    replaying_ = true;
    tcb_.in_lwip([&](lwip::Entry& entry) {
        entry.input(p, tcb_.ends.remote.address.v4(), tcb_.ends.local.address.v4());
    });
    replaying_ = false;
}

}  // namespace vma::tcp
