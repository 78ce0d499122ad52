// SPDX-License-Identifier: BSD-2-Clause
// The packets that the program keeps, by their packet_id.
//
// A packet_id is no pointer: it names a place in this table and the packet's generation there. So an id that
// was freed, or that never was one, is found out, whatever the program passes. The table has a lock for each
// of some shards, and a thread puts packets into its own one.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "libvma/runtime/lock.h"
#include "libvma/sockets/held.h"

namespace vma::api {

class PacketTable {
  public:
    enum class Found { taken, refused, unknown };

    // The process's own.
    static PacketTable& instance() noexcept;

    // Takes over the packet. Null: no memory, and it stays the caller's.
    void* insert(sockets::Held& packet) noexcept;
    // Takes the packet out, if may(owner) says so. `owner`: its socket, only to compare.
    template <class May>
    Found take(const void* id, sockets::Held& out, May&& may) noexcept {
        const Place place = place_of(id);
        if (place.shard >= kShards) return Found::unknown;
        Shard& shard = shards_[place.shard];
        const std::lock_guard guard(shard.lock);
        Slot* slot = shard.at(place.index);
        if (slot == nullptr || slot->generation != place.generation || !slot->packet) return Found::unknown;
        if (!may(slot->packet.owner())) return Found::refused;
        out = std::move(slot->packet);
        shard.free_slot(place.index);
        return Found::taken;
    }

    // In a forked child: ids of the parent mean nothing there.
    void renew() noexcept;

  private:
    static constexpr unsigned kShards = 8, kShardBits = 3, kIndexBits = 21, kBlock = 256;
    static constexpr std::uint32_t kNone = ~0u;

    struct Slot {
        std::uint32_t generation = 0;
        std::uint32_t next = kNone;  // free
        sockets::Held packet;
    };
    struct alignas(64) Shard {
        Lock lock;
        std::vector<std::unique_ptr<Slot[]>> blocks;
        std::uint32_t first = kNone, last = kNone;  // free slots, the one that is free the longest first

        Slot* at(std::uint32_t index) noexcept {
            return index / kBlock < blocks.size() ? &blocks[index / kBlock][index % kBlock] : nullptr;
        }
        // Of an index that is in use, or free.
        Slot& known(std::uint32_t index) noexcept { return blocks[index / kBlock][index % kBlock]; }
        bool grow() noexcept;
        void free_slot(std::uint32_t index) noexcept;
    };
    struct Place {
        unsigned shard;  // kShards: no id
        std::uint32_t index, generation;
    };
    Place place_of(const void* id) const noexcept;
    void* id_of(const Place& place) const noexcept;

    std::array<Shard, kShards> shards_;
    std::uint32_t process_ = 0;  // tells ids of a child from its parent's
};

}  // namespace vma::api
