// SPDX-License-Identifier: BSD-2-Clause
// How threads sleep on a ring, and are woken.
//
// A software device's channel is readable while completions wait (attr().level_events), so a sleeper is woken
// whatever others do. A verbs device sends one event for each ibv_req_notify_cq(), for a completion that
// comes after it. The channel is readable until that event is read. Three rules keep threads from sleeping
// for ever there:
//   1. After asking, the CQ is emptied under the receive lock, because what came before does not notify.
//      Waiting for the lock is part of it: another thread may have looked at the CQ just before the
//      completion came.
//   2. A thread that reads an event asks again at once, and empties the CQ again. Others may sleep on the
//      channel, and the event was theirs, too.
//   3. Asking, reading and emptying are done with the receive lock held, so they do not mix.
// An event without a completion wakes a thread for nothing, once. For an event that never comes there is
// check().
//
// Locks: the receive lock as said above, and a lock of its own, a leaf, for the moderation. Any thread.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>

#include "libvma/ring/moderation.h"
#include "libvma/ring/receiver.h"
#include "libvma/ring/recovery.h"
#include "libvma/runtime/lock.h"
#include "libvma/verbs/device.h"

namespace vma::ring {

class CompletionEvents {
  public:
    CompletionEvents(Receiver& rx, const Recovery& recovery, const ModerationConfig& config) noexcept
        : rx_(rx), recovery_(recovery), moderation_(config) {}

    // `channel` is that of `cq`, which has the completions of receives. Once.
    void open(verbs::Device& device, ibv_comp_channel* channel, ibv_cq* cq) noexcept;

    // ---- as in Ring ----
    void arm() noexcept;
    unsigned woken() noexcept;
    void channel_ready() noexcept;
    void check() noexcept;
    void fix_moderation(std::uint32_t count, clock::Usec period) noexcept;
    int channel_fd() const noexcept { return channel_->fd; }
    ModerationCounters counters() noexcept;

  private:
    void moderate_device() noexcept;

    Receiver& rx_;
    const Recovery& recovery_;
    verbs::Device* device_ = nullptr;
    ibv_comp_channel* channel_ = nullptr;
    ibv_cq* cq_ = nullptr;
    std::atomic<std::uint64_t> arms_{0};
    std::atomic<bool> armed_{false};  // since the last check()
    std::uint32_t polls_seen_ = 0;    // by check()
    Lock moderation_lock_;
    Moderation moderation_;
};

}  // namespace vma::ring
