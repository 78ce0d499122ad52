// SPDX-License-Identifier: BSD-2-Clause
// The statistics of a socket as text: the report when it is closed (the manual's section 8.1.1.5), and the
// dump a command asks for.
#pragma once

#include <string>
#include <vector>

#include "libvma/runtime/log.h"
#include "libvma/stats/layout.h"

namespace vma::stats {

// A line each, without line ends.
std::vector<std::string> report_lines(const SocketBlock& block);
std::vector<std::string> dump_lines(const SocketBlock& block);

// Is there anywhere for a report to go?
bool reports_wanted() noexcept;
// Appends the report to VMA_STATS_FILE, where that is set, and writes it to the log at level debug. The file
// is never reached through a symlink, and made with mode 0600. errno is preserved.
void report(const SocketBlock& block) noexcept;

}  // namespace vma::stats
