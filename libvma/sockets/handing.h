// SPDX-License-Identifier: BSD-2-Clause
// Sockets that two processes hold, one of which keeps their state in its own memory.
//
// fork() gives the child descriptors of the parent's kernel sockets. Of an offloaded TCP connection the kernel's socket
// is an empty shell, and the parent goes on serving the connection. So in the child such a number means a
// ForeignSocket. Its first use asks the parent, over a channel made at fork(), to put the connection into the kernel's
// socket (which both have); then the number is the kernel's, in both processes. A child that never touches the
// connection costs nothing: most only close everything, or save a snapshot and exit.
//
// The channel is a socket pair for each child; the parent's internal thread serves it. It is inherited by the child's
// own children, who may hold the same connections, so each request brings a socket of its own for the answer. When the
// parent's end reports the end of the channel, the child and all its descendants are gone, and what was shared with
// them alone is shared no more. A child whose parent is gone reads the end of the channel instead of an answer: the
// parent has put everything into the kernel when it went, or it was killed and the connections died with it.
//
// The same questions arise when the process hands its descriptors to another program (exec) or ends (exit): then the
// connections must be the kernel's before.
#pragma once

#include <cstdint>

#include "libvma/sockets/fd_object.h"

namespace vma::sockets::handing {

// Registers the fork hooks, among them the one that empties the child's descriptor table. Idempotent, before the first
// fork that matters; called when the stack starts.
void start();

// Children forked so far. A socket remembers it when it comes to be, and so knows whom it is shared with.
std::uint32_t generation() noexcept;
// Is anybody alive (a child forked since then, or a descendant of one) who may have inherited a socket of generation
// `born`? One load. A socket whose last number is closed then goes to the kernel first (Socket::before_last_close).
bool shared_since(std::uint32_t born) noexcept;

enum class Before : std::uint8_t {
    exec,    // descriptors that stay open over it
    exit,    // all, and nobody uses them any more: as the kernel closes them at the end of a process
    daemon,  // all, and a forked child goes on
};
// Puts what another program (or the kernel, after our end) needs into the kernel: sockets of ours that carry state,
// closed connections that are not done yet, and foreign sockets before exec. Nothing in a process that shares its
// parent's memory. errno preserved.
void hand_all(Before what) noexcept;
// The same for one descriptor. `why` goes to the log.
void hand_one(int fd, const char* why) noexcept;

}  // namespace vma::sockets::handing
