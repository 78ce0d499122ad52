// SPDX-License-Identifier: BSD-2-Clause
// The process's side of control.h: commands from vma_stats, served by the internal thread.
//
// Only the process's own user and root are heard (SO_PEERCRED, by the effective user when the peer
// connected). The name of the socket is in the statistics file, which only they can read; it also holds a
// random number, so that nobody can take the name before us. Nothing here waits: a peer that connects and
// says nothing keeps one of few places, and is the first to lose it.
#pragma once

#include <string>

#include "libvma/stats/control.h"

namespace vma::stats {

// What commands do; set before start_control(). Each gets a request that is known to be sound, and answers
// with 0 or an errno value and a text. In the internal thread.
struct CommandHandlers {
    void (*refresh)() noexcept = nullptr;
    void (*zero)() noexcept = nullptr;
    unsigned (*dump)(int fd, int level) noexcept = nullptr;  // sockets found
};

// Opens the socket and writes its name into the segment's header. Without it there are no commands; the log
// says why, once.
void start_control(const CommandHandlers& handlers) noexcept;
// In a forked child: the socket and its connections are the parent's.
void forget_control_in_child() noexcept;

// The answer to a message of `length` bytes from user `uid`, for `euid`'s process. Also what tests call.
Answer answer_to(const void* message, std::size_t length, unsigned uid, unsigned euid,
                 const CommandHandlers& handlers) noexcept;

}  // namespace vma::stats
