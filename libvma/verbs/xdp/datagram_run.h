// SPDX-License-Identifier: BSD-2-Clause
// Datagrams of one flow that follow one another and can leave as one frame (UDP segmentation offload).
//
// The receiving kernel cuts such a frame at equal distances. So all payloads have one length, and only the
// last one may be shorter. All headers are the same but for lengths and sums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "libvma/net/frame.h"

namespace vma::verbs::xdp {

class DatagramRun {
  public:
    static constexpr std::size_t kFewest = 4;  // fewer cost less as frames of their own
    static constexpr std::size_t kMost = 64;   // UDP_MAX_SEGMENTS of Linux 4.18

    // Does the run go on with `frame`? The run keeps a reference to the first frame. False: the frame is no
    // UDP datagram that must not be fragmented, or it does not fit to the others.
    bool add(std::span<const std::uint8_t> frame) noexcept;
    void clear() noexcept { count_ = 0; }

    std::size_t count() const noexcept { return count_; }
    std::uint16_t segment() const noexcept { return segment_; }  // bytes of a datagram's payload
    // Writes the frame's headers: net::kUdpHeaders bytes. The UDP checksum is the pseudo header's sum.
    void headers(std::uint8_t* out) const noexcept;

  private:
    const std::uint8_t* first_ = nullptr;
    std::size_t count_ = 0;
    std::uint32_t payload_ = 0;  // bytes, of all
    std::uint16_t segment_ = 0;
    bool ended_ = false;  // by a shorter one
};

}  // namespace vma::verbs::xdp
