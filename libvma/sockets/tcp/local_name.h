// SPDX-License-Identifier: BSD-2-Clause
// The local address and port of a TCP socket: whether bind() chose them, and what getsockname() tells after a
// connection.
//
// The shadow holds the port. The kernel gives the port of a failed or dissolved connection back, but does not
// forget its number; so does this class. The socket's state lock guards changes.
#pragma once

#include <atomic>
#include <optional>

#include "libvma/net/address.h"

namespace vma::sockets {

class LocalName {
  public:
    // Does the shadow hold a name, by bind() or for a connection?
    bool bound() const noexcept { return bound_ || autobound_; }
    // Did bind() choose the port?
    bool chosen() const noexcept { return bound_ && !autobound_; }
    // bind() has bound the shadow.
    void note_bind() noexcept;
    // The same behind a connection that is over: from here on the shadow's name is the socket's.
    void note_rebind() noexcept;
    bool rebound() const noexcept { return rebound_.load(std::memory_order_acquire); }

    // Reserves an ephemeral port of `local`'s address in the kernel, and puts it there. 0 or -errno.
    int reserve(int fd, net::Endpoint& local) noexcept;
    // Gives a reserved port back.
    void release(int fd) noexcept;
    // A connection of port `port` has gone: release(), and what getsockname() tells from here on.
    // `inherited`: the address of the listener that accepted the connection, which stays; 0.0.0.0:
    // none.
    void leave_connection(int fd, in_port_t port, const net::Address& inherited) noexcept;
    // The name of the last connection, if that is the answer of getsockname() on `fd`.
    std::optional<net::Endpoint> past(int fd) const noexcept;

    void set_no_port(bool on) noexcept { no_port_ = on; }  // IP_BIND_ADDRESS_NO_PORT

    // The name that the socket listens on; of an accepted socket its listener's address.
    void set_listening(const net::Endpoint& name) noexcept { listening_ = name; }
    const net::Endpoint& listening() const noexcept { return listening_; }

  private:
    bool bound_ = false, autobound_ = false, no_port_ = false;
    std::atomic<bool> rebound_{false};
    std::atomic<in_port_t> last_port_{0};
    std::atomic<in_addr_t> last_addr_{0};  // of IPv4: an atomic of a whole Address would need a lock
    net::Endpoint listening_;
};

}  // namespace vma::sockets
