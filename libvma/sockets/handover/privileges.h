// SPDX-License-Identifier: BSD-2-Clause
// A program that gives up its privileges, as daemons do that start as root, gives up CAP_NET_ADMIN, without
// which no connection can be moved to the kernel (tcp/handover.h): exit, fork and exec would lose them. So
// they are moved before, and from then on TCP is the kernel's. UDP goes on.
#pragma once

namespace vma::sockets::privileges {

// The calling process is about to lose CAP_NET_ADMIN. errno preserved.
void before_drop() noexcept;
// Its credentials may have changed.
void changed() noexcept;
// May connections be served here? False once the capability has been given up. A process that never had it is
// served, and a line of the log tells what that means.
bool tcp_may_be_ours() noexcept;

}  // namespace vma::sockets::privileges
