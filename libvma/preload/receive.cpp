// SPDX-License-Identifier: BSD-2-Clause
// The receiving calls, with their _FORTIFY_SOURCE forms.
#include "libvma/preload/control.h"
#include "libvma/preload/guard.h"
#include "libvma/preload/vectors.h"

using namespace vma;
using namespace vma::preload;

VMA_EXPORT ssize_t read(int fd, void* buf, size_t len) {
    // read() of nothing returns 0 and leaves the datagram where it is, unlike recv().
    if (auto s = ours(fd); s && len != 0)
        return cancellation_point([&] { return s->recvfrom(fd, buf, len, 0, nullptr, nullptr); });
    return os::read(fd, buf, len);
}
VMA_ALIAS(__read, read);

VMA_EXPORT ssize_t readv(int fd, const iovec* iov, int count) {
    if (auto s = ours(fd); s && !file_layer_answers(iov, count)) {
        msghdr msg = as_message(iov, count);
        return cancellation_point([&] { return s->recvmsg(fd, &msg, 0); });
    }
    return os::readv(fd, iov, count);
}

VMA_EXPORT ssize_t preadv2(int fd, const iovec* iov, int count, off_t offset, int flags) {
    if (auto s = ours(fd); s && positioned_call_is_plain(offset, flags) && !file_layer_answers(iov, count)) {
        msghdr msg = as_message(iov, count);
        return cancellation_point([&] { return s->recvmsg(fd, &msg, message_flags(flags)); });
    }
    return os::preadv2(fd, iov, count, offset, flags);
}
VMA_ALIAS(preadv64v2, preadv2);

VMA_EXPORT ssize_t recv(int fd, void* buf, size_t len, int flags) {
    if (auto s = ours(fd)) return cancellation_point([&] { return s->recvfrom(fd, buf, len, flags, nullptr, nullptr); });
    return os::recv(fd, buf, len, flags);
}

VMA_EXPORT ssize_t recvfrom(int fd, void* buf, size_t len, int flags, sockaddr* addr, socklen_t* alen) {
    if (auto s = ours(fd)) return cancellation_point([&] { return s->recvfrom(fd, buf, len, flags, addr, alen); });
    return os::recvfrom(fd, buf, len, flags, addr, alen);
}

VMA_EXPORT ssize_t recvmsg(int fd, msghdr* msg, int flags) {
    if (auto s = ours(fd)) return cancellation_point([&] { return s->recvmsg(fd, msg, flags); });
    ssize_t got = os::recvmsg(fd, msg, flags);
    if (got >= 0 && g_fds.any()) check_received_fds(*msg);
    return got;
}

VMA_EXPORT int recvmmsg(int fd, mmsghdr* msgs, unsigned count, int flags, timespec* timeout) {
    if (auto s = ours(fd)) return cancellation_point([&] { return s->recvmmsg(fd, msgs, count, flags, timeout); });
    int got = os::recvmmsg(fd, msgs, count, flags, timeout);
    if (g_fds.any())
        for (int i = 0; i < got; i++) check_received_fds(msgs[i].msg_hdr);
    return got;
}

// ---- _FORTIFY_SOURCE ----
// libc's own forms end the program when the length passes the size of the buffer that the compiler knew.

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

// ---- receiving past us ----
// The kernel would wait on the shadow socket, where nothing arrives that is steered to the library.

VMA_EXPORT int aio_read(struct aiocb* control) noexcept {
    if (auto s = g_fds.any() ? ours(control->aio_fildes) : sockets::Ref<sockets::Socket>()) {
        NoCancel hold;
        s->leave_to_kernel(control->aio_fildes, "read with aio_read");
    }
    return os::aio_read(control);
}
VMA_EXPORT int aio_read64(struct aiocb64* control) noexcept {
    return aio_read(reinterpret_cast<struct aiocb*>(control));  // one layout where off_t has 64 bits
}

VMA_EXPORT int lio_listio(int mode, struct aiocb* const* list, int count, struct sigevent* event) noexcept {
    if (g_fds.any()) {
        NoCancel hold;
        for (int i = 0; i < count; i++) {
            if (list[i] == nullptr || list[i]->aio_lio_opcode != LIO_READ) continue;
            if (auto s = ours(list[i]->aio_fildes)) s->leave_to_kernel(list[i]->aio_fildes, "read with lio_listio");
        }
    }
    return os::lio_listio(mode, list, count, event);
}
VMA_EXPORT int lio_listio64(int mode, struct aiocb64* const* list, int count, struct sigevent* event) noexcept {
    return lio_listio(mode, reinterpret_cast<struct aiocb* const*>(list), count, event);
}
