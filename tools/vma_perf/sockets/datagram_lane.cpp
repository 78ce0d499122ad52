// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/sockets/datagram_lane.h"

#include <errno.h>
#include <sys/socket.h>

#include <algorithm>

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

constexpr std::size_t kMostInBatch = 256;

void check_error(const char* what) {
    if (errno == ECONNREFUSED) throw Failure(kPeerEnded, "the other side's UDP port is closed");
    if (!passing(errno)) fail_errno(what);
}

vma_api_t* if_mode(const Params& params, const char* mode) {
    return params.sockets.extra_api == mode ? vma_get_api() : nullptr;
}

vma_api2_t* if_client_mode(const Params& params, const char* mode) {
    return params.sockets.extra_api == mode && params.is_client ? vma_get_api2() : nullptr;
}

}  // namespace

DatagramLane::~DatagramLane() {
    for (const vma_send_buffer_t& buffer : buffers_) lent_->free_send_buffer(buffer.id);
}

DatagramLane::DatagramLane(std::vector<DatagramConnection> connections, const Params& params,
                           const std::atomic<bool>* stop)
    : connections_(std::move(connections)),
      sockets_each_(params.sockets_each()),
      waiter_(params.own_wait(), descriptors(connections_)),
      stop_(stop),
      out_(params.max_size * (std::min<std::size_t>(params.burst, kMostInBatch) + 1)),
      in_(kMaxDatagram),
      max_size_(params.max_size),
      client_(params.is_client),
      zero_copy_(if_mode(params, "zcopy")),
      callback_(if_mode(params, "callback")),
      many_(if_client_mode(params, "sendmany")),
      lent_(if_client_mode(params, "send_zcopy")) {
    if (callback_ == nullptr) return;
    for (unsigned i = 0; i < connections_.size(); ++i) judges_.push_back({this, i});
    // A socket of the kernel's has none: its messages come as always.
    for (Judge& one : judges_)
        callback_->register_recv_callback(connections_[one.number].fd.get(), &judge, &one);
}

bool DatagramLane::send_to(unsigned connection, const std::byte* data, std::size_t length,
                           const sockaddr_in& to) const {
    const DatagramConnection& c = connections_[connection];
    const ssize_t sent = c.connected ? ::send(c.fd.get(), data, length, 0)
                                     : sendto(c.fd.get(), data, length, 0, as_sockaddr(to), sizeof to);
    if (sent >= 0) return true;
    check_error("sending a datagram");
    return false;
}

// A peer that only the kernel reaches has none: its messages go as always.
bool DatagramLane::has_buffer(unsigned connection) {
    constexpr unsigned kAtOnce = 32;
    if (!buffers_.empty()) return true;
    const DatagramConnection& c = connections_[connection];
    buffers_.resize(kAtOnce);
    const bool got = lent_->get_send_buffers(c.fd.get(), buffers_.data(), kAtOnce,
                                             c.connected ? nullptr : as_sockaddr(c.peer),
                                             c.connected ? 0 : sizeof c.peer) == 0;
    if (got && buffers_.front().size >= max_size_) return true;
    if (got)
        for (const vma_send_buffer_t& buffer : buffers_) lent_->free_send_buffer(buffer.id);
    buffers_.clear();
    return false;
}

bool DatagramLane::send_lent(unsigned connection, std::size_t length) {
    const DatagramConnection& c = connections_[connection];
    if (lent_->send_zcopy(c.fd.get(), buffers_.back().id, length, 0,
                          c.connected ? nullptr : as_sockaddr(c.peer),
                          c.connected ? 0 : sizeof c.peer) >= 0) {
        buffers_.pop_back();
        return true;
    }
    check_error("sending a datagram");
    return false;
}

