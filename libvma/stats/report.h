// SPDX-License-Identifier: BSD-2-Clause
// The statistics of a socket as text: the report when the program closes the socket (the manual's section
// 8.1.1.5), and the dump for a command.
#pragma once

#include <string>
#include <vector>

#include "libvma/runtime/log.h"
#include "libvma/stats/layout.h"

namespace vma::stats {

// One element for each line, without line ends.
std::vector<std::string> report_lines(const SocketBlock& block);
std::vector<std::string> dump_lines(const SocketBlock& block);

// Does a report have a destination?
bool reports_wanted() noexcept;
// Appends the report to VMA_STATS_FILE, where that is set, and writes it to the log at level debug. The file
// has mode 0600 and is never reached through a symlink. errno is preserved.
void report(const SocketBlock& block) noexcept;

}  // namespace vma::stats
