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
    Connection* c = &static_cast<ConnectionTimer&>(timer).connection;
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
        c->timers_.armed_for = 0;
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
    if (pcb_ != nullptr && !freeze_.frozen) {
        if (options_.keepalive && phase_.established && timers_.keepalive_at == 0 && !phase_.in_time_wait)
            timers_.keepalive_at = check_.last_rx_ns + options_.keep_idle_s * kSecond;
        consider(timers_.rto_at);
        consider(timers_.ack_at);
        consider(timers_.probe_at);
        consider(timers_.keepalive_at);
        consider(timers_.end_at);
        consider(timers_.path_at);
        consider(timers_.cork_at);
        consider(timers_.tlp_at);
        consider(timers_.user_at);
    }
    if (next == 0) {
        if (timers_.armed_for != 0) Engine::instance().wheel().disarm(timers_.timer);
        timers_.armed_for = 0;
        return;
    }
    // Later is found out when it fires; only earlier must be told.
    if (timers_.armed_for != 0 && next >= timers_.armed_for) return;
    timers_.armed_for = next;
    Engine::instance().wheel().arm(timers_.timer, next);
}

void Connection::run_timers(std::uint64_t now) noexcept {
    if (pcb_ == nullptr || freeze_.frozen) return;
    auto due = [&](std::uint64_t& at) {
        if (at == 0 || at > now) return false;
        at = 0;
        return true;
    };
    if (due(timers_.end_at)) {
        // TIME_WAIT, or FIN_WAIT_2 of a closed socket, is over; or a SYN_RCVD nobody completed.
        in_lwip([&](lwip::Entry&) { tcp_abandon(pcb_, 0); });
        return;
    }
    bool send = false;
    if (due(timers_.ack_at)) {
        tcp_ack_now(pcb_);
        acks_.quick_acks = options_.quickack ? acks_.quick_acks : 0;
        send = true;
    }
    if (timers_.cork_at != 0 && timers_.cork_at <= now) send = true;  // output() looks at it
    if (due(timers_.path_at)) send = true;
    if (due(timers_.user_at)) {
        give_up(ETIMEDOUT);
        return;
    }
    if (due(timers_.rto_at)) {
        retransmission_timeout(now);
        if (pcb_ == nullptr) return;
    } else if (due(timers_.tlp_at)) {
        tail_loss_probe();
    }
    if (due(timers_.probe_at)) probe(now);
    if (pcb_ != nullptr && due(timers_.keepalive_at)) keep_alive(now);
    if (pcb_ != nullptr && send) {
        send_.burst = 0;
        output();
    }
}

void Connection::give_up(int error) noexcept {
    if (!phase_.orphan) fail(error);
    in_lwip([&](lwip::Entry&) { tcp_abandon(pcb_, pcb_->state != SYN_SENT && pcb_->state != SYN_RCVD); });
}

bool Connection::retried_too_long(std::uint64_t now) const noexcept {
    if (pcb_->state == SYN_SENT) {
        if (options_.user_timeout_ms != 0 &&
            now - recovery_.first_retry_ns >= options_.user_timeout_ms * kMilli)
            return true;
        return recovery_.retries > options_.syn_retries;
    }
    if (pcb_->state == SYN_RCVD) return recovery_.retries > kSynAckRetries;
    if (options_.user_timeout_ms != 0)
        return now - recovery_.first_retry_ns >= options_.user_timeout_ms * kMilli;
    // Such probes go on for as long as the peer answers (tcp_rtx_probe0_timed_out() in the kernel).
    if (pcb_->snd_wnd == 0 && !phase_.orphan)
        return now - std::max(check_.last_ack_rx_ns, recovery_.first_retry_ns) > kSilenceNs;
    return recovery_.retries > (phase_.orphan ? kOrphanRetries : options_.retries2);
}

