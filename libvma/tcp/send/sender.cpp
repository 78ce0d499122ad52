// SPDX-License-Identifier: BSD-2-Clause
// A short last segment waits in four cases: TCP_CORK and MSG_MORE (200 ms), Nagle as Linux has it (only
// behind a short segment that is still unacknowledged), and in a burst of writes: where frames share a kick
// of the device, the pieces of a burst share segments too. A write is part of a burst when it follows another
// within a few microseconds and the program did not turn to receiving in between; the ring ends the burst
// (Ring::hold).
#include "libvma/tcp/send/sender.h"

#include <errno.h>

#include <algorithm>
#include <utility>

#include "libvma/tcp/connection.h"
#include "libvma/tcp/sequence.h"
#include "libvma/tcp/tcb_inline.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {
namespace {

constexpr Nsec kBurst{10'000};  // writes closer than this are a burst
// The same program may be kept from writing for a while: each such pause takes kLoneWrites off its burst. So
// a program that writes every 20 us is soon seen as what it is.
constexpr Nsec kLongPause{200'000};
constexpr std::uint32_t kLongestBurst = 1024;
// A burst that is longer than this many writes becomes super-frames of up to kSuperFrame bytes, where the
// device takes them.
constexpr std::uint32_t kLoneWrites = 16, kSuperFrame = 32 * 1024;
constexpr std::uint32_t kLongest = 65535 - 20 - 60;  // bytes of payload in a super-frame: an IPv4 packet
constexpr Msec kCork{200};                           // the kernel's limit for TCP_CORK
constexpr Msec kDeviceRetry{1};                      // after a full device queue

}  // namespace

ssize_t Sender::write(const iovec* iov, std::size_t length, How how) noexcept {
    Tcb& t = tcb_;
    const std::uint32_t used = t.queue.queued(), limit = t.queue.limit();
    // As the kernel does, the last write that begins within the limit may go beyond it by a segment: so short
    // writes of several threads are not torn apart.
    const std::size_t segment = std::min<std::size_t>(length, t.shown.mss());
    std::size_t room = used < limit ? std::max<std::size_t>(limit - used, segment) : 0;
    if (length == 0) return 0;
    const bool limited = t.options.unsent_limit() != kNoLowat;
    std::uint32_t begin = 0;
    if (__builtin_expect(limited, 0)) {
        begin = t.pcb->queue_end();
        room = std::min<std::size_t>(
            room, unsent_limit_.room(t.options.unsent_limit(), unsent_goal(), t.queue.unsent(), begin));
    }
    const bool waited = blocked_.load(std::memory_order_relaxed);
    blocked_.store(room == 0, std::memory_order_relaxed);
    if (room == 0) {
        t.shown.refuse_writer();
        return -EAGAIN;
    }
    const Time now = Clock::now();
    // A program that waited for room would have written sooner.
    const Nsec pause = waited ? Nsec{0} : now - last_write_.load(std::memory_order_relaxed);
    soon_ = pause < kBurst && length < SendQueue::kLongWrite;
    if (length >= SendQueue::kLongWrite || pause >= kLongPause)
        burst_ = 0;
    else if (pause < kBurst)
        burst_ = std::min(burst_ + 1, kLongestBurst);
    else  // what takes the processor from a bulk sender does not make its messages lone ones
        burst_ -= std::min(burst_, kLoneWrites);
    last_write_.store(now, std::memory_order_relaxed);
    t.acks.written(now);
    if (t.pcb->unsent() == nullptr && t.pcb->unacked() == nullptr) t.recovery.restart_after_idle(now);
    more_ = how.more;
    push_ = false;
    // More will fill a whole segment: behind a cork, or in a burst whose pieces are kept back for it.
    const bool whole = more_ || t.options.cork || (soon_ && t.route.ring()->attr().lazy_tx);
    const bool is_long = length >= SendQueue::kLongWrite;
    stream_ = is_long && now - long_write_end_ < kBurst;
    const std::size_t done = t.queue.append(iov, std::min(length, room), whole, is_long ? longest() : 0);
    if (done < length) t.shown.refuse_writer();
    if (__builtin_expect(limited, 0))
        unsent_limit_.wrote(unsent_goal(), t.queue.unsent() - static_cast<std::uint32_t>(done), begin,
                            static_cast<std::uint32_t>(done));
    if (__builtin_expect(how.record && done == length, 0)) t.queue.end_record();
    if (!how.quiet && !collect(now)) {
        output(now);
        // What sending took is no pause of the program.
        if (burst_ != 0) last_write_.store(Clock::now(), std::memory_order_relaxed);
    }
    if (is_long) long_write_end_ = Clock::now();
    if (length >= SendQueue::kVeryLongWrite && t.route.holds() && t.route.ring()->attr().kernel_moves_bulk &&
        bulk_.add(done, now))
        t.shown.see_bulk();
    return done != 0 ? static_cast<ssize_t>(done) : -EAGAIN;
}

// As large as the kernel makes a buffer of its write queue (tcp_xmit_size_goal()): whole segments, at most
// half of the peer's largest window, and 64 KB with headers.
std::uint32_t Sender::unsent_goal() const noexcept {
    constexpr std::uint32_t kMost = 65536 - 321, kSmallWindow = 536;
    const std::uint32_t mss = tcb_.shown.mss(), window = tcb_.pcb->max_snd_wnd();
    const std::uint32_t most = std::min(kMost, window > kSmallWindow ? window / 2 : window);
    return std::max(mss, most - most % mss);
}

// What may leave as one super-frame, bytes; 0: nothing does.
std::uint32_t Sender::longest() const noexcept {
    const Tcb& t = tcb_;
    if (!t.phase.established || !t.route.holds()) return 0;
    if (__builtin_expect(memory_bound::over(), 0)) return 0;  // a block has more room than a write may take
    const verbs::DeviceAttr& attr = t.route.ring()->attr();
    return attr.tso_copies && attr.tx_checksum ? std::min(attr.max_tso, kLongest) : 0;
}

// Does what is queued wait for more of a long burst, to leave as one super-frame?
inline bool Sender::collecting(Time now) const noexcept {
    return collecting_since_ != kNoTime && soon_ && burst_ > kLoneWrites && !push_ &&
           now - collecting_since_ < kCollect && tcb_.queue.unsent() < kSuperFrame;
}

// After a write: begins to collect, or goes on.
inline bool Sender::collect(Time now) noexcept {
    Tcb& t = tcb_;
    if (!soon_ || burst_ <= kLoneWrites) return false;
    ring::Ring* ring = t.route.ring();
    if (!t.phase.established || !t.route.holds() || !ring->attr().tso_copies) return false;
    if (collecting_since_ == kNoTime) collecting_since_ = now;
    if (!collecting(now)) return false;
    t.connection.hold(*ring);
    return true;
}

// Does the short end of the segment wait?
[[gnu::always_inline]] inline bool Sender::keep_back(const lwip::Segment* seg) noexcept {
    Tcb& t = tcb_;
    if (seg->next() != nullptr || seg->fin()) return false;
    if (push_) return false;
    if (t.options.cork || more_) {
        const Time now = Clock::now();
        if (t.timers.cork_at == kNoTime) t.timers.cork_at = now + kCork;
        if (now < t.timers.cork_at) return true;
        t.timers.cork_at = kNoTime;
        more_ = false;
        return false;
    }
    if (!t.options.nodelay && seq_before(t.pcb->snd_una(), small_end_)) return true;
    ring::Ring* ring = t.route.ring();
    if (soon_ && ring->attr().lazy_tx) {
        t.connection.hold(*ring);
        return true;
    }
    return false;
}

void Sender::output() noexcept { output(Clock::now()); }

void Sender::output_kept() noexcept {
    const Time now = Clock::now();
    const std::uint32_t burst = burst_;
    end_burst();
    output(now);
    if (!pausing(now)) burst_ = burst;
}

void Sender::output(Time now) noexcept {
    Tcb& t = tcb_;
    lwip::Pcb* const pcb = t.pcb;
    if (pcb == nullptr || t.freeze.frozen()) return;
    if (collecting(now)) return t.acks.acknowledge(now);
    collecting_since_ = kNoTime;
    if (!t.route.holds()) {
        if (const int error = t.route.find(); error != 0) {
            t.route.wait(error, now);
            return;
        }
        t.route.found();
        t.timers.path_at = kNoTime;
    }
    t.route.expire_mtu(now);
    const lwip::Segment* const first = pcb->unsent();
    const bool several = t.phase.established && first != nullptr && first->next() != nullptr;
    ring::Ring::Gather gather(several ? t.route.ring() : nullptr);
    if (t.phase.established) t.recovery.retransmit_lost();
    cwnd_full_ = false;
    while (pcb->unsent() != nullptr && may_leave(pcb->unsent())) {
        if (!t.writer.send(pcb->unsent(), false)) {
            t.timers.path_at = now + kDeviceRetry;
            break;
        }
        t.queue.first_sent();
    }
    if (pcb->unsent() == nullptr) t.timers.cork_at = kNoTime;
    if (t.phase.established) {
        if (pcb->unsent() != first || cwnd_full_) t.recovery.validate_window(cwnd_full_, now);
        t.recovery.schedule_tail_probe(now);
    }
    // A closed window, and nothing under way whose ACK could open it: probes.
    if (pcb->unacked() == nullptr && pcb->unsent() != nullptr && t.phase.established &&
        seq_before(pcb->snd_una() + pcb->snd_wnd(), pcb->unsent()->end())) {
        if (t.timers.probe_at == kNoTime) t.timers.probe_at = now + t.recovery.rto();
    } else {
        t.timers.probe_at = kNoTime;
        t.timers.probing_over();
    }
    t.acks.acknowledge(now);
}

// May the first unsent segment leave? It is cut where only a part of it may.
[[gnu::always_inline]] inline bool Sender::may_leave(lwip::Segment* seg) noexcept {
    Tcb& t = tcb_;
    lwip::Pcb* const pcb = t.pcb;
    if (seg->syn()) return true;
    if (!t.phase.established) return false;
    const std::uint32_t mss = t.shown.mss();
    if (seg->size() > mss && !part_may_leave(seg)) return false;
    if (seg->size() > mss) return true;
    const std::uint32_t seq = seg->seq(), edge = pcb->snd_una() + pcb->snd_wnd();
    if (seq_before(edge, seg->end())) {  // a FIN needs room, too
        // Silly window avoidance (RFC 9293 section 3.8.6.2.1): a part only when it is half of the largest
        // window the peer had.
        const std::uint32_t room = seq_before(seq, edge) ? edge - seq : 0;
        if (room == 0 || room < pcb->max_snd_wnd() / 2 || !t.queue.split(seg, room)) {
            return false;
        }
    }
    if (!t.recovery.room_for(seg->size())) {
        cwnd_full_ = true;
        return false;
    }
    return seg->size() >= mss || seg->size() == 0 || !keep_back(seg);
}

// The same for a segment that is longer than a frame. What is still longer afterwards may leave as it is; a
// single frame is looked at by itself.
bool Sender::part_may_leave(lwip::Segment* seg) noexcept {
    Tcb& t = tcb_;
    lwip::Pcb* const pcb = t.pcb;
    const std::uint32_t mss = t.shown.mss(), all = seg->size(), seq = seg->seq();
    const std::uint32_t edge = pcb->snd_una() + pcb->snd_wnd(),
                        window = seq_before(seq, edge) ? edge - seq : 0;
    std::uint32_t part = mss;
    if (t.recovery.nothing_missing() && !t.ecn.tells_reduced()) {
        const std::uint32_t most = longest() - longest() % mss;
        part = std::min({all, window, t.recovery.room(), most});
        if (part < all) part -= part % mss;
        if (part < window && part < std::min(all, most)) cwnd_full_ = true;
        // A larger piece may leave when more is acknowledged. That is sure to come, as most of a window is
        // under way.
        const std::uint32_t windows = std::min(pcb->snd_wnd(), t.recovery.congestion().cwnd());
        if (pcb->unacked() != nullptr && part < all && part < std::min(windows / 4, most)) return false;
    }
    if (part < all) return t.queue.split(seg, std::max(part, mss));
    const std::uint32_t end = all % mss;
    if (end == 0) return true;
    // A program that goes on to write fills the segment.
    if (stream_ && !push_ && pcb->unacked() != nullptr && seg->next() == nullptr && !seg->fin() &&
        t.queue.tail_takes_more()) {
        t.connection.hold(*t.route.ring());
        return false;
    }
    return !keep_back(seg) || t.queue.split(seg, all - end);
}

}  // namespace vma::tcp
