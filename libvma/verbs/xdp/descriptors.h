// SPDX-License-Identifier: BSD-2-Clause
// Checks the kernel's descriptors of chunks of the umem. Drivers write the descriptors, and a wrong number
// must cost a frame at most. The library skips a descriptor that names no chunk of the umem, or a chunk that
// is not with the kernel. A length that does not fit the chunk is cut, so parse() finds the frame too short.
#pragma once

#include <infiniband/verbs.h>
#include <linux/if_xdp.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "libvma/verbs/device.h"

#ifndef XDP_PKT_CONTD
#define XDP_PKT_CONTD (1 << 0)
#endif

namespace vma::verbs::xdp {

inline constexpr std::uint32_t kHeadroom =
    256;  // XDP_PACKET_HEADROOM: the kernel keeps it in front of each received frame

// The chunks that the kernel has, and a number for each.
class ChunksAway {
  public:
    static constexpr std::uint64_t kNone = ~0ull;

    // `chunk` is a power of two. May throw std::bad_alloc.
    void resize(std::size_t length, std::uint32_t chunk) {
        shift_ = static_cast<unsigned>(std::countr_zero(chunk));
        numbers_.assign(length >> shift_, kNone);
    }
    void give(std::uint64_t offset, std::uint64_t number) noexcept { numbers_[offset >> shift_] = number; }
    // Takes the chunk back: returns its number, or kNone if the kernel did not have it.
    std::uint64_t take(std::uint64_t offset) noexcept {
        const std::uint64_t chunk = offset >> shift_;
        if (__builtin_expect(chunk >= numbers_.size(), 0)) return kNone;
        return std::exchange(numbers_[chunk], kNone);
    }

  private:
    unsigned shift_ = 0;
    std::vector<std::uint64_t> numbers_;
};

// Turns received descriptors into completions. The numbers are the requests' wr_id.
class Receives {
  public:
    void start(std::uint8_t* memory, std::size_t length, std::uint32_t chunk) {
        memory_ = memory;
        chunk_ = chunk;
        away_.resize(length, chunk);
    }
    void posted(std::uint64_t offset, std::uint64_t wr_id) noexcept { away_.give(offset, wr_id); }
    // False: the descriptor is of no posted receive, and there is no completion.
    bool take(const xdp_desc& from, std::uint32_t qp_num, ibv_wc& out) noexcept {
        const xdp_desc desc = from;  // once: the ring is shared
        const std::uint64_t wr_id = away_.take(desc.addr);
        if (__builtin_expect(wr_id == ChunksAway::kNone, 0)) return false;
        const auto start = static_cast<std::uint32_t>(desc.addr & (chunk_ - 1));
        std::uint32_t length = std::min(desc.len, chunk_ - kHeadroom);
        if (__builtin_expect(start != kHeadroom, 0)) {  // a driver with headroom of its own
            length = std::min(length, chunk_ - start);
            std::memmove(memory_ + (desc.addr - start) + kHeadroom, memory_ + desc.addr, length);
        }
        out.wr_id = wr_id;
        out.status = IBV_WC_SUCCESS;
        out.opcode = IBV_WC_RECV;
        out.byte_len = length;
        out.qp_num = qp_num;
        out.wc_flags = (desc.options & XDP_PKT_CONTD) ? kWcMore : 0;
        return true;
    }

  private:
    std::uint8_t* memory_ = nullptr;
    std::uint32_t chunk_ = 0;
    ChunksAway away_;
};

}  // namespace vma::verbs::xdp
