// SPDX-License-Identifier: BSD-2-Clause
// The transports rc and ud: plain libibverbs, connections by RDMA-CM (rc) or by what the control connection
// carries (ud).
//
// Each connection has a queue pair of its own on both sides. rc listens on a port that the system chooses,
// under the address of the control connection. ud takes the device that has this address, or the one that is
// named, and its offer carries QP numbers and GID.
#pragma once

#include <memory>

#include "tools/vma_perf/transport.h"

namespace vma_perf::rdma {

inline constexpr std::size_t kMaxRcMessage = 1 << 20;
inline constexpr std::size_t kMaxUdMessage =
    4096;  // the largest MTU; the device's own is checked when it is known

// For both transports, once.
void add_options(CLI::App& app, Params& params);
void check_rc(const Params& params);
void check_ud(const Params& params);
std::unique_ptr<ServerSession> serve_rc(const Params& params, const Place& place);
std::unique_ptr<ServerSession> serve_ud(const Params& params, const Place& place);
std::unique_ptr<ClientSession> connect_rc(const Params& params, const Place& place);
std::unique_ptr<ClientSession> connect_ud(const Params& params, const Place& place);

}  // namespace vma_perf::rdma
