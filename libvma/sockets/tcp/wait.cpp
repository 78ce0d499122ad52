// SPDX-License-Identifier: BSD-2-Clause
// A TCP socket's readiness: what it is now, who is told when it changes, and how a thread sleeps until it
// does.
#include "libvma/sockets/tcp/wait.h"

#include <algorithm>

#include "libvma/os/calls.h"
#include "libvma/runtime/runtime.h"
#include "libvma/runtime/signals.h"
#include "libvma/sockets/handover/urgent.h"

namespace vma::sockets {
namespace {

constexpr std::uint32_t kIn = EPOLLIN | EPOLLRDNORM;
constexpr std::uint64_t kSliceNs = 1'000'000;  // sleep of a thread that nobody may wake

constinit thread_local const tcp::Connection* t_inside = nullptr;

}  // namespace

// ---- readiness ----

Readiness TcpSocket::readiness() const noexcept {
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

std::uint32_t TcpSocket::ready_events() const noexcept {
    Use use(*this);
    if (use.connection != nullptr) return use.connection->events_asked();
    if (use.listener != nullptr) {
        if (!used_.load(std::memory_order_relaxed)) used_.store(true, std::memory_order_relaxed);
        return use.listener->pending() != 0 ? kIn : 0u;
    }
    return pending_error_.load(std::memory_order_relaxed) != 0 ? static_cast<std::uint32_t>(EPOLLERR) : 0u;
}

std::uint32_t TcpSocket::edges(std::uint32_t interest) const noexcept {
    Use use(*this);
    if (use.connection != nullptr) return use.connection->edges(interest);
    return use.listener != nullptr ? use.listener->arrivals() : 0;
}

void TcpSocket::changed() noexcept {
    std::uint32_t events = 0;
    tcp::Connection* c = connection_.load(std::memory_order_acquire);
    if (c != nullptr && c->urgent_seen()) urgent::ring_bell();
    if (waiters_lock_.owned_by_me())
        return;  // this thread changes the list, and looks at the events afterwards
    waiters_lock_.lock();
    if (c != nullptr) {
        const std::uint32_t in = c->edges(EPOLLIN), out = c->edges(EPOLLOUT), now = c->events();
        if (in != in_edges_told_) events |= kWakeIn;
        if (out != out_edges_told_) events |= kWakeOut;
        in_edges_told_ = in;
        out_edges_told_ = out;
        events |= now & (EPOLLERR | EPOLLHUP | EPOLLRDHUP | EPOLLPRI);
    } else {
        events = kWakeIn;  // a listener has somebody to accept
    }
    waiters_.signal_all();
    if (events != 0) hooks_.wake_all(events);
    waiters_lock_.unlock();
}

void TcpSocket::set_phase(Phase phase) noexcept {
    phase_.store(phase, std::memory_order_release);
    tell_waiters();
}

int TcpSocket::take_pending_error() noexcept {
    if (__builtin_expect(pending_error_.load(std::memory_order_relaxed) == 0, 1)) return 0;
    const int error = pending_error_.exchange(0);
    if (error != 0) tell_waiters();
    return error;
}

void TcpSocket::tell_waiters() noexcept {
    if (waiters_lock_.owned_by_me()) return;
    waiters_lock_.lock();
    waiters_.signal_all();
    hooks_.wake_all(0);
    waiters_lock_.unlock();
}

bool TcpSocket::add_waiter(Waiter* waiter) noexcept {
    if (waiters_lock_.owned_by_me()) return false;
    waiters_lock_.lock();
    const bool added = waiters_.add(waiter);
    waiters_lock_.unlock();
    return added;
}

void TcpSocket::remove_waiter(Waiter* waiter) noexcept {
    if (waiters_lock_.owned_by_me()) return;
    waiters_lock_.lock();
    waiters_.remove(waiter);
    waiters_lock_.unlock();
}

bool TcpSocket::subscribe(ReadyHook* hook) noexcept {
    if (waiters_lock_.owned_by_me()) return false;
    waiters_lock_.lock();
    hooks_.add(hook);
    waiters_lock_.unlock();
    return true;
}

bool TcpSocket::unsubscribe(ReadyHook* hook) noexcept {
    if (waiters_lock_.owned_by_me()) return false;
    waiters_lock_.lock();
    hooks_.remove(hook);
    waiters_lock_.unlock();
    return true;
}

// ---- rings ----

unsigned TcpSocket::rings(ring::Ring** out, unsigned room) const noexcept {
    return rings(Use(*this), out, room);
}

unsigned TcpSocket::rings(const Use& use, ring::Ring** out, unsigned room) const noexcept {
    if (use.connection != nullptr) {
        ring::Ring* ring = use.connection->ring();
        if (ring == nullptr) return 0;
        if (room != 0) out[0] = ring;
        return 1;
    }
    const unsigned count = ring_count_.load(std::memory_order_acquire);
    for (unsigned i = 0; i < count && i < room; i++) out[i] = rings_[i].load(std::memory_order_relaxed);
    return count;
}

unsigned TcpSocket::progress() noexcept { return progress(Use(*this)); }

unsigned TcpSocket::progress(const Use& use) const noexcept {
    // One poll takes one batch, and all of it may be other sockets'. "Nothing there" may be said only of an
    // empty ring.
    constexpr unsigned kMaxRounds = 1024;
    unsigned total = 0, round = 0, taken;
    if (const tcp::Connection* c = use.connection) {
        ring::Ring* ring = c->ring();
        if (ring == nullptr) return 0;
        do {
            taken = ring->poll();
            total += taken;
        } while (taken != 0 && (c->events() & EPOLLIN) == 0 && ++round < kMaxRounds);
        return total;
    }
    const unsigned count = ring_count_.load(std::memory_order_acquire);
    do {
        taken = 0;
        for (unsigned i = 0; i < count; i++) taken += rings_[i].load(std::memory_order_relaxed)->poll();
        total += taken;
    } while (taken != 0 && (use.listener == nullptr || use.listener->pending() == 0) && ++round < kMaxRounds);
    return total;
}

void TcpSocket::flush() noexcept { flush(Use(*this)); }

void TcpSocket::flush(const Use& use) const noexcept {
    ring::Ring* list[kMaxRings];
    const unsigned count = std::min(rings(use, list, kMaxRings), kMaxRings);
    for (unsigned i = 0; i < count; i++) list[i]->flush();
}

unsigned TcpSocket::arm(int* fds, unsigned room) noexcept {
    ring::Ring* list[kMaxRings];
    const unsigned count = std::min({rings(list, kMaxRings), kMaxRings, room});
    for (unsigned i = 0; i < count; i++) {
        list[i]->arm();
        fds[i] = list[i]->channel_fd();
    }
    return count;
}

// ---- waiting ----

TcpSocket::Waiting::Waiting(std::uint64_t timeout_ns) noexcept
    : deadline(timeout_ns == 0 ? 0 : clock::monotonic_ns() + timeout_ns),
      interruptions(runtime::interruptions()),
      restarts(runtime::restarts()) {}

bool TcpSocket::Waiting::interrupted() const noexcept {
    return runtime::pending() || runtime::interruptions() != interruptions ||
           (deadline != 0 && runtime::restarts() != restarts);
}

// With a timeout no call is started anew (signal(7)).
int TcpSocket::Waiting::error() const noexcept {
    return runtime::pending() && deadline == 0 ? runtime::kRestart : EINTR;
}

TcpSocket::Inside::Inside(const tcp::Connection& c) noexcept : before(t_inside) { t_inside = &c; }
TcpSocket::Inside::~Inside() { t_inside = before; }

bool TcpSocket::inside(const tcp::Connection& c) noexcept {
    if (t_inside == &c) return true;
    const ring::Ring* ring = c.ring();
    return ring != nullptr && ring->rx_owned_by_me();
}

TcpSocket::Sleep::Sleep(TcpSocket& socket, int fd) noexcept
    : socket_(socket), fd_(fd), waiter_(Waiter::mine()) {
    if (waiter_ != nullptr) {
        waiter_->clear();
        sure_to_wake_ = socket_.add_waiter(waiter_);
    }
    ring::Ring* list[kMaxRings];
    watch_.emplace(sure_to_wake_ ? waiter_ : nullptr, list,
                   std::min(socket_.rings(list, kMaxRings), kMaxRings));
}

void TcpSocket::Sleep::arm() noexcept {
    count_ = 0;
    if (fd_ >= 0) fds_[count_++] = {fd_, POLLIN, 0};
    if (waiter_ != nullptr) fds_[count_++] = {waiter_->fd(), POLLIN, 0};
    socket_.flush();
    count_ += watch_->arm(fds_ + count_);
}

TcpSocket::Sleep::~Sleep() {
    if (waiter_ != nullptr) socket_.remove_waiter(waiter_);
}

int TcpSocket::Sleep::run(std::uint64_t deadline, const sigset_t* mask) {
    timespec limit{}, *timeout = nullptr;
    if (deadline != 0 || !sure_to_wake_) {
        const std::uint64_t now = clock::monotonic_ns();
        std::uint64_t left = deadline == 0 ? ~std::uint64_t{0} : deadline > now ? deadline - now : 0;
        if (!sure_to_wake_) left = std::min(left, kSliceNs);
        limit = {static_cast<time_t>(left / 1'000'000'000), static_cast<long>(left % 1'000'000'000)};
        timeout = &limit;
    }
    int saved = errno;
    const int r = os::ppoll(fds_, count_, timeout, mask);
    const int error = errno;
    errno = saved;
    woken_ = r > 0;
    if (woken_) watch_->woken();
    if (r < 0 && error != EINTR) return error;
    // Handlers that were installed past our sigaction() are not counted; the first signal brings them behind
    // ours.
    if (r < 0 && runtime::signals::adopt_new()) return EINTR;
    if (r == 0 && deadline != 0 && clock::monotonic_ns() >= deadline) {
        socket_.progress();
        return EAGAIN;
    }
    return 0;
}

bool TcpSocket::Sleep::goes_on() noexcept {
    if (!woken_ || waiter_ == nullptr || (fd_ >= 0 && fds_[0].revents != 0)) return false;
    return watch_->sleeps_on(fds_[fd_ >= 0 ? 1 : 0].revents);
}

}  // namespace vma::sockets
