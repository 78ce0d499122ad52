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

// A lone segment's ACK may be delayed (RFC 8985 section 7.2: WCDelAckT); the kernel takes its shortest
// timeout.
constexpr Usec kMaxAckDelay = RttEstimator::kMinRto;
constexpr Usec kLeastWait{
    2000};                      // the kernel's TCP_TIMEOUT_MIN, on top of what probes and reordering wait for
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

void LossRecovery::all_lost() noexcept {
    lwip::Pcb* const pcb = tcb_.pcb;
    scoreboard_->on_rto(pcb->unacked(), pcb->snd_nxt(), rack_, microseconds(tcb_.acceptance.last_rx()), true);
}

void LossRecovery::split_sent(lwip::Segment* first, lwip::Segment* second) noexcept {
    scoreboard_->on_split(first, second);
}

bool LossRecovery::recovering() const noexcept { return scoreboard_->phase() != RecoveryPhase::open; }

bool LossRecovery::after_timeout() const noexcept { return scoreboard_->phase() == RecoveryPhase::timeout; }

// The kernel's tcp_enter_loss().
void LossRecovery::on_timeout(Time now) noexcept {
    lwip::Pcb* const pcb = tcb_.pcb;
    const RecoveryPhase was = scoreboard_->phase();
    const bool first = retries_ <= 1;
    // In a recovery the window of data was paid for when it began.
    const bool reduce = was == RecoveryPhase::open ? !reducing_ : was == RecoveryPhase::timeout && first;
    if (was == RecoveryPhase::open) rack_.timed_out(scoreboard_->sacked_segments());
    const std::uint32_t probed = probe_.under_way() ? tcb_.shown.mss() : 0;
    scoreboard_->on_rto(pcb->unacked(), pcb->snd_nxt(), rack_, microseconds(now), false);
    congestion_.on_rto(pipe(), reduce);
    tcb_.ecn.reduced();
    if (reduce) {
        scoreboard_->begin_undo(pcb->snd_una(), probed);
        stamped_ = false;
    }
    // F-RTO (RFC 5682): at first it is not certain that anything was lost.
    forward_ = was == RecoveryPhase::open || !first;
    new_first_ = reducing_ = reneged_ = false;
    probe_.forget();
    tcb_.timers.tail_at = tcb_.timers.reorder_at = kNoTime;
}

void LossRecovery::sent_again(std::uint32_t end, std::uint32_t bytes, Time now) noexcept {
    prr_.sent(bytes);
    // Karn: what is sent twice is not timed.
    if (rtt_start_ != kNoTime && !seq_before(rtt_seq_, end)) rtt_start_ = kNoTime;
    if (stamped_ || !recovering()) return;
    stamped_ = true;
    first_again_ = tcb_.opening.timestamp(now);
}

void LossRecovery::retransmit_lost() noexcept {
    Tcb& t = tcb_;
    lwip::Pcb* const pcb = t.pcb;
    const std::uint32_t mss = t.shown.mss();
    while (!new_first_) {
        lwip::Segment* seg = scoreboard_->next_to_retransmit(pcb->unacked());
        if (seg == nullptr) return;
        if (seg->size() > mss && t.queue.split(seg, mss)) continue;
        const std::uint32_t flight = pipe();
        if (flight != 0 && flight + seg->size() > congestion_.cwnd()) return;
        if (!t.writer.send(seg, true)) {
            t.timers.path_at = Clock::now() + kDeviceFull;
            return;
        }
        scoreboard_->on_retransmitted(seg);
        // The timeout runs from here on, for the first segment of a recovery.
        if (seg == pcb->unacked() && scoreboard_->phase() == RecoveryPhase::recovery)
            t.timers.rto_at = Clock::now() + rtt_.rto();
    }
}

void LossRecovery::restart_after_idle(Time now) noexcept {
    rack_.forget();
    const Time last = tcb_.acks.last_data_tx();
    if (last != kNoTime && now > last)
        congestion_.after_idle(now - last, rtt_.rto(), tcb_.options.slow_start_after_idle);
}

// ---- timers ----

