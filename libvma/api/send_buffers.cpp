// SPDX-License-Identifier: BSD-2-Clause
// get_send_buffers, send_zcopy and free_send_buffer: the program writes into the memory from which the device
// sends.
#include <algorithm>

#include "libvma/api/calls.h"
#include "libvma/api/packet_table.h"
#include "libvma/ring/ring.h"
#include "libvma/sockets/names.h"

namespace vma::api {
namespace {

using ring::SendBuffer;
using sockets::Socket;
using sockets::UserMemory;

// A buffer that a call has taken from the program. It is the program's again when the call ends, by whatever
// way, unless it was sent or given back.
class Claim {
  public:
    explicit Claim(const void* id) noexcept
        : buffer_(preload::in_vfork_child() ? nullptr : PacketTable::instance().claim(id, tenure_)) {}
    ~Claim() {
        if (buffer_ != nullptr) buffer_->tenure.resume(tenure_);
    }
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;

    explicit operator bool() const noexcept { return buffer_ != nullptr; }
    SendBuffer& operator*() const noexcept { return *buffer_; }
    SendBuffer* operator->() const noexcept { return buffer_; }
    // The device has it.
    void sent() noexcept { buffer_ = nullptr; }
    // 0, or -EBUSY, and it stays the program's.
    int give_back() noexcept {
        if (const int error = buffer_->ring->end_loan(*buffer_); error != 0) return -error;
        buffer_ = nullptr;
        return 0;
    }

  private:
    std::uint32_t tenure_ = 0;
    SendBuffer* buffer_;
};

// `count` of them: 0, or -errno and none.
int lend(ring::Ring& ring, vma_send_buffer_t* out, unsigned count) noexcept {
    SendBuffer* got[VMA_SEND_BUFFERS_MOST];
    if (const int error = ring.lend_send_buffers(got, count); error != 0) return -error;
    unsigned named = 0;
    for (; named < count; named++) {
        void* const id = PacketTable::instance().lend(*got[named]);
        if (id == nullptr) break;
        out[named] = {id, got[named]->payload(), got[named]->payload_room()};
    }
    if (named == count) return 0;
    // Too many rings, or too many buffers: there are no numbers left. What has one is taken back with it.
    for (unsigned i = 0; i < named; i++)
        if (Claim buffer(out[i].id); buffer) (void)buffer.give_back();
    for (unsigned i = named; i < count; i++) ring.end_loan(*got[i]);
    return -ENOBUFS;
}

}  // namespace

int get_send_buffers(int fd, vma_send_buffer_t* buffers, unsigned count, const sockaddr* to,
                     socklen_t tolen) noexcept {
    if (count == 0 || count > VMA_SEND_BUFFERS_MOST) return answer(-EINVAL);
    if (!UserMemory::writable(buffers, count * sizeof *buffers)) return answer(-EFAULT);
    if (to != nullptr && !UserMemory::readable(to, tolen)) return answer(-EFAULT);
    return on_socket(fd, [&](sockets::ExtraSocket& socket) {
        ring::Ring* ring = nullptr;
        const int error = socket.send_ring(fd, to, tolen, ring);
        return error != 0 ? error : lend(*ring, buffers, count);
    });
}

// The kernel's part copies, and may wait. So the buffer is only given back behind it.
int send_zcopy(int fd, void* id, size_t length, int flags, const sockaddr* to, socklen_t tolen) {
    // A send that does not happen needs no buffer; the kernel's own zero copy would use it afterwards.
    if ((flags & (VMA_SND_FLAGS_DUMMY | MSG_ZEROCOPY)) != 0) return sockets::failed(EINVAL);
    Claim buffer(id);
    if (!buffer) return sockets::failed(ENOENT);
    if (length > buffer->payload_room()) return sockets::failed(EMSGSIZE);
    bool sent = false;
    const ssize_t n = preload::waiting<preload::OursToSend>(
        fd,
        [&](Socket& s) -> ssize_t {
            sockets::ExtraSocket* const socket = s.extra();
            sent = socket != nullptr && socket->send_lent(fd, *buffer, length, flags, to, tolen);
            if (sent) return static_cast<ssize_t>(length);
            return s.sendto(fd, buffer->payload(), length, flags, to, tolen);
        },
        [&] { return os::sendto(fd, buffer->payload(), length, flags, to, tolen); },
        preload::counted(fd, stats::TrafficPath::tx_os, flags));
    if (sent) {
        buffer.sent();
    } else if (n >= 0 && static_cast<std::size_t>(n) == length) {
        const runtime::Region inside;
        (void)buffer.give_back();
    }
    return static_cast<int>(n);
}

int free_send_buffer(void* id) noexcept {
    const runtime::Region inside;
    Claim buffer(id);
    return answer(buffer ? buffer.give_back() : -ENOENT);
}

}  // namespace vma::api
