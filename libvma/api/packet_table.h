// SPDX-License-Identifier: BSD-2-Clause
// The packets that the program keeps, by their packet_id, and send buffers that it fills.
//
// A packet_id is no pointer: it names a place and the packet's generation there. So an id that was freed, or
// that never was one, is found out, whatever the program passes. A datagram in a ring's own buffer has its
// place there (Held), which takes no lock and no memory. All others have one in this table, which has a lock
// for each of some shards; a thread puts packets into its own one.
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
    using Found = sockets::Held::Found;
    using PacketRegions = ring::PacketRegions;

    // The process's own.
    static PacketTable& instance() noexcept;

    // Takes over the packet. Null: no memory, and it stays the caller's.
    void* insert(sockets::Held& packet) noexcept {
        const std::uint64_t place = packet.place();
        if (__builtin_expect(place == PacketRegions::kNowhere, 0)) return insert_slot(packet);
        return id_of(kInBuffer, packet.hand_over() >> 1, place);
    }
    // Takes the packet out, if may(owner) says so. `owner`: its socket, only to compare.
    template <class May>
    Found take(const void* id, sockets::Held& out, May&& may) noexcept {
        const std::uint64_t value = own(id);
        if ((value & kInBuffer) != 0) {
            ring::RxBuffer* buffer = ring::RxBuffer::at(buffer_place(value));
            return buffer == nullptr ? Found::unknown : take_from(*buffer, value, out, may);
        }
        const Place place = place_of(value);
        if (place.shard >= kShards) return Found::unknown;
        Shard& shard = shards_[place.shard];
        const std::lock_guard guard(shard.lock);
        Slot* slot = shard.at(place.index);
        if (slot == nullptr || (slot->generation & kGenerations) != place.generation || !slot->packet)
            return Found::unknown;
        if (!may(slot->packet.owner())) return Found::refused;
        out = std::move(slot->packet);
        shard.free_slot(place.index);
        return Found::taken;
    }

    // ---- send buffers that the program fills: each has its place ----
    // The program has it from now on. Null: it has no place, and it stays the caller's.
    void* lend(ring::SendBuffer& buffer) noexcept {
        const std::uint64_t place = buffer.place();
        if (place == PacketRegions::kNowhere) return nullptr;
        return id_of(kInBuffer, buffer.tenure.begin() >> 1, place);
    }
    // The buffer is the caller's from now on, and no other call finds it; null: there is none. `tenure`: for
    // Tenure::resume().
    ring::SendBuffer* claim(const void* id, std::uint32_t& tenure) noexcept {
        const std::uint64_t value = own(id);
        if ((value & kInBuffer) == 0) return nullptr;
        ring::SendBuffer* const buffer = ring::SendBuffer::at(buffer_place(value));
        if (buffer == nullptr) return nullptr;
        tenure = buffer->tenure.now();
        const bool mine = (tenure & 1) != 0 && same_generation(tenure, value) && buffer->tenure.end(tenure);
        return mine ? buffer : nullptr;
    }

    // In a forked child: ids of the parent mean nothing there.
    void renew() noexcept;

  private:
    // An id: a bit that no pointer of a program has, the process (7 bits), a bit for places in buffers, the
    // generation (27), and the place.
    static constexpr unsigned kPlaceBits = PacketRegions::kPlaceBits, kProcessShift = 56;
    static constexpr std::uint64_t kMark = std::uint64_t{1} << 63, kInBuffer = std::uint64_t{1} << 55;
    static constexpr std::uint32_t kProcesses = 0x7f, kGenerations = (1u << 27) - 1;

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
    // What an id of this process says; 0: it is none.
    std::uint64_t own(const void* id) const noexcept {
        const auto value = reinterpret_cast<std::uint64_t>(id);
        return value >> kProcessShift == (kMark >> kProcessShift | process_) ? value : 0;
    }
    static std::uint32_t generation_of(std::uint64_t value) noexcept {
        return static_cast<std::uint32_t>(value >> kPlaceBits) & kGenerations;
    }
    static bool same_generation(std::uint32_t tenure, std::uint64_t value) noexcept {
        return ((tenure >> 1) & kGenerations) == generation_of(value);
    }
    static std::uint64_t buffer_place(std::uint64_t value) noexcept {
        return value & ((std::uint64_t{1} << kPlaceBits) - 1);
    }
    Place place_of(std::uint64_t value) const noexcept;
    // `flags`: kInBuffer or 0.
    void* id_of(std::uint64_t flags, std::uint32_t generation, std::uint64_t place) const noexcept {
        return reinterpret_cast<void*>(kMark | std::uint64_t{process_} << kProcessShift | flags |
                                       std::uint64_t{generation & kGenerations} << kPlaceBits | place);
    }
    template <class May>
    static Found take_from(ring::RxBuffer& buffer, std::uint64_t value, sockets::Held& out,
                           May&& may) noexcept {
        // The generation is what an odd number of a tenure has above its last bit.
        const std::uint32_t now = buffer.tenure.now();
        if (!same_generation(now, value)) return Found::unknown;
        return out.take_back(buffer, now, may);
    }
    void* insert_slot(sockets::Held& packet) noexcept;

    std::array<Shard, kShards> shards_;
    std::uint32_t process_ = 0;  // tells ids of a child from its parent's
};

}  // namespace vma::api
