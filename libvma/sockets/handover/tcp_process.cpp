// SPDX-License-Identifier: BSD-2-Clause
// What becomes of TCP sockets when the process forks, or ends. How a connection moves to the kernel is in
// tcp_control.cpp.
//
// At the end of a process the kernel closes its sockets: it resets connections with unread data, and for the
// others sends what is queued, then FIN, and stays to answer the peer. Only a kernel socket can stay, so all
// connections that still have something to say or to hear are moved, those included which the program has
// closed already.
#include <net/if.h>
#include <netinet/in.h>

#include "libvma/os/calls.h"
#include "libvma/runtime/log.h"
#include "libvma/sockets/handover/placeholders.h"
#include "libvma/sockets/handover/shared_sockets.h"
#include "libvma/sockets/tcp/wait.h"
#include "libvma/tcp/migrate/handover.h"
#include "libvma/tcp/timers/engine.h"

#ifndef SO_BINDTOIFINDEX
#define SO_BINDTOIFINDEX 62
#endif

namespace vma::sockets {
namespace {

// What routes the packets of a connection, and who else may bind its port, on the kernel socket that is to
// end it.
void set_socket_options(int fd, const tcp::Options& options) noexcept {
    const tcp::PathOptions& path = options.path;
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

void TcpSocket::hand_over_orphans() noexcept {
    if (Stack::running() == nullptr) return;
    int saved = errno;
    while (tcp::Connection* c = tcp::Engine::instance().take_orphan()) {
        move_orphan(*c);
        c->unref();
    }
    errno = saved;
}

// A listener that this process has not used yet is probably for its children (a server with workers). What
// arrived here in the time until a child comes for it could be accepted by nobody; so until then the kernel
// takes connections.
void TcpSocket::before_fork(int) noexcept {
    if (phase() != Phase::listening || used_.load(std::memory_order_relaxed) || interrupted_own_code())
        return;
    {
        Use use(*this);
        if (use.listener != nullptr && ring_count_.load(std::memory_order_relaxed) != 0)
            placeholders::let_handshakes_end(*use.listener, [&] { progress(); });
        Stack::Control control(stack_);
        if (!control.mine || !listed_) {
            if (use.listener != nullptr) use.listener->leave_new_to_kernel(false);
            return;
        }
        suspended_.store(true, std::memory_order_relaxed);
        drop_rules();
        decided({stats::Path::kernel, stats::Reason::process,
                 "a forked child may accept; this process has not yet"});
    }
    offer_waiting();
}

// This process accepts itself after all.
void TcpSocket::resume() noexcept {
    if (interrupted_own_code()) return;
    state_lock_.lock();
    if (phase() == Phase::listening && suspended_.exchange(false, std::memory_order_relaxed)) {
        Stack::Control control(stack_);
        listener_.load(std::memory_order_relaxed)->leave_new_to_kernel(false);
        if (control.mine) add_rules();
    }
    state_lock_.unlock();
}

void TcpSocket::before_process_end(int fd) noexcept {
    if (handing::shared_since(born_)) {
        leave_to_kernel(fd, "the program ends");
        return;
    }
    if (phase() == Phase::listening) {
        if (interrupted_own_code()) return;
        state_lock_.lock();
        if (phase() == Phase::listening) stop_listening();  // resets who has not been accepted
        state_lock_.unlock();
        return;
    }
    {
        Use use(*this);
        tcp::Connection* c = use.connection;
        if (c == nullptr || over(*c)) return;
        // A handshake is not to be completed by the internal thread in the last moments: the kernel refuses
        // it.
        if (still_connecting(*c) || c->readable() != 0 || linger_s_.load(std::memory_order_relaxed) == 0) {
            Inside here(*c);
            c->close(true);
            return;
        }
    }
    leave_to_kernel(fd, "the program ends");
}

}  // namespace vma::sockets
