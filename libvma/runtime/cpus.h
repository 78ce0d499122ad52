// SPDX-License-Identifier: BSD-2-Clause
// Sets of processors as users write them: a mask ("0x3") or a list ("0,2-4"), as taskset(1) takes them.
#pragma once

#include <sched.h>

#include <string_view>

namespace vma {

// False if `text` is neither a mask nor a list, or names no processor.
bool parse_cpus(std::string_view text, cpu_set_t& cpus) noexcept;

}  // namespace vma
