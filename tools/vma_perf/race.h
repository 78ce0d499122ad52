// SPDX-License-Identifier: BSD-2-Clause
// vma_perf race: the kernel's sockets against libvma's on this machine, in two network namespaces joined by a
// veth pair. Each round measures both, and the first one alternates. The ratio within a round counts.
#pragma once

#include <atomic>

#include "tools/vma_perf/options.h"

namespace vma_perf {

// Prints; returns the exit status. Throws Failure: kUnsupported without root, kNotOffloaded when the kernel
// did libvma's work.
int run_race(const RaceOptions& options, const std::atomic<bool>& interrupted);

}  // namespace vma_perf
