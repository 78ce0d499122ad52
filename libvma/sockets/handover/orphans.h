// SPDX-License-Identifier: BSD-2-Clause
// TCP connections that the program has closed, and that are not done yet, when the process ends.
//
// At the end of a process the kernel closes its sockets: it resets connections with unread data, and for the
// others sends what is queued, then FIN, and stays to answer the peer. Only a kernel socket can stay, so all
// connections that still have something to say or to hear are moved, closed ones included.
#pragma once

namespace vma::sockets::orphans {

// Moves all of them to the kernel. Nothing happens where no stack runs. errno preserved.
void hand_over() noexcept;

}  // namespace vma::sockets::orphans