bool DatagramLane::send(unsigned connection, std::size_t length, bool more) {
    if (!buffers_.empty()) return send_lent(connection, length);
    if (many_ == nullptr) return send_to(connection, out_.data(), length, connections_[connection].peer);
    if (!batch_.empty() && batch_of_ != connection) {
        const std::byte* const message = prepare(connection);
        send_batch();
        std::copy_n(message, length, prepare(connection));
    }
    batch_of_ = connection;
    batch_.push_back({prepare(connection), length});
    if (!more || batch_.size() == kMostInBatch) send_batch();
    return true;
}

void DatagramLane::send_batch() {
    const DatagramConnection& c = connections_[batch_of_];
    std::size_t sent = 0;
    while (sent < batch_.size() && !stop_->load(std::memory_order_relaxed)) {
        const int n =
            many_->sendmany(c.fd.get(), batch_.data() + sent, static_cast<unsigned>(batch_.size() - sent), 0,
                            c.connected ? nullptr : as_sockaddr(c.peer), c.connected ? 0 : sizeof c.peer);
        if (n >= 0) {
            sent += static_cast<std::size_t>(n);
            continue;
        }
        check_error("sending datagrams");
        waiter_.wait_writable(batch_of_);
    }
    batch_.clear();
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
    if (zero_copy_ != nullptr) {
        got = zero_copy_->recvfrom_zcopy(c.fd.get(), in_.data(), in_.size(), &flags, as_sockaddr(from),
                                         &length);
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

bool DatagramLane::take(Receiver& receiver, unsigned number, std::span<const std::byte> message,
                        const sockaddr_in& from) {
    if (message.size() < sizeof(Header)) return false;  // of another program
    receiver.take({number / sockets_each_, message, &from, number % sockets_each_});
    return true;
}

vma_recv_callback_retval_t DatagramLane::judge(int, size_t count, iovec* pieces, vma_info_t* info,
                                               void* context) {
    const Judge& me = *static_cast<Judge*>(context);
    DatagramLane& lane = *me.lane;
    if (lane.judged_for_ == nullptr || count == 0) return VMA_PACKET_RECV;
    std::span<const std::byte> message(static_cast<const std::byte*>(pieces[0].iov_base), pieces[0].iov_len);
    if (count > 1) return VMA_PACKET_RECV;  // in pieces: as always
    lane.judged_ += lane.take(*lane.judged_for_, me.number, message, *info->src);
    return VMA_PACKET_DROP;
}

// Messages are taken inside of recv(), which goes on waiting afterwards. That is right for a server; a client
// has something to do then, so it asks again and again instead of waiting.
std::size_t DatagramLane::receive_judged(Receiver& receiver, bool may_wait) {
    judged_for_ = &receiver;
    judged_ = 0;
    const auto end = Clock::now() + kTick;
    std::size_t count = 0;
    do count += receive_each(receiver, may_wait && !client_);
    while (client_ && may_wait && count + judged_ == 0 && !stop_->load(std::memory_order_relaxed) &&
           Clock::now() < end);
    judged_for_ = nullptr;
    return count + judged_;
}

std::size_t DatagramLane::receive(Receiver& receiver, bool may_wait) {
    if (!batch_.empty()) send_batch();
    return callback_ != nullptr ? receive_judged(receiver, may_wait) : receive_each(receiver, may_wait);
}

std::size_t DatagramLane::receive_each(Receiver& receiver, bool may_wait) {
    std::size_t count = 0;
    const int flags = waiter_.receive_flags(may_wait);
    for (const unsigned number : waiter_.ready(may_wait)) {
        const DatagramConnection& c = connections_[number];
        sockaddr_in from;
        std::span<const std::byte> message;
        vma_packet_t* held;
        if (receive_one(c, flags, from, message, held) < 0) {
            check_error("receiving a datagram");
            continue;
        }
        count += take(receiver, number, message, from);
        if (held != nullptr) zero_copy_->free_packets(c.fd.get(), held, 1);
    }
    return count;
}

}  // namespace vma_perf::sockets
