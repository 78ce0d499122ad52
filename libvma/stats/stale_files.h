// SPDX-License-Identifier: BSD-2-Clause
// Statistics files of processes that were killed: they cannot remove their own, so the next process of the
// same user does.
#pragma once

#include <cstdint>
#include <string>

namespace vma::stats {

// The calling process's pid namespace as Header::pid_namespace has it: the inode number of /proc/self/ns/pid.
// 0 if unknown.
std::uint32_t pid_namespace() noexcept;

// Removes from `directory` the statistics files of this user whose process is gone: a file whose header names
// this pid namespace and a pid that nobody has, or that a later process has. Whatever else is there is left
// alone. Calls the kernel directly.
void remove_stale_files(const std::string& directory) noexcept;

}  // namespace vma::stats
