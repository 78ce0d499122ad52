// SPDX-License-Identifier: BSD-2-Clause
// The packets that the program got from socketxtreme_poll(), by their buffers.
//
// The program gets pointers that it may follow (vma_buff_t). They point into one region of memory, so a
// look-up tells its own buffers from all other pointers without reading these. A packet's data goes back when
// all of its buffers are free. A freed place is used again late, so a buffer that is freed twice is found out
// as a rule.
#pragma once

#include <atomic>
#include <cstdint>

#include "libvma/runtime/lock.h"
#include "libvma/sockets/held.h"
#include "mellanox/vma_extra.h"

namespace vma::api {

class BufferTable {
  public:
    static constexpr unsigned kMostPieces = 48;  // of a packet

    // The process's own.
    static BufferTable& instance() noexcept;

    // Room for one packet more, before its data is taken from a socket. False: there is none.
    bool reserve() noexcept;
    void unreserve() noexcept;
    // Takes over a packet, for which room is reserved; the room stays reserved for the next one, or `room`
    // becomes false. Describes the packet in `out`.
    void insert(sockets::Held& packet, vma_packet_desc_t& out, bool& room) noexcept;

    // References to a buffer after one more, or one fewer; -EINVAL: it is none that the program has.
    int ref(const vma_buff_t* buffer) noexcept;
    int unref(const vma_buff_t* buffer) noexcept;
    // One fewer for each buffer of the packet that begins here. 0 or -EINVAL.
    int free_packet(const vma_buff_t* first) noexcept;

    // In a forked child: the buffers are the parent's.
    void renew() noexcept;

  private:
    static constexpr std::uint32_t kMost = 1u << 18;  // buffers
    static constexpr std::uint32_t kLate = 1024;      // free places before one is used again
    static constexpr std::uint32_t kNone = ~0u;

    struct alignas(64) Place {
        vma_buff_t buffer;
        std::atomic<std::int32_t> refs;  // 0: free
        std::uint32_t first;             // of its packet
        std::uint32_t next;              // of its packet, or of the free ones
        // Of the first one:
        std::atomic<std::uint32_t> live;  // buffers with references
        sockets::Held packet;
    };

    Place* find(const vma_buff_t* buffer) noexcept;
    std::uint32_t take() noexcept;
    bool reserve_locked() noexcept;
    int drop(Place& place) noexcept;
    void release(Place& first) noexcept;

    Lock lock_;
    std::atomic<Place*> places_{nullptr};
    std::atomic<std::uint32_t> made_{0};  // places that have ever been used
    std::uint32_t first_free_ = kNone, last_free_ = kNone, free_ = 0;
    std::uint32_t reserved_ = 0;
};

}  // namespace vma::api
