// SPDX-License-Identifier: BSD-2-Clause
// Fans the frames of one group, port and interface out to the sockets of this process.
//
// As in Linux, each socket gets its own datagram, against its own SO_RCVBUF, and none takes it from another
// one. The bytes are the same for all: ring::RxShares counts who still has them. A frame that one socket
// alone wants is handed on as it is.
#pragma once

#include <cstdint>
#include <vector>

#include "libvma/ring/ring.h"
#include "libvma/sockets/udp/memberships.h"

namespace vma::sockets {

// What receives datagrams to groups: a socket.
class GroupReceiver {
  public:
    // With the ring's lock held. Takes over the buffer. False: dropped and counted; the buffer stays the
    // caller's.
    virtual bool deliver_group(ring::RxBuffer* buffer) noexcept = 0;

  protected:
    ~GroupReceiver() = default;
};

class GroupSink final : public ring::FrameSink {
  public:
    // A socket, and from whom it takes datagrams; copied from its GroupListener.
    struct Entry {
        GroupReceiver* receiver;
        in_addr_t peer = 0;  // 0: any
        in_port_t peer_port = 0;
        GroupFilter filter;

        bool takes(const ring::RxBuffer& b) const noexcept {
            return (peer == 0 || peer == b.src_addr) && (peer_port == 0 || peer_port == b.src_port) &&
                   filter.allows(b.src_addr);
        }
    };
    struct Counters {
        std::uint64_t frames = 0;    // that arrived
        std::uint64_t filtered = 0;  // that no socket wants from this source
        std::uint64_t dropped = 0;   // datagrams that a full socket lost
    };

    // From now on `entries` receive; the old ones are in `entries` afterwards. While the rule is attached:
    // with the ring's lock held (Ring::while_quiet).
    void swap(std::vector<Entry>& entries) noexcept { entries_.swap(entries); }
    void forget(const GroupReceiver& receiver) noexcept {
        std::erase_if(entries_, [&](const Entry& e) { return e.receiver == &receiver; });
    }
    const std::vector<Entry>& entries() const noexcept { return entries_; }

    bool deliver(ring::RxBuffer* buffer) noexcept override;

    // With the ring's lock held, or nearly right.
    Counters counters() const noexcept { return counters_; }

  private:
    void give(GroupReceiver& to, ring::RxBuffer* frame) noexcept;

    std::vector<Entry> entries_;
    Counters counters_;
};

}  // namespace vma::sockets
