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
    ~Freeze();
    Freeze(const Freeze&) = delete;
    Freeze& operator=(const Freeze&) = delete;

    // See Connection::freeze() and finish_freeze().
    int begin(KernelState& out) noexcept;
    void finish(bool moved) noexcept;

    bool frozen() const noexcept { return frozen_; }
    bool moved() const noexcept { return moved_; }
    // Frozen or moved: the connection's own code does not serve the program any more.
    bool away() const noexcept { return frozen_ || moved_; }
    // Urgent data has come: the kernel is to have the connection. From now on it keeps what the peer sends,
    // `first` to begin with, for a peer that resets the connection or falls silent next does not repeat it.
    void await_move(ring::RxBuffer* first) noexcept;
    // Not any more: the frames are the connection's own.
    void await_no_more() noexcept;
    // Frames are this part's: the connection is away(), or about to be.
    bool takes_frames() const noexcept { return frozen_ || moved_ || awaiting_; }
    // Takes a frame: the kernel is to have it, as soon as it has the connection.
    void take_frame(ring::RxBuffer* buffer) noexcept;

  private:
    ring::RxBuffer* take_all() noexcept;
    void describe_ended(KernelState& out) const;
    void describe_queues(KernelState& out) const;
    void describe_terms(KernelState& out) const;

    Tcb& tcb_;
    bool frozen_ = false;
    bool moved_ = false;               // into the kernel
    bool awaiting_ = false;            // await_move()
    std::uint32_t frames_ = 0;         // how many have come since then
    ring::RxBuffer* first_ = nullptr;  // those
    ring::RxBuffer* last_ = nullptr;
};

}  // namespace vma::tcp
