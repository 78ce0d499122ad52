// SPDX-License-Identifier: BSD-2-Clause
// What a membership of a multicast group counts (numbers.def). Under the receive lock of the interface's
// ring, by counter.h; readers need no lock.
#pragma once

#include <cstdint>

namespace vma::stats {

struct GroupCounters {
#define VMA_GROUP_NUMBER(member, ...) std::uint64_t member = 0;
#include "libvma/stats/numbers.def"
};

}  // namespace vma::stats
