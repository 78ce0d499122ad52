// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/sockets/datagram_lane.h"

#include <errno.h>
#include <sys/socket.h>

#include "tools/vma_perf/message.h"
#include "tools/vma_perf/sockets/address.h"
#include "tools/vma_perf/sockets/sessions.h"

namespace vma_perf::sockets {
namespace {

std::vector<int> descriptors(const std::vector<DatagramConnection>& connections) {
    std::vector<int> result;
    for (const DatagramConnection& c : connections) result.push_back(c.fd.get());
    return result;
}

// There is no room now, or the network reports the loss of an earlier datagram, which counts as loss anyway.
bool passing(int error) {
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR || error == ENOBUFS ||
           error == EHOSTUNREACH || error == ENETUNREACH;
}

}  // namespace

DatagramLane::DatagramLane(std::vector<DatagramConnection> connections, const Params& params,
                           const std::atomic<bool>* stop)
    : connections_(std::move(connections)),
      sockets_each_(params.sockets_each()),
      waiter_(params.own_wait(), descriptors(connections_)),
      stop_(stop),
      out_(params.max_size),
      in_(kMaxDatagram) {}

bool DatagramLane::send_to(unsigned connection, const std::byte* data, std::size_t length,
                           const sockaddr_in& to) const {
    const DatagramConnection& c = connections_[connection];
    const ssize_t sent = c.connected ? ::send(c.fd.get(), data, length, 0)
                                     : sendto(c.fd.get(), data, length, 0, as_sockaddr(to), sizeof to);
    if (sent >= 0) return true;
    if (errno == ECONNREFUSED) throw Failure(kPeerEnded, "the other side's UDP port is closed");
    if (!passing(errno)) fail_errno("sending a datagram");
    return false;
}

bool DatagramLane::send(unsigned connection, std::size_t length, bool /*more*/) {
    return send_to(connection, out_.data(), length, connections_[connection].peer);
}

bool DatagramLane::answer(const Arrival& arrival) {
    const sockaddr_in& to = *static_cast<const sockaddr_in*>(arrival.origin);
    while (!send_to(arrival.connection, arrival.message.data(), arrival.message.size(), to)) {
        if (stop_->load(std::memory_order_relaxed)) return false;
        waiter_.wait_writable(arrival.connection);
    }
    return true;
}

std::size_t DatagramLane::receive(Receiver& receiver, bool may_wait) {
    std::size_t count = 0;
    const int flags = waiter_.receive_flags(may_wait);
    for (const unsigned number : waiter_.ready(may_wait)) {
        const DatagramConnection& c = connections_[number];
        sockaddr_in from;
        socklen_t from_length = sizeof from;
        const ssize_t got = c.connected ? recv(c.fd.get(), in_.data(), in_.size(), flags)
                                        : recvfrom(c.fd.get(), in_.data(), in_.size(), flags,
                                                   as_sockaddr(from), &from_length);
        if (got < 0) {
            if (errno == ECONNREFUSED) throw Failure(kPeerEnded, "the other side's UDP port is closed");
            if (!passing(errno)) fail_errno("receiving a datagram");
            continue;
        }
        const std::span<const std::byte> message(in_.data(), static_cast<std::size_t>(got));
        if (message.size() < sizeof(Header)) continue;  // of another program
        receiver.take({number / sockets_each_, message, &from, number % sockets_each_});
        ++count;
    }
    return count;
}

}  // namespace vma_perf::sockets
