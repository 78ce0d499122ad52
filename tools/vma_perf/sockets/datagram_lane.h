// SPDX-License-Identifier: BSD-2-Clause
// A lane of UDP sockets: one for each connection, or of a server of groups several. A lane with several does
// not send.
#pragma once

#include <netinet/in.h>

#include <span>
#include <vector>

#include "include/mellanox/vma_extra.h"
#include "include/mellanox/vma_extra2.h"
#include "tools/common/fd.h"
#include "tools/vma_perf/sockets/waiter.h"
#include "tools/vma_perf/transport.h"

namespace vma_perf::sockets {

struct DatagramConnection {
    tools::Fd fd;
    sockaddr_in peer{};      // where prepare()d messages go; a server answers and needs none
    bool connected = false;  // send() and recv() in place of sendto() and recvfrom()
};

class DatagramLane final : public Lane {
  public:
    DatagramLane(std::vector<DatagramConnection> connections, const Params& params,
                 const std::atomic<bool>* stop);
    ~DatagramLane() override;

    unsigned connections() const noexcept override {
        return static_cast<unsigned>(connections_.size()) / sockets_each_;
    }
    std::byte* prepare(unsigned connection) override {
        if (lent_ != nullptr && has_buffer(connection)) return static_cast<std::byte*>(buffers_.back().data);
        return out_.data() + batch_.size() * max_size_;
    }
    bool send(unsigned connection, std::size_t length, bool more) override;
    bool answer(const Arrival& arrival) override;
    std::size_t receive(Receiver& receiver, bool may_wait) override;

  private:
    // What the callback of a socket gets.
    struct Judge {
        DatagramLane* lane;
        unsigned number;  // of the socket
    };
    static vma_recv_callback_retval_t judge(int fd, size_t count, iovec* pieces, vma_info_t* info,
                                            void* context);
    bool take(Receiver& receiver, unsigned number, std::span<const std::byte> message,
              const sockaddr_in& from);
    // Once, or until a message has come.
    std::size_t receive_judged(Receiver& receiver, bool may_wait);
    std::size_t receive_each(Receiver& receiver, bool may_wait);
    // Is there a send buffer with room for the longest message?
    bool has_buffer(unsigned connection);
    bool send_lent(unsigned connection, std::size_t length);
    // Sends what send() has collected. Waits for room, until the run ends.
    void send_batch();
    // One datagram: bytes, or -1 with errno. `message` gets it, and `held` its packet, if the extra API has
    // it.
    ssize_t receive_one(const DatagramConnection& c, int flags, sockaddr_in& from,
                        std::span<const std::byte>& message, vma_packet_t*& held);
    bool send_to(unsigned connection, const std::byte* data, std::size_t length, const sockaddr_in& to) const;

    std::vector<DatagramConnection> connections_;  // for each connection sockets_each_, one after the other
    const unsigned sockets_each_;
    Waiter waiter_;
    const std::atomic<bool>* stop_;
    std::vector<std::byte> out_, in_;
    const std::size_t max_size_;
    const bool client_;
    // Of --extra-api; null: another mode.
    vma_api_t* const zero_copy_;
    vma_api_t* const callback_;
    vma_api2_t* const many_;
    vma_api2_t* const lent_;
    std::vector<vma_send_buffer_t> buffers_;  // that the library has lent; the last one is the next message
    std::vector<Judge> judges_;               // of the callbacks, by socket
    Receiver* judged_for_ = nullptr;          // receive() is running
    std::size_t judged_ = 0;                  // messages that callbacks have taken in it
    std::vector<iovec> batch_;                // collected by send()
    unsigned batch_of_ = 0;                   // their connection
};

}  // namespace vma_perf::sockets
