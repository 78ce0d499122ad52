// SPDX-License-Identifier: BSD-2-Clause
// connect() of a TCP socket: whether the library can serve the connection, how its outcome is waited for, and
// how the connection is dissolved.
#pragma once

#include <atomic>

#include "libvma/sockets/tcp/listening.h"

namespace vma::sockets {

class TcpConnecting : public TcpListening {
  public:
    int connect(int fd, const sockaddr* addr, socklen_t len) override;
    void kernel_connected(int result) noexcept override;

  protected:
    using TcpListening::TcpListening;
    ~TcpConnecting() override = default;

    // connect(AF_UNSPEC), and shutdown() of a connection that is not there yet. state_lock_ held.
    int disconnect(int fd) noexcept;

    bool accepted_ = false;  // the connection came from a listener, which holds the port

  private:
    struct Plan {
        net::Endpoints ends;
        bool autobind = false;  // the local port is to be found yet
        unsigned lane = 0;
        Why why;  // where the library is not to serve it
    };
    bool plan_connect(int fd, const net::Endpoint& to, Plan& plan) noexcept;
    int start_connect(int fd, const sockaddr* addr, socklen_t len, bool& ours, Why& why);
    int await_connect(int fd, int under_way);
    void let_go(int fd, bool reset) noexcept;  // of the connection; the phase becomes fresh. state_lock_ held

    std::atomic<bool> trying_kernel_{false};  // the kernel connects the shadow, and may refuse at once
};

}  // namespace vma::sockets
