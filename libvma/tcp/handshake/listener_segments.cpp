// SPDX-License-Identifier: BSD-2-Clause
// What a listener does with a segment: a SYN, one for a half-open connection, the answer to a cookie, a
// stray.
#include <errno.h>

#include <algorithm>
#include <mutex>
#include <optional>

#include "libvma/runtime/log.h"
#include "libvma/tcp/ecn.h"
#include "libvma/tcp/handshake/isn.h"
#include "libvma/tcp/handshake/listener.h"
#include "libvma/tcp/handshake/syn_cookie.h"
#include "libvma/tcp/lwip/entry.h"
#include "libvma/tcp/sequence.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {
namespace {

constexpr unsigned kLookUpsPerSecond = 500;  // of paths; two system calls each, so a millisecond or two
constexpr Nsec kAnswerPeriod = kSecond / 2;  // the kernel's net.ipv4.tcp_invalid_ratelimit

// What the segment's cookie holds (read_cookie()), if the segment answers one.
std::optional<std::uint16_t> cookie_of(const ArrivedSegment& segment) noexcept {
    if ((segment.flags & (TCP_SYN | TCP_RST | TCP_ACK)) != TCP_ACK || !cookies_expected(segment.now))
        return std::nullopt;
    return read_cookie(segment.ends, segment.seq - 1, segment.ack - 1, segment.now);
}

KernelConnections::Sender sender_of(const ArrivedSegment& segment) noexcept {
    return cookie_of(segment) ? KernelConnections::Sender::proven : KernelConnections::Sender::stranger;
}

}  // namespace

bool Listener::deliver(ring::RxBuffer* buffer) noexcept { return take(buffer, nullptr); }
bool Listener::deliver_again(ring::RxBuffer* buffer, std::uint32_t iss) noexcept {
    return take(buffer, &iss);
}

bool Listener::take(ring::RxBuffer* buffer, const std::uint32_t* iss) noexcept {
    const ArrivedSegment segment(buffer);
    const bool syn = segment.is_syn();
    lock_.lock();
    if (closed_) {
        lock_.unlock();
        return false;
    }
    if (syn) counters_.syns++;
    if (HalfOpen* e = table_.find(segment.ends)) {
        if (Connection* c = e->connection) {
            c->ref();
            lock_.unlock();
            const bool taken = c->deliver(buffer);
            c->unref();
            return taken;
        }
        if (!e->opening) return on_half_open(segment, *e);
        lock_.unlock();  // another ring's thread is at it
        return false;
    }
    if (leaving_) {
        lock_.unlock();
        if (on_cookie(segment)) return true;
        if (!buffer->ring->give_to_kernel(*buffer)) return false;
        buffer->release();
        return true;
    }
    const bool overflow = syn && full();
    if (overflow) counters_.overflows++;
    const bool limited = syn && !overflow && !within_syn_rate(segment.now);
    if (limited) counters_.limited++;
    const bool nothing = !syn && !(segment.flags & TCP_ACK);
    if (nothing) counters_.bad++;
    lock_.unlock();
    if (!syn && buffer->ring->attr().coarse_steering) {
        switch (kernels_.has(*buffer, segment.now, sender_of(segment))) {
            case KernelConnections::Answer::no:
                break;
            case KernelConnections::Answer::too_many:
                return false;
            case KernelConnections::Answer::yes:
                if (!buffer->ring->give_to_kernel(*buffer)) return false;
                buffer->release();
                return true;
        }
    }
    if (overflow || limited || nothing || (segment.flags & TCP_RST)) return false;
    if (syn) return on_syn(segment, iss);
    if (on_cookie(segment)) return true;
    // A connection of this process whose device has failed, and which the kernel has not got yet.
    return !buffer->ring->strays().wanted(verbs::FlowSpec::of_tcp(segment.ends)) && on_stray(segment);
}

