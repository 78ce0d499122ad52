// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/handover/orphans.h"

#include <errno.h>
#include <limits.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>

#include "libvma/os/calls.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/runtime.h"
#include "libvma/sockets/fd_table.h"
#include "libvma/sockets/stack.h"
#include "libvma/tcp/connection.h"
#include "libvma/tcp/migrate/handover.h"
#include "libvma/tcp/timers/background.h"

namespace vma::sockets::orphans {
namespace {

// What routes the packets of a connection, and who else may bind its port, on the kernel socket that is to
// end it.
void set_socket_options(int fd, const tcp::Options& options) noexcept {
    const net::PathOptions& path = options.path;
    auto set = [&](int level, int name, int value) {
        if (value != 0) os::setsockopt(fd, level, name, &value, sizeof value);
    };
    set(SOL_SOCKET, SO_BINDTOIFINDEX, path.oif);
    set(SOL_SOCKET, SO_MARK, static_cast<int>(path.mark));
    set(IPPROTO_IP, IP_TOS, path.tos);
    set(SOL_SOCKET, SO_REUSEADDR, options.reuse_address);
}

void move_orphan(tcp::Connection& c) noexcept {
    const int fd = os::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return;
    set_socket_options(fd, c.options());
    tcp::KernelState state;
    if (c.freeze(state) == 0) {
        bool moved = false;
        try {
            const auto done = [&] {
                c.finish_freeze(true);
                moved = true;
            };
            const auto result = state.over ? Result<void>{} : tcp::hand_over(fd, state, done);
            if (!result)
                log::once(log::Level::warn, "a closed TCP connection cannot be moved to the kernel: {}",
                          result.error().what);
        } catch (...) {
            log::once(log::Level::warn,
                      "a closed TCP connection cannot be moved to the kernel: out of memory");
        }
        if (!moved) c.finish_freeze(false);
    }
    os::close(fd);
}

// How often connections without a way look whether something has changed, and how many times nothing has
// before they look all the same.
constexpr clock::Msec kLookForWay{50};
constexpr unsigned kLooksAnyway = 20;

// Moves the sockets of `ring` to the kernel. True: some have to wait.
bool move_from(ring::Ring& ring) noexcept {
    bool wait = false;
    g_fds.for_each(0, INT_MAX, [&](int fd, const FdObject*) {
        Ref<Socket> socket = g_fds.socket(fd);
        if (!socket) return;
        socket->ring_failed(fd, ring);
        constexpr unsigned kRoom = 16;
        std::array<ring::Ring*, kRoom> rings{};
        const unsigned count = std::min(socket->rings(rings.data(), kRoom), kRoom);
        wait |= std::find(rings.begin(), rings.begin() + count, &ring) != rings.begin() + count;
    });
    return wait;
}

}  // namespace

void leave(Stack& stack, ring::Ring& ring) noexcept {
    if (!move_from(ring)) return hand_over();
    log::info("{}: connections wait for their address and route to come back", ring.attr().name);
    try {
        runtime::every(kLookForWay, [&stack, &ring, seen = std::uint32_t{0}, looks = 0u]() mutable {
            const std::uint32_t now = stack.view().routes_generation();
            if (seen == now && ++looks % kLooksAnyway != 0) return true;
            seen = now;
            if (move_from(ring)) return true;
            hand_over();
            return false;
        });
    } catch (...) {
        log::warn("no memory to move connections to the kernel");
    }
}

void hand_over() noexcept {
    if (Stack::running() == nullptr) return;
    const ErrnoKept kept;
    while (tcp::Connection* c = tcp::Background::instance().take_orphan()) {
        move_orphan(*c);
        c->unref();
    }
}

}  // namespace vma::sockets::orphans
