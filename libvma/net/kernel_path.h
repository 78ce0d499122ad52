// SPDX-License-Identifier: BSD-2-Clause
// Gives a frame that a device delivered to this process to the kernel, as if the device had delivered it
// there.
//
// Rules of hardware are coarser than sockets. So this process also gets fragments, IP options, other peers of
// a port, and segments of connections that the library handed over. No offloaded socket wants them. A raw
// socket (IP_HDRINCL) sends the packet, with the peer's source address, to its own destination. That is an
// address of this host, so the kernel routes the packet over the loopback interface and delivers it to its
// socket. The packet gets its route on the way out, so the kernel does not check the source address on the
// way in, whatever rp_filter says. The program and the operator can tell the packet from one that came by the
// interface:
//   IP_PKTINFO, SO_BINDTODEVICE   no difference: the kernel takes the interface that has the address
//   netfilter   the packet passes OUTPUT and then INPUT with lo as its interface; connection tracking sees
//   that counters    of the loopback interface instead of the device's; no hardware time stamp IP header the
//   kernel fills in a checksum and an identification of 0
// KernelPath keeps these packets from the kernel: multicast and broadcast; packets to a foreign address,
// which the kernel would forward; packets from an address of this host, or sent by this host itself; packets
// with a bad IP checksum, which the kernel would correct.
#pragma once

#include <netinet/in.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "libvma/net/frame.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/internal_fd.h"

namespace vma::net {

class KernelPath {
  public:
    // Opens the socket in the calling thread's network namespace (CAP_NET_RAW). After a failure, which the
    // log reports, give() returns false. `is_local`: is it an address of this host? Any thread may call it;
    // it must not allocate. `device`: the device's name, for the log.
    void open(std::string device, std::function<bool(in_addr_t)> is_local) noexcept;
    explicit operator bool() const noexcept { return static_cast<bool>(socket_); }
    // Gives the frame `frame` with its Ethernet header, received by the station `own`. The first piece holds
    // the IP header. True: the kernel has the frame. Any thread; one system call, errno untouched.
    bool give(FramePieces frame, const MacAddress& own) noexcept;
    std::uint64_t failures() const noexcept { return failures_.load(std::memory_order_relaxed); }

  private:
    void report(long error) noexcept;

    InternalFd socket_;
    std::string device_;
    std::function<bool(in_addr_t)> is_local_;
    std::atomic<std::uint64_t> failures_{0};
    std::atomic<clock::Time> reported_at_{};
};

}  // namespace vma::net
