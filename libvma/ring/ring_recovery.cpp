// SPDX-License-Identifier: BSD-2-Clause
// What a ring does about completions with an error status, and when it gives its device up.
//
// An error stops the QP, or one side of it. Who finds the error only marks it (note_error). Whoever lets go
// of rx_lock_ next recovers: the QP is stopped, both CQs are emptied, the device brings the QP back, and the
// books are squared: no request of before is under way any more, whether its completion was seen or not.
// Frames that were to be sent are lost, as on any network; receives are posted anew.
#include <algorithm>
#include <utility>

#include "libvma/ring/ring.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/runtime.h"

namespace vma::ring {
namespace {

constexpr std::uint64_t kStormNs =
    1'000'000'000;  // more recoveries in this time than recovered_at_ holds: the device has failed

}  // namespace

void Ring::note_error() noexcept {
    doomed_lock_.lock();
    broken_.store(true, std::memory_order_relaxed);
    any_doomed_.store(true, std::memory_order_seq_cst);
    doomed_lock_.unlock();
}

// With rx_lock_ held, and no batch under way.
void Ring::recover() noexcept {
    auto settled = [&] {
        doomed_lock_.lock();
        broken_.store(false, std::memory_order_relaxed);
        doomed_lock_.unlock();
    };
    if (failed() || recovering_) return settled();
    if (tx_lock_.owned_by_me()) {  // in a handler that interrupted a send
        postponed_.store(true, std::memory_order_relaxed);
        return settled();
    }
    const std::uint64_t now = clock::monotonic_ns();
    std::uint64_t& oldest = *std::ranges::min_element(recovered_at_);
    const bool storm = oldest != 0 && now - oldest < kStormNs;
    oldest = now;

    recovering_ = true;
    tx_lock_.lock();
    if (!storm) device_->stop(qp_);
    tx_lock_.unlock();
    look_after_arming();  // frames that arrived before the error reach their sockets
    tx_lock_.lock();
    reap_tx();
    const bool works = !storm && device_->recover(qp_);
    reap_tx();
    // What has no completion has been lost, too.
    bump(tx_counters_.tx_lost, tx_posted_ - tx_reaped_);
    while (tx_reaped_ != tx_posted_) {
        const std::uint32_t chunk = tx_outstanding_[tx_reaped_++ & (tx_outstanding_.size() - 1)];
        if (chunk != kNoChunk) tx_free_.push_back(chunk);
    }
    tso_.segments = 0;
    unsignalled_ = 0;
    tx_lock_.unlock();
    if (!works) {
        settled();
        fail();
        return;
    }
    look_after_arming();
    reclaim_receives();
    settled();
    recovering_ = false;
    post_free(true);
    if (!device_->attr().level_events) ibv_req_notify_cq(recv_cq_, 0);  // threads may be asleep
    look_after_arming();
    rx_counters_.recoveries++;
    log::debug("{}: recovered from a failed request", device_->attr().name);
}

// Receives that the device had and did not give back: their buffers are neither in use nor free.
void Ring::reclaim_receives() noexcept {
    lose_pieces();
    pieces_ = 0;
    take_returned();
    const std::size_t known = rx_free_.size();
    for (std::size_t i = 0; i < known; i++) rx_buffers_[rx_free_[i]].length = 1;
    for (RxBuffer& b : rx_buffers_)
        if (b.length == 0) rx_free_.push_back(index_of(&b));
    for (std::size_t i = 0; i < known; i++) rx_buffers_[rx_free_[i]].length = 0;
    posted_ = 0;
}

// Any thread, any lock of the ring.
void Ring::fail() noexcept {
    if (failed_.exchange(true, std::memory_order_acq_rel)) return;
    log::error("{}: the device has failed; the kernel serves its sockets from now on", device_->attr().name);
    if (!config_.on_failure) return device_->give_up_flows();
    try {
        runtime::every(1, [this] {
            config_.on_failure(*this);
            device_->give_up_flows();
            return false;
        });
    } catch (...) {
        log::error("{}: no memory to move its sockets to the kernel", device_->attr().name);
    }
}

}  // namespace vma::ring
