// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/tcp_ports.h"

#include <errno.h>
#include <sys/socket.h>

#include <array>
#include <new>
#include <utility>

#include "libvma/os/calls.h"
#include "libvma/runtime/internal_fd.h"
#include "libvma/runtime/lock.h"
#include "libvma/runtime/runtime.h"

namespace vma::sockets {
namespace {

struct Kept {
    InternalFd shadow;
    tcp::Connection* connection = nullptr;
};
constexpr std::size_t kMax = 256;
constexpr unsigned kLookMsec = 1000;

constinit Lock g_lock;
constinit std::array<Kept, kMax> g_kept{};
constinit std::size_t g_next = 0;      // where the next one goes: the oldest stands there
constinit std::size_t g_count = 0;
constinit bool g_ticking = false;

void release(Kept& kept) noexcept {
    if (kept.connection == nullptr) return;
    kept.shadow.reset();
    std::exchange(kept.connection, nullptr)->unref();
    g_count--;
}

// False: nothing is left to look at.
bool look() noexcept {
    g_lock.lock();
    for (Kept& kept : g_kept)
        if (kept.connection != nullptr && kept.connection->state() == tcp::State::close) release(kept);
    g_ticking = g_count != 0;
    const bool more = g_ticking;
    g_lock.unlock();
    return more;
}

}  // namespace

void keep_port(int fd, tcp::Connection* connection) noexcept {
    if (g_lock.owned_by_me()) return;
    int saved = errno;
    InternalFd copy(os::fcntl(fd, F_DUPFD_CLOEXEC, 3));
    if (copy) {
        // A new socket with SO_REUSEADDR may bind to the port of a connection that is over; both sides have to agree.
        int on = 1;
        os::setsockopt(copy.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        connection->ref();
        g_lock.lock();
        Kept& place = g_kept[g_next];
        release(place);
        place.shadow = std::move(copy);
        place.connection = connection;
        g_next = (g_next + 1) % kMax;
        g_count++;
        const bool start = !std::exchange(g_ticking, true);
        g_lock.unlock();
        if (start) {
            try {
                runtime::every(kLookMsec, look);
            } catch (...) {
                g_lock.lock();
                g_ticking = false;  // the next one tries again
                g_lock.unlock();
            }
        }
    }
    errno = saved;
}

void forget_ports_in_child() noexcept {
    new (&g_lock) Lock;
    for (Kept& kept : g_kept) kept.connection = nullptr;  // the descriptors have been closed already
    g_next = g_count = 0;
    g_ticking = false;
}

}  // namespace vma::sockets
