// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/ring/recovery.h"

#include <algorithm>
#include <utility>

#include "libvma/runtime/clock.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/runtime.h"

namespace vma::ring {
namespace {

// More recoveries in this time than recovered_at_ holds: the device has failed.
constexpr std::chrono::seconds kStorm{1};

}  // namespace

void Recovery::open(verbs::Device& device, ibv_qp* qp, ibv_cq* receive_cq, std::function<void()> on_failure) {
    device_ = &device;
    qp_ = qp;
    cq_ = receive_cq;
    on_failure_ = std::move(on_failure);
    device.on_failure([this] { fail(); });
    device.on_qp_failure([this] { qp_failed(); });
}

// Completions that tell of the same failure may have been dealt with before this event was read. The lock
// keeps a recovery away while the device is asked.
void Recovery::qp_failed() noexcept {
    const ReceiveLock::Hold hold(rx_.lock());
    if (!failed() && device_->stopped(qp_)) rx_.lock().note_error();
}

void Recovery::recover() noexcept {
    ReceiveLock& noted = rx_.lock();
    if (failed() || rx_.queue().suspended()) return noted.settle_error();
    if (tx_.owned_by_me()) {  // in a handler that interrupted a send
        postponed_.store(true, std::memory_order_relaxed);
        return noted.settle_error();
    }
    const clock::Time now = clock::monotonic();
    clock::Time& oldest = *std::ranges::min_element(recovered_at_);
    const bool storm = oldest != clock::Time{} && now - oldest < kStorm;
    oldest = now;

    rx_.queue().suspend();
    // Before a device is given up, too: the error may have stopped the receive side alone, and the send
    // buffers become free below.
    tx_.stop();
    rx_.take_all();  // frames that arrived before the error reach their sockets
    const bool works = tx_.restart(!storm);
    if (!works) {
        noted.settle_error();
        fail();
        return;
    }
    rx_.take_all();
    rx_.reclaim();
    noted.settle_error();
    rx_.queue().resume();
    if (!device_->attr().level_events) ibv_req_notify_cq(cq_, 0);  // threads may be asleep
    rx_.take_all();
    recoveries_++;
    log::debug("{}: recovered from a failed request", device_->attr().name);
}

void Recovery::fail(const char* why) noexcept {
    if (failed_.exchange(true, std::memory_order_acq_rel)) return;
    log::error("{}: {}; the kernel serves its sockets from now on", device_->attr().name, why);
    if (!on_failure_) return device_->give_up_flows();
    try {
        runtime::every(clock::Msec(1), [this] {
            on_failure_();
            device_->give_up_flows();
            return false;
        });
    } catch (...) {
        log::error("{}: no memory to move its sockets to the kernel", device_->attr().name);
    }
}

void Recovery::check() noexcept {
    if (postponed_.exchange(false, std::memory_order_relaxed)) rx_.lock().note_error();
    if (rx_.lock().error_noted()) rx_.lock().attend();
}

}  // namespace vma::ring
