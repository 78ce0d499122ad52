// SPDX-License-Identifier: BSD-2-Clause
// What the wrappers of socket options know of the extra API, which libvma/api has.
#pragma once

#include <sys/socket.h>

#include "mellanox/vma_extra.h"
#include "mellanox/vma_extra2.h"

namespace vma::preload {

// The table that getsockopt(-1, SOL_SOCKET, SO_VMA_GET_API) answers.
vma_api_t* extra_api() noexcept;
vma_api2_t* extra_api2() noexcept;  // the same for SO_VMA_GET_API2
inline bool is_extra_option(int level, int name) noexcept {
    return __builtin_expect(level == SOL_SOCKET && name >= SO_VMA_USER_DATA && name <= SO_VMA_SHUTDOWN_RX, 0);
}
// setsockopt() of SO_VMA_* on `fd`, a socket of the library: 0 or -errno.
int extra_option(int fd, int name, const void* value, socklen_t length) noexcept;
// The same for getsockopt().
int extra_option_value(int fd, int name, void* value, socklen_t* length) noexcept;

}  // namespace vma::preload
