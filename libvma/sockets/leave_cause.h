// SPDX-License-Identifier: BSD-2-Clause
// Why an offloaded socket becomes the kernel's.
#pragma once

#include "libvma/stats/layout.h"

namespace vma::sockets {

// The text lives at least as long as the call that the cause is given to.
struct LeaveCause {
    stats::Reason reason;
    const char* text;
};

// The causes of leave_causes.def: leave::fast_open and the others.
namespace leave {
#define VMA_LEAVE_CAUSE(name, reason, text) inline constexpr LeaveCause name{stats::Reason::reason, text};
#include "libvma/sockets/leave_causes.def"
}  // namespace leave

}  // namespace vma::sockets
