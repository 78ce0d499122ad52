// SPDX-License-Identifier: BSD-2-Clause
// Which processors a thread runs on, and what else a result should say about where it ran.
#pragma once

#include <string>
#include <vector>

namespace vma_perf {

// "0,2-4" -> 0 2 3 4. Throws Failure with kUsage; `option` is named in the text.
std::vector<unsigned> parse_cpus(const std::string& text, const char* option);
// Lets the calling thread run on one processor only. Throws Failure with kUnsupported when there is none of that number.
void pin_to(unsigned cpu);
// Is libvma.so loaded into this process? "libvma" or "kernel".
const char* socket_stack();

}  // namespace vma_perf
