// SPDX-License-Identifier: BSD-2-Clause
// The process's side of control.h: commands from vma_stats, served by the internal thread.
//
// The process listens only to its own user and root (SO_PEERCRED, by the effective user when the peer
// connected). The name of the socket is in the statistics file, which only these users can read. It also
// holds a random number, so that no other process can take the name first. No function here waits: a silent
// peer keeps one of few places, and is the first to lose it.
#pragma once

#include <string>

#include "libvma/stats/control.h"

namespace vma::stats {

// What commands do; set before start_control(). Each function gets a validated request, on the internal
// thread.
struct CommandHandlers {
    void (*refresh)() noexcept = nullptr;
    void (*zero)() noexcept = nullptr;
    unsigned (*dump)(int fd, int level) noexcept = nullptr;  // sockets found
};

// Opens the socket and writes its name into the segment's header. After a failure there are no commands; the
// log says why, once.
void start_control(const CommandHandlers& handlers) noexcept;
// In a forked child: the socket and its connections are the parent's.
void forget_control_in_child() noexcept;

// Answers a message of `length` bytes from user `uid` for the process of user `euid`.
Answer answer_to(const void* message, std::size_t length, unsigned uid, unsigned euid,
                 const CommandHandlers& handlers) noexcept;

}  // namespace vma::stats
