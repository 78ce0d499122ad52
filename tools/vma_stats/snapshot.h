// SPDX-License-Identifier: BSD-2-Clause
// What a statistics file said at one moment, copied out of it. The numbers may be anything the writer wrote;
// texts inside the blocks are raw and go to people and programs only through text.h.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "libvma/stats/layout.h"

namespace vma_stats {

namespace layout = vma::stats;

// A block that was in use, with its place in the section. Fields that the file's blocks lack are zero.
template <class Block>
struct Row {
    unsigned number = 0;
    bool torn = false;  // the description kept changing while it was read: its parts may not belong together
    Block block{};
};

struct Snapshot {
    layout::Header header{};
    std::int64_t taken_ns = 0;     // CLOCK_MONOTONIC
    std::int64_t realtime_ns = 0;  // CLOCK_REALTIME
    std::vector<Row<layout::SocketBlock>> sockets;
    std::vector<Row<layout::RingBlock>> rings;
    std::vector<Row<layout::PoolBlock>> pools;
    std::vector<Row<layout::MuxBlock>> muxes;
    std::vector<Row<layout::GroupBlock>> groups;
    std::vector<Row<layout::ParameterBlock>> parameters;
    std::vector<Row<layout::TotalsBlock>> totals;
};

}  // namespace vma_stats