void Connection::retransmission_timeout(std::uint64_t now) noexcept {
    if (pcb_->unacked == nullptr) {
        // The segment could not be sent at all (no path): it is on the unsent list still.
        if (pcb_->unsent == nullptr || phase_.established) return;
    }
    // A peer that has closed its window over data under way is asked, not lost: such tries are not counted,
    // as in the kernel.
    const bool closed = phase_.established && !phase_.orphan && pcb_->snd_wnd == 0;
    if (recovery_.retries == 0 && !(closed && recovery_.first_retry_ns != 0))
        recovery_.first_retry_ns =
            pcb_->state == SYN_SENT && opening_.syn_sent_ns != 0 ? opening_.syn_sent_ns : now;
    if (!closed) recovery_.retries++;
    counters_.timeouts++;
    if (retried_too_long(now)) {
        const int soft = route_.soft_error;
        give_up(soft != 0 ? soft : ETIMEDOUT);
        return;
    }
    recovery_.rtt.backoff();
    std::uint64_t wait = std::uint64_t{recovery_.rtt.rto_us()} * 1000;
    if (options_.user_timeout_ms != 0) {
        const std::uint64_t end = recovery_.first_retry_ns + options_.user_timeout_ms * kMilli;
        if (end > now && now + wait > end) wait = end - now;
    }
    timers_.rto_at = now + wait;
    route_.paths.doubt(route_.path, ends_.remote_addr);
    if (!phase_.established) {
        opening_.syn_repeated = true;
        recovery_.rtt_start_ns = 0;
        if (pcb_->unacked != nullptr) {
            if (route_.has_path || find_path() == 0) (void)send_segment(pcb_->unacked, true);
        } else {
            output();
        }
        return;
    }
    recovery_.rtt_start_ns = 0;
    on_timeout(now);
    timers_.rto_at = now + wait;
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
    if (timers_.probes == 0) recovery_.first_retry_ns = now;
    if (options_.user_timeout_ms != 0 ? now - recovery_.first_retry_ns >= options_.user_timeout_ms * kMilli
                                      : timers_.unanswered_probes >= options_.retries2 ||
                                            (phase_.orphan && timers_.probes >= kOrphanRetries)) {
        give_up(ETIMEDOUT);
        return;
    }
    timers_.probes++;
    timers_.unanswered_probes++;
    counters_.probes++;
    std::uint64_t wait = std::uint64_t{recovery_.rtt.rto_us()} * 1000 << std::min(timers_.probes, 16u);
    wait = std::min(wait, kMaxProbeNs);
    if (seq_before(seq, edge)) {
        // Some room, too little for silly window avoidance: use it now.
        const std::uint32_t room = edge - seq;
        tcp_seg* seg = pcb_->unsent;
        if (split(seg, room) && send_segment(seg, false)) {
            pcb_->unsent = seg->next;
            seg->next = nullptr;
            pcb_->unacked = send_.unacked_last = seg;
            return;
        }
    } else {
        in_lwip([&](lwip::Entry&) { tcp_keepalive(pcb_); });
        if (pcb_ == nullptr) return;
    }
    timers_.probe_at = now + wait;
}

void Connection::keep_alive(std::uint64_t now) noexcept {
    if (!options_.keepalive || !phase_.established || phase_.in_time_wait) return;
    const std::uint64_t idle = now - check_.last_rx_ns;
    // Data under way is watched by the retransmission timer.
    if (pcb_->unacked != nullptr || (pcb_->unsent != nullptr && timers_.probe_at != 0) ||
        idle < options_.keep_idle_s * kSecond) {
        timers_.keepalives = 0;
        timers_.keepalive_at = std::max(check_.last_rx_ns + options_.keep_idle_s * kSecond, now + kMilli);
        return;
    }
    const bool over = options_.user_timeout_ms != 0
                          ? idle >= options_.user_timeout_ms * kMilli && timers_.keepalives > 0
                          : timers_.keepalives >= options_.keep_count;
    if (over) {
        give_up(ETIMEDOUT);
        return;
    }
    timers_.keepalives++;
    counters_.keepalives++;
    in_lwip([&](lwip::Entry&) { tcp_keepalive(pcb_); });
    timers_.keepalive_at = now + options_.keep_interval_s * kSecond;
}

void Connection::enter_time_wait() noexcept {
    phase_.in_time_wait = true;
    timers_.rto_at = timers_.probe_at = timers_.keepalive_at = timers_.cork_at = timers_.tlp_at =
        timers_.user_at = 0;
    send_.tail = send_.unacked_last = nullptr;
    scoreboard_reset();
    timers_.end_at = now_ns() + kTimeWaitNs;
    if (phase_.orphan) Engine::instance().orphan_left(*this);
    Engine::instance().time_wait_entered(*this);
}

void Connection::start_fin_wait2() noexcept {
    if (timers_.end_at != 0) return;
    if (options_.linger2_s < 0) {
        in_lwip([&](lwip::Entry&) { tcp_abandon(pcb_, 1); });
        return;
    }
    timers_.end_at = now_ns() + static_cast<std::uint64_t>(options_.linger2_s) * kSecond;
}

// No way to the peer at the moment.
void Connection::wait_for_path(int error, std::uint64_t now) noexcept {
    if (route_.path_tries++ == 0) route_.path_since_ns = now;
    const bool asking = error == EAGAIN;
    route_.soft_error = asking ? 0 : error;
    if (!phase_.established && (!asking || now - route_.path_since_ns > kNeighbourPatienceNs)) {
        give_up(asking ? EHOSTUNREACH : error);
        return;
    }
    // A neighbour answers in microseconds as a rule; a route that went may come back.
    const unsigned shift = std::min(route_.path_tries, 8u);
    timers_.path_at = now + (asking ? kMilli : 20 * kMilli) * (std::uint64_t{1} << (shift - 1));
}

}  // namespace vma::tcp
