// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/receive/receiver.h"

#include <errno.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "libvma/config/params.h"
#include "libvma/tcp/connection.h"
#include "libvma/tcp/lwip/entry.h"
#include "libvma/tcp/lwip/frames.h"
#include "libvma/tcp/lwip/piece.h"
#include "libvma/tcp/lwip/received_header.h"
#include "libvma/tcp/memory_bound.h"
#include "libvma/tcp/sequence.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {

void Receiver::input(ring::RxBuffer* list) noexcept {
    const Time now = Clock::now();
    const bool merge = config::get().gro_streams_max != 0;
    while (list != nullptr) {
        ring::RxBuffer* first = list;
        list = first->next;
        first->next = nullptr;
        if (__builtin_expect(tcb_.freeze.takes_frames(), 0)) {
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
        if (first->payload_length >= BulkRun::kLongFrame && first->ring->attr().kernel_receives_bulk &&
            bulk_.add(first->payload_length, now, first->ring->bulk_streams().count()))
            tcb_.shown.see_bulk();
        // Without SACK a sender counts the duplicate ACKs, one for each segment behind a gap.
        const bool counted = !tcb_.pcb->sack() && ntohl(header_of(*first).seq) != tcb_.pcb->rcv_nxt();
        tcb_.ecn.arriving(first->tos);
        if (__builtin_expect((header_of(*first).flags & TCP_URG) != 0, 0)) {
            input_urgent(first, now);
            continue;
        }
        lwip::Piece* p = merge && !counted ? merged_part(first, list, tcb_.counters.merged) : tcp_part(first);
        if (p != nullptr) input_segment(p, now);
    }
    if (tcb_.pcb != nullptr) tcb_.sender.output(now);
}

// Such a segment may be the kernel's, and checking it changes its header. So a copy is kept until that is
// known.
void Receiver::input_urgent(ring::RxBuffer* frame, Time now) noexcept {
    const bool known = tcb_.shown.urgent_seen();
    ring::RxBuffer* copy = known ? nullptr : frame->copy();
    if (lwip::Piece* p = tcp_part(frame); p != nullptr) input_segment(p, now);
    if (copy == nullptr) return;
    if (tcb_.pcb != nullptr && tcb_.shown.urgent_seen())
        tcb_.freeze.await_move(copy);
    else
        copy->release();
}

void Receiver::input_segment(lwip::Piece* p, Time now) noexcept {
    Tcb& t = tcb_;
    lwip::Pcb* const pcb = t.pcb;
    t.counters.segments_in++;
    t.acceptance.arrived(now);
    const std::uint32_t una = pcb->snd_una(), window = pcb->snd_wnd(), expected = pcb->rcv_nxt();
    const bool handshake = pcb->in_handshake();
    if (__builtin_expect(memory_bound::scarce() || starved_, 0)) save_memory(*p);
    if (!take_expected(p)) through_lwip(p);
    if (t.pcb == nullptr) return;
    if (pcb->rcv_nxt() != expected && !early_.empty()) {
        take_early();
        if (t.pcb == nullptr) return;
    }
    if (!handshake) t.counters.received += pcb->rcv_nxt() - expected;
    if (seq_before(una, pcb->snd_una())) {
        acknowledged(pcb->snd_una() - una, handshake);
    }
    if (pcb->snd_wnd() != window || handshake) {
        if (__builtin_expect(t.route.bound_by_window(), 0)) t.route.mss_changed();
        t.timers.probe_at = kNoTime;
    }
    if (t.timers.probes() == 0) t.timers.probe_at = kNoTime;
    if (t.phase.orphan && pcb->in(State::fin_wait2)) t.timers.start_fin_wait2();
}

// Header prediction (Van Jacobson): nearly every segment of a connection is the one that is expected next,
// and moves a few numbers. lwIP would do the same with it, by way of all its cases. True: the segment is
// taken.
[[gnu::always_inline]] inline bool Receiver::take_expected(lwip::Piece* p) noexcept {
    Tcb& t = tcb_;
    if (p->size() < sizeof(net::TcpHeader)) return false;
    const auto& h = *reinterpret_cast<const net::TcpHeader*>(p->data());
    const std::uint32_t header = std::uint32_t{h.data_offset} >> 4 << 2;
    if (header < sizeof h || header > p->size()) return false;
    const std::uint32_t length = p->total() - header;
    if (!t.acceptance.take_expected(h, header - static_cast<unsigned>(sizeof h), length)) return false;
    t.queue.freed();
    if (length == 0) {
        p->free_chain();
        return true;
    }
    t.pcb->received(length, t.opening.full_window());
    p->remove_header(header);
    received(p);
    return true;
}

// Any other segment.
void Receiver::through_lwip(lwip::Piece* p) noexcept {
    Tcb& t = tcb_;
    t.pcb->rest();
    if (t.phase.established) {
        t.shown.note_queued(t.queue.queued());  // an ACK of the same batch counts, though a RST follows
        trim_to_window(p);
    }
    processing_ = true;
    t.in_lwip(
        [&](lwip::Entry& entry) { entry.input(p, t.ends.remote.address.v4(), t.ends.local.address.v4()); });
    processing_ = false;
}

// The peer has acknowledged `bytes` more.
void Receiver::acknowledged(std::uint32_t bytes, bool handshake) noexcept {
    Tcb& t = tcb_;
    if (!handshake || !t.origin.passive()) t.counters.acked += bytes;
    // The backoff stays until a round trip is measured (RFC 6298 section 5, Karn): where it takes longer than
    // the timeout, the next timeout would be as wrong as this one.
    t.recovery.answered();
    t.timers.probing_over();
    t.sender.acked(t.pcb->snd_una());
    t.route.clear_soft_error();
    const Time now = t.acceptance.last_rx();
    t.timers.rto_at = t.pcb->unacked() != nullptr ? now + t.recovery.wait_after_ack() : kNoTime;
    if (handshake) t.opening.measure(now);
    if (handshake && !t.origin.passive()) t.acks.opened(now);
    t.route.confirm();
}

std::size_t Receiver::read(const iovec* iov, std::size_t count, std::size_t length,
                           const ReceiveQueue::How& how) noexcept {
    const std::size_t done = queue_.read(iov, count, length, how);
    if (how.take && done != 0) {
        tcb_.shown.set_readable(queue_.bytes());
        if (tcb_.pcb != nullptr && !tcb_.pcb->in(State::time_wait)) open_window();
    }
    return done;
}

// ---- the extra API ----

void Receiver::show_readable() noexcept { tcb_.shown.set_readable(undecided() ? 0 : queue_.bytes()); }

std::size_t Receiver::lent() noexcept {
    if (__builtin_expect(lent_ != 0, 0)) lent_ -= returned_.exchange(0, std::memory_order_relaxed);
    return lent_;
}

ssize_t Receiver::lend(LentData& out, unsigned most, bool undecided, std::size_t bytes) noexcept {
    if (undecided != this->undecided()) return 0;
    unsigned taken = 0;
    for (; taken < most && queue_.first() != nullptr; taken++) {
        if (taken != 0 && out.bytes() + queue_.first()->size() > bytes) break;
        lwip::Piece* piece = queue_.take_first();
        if (ring::RxBuffer* buffer = piece->buffer(); buffer != nullptr && !buffer->lend(1)) {
            lwip::Piece* copy = lwip::Piece::copy_of(piece->data(), piece->size());
            if (copy == nullptr) {
                queue_.put_first(piece);
                break;
            }
            piece->free();
            piece = copy;
        }
        out.add(piece);
    }
    if (taken == 0) return queue_.first() != nullptr ? -ENOBUFS : 0;
    lent_ += out.charge_;
    out.connection_ = &tcb_.connection;
    tcb_.connection.ref();
    show_readable();
    return static_cast<ssize_t>(out.bytes());
}

void Receiver::judged(LentData* data) noexcept {
    if (data != nullptr && *data) {
        lwip::Piece* backwards = nullptr;
        for (lwip::Piece* p = std::exchange(data->first_, nullptr); p != nullptr;) {
            lwip::Piece* next = p->next();
            if (ring::RxBuffer* buffer = p->buffer()) buffer->end_loan(1);
            p->set_next(backwards);
            backwards = p;
            p = next;
        }
        while (backwards != nullptr) {
            lwip::Piece* next = backwards->next();
            queue_.put_first(backwards);
            backwards = next;
        }
        lent_ -= data->charge_;
        std::exchange(data->connection_, nullptr)->unref_later();
        make_readable();  // without a callback, too: lend() has hidden it
    } else if (queue_.first() == nullptr) {
        decide_all();
    }
}

void Receiver::decide_all() noexcept {
    if (undecided()) make_readable();
}

void Receiver::make_readable() noexcept {
    undecided_.store(false, std::memory_order_relaxed);
    show_readable();
    tcb_.shown.wake_readers();
}

void Receiver::clear() noexcept {
    queue_.clear();
    clear_early();
}

// Cuts off what lies beyond our window. lwIP does so only for some segments; others would make its window
// negative. A FIN needs no room, as in the kernel: else the end of a stream that just fills the window would
// wait for a retransmission.
void Receiver::trim_to_window(lwip::Piece* p) noexcept {
    lwip::Pcb* const pcb = tcb_.pcb;
    if (p->size() < sizeof(net::TcpHeader) || pcb->in(State::time_wait)) return;
    auto& h = *reinterpret_cast<net::TcpHeader*>(p->data());
    const std::uint32_t header = std::uint32_t{h.data_offset} >> 4 << 2;
    if (header < sizeof h || header > p->size() || (h.flags & (TCP_SYN | TCP_RST))) return;
    const std::uint32_t seq = ntohl(h.seq), length = p->total() - header,
                        right = pcb->rcv_nxt() + pcb->rcv_wnd();
    if ((h.flags & TCP_FIN) && seq + length == right && !fin_room_) {
        fin_room_ = true;
        pcb->set_rcv_wnd(pcb->rcv_wnd() + 1);
        return;
    }
    // A probe of a closed window, or something far off: answered elsewhere.
    if (!seq_before(seq, right) || !seq_before(right, seq + length)) return;
    h.flags &= static_cast<std::uint8_t>(~TCP_FIN);
    p->shorten(header + (right - seq));
}

// As the kernel's tcp_data_queue(): while memory is out, a connection with unread data gets no more, and
// tells the peer that its window is closed. What was out of sequence goes first. The peer probes, and so
// learns when there is memory again.
void Receiver::save_memory(lwip::Piece& p) noexcept {
    lwip::Pcb* const pcb = tcb_.pcb;
    if (!tcb_.phase.established || pcb->in(State::time_wait)) return;
    if (!memory_bound::over()) {
        if (std::exchange(starved_, false)) open_window();
        return;
    }
    clear_early();
    if (queue_.bytes() == 0 || p.size() < sizeof(net::TcpHeader)) return;
    auto& h = *reinterpret_cast<net::TcpHeader*>(p.data());
    const std::uint32_t header = std::uint32_t{h.data_offset} >> 4 << 2;
    if (header < sizeof h || header > p.size() || header == p.total() || (h.flags & (TCP_SYN | TCP_RST)))
        return;
    memory_bound::note_drop();
    h.flags &= static_cast<std::uint8_t>(~TCP_FIN);
    p.shorten(header);
    starved_ = true;
    pcb->announce(0);
    pcb->ack_now();
}

// What the receive queue may hold. A smaller TCP_WINDOW_CLAMP bounds the window, not this.
std::uint32_t Receiver::capacity() const noexcept {
    return std::max(tcb_.options.receive_window != 0 ? tcb_.options.receive_window : 65535u, 536u);
}

void Receiver::received(lwip::Piece* p) noexcept {
    const std::size_t before = queue_.bytes();
    queue_.append(p, scarce_.load(std::memory_order_relaxed), capacity(), early_.held());
    if (queue_.bytes() == before) return;
    if (__builtin_expect(filtered_, 0) && before == 0) undecided_.store(true, std::memory_order_relaxed);
    show_readable();
    tcb_.shown.wake_readers();
    widen_window();
}

void Receiver::peer_finished() noexcept {
    tcb_.phase.peer_closed = true;
    tcb_.phase.fin_seen = true;
    tcb_.shown.wake_readers();
    if (tcb_.pcb->in(State::close_wait) && !replaying_)
        tcb_.acks.fin_received();
    else
        tcb_.pcb->ack_now();
}

// As the kernel's __tcp_select_window(): under pressure a window opens by some segments only while much is
// unread.
std::size_t Receiver::scarce_room(std::size_t room) const noexcept {
    if (starved_) return 0;
    return room >= capacity() / 2 ? room : std::min<std::size_t>(room, 4 * tcb_.route.wanted_mss());
}

// Makes our window as large as the capacity allows. Never smaller: the peer may use what it was told.
void Receiver::widen_window() noexcept {
    lwip::Pcb* const pcb = tcb_.pcb;
    const std::size_t most = std::min(capacity(), tcb_.acks.window_limit()), used = queue_.bytes() + lent();
    std::size_t room = most > used ? most - used : 0;
    if (__builtin_expect(memory_bound::scarce() || starved_, 0)) room = scarce_room(room);
    if (room <= pcb->rcv_wnd()) return;
    const std::uint32_t full = tcb_.opening.full_window();
    const auto window = static_cast<std::uint32_t>(std::min<std::size_t>(room, pcb->largest_rcv_wnd(full)));
    if (window > pcb->rcv_wnd()) pcb->widen(window, full);
}

void Receiver::open_window() noexcept {
    if (__builtin_expect(starved_, 0) && (queue_.bytes() == 0 || !memory_bound::over())) starved_ = false;
    widen_window();
    lwip::Pcb* const pcb = tcb_.pcb;
    // Tell the peer when what it may send has at least doubled, by a segment or more (RFC 9293
    // section 3.8.6.2.2).
    const std::uint32_t known = pcb->announced_edge() - pcb->rcv_nxt();
    if (pcb->rcv_wnd() >= 2 * known &&
        pcb->rcv_wnd() - known >= std::min<std::uint32_t>(tcb_.acks.largest_in(), pcb->rcv_wnd() / 2) &&
        !pcb->in_handshake()) {
        pcb->announce(pcb->rcv_wnd());
        pcb->ack_now();
        tcb_.sender.output();
    }
}

}  // namespace vma::tcp
