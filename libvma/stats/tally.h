// SPDX-License-Identifier: BSD-2-Clause
// What a socket counts into: a block of the statistics file of its own, or, for sockets beyond
// VMA_STATS_FD_NUM, the totals of its protocol, which threads share in stripes.
//
// Costs: with a block, a plain addition where the caller holds a lock that all callers of that counter hold
// (`held`), else an atomic one. Without a block always an atomic one, on a stripe that few threads use.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "libvma/runtime/lock.h"
#include "libvma/stats/counter.h"
#include "libvma/stats/layout.h"

namespace vma::stats {

enum class Protocol : unsigned { udp = kTotalsUdp, tcp = kTotalsTcp };
enum class Direction : unsigned { rx, tx };

// The four Traffics of a block, in its order.
enum class Way : unsigned { rx_offload, rx_os, tx_offload, tx_os };
static_assert(offsetof(SocketBlock, tx_os) == offsetof(SocketBlock, rx_offload) + 3 * sizeof(Traffic));
static_assert(offsetof(TotalsBlock, tx_os) == offsetof(TotalsBlock, rx_offload) + 3 * sizeof(Traffic));

// How the data of a receive call came.
enum class Came : unsigned {
    there,
    polled,
    slept
};  // had arrived before; while the call polled; while it slept

// Why a direction goes the way it does. Texts are copied.
struct Decision {
    Path path = Path::undecided;
    Reason reason = Reason::not_bound;
    std::string_view detail = {};
    std::string_view rule = {};
};

// The kernel's number of the calling thread.
std::int32_t thread_id() noexcept;

// The totals that are not in the file yet, for tests and refresh().
inline constexpr unsigned kStripes = 16;
struct alignas(64) Stripe {
    TotalsBlock totals[kTotalsCount];
};
Stripe& stripe(unsigned i) noexcept;
inline Stripe& my_stripe() noexcept { return stripe(thread_number() % kStripes); }
// Adds what the stripes hold to the totals in the file.
void collect_totals() noexcept;
// In a forked child: they are the parent's.
void forget_totals() noexcept;

class Tally {
  public:
    // Takes a block if there is one, and describes the socket. `fd`: a number of it.
    void open(Protocol protocol, int fd, int type, bool blocking) noexcept;
    // What was counted goes to the totals, the block becomes free. After the last use of the socket.
    void close() noexcept;
    // Null: none.
    SocketBlock* block() const noexcept { return block_; }
    std::uint64_t id() const noexcept { return block_ == nullptr ? 0 : load(block_->id); }

    // One packet (a datagram, or a call that moved data of a stream).
    void moved(Way way, std::uint64_t bytes, bool held) noexcept {
        Traffic& t = traffic(way);
        if (held && block_ != nullptr) {
            add(t.packets, 1);
            add(t.bytes, bytes);
        } else {
            add_shared(t.packets, 1);
            add_shared(t.bytes, bytes);
        }
        if (block_ != nullptr) note_thread(way < Way::tx_offload ? block_->rx_thread : block_->tx_thread);
    }
    void eagain(Way way) noexcept { add_shared(traffic(way).eagain, 1); }
    void failed(Way way) noexcept { add_shared(traffic(way).errors, 1); }
    // The same from a call's result: bytes, or -errno.
    void result(Way way, std::int64_t result) noexcept {
        if (result >= 0)
            moved(way, static_cast<std::uint64_t>(result), false);
        else if (result == -EAGAIN)
            eagain(way);
        else
            failed(way);
    }
    void came(Came how) noexcept {
        if (block_ == nullptr || how == Came::there) return;
        add_shared(how == Came::polled ? block_->rx_poll_hit : block_->rx_poll_miss, 1);
    }
    // With the queue's lock held.
    void dropped(std::uint64_t bytes) noexcept {
        if (block_ != nullptr) {
            add(block_->rx_drop_packets, 1);
            add(block_->rx_drop_bytes, bytes);
        } else {
            TotalsBlock& t = my_totals();
            add_shared(t.rx_drop_packets, 1);
            add_shared(t.rx_drop_bytes, bytes);
        }
    }
    void queued(std::uint64_t packets, std::uint64_t bytes) noexcept {
        if (block_ == nullptr) return;
        raise(block_->rx_queue_max_packets, packets);
        raise(block_->rx_queue_max_bytes, bytes);
    }

    // Which way a direction goes from now on, and why. Cheap when nothing changes.
    void decided(Direction direction, const Decision& decision) noexcept;
    bool is(Direction direction, Path path, Reason reason) const noexcept {
        if (block_ == nullptr) return true;  // there is nowhere to write it
        const bool rx = direction == Direction::rx;
        return load(rx ? block_->rx_path : block_->tx_path) == static_cast<std::uint8_t>(path) &&
               load(rx ? block_->rx_reason : block_->tx_reason) == static_cast<std::uint16_t>(reason);
    }

  private:
    TotalsBlock& my_totals() const noexcept { return my_stripe().totals[static_cast<unsigned>(protocol_)]; }
    Traffic& traffic(Way way) const noexcept {
        return (block_ != nullptr ? &block_->rx_offload
                                  : &my_totals().rx_offload)[static_cast<unsigned>(way)];
    }
    static void note_thread(std::int32_t& last) noexcept {
        const std::int32_t me = thread_id();
        if (load(last) != me) store(last, me);
    }

    SocketBlock* block_ = nullptr;
    Protocol protocol_ = Protocol::udp;
};

// Does the block have anything to report?
bool active(const SocketBlock& block) noexcept;

// A socket the library has nothing to do with beyond telling why: takes a block as long as many are free.
void note_kernel_socket(int fd, int family, int type, Reason reason, std::string_view detail,
                        std::string_view rule = {}) noexcept;
// Gives back the blocks of those that the program has closed. From refresh().
void forget_closed_kernel_sockets() noexcept;

}  // namespace vma::stats
