// SPDX-License-Identifier: BSD-2-Clause
// What the program wants to know of each datagram it receives, as control messages (SO_TIMESTAMP,
// IP_PKTINFO...).
#pragma once

#include <sys/socket.h>

#include <atomic>

#include "libvma/ring/ring.h"
#include "libvma/sockets/cmsg.h"

namespace vma::sockets {

class ReceiveControl {
  public:
    enum Wish : unsigned {
        pktinfo = 1,
        recvttl = 2,
        recvtos = 4,
        timestamp = 8,
        timestampns = 16,
        timestamping = 32,
        rxq_ovfl = 64,
        origdst = 128,
        timestamping_device = 256
    };

    // setsockopt(): `wish`, one of Wish, is on or off. Of timestamp and timestampns only the last one counts
    // (socket(7)).
    void want(unsigned wish, bool on) noexcept;
    // After want(), and when the socket gets rules or loses them, under Stack::control(): the rings take time
    // stamps while a socket with rules wants them.
    void count_timestamps(bool has_rules) noexcept;

    // Writes the messages for `b` into msg_control, and tells their length.
    void put(const ring::RxBuffer& b, msghdr& msg) const noexcept {
        CmsgWriter out(msg);
        if (const unsigned wanted = wanted_.load(std::memory_order_relaxed); wanted != 0) put(b, wanted, out);
    }

  private:
    static void put(const ring::RxBuffer& b, unsigned wanted, CmsgWriter& out) noexcept;

    std::atomic<unsigned> wanted_{0};  // of Wish
    bool counted_ = false;             // with the rings
};

}  // namespace vma::sockets
