// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/published.h"

#include <algorithm>

#include "libvma/tcp/connection.h"
#include "libvma/tcp/recovery/segments.h"
#include "libvma/tcp/tcb_inline.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {
namespace {

constexpr std::uint32_t kInEvents =
    EPOLLIN | EPOLLRDNORM | EPOLLRDBAND | EPOLLRDHUP | EPOLLPRI | EPOLLHUP | EPOLLERR;
constexpr Msec kLookForMemory{200};

}  // namespace

std::uint32_t Published::edges(std::uint32_t interest) const noexcept {
    std::uint32_t n = 0;
    if (interest & kInEvents) n += in_edges_.load(std::memory_order_acquire);
    if (interest & (EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND)) n += out_edges_.load(std::memory_order_acquire);
    return n;
}

void Published::update() noexcept {
    Tcb& t = tcb_;
    if (t.freeze.moved()) {  // what was shown last stays true until the owner shows the kernel's socket
        tell();
        t.timers.arm();
        return;
    }
    // Of a connection that has failed the last count stands, as in the kernel; the SYN counts until it is
    // answered.
    const std::uint32_t used = t.queue.queued(), limit = t.queue.limit();
    if (t.pcb != nullptr)
        queued_.store(t.phase.established ? used : !t.origin.passive(), std::memory_order_release);
    unsent_.store(t.queue.unsent(), std::memory_order_release);
    set_limit(limit);
    if (t.pcb != nullptr) {
        const State now = t.pcb->state();
        if (now == State::time_wait && !t.phase.in_time_wait) t.timers.enter_time_wait();
        // "Wake up lingering close()" (tcp_rcv_state_process): another edge.
        if (now == State::fin_wait2 && state_.load(std::memory_order_relaxed) == State::fin_wait1)
            in_wake_++, out_wake_++;
        state_.store(now, std::memory_order_release);
    } else {
        state_.store(State::close, std::memory_order_release);
    }
    if (const SendTimes::Why why = t.sender.waits_for(no_space_);
        __builtin_expect(why != t.send_times.why(), 0)) {
        // What changes the reason has a time already: a segment has come, or left, or was written.
        t.send_times.turn(why,
                          std::max({t.acceptance.last_rx(), t.acks.last_data_tx(), t.sender.last_write()}));
    }
    publish(compute_events(used, limit));
    if (__builtin_expect(memory_bound::scarce(), 0)) look_for_memory();
    tell();
    t.timers.arm();
}

// A writer that has no room for want of memory is told by nothing of the connection's when there is some: the
// kernel's writer looks again within 200 ms, too.
void Published::look_for_memory() noexcept {
    Tcb& t = tcb_;
    if (t.pcb == nullptr || !t.phase.established || t.phase.write_shut || t.phase.orphan ||
        (events() & EPOLLOUT) != 0 || t.queue.limit() == t.queue.full_limit() || t.timers.path_at != kNoTime)
        return;
    t.timers.path_at = Clock::now() + kLookForMemory;
}

[[gnu::always_inline]] inline void Published::publish(std::uint32_t now) noexcept {
    Tcb& t = tcb_;
    const std::uint32_t before = events_.load(std::memory_order_relaxed);
    // Before connect(), which sets the window: who watches must not see a hang-up.
    if (t.pcb == nullptr && before == 0 && !t.opening.begun() && !t.phase.established) return;
    if ((now & ~before) & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) in_wake_++, out_wake_++;
    // Visible before the look at who asked meanwhile, see events_asked().
    if (before != now) events_.store(now, std::memory_order_seq_cst);
    if (now & EPOLLOUT) {
        const bool asked = room_wanted_.load(std::memory_order_seq_cst);
        if (no_space_ || asked || (!(before & EPOLLOUT) && !t.phase.established)) out_wake_++;
        if (asked) room_wanted_.store(false, std::memory_order_relaxed);
        no_space_ = false;
    }
    if (before == now && (in_wake_ | out_wake_) == 0) return;
    in_edges_.fetch_add(in_wake_, std::memory_order_release);
    out_edges_.fetch_add(out_wake_, std::memory_order_release);
    in_wake_ = out_wake_ = 0;
    if (t.owner != nullptr) t.owner->changed();
}

// The kernel's tcp_poll() in other words.
[[gnu::always_inline]] inline std::uint32_t Published::compute_events(std::uint32_t used,
                                                                      std::uint32_t limit) const noexcept {
    const Tcb& t = tcb_;
    std::uint32_t mask = 0;
    const State state = t.pcb != nullptr ? t.pcb->state() : State::close;
    const bool receive_shut = t.phase.read_shut || t.phase.peer_closed;
    if ((receive_shut && t.phase.write_shut) || state == State::close) mask |= EPOLLHUP;
    if (receive_shut) mask |= EPOLLIN | EPOLLRDNORM | EPOLLRDHUP;
    if (state != State::syn_sent && state != State::syn_recv) {
        const std::size_t enough = std::max<std::size_t>(1, std::min(t.options.receive_lowat, limit));
        if (readable_.load(std::memory_order_relaxed) >= enough) mask |= EPOLLIN | EPOLLRDNORM;
        if (t.phase.write_shut) {
            mask |= EPOLLOUT | EPOLLWRNORM;
        } else {
            const bool room = used <= limit && limit - used >= used / 2;
            // Less than half of the limit: it is worth the while to wake a writer.
            const std::uint32_t lowat = t.options.unsent_limit();
            const bool few_unsent = lowat == kNoLowat || unsent() == 0 || unsent() <= (lowat - 1) / 2;
            if (room && few_unsent) mask |= EPOLLOUT | EPOLLWRNORM;
        }
    }
    if (error_.load(std::memory_order_relaxed) != 0) mask |= EPOLLERR;
    return mask;
}

}  // namespace vma::tcp
