// SPDX-License-Identifier: BSD-2-Clause
// Numbers of files below /proc/sys/net, in the calling thread's network namespace.
#pragma once

namespace vma::os {

// Reads up to three numbers of the file `name`, for example "ipv4/tcp_rmem". Returns how many numbers the
// file has. Returns 0 if the file cannot be read; errno is then changed.
int read_sysctl(const char* name, long (&values)[3]) noexcept;

// The first number of the file, or `otherwise` if the file cannot be read.
long sysctl(const char* name, long otherwise) noexcept;

}  // namespace vma::os
