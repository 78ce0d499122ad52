// SPDX-License-Identifier: BSD-2-Clause
// Tells which process holds a netdev. The holder has a listening socket whose abstract name contains the
// interface's number.
//
// The kernel only tells that some program is attached. A starting process has to know more. A holder that is
// about to end (a predecessor that was just killed) is worth waiting for; a living one is not. But the
// process wants a notice when the living holder ends. A name belongs to a network namespace, as an
// interface's number does. A process takes the name before the netdev: of two that start at once one gets
// both, although the kernel lets several tcx programs share a netdev.
#pragma once

#include <sys/types.h>

#include "libvma/runtime/error.h"
#include "libvma/runtime/internal_fd.h"

namespace vma::verbs::xdp {

class Holder {
  public:
    enum class State { nobody, ending, alive };

    // Announces that this process holds the netdev, until the descriptor is closed; an empty one if none is
    // free. EBUSY: another process has the name.
    static Result<InternalFd> announce(int ifindex) noexcept;
    // The state of the holder. `connection` (or null) gets a socket that hangs up when a living holder ends,
    // if possible. `pid` (or null) gets the holder's pid, 0 if the holder is in another pid namespace.
    static State ask(int ifindex, InternalFd* connection = nullptr, pid_t* pid = nullptr) noexcept;
};

}  // namespace vma::verbs::xdp
