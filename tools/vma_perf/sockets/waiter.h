// SPDX-License-Identifier: BSD-2-Clause
// Waiting for the sockets of one thread in the way that --wait asks for.
#pragma once

#include <poll.h>
#include <sys/select.h>

#include <span>
#include <vector>

#include "tools/common/fd.h"
#include "tools/vma_perf/params.h"

namespace vma_perf::sockets {

// Makes the socket fit: blocking ones get time limits of kTick, all others become non-blocking.
void prepare_for(int fd, Wait wait);

class Waiter {
  public:
    // The descriptors stay the caller's. Throws Failure: more than one with Wait::blocking, or a number too
    // large for select().
    Waiter(Wait wait, std::vector<int> descriptors);

    // Numbers (positions in `descriptors`) of the sockets worth a receive. With blocking and nonblocking that
    // is all of them, and a blocking one waits itself (see receive_flags). Otherwise waits up to kTick, or
    // only looks. Valid until the next call.
    std::span<const unsigned> ready(bool may_wait);
    // For the receive that follows.
    int receive_flags(bool may_wait) const noexcept;
    // Waits until the socket takes data again, up to kTick; does not wait with Wait::nonblocking, where the
    // caller spins.
    void wait_writable(unsigned number) const;

  private:
    std::span<const unsigned> by_select(int timeout_ms);
    std::span<const unsigned> by_poll(int timeout_ms);
    std::span<const unsigned> by_epoll(int timeout_ms);

    const Wait wait_;
    const std::vector<int> descriptors_;
    std::vector<unsigned> all_, ready_;
    std::vector<pollfd> poll_;
    fd_set set_{};
    int highest_ = -1;
    tools::Fd epoll_;
};

}  // namespace vma_perf::sockets
