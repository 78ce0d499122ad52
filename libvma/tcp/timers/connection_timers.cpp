// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/timers/connection_timers.h"

#include <errno.h>

#include <algorithm>

#include "libvma/tcp/connection.h"
#include "libvma/tcp/lwip/entry.h"
#include "libvma/tcp/memory_bound.h"
#include "libvma/tcp/sequence.h"
#include "libvma/tcp/timers/background.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {
namespace {

constexpr Nsec kTimeWait = 60 * kSecond;  // the kernel's TCP_TIMEWAIT_LEN
constexpr Nsec kLongestRto = RttEstimator::kMaxRto;
constexpr Nsec kSilence = 2 * kLongestRto;
constexpr Nsec kMuchLater = kSecond;
constexpr unsigned kOrphanRetries = 8;  // where net.ipv4.tcp_orphan_retries is 0
constexpr unsigned kSynAckRetries = 5;  // net.ipv4.tcp_synack_retries
constexpr unsigned kBatchesFirst = 16;  // of received frames, before a timer acts

// How long the kernel goes on after the first of `retries` retransmissions, whatever the connection's own
// timeout is: that many doublings of its shortest timeout, each at most its longest (tcp_model_timeout()).
// One shortest timeout less than there: the kernel's timeouts are longer by up to a clock tick, which adds
// up.
constexpr Nsec time_for(unsigned retries) {
    constexpr Nsec kShortestRto = Msec(200);
    constexpr unsigned kDoublings = 9;  // then the longest is reached
    const unsigned doubled = std::min(retries, kDoublings);
    return kShortestRto * ((2u << doubled) - 2) + kLongestRto * (retries - doubled);
}

// The same for a SYN, whose shortest timeout is a second.
constexpr Nsec time_for_syn(unsigned retries) {
    constexpr unsigned kDoublings = 6;
    const unsigned doubled = std::min(retries, kDoublings);
    return kSecond * ((2u << doubled) - 1) + kLongestRto * (retries - doubled);
}

// Of a connection that its program has closed. One that waits as long as possible already gets no further
// chance (tcp_orphan_retries() in the kernel): a peer must not hold its memory for a quarter of an hour.
unsigned orphan_retries(const Tcb& t, Nsec rto) noexcept {
    const bool alive = rto < kLongestRto;
    const unsigned retries = t.route.soft_error() != 0 && !alive ? 0 : t.options.orphan_retries;
    return retries == 0 && alive ? kOrphanRetries : retries;
}

// As the kernel's tcp_out_of_resources(): of a peer that says nothing for long, and one that a router calls
// unreachable, half as many are borne.
bool must_go(const Tcb& t, Time now) noexcept {
    if (!t.phase.orphan) return false;
    const unsigned silent = now - t.acceptance.last_rx() > kSilence ? 1 : 0;
    return memory_bound::orphan_must_go(t, silent + (t.route.soft_error() != 0 ? 1 : 0));
}

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
        timers.armed_for_ = kNoTime;
        timers.run(Clock::now());
        c.leave();
    }
    c.unref();
}

void ConnectionTimers::arm() noexcept {
    Tcb& t = tcb_;
    Time next;
    auto consider = [&](Time at) {
        if (at != kNoTime && (next == kNoTime || at < next)) next = at;
    };
    if (t.pcb != nullptr && !t.freeze.frozen()) {
        if (t.options.keepalive && t.phase.established && keepalive_at == kNoTime && !t.phase.in_time_wait)
            keepalive_at = t.acceptance.last_heard() + t.options.keep_idle;
        consider(rto_at);
        consider(ack_at);
        consider(probe_at);
        consider(keepalive_at);
        consider(end_at);
        consider(path_at);
        consider(cork_at);
        consider(tail_at);
        consider(reorder_at);
    }
    if (next == kNoTime) {
        if (armed_for_ != kNoTime) Background::instance().wheel().disarm(timer_);
        armed_for_ = kNoTime;
        return;
    }
    // Later is found out when it fires; only earlier must be told. Much later is told, too: at a TIME_WAIT
    // the wheel then need not call the connection for a delayed ACK that is no more.
    if (armed_for_ != kNoTime && next >= armed_for_ && next - armed_for_ < kMuchLater) return;
    armed_for_ = next;
    Background::instance().wheel().arm(timer_, next);
}

