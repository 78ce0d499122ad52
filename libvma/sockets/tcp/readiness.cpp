// SPDX-License-Identifier: BSD-2-Clause
// A TCP socket's readiness: what it is now, how changes are told, and which rings make it change.
#include <algorithm>
#include <mutex>

#include "libvma/sockets/handover/urgent.h"
#include "libvma/sockets/tcp/core.h"
#include "libvma/sockets/verdicts.h"

namespace vma::sockets {

// ---- readiness ----

Readiness TcpCore::readiness() const noexcept {
    switch (phase()) {
        case Phase::listening:
            return Readiness::both;
        case Phase::connecting:
        case Phase::connected:
            return Readiness::ours;
        case Phase::fresh:  // after a disconnect there is an error which the shadow does not know
            return pending_error_.load(std::memory_order_relaxed) != 0 ? Readiness::both : Readiness::kernel;
        default:
            return Readiness::kernel;
    }
}

std::uint32_t TcpCore::edges(std::uint32_t interest) const noexcept {
    Pin pin(transport_);
    if (pin.connection != nullptr) return pin.connection->edges(interest);
    return pin.listener != nullptr ? pin.listener->arrivals() : 0;
}

void TcpCore::changed() noexcept {
    std::uint32_t events = 0;
    tcp::Connection* c = transport_.connection();
    if (c != nullptr && c->urgent_seen()) urgent::ring_bell();
    if (Filter* filter = filter_.load(std::memory_order_acquire); __builtin_expect(filter != nullptr, 0))
        if (c != nullptr && c->undecided()) filter->note();
    if (watchers_.locked_by_me()) return;  // this thread changes the list, and looks at the events afterwards
    const std::lock_guard guard(watchers_.lock());
    if (c != nullptr) {
        const std::uint32_t in = c->edges(EPOLLIN), out = c->edges(EPOLLOUT), now = c->events();
        if (in != in_edges_told_) events |= kWakeIn;
        if (out != out_edges_told_) events |= kWakeOut;
        in_edges_told_ = in;
        out_edges_told_ = out;
        events |= now & (EPOLLERR | EPOLLHUP | EPOLLRDHUP | EPOLLPRI);
    } else {
        events = kWakeIn;  // a listener has a connection to accept
    }
    watchers_.signal_held();
    if (events != 0) watchers_.wake_sets_held(events);
}

void TcpCore::set_phase(Phase phase) noexcept {
    phase_.store(phase, std::memory_order_release);
    watchers_.wake(0);
}

int TcpCore::take_pending_error() noexcept {
    if (__builtin_expect(pending_error_.load(std::memory_order_relaxed) == 0, 1)) return 0;
    const int error = pending_error_.exchange(0);
    if (error != 0) watchers_.wake(0);
    return error;
}

// ---- rings ----

unsigned TcpCore::rings(const Pin& pin, ring::Ring** out, unsigned room) const noexcept {
    if (pin.connection != nullptr) {
        ring::Ring* ring = pin.connection->ring();
        if (ring == nullptr) return 0;
        if (room != 0) out[0] = ring;
        return 1;
    }
    return rules_.copy(out, room);
}

unsigned TcpCore::progress(const Pin& pin) const noexcept {
    if (const tcp::Connection* c = pin.connection) {
        ring::Ring* ring = c->ring();
        if (ring == nullptr) return 0;
        constexpr unsigned kMaxRounds = 1024;  // see FlowRules::poll_until()
        unsigned total = 0, round = 0, taken;
        do {
            taken = ring->poll();
            total += taken;
        } while (taken != 0 && (c->events() & EPOLLIN) == 0 && !Verdicts::due() && ++round < kMaxRounds);
        return total;
    }
    return rules_.poll_until([&] { return pin.listener != nullptr && pin.listener->pending() != 0; });
}

void TcpCore::look(const tcp::Connection& c) noexcept {
    if (ring::Ring* const ring = c.ring()) ring->poll();
}

void TcpCore::flush(const Pin& pin) const noexcept {
    if (pin.connection == nullptr) return rules_.flush();
    if (ring::Ring* ring = pin.connection->ring()) ring->flush();
}

}  // namespace vma::sockets
