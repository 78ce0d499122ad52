// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/send/sender.h"

#include <errno.h>

#include <algorithm>

#include "libvma/tcp/connection.h"
#include "libvma/tcp/lwip/glue.h"
#include "libvma/tcp/send/segment.h"
#include "libvma/tcp/sequence.h"
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
    const std::uint32_t used = tcb_.queue.queued(), limit = tcb_.queue.limit();
    // As the kernel does, the last write that begins within the limit may go beyond it by a segment: so short
    // writes of several threads are not torn apart.
    const std::size_t segment = std::min<std::size_t>(length, tcb_.shown.mss());
    const std::size_t room = used < limit ? std::max<std::size_t>(limit - used, segment) : 0;
    if (length == 0) return 0;
    if (room == 0) {
        tcb_.shown.refuse_writer();
        return -EAGAIN;
    }
    const std::uint64_t now = now_ns();
    if (now - last_write_ns_ < kBurstNs && length < kLongWrite)
        burst_++;
    else
        burst_ = 0;
    last_write_ns_ = now;
    if (tcb_.pcb->unsent == nullptr && tcb_.pcb->unacked == nullptr) tcb_.recovery.restart_after_idle(now);
    more_ = more;
    push_ = false;
    // Pieces of a burst will fill a whole segment, where they are kept back for it.
    const bool whole = burst_ != 0 && tcb_.route.ring()->attr().lazy_tx;
    const std::size_t done = tcb_.queue.append(iov, std::min(length, room), whole);
    if (done < length) tcb_.shown.refuse_writer();
    if (!quiet) output(now);
    return done != 0 ? static_cast<ssize_t>(done) : -EAGAIN;
}

bool Sender::keep_back(const tcp_seg* seg) noexcept {
    if (seg->next != nullptr || seg->len >= tcb_.shown.mss() || seg->len == 0) return false;
    if (TCPH_FLAGS(seg->tcphdr) & TCP_FIN) return false;
    if (push_) return false;
    if (tcb_.options.cork || more_) {
        const std::uint64_t now = now_ns();
        if (tcb_.timers.cork_at == 0) tcb_.timers.cork_at = now + kCorkNs;
        if (now < tcb_.timers.cork_at) return true;
        tcb_.timers.cork_at = 0;
        more_ = false;
        return false;
    }
    if (!tcb_.options.nodelay && seq_before(tcb_.pcb->lastack, small_end_)) return true;
    ring::Ring* ring = tcb_.route.ring();
    if (burst_ != 0 && ring->attr().lazy_tx) {
        tcb_.connection.hold(*ring);
        return true;
    }
    return false;
}

void Sender::acked(std::uint32_t ack) noexcept {
    if (!seq_before(ack, small_end_)) small_end_ = ack;  // so it never gets so old that it seems new
}

void Sender::output() noexcept { output(now_ns()); }

void Sender::output(std::uint64_t now) noexcept {
    if (tcb_.pcb == nullptr || tcb_.freeze.frozen()) return;
    if (!tcb_.route.holds()) {
        if (const int error = tcb_.route.find(); error != 0) {
            tcb_.route.wait(error, now);
            return;
        }
        tcb_.route.found();
        tcb_.timers.path_at = 0;
    }
    tcb_.route.expire_mtu(now);
    const tcp_seg* const first = tcb_.pcb->unsent;
    const bool several = tcb_.phase.established && first != nullptr && first->next != nullptr;
    ring::Ring::Gather gather(several ? tcb_.route.ring() : nullptr);
    if (tcb_.phase.established) tcb_.recovery.retransmit_lost();
    tcb_.recovery.set_app_limited(false);
    while (tcb_.pcb->unsent != nullptr && may_leave(tcb_.pcb->unsent)) {
        if (!tcb_.writer.send(tcb_.pcb->unsent, false)) {
            tcb_.timers.path_at = now + kDeviceRetryNs;
            break;
        }
        tcb_.queue.first_sent();
    }
    if (tcb_.pcb->unsent == nullptr) {
        tcb_.recovery.set_app_limited(true);
        tcb_.timers.cork_at = 0;
    }
    if (tcb_.phase.established) tcb_.recovery.schedule_tail_probe(now);
    // A closed window, and nothing under way whose ACK could open it: probes.
    if (tcb_.pcb->unacked == nullptr && tcb_.pcb->unsent != nullptr && tcb_.phase.established &&
        seq_before(tcb_.pcb->lastack + tcb_.pcb->snd_wnd, seq_of(tcb_.pcb->unsent) + tcb_.pcb->unsent->len)) {
        if (tcb_.timers.probe_at == 0) tcb_.timers.probe_at = now + tcb_.recovery.rto_ns();
    } else {
        tcb_.timers.probe_at = 0;
        tcb_.timers.probing_over();
    }
    tcb_.acks.acknowledge(now);
}

// May the first unsent segment leave? It is cut where only a part of it may.
bool Sender::may_leave(tcp_seg* seg) noexcept {
    if (TCPH_FLAGS(seg->tcphdr) & TCP_SYN) return true;
    if (!tcb_.phase.established) return false;
    const std::uint32_t mss = tcb_.shown.mss();
    if (seg->len > mss && !tcb_.queue.split(seg, mss)) return false;
    const std::uint32_t seq = seq_of(seg), edge = tcb_.pcb->lastack + tcb_.pcb->snd_wnd;
    if (seq_before(edge, seq + seg->len)) {
        // Silly window avoidance (RFC 9293 section 3.8.6.2.1): a part only when it is half of the largest
        // window the peer had.
        const std::uint32_t room = seq_before(seq, edge) ? edge - seq : 0;
        if (room == 0 || room < tcb_.pcb->snd_wnd_max / 2 || !tcb_.queue.split(seg, room)) return false;
    }
    if (!tcb_.recovery.room_for(seg->len)) return false;
    if (!keep_back(seg)) return true;
    tcb_.recovery.set_app_limited(true);
    return false;
}

}  // namespace vma::tcp
