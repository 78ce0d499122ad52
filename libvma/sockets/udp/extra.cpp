// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/udp/extra.h"

#include <errno.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "libvma/os/calls.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/runtime/fork_renewal.h"

namespace vma::sockets {
namespace {

// A datagram of the kernel's, before it is known how long it is.
struct Scratch {
    Lock lock;
    std::uint8_t bytes[65536]{};
};
constinit Scratch g_scratch;

void renew_scratch() noexcept { new (&g_scratch.lock) Lock; }
VMA_RENEW_IN_CHILD(renew_scratch);

}  // namespace

// ---- what the program keeps ----

bool UdpExtra::hold(ring::RxBuffer* b, Held& out) noexcept {
    const std::uint64_t cost = ReceiveQueue::cost_of(*b);
    b = b->lend_datagram();
    if (b == nullptr) return false;
    (void)try_ref();  // the caller has one
    out = Held(Ref<Socket>(this), *this, b, cost);
    return true;
}

void UdpExtra::given_back(std::uint64_t charge) noexcept { queue_.given_back(charge); }

// The kernel's datagrams are few: fragments, and what this host itself sends.
ssize_t UdpExtra::take_from_kernel(int fd, Held& out) noexcept {
    ring::Ring* const ring = rules_.first();
    if (ring == nullptr) return -EAGAIN;
    {
        const std::lock_guard guard(watchers_.lock());
        if (queue_.lent_out()) return -ENOBUFS;
    }
    const std::lock_guard guard(g_scratch.lock);
    const ErrnoKept kept;
    sockaddr_in from{};
    socklen_t length = sizeof from;
    const ssize_t n = os::recvfrom(fd, g_scratch.bytes, sizeof g_scratch.bytes, MSG_DONTWAIT,
                                   reinterpret_cast<sockaddr*>(&from), &length);
    if (n < 0) return -errno;
    socket_counters_.moved(stats::TrafficPath::rx_os, static_cast<std::uint64_t>(n), false);
    ring::RxBuffer seen;
    seen.ring = ring;
    seen.frame = g_scratch.bytes;
    seen.length = seen.payload_length = static_cast<std::uint32_t>(n);
    seen.src_addr = from.sin_addr.s_addr;
    seen.src_port = from.sin_port;
    seen.dst_addr = ends_.local.address.v4();
    seen.dst_port = ends_.local.port;
    ring::RxBuffer* const b = seen.copy();
    if (b == nullptr) return -ENOBUFS;  // lost, as in a full queue
    {
        const std::lock_guard guard(watchers_.lock());
        queue_.charge(ReceiveQueue::cost_of(*b));
    }
    if (hold(b, out)) return n;
    queue_.given_back(ReceiveQueue::cost_of(*b));
    b->release();
    return -ENOBUFS;
}

int UdpExtra::shut_rules() noexcept {
    Stack::Control control(stack_);
    if (!control.mine) return -EBUSY;
    rules_shut_ = true;
    update_rules(!bound_explicitly_);
    return 0;
}

// ---- its callback ----

Filter* UdpExtra::make_filter() noexcept {
    const std::lock_guard guard(watchers_.lock());
    if (undecided_ == nullptr) undecided_.reset(new (std::nothrow) Undecided(*this));
    return undecided_.get();
}

void UdpExtra::filter_changed(bool on) noexcept {
    if (!on && !undecided_->judging()) decide_all();
}

bool UdpExtra::next_undecided(Held& out, Ready& ready) noexcept {
    ring::RxBuffer* b;
    {
        const std::lock_guard guard(watchers_.lock());
        b = undecided_->queue.pop();
        if (b == nullptr) return false;
        queue_.charge(ReceiveQueue::cost_of(*b));
        ready = {queue_.size(), static_cast<std::uint32_t>(queue_.payload())};
    }
    if (hold(b, out)) return true;
    queue_.given_back(ReceiveQueue::cost_of(*b));
    b->release();  // no memory: lost, as in a full queue
    return false;
}

void UdpExtra::apply_verdict(Held* receive) noexcept {
    if (receive == nullptr) return;
    ring::RxBuffer* b = receive->take_datagram();
    const std::lock_guard guard(watchers_.lock());
    queue_.append(b, socket_counters_);
    watchers_.wake_held(kWakeIn);
}

void UdpExtra::decide_all() noexcept {
    const std::lock_guard guard(watchers_.lock());
    if (undecided_->queue.size() == 0) return;
    while (ring::RxBuffer* b = undecided_->queue.pop()) queue_.append(b, socket_counters_);
    watchers_.wake_held(kWakeIn);
}

// ---- rings ----

int UdpExtra::send_ring(int, const sockaddr* to, socklen_t length, ring::Ring*& ring) {
    net::Endpoint peer = ends_.remote;
    if (to != nullptr) {
        const auto named = net::Endpoint::of(to, length);
        if (!named || !named->address.is_v4()) return -EINVAL;
        peer = *named;
    }
    if (peer.port == 0 || peer.address.is_any()) return -EINVAL;
    if (left_ || send_.kernel_sends() != 0 || send_.lock().owned_by_me()) return -ENODATA;
    const std::lock_guard guard(send_.lock());
    const Destination* d = send_.destination(stack_, peer.address.v4(), peer.port);
    ring = d != nullptr ? d->ring : nullptr;
    return ring != nullptr ? 0 : -ENODATA;
}

int UdpExtra::network_header(int, void* out, std::size_t room) {
    const net::Endpoint& peer = ends_.remote;
    if (peer.address.is_any() || left_ || send_.lock().owned_by_me()) return -ENOTCONN;
    const std::lock_guard guard(send_.lock());
    const Destination* d = send_.destination(stack_, peer.address.v4(), peer.port);
    if (d == nullptr || d->ring == nullptr) return -ENOTCONN;
    if (room != 0) std::memcpy(out, d->headers, std::min(room, sizeof d->headers));
    return sizeof d->headers;
}

}  // namespace vma::sockets
