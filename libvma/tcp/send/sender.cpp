// SPDX-License-Identifier: BSD-2-Clause
// A short last segment waits in four cases: TCP_CORK and MSG_MORE (200 ms), Nagle as Linux has it (only
// behind a short segment that is still unacknowledged), and in a burst of writes: where frames share a kick
// of the device, the pieces of a burst share segments too. A write is part of a burst when it follows another
// within a few microseconds and the program did not turn to receiving in between; the ring ends the burst
// (Ring::hold).
#include "libvma/tcp/send/sender.h"

#include <errno.h>

#include <algorithm>

#include "libvma/tcp/connection.h"
#include "libvma/tcp/send/segment.h"
#include "libvma/tcp/sequence.h"
#include "libvma/tcp/tcb_inline.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {
namespace {

constexpr std::uint64_t kBurstNs = 10'000;  // writes closer than this are a burst
// Such a write shares kicks by itself; its end need not wait for more.
constexpr std::size_t kLongWrite = 8192;
constexpr std::uint64_t kCorkNs = 200'000'000;       // the kernel's limit for TCP_CORK
constexpr std::uint64_t kDeviceRetryNs = 1'000'000;  // after a full device queue

}  // namespace

ssize_t Sender::write(const iovec* iov, std::size_t length, bool more, bool quiet) noexcept {
    Tcb& t = tcb_;
    const std::uint32_t used = t.queue.queued(), limit = t.queue.limit();
    // As the kernel does, the last write that begins within the limit may go beyond it by a segment: so short
    // writes of several threads are not torn apart.
    const std::size_t segment = std::min<std::size_t>(length, t.shown.mss());
    const std::size_t room = used < limit ? std::max<std::size_t>(limit - used, segment) : 0;
    if (length == 0) return 0;
    if (room == 0) {
        t.shown.refuse_writer();
        return -EAGAIN;
    }
    const std::uint64_t now = now_ns();
    if (now - last_write_ns_ < kBurstNs && length < kLongWrite)
        burst_++;
    else
        burst_ = 0;
    last_write_ns_ = now;
    if (t.pcb->unsent == nullptr && t.pcb->unacked == nullptr) t.recovery.restart_after_idle(now);
    more_ = more;
    push_ = false;
    // Pieces of a burst will fill a whole segment, where they are kept back for it.
    const bool whole = burst_ != 0 && t.route.ring()->attr().lazy_tx;
    const std::size_t done = t.queue.append(iov, std::min(length, room), whole);
    if (done < length) t.shown.refuse_writer();
    if (!quiet) output(now);
    return done != 0 ? static_cast<ssize_t>(done) : -EAGAIN;
}

[[gnu::always_inline]] inline bool Sender::keep_back(const tcp_seg* seg) noexcept {
    Tcb& t = tcb_;
    if (seg->next != nullptr || seg->len >= t.shown.mss() || seg->len == 0) return false;
    if (TCPH_FLAGS(seg->tcphdr) & TCP_FIN) return false;
    if (push_) return false;
    if (t.options.cork || more_) {
        const std::uint64_t now = now_ns();
        if (t.timers.cork_at == 0) t.timers.cork_at = now + kCorkNs;
        if (now < t.timers.cork_at) return true;
        t.timers.cork_at = 0;
        more_ = false;
        return false;
    }
    if (!t.options.nodelay && seq_before(t.pcb->lastack, small_end_)) return true;
    ring::Ring* ring = t.route.ring();
    if (burst_ != 0 && ring->attr().lazy_tx) {
        t.connection.hold(*ring);
        return true;
    }
    return false;
}

void Sender::output() noexcept { output(now_ns()); }

void Sender::output(std::uint64_t now) noexcept {
    Tcb& t = tcb_;
    tcp_pcb* const pcb = t.pcb;
    if (pcb == nullptr || t.freeze.frozen()) return;
    if (!t.route.holds()) {
        if (const int error = t.route.find(); error != 0) {
            t.route.wait(error, now);
            return;
        }
        t.route.found();
        t.timers.path_at = 0;
    }
    t.route.expire_mtu(now);
    const tcp_seg* const first = pcb->unsent;
    const bool several = t.phase.established && first != nullptr && first->next != nullptr;
    ring::Ring::Gather gather(several ? t.route.ring() : nullptr);
    if (t.phase.established) t.recovery.retransmit_lost();
    t.recovery.set_app_limited(false);
    while (pcb->unsent != nullptr && may_leave(pcb->unsent)) {
        if (!t.writer.send(pcb->unsent, false)) {
            t.timers.path_at = now + kDeviceRetryNs;
            break;
        }
        t.queue.first_sent();
    }
    if (pcb->unsent == nullptr) {
        t.recovery.set_app_limited(true);
        t.timers.cork_at = 0;
    }
    if (t.phase.established) t.recovery.schedule_tail_probe(now);
    // A closed window, and nothing under way whose ACK could open it: probes.
    if (pcb->unacked == nullptr && pcb->unsent != nullptr && t.phase.established &&
        seq_before(pcb->lastack + pcb->snd_wnd, seq_of(pcb->unsent) + pcb->unsent->len)) {
        if (t.timers.probe_at == 0) t.timers.probe_at = now + t.recovery.rto_ns();
    } else {
        t.timers.probe_at = 0;
        t.timers.probing_over();
    }
    t.acks.acknowledge(now);
}

// May the first unsent segment leave? It is cut where only a part of it may.
[[gnu::always_inline]] inline bool Sender::may_leave(tcp_seg* seg) noexcept {
    Tcb& t = tcb_;
    tcp_pcb* const pcb = t.pcb;
    if (TCPH_FLAGS(seg->tcphdr) & TCP_SYN) return true;
    if (!t.phase.established) return false;
    const std::uint32_t mss = t.shown.mss();
    if (seg->len > mss && !t.queue.split(seg, mss)) return false;
    const std::uint32_t seq = seq_of(seg), edge = pcb->lastack + pcb->snd_wnd;
    if (seq_before(edge, seq + seg->len)) {
        // Silly window avoidance (RFC 9293 section 3.8.6.2.1): a part only when it is half of the largest
        // window the peer had.
        const std::uint32_t room = seq_before(seq, edge) ? edge - seq : 0;
        if (room == 0 || room < pcb->snd_wnd_max / 2 || !t.queue.split(seg, room)) return false;
    }
    if (!t.recovery.room_for(seg->len)) return false;
    if (!keep_back(seg)) return true;
    t.recovery.set_app_limited(true);
    return false;
}

}  // namespace vma::tcp
