// SPDX-License-Identifier: BSD-2-Clause
// A lane of TCP connections. The header's length tells where a message ends.
#pragma once

#include <string>
#include <vector>

#include "tools/common/fd.h"
#include "tools/vma_perf/sockets/waiter.h"
#include "tools/vma_perf/transport.h"

namespace vma_perf::sockets {

class StreamLane final : public Lane {
  public:
    StreamLane(std::vector<tools::Fd> connections, const Params& params, const std::atomic<bool>* stop);

    unsigned connections() const noexcept override { return static_cast<unsigned>(connections_.size()); }
    std::byte* prepare(unsigned connection) override;
    bool send(unsigned connection, std::size_t length, bool more) override;
    bool answer(const Arrival& arrival) override;
    std::size_t receive(Receiver& receiver, bool may_wait) override;

  private:
    struct Connection {
        tools::Fd fd;
        // What prepare() gives; of a message that the socket took in part, `left` bytes from `at` on wait
        // here.
        std::vector<std::byte> out;
        std::size_t at = 0, left = 0;
        // Received and not yet taken: in[begin, end).
        std::vector<std::byte> in;
        std::size_t begin = 0, end = 0;
    };
    // Bytes that the socket took; 0 also when it has no room.
    std::size_t write_some(const Connection& c, const std::byte* data, std::size_t length, int flags) const;
    // Sends on what the socket did not take so far. True: nothing is left.
    bool flush(Connection& c);
    bool flush_all();
    std::size_t take_messages(unsigned number, Receiver& receiver);

    std::vector<Connection> connections_;
    Waiter waiter_;
    const std::size_t max_size_;
    // A ping-pong client with several requests in flight must never wait in a send: the server might wait for
    // us to receive.
    const int send_flags_;
    const bool wait_for_room_;
    const std::atomic<bool>* stop_;
    unsigned pending_ = 0;  // connections with something left to send
};

}  // namespace vma_perf::sockets
