// SPDX-License-Identifier: BSD-2-Clause
// TCP segments that leave a netdev as one frame of up to 64 KiB (generic segmentation offload).
//
// AF_XDP sends frames of the MTU only. A packet socket with PACKET_VNET_HDR takes a longer one: the kernel
// passes it on whole, as it does with its own TCP, or cuts it where a netdev cannot. The kernel copies the
// frame before send() returns, so no completion follows.
//
// Locks: none; the device's caller serialises send().
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>

#include "libvma/runtime/error.h"
#include "libvma/runtime/internal_fd.h"

namespace vma::verbs::xdp {

class SuperFrames {
  public:
    static constexpr std::uint32_t kMaxPayload = 65535 - 20 - 20;  // of an IPv4 packet with TCP
    static constexpr std::uint32_t kMaxPieces = 64;                // of payload

    // Opens the packet socket of a netdev that segments TCP (ethtool: tcp-segmentation-offload). Another
    // netdev's error is EOPNOTSUPP: there the kernel would cut each frame at our expense.
    Result<void> open(int ifindex, const std::string& name);
    bool available() const noexcept { return static_cast<bool>(socket_); }

    // Sends an IBV_WR_TSO request: headers, whose TCP sum is that of the pseudo-header, and up to kMaxPieces
    // pieces of payload anywhere in memory. 0, or a positive errno value: EINVAL; ENOMEM while the socket's
    // send buffer is full; what sendmsg(2) says.
    int send(const ibv_send_wr& wr) const noexcept;

  private:
    InternalFd socket_;
    int ifindex_ = 0;
};

}  // namespace vma::verbs::xdp
