// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/udp/send_path.h"

#include <iterator>
#include <mutex>

#include "libvma/runtime/clock.h"
#include "libvma/runtime/errno_kept.h"

namespace vma::sockets {
namespace {

constexpr std::chrono::microseconds kRefresh{5'000'000};

// In the order of SendPath::KernelSends.
constexpr const char* kKernelSendsTexts[] = {"UDP_CORK is set",
                                             "UDP_SEGMENT is set",
                                             "SO_MAX_PACING_RATE is set",
                                             "SO_TXTIME is set",
                                             "IP_OPTIONS is set",
                                             "IP_FREEBIND or IP_TRANSPARENT is set",
                                             "SO_NO_CHECK is set",
                                             "it is shut down",
                                             "SO_DONTROUTE is set",
                                             "transmit time stamps are wanted",
                                             "MSG_MORE",
                                             "IP_UNICAST_IF is set"};

}  // namespace

std::string_view SendPath::text_of(unsigned bits) noexcept {
    const auto first = static_cast<std::size_t>(__builtin_ctz(bits));
    return first < std::size(kKernelSendsTexts) ? kKernelSendsTexts[first] : "";
}

void SendPath::set_attributes(const SendAttributes& attributes) noexcept {
    const std::lock_guard guard(lock_);
    attributes_ = attributes;
    version_.fetch_add(1, std::memory_order_release);
}

void SendPath::move_to(unsigned lane) noexcept {
    const std::lock_guard guard(lock_);
    ring::Ring* last = nullptr;
    for (const auto& [key, destination] : destinations_)
        if (destination->ring != nullptr && destination->ring != last) {
            last = destination->ring;
            last->send_all();
        }
    for (const auto& [key, destination] : by_info_)
        if (destination->ring != nullptr) destination->ring->send_all();
    attributes_.path.lane = lane;
    version_.fetch_add(1, std::memory_order_release);
}

void SendPath::refresh(clock::Ticks now) noexcept {
    if (now - refreshed_at_.load() <= clock::to_ticks(kRefresh)) return;
    refreshed_at_ = now;
    version_.fetch_add(1, std::memory_order_release);
}

// The entry of `key`, made if need be. Null: no memory. A full map is emptied first.
template <class Map>
Destination* SendPath::known(Map& map, const typename Map::key_type& key, in_addr_t addr,
                             in_port_t port) noexcept {
    auto it = map.find(key);
    if (it == map.end()) {
        try {
            if (map.size() >= kMaxDestinations) {
                last_ = last_by_info_ = nullptr;
                map.clear();
            }
            auto fresh = std::make_unique<Destination>();
            fresh->addr = addr;
            fresh->port = port;
            it = map.emplace(key, std::move(fresh)).first;
        } catch (...) {
            return nullptr;
        }
    }
    return it->second.get();
}

Destination* SendPath::find(Stack& stack, in_addr_t addr, in_port_t port, std::uint32_t version) noexcept {
    Destination* d = last_;
    if (d == nullptr || d->addr != addr || d->port != port) {
        d = known(destinations_, std::uint64_t{addr} << 16 | port, addr, port);
        if (d == nullptr) return nullptr;
        last_ = d;
    }
    return current(stack, *d, version);
}

Destination* SendPath::destination_by(Stack& stack, in_addr_t addr, in_port_t port,
                                      const PacketInfo& info) noexcept {
    const std::uint32_t version = version_.load(std::memory_order_acquire);
    Destination* d = last_by_info_;
    if (d == nullptr || d->addr != addr || d->port != port || d->info != info) {
        d = known(by_info_, {addr, port, info.ifindex, info.src}, addr, port);
        if (d == nullptr) return nullptr;
        d->info = info;
        last_by_info_ = d;
    }
    return current(stack, *d, version);
}

Destination* SendPath::current(Stack& stack, Destination& d, std::uint32_t version) noexcept {
    if (d.generation != stack.present_view().generation() || d.options != version) {
        if (d.options != version || !follow_neighbour(stack, d)) resolve_again(stack, d);
        d.options = version;
    }
    return &d;
}

void SendPath::resolve_again(Stack& stack, Destination& d) noexcept {
    const ErrnoKept kept;
    if (!d.info.given) return resolve(stack, attributes_, d);
    SendAttributes from = attributes_;
    from.src_addr = d.info.src;
    if (d.info.ifindex != 0) from.path.oif = d.info.ifindex;
    resolve(stack, from, d);
}

}  // namespace vma::sockets
