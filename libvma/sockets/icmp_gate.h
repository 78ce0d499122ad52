// SPDX-License-Identifier: BSD-2-Clause
// Which ICMP errors are worth the locks that they cost: those that quote a flow of this process, and of these
// so many a second.
//
// Anybody can send such errors, about any addresses and ports. Rates are kept by a keyed hash of the flow, so
// a flood about one connection leaves the others their errors. One thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "libvma/ring/live_flows.h"
#include "libvma/runtime/clock.h"

namespace vma::sockets {

class IcmpGate {
  public:
    // Of one place. A path gives a connection some errors in a burst, as many as segments were under way;
    // they all say the same.
    static constexpr unsigned kPerSecond = 16;

    // Shall the connection of `flow` hear of an error that quotes it?
    bool admits(const verbs::FlowSpec& flow, clock::Time now) noexcept {
        if (!ring::live_flows::maybe(flow)) return false;
        Place& place = places_[ring::live_flows::hash_of(flow) >> 32 & (kPlaces - 1)];
        const std::uint64_t second = now.time_since_epoch() / std::chrono::seconds(1);
        if (place.second != second) place = {second, 0};
        return place.errors < kPerSecond && ++place.errors != 0;
    }

  private:
    static constexpr std::size_t kPlaces = 256;
    struct Place {
        std::uint64_t second = 0;
        unsigned errors = 0;
    };
    std::array<Place, kPlaces> places_{};
};

}  // namespace vma::sockets