void LossRecovery::schedule_tail_probe(Time now) noexcept {
    Tcb& t = tcb_;
    lwip::Pcb* const pcb = t.pcb;
    const lwip::Segment* const first = pcb->unacked();
    if (t.timers.tail_at != kNoTime && first != nullptr) return;
    t.timers.tail_at = kNoTime;
    if (first == nullptr || !scoreboard_->uses_sack() || !scoreboard_->calm() || probe_.under_way() ||
        t.timers.rto_at == kNoTime)
        return;
    Usec wait = RttEstimator::kInitialRto;
    if (rtt_.measured()) {
        const bool lone = first->next() == nullptr && first->size() <= t.shown.mss();
        wait = 2 * rtt_.srtt() + (lone ? kMaxAckDelay : kLeastWait);
    }
    t.timers.tail_at = std::min(now + wait, t.timers.rto_at);
}

// The kernel's tcp_send_loss_probe().
void LossRecovery::tail_loss_probe(Time now) noexcept {
    Tcb& t = tcb_;
    lwip::Pcb* const pcb = t.pcb;
    if (pcb->unacked() == nullptr || !scoreboard_->calm() || probe_.under_way()) return;
    const std::uint32_t mss = t.shown.mss();
    // New data serves as well, and is not sent for nothing. The congestion window does not keep it back.
    lwip::Segment* const next = pcb->unsent();
    const std::uint32_t edge = pcb->snd_una() + pcb->snd_wnd();
    bool again = false;
    if (next != nullptr && !seq_before(edge, next->seq() + std::min(next->size(), mss))) {
        if (next->size() > mss && !t.queue.split(next, mss)) return;
        if (!t.writer.send(next, false)) return;
        t.queue.first_sent();
    } else {
        lwip::Segment* last = t.queue.last_sent();
        if (last == nullptr) return;
        if (last->size() > mss) {
            if (!t.queue.split(last, (last->size() - 1) / mss * mss)) return;
            last = t.queue.last_sent();
        }
        if (!t.writer.send(last, true)) return;
        scoreboard_->on_probed(last);
        again = true;
    }
    t.counters.tail_probes++;
    probe_.sent(pcb->snd_nxt(), again);
    t.timers.tail_at = kNoTime;
    t.timers.rto_at = now + rtt_.rto();
}

void LossRecovery::reordering_timeout(Time now) noexcept {
    Tcb& t = tcb_;
    lwip::Segment* const head = t.pcb->unacked();
    if (head == nullptr || !scoreboard_->uses_sack()) return;
    lost_now_ = 0;
    find_lost(head, now);
    if (lost_now_ == 0) return;
    const std::uint32_t mss = t.shown.mss();
    if (scoreboard_->phase() != RecoveryPhase::recovery) {
        enter_recovery(t.pcb->snd_una());
        congestion_.set_window(prr_.on_ack(mss, pipe(), false, mss));
    }
    t.sender.output();
}

// ---- ACKs ----

