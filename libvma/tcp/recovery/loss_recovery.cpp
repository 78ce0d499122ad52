// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/recovery/loss_recovery.h"

#include <netinet/in.h>

#include <algorithm>
#include <span>

#include "libvma/tcp/connection.h"
#include "libvma/tcp/recovery/segments.h"
#include "libvma/tcp/sequence.h"
#include "libvma/tcp/tcb_inline.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {
namespace {

constexpr Usec kMinProbe{10'000};
// A lone segment's ACK may be delayed (RFC 8985 section 7.2: WCDelAckT). Linux delays by 40 ms and more as a
// rule, so with less, each last segment would be sent twice.
constexpr Usec kMaxAckDelay{200'000};
constexpr Msec kDeviceFull{1};  // until the next try

}  // namespace

LossRecovery::LossRecovery(Tcb& tcb) : tcb_(tcb), scoreboard_(std::make_unique<SegmentBoard>()) {}
LossRecovery::~LossRecovery() = default;

void LossRecovery::start() noexcept {
    congestion_.init(tcb_.options.congestion, tcb_.route.send_mss());
    if (rtt_.backoffs() != 0 && !rtt_.measured()) rtt_.handshake_without_sample();
    retries_ = 0;
    scoreboard_->init(tcb_.pcb->sack(), tcb_.route.send_mss(), tcb_.pcb->snd_una());
}

void LossRecovery::reset() noexcept { scoreboard_->forget(); }

void LossRecovery::set_mss(std::uint32_t mss) noexcept {
    congestion_.set_mss(mss);
    scoreboard_->set_mss(mss);
}

void LossRecovery::set_algorithm(CongestionAlgorithm algorithm) noexcept {
    if (congestion_.algorithm() != algorithm) congestion_.change(algorithm);
}

void LossRecovery::all_lost() noexcept {
    scoreboard_->on_rto(tcb_.pcb->unacked(), tcb_.pcb->snd_una(), tcb_.pcb->snd_nxt(), true);
}

void LossRecovery::split_sent(lwip::Segment* first, lwip::Segment* second) noexcept {
    scoreboard_->on_split(first, second);
}

bool LossRecovery::recovering() const noexcept { return scoreboard_->phase() != RecoveryPhase::open; }

bool LossRecovery::after_timeout() const noexcept { return scoreboard_->phase() == RecoveryPhase::timeout; }

void LossRecovery::on_timeout(Time now) noexcept {
    congestion_.on_rto(tcb_.pcb->snd_nxt() - tcb_.pcb->snd_una(), retries_ == 1, now);
    scoreboard_->on_rto(tcb_.pcb->unacked(), tcb_.pcb->snd_una(), tcb_.pcb->snd_nxt(), true);
    tcb_.timers.tail_at = kNoTime;
}

void LossRecovery::timed_out(Time since, bool counted) noexcept {
    if (retries_ == 0 && (counted || first_retry_ == kNoTime)) first_retry_ = since;
    if (counted) retries_++;
}

void LossRecovery::sent_again(std::uint32_t end) noexcept {
    // Karn: what is sent twice is not timed.
    if (rtt_start_ != kNoTime && !seq_before(rtt_seq_, end)) rtt_start_ = kNoTime;
}

void LossRecovery::retransmit_lost() noexcept {
    Tcb& t = tcb_;
    lwip::Pcb* const pcb = t.pcb;
    const std::uint32_t mss = t.shown.mss();
    for (;;) {
        lwip::Segment* seg = scoreboard_->next_to_retransmit(pcb->unacked());
        if (seg == nullptr) return;
        if (seg->size() > mss && t.queue.split(seg, mss)) continue;
        const std::uint32_t flight = pipe();
        if (flight != 0 && flight + seg->size() > congestion_.cwnd()) return;
        if (!t.writer.send(seg, true)) {
            t.timers.path_at = Clock::now() + kDeviceFull;
            return;
        }
        scoreboard_->on_retransmitted(pcb->unacked(), seg, pcb->snd_nxt());
    }
}

void LossRecovery::restart_after_idle(Time now) noexcept {
    const Time last = tcb_.acks.last_data_tx();
    if (last != kNoTime && now > last) congestion_.after_idle(now - last, rtt_.rto());
}

void LossRecovery::schedule_tail_probe(Time now) noexcept {
    Tcb& t = tcb_;
    lwip::Pcb* const pcb = t.pcb;
    if (t.timers.tail_at != kNoTime && pcb->unacked() != nullptr) return;
    if (!scoreboard_->uses_sack() || recovering() || tail_probed_ || !rtt_.measured() ||
        pcb->unacked() == nullptr) {
        t.timers.tail_at = kNoTime;
        return;
    }
    Usec wait = std::max(2 * rtt_.srtt(), kMinProbe);
    if (pcb->unacked()->next() == nullptr) wait = std::max(wait, rtt_.srtt() * 3 / 2 + kMaxAckDelay);
    const Time at = now + wait;
    t.timers.tail_at = t.timers.rto_at != kNoTime && at >= t.timers.rto_at ? kNoTime : at;
}

void LossRecovery::tail_loss_probe() noexcept {
    if (tcb_.pcb->unacked() == nullptr || recovering()) return;
    tail_probed_ = true;
    // New data serves as well, and is not sent for nothing.
    if (tcb_.pcb->unsent() != nullptr &&
        !seq_before(tcb_.pcb->snd_una() + tcb_.pcb->snd_wnd(),
                    tcb_.pcb->unsent()->seq() + tcb_.pcb->unsent()->size())) {
        tcb_.sender.end_burst();
        const lwip::Segment* before = tcb_.pcb->unsent();
        tcb_.sender.output();
        if (tcb_.pcb == nullptr || tcb_.pcb->unsent() != before) return;
    }
    const std::uint32_t mss = tcb_.shown.mss();
    if (lwip::Segment* const last = tcb_.queue.last_sent(); last != nullptr && last->size() > mss)
        if (!tcb_.queue.split(last, (last->size() - 1) / mss * mss)) return;
    if (tcb_.queue.last_sent() != nullptr && tcb_.writer.send(tcb_.queue.last_sent(), true)) {
        tcb_.counters.tail_probes++;
        scoreboard_->on_retransmitted(tcb_.pcb->unacked(), tcb_.queue.last_sent(), tcb_.pcb->snd_nxt());
    }
}

// The cumulative part of an ACK. Returns the first segment that it leaves.
[[gnu::always_inline]] inline lwip::Segment* LossRecovery::advance(const AckInfo& info, lwip::Segment* head,
                                                                   Time now) noexcept {
    Tcb& t = tcb_;
    lwip::Pcb* const pcb = t.pcb;
    const std::uint32_t una = pcb->snd_una(), flight = pcb->snd_nxt() - una;
    const AckOutcome out = scoreboard_->on_cumulative_ack(head, info.ack, pcb->snd_nxt());
    const lwip::Segment* last = nullptr;
    while (head != nullptr && seq_at_or_before(head->end(), info.ack)) {
        last = head;
        head = head->next();
    }
    // HyStart++ wants to see how the delay grows within a round: a sample with each ACK (RFC 9406
    // section 4.2).
    Usec newest{};
    if (last != nullptr && last->size() != 0 && !out.retransmitted) {
        newest = std::max(microseconds(now) - last->sent(), Usec(1));
        congestion_.on_rtt_sample(newest);
    }
    Usec rtt{};
    if (rtt_start_ != kNoTime && !seq_before(info.ack, rtt_seq_)) {
        rtt = std::max(std::chrono::duration_cast<Usec>(now - rtt_start_), Usec(1));
        rtt_start_ = kNoTime;
    } else if (info.echo != 0 && out.retransmitted) {
        // The time stamp tells which of the transmissions was answered; in milliseconds.
        const Msec trip(t.opening.timestamp(now) - info.echo);
        if (trip < RttEstimator::kMaxRto) rtt = std::max(trip, Msec(1));
    } else if (rtt_.backoffs() != 0) {
        rtt = newest;  // the first that is certain ends the backoff
    }
    if (rtt != Usec::zero()) {
        rtt_.sample(rtt, now);
    }
    congestion_.on_ack(info.ack - una, flight, app_limited_ && !was_full_, rtt_.srtt(), now);
    if (!seq_before(info.ack, full_upto_)) was_full_ = false;
    if (out.recovered) congestion_.on_recovery_exit();
    if (out.reneged) all_lost();
    tail_probed_ = false;
    t.timers.tail_at = kNoTime;
    return head;
}

void LossRecovery::before_ack(const AckInfo& info) noexcept {
    Tcb& t = tcb_;
    lwip::Pcb* const pcb = t.pcb;
    if (!t.phase.established) return;
    const Time now = t.acceptance.last_rx();
    const std::uint32_t una = pcb->snd_una(), flight = pcb->snd_nxt() - una;
    lwip::Segment* head = pcb->unacked();
    const bool advances = seq_before(una, info.ack);
    if (advances) head = advance(info, head, now);
    // What is acknowledged of a super-frame need not be sent again.
    if (advances && head != nullptr && head->is_long() && head->marks() == 0 &&
        seq_before(head->seq(), info.ack))
        head->trim_front(info.ack - head->seq());
    // An ACK of RFC 5681 section 2; one that opens the window is none.
    const bool again = !advances && info.ack == una && !info.data;
    const bool duplicate = again && info.window == pcb->snd_wnd();
    if (info.block_count != 0 || duplicate) t.queue.cut_sent();
    bool reported = false;
    if (info.block_count != 0) {
        const SackOutcome out = scoreboard_->on_sack(head, std::span(info.blocks, info.block_count), info.ack,
                                                     advances ? info.ack : una, pcb->snd_nxt());
        t.counters.dsacks += out.dsacks;
        t.counters.bad_options += out.invalid;
        reported = out.newly_sacked != 0;
        if (out.dsacks != 0 && scoreboard_->all_retransmissions_needless()) {
            congestion_.on_spurious();
            scoreboard_->undo(head);
        }
    }
    if (head != nullptr && (duplicate || (again && reported))) {
        t.counters.dup_acks_in++;
        scoreboard_->on_duplicate_ack(head, una, flight);
    }
    if (scoreboard_->loss_found()) {
        scoreboard_->enter_recovery(advances ? info.ack : una, pcb->snd_nxt());
        t.counters.fast_recoveries++;
        congestion_.on_loss_event(flight, now);
    }
}

}  // namespace vma::tcp
