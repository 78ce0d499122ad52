// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/migrate/freeze.h"

#include <errno.h>
#include <netinet/in.h>

#include <algorithm>
#include <utility>

#include "libvma/tcp/connection.h"
#include "libvma/tcp/lwip/piece.h"
#include "libvma/tcp/migrate/handover.h"
#include "libvma/tcp/sequence.h"
#include "libvma/tcp/tcb_inline.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {
namespace {

// What a peer sends in the fraction of a millisecond that a move takes.
constexpr std::uint32_t kMostFrames = 1024;

}  // namespace

int Freeze::begin(KernelState& out) noexcept {
    try {
        out = {};
        out.ends = tcb_.ends;
        if (!tcb_.phase.established || away()) return -EOPNOTSUPP;
        tcb_.acks.settle();
        for (const lwip::Piece* p = tcb_.receiver.queue().first(); p != nullptr; p = p->next())
            if (p->size() != 0) out.receive_queue.push_back({p->data(), p->size()});
        if (tcb_.pcb == nullptr || tcb_.phase.in_time_wait) {
            describe_ended(out);
        } else {
            describe_queues(out);
            describe_terms(out);
        }
    } catch (...) {
        return -EOPNOTSUPP;
    }
    frozen_ = true;
    return 0;
}

// A connection that is over: only what the program has not read matters.
void Freeze::describe_ended(KernelState& out) const {
    out.over = true;
    out.error = tcb_.shown.error();
    out.peer_fin = tcb_.phase.fin_seen;
    // No segment comes any more, so any numbers do.
    out.snd_una = out.snd_nxt = 1;
    out.rcv_nxt = out.rcv_wup = out.snd_wl1 = static_cast<std::uint32_t>(tcb_.receiver.queue().bytes()) + 1;
    out.rcv_wnd = out.snd_wnd = out.max_window = 0xffff;
    // The program may still ask for the segment size. The kernel takes off its time stamps where it
    // would propose them.
    out.mss = static_cast<std::uint16_t>(tcb_.shown.mss() + (tcb_.options.timestamps ? kTimestampBytes : 0));
}

// Sequence numbers, and the data that is not acknowledged.
void Freeze::describe_queues(KernelState& out) const {
    lwip::Pcb* const pcb = tcb_.pcb;
    // Sequence numbers of data alone: a FIN of ours that was sent, or acknowledged, stands behind
    // data_end_.
    auto without_fin = [&](std::uint32_t seq) {
        return seq_before(tcb_.queue.data_end(), seq) ? tcb_.queue.data_end() : seq;
    };
    out.snd_una = without_fin(pcb->snd_una());
    out.snd_nxt = without_fin(pcb->snd_nxt());
    if (!tcb_.phase.write_shut)
        out.own_fin = KernelState::OwnFin::none;
    else if (seq_before(tcb_.queue.data_end(), pcb->snd_una()))
        out.own_fin = KernelState::OwnFin::acknowledged;
    else if (seq_before(tcb_.queue.data_end(), pcb->snd_nxt()))
        out.own_fin = KernelState::OwnFin::sent;
    else
        out.own_fin = KernelState::OwnFin::wanted;
    for (lwip::Segment* list : {pcb->unacked(), pcb->unsent()}) {
        for (lwip::Segment* seg = list; seg != nullptr; seg = seg->next()) {
            if (seg->size() == 0) continue;
            const std::uint32_t seq = seg->seq();
            const std::uint32_t skip = seq_before(seq, pcb->snd_una()) ? pcb->snd_una() - seq : 0;
            if (skip >= seg->size()) continue;
            out.send_queue.push_back({seg->data() + skip, seg->size() - skip});
        }
    }
    out.peer_fin = tcb_.phase.peer_closed;
    out.rcv_nxt = pcb->rcv_nxt() - (tcb_.phase.peer_closed ? 1 : 0);
    out.peer_fin_first = pcb->in(State::close_wait) || pcb->in(State::last_ack);
    out.read_shut = tcb_.phase.read_shut;
}

// What the SYNs have agreed on, the windows, and the clocks.
void Freeze::describe_terms(KernelState& out) const {
    lwip::Pcb* const pcb = tcb_.pcb;
    out.mss = pcb->mss();
    out.window_scaling = pcb->window_scaling();
    out.snd_wscale = pcb->snd_scale();
    out.rcv_wscale = pcb->rcv_scale();
    out.sack = pcb->sack();
    out.timestamps = pcb->timestamps();
    out.ts_value = tcb_.opening.timestamp(Clock::now());
    out.ts_recent = pcb->ts_recent();
    out.snd_wnd = pcb->snd_wnd();
    out.snd_wl1 = pcb->snd_wl1();
    out.max_window = std::max(pcb->max_snd_wnd(), pcb->snd_wnd());
    const std::uint32_t edge = pcb->announced_edge();
    out.rcv_wup = seq_before(out.rcv_nxt, tcb_.acks.acked_upto()) ? out.rcv_nxt : tcb_.acks.acked_upto();
    out.rcv_wnd = seq_before(out.rcv_wup, edge) ? edge - out.rcv_wup : 0;
    out.srtt = tcb_.recovery.rtt().srtt();
}

void Freeze::finish(bool moved) noexcept {
    frozen_ = false;
    ring::RxBuffer* waiting = nullptr;
    if (moved) awaiting_ = false;
    if (!awaiting_) waiting = take_all();
    if (moved) {
        moved_ = true;
        tcb_.owner = nullptr;
        tcb_.phase.orphan = true;
        const std::size_t shown = tcb_.shown.readable();
        tcb_.free_queues();
        tcb_.shown.set_readable(shown);
        if (tcb_.pcb != nullptr) tcb_.abandon(false);
    } else if (tcb_.pcb != nullptr) {
        tcb_.sender.output();
    }
    if (waiting != nullptr) tcb_.receiver.input(waiting);
}

Freeze::~Freeze() {
    for (ring::RxBuffer* buffer = take_all(); buffer != nullptr;) {
        ring::RxBuffer* next = std::exchange(buffer->next, nullptr);
        buffer->release();
        buffer = next;
    }
}

ring::RxBuffer* Freeze::take_all() noexcept {
    last_ = nullptr;
    frames_ = 0;
    return std::exchange(first_, nullptr);
}

void Freeze::await_move(ring::RxBuffer* first) noexcept {
    awaiting_ = true;
    take_frame(first);
}

void Freeze::await_no_more() noexcept {
    if (!std::exchange(awaiting_, false) || away()) return;
    if (ring::RxBuffer* waiting = take_all(); waiting != nullptr) tcb_.receiver.input(waiting);
}

void Freeze::take_frame(ring::RxBuffer* buffer) noexcept {
    if ((frozen_ || awaiting_) && frames_ < kMostFrames) {
        buffer->next = nullptr;
        (last_ != nullptr ? last_->next : first_) = buffer;
        last_ = buffer;
        frames_++;
        return;
    }
    if (moved_) buffer->ring->give_to_kernel(*buffer);
    buffer->release();
}

}  // namespace vma::tcp
