// SPDX-License-Identifier: BSD-2-Clause
// The channels to a process's forked children (shared_sockets.h). Functions without a word on threads are for
// the hooks of fork(), of which one runs at a time.
#pragma once

#include <cstddef>

namespace vma::sockets::sharing::children {

struct Channel {
    std::size_t place = 0;
    int ours = -1, theirs = -1;  // descriptors outside the registry of internal ones
    bool many = false;           // several children share it
};

// There are no children: when the process starts, and in a child.
void renew() noexcept;
// Before fork(): a channel to the child, which is born with the next generation. theirs: -1, it cannot be
// had.
Channel open() noexcept;
// In the parent after fork(): answers on the channel from now on.
void keep(Channel& channel) noexcept;

}  // namespace vma::sockets::sharing::children