// A SYN: of somebody new, or one that repeats that of a half-open connection.
bool Listener::on_syn(const ArrivedSegment& segment, const std::uint32_t* iss) noexcept {
    lock_.lock();
    const Options options = options_;
    const bool look_up = looks_.one_more(segment.now, kLookUpsPerSecond);
    lock_.unlock();
    ReturnPath way;
    if (!answers_.find_way(segment, options, look_up, way)) return false;
    const lwip::Parameters parameters = parameters_of(options, way.mss, 0);
    Handshake handshake;
    handshake.ends = segment.ends;
    handshake.irs = segment.seq;
    handshake.said = read_syn_options(segment.options, options);
    handshake.said.ecn =
        (options.ecn_answers || way.ecn) && Ecn::asked(segment.flags, segment.reserved, segment.buffer->tos);
    handshake.scale = parameters.rcv_scale;
    handshake.sent_at = segment.now;

    bool cookie = false, answer = false, flooded = false;
    lock_.lock();
    if (HalfOpen* e = closed_ ? nullptr : table_.find(segment.ends)) {
        // The numbers of before, by a way that may be another one.
        if (!e->opening && e->handshake.irs == segment.seq) {
            e->way = way;
            e->handshake.repeated = true;
            handshake = e->handshake;
            table_.wait(*e, segment.now);
            answer = true;
        }
    } else if (!closed_) {
        flooded = table_.waiting() >= most_half_open();
        cookie = iss == nullptr && options.syncookies != 0 && (flooded || options.syncookies == 2);
        if (cookie) {
            if (segment.now - cookies_.sent_at > 2 * kCookieTime || cookies_.sent_at == kNoTime)
                cookies_.scale = handshake.scale;
            cookies_.sent_at = segment.now;
            handshake.scale = cookies_.scale;
            counters_.cookies_sent++;
            answer = true;
        } else if (flooded && iss == nullptr) {
            counters_.refused++;
        } else if (HalfOpen* made = table_.add(segment.ends)) {
            handshake.iss = iss != nullptr ? *iss : initial_sequence(segment.ends, segment.now);
            made->handshake = handshake;
            made->way = way;
            HalfOpenTable::want_strays(*made, *segment.buffer->ring);
            table_.wait(*made, segment.now);
            arm();
            answer = true;
        }
    }
    lock_.unlock();
    if (flooded)
        log::once(log::Level::warn, "port {} is flooded with SYNs: {}", ntohs(port_),
                  cookie ? "sending cookies" : "dropping them, since net.ipv4.tcp_syncookies is 0");
    if (!answer) return false;
    if (cookie) {
        if (!handshake.said.has_stamps)
            handshake.said.has_scale = handshake.said.sack = handshake.said.ecn = false;
        handshake.iss = make_cookie(segment.ends, segment.seq, handshake.said.mss, segment.now);
        note_cookie_sent(segment.now);
    }
    answers_.send_syn_ack(handshake, way, options, cookie, segment.buffer->ring);
    segment.buffer->release();
    return true;
}

// As the kernel's tcp_check_req(), but for RFC 5961: a RST counts where its number is right, a SYN is
// answered with an ACK.
bool Listener::on_half_open(const ArrivedSegment& segment, HalfOpen& e) noexcept {
    const Handshake& h = e.handshake;
    const std::uint32_t next = h.irs + 1;
    Stamps stamps;
    const bool stamped = h.said.has_stamps && read_stamps(segment.options, stamps);
    const bool old = stamped && seq_before(stamps.value, h.said.stamp) && !(segment.flags & TCP_RST);
    // Its echo is of no SYN-ACK of ours.
    const std::uint32_t offset = timestamp_offset(segment.ends), first = milliseconds(h.sent_at) + offset;
    const bool foreign =
        stamped && stamps.echo != 0 && stamps.echo - first > milliseconds(Clock::now()) + offset - first;
    const bool may_answer = e.answered_at == kNoTime || segment.now - e.answered_at >= kAnswerPeriod;
    if (segment.is_syn() && segment.seq == h.irs && !old) {
        if (may_answer) e.answered_at = segment.now;
        lock_.unlock();
        return may_answer && on_syn(segment, nullptr);
    }
    if ((segment.flags & TCP_ACK) && segment.ack != h.iss + 1) {
        // Perhaps it answers the cookie of an earlier SYN.
        lock_.unlock();
        return on_cookie(segment) || on_stray(segment);
    }
    // As our SYN-ACK has announced it.
    const std::uint32_t window = std::min(parameters_of(options_, e.way.mss, 0).wnd, 0xffffu);
    const bool outside = seq_before(segment.end, next) || seq_before(next + window, segment.seq);
    const bool wrong_reset = (segment.flags & TCP_RST) && segment.seq != next;
    if (old || foreign || outside || wrong_reset || (segment.flags & TCP_SYN)) {
        const bool answer = may_answer && (!(segment.flags & TCP_RST) || !(outside || foreign));
        if (answer) e.answered_at = segment.now;
        const Handshake handshake = h;
        const ReturnPath way = e.way;
        const Options options = options_;
        lock_.unlock();
        if (answer) answers_.send_ack(handshake, way, options, segment.buffer->ring);
        return false;
    }
    if (segment.flags & TCP_RST) {
        table_.remove(e);
        lock_.unlock();
        return false;
    }
    if (!(segment.flags & TCP_ACK)) {
        lock_.unlock();
        return false;
    }
    if (full() || (segment.end == next && e.timeouts < defer_timeouts(options_.defer_accept))) {
        if (full()) counters_.overflows++;
        e.acked = true;
        lock_.unlock();
        return false;
    }
    if (stamped && !seq_before(next, segment.seq)) e.handshake.said.stamp = stamps.value;
    table_.open(e);
    const Handshake handshake = h;
    lock_.unlock();
    return open(segment, handshake, false);
}

