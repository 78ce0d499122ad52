// SPDX-License-Identifier: BSD-2-Clause
// Values of socket options as programs give them.
#pragma once

#include <sys/socket.h>

namespace vma::sockets {

// Is an option of this value on? The kernel takes any byte that is not zero for it. A null pointer is off.
inline bool any_byte(const void* value, socklen_t length) noexcept {
    const auto* bytes = static_cast<const unsigned char*>(value);
    for (socklen_t i = 0; bytes != nullptr && i < length; i++)
        if (bytes[i] != 0) return true;
    return false;
}

}  // namespace vma::sockets
