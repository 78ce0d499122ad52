// SPDX-License-Identifier: BSD-2-Clause
// The transport raw: valid UDP datagrams over the library's device layer, without sockets, routes or neighbours. Both sides must be
// on one link: they tell each other their hardware addresses over the control connection.
#pragma once

#include <memory>

#include "tools/vma_perf/transport.h"

namespace vma_perf::raw {

inline constexpr std::size_t kMaxMessage = 8972;  // what fits into the largest usual MTU; a device's own says the rest

void add_options(CLI::App& app, Params& params);
void check(const Params& params);
std::unique_ptr<ServerSession> serve(const Params& params, const Place& place);
std::unique_ptr<ClientSession> connect(const Params& params, const Place& place);

}  // namespace vma_perf::raw
