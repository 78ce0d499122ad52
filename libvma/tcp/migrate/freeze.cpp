// SPDX-License-Identifier: BSD-2-Clause
// A connection held still, so that the kernel can take it over (handover.h).
#include <errno.h>
#include <netinet/in.h>

#include <algorithm>
#include <utility>

#include "libvma/tcp/connection.h"
#include "libvma/tcp/lwip/entry.h"
#include "libvma/tcp/migrate/handover.h"
#include "libvma/tcp/recovery/segments.h"
#include "libvma/tcp/sequence.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {

int Connection::freeze(KernelState& out) noexcept {
    if (!enter()) return -EOPNOTSUPP;
    int result = 0;
    try {
        out = {};
        out.local.sin_family = out.remote.sin_family = AF_INET;
        out.local.sin_addr.s_addr = ends_.local_addr;
        out.local.sin_port = ends_.local_port;
        out.remote.sin_addr.s_addr = ends_.remote_addr;
        out.remote.sin_port = ends_.remote_port;
        if (!phase_.established || freeze_.frozen || freeze_.moved) {
            result = -EOPNOTSUPP;
        } else if (pcb_ == nullptr || phase_.in_time_wait) {
            out.over = true;
            out.error = shown_.error.load(std::memory_order_relaxed);
            out.peer_fin = phase_.fin_seen;
            for (const pbuf* p = receiver_.rx.first(); p != nullptr; p = p->next)
                if (p->len != 0) out.receive_queue.push_back({p->payload, p->len});
            // No segment comes any more, so any numbers do.
            out.snd_una = out.snd_nxt = 1;
            out.rcv_nxt = out.rcv_wup = out.snd_wl1 = static_cast<std::uint32_t>(receiver_.rx.bytes()) + 1;
            out.rcv_wnd = out.snd_wnd = out.max_window = 0xffff;
            // The program may still ask for the segment size. The kernel takes off its time stamps where it
            // would propose them.
            out.mss = static_cast<std::uint16_t>(shown_.mss.load(std::memory_order_relaxed) +
                                                 (options_.timestamps ? kTimestampBytes : 0));
            freeze_.frozen = true;
        } else {
            // Sequence numbers of data alone: a FIN of ours that was sent, or acknowledged, stands behind
            // data_end_.
            auto without_fin = [&](std::uint32_t seq) {
                return seq_before(send_.data_end, seq) ? send_.data_end : seq;
            };
            out.snd_una = without_fin(pcb_->lastack);
            out.snd_nxt = without_fin(pcb_->snd_nxt);
            if (!phase_.write_shut)
                out.own_fin = KernelState::OwnFin::none;
            else if (seq_before(send_.data_end, pcb_->lastack))
                out.own_fin = KernelState::OwnFin::acknowledged;
            else if (seq_before(send_.data_end, pcb_->snd_nxt))
                out.own_fin = KernelState::OwnFin::sent;
            else
                out.own_fin = KernelState::OwnFin::wanted;
            for (tcp_seg* list : {pcb_->unacked, pcb_->unsent}) {
                for (tcp_seg* seg = list; seg != nullptr; seg = seg->next) {
                    if (seg->len == 0) continue;
                    const std::uint32_t seq = ntohl(seg->tcphdr->seqno);
                    const std::uint32_t skip = seq_before(seq, pcb_->lastack) ? pcb_->lastack - seq : 0;
                    if (skip >= seg->len) continue;
                    auto* data = reinterpret_cast<std::uint8_t*>(seg->tcphdr) + sizeof(net::TcpHeader);
                    out.send_queue.push_back({data + skip, seg->len - skip});
                }
            }
            out.peer_fin = phase_.peer_closed;
            out.rcv_nxt = pcb_->rcv_nxt - (phase_.peer_closed ? 1 : 0);
            out.peer_fin_first = pcb_->state == CLOSE_WAIT || pcb_->state == LAST_ACK;
            out.read_shut = phase_.read_shut;
            for (const pbuf* p = receiver_.rx.first(); p != nullptr; p = p->next)
                if (p->len != 0) out.receive_queue.push_back({p->payload, p->len});
            out.mss = pcb_->mss;
            out.window_scaling = (pcb_->flags & TF_WND_SCALE) != 0;
            out.snd_wscale = pcb_->snd_scale;
            out.rcv_wscale = pcb_->rcv_scale;
            out.sack = (pcb_->flags & TF_SACK) != 0;
            out.timestamps = (pcb_->flags & TF_TIMESTAMP) != 0;
            out.ts_value = timestamp(now_ns());
            out.ts_recent = pcb_->ts_recent;
            out.snd_wnd = pcb_->snd_wnd;
            out.snd_wl1 = pcb_->snd_wl1;
            out.max_window = std::max(pcb_->snd_wnd_max, pcb_->snd_wnd);
            const std::uint32_t edge = pcb_->rcv_ann_right_edge;
            out.rcv_wup = seq_before(out.rcv_nxt, acks_.acked_upto) ? out.rcv_nxt : acks_.acked_upto;
            out.rcv_wnd = seq_before(out.rcv_wup, edge) ? edge - out.rcv_wup : 0;
            out.srtt_us = recovery_.rtt.srtt_us();
            freeze_.frozen = true;
        }
    } catch (...) {
        result = -EOPNOTSUPP;
    }
    leave();
    return result;
}

// A frame of a connection that moves, or has moved: the kernel is to have it, as soon as it has the
// connection.
void Connection::kernels_frame(ring::RxBuffer* buffer) noexcept {
    constexpr std::uint32_t kMost =
        1024;  // what a peer sends in the fraction of a millisecond that a move takes
    if (freeze_.frozen && freeze_.frames < kMost) {
        buffer->next = nullptr;
        (freeze_.last != nullptr ? freeze_.last->next : freeze_.first) = buffer;
        freeze_.last = buffer;
        freeze_.frames++;
        return;
    }
    if (freeze_.moved) buffer->ring->give_to_kernel(*buffer);
    buffer->release();
}

void Connection::finish_freeze(bool moved) noexcept {
    if (moved) note_moved();
    if (!enter()) return;
    freeze_.frozen = false;
    ring::RxBuffer* waiting = std::exchange(freeze_.first, nullptr);
    freeze_.last = nullptr;
    freeze_.frames = 0;
    if (moved) {
        freeze_.moved = true;
        owner_ = nullptr;
        phase_.orphan = true;
        const std::size_t shown = shown_.readable.load(std::memory_order_relaxed);
        free_queues();
        shown_.readable.store(shown, std::memory_order_release);
        if (pcb_ != nullptr) in_lwip([&](lwip::Entry&) { tcp_abandon(pcb_, 0); });
    } else if (pcb_ != nullptr) {
        output();
    }
    if (waiting != nullptr) input_list(waiting);
    leave();
}

}  // namespace vma::tcp
