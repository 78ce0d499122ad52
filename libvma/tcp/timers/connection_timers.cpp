// SPDX-License-Identifier: BSD-2-Clause
// A connection's timers. One wheel timer serves all of them: it is armed for the earliest deadline, and when
// it fires each deadline that has come is handled. A deadline that moves later costs a store.
#include <errno.h>

#include <algorithm>

#include "libvma/tcp/connection.h"
#include "libvma/tcp/handshake/isn.h"
#include "libvma/tcp/handshake/listener.h"
#include "libvma/tcp/lwip/entry.h"
#include "libvma/tcp/sequence.h"
#include "libvma/tcp/timers/engine.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {
namespace {

constexpr std::uint64_t kMilli = 1'000'000;
constexpr std::uint64_t kTimeWaitNs = 60 * kSecond;  // the kernel's TCP_TIMEWAIT_LEN
constexpr std::uint64_t kMaxProbeNs = 120 * kSecond;
constexpr std::uint64_t kSilenceNs = 240 * kSecond;  // twice the kernel's TCP_RTO_MAX
constexpr unsigned kOrphanRetries = 8;               // net.ipv4.tcp_orphan_retries, 0 there means this
constexpr unsigned kSynAckRetries = 5;               // net.ipv4.tcp_synack_retries
constexpr unsigned kBatchesFirst = 16;               // of received frames, before a timer acts
constexpr std::uint64_t kNeighbourPatienceNs = 3 * kSecond;

}  // namespace

void Connection::timer_fired(Timer& timer) noexcept {
    Connection* c = static_cast<OwnTimer&>(timer).connection;
    // The last reference may have gone meanwhile; its holder waits for this callback in cancel().
    std::uint32_t n = c->refs_.load(std::memory_order_relaxed);
    do {
        if (n == 0) return;
    } while (!c->refs_.compare_exchange_weak(n, n + 1, std::memory_order_acquire, std::memory_order_relaxed));
    // What has arrived but was not looked at yet must not be taken for lost: nobody polls while the program
    // computes.
    if (ring::Ring* ring = c->ring(); ring != nullptr && c->unacked_bytes() != 0)
        for (unsigned i = 0; i < kBatchesFirst && ring->poll() != 0; i++) {
        }
    if (c->enter()) {
        c->armed_for_ = 0;
        c->run_timers(now_ns());
        c->leave();
    }
    c->unref();
}

void Connection::arm_timers() noexcept {
    std::uint64_t next = 0;
    auto consider = [&](std::uint64_t at) {
        if (at != 0 && (next == 0 || at < next)) next = at;
    };
    if (pcb_ != nullptr && !frozen_) {
        if (options_.keepalive && was_established_ && keepalive_at_ == 0 && !in_time_wait_)
            keepalive_at_ = last_rx_ns_ + options_.keep_idle_s * kSecond;
        consider(rto_at_);
        consider(ack_at_);
        consider(probe_at_);
        consider(keepalive_at_);
        consider(end_at_);
        consider(path_at_);
        consider(cork_at_);
        consider(tlp_at_);
        consider(user_at_);
    }
    if (next == 0) {
        if (armed_for_ != 0) Engine::instance().wheel().disarm(timer_);
        armed_for_ = 0;
        return;
    }
    // Later is found out when it fires; only earlier must be told.
    if (armed_for_ != 0 && next >= armed_for_) return;
    armed_for_ = next;
    Engine::instance().wheel().arm(timer_, next);
}

