// SPDX-License-Identifier: BSD-2-Clause
// Whether a connection moves to the kernel, and the frames that came meanwhile.
//
// Under the connection's lock.
#pragma once

#include <cstdint>

#include "libvma/ring/ring.h"

namespace vma::tcp {

struct Freeze {
    bool frozen = false;
    bool moved = false;               // into the kernel
    std::uint32_t frames = 0;         // how many came while frozen
    ring::RxBuffer* first = nullptr;  // those
    ring::RxBuffer* last = nullptr;
};

}  // namespace vma::tcp
