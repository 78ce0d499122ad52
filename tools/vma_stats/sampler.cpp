// SPDX-License-Identifier: BSD-2-Clause
// See sampler.h.
#include "tools/vma_stats/sampler.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "tools/vma_stats/fields.h"

namespace vma_stats {
namespace {

using Membership = std::tuple<std::uint64_t, int, std::array<std::uint8_t, 16>>;

// The key that finds a block in both snapshots: sockets and sets of descriptors have an id, a ring its
// interface, a membership its socket, group and interface, others their place.
template <class Block>
auto identity(const Row<Block>& row) {
    if constexpr (std::is_same_v<Block, layout::SocketBlock> || std::is_same_v<Block, layout::MuxBlock>)
        return row.block.id;
    else if constexpr (std::is_same_v<Block, layout::RingBlock>)
        return static_cast<std::uint32_t>(row.block.ifindex);
    else if constexpr (std::is_same_v<Block, layout::GroupBlock>)
        return Membership(row.block.socket_id, row.block.ifindex, std::to_array(row.block.group.bytes));
    else
        return 0;
}

template <class Block>
void subtract(const std::vector<Row<Block>>& before, std::vector<Row<Block>>& now) {
    std::unordered_map<unsigned, const Row<Block>*> by_number;
    for (const auto& row : before) by_number.emplace(row.number, &row);
    for (auto& row : now) {
        const auto found = by_number.find(row.number);
        if (found == by_number.end() || identity(*found->second) != identity(row)) continue;
        for (const Field& field : fields_of<Block>()) {
            if (field.kind != Kind::counter) continue;
            const std::uint64_t was = get(found->second->block, field), is = get(row.block, field);
            if (is >= was) set(row.block, field, is - was);
        }
    }
}

}  // namespace

Snapshot difference(const Snapshot& before, const Snapshot& now) {
    Snapshot change = now;
    subtract(before.sockets, change.sockets);
    subtract(before.rings, change.rings);
    subtract(before.pools, change.pools);
    subtract(before.muxes, change.muxes);
    subtract(before.groups, change.groups);
    subtract(before.totals, change.totals);
    return change;
}

std::uint64_t per_second(std::uint64_t change, double seconds) {
    const double rate = static_cast<double>(change) / (seconds > 0 ? seconds : 1);
    return static_cast<std::uint64_t>(std::min(rate + 0.5, 1.8e19));
}

Frame Sampler::next(Snapshot now) {
    Frame frame;
    if (has_before_) {
        frame.change = difference(before_, now);
        frame.seconds = static_cast<double>(now.taken_ns - before_.taken_ns) / 1e9;
    }
    before_ = now;
    has_before_ = true;
    frame.now = std::move(now);
    return frame;
}

}  // namespace vma_stats
