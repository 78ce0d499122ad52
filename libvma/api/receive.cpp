// SPDX-License-Identifier: BSD-2-Clause
// recvfrom_zcopy and free_packets.
#include <algorithm>
#include <cstring>

#include "libvma/api/calls.h"
#include "libvma/api/packet_table.h"
#include "libvma/sockets/names.h"

namespace vma::api {
namespace {

using sockets::Held;
using sockets::HeldReceive;
using sockets::Socket;
using sockets::UserMemory;
using stats::TrafficPath;

constexpr std::size_t kHeads = sizeof(vma_packets_t) + sizeof(vma_packet_t);
constexpr std::size_t kMostPieces = 1024;
constexpr int kOwnFlags = MSG_VMA_ZCOPY | MSG_VMA_ZCOPY_FORCE;

// Writes the packet into `buf`, which has room for `room` iovecs, and may be written up to `checked` of them.
// Bytes of these, or -1 with errno.
int hand_out(sockets::ExtraSocket& socket, HeldReceive& receive, void* buf, unsigned room, unsigned checked,
             int& flags) noexcept {
    auto* const packets = static_cast<vma_packets_t*>(buf);
    vma_packet_t& packet = packets->pkts[0];
    iovec* const pieces = packet.iov;
    const unsigned there = receive.held.iovecs(pieces, checked);
    const unsigned count = std::min(there, room);
    if (__builtin_expect(count > checked, 0)) {  // the datagram is lost then, as of a recvfrom() with EFAULT
        if (!UserMemory::writable(pieces, count * sizeof *pieces)) return sockets::failed(EFAULT);
        receive.held.iovecs(pieces, count);
    }
    void* const id = PacketTable::instance().insert(receive.held);
    if (__builtin_expect(id == nullptr, 0)) {
        socket.apply_verdict(&receive.held);  // back into the queue
        return sockets::failed(ENOBUFS);
    }
    packets->n_packet_num = 1;
    packet.packet_id = id;
    packet.sz_iov = count;
    flags |= MSG_VMA_ZCOPY | (count < there ? MSG_TRUNC : 0);
    std::size_t bytes = 0;
    for (unsigned i = 0; i < count; i++) bytes += pieces[i].iov_len;
    return static_cast<int>(bytes);
}

ssize_t receive(Socket& s, int fd, void* buf, std::size_t len, int& flags, sockaddr* from,
                socklen_t* fromlen) {
    const int plain = flags & ~kOwnFlags;
    sockets::ExtraSocket* const socket = s.extra();
    if (socket == nullptr || !socket->serves_extra() || (plain & (MSG_ERRQUEUE | MSG_OOB)) != 0)
        return s.recvfrom(fd, buf, len, plain, from, fromlen);
    if ((plain & MSG_PEEK) != 0) return sockets::failed(EINVAL);
    if (len < kHeads + (socket->stream() ? sizeof(iovec) : 0)) return sockets::failed(ENOBUFS);
    const std::size_t room = std::min((len - kHeads) / sizeof(iovec), kMostPieces);
    // Nearly every datagram has one piece. What is lost by an error of memory is never part of a stream.
    const std::size_t checked = socket->stream() ? room : std::min<std::size_t>(room, 1);
    if (!UserMemory::writable(buf, kHeads + checked * sizeof(iovec))) return sockets::failed(EFAULT);
    HeldReceive receive{.fd = fd, .flags = plain};
    receive.force = (flags & MSG_VMA_ZCOPY_FORCE) != 0;
    receive.pieces = static_cast<unsigned>(room);
    receive.copy = {buf, len};
    receive.name = from;
    receive.name_length = fromlen;
    const ssize_t n = socket->receive_held(receive);
    if (n < 0) return n;
    flags &= ~MSG_VMA_ZCOPY;
    if (receive.held)
        return hand_out(*socket, receive, buf, static_cast<unsigned>(room), static_cast<unsigned>(checked),
                        flags);
    if (n == 0 && socket->stream()) static_cast<vma_packets_t*>(buf)->n_packet_num = 0;
    return n;
}

}  // namespace

int recvfrom_zcopy(int fd, void* buf, size_t len, int* flags, sockaddr* from, socklen_t* fromlen) {
    if (!UserMemory::writable(flags, sizeof *flags)) return sockets::failed(EFAULT);
    const int plain = *flags & ~kOwnFlags;
    return static_cast<int>(preload::waiting(
        fd, [&](Socket& s) { return receive(s, fd, buf, len, *flags, from, fromlen); },
        [&] {
            const ssize_t n = os::recvfrom(fd, buf, len, plain, from, fromlen);
            if (n >= 0) *flags &= ~MSG_VMA_ZCOPY;
            return n;
        },
        preload::counted(fd, TrafficPath::rx_os, plain)));
}

namespace {

// Gives one packet back. What `fd` means is only compared, so it takes no reference. A packet belongs to the
// socket under `fd`, or to one that is closed: its number may mean something else now.
bool give_back(int fd, const void* id) noexcept {
    const sockets::FdObject* const mine = preload::in_vfork_child() ? nullptr : preload::g_fds.peek(fd);
    Held packet;
    return PacketTable::instance().take(id, packet, [mine](const Socket* owner) {
        return owner == mine || !owner->has_fds();
    }) == PacketTable::Found::taken;
}

// Of packets that were not the socket's.
int error_of(int fd) noexcept { return preload::ours(fd) ? ENOENT : EINVAL; }

}  // namespace

int free_packets(int fd, vma_packet_t* packets, size_t count) noexcept {
    runtime::Region inside;
    if (packets == nullptr) return answer(-EINVAL);
    bool all = true;
    auto* at = reinterpret_cast<std::uint8_t*>(packets);
    for (size_t i = 0; i < count; i++) {
        if (!UserMemory::readable(at, sizeof(vma_packet_t))) return answer(-EFAULT);
        vma_packet_t head;
        std::memcpy(&head, at, sizeof head);
        all &= give_back(fd, head.packet_id);
        // Of one packet only the id counts: programs make it up for what a callback has kept.
        if (count == 1) break;
        if (head.sz_iov > kMostPieces) return answer(-EINVAL);
        at += sizeof head + head.sz_iov * sizeof(iovec);
    }
    return __builtin_expect(all, 1) ? 0 : answer(-error_of(fd));
}

}  // namespace vma::api
