// SPDX-License-Identifier: BSD-2-Clause
// The transports rc and ud: plain libibverbs, connections by RDMA-CM (rc) or by what the control connection
// carries (ud).
//
// Each connection has a queue pair of its own on both sides. rc listens on a port that the system chooses,
// under the address of the control connection. ud takes the device that has this address, or the one that is
// named, and its offer carries QP numbers and GID.
#pragma once

#include "tools/vma_perf/transport.h"

namespace vma_perf::rdma {

inline constexpr std::size_t kMaxRcMessage = 1 << 20;
inline constexpr std::size_t kMaxUdMessage =
    4096;  // the largest MTU; the device's own is checked when it is known

extern const TransportType kRc, kUd;

// Throw Failure with kUsage when the parameters do not go together.
void check_rc(const Params& params);
void check_ud(const Params& params);

}  // namespace vma_perf::rdma
