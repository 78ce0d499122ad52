// SPDX-License-Identifier: BSD-2-Clause
// accept() of a TCP socket, from two queues: the listener's, and the kernel's.
#include <poll.h>

#include <mutex>

#include "libvma/os/calls.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/no_cancel.h"
#include "libvma/sockets/fd_table.h"
#include "libvma/sockets/handover/placeholders.h"
#include "libvma/sockets/handover/urgent.h"
#include "libvma/sockets/names.h"
#include "libvma/sockets/tcp/listening.h"
#include "libvma/sockets/tcp/tcp_socket.h"
#include "libvma/sockets/tcp/wait.h"

namespace vma::sockets {
namespace {

// An accept() in so many looks at the kernel's queue first, so that neither queue waits for the other to run
// dry.
constexpr unsigned kKernelTurn = 16;

bool kernel_has_connection(int fd) noexcept {
    pollfd p{fd, POLLIN, 0};
    timespec now{};
    return os::raw_syscall(SYS_ppoll, &p, 1, &now, nullptr, sizeof(std::uint64_t)) > 0;
}

}  // namespace

// Never waits. O_NONBLOCK of the shadow is the program's, so a blocking listener is asked first; one thread
// at a time, for two could see the same connection and one would wait for the next.
int TcpListening::accept_from_kernel(int fd, sockaddr* addr, socklen_t* len, int flags) {
    const runtime::NoCancel whole;
    placeholders::Accepting accepting(addr, len, flags);
    int accepted = -1;
    if (nonblock_.load(std::memory_order_relaxed)) {
        accepted = os::accept4(fd, addr, len, flags);
    } else {
        const std::unique_lock guard(kernel_accept_lock_, std::try_to_lock);
        if (!guard) return failed(EAGAIN);
        if (!kernel_has_connection(fd)) return failed(EAGAIN);
        accepted = os::accept4(fd, addr, len, flags);
    }
    if (accepted < 0) return accepted;
    g_fds.drop_stale(accepted);
    return accepting.resolve(accepted);
}

// EAGAIN: another thread was faster.
int TcpListening::accept_ours(tcp::Listener& listener, sockaddr* addr, socklen_t* len, int flags) {
    const runtime::NoCancel whole;
    // Descriptor and memory first: where they are lacking, the connection stays in the queue.
    const int fd = os::socket(AF_INET, SOCK_STREAM | flags, 0);
    if (fd < 0) return -1;
    g_fds.drop_stale(fd);
    void* memory = TcpSocket::take_memory();
    tcp::Connection* c = memory == nullptr ? nullptr : listener.accept();
    if (c == nullptr) {
        if (memory != nullptr) TcpSocket::give_memory(memory);
        os::close(fd);
        return failed(memory == nullptr ? ENOMEM : EAGAIN);
    }
    TcpSocket* socket = TcpSocket::accepted(memory, *this, c, fd, flags);
    c->set_owner(socket);
    const bool inserted = g_fds.insert(fd, socket);
    if (inserted && c->urgent_seen()) urgent::ring_bell();
    if (inserted && is_standard_stream(fd)) socket->leave_to_kernel(fd, leave::standard_stream);
    socket->unref();
    if (!inserted) {
        c->close(true);
        os::close(fd);
        return failed(ENFILE);
    }
    if (addr != nullptr) {
        if (copy_name(c->endpoints().remote, addr, len) != 0) {
            const int error = errno;  // the kernel closes the connection, too
            g_fds.remove(fd);
            os::close(fd);
            return failed(error);
        }
    }
    return fd;
}

int TcpListening::accept4(int fd, sockaddr* addr, socklen_t* len, int flags) {
    if (phase() != Phase::listening || (flags & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) != 0) {
        const int accepted = Socket::accept4(fd, addr, len, flags);
        if (accepted >= 0) g_fds.drop_stale(accepted);
        return accepted;
    }
    if (!used_.load(std::memory_order_relaxed)) used_.store(true, std::memory_order_relaxed);
    if (suspended_.load(std::memory_order_relaxed)) resume();
    Waiting w(receive_timeout_.load(std::memory_order_relaxed));
    const unsigned ratio = static_cast<unsigned>(config::get().rx_udp_poll_os_ratio);
    int saved = errno;
    if (Pin pin(transport_); pin.listener != nullptr) follow(fd, *pin.listener);
    for (;;) {
        if (phase() != Phase::listening) return Socket::accept4(fd, addr, len, flags);  // EINVAL
        {
            Pin pin(transport_);
            if (pin.listener == nullptr) continue;
            if (pin.listener->pending() == 0) {
                flush();
                progress();
            }
            const bool kernel_first =
                accepts_.fetch_add(1, std::memory_order_relaxed) % kKernelTurn == kKernelTurn - 1;
            if (pin.listener->pending() != 0 && !kernel_first) {
                const int accepted = accept_ours(*pin.listener, addr, len, flags);
                if (accepted >= 0) errno = saved;
                if (accepted >= 0 || errno != EAGAIN) return accepted;
            }
            const int accepted = accept_from_kernel(fd, addr, len, flags);
            if (accepted >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) return accepted;
            if (pin.listener->pending() != 0) continue;
            if (nonblock_.load(std::memory_order_relaxed) || interrupted_own_code()) return failed(EAGAIN);
        }
        const int error = wait(fd, w, [&] {
            if (phase() != Phase::listening) return true;
            Pin pin(transport_);
            if (pin.listener == nullptr || pin.listener->pending() != 0) return true;
            return (ratio == 0 ? w.spins == 0 : w.spins % ratio == 0) && kernel_has_connection(fd);
        });
        if (error != 0) return failed(-error);
        errno = saved;
    }
}

}  // namespace vma::sockets
