// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/handover/orphans.h"

#include <errno.h>
#include <netinet/in.h>

#include "libvma/os/calls.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/runtime/log.h"
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

}  // namespace

void hand_over() noexcept {
    if (Stack::running() == nullptr) return;
    const ErrnoKept kept;
    while (tcp::Connection* c = tcp::Background::instance().take_orphan()) {
        move_orphan(*c);
        c->unref();
    }
}

}  // namespace vma::sockets::orphans