void Connection::run_timers(std::uint64_t now) noexcept {
    if (pcb_ == nullptr || frozen_) return;
    auto due = [&](std::uint64_t& at) {
        if (at == 0 || at > now) return false;
        at = 0;
        return true;
    };
    if (due(end_at_)) {
        // TIME_WAIT, or FIN_WAIT_2 of a closed socket, is over; or a SYN_RCVD nobody completed.
        in_lwip([&](lwip::Entry&) { tcp_abandon(pcb_, 0); });
        return;
    }
    bool send = false;
    if (due(ack_at_)) {
        tcp_ack_now(pcb_);
        quick_acks_ = options_.quickack ? quick_acks_ : 0;
        send = true;
    }
    if (cork_at_ != 0 && cork_at_ <= now) send = true;  // output() looks at it
    if (due(path_at_)) send = true;
    if (due(user_at_)) {
        give_up(ETIMEDOUT);
        return;
    }
    if (due(rto_at_)) {
        retransmission_timeout(now);
        if (pcb_ == nullptr) return;
    } else if (due(tlp_at_)) {
        tail_loss_probe();
    }
    if (due(probe_at_)) probe(now);
    if (pcb_ != nullptr && due(keepalive_at_)) keep_alive(now);
    if (pcb_ != nullptr && send) {
        burst_ = 0;
        output();
    }
}

void Connection::give_up(int error) noexcept {
    if (!orphan_) fail(error);
    in_lwip([&](lwip::Entry&) { tcp_abandon(pcb_, pcb_->state != SYN_SENT && pcb_->state != SYN_RCVD); });
}

bool Connection::retried_too_long(std::uint64_t now) const noexcept {
    if (pcb_->state == SYN_SENT) {
        if (options_.user_timeout_ms != 0 && now - first_retry_ns_ >= options_.user_timeout_ms * kMilli)
            return true;
        return retries_ > options_.syn_retries;
    }
    if (pcb_->state == SYN_RCVD) return retries_ > kSynAckRetries;
    if (options_.user_timeout_ms != 0) return now - first_retry_ns_ >= options_.user_timeout_ms * kMilli;
    // Such probes go on for as long as the peer answers (tcp_rtx_probe0_timed_out() in the kernel).
    if (pcb_->snd_wnd == 0 && !orphan_) return now - std::max(last_ack_rx_ns_, first_retry_ns_) > kSilenceNs;
    return retries_ > (orphan_ ? kOrphanRetries : options_.retries2);
}

void Connection::retransmission_timeout(std::uint64_t now) noexcept {
    if (pcb_->unacked == nullptr) {
        // The segment could not be sent at all (no path): it is on the unsent list still.
        if (pcb_->unsent == nullptr || was_established_) return;
    }
    // A peer that has closed its window over data under way is asked, not lost: such tries are not counted,
    // as in the kernel.
    const bool closed = was_established_ && !orphan_ && pcb_->snd_wnd == 0;
    if (retries_ == 0 && !(closed && first_retry_ns_ != 0))
        first_retry_ns_ = pcb_->state == SYN_SENT && syn_sent_ns_ != 0 ? syn_sent_ns_ : now;
    if (!closed) retries_++;
    counters_.timeouts++;
    if (retried_too_long(now)) {
        const int soft = soft_error_;
        give_up(soft != 0 ? soft : ETIMEDOUT);
        return;
    }
    rtt_.backoff();
    std::uint64_t wait = std::uint64_t{rtt_.rto_us()} * 1000;
    if (options_.user_timeout_ms != 0) {
        const std::uint64_t end = first_retry_ns_ + options_.user_timeout_ms * kMilli;
        if (end > now && now + wait > end) wait = end - now;
    }
    rto_at_ = now + wait;
    paths_.doubt(path_, ends_.remote_addr);
    if (!was_established_) {
        syn_repeated_ = true;
        rtt_start_ns_ = 0;
        if (pcb_->unacked != nullptr) {
            if (has_path_ || find_path() == 0) (void)send_segment(pcb_->unacked, true);
        } else {
            output();
        }
        return;
    }
    rtt_start_ns_ = 0;
    on_timeout(now);
    rto_at_ = now + wait;
    output();
}

