// SPDX-License-Identifier: BSD-2-Clause
// See placeholders.h.
#include "libvma/sockets/handover/placeholders.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/lock.h"
#include "libvma/runtime/runtime.h"
#include "libvma/sockets/handover/shared_sockets.h"
#include "libvma/sockets/user_memory.h"

namespace vma::sockets::placeholders {
namespace {

constexpr in_addr_t kSource = 0x7f564d41;  // 127.86.77.65
constexpr clock::Msec kPatience{50};       // loopback answers before connect() returns, unless it is busy

struct Offer {
    in_port_t port;
    InternalFd ours, connection;
};

struct Table {
    Lock lock;
    std::vector<Offer> offers;
};
// Never destroyed, and made anew in a child: its descriptors are closed there.
alignas(Table) std::byte g_memory[sizeof(Table)];
Table* g_table = new (g_memory) Table;
std::atomic<std::size_t> g_count{0};
std::atomic<bool> g_offered{false};  // ever, here or in an ancestor before the fork

// Takes the offer out; neither closes anything under the lock nor waits for the internal thread there.
bool take_out(in_port_t port, Offer& out) noexcept {
    if (g_count.load(std::memory_order_acquire) == 0 || g_table->lock.owned_by_me()) return false;
    const std::lock_guard guard(g_table->lock);
    auto& offers = g_table->offers;
    const auto it =
        std::find_if(offers.begin(), offers.end(), [&](const Offer& o) { return o.port == port; });
    if (it == offers.end()) return false;
    out = std::move(*it);
    offers.erase(it);
    g_count.store(offers.size(), std::memory_order_release);
    return true;
}

}  // namespace

Placeholder::Placeholder(const net::Endpoint& listener) noexcept {
    InternalFd fd(static_cast<int>(
        std::max(os::raw_syscall(SYS_socket, AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), -1L)));
    if (!fd) return;
    sockaddr_in own = net::ipv4_name(htonl(kSource), 0);
    if (os::raw_syscall(SYS_bind, fd.get(), &own, sizeof own) != 0) return;
    const net::SocketName to(listener.address.is_any() ? net::Endpoint(htonl(INADDR_LOOPBACK), listener.port)
                                                       : listener);
    g_offered.store(true, std::memory_order_relaxed);
    const long r = os::raw_syscall(SYS_connect, fd.get(), to.get(), to.size());
    if (r != 0 && r != -EINPROGRESS) return;
    pollfd p{fd.get(), POLLOUT, 0};
    timespec limit = clock::to_timespec(kPatience);
    if (os::raw_syscall(SYS_ppoll, &p, 1, &limit, nullptr, 0) <= 0 || (p.revents & (POLLERR | POLLHUP)) != 0)
        return;
    // Where the listener has TCP_DEFER_ACCEPT, it wants data first.
    const char byte = 0;
    if (os::raw_syscall(SYS_sendto, fd.get(), &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT, nullptr, 0) != 1) return;
    socklen_t length = sizeof own;
    if (os::raw_syscall(SYS_getsockname, fd.get(), &own, &length) != 0) return;
    port_ = own.sin_port;
    ours_ = std::move(fd);
}

void Placeholder::stands_for(InternalFd connection) noexcept {
    const int fd = ours_.get();
    const in_port_t port = port_;
    if (g_table->lock.owned_by_me()) return;
    try {
        {
            const std::lock_guard guard(g_table->lock);
            g_table->offers.push_back({port, std::move(ours_), std::move(connection)});
            g_count.store(g_table->offers.size(), std::memory_order_release);
        }
        runtime::watch(fd, [fd, port] {
            runtime::unwatch(fd);
            Offer gone;
            take_out(port, gone);
        });
    } catch (...) {
        // Without the watch it stays until it is accepted.
    }
}

InternalFd take(in_port_t port) noexcept {
    Offer found;
    if (!take_out(port, found)) return {};
    runtime::unwatch(found.ours.get());
    return std::move(found.connection);
}

bool possible() noexcept { return g_offered.load(std::memory_order_relaxed) || sharing::has_ancestors(); }

Accepting::Accepting(sockaddr* addr, socklen_t* len, int flags) noexcept
    : addr_(addr), len_(len), flags_(flags) {
    if (possible() && addr != nullptr && UserMemory::readable(len, sizeof *len)) room_ = *len;
}

int Accepting::resolve(int fd) noexcept {
    if (fd < 0 || !possible()) return fd;
    sockaddr_in from{};
    socklen_t length = sizeof from;
    if (os::raw_syscall(SYS_getpeername, fd, &from, &length) != 0 || from.sin_family != AF_INET ||
        from.sin_addr.s_addr != htonl(kSource))
        return fd;
    InternalFd mine = take(from.sin_port);
    int connection = mine.get();
    if (connection < 0) connection = sharing::ask_for_connection(from.sin_port);
    if (connection < 0) {
        os::raw_syscall(SYS_close, fd);
        if (room_ != 0) *len_ = room_;
        errno = EAGAIN;
        return -1;
    }
    os::raw_syscall(SYS_dup3, connection, fd, (flags_ & SOCK_CLOEXEC) != 0 ? O_CLOEXEC : 0);
    if (!mine) os::raw_syscall(SYS_close, connection);
    os::raw_syscall(SYS_fcntl, fd, F_SETFL, (flags_ & SOCK_NONBLOCK) != 0 ? O_NONBLOCK : 0);
    length = sizeof from;
    if (room_ != 0 && os::raw_syscall(SYS_getpeername, fd, &from, &length) == 0) {
        std::memcpy(addr_, &from, std::min<std::size_t>(room_, sizeof from));
        *len_ = sizeof from;
    }
    return fd;
}

namespace {
void forget_table() noexcept {
    g_table = new (g_memory) Table;
    g_count.store(0, std::memory_order_relaxed);
}
VMA_RENEW_IN_CHILD(forget_table);
}  // namespace

}  // namespace vma::sockets::placeholders
