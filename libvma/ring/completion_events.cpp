// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/ring/completion_events.h"

#include <poll.h>
#include <time.h>

#include <algorithm>

#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/wakes_held.h"

namespace vma::ring {

void CompletionEvents::open(verbs::Device& device, ibv_comp_channel* channel, ibv_cq* cq) noexcept {
    device_ = &device;
    channel_ = channel;
    cq_ = cq;
    moderate_device();
}

void CompletionEvents::arm() noexcept {
    arms_.fetch_add(1, std::memory_order_relaxed);
    if (device_->attr().level_events) {
        ibv_req_notify_cq(cq_, 0);
        return;
    }
    const WakesHeld wakes;
    ReceiveLock::Hold hold(rx_.lock());
    ibv_req_notify_cq(cq_, 0);
    armed_.store(true, std::memory_order_relaxed);
    // Else a handler sleeps in the midst of poll(): no thread could look.
    if (hold.mine) rx_.take_all();
}

void CompletionEvents::channel_ready() noexcept {
    if (device_->attr().level_events) {
        rx_.poll();
        return;
    }
    const WakesHeld wakes;
    ReceiveLock::Hold hold(rx_.lock());
    if (!hold.mine) return;
    device_->consume_events(channel_);
    ibv_req_notify_cq(cq_, 0);
    armed_.store(true, std::memory_order_relaxed);
    rx_.take_all();
}

unsigned CompletionEvents::woken() noexcept {
    const bool in_device = device_->attr().moderation;
    if (!in_device) {
        moderation_lock_.lock();
        const clock::Nsec hold = moderation_.hold();
        moderation_lock_.unlock();
        if (hold != clock::Nsec::zero()) {
            pollfd channel{channel_->fd, POLLIN, 0};
            timespec now{0, 0}, pause = clock::to_timespec(hold);
            if (os::raw_syscall(SYS_ppoll, &channel, 1, &now, nullptr, 8) == 1)
                os::raw_syscall(SYS_nanosleep, &pause, nullptr);
        }
    }
    unsigned n;
    if (device_->attr().level_events) {
        n = rx_.poll();
    } else {
        const std::uint64_t before = rx_.frames();
        channel_ready();
        n = static_cast<unsigned>(rx_.frames() - before);
    }
    if (n == 0) return 0;
    const clock::Time now = clock::monotonic();
    moderation_lock_.lock();
    const std::uint32_t count = moderation_.count();
    const clock::Usec period = moderation_.period();
    moderation_.interrupt(rx_.frames(), now);
    const bool changed = count != moderation_.count() || period != moderation_.period();
    moderation_lock_.unlock();
    if (changed) moderate_device();
    return n;
}

void CompletionEvents::fix_moderation(std::uint32_t count, clock::Usec period) noexcept {
    moderation_lock_.lock();
    moderation_.fix(count, period);
    moderation_lock_.unlock();
    moderate_device();
}

void CompletionEvents::moderate_device() noexcept {
    if (!device_->attr().moderation || recovery_.failed()) return;
    moderation_lock_.lock();
    device_->moderate(cq_, static_cast<std::uint16_t>(std::min(moderation_.count(), 0xffffu)),
                      static_cast<std::uint16_t>(std::min(moderation_.period().count(), 0xffffu)));
    moderation_lock_.unlock();
}

void CompletionEvents::check() noexcept {
    if (device_->attr().level_events) return;
    // Perhaps a thread sleeps, and no other has looked for a second.
    const std::uint32_t polls = rx_.polls();
    const bool idle = polls == polls_seen_;
    if (idle && armed_.exchange(false, std::memory_order_relaxed)) channel_ready();
    polls_seen_ = rx_.polls();
}

ModerationCounters CompletionEvents::counters() noexcept {
    moderation_lock_.lock();
    ModerationCounters c{arms_.load(std::memory_order_relaxed), moderation_.received(), rx_.frames(),
                         moderation_.count(), moderation_.period()};
    moderation_lock_.unlock();
    return c;
}

}  // namespace vma::ring
