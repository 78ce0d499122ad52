// SPDX-License-Identifier: BSD-2-Clause
// Statistics files of killed processes. A killed process cannot remove its file, so the next process of the
// same user does.
#pragma once

#include <cstdint>
#include <string>

namespace vma::stats {

// The calling process's pid namespace as in Header::pid_namespace: the inode number of /proc/self/ns/pid. 0
// if unknown.
std::uint32_t pid_namespace() noexcept;

// Removes from `directory` the statistics files of this user whose process is gone. The header of a removed
// file names this pid namespace, and a pid without a process or with a later process. Other files stay. Calls
// the kernel directly.
void remove_stale_files(const std::string& directory) noexcept;

}  // namespace vma::stats
