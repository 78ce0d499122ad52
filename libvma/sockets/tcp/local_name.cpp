// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/tcp/local_name.h"

#include <errno.h>

#include "libvma/os/calls.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/sockets/shadow.h"

namespace vma::sockets {

void LocalName::note_bind() noexcept {
    bound_ = true;
    autobound_ = false;
    last_port_.store(0, std::memory_order_relaxed);
}

void LocalName::note_rebind() noexcept {
    bound_ = true;
    autobound_ = false;
    rebound_.store(true, std::memory_order_release);
}

int LocalName::reserve(int fd, net::Endpoint& local) noexcept {
    int off = 0, on = 1;
    if (no_port_) os::setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &off, sizeof off);
    const int r = shadow::bind_to(fd, {local.address, 0});
    const int error = errno;
    if (no_port_) os::setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    if (r != 0) return error == EADDRINUSE ? -EADDRNOTAVAIL : -error;
    local.port = shadow::name_of(fd).port;
    autobound_ = true;
    return local.port != 0 ? 0 : -EADDRNOTAVAIL;
}

// A socket in state CLOSE keeps its port, but one that stops listening does not; and an address that bind()
// gave stays, unless another is given without a port.
void LocalName::release(int fd) noexcept {
    if (!autobound_) return;
    if (os::listen(fd, 0) != 0) return;  // the port stays, and serves the next connect()
    shadow::dissolve(fd);
    autobound_ = false;
    if (bound_) return;  // the program chose the address, only the port was left to the library
    shadow::bind_address(fd, {}, no_port_);
}

void LocalName::leave_connection(int fd, in_port_t port, const net::Address& inherited) noexcept {
    const ErrnoKept kept;
    release(fd);
    if (!inherited.is_any() && !rebound_.load(std::memory_order_relaxed))
        bound_ = shadow::bind_address(fd, inherited, no_port_);
    last_addr_.store(bound_ ? shadow::name_of(fd).address.v4() : 0, std::memory_order_relaxed);
    last_port_.store(port, std::memory_order_relaxed);
    rebound_.store(false, std::memory_order_relaxed);
}

std::optional<net::Endpoint> LocalName::past(int fd) const noexcept {
    const net::Endpoint last(last_addr_.load(std::memory_order_relaxed),
                             last_port_.load(std::memory_order_relaxed));
    if (last.port == 0 || shadow::name_of(fd).port != 0) return {};
    return last;
}

}  // namespace vma::sockets
