// SPDX-License-Identifier: BSD-2-Clause
// The transport raw: valid UDP datagrams over the library's device layer, without sockets, routes or
// neighbours. Both sides must be on one link: they tell each other their hardware addresses over the control
// connection.
#pragma once

#include "tools/vma_perf/transport.h"

namespace vma_perf::raw {

inline constexpr std::size_t kMaxMessage =
    8972;  // what fits into the largest usual MTU; a device's own says the rest

extern const TransportType kRaw;

}  // namespace vma_perf::raw
