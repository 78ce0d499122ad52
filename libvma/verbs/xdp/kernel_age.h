// SPDX-License-Identifier: BSD-2-Clause
// What the running kernel's AF_XDP can do, where only its version tells.
#pragma once

#include <string_view>

namespace vma::verbs::xdp {

// Several XSKs of one queue in generic mode: the kernel's receive path takes the fill ring's entries under a
// lock of the pool since Linux 6.15. Some earlier releases have the correction, too, but a distribution's
// number does not tell. `release`: as uname(2) says.
bool generic_rx_is_locked(std::string_view release) noexcept;
bool generic_rx_is_locked() noexcept;  // of this kernel

}  // namespace vma::verbs::xdp