// An ACK of nothing we know: perhaps the answer to a cookie.
bool Listener::on_cookie(const ArrivedSegment& segment) noexcept {
    const auto mss = cookie_of(segment);
    if (!mss) return false;
    Handshake h;
    h.ends = segment.ends;
    h.irs = segment.seq - 1;
    h.iss = segment.ack - 1;
    h.said.mss = *mss;
    h.repeated = true;  // nobody knows when it left
    Stamps stamps;
    lock_.lock();
    const Options options = options_;
    h.scale = cookies_.sent_at != kNoTime ? cookies_.scale : parameters_of(options, *mss, 0).rcv_scale;
    lock_.unlock();
    if (options.timestamps && read_stamps(segment.options, stamps)) {
        if (!read_cookie_stamp(stamps.echo - timestamp_offset(segment.ends), segment.now, h.said))
            return false;
        if ((h.said.sack && !options.sack) || (h.said.has_scale && !options.window_scaling)) return false;
        h.said.ecn &= options.ecn_answers;
        h.said.has_stamps = true;
        h.said.stamp = stamps.value;
    }
    if (!h.said.has_scale) h.scale = 0;
    // Its connection may be the kernel's by now.
    if (Connection::any_moved() &&
        kernels_.has(*segment.buffer, segment.now, KernelConnections::Sender::proven) !=
            KernelConnections::Answer::no)
        return false;
    lock_.lock();
    HalfOpen* e = nullptr;
    if (full())
        counters_.overflows++;
    else if (!closed_ && (e = table_.find(segment.ends)) == nullptr)
        e = table_.add(segment.ends);
    if (e == nullptr || e->opening) {
        lock_.unlock();
        segment.buffer->release();  // dropped, as by the kernel: the peer tries again
        return true;
    }
    e->handshake = h;
    table_.open(*e);
    counters_.cookies_accepted++;
    lock_.unlock();
    if (!open(segment, h, true)) segment.buffer->release();
    return true;
}

bool Listener::open(const ArrivedSegment& segment, const Handshake& handshake, bool cookie) noexcept {
    lock_.lock();
    Options options = options_;
    lock_.unlock();
    options.path.lane = segment.buffer->ring->lane();  // where its frames come in, they go out
    Path path;
    const int error = paths_.find(handshake.ends, options.path, path);
    Connection* c = nullptr;
    if ((error == 0 || error == -EAGAIN) && path.ring != nullptr)
        c = make(handshake, options, path, error == 0, *segment.buffer->ring);
    lock_.lock();
    HalfOpen* e = table_.find(handshake.ends);  // unless the listener was closed
    if (c != nullptr && e != nullptr) {
        e->connection = c;  // with the reference
        c->ref();
        lock_.unlock();
        (void)c->deliver(segment.buffer);
        c->unref();
        return true;
    }
    if (e != nullptr) {
        if (cookie) {
            table_.remove(*e);
        } else {
            e->acked = true;
            table_.close(*e, segment.now);
            arm();
        }
    }
    lock_.unlock();
    if (c != nullptr) {
        c->abandon_quietly();
        c->unref();
    }
    return false;
}

Connection* Listener::make(const Handshake& handshake, const Options& options, const Path& path,
                           bool resolved, ring::Ring& from) noexcept {
    lwip::Parameters parameters =
        parameters_of(options, announced_mss(path.mtu, options), timestamp_offset(handshake.ends));
    // As it was announced, whatever the program has set since then.
    parameters.rcv_scale = handshake.scale;
    parameters.wnd = std::min(parameters.wnd, 0xffffu << handshake.scale);
    lwip::SynEntry entry(handshake, parameters);
    lwip::Pcb* pcb = entry.made();
    if (pcb == nullptr) return nullptr;
    Connection* c = Connection::adopt(paths_, pcb, handshake, options, path, resolved, from, this);
    if (c == nullptr) pcb->abandon(false);
    return c;
}

// A segment of no connection of this ring: RST, unless the kernel or another ring has the connection.
bool Listener::on_stray(const ArrivedSegment& segment) noexcept {
    if (!(segment.flags & TCP_ACK) || (segment.flags & TCP_RST)) return false;
    // The device leaves the kernel its connections, but this segment may have been in the queue when one was
    // moved.
    if (Connection::any_moved() && !segment.buffer->ring->attr().coarse_steering) {
        const auto kernels = kernels_.has(*segment.buffer, segment.now);
        if (kernels == KernelConnections::Answer::yes &&
            segment.buffer->ring->give_to_kernel(*segment.buffer)) {
            segment.buffer->release();
            return true;
        }
        if (kernels != KernelConnections::Answer::no) return false;
    }
    lock_.lock();
    const Options options = options_;
    counters_.resets_sent++;
    lock_.unlock();
    ReturnPath way;
    if (answers_.find_way(segment, options, false, way)) {
        std::uint8_t bytes[kMaxHandshakeBytes];
        answers_.send(segment.ends, way, options, bytes, write_reset(segment.ends, segment.ack, bytes),
                      segment.buffer->ring);
    }
    segment.buffer->release();
    return true;
}

}  // namespace vma::tcp
