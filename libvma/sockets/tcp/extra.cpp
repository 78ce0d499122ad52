// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/tcp/extra.h"

#include <errno.h>

#include <mutex>
#include <new>
#include <utility>

#include "libvma/os/calls.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/sockets/names.h"
#include "libvma/sockets/verdicts.h"

namespace vma::sockets {
namespace {

constexpr unsigned kMostJudged = 16;  // pieces of one packet for a callback

}  // namespace

// ---- what the program keeps ----

void TcpExtra::given_back(std::uint64_t bytes) noexcept { socket_counters_.kept(-1, bytes); }

// Bytes or -errno, as receive_ours().
ssize_t TcpExtra::receive_lent(HeldReceive& r) {
    char byte;
    iovec one{&byte, 1};
    for (;;) {
        {
            Pin pin(transport_);
            tcp::Connection* const c = pin.connection;
            if (c == nullptr) return -ENOTCONN;
            c->keep_bulk();  // the kernel lends nothing
            tcp::LentData data;
            ssize_t n = -EAGAIN;
            if (c->readable() != 0) {
                ConnectionScope here(*c);
                n = c->lend(data, r.pieces, false);
            }
            if (n > 0) {
                if (!try_ref()) return -EBADF;
                socket_counters_.kept(+1, static_cast<std::uint64_t>(n));
                r.held = Held(Ref<Socket>(this), std::move(data));
                return n;
            }
            if (n != -EAGAIN) return n;
        }
        IovCursor probe(&one, 1, 1);
        const int how = (r.flags & ~(MSG_WAITALL | MSG_TRUNC)) | MSG_PEEK;
        if (const ssize_t n = receive_ours(r.fd, probe, how); n <= 0) return n;
    }
}

// Errors and the end of the stream are events; see ExtremeMember::take_events().
ssize_t TcpExtra::take_ready(Held& out, unsigned pieces, std::size_t bytes) noexcept {
    Pin pin(transport_);
    tcp::Connection* const c = pin.connection;
    if (c == nullptr || c->readable() == 0) return -EAGAIN;
    tcp::LentData data;
    const ssize_t n = c->lend(data, pieces, false, bytes);
    if (n <= 0) return n == -ENOBUFS ? n : -EAGAIN;
    (void)try_ref();  // the caller has one
    socket_counters_.kept(+1, data.bytes());
    socket_counters_.moved(stats::TrafficPath::rx_offload, data.bytes(), false);
    out = Held(Ref<Socket>(this), std::move(data));
    return n;
}

int TcpExtra::accept_ready(sockaddr_in& from) noexcept {
    Pin pin(transport_);
    if (pin.listener == nullptr) return -EINVAL;
    if (pin.listener->pending() == 0) return -EAGAIN;
    socklen_t length = sizeof from;
    const ErrnoKept kept;
    const int child = accept_ours(*pin.listener, reinterpret_cast<sockaddr*>(&from), &length, 0);
    return child >= 0 ? child : -errno;
}

ssize_t TcpExtra::receive_held(HeldReceive& r) {
    if (const int error = take_pending_error(); __builtin_expect(error != 0, 0)) return failed(error);
    auto kernel = [&]() -> ssize_t {
        char byte;
        if (r.force && os::recv(r.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0) return failed(EIO);
        return TcpStream::recvfrom(r.fd, r.copy.iov_base, r.copy.iov_len, r.flags, r.name, r.name_length);
    };
    if (!has_connection()) return kernel();
    const ssize_t n = count(stats::TrafficPath::rx_offload, receive_lent(r));
    if (n == -EREMOTE) {
        const int gone = move_away(r.fd);
        if (gone > 0) return kernel();
        return gone < 0 ? failed(-gone) : receive_held(r);
    }
    if (n >= 0 && r.name != nullptr && r.name_length != nullptr) *r.name_length = 0;
    return finish(n, r.flags);
}

// One gather, so that segments are filled across pieces.
int TcpExtra::send_pieces(int fd, const iovec* data, unsigned count, int flags, const sockaddr* to,
                          socklen_t length) {
    msghdr message{};
    message.msg_name = const_cast<sockaddr*>(to);
    message.msg_namelen = length;
    message.msg_iov = const_cast<iovec*>(data);
    message.msg_iovlen = count;
    return static_cast<int>(sendmsg(fd, &message, flags));
}

// ---- its callback ----

Filter* TcpExtra::make_filter() noexcept {
    Filter* known = filter_.load(std::memory_order_acquire);
    if (known != nullptr) return known;
    auto* made = new (std::nothrow) Filter(*this);
    if (made == nullptr || filter_.compare_exchange_strong(known, made)) return made;
    delete made;
    return known;
}

void TcpExtra::filter_changed(bool on) noexcept {
    {
        Pin pin(transport_);
        if (pin.connection != nullptr) pin.connection->filter(on);
    }
    if (!on && !filter_.load()->judging()) decide_all();
}

bool TcpExtra::next_undecided(Held& out, Ready& ready) noexcept {
    Pin pin(transport_);
    tcp::LentData data;
    if (pin.connection == nullptr || pin.connection->lend(data, kMostJudged, true) <= 0) return false;
    ready = {0, static_cast<std::uint32_t>(pin.connection->readable())};
    (void)try_ref();  // the caller has one
    socket_counters_.kept(+1, data.bytes());
    out = Held(Ref<Socket>(this), std::move(data));
    return true;
}

bool TcpExtra::any_undecided() noexcept {
    Pin pin(transport_);
    return pin.connection != nullptr && pin.connection->undecided();
}

// A socket that has another connection by now, or none, loses the data.
void TcpExtra::apply_verdict(Held* receive) noexcept {
    Pin pin(transport_);
    if (pin.connection == nullptr) return;
    const bool same = receive != nullptr && receive->stream().of(*pin.connection);
    const std::size_t bytes = same ? receive->bytes() : 0;
    pin.connection->judged(same ? &receive->stream() : nullptr);
    if (same) socket_counters_.kept(-1, bytes);
}

void TcpExtra::decide_all() noexcept {
    Pin pin(transport_);
    if (pin.connection != nullptr) pin.connection->decide_all();
}

// ---- rings ----

int TcpExtra::choose_ring(const OwnRing& own) noexcept {
    if (interrupted_own_code()) return -EBUSY;
    const std::lock_guard guard(state_lock_);
    return choose_lane(own);
}

int TcpExtra::send_ring(int, const sockaddr*, socklen_t, ring::Ring*& ring) {
    Pin pin(transport_);
    ring = pin.connection != nullptr ? pin.connection->ring() : nullptr;
    return ring != nullptr ? 0 : -ENODATA;
}

int TcpExtra::network_header(int, void* out, std::size_t room) {
    Pin pin(transport_);
    if (pin.connection == nullptr) return -ENOTCONN;
    return pin.connection->network_header(out, room);
}

}  // namespace vma::sockets
