// SPDX-License-Identifier: BSD-2-Clause
// Gives a frame that a device delivered to this process to the kernel, as if the device had left it there.
//
// Rules of hardware are coarser than sockets: fragments, IP options, other peers of a port, segments of
// connections that have moved to the kernel arrive here, and are nobody's here. A raw socket (IP_HDRINCL)
// sends the packet, with the peer's source address, to its own destination. That is an address of this host,
// so the kernel routes it over the loopback interface and delivers it to the socket it is for; on the way out
// the packet got its route, so the source address is not checked on the way in, whatever rp_filter says. What
// the program and the operator can tell from a frame that came by the interface:
//   IP_PKTINFO, SO_BINDTODEVICE   no difference: the kernel takes the interface that has the address for the
//   packet's netfilter   the packet passes OUTPUT and then INPUT with lo as its interface, and connection
//   tracking sees it so counters    of the loopback interface instead of the device's; no hardware time stamp
//   IP's header a checksum and an identification of 0 are filled in anew
// Not given: multicast, broadcast, what is not to an address of this host (it would be forwarded), what
// claims to come from one, what this host sent itself, and packets with a bad IP checksum, which the kernel
// would make good.
#pragma once

#include <netinet/in.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "libvma/net/frame.h"
#include "libvma/runtime/internal_fd.h"

namespace vma::net {

class KernelPath {
  public:
    // Opens the socket in the calling thread's network namespace (CAP_NET_RAW). On failure the log says so,
    // and give() says false. `is_local`: is it an address of this host? Any thread, no allocation. `device`:
    // its name, for the log.
    void open(std::string device, std::function<bool(in_addr_t)> is_local) noexcept;
    explicit operator bool() const noexcept { return static_cast<bool>(socket_); }
    // The frame `frame` with its Ethernet header, received by the station `own`. The first piece holds the IP
    // header. True: the kernel has it. Any thread; one system call, errno untouched.
    bool give(FramePieces frame, const MacAddress& own) noexcept;
    std::uint64_t failures() const noexcept { return failures_.load(std::memory_order_relaxed); }

  private:
    void report(long error) noexcept;

    InternalFd socket_;
    std::string device_;
    std::function<bool(in_addr_t)> is_local_;
    std::atomic<std::uint64_t> failures_{0};
    std::atomic<std::uint64_t> reported_at_{0};  // ns
};

}  // namespace vma::net
