// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/send/ack_policy.h"

#include <algorithm>

#include "libvma/tcp/connection.h"
#include "libvma/tcp/tcb_inline.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {
namespace {

constexpr std::uint32_t kStretch = 16;        // segments for one ACK in a stream
constexpr std::uint32_t kSharedStretch = 44;  // where several streams share a short path: a super-frame
constexpr Msec kBulkPeriod{128};
constexpr std::uint32_t kFirstWindow = 128u << 10;
// Such an ACK when nobody polls the ring.
constexpr Msec kSoon{4}, kSharedSoon{1};
constexpr Msec kFirstWrite{2};  // this end may take for it after the handshake

}  // namespace

AckPolicy::AckPolicy(Tcb& tcb) noexcept : tcb_(tcb), quick_acks_(tcb.options.quickack ? kQuickAcks : 0) {}

void AckPolicy::data_received(std::uint32_t length) noexcept {
    Tcb& t = tcb_;
    due_bytes_ += length;
    t.counters.bytes_in += length;
    t.counters.data_segments_in++;
    pingpong_ = last_data_tx_ > std::max(last_data_rx_, duplicate_at_);
    bulk_bytes_ = pingpong_ ? 0 : bulk_bytes_ + std::min(length, 0x7fffffffu - bulk_bytes_);
    const Time now = t.acceptance.last_rx();
    if (__builtin_expect(now - last_data_rx_ > RttEstimator::kMinRto, 0)) resumed(now);
    last_data_rx_ = now;
    if (length > largest_in_) largest_in_ = std::max(largest_in_, std::min(length, t.route.wanted_mss()));
    if (bulk()) note_bulk();
}

// After a pause the peer begins with a small window, so it is told at once what came (the kernel's
// tcp_event_data_recv()).
void AckPolicy::resumed(Time now) noexcept {
    if (last_data_rx_ != kNoTime && now - last_data_rx_ > tcb_.recovery.rto() && tcb_.options.quickack)
        quick_acks_ = kQuickAcks;
}

void AckPolicy::duplicate_received() noexcept {
    quick_acks_ = kQuickAcks;
    duplicate_at_ = tcb_.acceptance.last_rx();
}

void AckPolicy::fin_received() noexcept {
    due_bytes_++;
    pingpong_ = fin_due_ = true;
    tcb_.pcb->drop_ack_now();
}

void AckPolicy::opened(Time now) noexcept {
    Tcb& t = tcb_;
    opened_at_ = now;
    ring::Ring* const ring = t.connection.ring();
    if (ring == nullptr || !ring->first_writes().expected() || !t.pcb->in(State::established)) return;
    due_bytes_++;
    pingpong_ = open_due_ = true;
    t.pcb->drop_ack_now();
}

void AckPolicy::first_written(Time now) noexcept {
    judge_opening(now - opened_at_ < kFirstWrite && last_data_rx_ == kNoTime);
}

// The first write has come `in_time`, or it is known that it does not.
void AckPolicy::judge_opening(bool in_time) noexcept {
    if (opened_at_ == kNoTime) return;
    if (ring::Ring* const ring = tcb_.connection.ring()) ring->first_writes().add(in_time);
    opened_at_ = kNoTime;
}

void AckPolicy::idle() noexcept {
    if (!when_idle_ || held_ || tcb_.pcb == nullptr) return;
    if (open_due_) judge_opening(false);
    tcb_.writer.send_ack();
}

void AckPolicy::settle() noexcept {
    if (open_due_ && tcb_.pcb != nullptr) tcb_.writer.send_ack();
}

// The ring posts buffers for a window of data, and counts those that share them.
void AckPolicy::note_bulk() noexcept {
    const auto period = static_cast<std::uint32_t>(last_data_rx_.time_since_epoch() / kBulkPeriod);
    if (period == bulk_period_) return;
    bulk_period_ = period;
    if (ring::Ring* ring = tcb_.connection.ring()) {
        ring->bulk_streams().join(period);
        ring->expect_bulk(std::min(window_limit(), tcb_.options.receive_window));
    }
}

// Unread data leaves the caches, and so do buffers that wait for it. The window begins small, as the kernel's
// does. On a short path that carries bulk it becomes the connection's share of the ring's buffers; on a long
// one a share would bound the rate.
std::uint32_t AckPolicy::window_limit() const noexcept {
    if (!tcb_.options.receive_auto) return UINT32_MAX;
    if (!bulk()) return kFirstWindow;
    if (!tcb_.recovery.rtt().short_path()) return UINT32_MAX;
    ring::Ring* const ring = tcb_.connection.ring();
    return ring != nullptr ? ring->bulk_streams().share() : UINT32_MAX;
}

void AckPolicy::acknowledge(Time now) noexcept {
    Tcb& t = tcb_;
    lwip::Pcb* const pcb = t.pcb;
    if (pcb->in_handshake() || __builtin_expect(held_, 0)) return;
    // Data does not tell what came twice.
    if (pcb->ack_wanted() || __builtin_expect(t.receiver.duplicate().due(), 0)) {
        t.writer.send_ack();
        return;
    }
    if (due_bytes_ == 0) {
        pcb->drop_delayed_ack();
        t.timers.ack_at = kNoTime;
        return;
    }
    // RFC 9293 section 3.8.6.3: an ACK for every second segment, at once. In the midst of a stream that costs
    // more frames than it helps anybody, so there it is one for sixteen, or for those of 20 us; receivers
    // that merge segments in hardware have made every sender live with that. Several streams of one machine
    // get one for a super-frame: an ACK for less makes the sender's kernel transmit small pieces, on this
    // core. A lone one is acknowledged in time, and its ACKs open the congestion window.
    const std::uint32_t segment = std::max(largest_in_, 1u);
    const bool quick = t.options.delayed_ack == Msec::zero() || (quick_acks_ != 0 && !pingpong_);
    const bool bulk = this->bulk() && t.options.delayed_ack != Msec::zero();
    ring::Ring* const ring = t.connection.ring();
    const bool near =
        bulk && t.recovery.rtt().short_path() && ring != nullptr && ring->bulk_streams().count() > 1;
    const std::uint32_t stretch = near ? kSharedStretch : kStretch;
    const std::uint32_t enough = bulk ? std::min(stretch * segment, pcb->announced_wnd() / 4) : 2 * segment;
    if (due_bytes_ >= enough || (quick && !bulk)) {
        if (quick_acks_ != 0) quick_acks_--;
        t.writer.send_ack();
        return;
    }
    // Behind data the peer's probe of its last segment may come within some milliseconds. As in the kernel,
    // two segments need not both be full ones: Nagle and a writer of 1400 bytes make them of two sizes, and a
    // sender with no more than that under way would wait for the delayed ACK.
    const bool soon = fin_due_ || open_due_ || due_bytes_ > segment;
    when_idle_ = soon;
    const Msec delay = near ? kSharedSoon : kSoon;
    const Time at = now + (soon ? std::min(delay, t.options.delayed_ack) : t.options.delayed_ack);
    if (t.timers.ack_at == kNoTime || at < t.timers.ack_at) t.timers.ack_at = at;
}

bool AckPolicy::quick(bool on) noexcept {
    quick_acks_ = on ? kQuickAcks : 0;
    return on && due_bytes_ != 0;
}

void AckPolicy::delay_over() noexcept {
    if (!tcb_.options.quickack) quick_acks_ = 0;
    if (open_due_) judge_opening(false);
}

}  // namespace vma::tcp
