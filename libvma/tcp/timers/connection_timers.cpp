// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/timers/connection_timers.h"

#include <errno.h>

#include <algorithm>

#include "libvma/tcp/connection.h"
#include "libvma/tcp/lwip/entry.h"
#include "libvma/tcp/sequence.h"
#include "libvma/tcp/timers/background.h"
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

}  // namespace

void ConnectionTimers::cancel() noexcept { Background::instance().wheel().cancel(timer_); }

void ConnectionTimers::fired(Timer& timer) noexcept {
    ConnectionTimers& timers = static_cast<WheelTimer&>(timer).timers;
    Connection& c = timers.tcb_.connection;
    // The last reference may have gone meanwhile; its holder waits for this callback in cancel().
    if (!c.try_ref()) return;
    // What has arrived but was not looked at yet must not be taken for lost: nobody polls while the program
    // computes.
    if (ring::Ring* ring = c.ring(); ring != nullptr && c.unacked_bytes() != 0)
        for (unsigned i = 0; i < kBatchesFirst && ring->poll() != 0; i++) {
        }
    if (c.enter()) {
        timers.armed_for_ = 0;
        timers.run(now_ns());
        c.leave();
    }
    c.unref();
}

void ConnectionTimers::arm() noexcept {
    Tcb& t = tcb_;
    std::uint64_t next = 0;
    auto consider = [&](std::uint64_t at) {
        if (at != 0 && (next == 0 || at < next)) next = at;
    };
    if (t.pcb != nullptr && !t.freeze.frozen()) {
        if (t.options.keepalive && t.phase.established && keepalive_at == 0 && !t.phase.in_time_wait)
            keepalive_at = t.acceptance.last_rx_ns() + t.options.keep_idle_s * kSecond;
        consider(rto_at);
        consider(ack_at);
        consider(probe_at);
        consider(keepalive_at);
        consider(end_at);
        consider(path_at);
        consider(cork_at);
        consider(tail_at);
    }
    if (next == 0) {
        if (armed_for_ != 0) Background::instance().wheel().disarm(timer_);
        armed_for_ = 0;
        return;
    }
    // Later is found out when it fires; only earlier must be told.
    if (armed_for_ != 0 && next >= armed_for_) return;
    armed_for_ = next;
    Background::instance().wheel().arm(timer_, next);
}

void ConnectionTimers::run(std::uint64_t now) noexcept {
    if (tcb_.pcb == nullptr || tcb_.freeze.frozen()) return;
    auto due = [&](std::uint64_t& at) {
        if (at == 0 || at > now) return false;
        at = 0;
        return true;
    };
    if (due(end_at)) {
        // TIME_WAIT, or FIN_WAIT_2 of a closed socket, is over; or a SYN_RCVD nobody completed.
        tcb_.abandon(false);
        return;
    }
    bool send = false;
    if (due(ack_at)) {
        tcb_.pcb->ack_now();
        tcb_.acks.delay_over();
        send = true;
    }
    if (cork_at != 0 && cork_at <= now) send = true;  // output() looks at it
    if (due(path_at)) send = true;
    if (due(rto_at)) {
        retransmission_timeout(now);
        if (tcb_.pcb == nullptr) return;
    } else if (due(tail_at)) {
        tcb_.recovery.tail_loss_probe();
    }
    if (due(probe_at)) probe(now);
    if (tcb_.pcb != nullptr && due(keepalive_at)) keep_alive(now);
    if (tcb_.pcb != nullptr && send) {
        tcb_.sender.end_burst();
        tcb_.sender.output();
    }
}

void ConnectionTimers::retransmission_timeout(std::uint64_t now) noexcept {
    if (tcb_.pcb->unacked() == nullptr) {
        // The segment could not be sent at all (no path): it is on the unsent list still.
        if (tcb_.pcb->unsent() == nullptr || tcb_.phase.established) return;
    }
    // A peer that has closed its window over data under way is asked, not lost: such tries are not counted,
    // as in the kernel.
    const bool closed = tcb_.phase.established && !tcb_.phase.orphan && tcb_.pcb->snd_wnd() == 0;
    const bool syn = tcb_.pcb->in(State::syn_sent) && tcb_.opening.sent_ns() != 0;
    tcb_.recovery.timed_out(syn ? tcb_.opening.sent_ns() : now, !closed);
    tcb_.counters.timeouts++;
    if (retried_too_long(now)) {
        const int soft = tcb_.route.soft_error();
        tcb_.give_up(soft != 0 ? soft : ETIMEDOUT);
        return;
    }
    tcb_.recovery.rtt().backoff();
    std::uint64_t wait = tcb_.recovery.rto_ns();
    if (tcb_.options.user_timeout_ms != 0) {
        const std::uint64_t end = tcb_.recovery.first_retry_ns() + tcb_.options.user_timeout_ms * kMilli;
        if (end > now && now + wait > end) wait = end - now;
    }
    rto_at = now + wait;
    tcb_.route.doubt();
    if (!tcb_.phase.established) {
        tcb_.opening.note_repeated();
        tcb_.recovery.stop_timing();
        if (tcb_.pcb->unacked() != nullptr) {
            if (tcb_.route.known() || tcb_.route.find() == 0)
                (void)tcb_.writer.send(tcb_.pcb->unacked(), true);
        } else {
            tcb_.sender.output();
        }
        return;
    }
    tcb_.recovery.stop_timing();
    tcb_.recovery.on_timeout(now);
    rto_at = now + wait;
    tcb_.sender.output();
}

