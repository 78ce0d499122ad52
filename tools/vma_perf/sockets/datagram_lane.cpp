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
      in_(kMaxDatagram),
      api_(params.sockets.extra_api ? vma_get_api() : nullptr) {}

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

ssize_t DatagramLane::receive_one(const DatagramConnection& c, int flags, sockaddr_in& from,
                                  std::span<const std::byte>& message, vma_packet_t*& held) {
    socklen_t length = sizeof from;
    held = nullptr;
    ssize_t got;
    if (api_ != nullptr) {
        got = api_->recvfrom_zcopy(c.fd.get(), in_.data(), in_.size(), &flags, as_sockaddr(from), &length);
        if (got >= 0 && (flags & MSG_VMA_ZCOPY) != 0) {
            held = &reinterpret_cast<vma_packets_t*>(in_.data())->pkts[0];
            const auto* data =
                held->sz_iov != 0 ? static_cast<const std::byte*>(held->iov[0].iov_base) : nullptr;
            message = {data, held->sz_iov != 0 ? held->iov[0].iov_len : 0};
            return got;
        }
    } else {
        got = c.connected ? recv(c.fd.get(), in_.data(), in_.size(), flags)
                          : recvfrom(c.fd.get(), in_.data(), in_.size(), flags, as_sockaddr(from), &length);
    }
    if (got >= 0) message = {in_.data(), static_cast<std::size_t>(got)};
    return got;
}

std::size_t DatagramLane::receive(Receiver& receiver, bool may_wait) {
    std::size_t count = 0;
    const int flags = waiter_.receive_flags(may_wait);
    for (const unsigned number : waiter_.ready(may_wait)) {
        const DatagramConnection& c = connections_[number];
        sockaddr_in from;
        std::span<const std::byte> message;
        vma_packet_t* held;
        if (receive_one(c, flags, from, message, held) < 0) {
            if (errno == ECONNREFUSED) throw Failure(kPeerEnded, "the other side's UDP port is closed");
            if (!passing(errno)) fail_errno("receiving a datagram");
            continue;
        }
        if (message.size() >= sizeof(Header)) {  // else of another program
            receiver.take({number / sockets_each_, message, &from, number % sockets_each_});
            ++count;
        }
        if (held != nullptr) api_->free_packets(c.fd.get(), held, 1);
    }
    return count;
}

}  // namespace vma_perf::sockets
