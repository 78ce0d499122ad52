// SPDX-License-Identifier: BSD-2-Clause
// The half-open connections of a listener: found by their endpoints, and in order of when something is to be
// done about them.
//
// Each is some 140 bytes of a block that comes back to the table, for anybody can have one made. It has no
// timer of its own: those that waited equally often wait equally long, so a queue for each number of timeouts
// is in order by itself, and the listener's one timer looks at the heads. The hash is keyed, because the
// peers choose what is hashed.
//
// Not locked: the listener's lock guards it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "libvma/net/frame.h"
#include "libvma/tcp/handshake/syn.h"
#include "libvma/tcp/timers/time.h"

namespace vma::ring {
class Ring;
}

namespace vma::tcp {

class Connection;

// The way an answer takes.
struct ReturnPath {
    ring::Ring* ring = nullptr;
    net::MacAddress src_mac{}, dst_mac{};
    std::uint16_t mss = 0;  // what we announce there
    bool ecn = false;       // the route's feature
};

struct HalfOpen {
    Handshake handshake;
    ReturnPath way;
    std::uint8_t timeouts = 0;
    bool acked =
        false;  // the last ACK has come, and waits for data (TCP_DEFER_ACCEPT) or room in the accept queue
    bool opening = false;              // its connection is being made; it does not wait any more
    Connection* connection = nullptr;  // then: a reference, once there is one
    ring::Ring* strays_by = nullptr;   // it is on this ring's list of connections (Ring::want_strays)
    Time answered_at;                  // when a segment was last answered that it does not accept

  private:
    friend class HalfOpenTable;
    std::uint32_t hash_ = 0;
    std::uint8_t queue_ = 0;
    bool queued_ = false;
    HalfOpen* chain_ = nullptr;  // of a bucket, or of the free ones
    HalfOpen* next_ = nullptr;   // in its queue
    HalfOpen* prev_ = nullptr;
    Time due_;
};

class HalfOpenTable {
  public:
    HalfOpenTable() = default;
    ~HalfOpenTable();
    HalfOpenTable(const HalfOpenTable&) = delete;
    HalfOpenTable& operator=(const HalfOpenTable&) = delete;

    HalfOpen* find(const net::Endpoints& ends) const noexcept;
    // A new one, which does not wait yet. Null without memory.
    HalfOpen* add(const net::Endpoints& ends) noexcept;
    void remove(HalfOpen& entry) noexcept;
    // Its segments that reach the kernel are wanted by `ring`, as long as it is here.
    static void want_strays(HalfOpen& entry, ring::Ring& ring) noexcept;
    // From now on it waits for as long as it does after so many timeouts: a second, two, four, ... two
    // minutes (RFC 6298).
    void wait(HalfOpen& entry, Time now) noexcept;
    // It does not wait any more, and is `opening`.
    void open(HalfOpen& entry) noexcept;
    // Puts it back into the state of waiting.
    void close(HalfOpen& entry, Time now) noexcept;
    // One whose time has come, or null.
    HalfOpen* due(Time now) const noexcept;
    // When that will be; kNoTime: never.
    Time next_due() const noexcept;

    std::size_t waiting() const noexcept { return size_ - opening_; }
    std::size_t opening() const noexcept { return opening_; }
    std::size_t young() const noexcept { return queues_[0].count; }  // those that no timeout has hit
    // Calls `last(entry)` for each, and is empty then.
    template <class F>
    void clear(F&& last) noexcept {
        for (std::size_t i = 0; i < buckets_count_; i++)
            while (HalfOpen* e = buckets_[i]) last(*e), remove(*e);
    }

  private:
    struct Queue {
        HalfOpen* first = nullptr;
        HalfOpen* last = nullptr;
        std::size_t count = 0;
    };
    struct Block;
    static std::uint32_t hash_of(const net::Endpoints& ends) noexcept;
    HalfOpen* take() noexcept;
    bool grow() noexcept;
    void leave_queue(HalfOpen& entry) noexcept;

    static constexpr unsigned kQueues = 8;  // from seven timeouts on it is two minutes
    std::array<Queue, kQueues> queues_;
    HalfOpen** buckets_ = nullptr;
    std::size_t buckets_count_ = 0;  // a power of two
    std::size_t size_ = 0, opening_ = 0;
    HalfOpen* free_ = nullptr;
    Block* blocks_ = nullptr;
};

}  // namespace vma::tcp
