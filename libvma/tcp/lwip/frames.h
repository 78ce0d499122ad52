// SPDX-License-Identifier: BSD-2-Clause
// Received frames as lwIP wants them: chains of pieces, those of one stretch of data merged.
#pragma once

#include <cstdint>

#include "libvma/net/frame.h"
#include "libvma/ring/ring.h"
#include "libvma/tcp/lwip/types.h"
#include "libvma/tcp/options.h"

namespace vma::tcp {

inline const net::TcpHeader& header_of(const ring::RxBuffer& b) noexcept {
    return *reinterpret_cast<const net::TcpHeader*>(b.frame + b.l4_offset);
}

// Are a segment's options a time stamp in the layout of RFC 7323 appendix A, which everybody has?
inline bool usual_stamp(const std::uint8_t* options, std::uint32_t bytes) noexcept {
    return bytes == kTimestampBytes && options[0] == 1 && options[1] == 1 && options[2] == 8 &&
           options[3] == 10;
}

// The TCP part of a received frame as a chain of pieces, one for each buffer; takes the buffer. Null without
// memory (then it is released).
lwip::Piece* tcp_part(ring::RxBuffer* buffer) noexcept;
// The same of `first` and of those at the front of `list` that continue it, as one segment; these leave the
// list. Adds to `merged` how many frames share a segment.
lwip::Piece* merged_part(ring::RxBuffer* first, ring::RxBuffer*& list, std::uint64_t& merged) noexcept;

// Turns options of a SYN that `options` does not want into padding, and cuts off what is malformed: lwIP
// reads them next. False: something was malformed.
bool hide_options(lwip::ReceivedHeader& header, unsigned option_bytes, const Options& options) noexcept;

}  // namespace vma::tcp
