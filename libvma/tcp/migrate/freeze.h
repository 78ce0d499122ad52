// SPDX-License-Identifier: BSD-2-Clause
// A connection held still, so that the kernel can take it over (handover.h).
//
// Under the connection's lock.
#pragma once

#include <cstdint>

namespace vma::ring {
struct RxBuffer;
}

namespace vma::tcp {

struct KernelState;
struct Tcb;

class Freeze {
  public:
    explicit Freeze(Tcb& tcb) noexcept : tcb_(tcb) {}

    // See Connection::freeze() and finish_freeze().
    int begin(KernelState& out) noexcept;
    void finish(bool moved) noexcept;

    bool frozen() const noexcept { return frozen_; }
    bool moved() const noexcept { return moved_; }
    // Frozen or moved: the connection's own code does not serve the program any more.
    bool away() const noexcept { return frozen_ || moved_; }
    // Takes a frame that comes while away(): the kernel is to have it, as soon as it has the connection.
    void take_frame(ring::RxBuffer* buffer) noexcept;

  private:
    void describe_ended(KernelState& out) const;
    void describe_queues(KernelState& out) const;
    void describe_terms(KernelState& out) const;

    Tcb& tcb_;
    bool frozen_ = false;
    bool moved_ = false;               // into the kernel
    std::uint32_t frames_ = 0;         // how many came while frozen
    ring::RxBuffer* first_ = nullptr;  // those
    ring::RxBuffer* last_ = nullptr;
};

}  // namespace vma::tcp
