// SPDX-License-Identifier: BSD-2-Clause
// What /proc says about a process.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace vma_stats {

struct ProcessFacts {
    bool alive = false;
    std::uint64_t start_ticks = 0;  // field 22 of /proc/<pid>/stat; 0: could not be read
    uid_t owner = 0;                // of /proc/<pid>
    uid_t effective = 0;            // of the process; differs from `owner` when it is not dumpable
    bool zombie = false;
};

ProcessFacts facts_of(pid_t pid);

// Is this the program's name? By /proc/<pid>/exe, or what the kernel calls it where that cannot be read.
bool runs_program(pid_t pid, const std::string& name);

}  // namespace vma_stats
