// SPDX-License-Identifier: BSD-2-Clause
// What the maker of a ring decides.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "libvma/ring/moderation.h"
#include "libvma/ring/rule_owners.h"

namespace vma::ring {

class Ring;
class StraySegments;

struct RingConfig {
    unsigned lane = 0;                   // its number among the rings of the interface (lanes.h)
    std::shared_ptr<RuleOwners> owners;  // which of them has which rule; null: there is one ring only
    StraySegments* strays = nullptr;     // of the process; null: there are none
    std::uint32_t batch = 16;            // completions in one poll
    std::uint32_t post_batch = 64;       // receives posted at a time
    std::uint32_t max_rx_buffers = 200000;
    std::uint32_t max_tx_buffers = 200000;
    std::uint64_t max_copied = 64u << 20;  // bytes of datagrams that sockets may hold beside the buffers
    // Send requests that share a completion, at most; twice as many send buffers stay warm.
    std::uint32_t signal_every = 32;
    // From when_idle() on, where it is soon; later is a hundred times as long. 0 makes what happens
    // independent of how fast it happens.
    clock::Usec idle{20};
    bool huge_pages = true;
    bool warn_ordinary = false;  // log it when the host has not enough huge pages
    // Is it an address of this host? Asked before a frame is given to the kernel, which would forward it
    // otherwise.
    std::function<bool(in_addr_t)> is_local;
    // The device works no more. Once, from the internal thread, no lock held.
    std::function<void(Ring&)> on_failure;
    ModerationConfig moderation = {};
};

}  // namespace vma::ring
