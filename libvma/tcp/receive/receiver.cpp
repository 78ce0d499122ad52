// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/receive/receiver.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>

#include "libvma/config/params.h"
#include "libvma/tcp/connection.h"
#include "libvma/tcp/lwip/entry.h"
#include "libvma/tcp/lwip/frames.h"
#include "libvma/tcp/lwip/piece.h"
#include "libvma/tcp/sequence.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {

void Receiver::input(ring::RxBuffer* list) noexcept {
    const std::uint64_t now = now_ns();
    const bool merge = config::get().gro_streams_max != 0;
    while (list != nullptr) {
        ring::RxBuffer* first = list;
        list = first->next;
        first->next = nullptr;
        if (__builtin_expect(tcb_.freeze.away(), 0)) {
            tcb_.freeze.take_frame(first);
            continue;
        }
        if (tcb_.pcb == nullptr) {
            // The rule outlives the connection by some microseconds, and the peer may have begun the next one
            // by then.
            const bool next = tcb_.origin.passive() && first->ring->rx_owned_by_me();
            if (!next || !tcb_.origin.deliver(first)) first->release();
            continue;
        }
        if (tcb_.phase.in_time_wait && tcb_.acceptance.reopens(*first)) {
            tcb_.acceptance.reopen(first);
            continue;
        }
        // Without SACK a sender counts the duplicate ACKs, one for each segment behind a gap.
        const bool counted =
            (tcb_.pcb->flags & TF_SACK) == 0 && ntohl(header_of(*first).seq) != tcb_.pcb->rcv_nxt;
        lwip::Piece* p = merge && !counted ? merged_part(first, list, tcb_.counters.merged) : tcp_part(first);
        if (p != nullptr) input_segment(p, now);
    }
    if (tcb_.pcb != nullptr) tcb_.sender.output(now);
}

void Receiver::input_segment(lwip::Piece* p, std::uint64_t now) noexcept {
    Tcb& t = tcb_;
    tcp_pcb* const pcb = t.pcb;
    t.counters.segments_in++;
    t.acceptance.arrived(now);
    // lwIP's own fast retransmit and window arithmetic rest: see before_ack().
    pcb->rtime = -1;
    pcb->dupacks = 0;
    pcb->ssthresh = 0;
    pcb->cwnd = 0x7fffffff;
    pcb->bytes_acked = 0;
    pcb->rttest = 0;
    tcp_clear_flags(pcb, TF_ACK_DELAY);  // else lwIP wants an ACK for every second call of it
    const std::uint32_t una = pcb->lastack, window = pcb->snd_wnd, expected = pcb->rcv_nxt;
    const bool handshake = pcb->state == SYN_SENT || pcb->state == SYN_RCVD;
    if (t.phase.established) trim_to_window(p);
    processing_ = true;
    t.in_lwip([&](lwip::Entry& entry) { entry.input(p, t.ends.remote_addr, t.ends.local_addr); });
    processing_ = false;
    if (t.pcb == nullptr) return;
    if (pcb->rcv_nxt != expected && (fin_early_ || !early_.empty())) {
        take_early();
        if (t.pcb == nullptr) return;
    }
    if (!handshake) t.counters.received += pcb->rcv_nxt - expected;
    if (seq_before(una, pcb->lastack)) {
        acknowledged(pcb->lastack - una, handshake);
    }
    if (pcb->snd_wnd != window || t.timers.probes() == 0) t.timers.probe_at = 0;
    if (t.phase.orphan && pcb->state == FIN_WAIT_2) t.timers.start_fin_wait2();
}

// The peer has acknowledged `bytes` more.
void Receiver::acknowledged(std::uint32_t bytes, bool handshake) noexcept {
    Tcb& t = tcb_;
    if (!handshake || !t.origin.passive()) t.counters.acked += bytes;
    // The backoff stays until a round trip is measured (RFC 6298 section 5, Karn): where it takes longer than
    // the timeout, the next timeout would be as wrong as this one.
    t.recovery.answered();
    t.timers.probing_over();
    t.sender.acked(t.pcb->lastack);
    t.route.clear_soft_error();
    const std::uint64_t now = t.acceptance.last_rx_ns();
    t.timers.rto_at = t.pcb->unacked != nullptr ? now + t.recovery.rto_ns() : 0;
    if (handshake) t.opening.measure(now);
    t.route.confirm();
}

std::size_t Receiver::read(const iovec* iov, std::size_t count, std::size_t length,
                           const ReceiveQueue::How& how) noexcept {
    const std::size_t done = queue_.read(iov, count, length, how);
    if (how.take && done != 0) {
        tcb_.shown.set_readable(queue_.bytes());
        if (tcb_.pcb != nullptr && tcb_.pcb->state != TIME_WAIT) open_window();
    }
    return done;
}

void Receiver::clear() noexcept {
    queue_.clear();
    clear_early();
}

void Receiver::clear_early() noexcept {
    early_.clear();
    fin_early_ = false;
}

// Cuts off what lies beyond our window. lwIP does so only for some segments; others would make its window
// negative. A FIN needs no room, as in the kernel: else the end of a stream that just fills the window would
// wait for a retransmission.
void Receiver::trim_to_window(lwip::Piece* p) noexcept {
    tcp_pcb* const pcb = tcb_.pcb;
    if (p->size() < sizeof(net::TcpHeader) || pcb->state == TIME_WAIT) return;
    auto& h = *reinterpret_cast<net::TcpHeader*>(p->data());
    const std::uint32_t header = std::uint32_t{h.data_offset} >> 4 << 2;
    if (header < sizeof h || header > p->size() || (h.flags & (TCP_SYN | TCP_RST))) return;
    const std::uint32_t seq = ntohl(h.seq), length = p->total() - header, right = pcb->rcv_nxt + pcb->rcv_wnd;
    if ((h.flags & TCP_FIN) && seq + length == right && !fin_room_) {
        fin_room_ = true;
        pcb->rcv_wnd++;
        return;
    }
    // A probe of a closed window, or something far off: answered elsewhere.
    if (!seq_before(seq, right) || !seq_before(right, seq + length)) return;
    h.flags &= static_cast<std::uint8_t>(~TCP_FIN);
    p->shorten(header + (right - seq));
}

