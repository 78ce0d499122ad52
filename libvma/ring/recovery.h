// SPDX-License-Identifier: BSD-2-Clause
// What a ring does about completions with an error status, and when it gives its device up.
//
// An error stops the QP, or one side of it. The thread that finds the error only notes it
// (ReceiveLock::note_error). The next thread that unlocks the receive lock recovers. It stops the QP, empties
// both CQs, has the device bring the QP back, and squares the books. No request of before is under way any
// more, whether its completion was seen or not. Frames that were to be sent are lost, as on any network;
// receives are posted anew.
//
// A QP may also stop without any completion. Then an asynchronous event of the device tells, and the internal
// thread recovers in the same way.
//
// A device that needs this again and again, or dies, has failed: RingConfig::on_failure is called.
//
// Locks: the receive lock guards this, except where "any thread" is said.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>

#include "libvma/ring/receiver.h"
#include "libvma/ring/tx_queue.h"
#include "libvma/verbs/device.h"

namespace vma::ring {

class Recovery {
  public:
    Recovery(Receiver& rx, TxQueue& tx) noexcept : rx_(rx), tx_(tx) {}

    // `on_failure` is called once, from the internal thread, when the device has failed; then the device
    // gives up its flow rules. Once. May throw std::bad_alloc.
    void open(verbs::Device& device, ibv_qp* qp, ibv_cq* receive_cq, std::function<void()> on_failure);

    // With the receive lock held, and no batch under way: deals with the error noted.
    void recover() noexcept;
    std::uint64_t recoveries() const noexcept { return recoveries_; }

    // Any thread, any lock held: the device has failed, or does not serve for the reason `why`.
    void fail(const char* why = "the device has failed") noexcept;
    bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }
    // Any thread, once a second or so: makes good for a recovery that had to wait.
    void check() noexcept;

  private:
    void qp_failed() noexcept;

    Receiver& rx_;
    TxQueue& tx_;
    verbs::Device* device_ = nullptr;
    ibv_qp* qp_ = nullptr;
    ibv_cq* cq_ = nullptr;
    std::function<void()> on_failure_;
    std::array<clock::Time, 4> recovered_at_{};  // the last ones
    std::uint64_t recoveries_ = 0;               // the QP was brought back to work
    std::atomic<bool> postponed_{false};         // recover() could not take TxQueue's lock: check() does it
    std::atomic<bool> failed_{false};
};

}  // namespace vma::ring
