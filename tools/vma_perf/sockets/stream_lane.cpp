// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/sockets/stream_lane.h"

#include <errno.h>
#include <fmt/format.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>

#include "tools/vma_perf/message.h"

namespace vma_perf::sockets {
namespace {

constexpr std::size_t kReceive = 65536;  // bytes asked for at once, at least

std::vector<int> descriptors(const std::vector<tools::Fd>& connections) {
    std::vector<int> result;
    for (const tools::Fd& fd : connections) result.push_back(fd.get());
    return result;
}

bool ended(int error) { return error == EPIPE || error == ECONNRESET || error == ETIMEDOUT; }
bool no_room(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

StreamLane::StreamLane(std::vector<tools::Fd> connections, const Params& params,
                       const std::atomic<bool>* stop)
    : waiter_(params.own_wait(), descriptors(connections)),
      max_size_(params.max_size),
      send_flags_(MSG_NOSIGNAL |
                  (params.throughput || (params.window <= 1 && params.rate == 0) ? 0 : MSG_DONTWAIT)),
      wait_for_room_(params.throughput && params.own_wait() != Wait::nonblocking),
      stop_(stop) {
    for (tools::Fd& fd : connections) {
        Connection& c = connections_.emplace_back();
        c.fd = std::move(fd);
        c.out.resize(params.max_size);
        c.in.resize(std::max(kReceive, 2 * std::size_t{params.max_size}));
    }
}

std::size_t StreamLane::write_some(const Connection& c, const std::byte* data, std::size_t length,
                                   int flags) const {
    const ssize_t sent = ::send(c.fd.get(), data, length, flags);
    if (sent >= 0) return static_cast<std::size_t>(sent);
    if (ended(errno))
        throw Failure(kPeerEnded, fmt::format("the other side closed a TCP connection: {}", strerror(errno)));
    if (!no_room(errno)) fail_errno("sending on a TCP connection");
    return 0;
}

bool StreamLane::flush(Connection& c) {
    while (c.left > 0) {
        const std::size_t sent = write_some(c, c.out.data() + c.at, c.left, send_flags_);
        if (sent == 0) return false;
        c.at += sent;
        c.left -= sent;
        if (c.left == 0) --pending_;
    }
    return true;
}

bool StreamLane::flush_all() {
    if (pending_ != 0)
        for (Connection& c : connections_) flush(c);
    return pending_ == 0;
}

std::byte* StreamLane::prepare(unsigned connection) {
    Connection& c = connections_[connection];
    if (!flush(c)) {
        if (wait_for_room_) waiter_.wait_writable(connection);
        if (!flush(c)) return nullptr;
    }
    return c.out.data();
}

bool StreamLane::send(unsigned connection, std::size_t length, bool /*more*/) {
    Connection& c = connections_[connection];
    const std::size_t sent = write_some(c, c.out.data(), length, send_flags_);
    if (sent == length) return true;
    if (sent == 0) {
        if (wait_for_room_) waiter_.wait_writable(connection);
        return false;
    }
    c.at = sent;
    c.left = length - sent;
    ++pending_;
    flush(c);
    return true;  // the rest goes before anything else
}

bool StreamLane::answer(const Arrival& arrival) {
    const Connection& c = connections_[arrival.connection];
    std::span<const std::byte> rest = arrival.message;
    while (!rest.empty()) {
        const std::size_t sent = write_some(c, rest.data(), rest.size(), MSG_NOSIGNAL);
        rest = rest.subspan(sent);
        if (sent != 0) continue;
        if (stop_->load(std::memory_order_relaxed)) return false;
        waiter_.wait_writable(arrival.connection);
    }
    return true;
}

std::size_t StreamLane::take_messages(unsigned number, Receiver& receiver) {
    Connection& c = connections_[number];
    std::size_t count = 0;
    while (c.end - c.begin >= sizeof(Header)) {
        const std::size_t length = read_header(c.in.data() + c.begin).length;
        if (length < sizeof(Header) || length > max_size_)
            throw Failure(kData,
                          fmt::format("a TCP connection is out of step: a message of {} bytes", length));
        if (c.end - c.begin < length) break;
        receiver.take({number, {c.in.data() + c.begin, length}, nullptr});
        c.begin += length;
        ++count;
    }
    if (c.begin == c.end) {
        c.begin = c.end = 0;
    } else if (c.in.size() - c.begin < std::max(max_size_, sizeof(Header))) {
        // The rest of the message would not fit behind its beginning.
        std::copy(c.in.begin() + static_cast<std::ptrdiff_t>(c.begin),
                  c.in.begin() + static_cast<std::ptrdiff_t>(c.end), c.in.begin());
        c.end -= c.begin;
        c.begin = 0;
    }
    return count;
}

std::size_t StreamLane::receive(Receiver& receiver, bool may_wait) {
    std::size_t count = 0;
    // Half a message brings no answer to wait for.
    if (!flush_all()) may_wait = false;
    const int flags = waiter_.receive_flags(may_wait);
    for (const unsigned number : waiter_.ready(may_wait)) {
        Connection& c = connections_[number];
        const ssize_t got = recv(c.fd.get(), c.in.data() + c.end, c.in.size() - c.end, flags);
        if (got == 0) throw Failure(kPeerEnded, "the other side closed a TCP connection");
        if (got < 0) {
            if (ended(errno))
                throw Failure(kPeerEnded,
                              fmt::format("the other side closed a TCP connection: {}", strerror(errno)));
            if (!no_room(errno)) fail_errno("receiving on a TCP connection");
            continue;
        }
        c.end += static_cast<std::size_t>(got);
        count += take_messages(number, receiver);
    }
    return count;
}

}  // namespace vma_perf::sockets
