// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/api/packet_table.h"

#include <new>

#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/never_destroyed.h"

namespace vma::api {
namespace {

constinit NeverDestroyed<PacketTable> g_table;

void renew_table() noexcept { g_table->renew(); }
VMA_RENEW_IN_CHILD(renew_table);

}  // namespace

PacketTable& PacketTable::instance() noexcept { return *g_table; }

bool PacketTable::Shard::grow() noexcept {
    if (blocks.size() * kBlock >= 1u << kIndexBits) return false;
    try {
        auto block = std::make_unique<Slot[]>(kBlock);
        const auto from = static_cast<std::uint32_t>(blocks.size() * kBlock);
        blocks.push_back(std::move(block));
        for (std::uint32_t i = 0; i < kBlock; i++) free_slot(from + i);
        return true;
    } catch (...) {
        return false;
    }
}

void PacketTable::Shard::free_slot(std::uint32_t index) noexcept {
    Slot& slot = known(index);
    slot.generation++;
    slot.next = kNone;
    (last != kNone ? known(last).next : first) = index;
    last = index;
}

void* PacketTable::insert_slot(sockets::Held& packet) noexcept {
    const unsigned number = thread_number() % kShards;
    Shard& shard = shards_[number];
    const std::lock_guard guard(shard.lock);
    if (shard.first == kNone && !shard.grow()) return nullptr;
    const std::uint32_t index = shard.first;
    Slot& slot = shard.known(index);
    shard.first = slot.next;
    if (shard.first == kNone) shard.last = kNone;
    slot.packet = std::move(packet);
    return id_of(0, slot.generation, std::uint64_t{index} << kShardBits | number);
}

PacketTable::Place PacketTable::place_of(std::uint64_t value) const noexcept {
    if (value == 0) return {kShards, 0, 0};
    const auto place = static_cast<std::uint32_t>(value & ((std::uint64_t{1} << kPlaceBits) - 1));
    return {place % kShards, place >> kShardBits, generation_of(value)};
}

// The packets are the parent's: their memory is not here. What the table took is left as it is.
void PacketTable::renew() noexcept {
    const std::uint32_t next = (process_ + 1) & kProcesses;
    new (this) PacketTable;
    process_ = next;
}

}  // namespace vma::api
