// SPDX-License-Identifier: BSD-2-Clause
// Loss: what an ACK says about it, and what is sent again.
#include <netinet/in.h>

#include <algorithm>

#include "libvma/tcp/connection.h"
#include "libvma/tcp/lwip_entry.h"
#include "libvma/tcp/sequence.h"
#include "libvma/tcp/time.h"

namespace vma::tcp {
namespace {
constexpr u8_t kSacked = 0x20, kLost = 0x40, kAgain = 0x80;
std::uint32_t seq_of(const tcp_seg* s) { return ntohl(s->tcphdr->seqno); }
std::uint32_t end_of(const tcp_seg* s) { return seq_of(s) + TCP_TCPLEN(s); }
}  // namespace

void Connection::scoreboard_reset() noexcept { in_recovery_ = in_rto_ = false; }
void Connection::segment_sent(tcp_seg* seg) noexcept { seg->flags &= static_cast<u8_t>(~(kSacked | kLost | kAgain)); }

std::uint32_t Connection::pipe() const noexcept {
    std::uint32_t n = 0;
    for (tcp_seg* s = pcb_->unacked; s != nullptr; s = s->next)
        if (!(s->flags & kSacked) && (!(s->flags & kLost) || (s->flags & kAgain))) n += s->len;
    return n;
}

void Connection::all_lost() noexcept {
    for (tcp_seg* s = pcb_->unacked; s != nullptr; s = s->next) s->flags = static_cast<u8_t>((s->flags & ~(kSacked | kAgain)) | kLost);
}

void Connection::on_timeout(std::uint64_t now) noexcept {
    cc_.on_rto(pcb_->snd_nxt - pcb_->lastack, retries_ == 1, now);
    all_lost();
    in_recovery_ = false;
    in_rto_ = true;
    recovery_end_ = pcb_->snd_nxt;
}

void Connection::retransmit_lost() noexcept {
    if (!in_recovery_ && !in_rto_) return;
    std::uint32_t flight = pipe();
    for (tcp_seg* s = pcb_->unacked; s != nullptr; s = s->next) {
        if (!(s->flags & kLost) || (s->flags & kAgain)) continue;
        if (flight != 0 && flight + s->len > cc_.cwnd()) return;
        if (!send_segment(s, true)) return;
        s->flags |= kAgain;
        flight += s->len;
    }
}

void Connection::tail_loss_probe() noexcept {}
void Connection::restart_after_idle(std::uint64_t now) noexcept {
    if (last_data_tx_ns_ != 0 && now > last_data_tx_ns_) cc_.after_idle((now - last_data_tx_ns_) / 1000, rtt_.rto_us());
}

void Connection::before_ack(const AckInfo& info) noexcept {
    const std::uint64_t now = last_rx_ns_;
    const std::uint32_t una = pcb_->lastack;
    if (seq_before(una, info.ack)) {
        const std::uint32_t acked = info.ack - una, flight = pcb_->snd_nxt - una;
        if (rtt_start_ns_ != 0 && !seq_before(info.ack, rtt_seq_)) {
            const auto us = static_cast<std::uint32_t>((now - rtt_start_ns_) / 1000);
            rtt_.sample(us, now);
            cc_.on_rtt_sample(us);
            rtt_start_ns_ = 0;
        }
        cc_.on_ack(acked, flight, app_limited_, rtt_.srtt_us(), now);
        if ((in_recovery_ || in_rto_) && !seq_before(info.ack, recovery_end_)) {
            cc_.on_recovery_exit();
            in_recovery_ = in_rto_ = false;
        }
    } else if (info.ack == una && !info.data && info.window == pcb_->snd_wnd && pcb_->unacked != nullptr) {
        counters_.dup_acks_in++;
    }
    for (unsigned i = 0; i < info.block_count; i++)
        for (tcp_seg* s = pcb_->unacked; s != nullptr; s = s->next)
            if (!seq_before(seq_of(s), info.blocks[i].left) && !seq_before(info.blocks[i].right, end_of(s))) s->flags |= kSacked;
    // Lost: three segments above it have arrived.
    unsigned total = 0, above = 0;
    for (tcp_seg* s = pcb_->unacked; s != nullptr; s = s->next) total += (s->flags & kSacked) != 0;
    bool lost = false;
    for (tcp_seg* s = pcb_->unacked; s != nullptr; s = s->next) {
        if (!seq_before(info.ack, end_of(s))) { total -= (s->flags & kSacked) != 0; continue; }
        if (s->flags & kSacked) above++;
        else if (!(s->flags & kLost) && total - above >= 3) { s->flags |= kLost; lost = true; }
    }
    if (lost && !in_recovery_ && !in_rto_) {
        in_recovery_ = true;
        recovery_end_ = pcb_->snd_nxt;
        counters_.fast_recoveries++;
        cc_.on_loss_event(pcb_->snd_nxt - una, now);
    }
}

}  // namespace vma::tcp
