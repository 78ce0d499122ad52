// SPDX-License-Identifier: BSD-2-Clause
// Loss: what an ACK says about it, and what is sent again.
//
// before_ack() runs in front of lwIP, which then frees what the ACK covers. It keeps the scoreboard (sack.h),
// measures round trips, moves the congestion window, and begins and ends recoveries; output() sends what the
// scoreboard says is lost, as far as the window allows, before new data. Without SACK the same works from
// duplicate ACKs (NewReno).
//
// A loss at the end of what there is to send shows in no later ACK. So when nothing was acknowledged for two
// round trips, the last segment is sent again (the tail loss probe of RFC 8985, section 7): its SACK starts
// the recovery long before the retransmission timer, which never waits less than 200 ms.
#include <netinet/in.h>

#include <algorithm>

#include "libvma/tcp/connection.h"
#include "libvma/tcp/lwip/entry.h"
#include "libvma/tcp/recovery/segments.h"
#include "libvma/tcp/sequence.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {
namespace {

constexpr std::uint32_t kMinProbeUs = 10'000;
// A lone segment's ACK may be delayed (RFC 8985 section 7.2: WCDelAckT). Linux delays by 40 ms and more as a
// rule, so with less, each last segment would be sent twice.
constexpr std::uint32_t kMaxAckDelayUs = 200'000;

}  // namespace

void Connection::scoreboard_reset() noexcept { recovery_.scoreboard->forget(); }

void Connection::start_recovery() noexcept {
    recovery_.scoreboard->init((pcb_->flags & TF_SACK) != 0, send_mss(), pcb_->lastack);
}

std::uint32_t Connection::pipe() const noexcept {
    return recovery_.scoreboard->pipe(pcb_->snd_nxt - pcb_->lastack);
}

void Connection::all_lost() noexcept {
    recovery_.scoreboard->on_rto(pcb_->unacked, pcb_->lastack, pcb_->snd_nxt, true);
}

void Connection::split_sent(tcp_seg* first, tcp_seg* second) noexcept {
    recovery_.scoreboard->on_split(first, second);
}

bool Connection::recovering() const noexcept { return recovery_.scoreboard->phase() != RecoveryPhase::open; }
bool Connection::after_timeout() const noexcept {
    return recovery_.scoreboard->phase() == RecoveryPhase::timeout;
}

void Connection::on_timeout(std::uint64_t now) noexcept {
    recovery_.cc.on_rto(pcb_->snd_nxt - pcb_->lastack, recovery_.retries == 1, now);
    recovery_.scoreboard->on_rto(pcb_->unacked, pcb_->lastack, pcb_->snd_nxt, true);
    timers_.tlp_at = 0;
}

void Connection::retransmit_lost() noexcept {
    const std::uint32_t mss = shown_.mss.load(std::memory_order_relaxed);
    for (;;) {
        tcp_seg* seg = recovery_.scoreboard->next_to_retransmit(pcb_->unacked);
        if (seg == nullptr) return;
        const std::uint32_t flight = pipe();
        if (flight != 0 && flight + seg->len > recovery_.cc.cwnd()) return;
        if (seg->len > mss && split(seg, mss)) continue;
        if (!send_segment(seg, true)) {
            timers_.path_at = now_ns() + 1'000'000;
            return;
        }
        recovery_.scoreboard->on_retransmitted(pcb_->unacked, seg, pcb_->snd_nxt);
    }
}

void Connection::restart_after_idle(std::uint64_t now) noexcept {
    if (acks_.last_data_tx_ns != 0 && now > acks_.last_data_tx_ns)
        recovery_.cc.after_idle((now - acks_.last_data_tx_ns) / 1000, recovery_.rtt.rto_us());
}

// ---- tail loss probe ----

void Connection::schedule_tail_probe(std::uint64_t now) noexcept {
    if (timers_.tlp_at != 0 && pcb_->unacked != nullptr) return;
    if (!recovery_.scoreboard->uses_sack() || recovering() || recovery_.tail_probed ||
        !recovery_.rtt.measured() || pcb_->unacked == nullptr) {
        timers_.tlp_at = 0;
        return;
    }
    std::uint64_t wait_us = std::max(2 * recovery_.rtt.srtt_us(), kMinProbeUs);
    if (pcb_->unacked->next == nullptr)
        wait_us = std::max<std::uint64_t>(wait_us, recovery_.rtt.srtt_us() * 3 / 2 + kMaxAckDelayUs);
    const std::uint64_t at = now + wait_us * 1000;
    timers_.tlp_at = timers_.rto_at != 0 && at >= timers_.rto_at ? 0 : at;
}

