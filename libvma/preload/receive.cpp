// SPDX-License-Identifier: BSD-2-Clause
// The receiving calls, with their _FORTIFY_SOURCE forms.
#include "libvma/preload/guard.h"
#include "libvma/preload/scm_rights.h"
#include "libvma/preload/vectors.h"

using namespace vma;
using namespace vma::preload;

using sockets::Socket;
using stats::TrafficPath;

VMA_EXPORT ssize_t read(int fd, void* buf, size_t len) {
    // A read() of 0 bytes returns 0 and leaves the datagram where it is, unlike recv().
    auto kernel = [&] { return os::read(fd, buf, len); };
    if (len == 0) return kernel();
    return waiting(
        fd, [&](Socket& s) { return s.recvfrom(fd, buf, len, 0, nullptr, nullptr); }, kernel,
        counted(fd, TrafficPath::rx_os, 0));
}
VMA_ALIAS(__read, read);

VMA_EXPORT ssize_t readv(int fd, const iovec* iov, int count) {
    auto kernel = [&] { return os::readv(fd, iov, count); };
    if (!maybe_ours(fd) || file_layer_answers(iov, count)) return kernel();
    msghdr msg = as_message(iov, count);
    return waiting(
        fd, [&](Socket& s) { return s.recvmsg(fd, &msg, 0); }, kernel, counted(fd, TrafficPath::rx_os, 0));
}

VMA_EXPORT ssize_t preadv2(int fd, const iovec* iov, int count, off_t offset, int flags) {
    auto kernel = [&] { return os::preadv2(fd, iov, count, offset, flags); };
    if (!maybe_ours(fd) || !positioned_call_is_plain(offset, flags) || file_layer_answers(iov, count))
        return kernel();
    msghdr msg = as_message(iov, count);
    return waiting(
        fd, [&](Socket& s) { return s.recvmsg(fd, &msg, message_flags(flags)); }, kernel,
        counted(fd, TrafficPath::rx_os, 0));
}
VMA_ALIAS(preadv64v2, preadv2);

VMA_EXPORT ssize_t recv(int fd, void* buf, size_t len, int flags) {
    return waiting(
        fd, [&](Socket& s) { return s.recvfrom(fd, buf, len, flags, nullptr, nullptr); },
        [&] { return os::recv(fd, buf, len, flags); }, counted(fd, TrafficPath::rx_os, flags));
}

VMA_EXPORT ssize_t recvfrom(int fd, void* buf, size_t len, int flags, sockaddr* addr, socklen_t* alen) {
    return waiting(
        fd, [&](Socket& s) { return s.recvfrom(fd, buf, len, flags, addr, alen); },
        [&] { return os::recvfrom(fd, buf, len, flags, addr, alen); },
        counted(fd, TrafficPath::rx_os, flags));
}

VMA_EXPORT ssize_t recvmsg(int fd, msghdr* msg, int flags) {
    auto kernel = [&] {
        ssize_t got = os::recvmsg(fd, msg, flags);
        if (got >= 0 && g_fds.any()) check_received_fds(*msg);
        return got;
    };
    return waiting(
        fd, [&](Socket& s) { return s.recvmsg(fd, msg, flags); }, kernel,
        counted(fd, TrafficPath::rx_os, flags));
}

VMA_EXPORT int recvmmsg(int fd, mmsghdr* msgs, unsigned count, int flags, timespec* timeout) {
    auto kernel = [&] {
        int got = os::recvmmsg(fd, msgs, count, flags, timeout);
        if (g_fds.any())
            for (int i = 0; i < got; i++) check_received_fds(msgs[i].msg_hdr);
        return got;
    };
    return waiting(
        fd, [&](Socket& s) { return s.recvmmsg(fd, msgs, count, flags, timeout); }, kernel,
        [&](Socket& s, int n) {
            if (n < 0) s.kernel_answered(fd, TrafficPath::rx_os, n, flags);
            for (int i = 0; i < n; i++) s.kernel_answered(fd, TrafficPath::rx_os, msgs[i].msg_len, flags);
        });
}

// ---- _FORTIFY_SOURCE ----
// libc's own forms end the program when the length exceeds the buffer size that the compiler knew.

extern "C" [[noreturn]] void __chk_fail();

VMA_EXPORT ssize_t __read_chk(int fd, void* buf, size_t len, size_t size) {
    if (len > size) __chk_fail();
    return read(fd, buf, len);
}

VMA_EXPORT ssize_t __recv_chk(int fd, void* buf, size_t len, size_t size, int flags) {
    if (len > size) __chk_fail();
    return recv(fd, buf, len, flags);
}

VMA_EXPORT ssize_t __recvfrom_chk(int fd, void* buf, size_t len, size_t size, int flags, sockaddr* addr,
                                  socklen_t* alen) {
    if (len > size) __chk_fail();
    return recvfrom(fd, buf, len, flags, addr, alen);
}

// ---- input and output inside libc ----
// libc's own threads make these calls, on the shadow. Packets for the library's rules do not arrive there,
// and a connection's shadow is not connected.

namespace {

void hand_to_aio(const struct aiocb* control) noexcept {
    if (!g_fds.any()) return;
    if (auto s = ours(control->aio_fildes)) {
        NoCancel hold;
        s->leave_to_kernel(control->aio_fildes, sockets::leave::asynchronous_io);
    }
}

}  // namespace

VMA_EXPORT int aio_read(struct aiocb* control) noexcept {
    hand_to_aio(control);
    return os::aio_read(control);
}
VMA_EXPORT int aio_write(struct aiocb* control) noexcept {
    hand_to_aio(control);
    return os::aio_write(control);
}
VMA_EXPORT int aio_write64(struct aiocb64* control) noexcept {
    return aio_write(reinterpret_cast<struct aiocb*>(control));
}
VMA_EXPORT int aio_read64(struct aiocb64* control) noexcept {
    return aio_read(reinterpret_cast<struct aiocb*>(control));  // one layout where off_t has 64 bits
}

VMA_EXPORT int lio_listio(int mode, struct aiocb* const* list, int count, struct sigevent* event) noexcept {
    for (int i = 0; g_fds.any() && i < count; i++)
        if (list[i] != nullptr && list[i]->aio_lio_opcode != LIO_NOP) hand_to_aio(list[i]);
    return os::lio_listio(mode, list, count, event);
}
VMA_EXPORT int lio_listio64(int mode, struct aiocb64* const* list, int count,
                            struct sigevent* event) noexcept {
    return lio_listio(mode, reinterpret_cast<struct aiocb* const*>(list), count, event);
}
