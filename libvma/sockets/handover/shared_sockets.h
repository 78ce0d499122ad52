// SPDX-License-Identifier: BSD-2-Clause
// Sockets that two processes hold, one of which keeps their state in its own memory.
//
// fork() gives the child descriptors of the parent's kernel sockets. Of an offloaded TCP connection the
// kernel's socket is an empty shell, and the parent goes on serving the connection; what arrives for a UDP
// socket is taken by the parent's rules; an epoll set lacks the connections that the kernel does not have. So
// in the child such a number is foreign. Its first use asks the parent, over a channel made at fork(), to put
// everything into the kernel's socket (which both have); then the number is the kernel's, in both processes.
// A child that never touches it costs nothing: most only close everything, or save a snapshot and exit. Nor
// do calls that send over a UDP socket: the kernel's socket has the same name.
//
// The channel is a socket pair for each child; the parent's internal thread serves it and answers on it. It
// is inherited by the child's own children, who may hold the same connections, so their requests, and those
// of several threads at once, bring a socket for the answer. That one takes the lowest free number in the
// parent for a moment, which a program may notice; so the usual question does without. When the parent's end
// reports the end of the channel, the child and all its descendants are gone, and what was shared with them
// alone is shared no more. A child whose parent is gone reads the end of the channel instead of an answer:
// the parent has put everything into the kernel when it went, or it was killed and the connections died with
// it.
//
// A child in our own memory (vfork, as shells and Python start programs) sees our table, and the numbers in
// it have other meanings for it as soon as it closes or copies some. When it copies a socket, or executes a
// program, it asks our internal thread by the same messages; the kernel's cookie of a socket tells what its
// numbers stand for.
//
// The same questions arise when the process hands its descriptors to another program (exec) or ends (exit):
// then the connections must be the kernel's before.
#pragma once

#include <netinet/in.h>

#include <cstdint>

#include "libvma/runtime/clock.h"
#include "libvma/sockets/fd_object.h"

namespace vma::sockets::sharing {

// Registers the fork hooks, among them the one that empties the child's descriptor table. Idempotent, before
// the first fork that matters; called when the stack starts.
void start();
// Makes the channel by which children in our memory ask. Idempotent; each time a stack starts. May throw
// bad_alloc.
void open_own_channel();

// How long a process waits for all it asks at once; 10 s, unless a test cannot.
void set_answer_limit(clock::Msec limit) noexcept;

// Children forked so far. A socket remembers it when it comes to be, and so knows whom it is shared with.
std::uint32_t generation() noexcept;
// Is anybody alive (a child forked since then, or a descendant of one) who may have inherited a socket of
// generation `born`? One load. A socket whose last number is closed then goes to the kernel first
// (Socket::before_last_close).
bool shared_since(std::uint32_t born) noexcept;

// A socket has become the kernel's, and its last number here is about to be closed; but it is open in another
// process. So it stays a member of epoll sets, in the kernel's from now on.
void complete_sets() noexcept;

enum class Before : std::uint8_t {
    exec,    // descriptors that stay open over it, and connections that it closes
    spawn,   // descriptors that stay open over the exec of a child
    exit,    // all, and nobody uses them any more: as the kernel closes them at the end of a process
    daemon,  // all, and a forked child goes on
    drop,    // the privileges that handing over needs are given up: connections and listeners, not UDP
};
// Puts what another program (or the kernel, after our end) needs into the kernel: sockets of ours that carry
// state, closed connections that are not done yet, and foreign sockets before exec, which are asked for all
// at once. In a process that shares its parent's memory only before exec. errno preserved.
void hand_all(Before what) noexcept;
// The same for one descriptor, which becomes the kernel's for good whatever it is. `why` goes to the log.
void hand_one(int fd, LeaveCause why) noexcept;

// The connection that an ancestor has accepted for the placeholder that comes from `port` (placeholders.h): a
// descriptor of the caller's, or -1. errno preserved.
int ask_for_connection(in_port_t port) noexcept;
// Could an ancestor have any?
bool has_ancestors() noexcept;

}  // namespace vma::sockets::sharing
