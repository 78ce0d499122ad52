// SPDX-License-Identifier: BSD-2-Clause
// Numbers of files below /proc/sys/net, in the calling thread's network namespace.
#pragma once

namespace vma::os {

// Up to three numbers of the file `name`, for example "ipv4/tcp_rmem". Returns how many there were; 0 if it
// cannot be read, then errno is changed.
int read_sysctl(const char* name, long (&values)[3]) noexcept;

// The first number, or `otherwise`.
long sysctl(const char* name, long otherwise) noexcept;

}  // namespace vma::os
