// SPDX-License-Identifier: BSD-2-Clause
// The extra API on a TCP socket: data that the program keeps, and its callback.
#pragma once

#include <errno.h>

#include "libvma/sockets/extra_socket.h"
#include "libvma/sockets/tcp/stream.h"

namespace vma::sockets {

class TcpExtra : public TcpStream, public ExtraSocket {
  public:
    bool serves_extra() const noexcept final {
        return phase() != Phase::kernel && phase() != Phase::listening;
    }
    ExtraSocket* extra() noexcept final { return this; }
    ssize_t receive_held(HeldReceive& receive) final;
    void given_back(std::uint64_t bytes) noexcept final;
    int send_pieces(int fd, const iovec* data, unsigned count, int flags, const sockaddr* to,
                    socklen_t length) final;

    Filter* make_filter() noexcept final;
    void filter_changed(bool on) noexcept final;
    bool any_undecided() noexcept final;
    bool next_undecided(Held& out, Ready& ready) noexcept final;
    void decide_all() noexcept final;
    void apply_verdict(Held* receive) noexcept final;

    int choose_ring(const OwnRing& own) noexcept final;
    ExtremeMember* extreme() noexcept final { return extreme_.get(); }
    ssize_t take_ready(Held& out, unsigned pieces, std::size_t bytes) noexcept final;
    ssize_t take_from_kernel(int, Held&) noexcept final { return -EAGAIN; }
    int accept_ready(sockaddr_in& from) noexcept final;
    int shut_rules() noexcept final { return -EOPNOTSUPP; }

    int send_ring(int fd, const sockaddr* to, socklen_t length, ring::Ring*& ring) final;
    int network_header(int fd, void* out, std::size_t room) final;

  protected:
    TcpExtra(Stack& stack, int type) noexcept : TcpStream(stack, type), ExtraSocket(true) {}
    ~TcpExtra() override = default;

  private:
    ssize_t receive_lent(HeldReceive& r);
};

}  // namespace vma::sockets
