// SPDX-License-Identifier: BSD-2-Clause
// Counts for a socket: in its own block of the statistics file. Sockets beyond VMA_STATS_FD_NUM count in the
// totals of their protocol, whose stripes threads share.
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
enum class TrafficPath : unsigned { rx_offload, rx_os, tx_offload, tx_os };
static_assert(offsetof(SocketBlock, tx_os) == offsetof(SocketBlock, rx_offload) + 3 * sizeof(Traffic));
static_assert(offsetof(TotalsBlock, tx_os) == offsetof(TotalsBlock, rx_offload) + 3 * sizeof(Traffic));

// When the data of a receive call arrived.
enum class Arrived : unsigned {
    there,
    polled,
    slept
};  // before the call; while the call polled; while the call slept

// A direction's path and the reason. Texts are copied.
struct Decision {
    Path path = Path::undecided;
    Reason reason = Reason::not_bound;
    std::string_view detail = {};
    std::string_view rule = {};
};

// The kernel's number of the calling thread.
std::int32_t thread_id() noexcept;

// The totals that are not in the file yet. For tests and refresh().
inline constexpr unsigned kStripes = 16;
struct alignas(64) Stripe {
    TotalsBlock totals[kTotalsCount];
};
Stripe& stripe(unsigned i) noexcept;
inline Stripe& my_stripe() noexcept { return stripe(thread_number() % kStripes); }
// Adds the stripes' counts to the totals in the file.
void collect_totals() noexcept;
// In a forked child: clears the stripes, which hold the parent's counts.
void forget_totals() noexcept;

class SocketCounters {
  public:
    // Takes a block if one is free, and describes the socket. `fd`: a number of the socket.
    void open(Protocol protocol, int fd, int type, bool blocking) noexcept;
    // Adds the block's counts to the totals and frees the block. Call it after the last use of the socket.
    void close() noexcept;
    // Null without a block.
    SocketBlock* block() const noexcept { return block_; }
    std::uint64_t id() const noexcept { return block_ == nullptr ? 0 : load(block_->id); }

    // Counts packets (datagrams, or a call that moved data of a stream).
    [[gnu::always_inline]] void moved(TrafficPath way, std::uint64_t bytes, bool held,
                                      unsigned packets = 1) noexcept {
        Traffic& t = traffic(way);
        if (held && block_ != nullptr) {
            add(t.packets, packets);
            add(t.bytes, bytes);
        } else {
            add_shared(t.packets, packets);
            add_shared(t.bytes, bytes);
        }
        if (block_ != nullptr)
            note_thread(way < TrafficPath::tx_offload ? block_->rx_thread : block_->tx_thread);
    }
    void eagain(TrafficPath way) noexcept { add_shared(traffic(way).eagain, 1); }
    void failed(TrafficPath way) noexcept { add_shared(traffic(way).errors, 1); }
    // Counts a call's result: bytes, or -errno.
    void result(TrafficPath way, std::int64_t result) noexcept {
        if (result >= 0)
            moved(way, static_cast<std::uint64_t>(result), false);
        else if (result == -EAGAIN)
            eagain(way);
        else
            failed(way);
    }
    [[gnu::always_inline]] void came(Arrived how) noexcept {
        if (block_ == nullptr || how == Arrived::there) return;
        add_shared(how == Arrived::polled ? block_->rx_poll_hit : block_->rx_poll_miss, 1);
    }
    // The extra API: the program keeps a packet more (or one less) of so many bytes.
    void kept(int packets, std::uint64_t bytes) noexcept {
        if (block_ == nullptr) return;
        add_shared(block_->extra_held_packets, static_cast<std::uint64_t>(packets));
        add_shared(block_->extra_held_bytes, packets > 0 ? bytes : 0 - bytes);
    }
    // It uses another ring of its interface than before.
    void moved_ring() noexcept {
        if (block_ != nullptr) add_shared(block_->ring_migrations, 1);
    }
    // Packets that socketxtreme_poll() gave to the program.
    void polled(std::uint64_t packets) noexcept {
        if (block_ != nullptr && packets != 0) add_shared(block_->extra_polled_packets, packets);
    }
    // A send that only warmed the caches.
    void dummy() noexcept {
        if (block_ != nullptr) add_shared(block_->tx_dummy, 1);
    }
    // Its callback has judged a packet.
    enum class Judged { dropped, received, held };
    void judged(Judged verdict) noexcept {
        if (block_ == nullptr) return;
        add_shared(verdict == Judged::dropped    ? block_->extra_callback_dropped
                   : verdict == Judged::received ? block_->extra_callback_received
                                                 : block_->extra_callback_held,
                   1);
    }
    // The caller holds the queue's lock.
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

    // Sets a direction's path from now on, and the reason. Cheap when nothing changes.
    void decided(Direction direction, const Decision& decision) noexcept;
    bool is(Direction direction, Path path, Reason reason) const noexcept {
        if (block_ == nullptr) return true;  // there is no block to write to
        const bool rx = direction == Direction::rx;
        return load(rx ? block_->rx_path : block_->tx_path) == static_cast<std::uint8_t>(path) &&
               load(rx ? block_->rx_reason : block_->tx_reason) == static_cast<std::uint16_t>(reason);
    }

  private:
    TotalsBlock& my_totals() const noexcept { return my_stripe().totals[static_cast<unsigned>(protocol_)]; }
    Traffic& traffic(TrafficPath way) const noexcept {
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

// Has the block counted anything?
bool active(const SocketBlock& block) noexcept;

// Notes a socket that the kernel serves, with the reason. Takes a block as long as many are free.
void note_kernel_socket(int fd, int family, int type, Reason reason, std::string_view detail,
                        std::string_view rule = {}) noexcept;
// Frees the blocks of kernel sockets that the program has closed. Called by refresh().
void forget_closed_kernel_sockets() noexcept;

}  // namespace vma::stats
