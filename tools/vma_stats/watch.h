// SPDX-License-Identifier: BSD-2-Clause
// Reports at intervals, until enough reports are out or no process is left. The exit statuses of vma_stats
// come from here.
#pragma once

#include "tools/vma_stats/fleet.h"

namespace vma_stats {

inline constexpr int kOk = 0, kFailed = 1;

// Runs the whole program as the options say; the exit status.
int watch(const Options& options);

// The full-screen view; in top_screen.cpp.
int top(const Options& options, Fleet& fleet);

// A line for people on stderr: "vmastat: ...".
void say(const std::string& line);

}  // namespace vma_stats