// The peer's window is closed: ask whether it still is (RFC 9293 section 3.8.6.1), with a segment it has
// already.
void Connection::probe(std::uint64_t now) noexcept {
    if (pcb_->unsent == nullptr || pcb_->unacked != nullptr) return;
    const std::uint32_t edge = pcb_->lastack + pcb_->snd_wnd, seq = ntohl(pcb_->unsent->tcphdr->seqno);
    if (!seq_before(edge, seq + pcb_->unsent->len)) {
        output();
        return;
    }
    if (probes_ == 0) first_retry_ns_ = now;
    if (options_.user_timeout_ms != 0
            ? now - first_retry_ns_ >= options_.user_timeout_ms * kMilli
            : unanswered_probes_ >= options_.retries2 || (orphan_ && probes_ >= kOrphanRetries)) {
        give_up(ETIMEDOUT);
        return;
    }
    probes_++;
    unanswered_probes_++;
    counters_.probes++;
    std::uint64_t wait = std::uint64_t{rtt_.rto_us()} * 1000 << std::min(probes_, 16u);
    wait = std::min(wait, kMaxProbeNs);
    if (seq_before(seq, edge)) {
        // Some room, too little for silly window avoidance: use it now.
        const std::uint32_t room = edge - seq;
        tcp_seg* seg = pcb_->unsent;
        if (split(seg, room) && send_segment(seg, false)) {
            pcb_->unsent = seg->next;
            seg->next = nullptr;
            pcb_->unacked = unacked_last_ = seg;
            return;
        }
    } else {
        in_lwip([&](lwip::Entry&) { tcp_keepalive(pcb_); });
        if (pcb_ == nullptr) return;
    }
    probe_at_ = now + wait;
}

void Connection::keep_alive(std::uint64_t now) noexcept {
    if (!options_.keepalive || !was_established_ || in_time_wait_) return;
    const std::uint64_t idle = now - last_rx_ns_;
    // Data under way is watched by the retransmission timer.
    if (pcb_->unacked != nullptr || (pcb_->unsent != nullptr && probe_at_ != 0) ||
        idle < options_.keep_idle_s * kSecond) {
        keepalives_ = 0;
        keepalive_at_ = std::max(last_rx_ns_ + options_.keep_idle_s * kSecond, now + kMilli);
        return;
    }
    const bool over = options_.user_timeout_ms != 0
                          ? idle >= options_.user_timeout_ms * kMilli && keepalives_ > 0
                          : keepalives_ >= options_.keep_count;
    if (over) {
        give_up(ETIMEDOUT);
        return;
    }
    keepalives_++;
    counters_.keepalives++;
    in_lwip([&](lwip::Entry&) { tcp_keepalive(pcb_); });
    keepalive_at_ = now + options_.keep_interval_s * kSecond;
}

void Connection::enter_time_wait() noexcept {
    in_time_wait_ = true;
    rto_at_ = probe_at_ = keepalive_at_ = cork_at_ = tlp_at_ = user_at_ = 0;
    tail_ = unacked_last_ = nullptr;
    scoreboard_reset();
    end_at_ = now_ns() + kTimeWaitNs;
    if (orphan_) Engine::instance().orphan_left(*this);
    Engine::instance().time_wait_entered(*this);
}

void Connection::start_fin_wait2() noexcept {
    if (end_at_ != 0) return;
    if (options_.linger2_s < 0) {
        in_lwip([&](lwip::Entry&) { tcp_abandon(pcb_, 1); });
        return;
    }
    end_at_ = now_ns() + static_cast<std::uint64_t>(options_.linger2_s) * kSecond;
}

// No way to the peer at the moment.
void Connection::wait_for_path(int error, std::uint64_t now) noexcept {
    if (path_tries_++ == 0) path_since_ns_ = now;
    const bool asking = error == EAGAIN;
    soft_error_ = asking ? 0 : error;
    if (!was_established_ && (!asking || now - path_since_ns_ > kNeighbourPatienceNs)) {
        give_up(asking ? EHOSTUNREACH : error);
        return;
    }
    // A neighbour answers in microseconds as a rule; a route that went may come back.
    const unsigned shift = std::min(path_tries_, 8u);
    path_at_ = now + (asking ? kMilli : 20 * kMilli) * (std::uint64_t{1} << (shift - 1));
}

}  // namespace vma::tcp
