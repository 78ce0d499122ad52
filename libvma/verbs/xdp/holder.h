// SPDX-License-Identifier: BSD-2-Clause
// Which process has a netdev: it says so by a listening socket whose abstract name holds the interface's
// number.
//
// The kernel tells only that some program is attached. A process that starts has to know more: one that is
// about to end (a predecessor that was just killed) is worth waiting for, one that lives is not, and it wants
// to hear when that one goes. A name belongs to a network namespace, as an interface's number does. Who takes
// the name without the netdev makes others not try it for as long; they try again once a second.
#pragma once

#include <sys/types.h>

#include "libvma/runtime/internal_fd.h"

namespace vma::verbs::xdp {

class Holder {
  public:
    enum class State { nobody, ending, alive };

    // Says that this process has the netdev, until the descriptor is closed. Empty: somebody else says so, or
    // out of descriptors.
    static InternalFd announce(int ifindex) noexcept;
    // Who says so. `connection` (or null) gets a socket that hangs up when a living holder goes, if there is
    // one to be had; `pid` (or null) its process, 0: it is in another pid namespace.
    static State ask(int ifindex, InternalFd* connection = nullptr, pid_t* pid = nullptr) noexcept;
};

}  // namespace vma::verbs::xdp
