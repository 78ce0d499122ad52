// SPDX-License-Identifier: BSD-2-Clause
// The extra API on a UDP socket: datagrams that the program keeps, and its callback.
#pragma once

#include <errno.h>

#include "libvma/sockets/extra_socket.h"
#include "libvma/sockets/udp/steering.h"

namespace vma::sockets {

class UdpExtra : public UdpSteering, public ExtraSocket {
  public:
    ExtraSocket* extra() noexcept final { return this; }
    bool serves_extra() const noexcept final { return !left_.load(std::memory_order_relaxed); }
    void given_back(std::uint64_t charge) noexcept final;

    bool next_undecided(Held& out, Ready& ready) noexcept final;
    void apply_verdict(Held* receive) noexcept final;
    bool any_undecided() noexcept final { return undecided_->queue.size() != 0; }
    void decide_all() noexcept final;
    Filter* make_filter() noexcept final;
    void filter_changed(bool on) noexcept final;

    int choose_ring(const OwnRing& own) noexcept final { return choose_lane(own); }
    ExtremeMember* extreme() noexcept final { return extreme_.get(); }
    ssize_t take_from_kernel(int fd, Held& out) noexcept final;
    int accept_ready(sockaddr_in&) noexcept final { return -EINVAL; }
    int shut_rules() noexcept final;

    int network_header(int fd, void* out, std::size_t room) final;
    int send_ring(int fd, const sockaddr* to, socklen_t length, ring::Ring*& ring) final;

  protected:
    UdpExtra(Stack& stack, int type) noexcept : UdpSteering(stack, type), ExtraSocket(false) {}
    ~UdpExtra() override = default;

    // Takes over the datagram for the program, which queue_ has charged for. False: no memory, and it stays
    // the caller's.
    bool hold(ring::RxBuffer* b, Held& out) noexcept;
};

}  // namespace vma::sockets