// The cumulative part of an ACK. Returns the first segment that it leaves.
[[gnu::always_inline]] inline lwip::Segment* LossRecovery::advance(const AckInfo& info, lwip::Segment* head,
                                                                   Time now, AckOutcome& out) noexcept {
    Tcb& t = tcb_;
    const Usec at = microseconds(now);
    const lwip::Segment* last = nullptr;  // of those that were sent once
    const auto delivered = [&](const lwip::Segment* s, std::uint8_t flags) {
        const bool again = (flags & SegmentAccess::kResent) != 0;
        if (__builtin_expect(again, 0)) {
            if (last != nullptr) rack_.delivered(last->sent(), last->end(), false, at, Usec(0));
            rack_.delivered(s->sent(), s->end(), true, at, rtt_.min_rtt());
        }
        last = again ? nullptr : s;
    };
    lwip::Segment* next = nullptr;
    out = scoreboard_->on_cumulative_ack(head, info.ack, next, delivered);
    Usec newest{};
    if (last != nullptr) {
        rack_.delivered(last->sent(), last->end(), false, at, Usec(0));
        // HyStart wants to see how the delay grows within a round: a sample with each ACK.
        if (last->size() != 0 && !out.retransmitted) {
            newest = std::max(at - last->sent(), Usec(1));
            congestion_.on_rtt_sample(newest, info.ack, t.pcb->snd_nxt(), rtt_.srtt(), now);
        }
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
    reneged_ = out.reneged;
    t.timers.tail_at = kNoTime;
    return next;
}

void LossRecovery::before_ack(const AckInfo& info) noexcept {
    Tcb& t = tcb_;
    lwip::Pcb* const pcb = t.pcb;
    if (!t.phase.established) return;
    const Time now = t.acceptance.last_rx();
    const std::uint32_t una = pcb->snd_una();
    lwip::Segment* head = pcb->unacked();
    const bool advances = seq_before(una, info.ack);
    const bool calm = scoreboard_->calm() && !reducing_ && !probe_.under_way();
    AckOutcome acked;
    acked.was = scoreboard_->phase();
    if (advances) head = advance(info, head, now, acked);
    // What is acknowledged of a super-frame need not be sent again.
    if (advances && head != nullptr && head->is_long() && head->marks() == 0 &&
        seq_before(head->seq(), info.ack))
        head->trim_front(info.ack - head->seq());
    // An ACK of RFC 5681 section 2; one that opens the window is none.
    const bool duplicate = !advances && info.ack == una && !info.data && info.window == pcb->snd_wnd();
    if (__builtin_expect(!calm || info.block_count != 0 || duplicate || info.ecn_echo, 0)) {
        judge(info, head, acked, duplicate, now);
        return;
    }
    if (advances)
        congestion_.on_ack(info.ack - una, usage_.limited(congestion_.cwnd(), congestion_.in_slow_start()),
                           now);
}

// An ACK that is, or comes, where something is missing. The order is the kernel's: reports, a probe's answer,
// the state, then the window.
void LossRecovery::judge(const AckInfo& info, lwip::Segment* head, const AckOutcome& acked, bool duplicate,
                         Time now) noexcept {
    Tcb& t = tcb_;
    lwip::Pcb* const pcb = t.pcb;
    const bool advances = seq_before(pcb->snd_una(), info.ack);
    const std::uint32_t una = advances ? info.ack : pcb->snd_una(), flight = pcb->snd_nxt() - una;
    const std::uint32_t mss = t.shown.mss();
    lost_now_ = 0;
    new_first_ = false;
    if (info.ecn_echo) congestion_.keep_reduction();  // the network is congested, whatever was lost
    if (info.block_count != 0 || duplicate) t.queue.cut_sent();
    SackOutcome reported;
    if (info.block_count != 0) reported = take_reports(info, head, una, now);
    if (acked.reordered != 0 || reported.reordered != 0)
        rack_.reordered(std::max(acked.reordered, reported.reordered), mss);
    const bool news = reported.newly_sacked != 0;
    std::uint32_t delivered = acked.delivered + reported.newly_sacked;
    if (head != nullptr && (duplicate || (news && !advances && info.ack == una && !info.data))) {
        t.counters.dup_acks_in++;
        const std::uint32_t before = scoreboard_->sacked_bytes();
        scoreboard_->on_duplicate_ack(head, una, flight);
        delivered += scoreboard_->sacked_bytes() - before;
    }
    const bool probe_again = reported.dsacks != 0 && probe_.is_duplicate(reported.duplicate_end);
    if (reported.dsacks != 0 && !probe_again) rack_.duplicate();
    if (probe_.on_ack({info.ack, probe_again, duplicate && !news}) && !recovering() && !reducing_) {
        begin_reduction();
        congestion_.end_reduction();
        congestion_.keep_reduction();
    }
    if (delivered != 0) rack_.adapt(microseconds(now));
    if (reducing_ && seq_before(reduced_upto_, una)) {
        reducing_ = false;
        congestion_.end_reduction();
    }

    const bool undone = try_undo(info, head, acked, reported);
    if (acked.recovered && !undone) {
        if (acked.was == RecoveryPhase::recovery) congestion_.end_reduction();
        rack_.recovered();
    }
    if (!recovering()) forward_ = stamped_ = false;
    if (forward_ && after_timeout()) try_new_data(info, advances, news || duplicate);

    bool again = false;
    if (scoreboard_->uses_sack() && head != nullptr && rack_.take_advanced()) again = find_lost(head, now);
    const RecoveryPhase phase = scoreboard_->phase();
    if ((phase == RecoveryPhase::open && scoreboard_->lost_segments() != 0) ||
        (phase == RecoveryPhase::timeout && again))
        enter_recovery(una);

    if (info.ecn_echo && !congestion_signalled()) congestion_.keep_reduction();
    if (scoreboard_->phase() == RecoveryPhase::recovery || reducing_) {
        if (delivered != 0)
            congestion_.set_window(
                prr_.on_ack(delivered, scoreboard_->pipe(flight), advances && lost_now_ == 0, mss));
    } else if (advances) {
        congestion_.on_ack(delivered, usage_.limited(congestion_.cwnd(), congestion_.in_slow_start()), now);
    }
}

SackOutcome LossRecovery::take_reports(const AckInfo& info, lwip::Segment* head, std::uint32_t una,
                                       Time now) noexcept {
    const Usec at = microseconds(now), min_rtt = rtt_.min_rtt();
    const lwip::Segment* first = nullptr;  // of those that were sent once
    std::uint32_t upto = una;
    const SackOutcome out =
        scoreboard_->on_sack(head, std::span(info.blocks, info.block_count), info.ack, una,
                             tcb_.pcb->snd_nxt(), [&](const lwip::Segment* s, std::uint8_t flags) {
                                 const bool again = (flags & SegmentAccess::kResent) != 0;
                                 rack_.delivered(s->sent(), s->end(), again, at, min_rtt);
                                 if (again) return;
                                 if (first == nullptr) first = s;
                                 upto = seq_max(upto, s->end());
                             });
    tcb_.counters.dsacks += out.dsacks;
    tcb_.counters.bad_options += out.invalid;
    if (first != nullptr) {
        rtt_.sample(std::max(at - first->sent(), Usec(1)), now);
        // What is timed is acknowledged later than it has arrived.
        if (rtt_start_ != kNoTime && seq_at_or_before(rtt_seq_, upto)) rtt_start_ = kNoTime;
    }
    return out;
}

// Was what was sent again needless? By the peer's reports of duplicates, by time stamps (Eifel, RFC 4015),
// or, after a timeout, since data has arrived that was sent once (F-RTO). True: things are as before the
// recovery.
bool LossRecovery::try_undo(const AckInfo& info, lwip::Segment* head, const AckOutcome& acked,
                            const SackOutcome& reported) noexcept {
    if (!scoreboard_->undo_armed()) return false;
    const bool needless = scoreboard_->all_retransmissions_needless();
    const bool delayed =
        acked.segments != 0 && stamped_ && info.echo != 0 && seq_before(info.echo, first_again_);
    const bool forward = after_timeout() && forward_ && (acked.original || reported.original);
    // Within a recovery a retransmission under way may yet turn out to be needed.
    const bool partial =
        scoreboard_->phase() == RecoveryPhase::recovery && scoreboard_->retrans_segments() != 0;
    if (!(needless || forward || (delayed && !partial))) return false;
    if (needless && !acked.recovered && !recovering()) rack_.undone_by_duplicates();
    if (congestion_.on_spurious()) tcb_.ecn.withdraw();
    scoreboard_->undo(head);
    rack_.look_again();
    return true;
}

// F-RTO after a timeout, steps 2 and 3.
void LossRecovery::try_new_data(const AckInfo& info, bool advances, bool news) noexcept {
    lwip::Pcb* const pcb = tcb_.pcb;
    if (seq_before(scoreboard_->recovery_point(), pcb->snd_nxt())) {
        if (news) forward_ = false;  // the timeout was right
        return;
    }
    if (!advances) return;
    scoreboard_->move_recovery_point(pcb->snd_nxt());
    new_first_ = forward_ = pcb->unsent() != nullptr && seq_before(pcb->snd_nxt(), info.ack + info.window);
    if (new_first_) tcb_.sender.end_burst();
}

// True: among what is lost are retransmissions.
bool LossRecovery::find_lost(lwip::Segment* head, Time now) noexcept {
    const Usec window =
        rack_.window(rtt_.min_rtt(), rtt_.srtt(), recovering(), scoreboard_->sacked_segments());
    const LossOutcome out = scoreboard_->find_lost(head, rack_, window, microseconds(now));
    if (out.more) rack_.look_again();
    tcb_.timers.reorder_at = out.wait == Usec(0) ? kNoTime : now + (out.wait + kLeastWait);
    lost_now_ += out.lost;
    return out.retransmission;
}

// `una`: SND.UNA after the ACK that is looked at.
void LossRecovery::enter_recovery(std::uint32_t una) noexcept {
    scoreboard_->begin_undo(una, probe_.under_way() ? tcb_.shown.mss() : 0);
    if (reducing_)
        congestion_.keep_reduction();
    else
        begin_reduction();
    reducing_ = false;
    scoreboard_->enter_recovery(tcb_.pcb->snd_nxt());
    tcb_.counters.fast_recoveries++;
    tcb_.timers.tail_at = kNoTime;
}

}  // namespace vma::tcp
