// SPDX-License-Identifier: BSD-2-Clause
// What a program sets of a connection, asks of it, and how it takes it elsewhere.
#include <errno.h>
#include <netinet/tcp.h>

#include <algorithm>

#include "libvma/tcp/connection.h"
#include "libvma/tcp/lwip/entry.h"
#include "libvma/tcp/recovery/segments.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {

// ---- options ----

Options Connection::options() noexcept {
    if (!enter()) return tcb_.options;
    Options o = tcb_.options;
    leave();
    return o;
}

void Connection::tell_readable() noexcept {
    if (!enter()) return;
    const std::size_t enough = std::max<std::size_t>(1, tcb_.options.receive_lowat);
    if (tcb_.shown.readable() >= enough || tcb_.phase.fin_seen) tcb_.shown.wake_readers();
    leave();
}

void Connection::options_changed() noexcept {
    if (tcb_.pcb != nullptr) {
        if (tcb_.phase.established) {
            tcb_.recovery.set_algorithm(tcb_.options.congestion);
            tcb_.route.mss_changed();
        }
        if (tcb_.route.known()) tcb_.writer.use(tcb_.route.path());
        // SO_RCVBUF may have grown.
        if (tcb_.phase.established && !tcb_.phase.in_time_wait) tcb_.receiver.open_window();
        tcb_.sender.end_burst();
        if (tcb_.pcb != nullptr) tcb_.sender.output();  // a cork may have gone
    }
    tcb_.timers.keepalive_changed();
    if (tcb_.pcb != nullptr) tcb_.origin.reuse_changed(tcb_.options.reuse_address);
}

void Connection::quick_ack(bool on) noexcept {
    if (!enter()) return;
    tcb_.options.quickack = on;
    if (tcb_.acks.quick(on) && tcb_.pcb != nullptr) {
        tcb_.pcb->ack_now();
        tcb_.sender.output();
    }
    leave();
}

void Connection::nodelay(bool on) noexcept {
    if (!enter()) return;
    tcb_.options.nodelay = on;
    tcb_.sender.end_burst();
    if (on) tcb_.sender.push_all();
    if (tcb_.pcb != nullptr) tcb_.sender.output();
    leave();
}

void Connection::path_mtu(std::uint32_t mtu) noexcept {
    if (!enter()) return;
    tcb_.route.learn_mtu(mtu);
    leave();
}

CongestionAlgorithm Connection::algorithm() noexcept { return options().congestion; }

int Connection::take_error() noexcept {
    int error = tcb_.shown.take_error();
    if (!enter()) return error;
    // As the kernel's sk_err_soft: what ICMP said of an established connection, which goes on.
    if (error == 0 && tcb_.phase.established) error = tcb_.route.take_soft_error();
    leave();  // EPOLLERR goes
    return error;
}

void Connection::lose_path(int error) noexcept {
    if (!enter()) return;
    if (tcb_.pcb != nullptr && !tcb_.freeze.frozen() && !tcb_.phase.in_time_wait) tcb_.give_up(error, true);
    leave();
}

// ---- figures ----

Counters Connection::counters() noexcept {
    if (!enter()) return tcb_.counters;
    Counters c = tcb_.counters;
    leave();
    return c;
}

bool Connection::sample(Sample& out) noexcept {
    if (!enter()) return false;
    out.counters = tcb_.counters;
    out.rtt = tcb_.recovery.rtt().srtt();
    out.rttvar = tcb_.recovery.rtt().rttvar();
    out.rto = tcb_.recovery.rtt().rto();
    out.cwnd = tcb_.recovery.congestion().cwnd();
    out.ssthresh = tcb_.recovery.congestion().ssthresh() >= Congestion::kNoThreshold
                       ? 0
                       : tcb_.recovery.congestion().ssthresh();
    out.mss = tcb_.shown.mss();
    out.send_window = tcb_.pcb != nullptr ? tcb_.pcb->snd_wnd() : 0;
    out.receive_window = tcb_.options.receive_window;
    out.send_limit = tcb_.queue.limit();
    leave();
    return true;
}

Connection::Held Connection::held() noexcept {
    if (!enter()) return {};
    const Held h{tcb_.receiver.queue().bytes() + tcb_.receiver.early().bytes(),
                 tcb_.receiver.queue().held() + tcb_.receiver.early().held(),
                 tcb_.receiver.queue().steps() + tcb_.receiver.early().steps()};
    leave();
    return h;
}

