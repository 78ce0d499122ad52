// SPDX-License-Identifier: BSD-2-Clause
// Calls of the extra API about rings. A ring's descriptor is its completion channel: poll() and epoll work on
// it.
#include <algorithm>

#include "libvma/api/calls.h"
#include "libvma/ring/ring.h"
#include "libvma/sockets/flow_rules.h"
#include "libvma/sockets/stack.h"

namespace vma::api {
namespace {

using sockets::ExtraSocket;
using sockets::UserMemory;

// The rings over which a socket receives: how many, at most kMaxRings, or -EINVAL.
int rings_of(int fd, ring::Ring** rings) noexcept {
    auto socket = preload::ours(fd);
    if (!socket) return -EINVAL;
    const unsigned count = socket->rings(rings, sockets::FlowRules::kMaxRings);
    if (count == sockets::Socket::kRingsUnknown) return 0;
    return static_cast<int>(std::min(count, sockets::FlowRules::kMaxRings));
}

}  // namespace

int get_socket_rings_num(int fd) noexcept {
    preload::NotCancelled inside;
    ring::Ring* rings[sockets::FlowRules::kMaxRings];
    return answer(rings_of(fd, rings));
}

int get_socket_rings_fds(int fd, int* ring_fds, int count) noexcept {
    preload::NotCancelled inside;
    if (count <= 0 || ring_fds == nullptr) return answer(-EINVAL);
    ring::Ring* rings[sockets::FlowRules::kMaxRings];
    const int there = rings_of(fd, rings);
    if (there < 0) return answer(there);
    const int n = std::min(there, count);
    if (!UserMemory::writable(ring_fds, static_cast<std::size_t>(n) * sizeof *ring_fds))
        return answer(-EFAULT);
    for (int i = 0; i < n; i++) ring_fds[i] = rings[i]->channel_fd();
    return n;
}

int get_socket_tx_ring_fd(int fd, sockaddr* to, socklen_t tolen) noexcept {
    return on_socket(fd, [&](ExtraSocket& socket) {
        if (to != nullptr && !UserMemory::readable(to, tolen)) return -EFAULT;
        ring::Ring* ring = nullptr;
        const int error = socket.send_ring(fd, to, tolen, ring);
        return error != 0 ? error : ring->channel_fd();
    });
}

int get_socket_network_header(int fd, void* header, uint16_t* len) noexcept {
    return on_socket(fd, [&](ExtraSocket& socket) {
        if (!UserMemory::writable(len, sizeof *len)) return -EINVAL;
        const std::size_t room = header != nullptr ? *len : 0;
        if (!UserMemory::writable(header, room)) return -EFAULT;
        const int there = socket.network_header(fd, nullptr, 0);
        if (there < 0) return there;
        if (header != nullptr && room < static_cast<std::size_t>(there)) return -ENOBUFS;
        if (header != nullptr)
            if (const int error = socket.network_header(fd, header, room); error < 0) return error;
        *len = static_cast<uint16_t>(there);
        return 0;
    });
}

int vma_modify_ring(vma_modify_ring_attr* attr) noexcept {
    constexpr std::uint32_t kKnown = VMA_MODIFY_RING_CQ_MODERATION | VMA_MODIFY_RING_CQ_ARM;
    preload::NotCancelled inside;
    if (!UserMemory::readable(attr, sizeof *attr)) return answer(-EINVAL);
    const vma_modify_ring_attr wanted = *attr;
    sockets::Stack* const stack = sockets::Stack::running();
    ring::Ring* const ring = stack != nullptr ? stack->ring_of_channel(wanted.ring_fd) : nullptr;
    if (ring == nullptr || wanted.comp_bit_mask == 0) return answer(-EINVAL);
    if ((wanted.comp_bit_mask & ~kKnown) != 0) return answer(-EOPNOTSUPP);
    if ((wanted.comp_bit_mask & VMA_MODIFY_RING_CQ_MODERATION) != 0)
        ring->fix_moderation(wanted.cq_moderation.cq_moderation_count,
                             clock::Usec(wanted.cq_moderation.cq_moderation_period_usec));
    if ((wanted.comp_bit_mask & VMA_MODIFY_RING_CQ_ARM) != 0) ring->arm();
    return 0;
}

}  // namespace vma::api