// What the receive queue may hold. A smaller TCP_WINDOW_CLAMP bounds the window, not this.
std::uint32_t Receiver::capacity() const noexcept {
    return std::max(tcb_.options.receive_window != 0 ? tcb_.options.receive_window : 65535u, 536u);
}

// Data, or a FIN, behind a gap. lwIP will not see it before the gap is filled. The ACK goes at once (RFC 5681
// section 4.2): a peer without SACK counts them.
void Receiver::keep_early(std::uint32_t seq, const lwip::Piece& p, bool fin) noexcept {
    // After the FIN, or when nobody can read it any more, it is of no use.
    if (tcb_.pcb->state < CLOSE_WAIT && (tcb_.pcb->flags & TF_RXCLOSED) == 0) {
        const std::uint32_t length = p.total();
        const bool whole = length == 0 || early_.keep(seq, &p, length, capacity());
        if (fin && whole && !fin_early_) {
            fin_early_ = true;
            fin_at_ = seq + length;
        }
    }
    vma_lwip_drop_text();
    if (tcb_.pcb->state != SYN_RCVD) tcb_.writer.send_ack();
}

// Data came in sequence: what lay behind the gap may follow now.
void Receiver::take_early() noexcept {
    if (tcb_.pcb->state >= CLOSE_WAIT) {  // the peer's FIN came in sequence: there was nothing behind it
        clear_early();
        return;
    }
    tcp_ack_now(tcb_.pcb);  // RFC 5681 section 4.2: a gap is filled, wholly or in part
    std::uint32_t bytes = 0;
    if (lwip::Piece* chain = early_.take(tcb_.pcb->rcv_nxt, bytes); chain != nullptr) {
        tcb_.in_lwip([&](lwip::Entry&) {
            tcb_.pcb->rcv_nxt += bytes;
            tcb_.pcb->rcv_wnd -= std::min(bytes, tcb_.pcb->rcv_wnd);
            tcp_update_rcv_ann_wnd(tcb_.pcb);
            received(chain);
        });
    }
    if (tcb_.pcb == nullptr || !fin_early_ || seq_before(tcb_.pcb->rcv_nxt, fin_at_)) return;
    fin_early_ = false;
    if (tcb_.pcb->rcv_nxt != fin_at_) return;  // the peer sent data behind its FIN
    early_.clear();
    net::TcpHeader h{};
    h.src_port = tcb_.ends.remote_port;
    h.dst_port = tcb_.ends.local_port;
    h.seq = htonl(fin_at_);
    h.ack = htonl(tcb_.pcb->lastack);
    h.data_offset = sizeof h / 4 << 4;
    h.flags = TCP_ACK | TCP_FIN;
    lwip::Piece* p = lwip::Piece::copy_of(&h, sizeof h);
    if (p == nullptr) return;                           // the peer sends it again
    if (tcb_.pcb->rcv_wnd == 0) tcb_.pcb->rcv_wnd = 1;  // a FIN needs no room
    replaying_ = true;
    tcb_.in_lwip([&](lwip::Entry& entry) { entry.input(p, tcb_.ends.remote_addr, tcb_.ends.local_addr); });
    replaying_ = false;
}

void Receiver::received(lwip::Piece* p) noexcept {
    const std::size_t before = queue_.bytes();
    queue_.append(p, scarce_.load(std::memory_order_relaxed), capacity(), early_.held());
    if (queue_.bytes() == before) return;
    tcb_.shown.set_readable(queue_.bytes());
    tcb_.shown.wake_readers();
    widen_window();
}

void Receiver::peer_finished() noexcept {
    tcb_.phase.peer_closed = true;
    tcb_.phase.fin_seen = true;
    tcb_.shown.wake_readers();
    tcp_ack_now(tcb_.pcb);
}

// Makes our window as large as the capacity allows. Never smaller: the peer may use what it was told. Called
// inside lwIP.
void Receiver::widen_window() noexcept {
    tcp_pcb* const pcb = tcb_.pcb;
    const std::size_t most = capacity(), used = queue_.bytes();
    const std::size_t room = std::min<std::size_t>(most > used ? most - used : 0, TCP_WND_MAX(pcb));
    if (room <= pcb->rcv_wnd) return;
    pcb->rcv_wnd = static_cast<tcpwnd_size_t>(room);
    tcp_update_rcv_ann_wnd(pcb);
}

void Receiver::open_window() noexcept {
    tcb_.in_lwip([&](lwip::Entry&) { widen_window(); });
    tcp_pcb* const pcb = tcb_.pcb;
    if (pcb == nullptr) return;
    // Tell the peer when what it may send has at least doubled, by a segment or more (RFC 9293
    // section 3.8.6.2.2).
    const std::uint32_t known = pcb->rcv_ann_right_edge - pcb->rcv_nxt;
    if (pcb->rcv_wnd >= 2 * known &&
        pcb->rcv_wnd - known >= std::min<std::uint32_t>(tcb_.acks.largest_in(), pcb->rcv_wnd / 2) &&
        pcb->state != SYN_SENT && pcb->state != SYN_RCVD) {
        pcb->rcv_ann_wnd = pcb->rcv_wnd;
        tcp_ack_now(pcb);
        tcb_.sender.output();
    }
}

}  // namespace vma::tcp