// As the kernel's tcp_get_info(), in its units: microseconds, milliseconds, segments.
void Connection::info(Info& all) noexcept {
    all = {};
    ::tcp_info& out = all.basic;
    if (!enter()) return;
    const Time now = Clock::now();
    auto ms_since = [&](Time at) {
        return at == kNoTime ? 0u : std::chrono::duration_cast<Msec>(now - at).count();
    };
    const std::uint32_t mss = std::max(tcb_.shown.mss(), 1u);
    const SegmentBoard& board = tcb_.recovery.scoreboard();
    out.tcpi_state = static_cast<std::uint8_t>(state());
    out.tcpi_ca_state = tcb_.recovery.after_timeout()  ? TCP_CA_Loss
                        : tcb_.recovery.recovering()   ? TCP_CA_Recovery
                        : tcb_.recovery.reducing()     ? TCP_CA_CWR
                        : board.sacked_segments() != 0 ? TCP_CA_Disorder
                                                       : TCP_CA_Open;
    out.tcpi_retransmits = static_cast<std::uint8_t>(std::min(tcb_.recovery.retries(), 255u));
    out.tcpi_probes = static_cast<std::uint8_t>(std::min(tcb_.timers.unanswered_probes(), 255u));
    const unsigned probes = std::min(tcb_.timers.probes(), tcb_.options.retries2);
    out.tcpi_backoff =
        static_cast<std::uint8_t>(std::min(probes != 0 ? probes : tcb_.recovery.rtt().backoffs(), 255u));
    out.tcpi_rto = tcb_.recovery.rtt().rto().count();
    out.tcpi_ato = Usec(tcb_.options.delayed_ack).count();
    out.tcpi_snd_mss = mss;
    out.tcpi_rcv_mss = std::max(tcb_.acks.largest_in(), 536u);
    const bool stamped =
        tcb_.pcb != nullptr && tcb_.phase.established ? tcb_.pcb->timestamps() : tcb_.options.timestamps;
    out.tcpi_advmss = tcb_.route.wanted_mss() - (stamped ? kTimestampBytes : 0);
    out.tcpi_pmtu = tcb_.route.mtu();
    out.tcpi_rtt = tcb_.recovery.rtt().srtt().count();
    out.tcpi_rttvar = tcb_.recovery.rtt().rttvar().count();
    out.tcpi_snd_ssthresh = tcb_.recovery.congestion().ssthresh() >= Congestion::kNoThreshold
                                ? 0x7fffffff
                                : tcb_.recovery.congestion().ssthresh() / mss;
    out.tcpi_snd_cwnd = std::max(tcb_.recovery.congestion().cwnd() / mss, 1u);
    out.tcpi_reordering = tcb_.recovery.rack().reordering();
    all.reord_seen = tcb_.recovery.rack().reordering_seen();
    out.tcpi_sacked = board.sacked_segments();
    out.tcpi_lost = board.lost_segments();
    out.tcpi_retrans = board.retrans_segments();
    // Before the first data they count from the handshake.
    out.tcpi_last_data_sent = ms_since(std::max(tcb_.acks.last_data_tx(), tcb_.opening.done_at()));
    out.tcpi_last_data_recv = ms_since(std::max(tcb_.acks.last_data_rx(), tcb_.opening.done_at()));
    out.tcpi_last_ack_recv = ms_since(tcb_.acceptance.last_ack_rx());
    out.tcpi_rcv_space = tcb_.options.receive_window;
    out.tcpi_total_retrans = static_cast<std::uint32_t>(tcb_.counters.retransmits);
    if (tcb_.pcb != nullptr) {
        if (tcb_.pcb->timestamps()) out.tcpi_options |= TCPI_OPT_TIMESTAMPS;
        if (tcb_.pcb->sack()) out.tcpi_options |= TCPI_OPT_SACK;
        if (tcb_.ecn.on()) out.tcpi_options |= TCPI_OPT_ECN;
        if (tcb_.ecn.seen()) out.tcpi_options |= TCPI_OPT_ECN_SEEN;
        if (tcb_.pcb->window_scaling()) {
            out.tcpi_options |= TCPI_OPT_WSCALE;
            out.tcpi_snd_wscale = tcb_.pcb->snd_scale() & 15u;
            out.tcpi_rcv_wscale = tcb_.pcb->rcv_scale() & 15u;
        }
        const std::uint32_t mss = std::max(tcb_.shown.mss(), 1u);
        for (const lwip::Segment* s = tcb_.pcb->unacked(); s != nullptr; s = s->next())
            out.tcpi_unacked += s->size() <= mss ? 1 : (s->size() + mss - 1) / mss;
        all.snd_wnd = tcb_.pcb->snd_wnd();
    }
    all.pacing_rate = all.max_pacing_rate = ~std::uint64_t{0};  // not paced
    all.bytes_acked = tcb_.counters.acked;
    all.bytes_received = tcb_.counters.received;
    all.segs_out = static_cast<std::uint32_t>(tcb_.counters.segments_out);
    all.segs_in = static_cast<std::uint32_t>(tcb_.counters.segments_in);
    all.notsent_bytes = static_cast<std::uint32_t>(unsent_bytes());
    all.min_rtt = tcb_.recovery.rtt().min_rtt().count();
    all.data_segs_in = static_cast<std::uint32_t>(tcb_.counters.data_segments_in);
    all.data_segs_out = static_cast<std::uint32_t>(tcb_.counters.data_segments_out);
    // The SYN counts.
    all.delivered = (all.data_segs_out > out.tcpi_unacked ? all.data_segs_out - out.tcpi_unacked : 0) +
                    (tcb_.phase.established ? 1 : 0);
    auto usec = [](Nsec t) { return static_cast<std::uint64_t>(t / Nsec(1000)); };
    all.busy_time = usec(tcb_.send_times.busy(now));
    all.rwnd_limited = usec(tcb_.send_times.of(SendTimes::Why::window, now));
    all.sndbuf_limited = usec(tcb_.send_times.of(SendTimes::Why::buffer, now));
    all.delivered_ce = static_cast<std::uint32_t>((tcb_.counters.delivered_marked + mss - 1) / mss);
    all.bytes_sent = tcb_.counters.bytes_out;
    all.bytes_retrans = tcb_.counters.bytes_again;
    all.dsack_dups = static_cast<std::uint32_t>(tcb_.counters.dsacks);
    all.rcv_ooopack = static_cast<std::uint32_t>(tcb_.counters.out_of_order);
    leave();
}

