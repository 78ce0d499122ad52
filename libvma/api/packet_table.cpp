// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/api/packet_table.h"

#include <new>

#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/never_destroyed.h"

namespace vma::api {
namespace {

// An id: a bit that no pointer of a program has, the process (7 bits), the generation (32), shard and index.
constexpr std::uint64_t kMark = std::uint64_t{1} << 63;
constexpr unsigned kPlaceBits = 24, kProcessShift = kPlaceBits + 32;
constexpr std::uint32_t kProcesses = 0x7f;

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

void* PacketTable::insert(sockets::Held& packet) noexcept {
    const unsigned number = thread_number() % kShards;
    Shard& shard = shards_[number];
    const std::lock_guard guard(shard.lock);
    if (shard.first == kNone && !shard.grow()) return nullptr;
    const std::uint32_t index = shard.first;
    Slot& slot = shard.known(index);
    shard.first = slot.next;
    if (shard.first == kNone) shard.last = kNone;
    slot.packet = std::move(packet);
    return id_of({number, index, slot.generation});
}

void* PacketTable::id_of(const Place& place) const noexcept {
    const std::uint64_t id = kMark | std::uint64_t{process_} << kProcessShift |
                             std::uint64_t{place.generation} << kPlaceBits |
                             std::uint64_t{place.index} << kShardBits | place.shard;
    return reinterpret_cast<void*>(id);
}

PacketTable::Place PacketTable::place_of(const void* id) const noexcept {
    const auto value = reinterpret_cast<std::uint64_t>(id);
    if ((value & kMark) == 0 || ((value >> kProcessShift) & kProcesses) != process_) return {kShards, 0, 0};
    const auto place = static_cast<std::uint32_t>(value & ((1u << kPlaceBits) - 1));
    return {place % kShards, place >> kShardBits, static_cast<std::uint32_t>(value >> kPlaceBits)};
}

// The packets are the parent's: their memory is not here. What the table took is left as it is.
void PacketTable::renew() noexcept {
    const std::uint32_t next = (process_ + 1) & kProcesses;
    new (this) PacketTable;
    process_ = next;
}

}  // namespace vma::api