void Connection::tail_loss_probe() noexcept {
    if (pcb_->unacked == nullptr || recovering()) return;
    recovery_.tail_probed = true;
    // New data serves as well, and is not sent for nothing.
    if (pcb_->unsent != nullptr &&
        !seq_before(pcb_->lastack + pcb_->snd_wnd, ntohl(pcb_->unsent->tcphdr->seqno) + pcb_->unsent->len)) {
        send_.burst = 0;
        const tcp_seg* before = pcb_->unsent;
        output();
        if (pcb_ == nullptr || pcb_->unsent != before) return;
    }
    const std::uint32_t mss = shown_.mss.load(std::memory_order_relaxed);
    while (send_.unacked_last != nullptr && send_.unacked_last->len > mss)
        if (!split(send_.unacked_last, mss)) return;
    if (send_.unacked_last != nullptr && send_segment(send_.unacked_last, true)) {
        counters_.tail_probes++;
        recovery_.scoreboard->on_retransmitted(pcb_->unacked, send_.unacked_last, pcb_->snd_nxt);
    }
}

// ---- ACKs ----

void Connection::before_ack(const AckInfo& info) noexcept {
    if (!phase_.established) return;
    const std::uint64_t now = check_.last_rx_ns;
    const std::uint32_t una = pcb_->lastack, flight = pcb_->snd_nxt - una;
    tcp_seg* head = pcb_->unacked;
    const bool advances = seq_before(una, info.ack);
    if (advances) {
        const AckOutcome out = recovery_.scoreboard->on_cumulative_ack(head, info.ack, pcb_->snd_nxt);
        const tcp_seg* last = nullptr;
        while (head != nullptr &&
               seq_at_or_before(SegmentAccess::seq(head) + SegmentAccess::len(head), info.ack)) {
            last = head;
            head = head->next;
        }
        // HyStart++ wants to see how the delay grows within a round: a sample with each ACK (RFC 9406
        // section 4.2).
        std::uint32_t newest_us = 0;
        if (last != nullptr && last->len != 0 && !out.retransmitted) {
            newest_us = std::max(static_cast<std::uint32_t>(now / 1000) - SegmentAccess::sent_us(last), 1u);
            recovery_.cc.on_rtt_sample(newest_us);
        }
        std::uint32_t rtt_us = 0;
        if (recovery_.rtt_start_ns != 0 && !seq_before(info.ack, recovery_.rtt_seq)) {
            rtt_us =
                static_cast<std::uint32_t>(std::max<std::uint64_t>((now - recovery_.rtt_start_ns) / 1000, 1));
            recovery_.rtt_start_ns = 0;
        } else if (info.echo != 0 && out.retransmitted) {
            // The time stamp tells which of the transmissions was answered; in milliseconds.
            const std::uint32_t ms = timestamp(now) - info.echo;
            if (ms < 120'000) rtt_us = std::max(ms, 1u) * 1000;
        } else if (recovery_.rtt.backoffs() != 0) {
            rtt_us = newest_us;  // the first that is certain ends the backoff
        }
        if (rtt_us != 0) {
            recovery_.rtt.sample(rtt_us, now);
        }
        recovery_.cc.on_ack(info.ack - una, flight, recovery_.app_limited, recovery_.rtt.srtt_us(), now);
        if (out.recovered) recovery_.cc.on_recovery_exit();
        if (out.reneged) all_lost();
        recovery_.tail_probed = false;
        timers_.tlp_at = 0;
    }
    bool reported = false;
    if (info.block_count != 0) {
        const SackOutcome out =
            recovery_.scoreboard->on_sack(head, std::span(info.blocks, info.block_count), info.ack,
                                          advances ? info.ack : una, pcb_->snd_nxt);
        counters_.dsacks += out.dsacks;
        counters_.bad_options += out.invalid;
        reported = out.newly_sacked != 0;
        if (out.dsacks != 0 && recovery_.scoreboard->all_retransmissions_needless()) {
            recovery_.cc.on_spurious();
            recovery_.scoreboard->undo(head);
        }
    }
    // A duplicate ACK (RFC 5681 section 2).
    if (!advances && info.ack == una && !info.data && head != nullptr &&
        (info.window == pcb_->snd_wnd || reported)) {
        counters_.dup_acks_in++;
        recovery_.scoreboard->on_duplicate_ack(head, una, flight);
    }
    if (recovery_.scoreboard->loss_found()) {
        recovery_.scoreboard->enter_recovery(advances ? info.ack : una, pcb_->snd_nxt);
        counters_.fast_recoveries++;
        recovery_.cc.on_loss_event(flight, now);
    }
}

}  // namespace vma::tcp
