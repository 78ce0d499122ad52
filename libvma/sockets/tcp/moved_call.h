// SPDX-License-Identifier: BSD-2-Clause
// The rest of a blocking call whose connection became the kernel's in its midst. It has the time that is left
// of the call's, and ends where the kernel's own call would: with what it waits for, at the urgent mark, at
// the stream's end.
#pragma once

#include <sys/types.h>

#include <cstddef>

#include "libvma/runtime/clock.h"
#include "libvma/sockets/iov_cursor.h"

namespace vma::sockets {

class MovedCall {
  public:
    // `fd` stays the caller's. `deadline`: as in Waiting, Time{} is none.
    MovedCall(int fd, clock::Time deadline) noexcept : fd_(fd), deadline_(deadline) {}

    // Receives into the cursor until there are `target` bytes (1 or more), or the call ends otherwise.
    // `begun`: the call has received some already, so it does not pass the urgent mark. `low_water`: the
    // socket's SO_RCVLOWAT, of which the kernel knows less is left. Bytes, 0 at the end of the stream, or
    // -errno: -EAGAIN at the deadline, or at the mark at once. A cancellation point.
    ssize_t receive(IovCursor& at, int flags, std::size_t target, std::size_t low_water, bool begun);
    // Sends what is left. Bytes, or -errno where that is none.
    ssize_t send(IovCursor& at, int flags);

  private:
    int wait(short events);
    bool at_mark() const noexcept;

    const int fd_;
    const clock::Time deadline_;
};

}  // namespace vma::sockets