void ConnectionTimers::run(Time now) noexcept {
    if (tcb_.pcb == nullptr || tcb_.freeze.frozen()) return;
    auto due = [&](Time& at) {
        if (at == kNoTime || at > now) return false;
        at = kNoTime;
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
    if (cork_at != kNoTime && cork_at <= now) send = true;  // output() looks at it
    if (due(path_at)) send = true;
    if (due(reorder_at)) tcb_.recovery.reordering_timeout(now);
    // A probe puts the timeout off; where both are due, it comes first.
    if (due(tail_at)) tcb_.recovery.tail_loss_probe(now);
    if (due(rto_at)) retransmission_timeout(now);
    if (tcb_.pcb == nullptr) return;
    if (due(probe_at)) probe(now);
    if (tcb_.pcb != nullptr && due(keepalive_at)) keep_alive(now);
    if (tcb_.pcb != nullptr && send) {
        tcb_.sender.end_burst();
        tcb_.sender.output();
    }
}

void ConnectionTimers::retransmission_timeout(Time now) noexcept {
    if (tcb_.pcb->unacked() == nullptr) {
        // The segment could not be sent at all (no path): it is on the unsent list still.
        if (tcb_.pcb->unsent() == nullptr || tcb_.phase.established) return;
    }
    // A peer that has closed its window over data under way is asked, not lost: such tries are not counted,
    // as in the kernel.
    const bool closed = tcb_.phase.established && !tcb_.phase.orphan && tcb_.pcb->snd_wnd() == 0;
    const bool syn = tcb_.pcb->in(State::syn_sent) && tcb_.opening.sent_at() != kNoTime;
    tcb_.recovery.timed_out(syn ? tcb_.opening.sent_at() : now, !closed);
    tcb_.counters.timeouts++;
    if (must_go(tcb_, now)) {
        tcb_.abandon(true);
        return;
    }
    if (retried_too_long(now)) {
        const int soft = tcb_.route.soft_error();
        tcb_.give_up(soft != 0 ? soft : ETIMEDOUT, false);
        return;
    }
    if (tcb_.phase.established && !closed && retried_for(tcb_.options.retries1, now))
        tcb_.route.suspect_black_hole();
    // The first SYNs come in even steps (net.ipv4.tcp_syn_linear_timeouts).
    if (!syn || tcb_.recovery.retries() > tcb_.options.syn_linear_timeouts) tcb_.recovery.rtt().backoff();
    Nsec wait = tcb_.recovery.rto();
    if (tcb_.options.user_timeout != Msec::zero()) {
        const Time end = tcb_.recovery.first_retry() + tcb_.options.user_timeout;
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

Nsec ConnectionTimers::probe_interval() const noexcept {
    return std::min(tcb_.recovery.rto() * (1u << std::min(probes_, 16u)), kLongestRto);
}

// The peer's window is closed: ask whether it still is (RFC 9293 section 3.8.6.1), with a segment it has
// already.
void ConnectionTimers::probe(Time now) noexcept {
    if (tcb_.pcb->unsent() == nullptr || tcb_.pcb->unacked() != nullptr) return;
    const std::uint32_t edge = tcb_.pcb->snd_una() + tcb_.pcb->snd_wnd(), seq = tcb_.pcb->unsent()->seq();
    if (!seq_before(edge, tcb_.pcb->unsent()->end())) {
        tcb_.sender.output();
        return;
    }
    if (probes_ == 0) tcb_.recovery.probing_since(now);
    if (tcb_.options.user_timeout != Msec::zero()
            ? now - tcb_.recovery.first_retry() >= tcb_.options.user_timeout
            : unanswered_probes_ >= tcb_.options.retries2 ||
                  (tcb_.phase.orphan && probes_ >= orphan_retries(tcb_, probe_interval()))) {
        tcb_.give_up(ETIMEDOUT, false);
        return;
    }
    if (must_go(tcb_, now)) {
        tcb_.abandon(true);
        return;
    }
    probes_++;
    unanswered_probes_++;
    tcb_.counters.probes++;
    const Nsec wait = probe_interval();
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

void ConnectionTimers::keep_alive(Time now) noexcept {
    if (!tcb_.options.keepalive || !tcb_.phase.established || tcb_.phase.in_time_wait) return;
    const Nsec idle = now - tcb_.acceptance.last_heard();
    // Data under way is watched by the retransmission timer.
    if (tcb_.pcb->unacked() != nullptr || (tcb_.pcb->unsent() != nullptr && probe_at != kNoTime) ||
        idle < tcb_.options.keep_idle) {
        keepalives_ = 0;
        keepalive_at = std::max(tcb_.acceptance.last_heard() + tcb_.options.keep_idle, now + Msec(1));
        return;
    }
    const bool over = tcb_.options.user_timeout != Msec::zero()
                          ? idle >= tcb_.options.user_timeout && keepalives_ > 0
                          : keepalives_ >= tcb_.options.keep_count;
    if (over) {
        tcb_.give_up(ETIMEDOUT, true);
        return;
    }
    keepalives_++;
    tcb_.counters.keepalives++;
    tcb_.in_lwip([&](lwip::Entry&) { tcb_.pcb->send_keepalive(); });
    keepalive_at = now + tcb_.options.keep_interval;
}

void ConnectionTimers::keepalive_changed() noexcept {
    // Counted anew from the last segment that came, as the kernel does for TCP_KEEPIDLE.
    const bool same = timed_keep_idle_ == tcb_.options.keep_idle;
    if (tcb_.options.keepalive) timed_keep_idle_ = tcb_.options.keep_idle;
    if (!tcb_.options.keepalive || !same) keepalive_at = kNoTime;
}

void ConnectionTimers::enter_time_wait() noexcept {
    tcb_.phase.in_time_wait = true;
    rto_at = probe_at = keepalive_at = cork_at = tail_at = reorder_at = kNoTime;
    tcb_.queue.forget();
    tcb_.recovery.reset();
    end_at = Clock::now() + kTimeWait;
    if (tcb_.phase.orphan) Background::instance().orphan_left(tcb_.connection);
    Background::instance().time_wait_entered(tcb_.connection);
}

void ConnectionTimers::time_wait_again() noexcept { end_at = tcb_.acceptance.last_rx() + kTimeWait; }

void ConnectionTimers::start_fin_wait2() noexcept {
    if (end_at != kNoTime) return;
    if (tcb_.options.linger2 < std::chrono::seconds::zero()) {
        tcb_.abandon(true);
        return;
    }
    end_at = Clock::now() + tcb_.options.linger2;
}

// The kernel's retransmits_timed_out().
bool ConnectionTimers::retried_for(unsigned retries, Time now) const noexcept {
    return tcb_.recovery.retries() > 1 &&
           now - tcb_.recovery.first_retry() >= time_for(retries) + RttEstimator::kMinRto;
}

bool ConnectionTimers::retried_too_long(Time now) const noexcept {
    lwip::Pcb* const pcb = tcb_.pcb;
    if (pcb->in(State::syn_sent)) {
        if (tcb_.options.user_timeout != Msec::zero() &&
            now - tcb_.recovery.first_retry() >= tcb_.options.user_timeout)
            return true;
        // The kernel's tcp_write_timeout().
        const unsigned sent_again = tcb_.recovery.retries() - 1;
        const unsigned most = tcb_.options.syn_retries;
        return sent_again >= most + tcb_.options.syn_linear_timeouts ||
               (sent_again != 0 && now - tcb_.recovery.first_retry() >= time_for_syn(most));
    }
    if (pcb->in(State::syn_recv)) return tcb_.recovery.retries() > kSynAckRetries;
    if (tcb_.options.user_timeout != Msec::zero())
        return now - tcb_.recovery.first_retry() >= tcb_.options.user_timeout;
    // Such probes go on for as long as the peer answers (tcp_rtx_probe0_timed_out() in the kernel).
    if (pcb->snd_wnd() == 0 && !tcb_.phase.orphan)
        return now - std::max(tcb_.acceptance.last_ack_rx(), tcb_.recovery.first_retry()) > kSilence;
    const unsigned allowed =
        tcb_.phase.orphan ? orphan_retries(tcb_, tcb_.recovery.rto()) : tcb_.options.retries2;
    return tcb_.recovery.retries() > 1 && now - tcb_.recovery.first_retry() >= time_for(allowed);
}

}  // namespace vma::tcp
