// SPDX-License-Identifier: BSD-2-Clause
// Short functions of a Tcb's parts that run for each segment. Apart from tcb.h, which need not know lwIP's
// types: a source of tcp/ that calls them includes this.
#pragma once

#include <algorithm>
#include <cstdint>

#include "libvma/tcp/lwip/pcb.h"
#include "libvma/tcp/lwip/segment.h"
#include "libvma/tcp/memory_bound.h"
#include "libvma/tcp/recovery/segments.h"
#include "libvma/tcp/sequence.h"
#include "libvma/tcp/tcb.h"

namespace vma::tcp {

inline constexpr std::uint32_t kMinSendBuffer = 256 * 1024, kMaxSendBuffer = 4 * 1024 * 1024,
                               kShortSendBuffer = 384 * 1024;  // on a short path

inline std::uint32_t SendQueue::queued() const noexcept {
    const Tcb& t = tcb_;
    if (t.pcb == nullptr || !t.phase.established) return 0;
    const auto n = static_cast<std::int32_t>(data_end_ - t.pcb->snd_una());
    return n > 0 ? static_cast<std::uint32_t>(n) : 0;
}

inline std::uint32_t SendQueue::unsent() const noexcept {
    const Tcb& t = tcb_;
    if (t.pcb == nullptr || t.pcb->unsent() == nullptr || !t.phase.established) return 0;
    const auto n = static_cast<std::int32_t>(data_end_ - t.pcb->unsent()->seq());
    return n > 0 ? static_cast<std::uint32_t>(n) : 0;
}

inline std::uint32_t SendQueue::limit() const noexcept {
    const std::uint32_t limit = full_limit();
    return __builtin_expect(memory_bound::scarce(), 0) ? memory_bound::send_limit(limit) : limit;
}

inline std::uint32_t SendQueue::full_limit() const noexcept {
    if (tcb_.options.send_buffer != 0) return tcb_.options.send_buffer;
    const std::uint32_t most = tcb_.recovery.rtt().short_path() ? kShortSendBuffer : kMaxSendBuffer;
    return std::clamp(2 * std::min(tcb_.recovery.congestion().cwnd(), most), kMinSendBuffer, most);
}

inline bool Route::bound_by_window() const noexcept {
    return bounded_ || tcb_.pcb->max_snd_wnd() / 2 <= tcb_.shown.mss();
}

inline void SendQueue::first_sent() noexcept {
    lwip::Pcb* const pcb = tcb_.pcb;
    lwip::Segment* seg = pcb->unsent();
    pcb->set_unsent(seg->next());
    seg->set_next(nullptr);
    if (tail_ == seg) tail_ = nullptr;
    if (seg->size() > tcb_.shown.mss() && first_long_ == nullptr) {
        first_long_ = seg;
        long_seq_ = seg->seq();
    }
    if (pcb->unacked() == nullptr)
        pcb->set_unacked(seg);
    else
        unacked_last_->set_next(seg);
    unacked_last_ = seg;
}

inline void SendQueue::freed() noexcept {
    lwip::Pcb* const pcb = tcb_.pcb;
    if (pcb->unacked() == nullptr) unacked_last_ = nullptr;
    if (first_long_ != nullptr && seq_before(long_seq_, pcb->snd_una())) {
        first_long_ = pcb->unacked();
        long_seq_ = pcb->snd_una();
    }
    if (pcb->unsent() == nullptr) tail_ = nullptr;
}

inline void Sender::acked(std::uint32_t ack) noexcept {
    if (!seq_before(ack, small_end_)) small_end_ = ack;  // so it never gets so old that it seems new
}

inline SendTimes::Why Sender::waits_for(bool no_room) const noexcept {
    const lwip::Pcb* const pcb = tcb_.pcb;
    if (pcb == nullptr || !tcb_.phase.established) return SendTimes::Why::nothing;
    const lwip::Segment* const first = pcb->unsent();
    if (first == nullptr) {
        if (pcb->unacked() == nullptr) return SendTimes::Why::nothing;
        return no_room ? SendTimes::Why::buffer : SendTimes::Why::network;
    }
    const std::uint32_t end = first->seq() + std::min(first->size(), tcb_.shown.mss());
    return seq_before(pcb->snd_una() + pcb->snd_wnd(), end) ? SendTimes::Why::window
                                                            : SendTimes::Why::network;
}

inline void AckPolicy::sent() noexcept {
    lwip::Pcb* const pcb = tcb_.pcb;
    pcb->ack_sent();
    acked_upto_ = pcb->rcv_nxt();
    due_bytes_ = 0;
    tcb_.timers.ack_at = kNoTime;
    when_idle_ = fin_due_ = open_due_ = false;
}

inline std::uint32_t LossRecovery::pipe() const noexcept {
    lwip::Pcb* const pcb = tcb_.pcb;
    return scoreboard_->pipe(pcb->snd_nxt() - pcb->snd_una());
}

inline bool LossRecovery::room_for(std::uint32_t length) const noexcept {
    const std::uint32_t flight = pipe();
    return length == 0 || flight == 0 || flight + length <= congestion_.cwnd();
}

inline std::uint32_t LossRecovery::room() const noexcept {
    const std::uint32_t flight = pipe(), cwnd = congestion_.cwnd();
    return flight < cwnd ? cwnd - flight : 0;
}

inline Nsec LossRecovery::wait_after_ack() const noexcept {
    constexpr Msec kReneged{10};
    return __builtin_expect(reneged_, 0) ? std::max<Nsec>(rtt_.srtt() / 2, kReneged) : rtt_.rto();
}

inline void LossRecovery::validate_window(bool limited, Time now) noexcept {
    lwip::Pcb* const pcb = tcb_.pcb;
    const std::uint32_t out = pcb->snd_nxt() - pcb->snd_una();
    usage_.sent(limited || pipe() >= congestion_.cwnd(), out, pcb->snd_una(), pcb->snd_nxt());
    if (usage_.limited(congestion_.cwnd(), congestion_.in_slow_start()))
        usage_.full(now);
    else if (__builtin_expect(usage_.starves(out, now, RttEstimator::kMinRto), 0) &&  // no timeout is shorter
             usage_.starves(out, now, rtt_.rto()) && scoreboard_->calm() &&
             tcb_.options.slow_start_after_idle)
        congestion_.not_filled(usage_.less(congestion_.cwnd(), congestion_.initial_window(), now));
}

inline void LossRecovery::begin_reduction() noexcept {
    const std::uint32_t before = congestion_.cwnd();
    prr_.begin(before, congestion_.begin_reduction());
    tcb_.ecn.reduced();
    probe_.forget();
}

inline bool LossRecovery::congestion_signalled() noexcept {
    if (reducing_ || recovering()) return false;
    begin_reduction();
    congestion_.keep_reduction();
    reducing_ = true;
    reduced_upto_ = tcb_.pcb->snd_nxt();
    return true;
}

inline bool LossRecovery::nothing_missing() const noexcept {
    return scoreboard_->phase() == RecoveryPhase::open && scoreboard_->sacked_segments() == 0;
}

}  // namespace vma::tcp
