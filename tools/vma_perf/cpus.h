// SPDX-License-Identifier: BSD-2-Clause
// Processors of threads, and the stack that carries the sockets of this process.
#pragma once

#include <string>
#include <vector>

namespace vma_perf {

inline constexpr unsigned kMaxCpus = 1024;  // what the system calls take without allocation

// "0,2-4" -> 0 2 3 4. Throws Failure with kUsage; `option` is named in the text.
std::vector<unsigned> parse_cpus(const std::string& text, const char* option);
// Lets the calling thread run on one processor only. Throws Failure with kUnsupported when there is none of
// that number.
void pin_to(unsigned cpu);
// Can threads of this program run on all of these? Throws as pin_to(); `option` is named in the text.
void check_cpus(const std::vector<unsigned>& cpus, const char* option);
// Is libvma.so loaded into this process? "libvma" or "kernel".
const char* socket_stack();

}  // namespace vma_perf
