// SPDX-License-Identifier: BSD-2-Clause
// Datagrams to one peer as one list of send requests: the device sees them all in one call, and an adapter
// hears of them by one doorbell.
//
// Locks: the caller holds TxQueue's lock.
#pragma once

#include <infiniband/verbs.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "libvma/ring/tx_buffers.h"

namespace vma::ring {

class UdpChain {
  public:
    // As many as one kick of a lazy device takes.
    static constexpr unsigned kMost = 32;

    // How frames leave this queue.
    struct Way {
        std::uint32_t offload_from;  // bytes of payload from which on the device sums
        std::uint32_t max_inline;    // bytes of a frame
        std::uint32_t signal_every;  // requests, one of which asks for a completion
    };

    // Copies datagrams behind `headers` (net::kUdpHeaders bytes) into free buffers, up to the first one that
    // needs more than one. `count` is at most kMost, and there are as many free buffers and places.
    // `unsignalled`: requests since the last one that asked for a completion. Returns the requests made.
    unsigned build(TxBuffers& buffers, const Way& way, std::uint32_t unsignalled, const std::uint8_t* headers,
                   const iovec* datagrams, unsigned count) noexcept;
    ibv_send_wr* list() noexcept { return requests_.data(); }
    // Of list(), those before `refused`.
    unsigned before(const ibv_send_wr* refused) const noexcept {
        return static_cast<unsigned>(refused - requests_.data());
    }
    bool asks_for_completion(unsigned request) const noexcept {
        return (requests_[request].send_flags & IBV_SEND_SIGNALED) != 0;
    }
    // Bytes of the first `count` frames.
    std::uint64_t bytes(unsigned count) const noexcept {
        std::uint64_t sum = 0;
        for (unsigned i = 0; i < count; i++) sum += pieces_[i].length;
        return sum;
    }
    // The first ones were posted, the others were not.
    void posted(TxBuffers& buffers, unsigned first, unsigned made) const noexcept;

  private:
    std::array<ibv_send_wr, kMost> requests_;
    std::array<ibv_sge, kMost> pieces_;
};

}  // namespace vma::ring
