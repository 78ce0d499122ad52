// SPDX-License-Identifier: BSD-2-Clause
// Memory for registered buffers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "libvma/runtime/error.h"

namespace vma::ring {

// Maps at least `length` bytes, page aligned, not inherited by forked children; `length` becomes what
// munmap() needs. With `huge`, reserved huge pages are used when there are enough, else transparent ones
// where the kernel gives them; with `warn` the log says so.
Result<std::uint8_t*> map_buffer_memory(std::size_t& length, bool huge, bool warn = false);

}  // namespace vma::ring
