// SPDX-License-Identifier: BSD-2-Clause
// Fans the frames of one group, port and interface out to the sockets of this process.
//
// As in Linux, each socket gets its own datagram, against its own SO_RCVBUF, and none takes it from another
// one. The bytes are the same for all: ring::RxShares counts who still has them. A frame that one socket
// alone wants is handed on as it is.
#pragma once

#include <memory>
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
    // A socket, from whom it takes datagrams, and what counts them: its membership, null if it has none.
    struct Entry {
        GroupReceiver* receiver;
        GroupSenders senders;
        std::shared_ptr<stats::GroupCounters> counters;
    };

    // From now on `entries` receive; the old ones are in `entries` afterwards. While the rule is attached:
    // with the ring's lock held (Ring::while_quiet).
    void swap(std::vector<Entry>& entries) noexcept { entries_.swap(entries); }
    void forget(const GroupReceiver& receiver) noexcept {
        std::erase_if(entries_, [&](const Entry& e) { return e.receiver == &receiver; });
    }
    const std::vector<Entry>& entries() const noexcept { return entries_; }

    bool deliver(ring::RxBuffer* buffer) noexcept override;

  private:
    std::vector<Entry> entries_;
};

}  // namespace vma::sockets