// ---- moving to the kernel ----

void Connection::begin_silence() noexcept {
    constexpr Usec kSilence{200}, kLongest{2000};
    constexpr int kMostPolls = 20'000;  // whatever the clock says
    if (!enter()) return;
    tcb_.acks.hold(true);
    leave();
    ring::Ring* const ring = this->ring();
    if (ring == nullptr) return;
    const Time began = Clock::now();
    Time now = began;
    for (int i = 0; i < kMostPolls && now - began < kLongest; i++) {
        ring->poll();
        now = Clock::now();
        if (!enter()) return;
        const Time last = std::max(began, tcb_.acks.last_data_rx());
        leave();
        if (now - last >= kSilence) return;
    }
}

void Connection::end_silence() noexcept {
    if (!enter()) return;
    tcb_.acks.hold(false);
    if (tcb_.pcb != nullptr) tcb_.sender.output();
    leave();
}

bool Connection::drained() const noexcept {
    switch (state()) {
        case State::fin_wait1:
        case State::closing:
        case State::last_ack:
        case State::established:
        case State::close_wait:
            return false;
        default:
            return true;
    }
}

// With the lock held.
void Connection::keep_urgent_locked() noexcept {
    tcb_.shown.keep_urgent();
    tcb_.freeze.await_no_more();
}

void Connection::keep_urgent() noexcept {
    const bool mine = enter();
    if (!mine) return tcb_.shown.keep_urgent();
    keep_urgent_locked();
    leave();
}

int Connection::freeze(KernelState& out) noexcept {
    if (!enter()) return -EOPNOTSUPP;
    const int result = tcb_.freeze.begin(out);
    leave();
    return result;
}

void Connection::finish_freeze(bool moved) noexcept {
    if (moved) note_moved();
    if (!enter()) return;
    tcb_.freeze.finish(moved);
    leave();
}

// ---- another ring ----

// Without the lock, as in connect(): rings call the connection with their locks held. Its end waits
// meanwhile.
Result<void> Connection::move_to(ring::Ring& to, unsigned lane) {
    if (!enter()) return fail(EAGAIN, "a signal handler interrupted it");
    ring::Ring* const from = ring();
    const bool may = attached_ && !detaching_ && !moving_ && tcb_.pcb != nullptr && !tcb_.freeze.frozen() &&
                     tcb_.phase.established;
    const bool there = from == &to;
    if (may && !there) moving_ = true;
    if (may && there) tcb_.options.path.lane = lane;
    leave();
    if (!may) return fail(EAGAIN, "it begins or ends");
    if (there) return {};

    const ring::Share share = tcb_.origin.passive() ? ring::Share::latest : ring::Share::only;
    Result<void> taken = fail(ENOMEM, "out of memory");
    try {
        taken = to.take(flow(), this, share, *from);
    } catch (const std::bad_alloc&) {
        // as `taken` says
    }
    lock_.lock();
    moving_ = false;
    if (taken) {
        ring_.store(&to, std::memory_order_release);
        from->send_all();
        tcb_.options.path.lane = lane;
        tcb_.route.move(*from, to);
    }
    leave();
    if (!taken) return taken;
    to.expect_stream(true);
    from->expect_stream(false);
    Background::instance().started(to);
    Background::instance().stopped(*from);
    return {};
}

}  // namespace vma::tcp
