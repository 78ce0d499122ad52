// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/shadow_identity.h"

#include "libvma/sockets/shadow.h"

namespace vma::sockets {

void ShadowIdentity::learn(int fd) noexcept {
    if (cookie_.load(std::memory_order_relaxed) != 0) return;
    trust_from(clock::Ticks::now());
    cookie_.store(shadow::cookie_of(fd), std::memory_order_relaxed);
}

bool ShadowIdentity::is(int fd) const noexcept {
    const std::uint64_t known = cookie_.load(std::memory_order_relaxed);
    return known != 0 && shadow::cookie_of(fd) == known;
}

}  // namespace vma::sockets
