// SPDX-License-Identifier: BSD-2-Clause
// Level finer: one line for each frame.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "libvma/net/frame.h"

namespace vma::ring {

// Logs that `device` `way` (a verb) a frame of `length` bytes, or why the frame was dropped. `head` has the
// frame's first bytes; the addresses are shown if they are there.
void log_frame(std::string_view device, const char* way, std::span<const std::uint8_t> head,
               std::size_t length, net::Drop drop) noexcept;

}  // namespace vma::ring
