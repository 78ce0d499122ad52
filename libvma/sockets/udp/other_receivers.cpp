// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/udp/other_receivers.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "libvma/os/sysctl.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/runtime/log.h"
#include "libvma/sockets/stack.h"

namespace vma::sockets {
namespace {

bool kernel_forwards(const std::string& name) {
    const ErrnoKept kept;
    return os::sysctl(("ipv4/conf/" + name + "/mc_forwarding").c_str(), 0) != 0;
}

}  // namespace

OtherReceivers::Seen OtherReceivers::see() {
    const ErrnoKept kept;
    if (lock_.owned_by_me()) return fail(EBUSY, "a signal handler interrupted the look");
    const std::lock_guard guard(lock_);
    if (!socket_) {
        if (!stack_.in_my_namespace()) return fail(EPERM, "the thread is in another network namespace");
        auto opened = net::NetlinkSocket::open(NETLINK_SOCK_DIAG);
        if (!opened) return std::unexpected(opened.error());
        socket_.emplace(std::move(*opened));
    }
    return net::udp_listeners(*socket_);
}

void OtherReceivers::take(Seen seen) {
    looked_at_ = clock::monotonic();
    if (seen) {
        listeners_ = std::move(*seen);
        std::erase_if(listeners_, [this](const net::UdpListener& l) {
            return std::ranges::find(closed_, l.cookie) != closed_.end();
        });
        std::ranges::stable_sort(listeners_, {}, &net::UdpListener::port);
        blind_.clear();
    } else {
        listeners_.clear();
        blind_ = "the kernel does not tell who else receives: " + seen.error().what;
        log::once(log::Level::warn, "multicast is served by the kernel: {}", blind_);
    }
}

void OtherReceivers::look(clock::Msec age) {
    if (looked_at_ != clock::Time{} && clock::monotonic() - looked_at_ < age) return;
    take(see());
}

void OtherReceivers::forget(std::uint64_t cookie) noexcept {
    closed_[closed_next_++ % closed_.size()] = cookie;
    std::erase_if(listeners_, [&](const net::UdpListener& l) { return l.cookie == cookie; });
}

std::span<const net::UdpListener> OtherReceivers::at(in_port_t port) const noexcept {
    const auto range = std::ranges::equal_range(listeners_, port, {}, &net::UdpListener::port);
    return {range.begin(), range.end()};
}

bool OtherReceivers::forwards(const net::Link& link) {
    auto at = forwards_.find(link.ifindex);
    if (at == forwards_.end()) at = forwards_.emplace(link.ifindex, kernel_forwards(link.name)).first;
    return at->second;
}

bool OtherReceivers::review_forwarding() {
    std::map<int, bool> now;
    for (const auto& [ifindex, before] : forwards_)
        if (net::Link link; stack_.view().link(ifindex, link)) now[ifindex] = kernel_forwards(link.name);
    return std::exchange(forwards_, now) != now;
}

}  // namespace vma::sockets
