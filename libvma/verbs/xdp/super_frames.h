// SPDX-License-Identifier: BSD-2-Clause
// TCP segments, or UDP datagrams, that leave a netdev as one frame of up to 64 KiB (generic segmentation
// offload).
//
// AF_XDP sends frames of the MTU only. A packet socket with PACKET_VNET_HDR takes a longer one: the kernel
// passes it on whole, as it does with its own TCP, or cuts it where a netdev cannot. The kernel copies the
// frame before send() returns, so no completion follows.
//
// Super-frames leave past the netdev's queueing discipline, as AF_XDP's frames do. So both stay in order,
// where the netdev has no queues of hardware. What the netdev does not take so, since it is busy or segments
// no more, has a second way through the discipline, where the kernel cuts it and waits.
//
// Locks: none; the device's caller serialises send().
#pragma once

#include <infiniband/verbs.h>
#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <string>

#include "libvma/runtime/error.h"
#include "libvma/runtime/internal_fd.h"
#include "libvma/verbs/xdp/datagram_run.h"

namespace vma::verbs::xdp {

class SuperFrames {
  public:
    // Of a frame with the longest headers, which a netdev takes whole as a rule (gso_max_size, 65536).
    static constexpr std::uint32_t kMaxPayload = 65535 - 14 - 20 - 60;
    static constexpr std::uint32_t kMaxPieces = 64;  // of payload

    // Opens the packet sockets of a netdev that segments TCP (ethtool: tcp-segmentation-offload). Another
    // netdev's error is EOPNOTSUPP: there the kernel would cut each frame at our expense. `datagrams`: sends
    // these, too.
    Result<void> open(int ifindex, const std::string& name, bool datagrams);
    bool available() const noexcept { return static_cast<bool>(direct_); }

    // Sends an IBV_WR_TSO request: headers, whose TCP sum is that of the pseudo-header, and up to kMaxPieces
    // pieces of payload anywhere in memory. 0, or a positive errno value: EINVAL; ENOMEM while the socket's
    // send buffer is full; what sendmsg(2) says.
    int send(const ibv_send_wr& wr) const noexcept;
    bool takes_datagrams() const noexcept { return datagrams_; }
    // Sends the frames of a run, which lie anywhere in memory. False: nothing was sent. A netdev that stops
    // segmenting UDP refuses super-frames, and so do kernels before Linux 6.2: then only few calls try.
    bool send(const DatagramRun& run, std::span<const iovec> frames) noexcept;

  private:
    static constexpr unsigned kPause = 256;  // calls

    long send_message(int fd, std::span<iovec> pieces) const noexcept;

    InternalFd direct_, queued_;  // past the queueing discipline, and through it
    bool datagrams_ = false;
    int ifindex_ = 0;
    unsigned pause_ = 0;  // calls that do not try
};

}  // namespace vma::verbs::xdp
