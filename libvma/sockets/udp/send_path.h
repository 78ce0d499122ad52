// SPDX-License-Identifier: BSD-2-Clause
// How a UDP socket's datagrams leave: options that decide it, and what is known of each peer.
//
// lock() guards attributes and destinations. attributes() may also be read under Stack::control(), which
// holds for every change.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "libvma/runtime/clock.h"
#include "libvma/runtime/lock.h"
#include "libvma/sockets/stack.h"
#include "libvma/sockets/udp/destination.h"

namespace vma::sockets {

class SendPath {
  public:
    // Reasons for the kernel to do all sending.
    enum KernelSends : unsigned {
        cork = 1,
        segment = 2,
        pacing = 4,
        txtime = 8,
        ip_options = 16,
        source = 32,
        no_check = 64,
        shut = 128,
        dontroute = 256,
        tx_timestamps = 512,
        more = 1024,
        unicast_if = 2048
    };
    // Bits of KernelSends; 0: the rings may send.
    unsigned kernel_sends() const noexcept { return kernel_sends_.load(std::memory_order_relaxed); }
    void set_kernel_sends(unsigned bit, bool on) noexcept {
        if (on)
            kernel_sends_.fetch_or(bit, std::memory_order_relaxed);
        else
            kernel_sends_.fetch_and(~bit, std::memory_order_relaxed);
    }
    // The first of `bits`, for people.
    static std::string_view text_of(unsigned bits) noexcept;

    Lock& lock() noexcept { return lock_; }
    const SendAttributes& attributes() const noexcept { return attributes_; }
    // Under Stack::control(). Takes lock().
    void set_attributes(const SendAttributes& attributes) noexcept;
    // The same: datagrams leave by the rings of `lane`, and those before them do so earlier.
    void move_to(unsigned lane) noexcept;
    // Destinations are looked up again now and then, for the kernel does not announce a path MTU that it
    // learned.
    void refresh(clock::Ticks now) noexcept;
    // With lock() held: what is known of the peer, looked up if need be. Null: no memory.
    [[gnu::always_inline]] Destination* destination(Stack& stack, in_addr_t addr, in_port_t port) noexcept {
        const std::uint32_t version = version_.load(std::memory_order_acquire);
        Destination* d = last_;
        if (__builtin_expect(d != nullptr && d->addr == addr && d->port == port && d->options == version &&
                                 d->generation == stack.present_view().generation(),
                             1))
            return d;
        return find(stack, addr, port, version);
    }

    // The same for a group and a call with `info`.
    Destination* destination_by(Stack& stack, in_addr_t addr, in_port_t port,
                                const PacketInfo& info) noexcept;
    // With lock() held, for a destination of the two functions above that follows the members of its group:
    // as it is now.
    void follow_members(Stack& stack, Destination& d) noexcept {
        stack.memberships().note_use();
        if (__builtin_expect(d.members != stack.memberships().version(), 0)) resolve_again(stack, d);
    }

    // With lock() held: the ring of the last destination, or null.
    ring::Ring* last_ring() const noexcept { return last_ != nullptr ? last_->ring : nullptr; }

    // Edge-triggered members of epoll sets that ask for room: while there are any, departures are counted.
    void watch_room(int members) noexcept { room_watched_.fetch_add(members, std::memory_order_relaxed); }
    bool room_watched() const noexcept { return room_watched_.load(std::memory_order_relaxed) != 0; }
    void note_departure() noexcept { departures_.fetch_add(1, std::memory_order_release); }
    std::uint32_t departures() const noexcept { return departures_.load(std::memory_order_acquire); }

  private:
    static constexpr std::size_t kMaxDestinations = 1024;

    Destination* find(Stack& stack, in_addr_t addr, in_port_t port, std::uint32_t version) noexcept;
    template <class Map>
    Destination* known(Map& map, const typename Map::key_type& key, in_addr_t addr, in_port_t port) noexcept;
    Destination* current(Stack& stack, Destination& d, std::uint32_t version) noexcept;
    void resolve_again(Stack& stack, Destination& d) noexcept;

    Lock lock_;
    std::atomic<unsigned> kernel_sends_{0};
    std::atomic<int> room_watched_{0};
    std::atomic<std::uint32_t> departures_{0};
    std::atomic<std::uint32_t> version_{1};  // of the attributes
    std::atomic<clock::Ticks> refreshed_at_{};
    Destination* last_ = nullptr;  // of destinations_
    SendAttributes attributes_;
    std::unordered_map<std::uint64_t, std::unique_ptr<Destination>> destinations_;
    Destination* last_by_info_ = nullptr;  // of by_info_
    using InfoKey = std::tuple<in_addr_t, in_port_t, int, in_addr_t>;
    std::map<InfoKey, std::unique_ptr<Destination>> by_info_;
};

}  // namespace vma::sockets
