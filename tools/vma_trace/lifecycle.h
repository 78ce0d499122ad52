// SPDX-License-Identifier: BSD-2-Clause
// The tracer's start, and its report at the end of the process.
#pragma once

namespace vma_trace {

// Reads the options and prepares for the end: exit(), quick_exit(), and signals that would end the process
// and that the program leaves alone. Any thread, any number of times; the first call counts.
void start() noexcept;

// Writes the reports, once, in the process that start() was called in (not in its forked children). Safe in a
// signal handler.
void finish() noexcept;

}  // namespace vma_trace
