// SPDX-License-Identifier: BSD-2-Clause
// What has arrived in sequence and was not read yet.
//
// Data stays in the ring's buffers as long as that is cheap. A peer that sends single bytes would keep a
// buffer with each, so pieces are copied together into blocks when there are many of them, when buffers are
// scarce, and when the memory they keep nears twice the receive window. Each piece is copied at most once,
// and none that was settled is looked at again: the work for a segment does not depend on how much waits in
// front of it.
//
// Not locked: it belongs to its connection.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "libvma/tcp/lwip/types.h"

namespace vma::tcp {

class ReceiveQueue {
  public:
    ReceiveQueue() = default;
    ~ReceiveQueue() { clear(); }
    ReceiveQueue(const ReceiveQueue&) = delete;
    ReceiveQueue& operator=(const ReceiveQueue&) = delete;

    // Takes a chain of pieces. `scarce`: the ring wants its buffers back. `window`: bytes of data that may
    // wait here and out of order together; `elsewhere`: the memory that what is out of order keeps. held() +
    // elsewhere stays below 2 * window, unless there is no memory to copy to.
    void append(lwip::Piece* chain, bool scarce, std::uint32_t window, std::size_t elsewhere) noexcept;

    struct How {
        bool copy = true;      // else the iovecs are not looked at
        bool take = true;      // else the data stays (peeking)
        std::size_t skip = 0;  // bytes to pass over when peeking
    };
    // Copies to the iovecs, at most `length` bytes. Returns how many.
    std::size_t read(const iovec* iov, std::size_t count, std::size_t length, const How& how) noexcept;
    // Takes the first piece out, which is the caller's then. Not when it is empty.
    lwip::Piece* take_first() noexcept;
    // Undoes take_first().
    void put_first(lwip::Piece* piece) noexcept;
    void clear() noexcept;

    const lwip::Piece* first() const noexcept { return first_; }
    std::size_t bytes() const noexcept { return bytes_; }
    std::size_t held() const noexcept { return held_; }  // bytes of memory
    // Pieces that append() has looked at, ever; for tests.
    std::uint64_t steps() const noexcept { return steps_; }

  private:
    void settle(std::uint32_t window) noexcept;
    void link(lwip::Piece* piece) noexcept;
    lwip::Piece* unlink_first() noexcept;

    lwip::Piece* first_ = nullptr;
    lwip::Piece* last_ = nullptr;
    lwip::Piece* settled_ = nullptr;  // what is behind it may be copied yet; null: all
    std::size_t bytes_ = 0, held_ = 0;
    std::uint32_t loose_ = 0;  // pieces behind settled_
    std::uint64_t steps_ = 0;
};

}  // namespace vma::tcp