// The peer's window is closed: ask whether it still is (RFC 9293 section 3.8.6.1), with a segment it has
// already.
void ConnectionTimers::probe(std::uint64_t now) noexcept {
    if (tcb_.pcb->unsent() == nullptr || tcb_.pcb->unacked() != nullptr) return;
    const std::uint32_t edge = tcb_.pcb->snd_una() + tcb_.pcb->snd_wnd(), seq = tcb_.pcb->unsent()->seq();
    if (!seq_before(edge, seq + tcb_.pcb->unsent()->size())) {
        tcb_.sender.output();
        return;
    }
    if (probes_ == 0) tcb_.recovery.probing_since(now);
    if (tcb_.options.user_timeout_ms != 0
            ? now - tcb_.recovery.first_retry_ns() >= tcb_.options.user_timeout_ms * kMilli
            : unanswered_probes_ >= tcb_.options.retries2 ||
                  (tcb_.phase.orphan && probes_ >= kOrphanRetries)) {
        tcb_.give_up(ETIMEDOUT);
        return;
    }
    probes_++;
    unanswered_probes_++;
    tcb_.counters.probes++;
    std::uint64_t wait = tcb_.recovery.rto_ns() << std::min(probes_, 16u);
    wait = std::min(wait, kMaxProbeNs);
    if (seq_before(seq, edge)) {
        // Some room, too little for silly window avoidance: use it now.
        const std::uint32_t room = edge - seq;
        lwip::Segment* seg = tcb_.pcb->unsent();
        if (tcb_.queue.split(seg, room) && tcb_.writer.send(seg, false)) {
            tcb_.queue.first_sent();
            return;
        }
    } else {
        tcb_.in_lwip([&](lwip::Entry&) { tcb_.pcb->send_keepalive(); });
        if (tcb_.pcb == nullptr) return;
    }
    probe_at = now + wait;
}

void ConnectionTimers::keep_alive(std::uint64_t now) noexcept {
    if (!tcb_.options.keepalive || !tcb_.phase.established || tcb_.phase.in_time_wait) return;
    const std::uint64_t idle = now - tcb_.acceptance.last_rx_ns();
    // Data under way is watched by the retransmission timer.
    if (tcb_.pcb->unacked() != nullptr || (tcb_.pcb->unsent() != nullptr && probe_at != 0) ||
        idle < tcb_.options.keep_idle_s * kSecond) {
        keepalives_ = 0;
        keepalive_at =
            std::max(tcb_.acceptance.last_rx_ns() + tcb_.options.keep_idle_s * kSecond, now + kMilli);
        return;
    }
    const bool over = tcb_.options.user_timeout_ms != 0
                          ? idle >= tcb_.options.user_timeout_ms * kMilli && keepalives_ > 0
                          : keepalives_ >= tcb_.options.keep_count;
    if (over) {
        tcb_.give_up(ETIMEDOUT);
        return;
    }
    keepalives_++;
    tcb_.counters.keepalives++;
    tcb_.in_lwip([&](lwip::Entry&) { tcb_.pcb->send_keepalive(); });
    keepalive_at = now + tcb_.options.keep_interval_s * kSecond;
}

void ConnectionTimers::keepalive_changed() noexcept {
    // Counted anew from the last segment that came, as the kernel does for TCP_KEEPIDLE.
    const bool same = timed_keep_idle_s_ == tcb_.options.keep_idle_s;
    if (tcb_.options.keepalive) timed_keep_idle_s_ = tcb_.options.keep_idle_s;
    if (!tcb_.options.keepalive || !same) keepalive_at = 0;
}

void ConnectionTimers::enter_time_wait() noexcept {
    tcb_.phase.in_time_wait = true;
    rto_at = probe_at = keepalive_at = cork_at = tail_at = 0;
    tcb_.queue.forget();
    tcb_.recovery.reset();
    end_at = now_ns() + kTimeWaitNs;
    if (tcb_.phase.orphan) Background::instance().orphan_left(tcb_.connection);
    Background::instance().time_wait_entered(tcb_.connection);
}

void ConnectionTimers::start_fin_wait2() noexcept {
    if (end_at != 0) return;
    if (tcb_.options.linger2_s < 0) {
        tcb_.abandon(true);
        return;
    }
    end_at = now_ns() + static_cast<std::uint64_t>(tcb_.options.linger2_s) * kSecond;
}

bool ConnectionTimers::retried_too_long(std::uint64_t now) const noexcept {
    lwip::Pcb* const pcb = tcb_.pcb;
    if (pcb->in(State::syn_sent)) {
        if (tcb_.options.user_timeout_ms != 0 &&
            now - tcb_.recovery.first_retry_ns() >= tcb_.options.user_timeout_ms * kMilli)
            return true;
        return tcb_.recovery.retries() > tcb_.options.syn_retries;
    }
    if (pcb->in(State::syn_recv)) return tcb_.recovery.retries() > kSynAckRetries;
    if (tcb_.options.user_timeout_ms != 0)
        return now - tcb_.recovery.first_retry_ns() >= tcb_.options.user_timeout_ms * kMilli;
    // Such probes go on for as long as the peer answers (tcp_rtx_probe0_timed_out() in the kernel).
    if (pcb->snd_wnd() == 0 && !tcb_.phase.orphan)
        return now - std::max(tcb_.acceptance.last_ack_rx_ns(), tcb_.recovery.first_retry_ns()) > kSilenceNs;
    return tcb_.recovery.retries() > (tcb_.phase.orphan ? kOrphanRetries : tcb_.options.retries2);
}

}  // namespace vma::tcp
