// SPDX-License-Identifier: BSD-2-Clause
// How threads sleep on a ring, and are woken.
//
// A software device's channel is readable while completions wait (attr().level_events), so whoever sleeps is
// woken whatever others do. A verbs device sends one event for each ibv_req_notify_cq(), for a completion
// that comes after it, and the channel is readable until that event is read. Three rules keep threads from
// sleeping for ever there:
//   1. after asking, the CQ is emptied under the lock, because what came before does not notify. Waiting for
//   the lock is part of it:
//      another thread may have looked at the CQ just before the completion came;
//   2. who reads an event asks again at once, and empties the CQ again: others may sleep on the channel, and
//   the event was theirs, too;
//   3. asking, reading and emptying are done with rx_lock_ held, so they do not mix.
// An event without a completion wakes somebody for nothing, once. For an event that never comes there is
// check().
#include <poll.h>
#include <time.h>

#include <algorithm>

#include "libvma/os/raw_syscall.h"
#include "libvma/ring/ring.h"
#include "libvma/runtime/clock.h"

namespace vma::ring {

void Ring::arm() noexcept {
    arms_.fetch_add(1, std::memory_order_relaxed);
    if (device_->attr().level_events) {
        ibv_req_notify_cq(recv_cq_, 0);
        return;
    }
    RxHold hold(*this);
    ibv_req_notify_cq(recv_cq_, 0);
    armed_.store(true, std::memory_order_relaxed);
    if (hold.mine)
        look_after_arming();  // else a handler sleeps in the midst of poll(): there is nobody who could look
}

// With rx_lock_ held.
void Ring::look_after_arming() noexcept {
    // Each round takes a batch. Who sends faster than this loop takes will also send after it, and that
    // notifies.
    unsigned n = 0;
    const std::size_t most = 4 * (rx_buffers_.size() / wc_.size() + 1);
    for (std::size_t i = 0; i < most; i++) {
        const unsigned taken = poll_locked();
        if (taken == 0) break;
        n += taken;
    }
    if (n != 0) frames_.store(frames_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
}

void Ring::channel_ready() noexcept {
    if (device_->attr().level_events) {
        poll();
        return;
    }
    RxHold hold(*this);
    if (!hold.mine) return;
    device_->consume_events(channel_);
    ibv_req_notify_cq(recv_cq_, 0);
    armed_.store(true, std::memory_order_relaxed);
    look_after_arming();
}

unsigned Ring::woken() noexcept {
    const bool in_device = device_->attr().moderation;
    if (!in_device) {
        moderation_lock_.lock();
        const std::uint64_t hold = moderation_.hold_ns();
        moderation_lock_.unlock();
        if (hold != 0) {
            pollfd channel{channel_->fd, POLLIN, 0};
            timespec now{0, 0}, pause{0, static_cast<long>(hold)};
            if (os::raw_syscall(SYS_ppoll, &channel, 1, &now, nullptr, 8) == 1)
                os::raw_syscall(SYS_nanosleep, &pause, nullptr);
        }
    }
    unsigned n;
    if (device_->attr().level_events) {
        n = poll();
    } else {
        const std::uint64_t before = frames_.load(std::memory_order_relaxed);
        channel_ready();
        n = static_cast<unsigned>(frames_.load(std::memory_order_relaxed) - before);
    }
    if (n == 0) return 0;
    const std::uint64_t now = clock::monotonic_ns();
    moderation_lock_.lock();
    const std::uint32_t count = moderation_.count(), period = moderation_.period_usec();
    moderation_.interrupt(frames_.load(std::memory_order_relaxed), now);
    const bool changed = count != moderation_.count() || period != moderation_.period_usec();
    moderation_lock_.unlock();
    if (changed) moderate_device();
    return n;
}

void Ring::moderate_device() noexcept {
    if (!device_->attr().moderation || failed()) return;
    moderation_lock_.lock();
    device_->moderate(recv_cq_, static_cast<std::uint16_t>(std::min(moderation_.count(), 0xffffu)),
                      static_cast<std::uint16_t>(std::min(moderation_.period_usec(), 0xffffu)));
    moderation_lock_.unlock();
}

void Ring::check() noexcept {
    if (postponed_.exchange(false, std::memory_order_relaxed)) note_error();
    if (broken_.load(std::memory_order_relaxed)) attend();
    if (device_->attr().level_events) return;
    // Somebody sleeps, perhaps, and nobody has looked for a second.
    const std::uint32_t polls = polls_.load(std::memory_order_relaxed);
    const bool idle = polls == polls_seen_;
    if (idle && armed_.exchange(false, std::memory_order_relaxed)) channel_ready();
    polls_seen_ = polls_.load(std::memory_order_relaxed);
}

ModerationCounters Ring::moderation_counters() noexcept {
    moderation_lock_.lock();
    ModerationCounters c{arms_.load(std::memory_order_relaxed), moderation_.received(),
                         frames_.load(std::memory_order_relaxed), moderation_.count(),
                         moderation_.period_usec()};
    moderation_lock_.unlock();
    return c;
}

}  // namespace vma::ring
