// SPDX-License-Identifier: BSD-2-Clause
// TCP connections that the program has closed, and that are not done yet, when the process ends.
//
// At the end of a process the kernel closes its sockets: it resets connections with unread data, and for the
// others sends what is queued, then FIN, and stays to answer the peer. Only a kernel socket can stay, so all
// connections that still have something to say or to hear are moved, closed ones included.
//
// A ring whose device has failed leaves connections behind, too, those of the program.
#pragma once

namespace vma::ring {
class Ring;
}
namespace vma::sockets {
class Stack;
}

namespace vma::sockets::orphans {

// The device of `ring` works no more: its sockets become the kernel's. Those whose address or route went with
// the interface do so when both are back. Meanwhile they repeat what they have sent, and give up, as the
// kernel's do. Internal thread, no lock held.
void leave(Stack& stack, ring::Ring& ring) noexcept;

// Moves all of them to the kernel. Nothing happens where no stack runs. errno preserved.
void hand_over() noexcept;

}  // namespace vma::sockets::orphans
