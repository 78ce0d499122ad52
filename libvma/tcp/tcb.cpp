// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/tcb.h"

#include "libvma/tcp/connection.h"
#include "libvma/tcp/lwip/entry.h"
#include "libvma/tcp/timers/background.h"

namespace vma::tcp {

Tcb::Tcb(Connection& c, PathSource& paths, const net::Endpoints& e, const Options& o)
    : connection(c), ends(e), options(o), route(*this, paths) {
    shown.set_limit(queue.limit());
}

void Tcb::abandon(bool reset) noexcept {
    in_lwip([&](lwip::Entry&) { pcb->abandon(reset); });
}

// The connection is over, for whatever reason.
void Tcb::gone() noexcept {
    pcb = nullptr;
    queue.forget();
    phase.connecting = false;
    origin.gone(connection);
    receiver.clear_early();
    recovery.reset();
    Background::instance().time_wait_left(connection);
    if (phase.orphan) Background::instance().orphan_left(connection);
    // Both directions, as the kernel's tcp_done().
    phase.peer_closed = true;
    phase.write_shut = true;
    shown.wake_all();
    if (phase.orphan) free_queues();
}

void Tcb::give_up(int error, bool reset) noexcept {
    if (!phase.orphan) shown.fail(error);
    abandon(reset && !pcb->in_handshake());
}

void Tcb::free_queues() noexcept {
    receiver.clear();
    shown.set_readable(0);
}

}  // namespace vma::tcp
