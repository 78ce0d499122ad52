// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/handshake/listener.h"

#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "libvma/config/params.h"
#include "libvma/os/calls.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/runtime/log.h"
#include "libvma/tcp/handshake/isn.h"
#include "libvma/tcp/handshake/syn_cookie.h"
#include "libvma/tcp/lwip/entry.h"
#include "libvma/tcp/lwip/frames.h"
#include "libvma/tcp/sequence.h"
#include "libvma/tcp/timers/background.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {
namespace {

constexpr std::size_t kAgainAtOnce = 16;  // SYN-ACKs that one look at the table repeats

}  // namespace

// After how many timeouts TCP_DEFER_ACCEPT is over (the kernel's secs_to_retrans()).
unsigned Listener::defer_timeouts(std::chrono::seconds time) noexcept {
    unsigned timeouts = 0;
    std::chrono::seconds period{0}, timeout{1};
    for (; period < time && timeouts < 255; timeouts++) {
        period += timeout;
        timeout = std::min(2 * timeout, std::chrono::seconds(120));
    }
    return timeouts;
}

Listener* Listener::create(PathSource& paths, in_port_t port, const Options& options,
                           unsigned backlog) noexcept {
    try {
        return new Listener(paths, port, options, backlog);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

Listener::Listener(PathSource& paths, in_port_t port, const Options& options, unsigned backlog)
    : paths_(paths), port_(port), options_(options), backlog_(backlog) {}

Listener::~Listener() { Background::instance().wheel().cancel(timer_); }

void Listener::unref() noexcept {
    if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

void Listener::set_backlog(unsigned backlog) noexcept {
    const std::lock_guard guard(lock_);
    backlog_ = backlog;
}

void Listener::set_owner(Owner* owner) noexcept {
    const std::lock_guard guard(lock_);
    owner_ = owner;
}

Connection* Listener::accept() noexcept {
    if (pending_.load(std::memory_order_acquire) == 0) return nullptr;
    if (lock_.owned_by_me()) return nullptr;
    const std::lock_guard guard(lock_);
    Connection* c = nullptr;
    if (!ready_.empty()) {
        c = ready_.front();
        ready_.pop_front();
        pending_.store(static_cast<unsigned>(ready_.size()), std::memory_order_release);
    }
    return c;
}

void Listener::close() noexcept {
    std::vector<Connection*> half, done;
    lock_.lock();
    closed_ = true;
    owner_ = nullptr;
    try {
        half.reserve(table_.opening());
        done.assign(ready_.begin(), ready_.end());
    } catch (...) {
        // No memory: what is left over ends by its timers.
    }
    table_.clear([&](HalfOpen& e) {
        if (e.connection != nullptr && half.size() < half.capacity()) half.push_back(e.connection);
    });
    ready_.clear();
    pending_.store(0, std::memory_order_release);
    lock_.unlock();
    for (Connection* c : half) {
        c->abandon_quietly();
        c->unref();
    }
    for (Connection* c : done) {
        c->close(true);
        c->unref();
    }
}

// ---- the port ----

bool Listener::has_connections() noexcept {
    const std::lock_guard guard(lock_);
    return alive_ != 0;
}

void Listener::hold_port(InternalFd socket) noexcept {
    const std::lock_guard guard(lock_);
    if (alive_ != 0) {
        held_port_ = std::move(socket);
        set_reuse();
    }
}

void Listener::set_reuse() noexcept {
    if (!held_port_) return;
    const int on = alive_strict_ == 0;
    const ErrnoKept kept;
    os::setsockopt(held_port_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
}

void Listener::joined(bool reuse) noexcept {
    const std::lock_guard guard(lock_);
    alive_++;
    if (!reuse && alive_strict_++ == 0) set_reuse();
}

void Listener::left(bool reuse) noexcept {
    InternalFd done;  // closed without the lock
    const std::lock_guard guard(lock_);
    alive_--;
    if (!reuse && --alive_strict_ == 0) set_reuse();
    if (alive_ == 0) done = std::move(held_port_);
}

Listener::Counters Listener::counters() noexcept {
    const std::lock_guard guard(lock_);
    return counters_;
}

std::size_t Listener::half_open() noexcept {
    const std::lock_guard guard(lock_);
    return table_.waiting();
}

void Listener::leave_new_to_kernel(bool on) noexcept {
    const std::lock_guard guard(lock_);
    leaving_ = on;
}

// ---- limits; with the lock held ----

bool Listener::full() const noexcept { return ready_.size() + table_.opening() > backlog_; }

std::size_t Listener::most_half_open() const noexcept {
    return std::clamp<std::size_t>(backlog_, kMinHalfOpen, kMaxHalfOpen);
}

bool Listener::ThisSecond::one_more(Time now, std::int64_t limit) noexcept {
    if (now - began >= kSecond) {
        began = now;
        count = 0;
    }
    if (count >= limit) return false;
    count++;
    return true;
}

bool Listener::within_syn_rate(Time now) noexcept {
    const std::int64_t limit = config::get().tcp_max_syn_rate;
    return limit == 0 || syns_.one_more(now, limit);
}

void Listener::batch_end(ring::Ring& ring) noexcept {
    answers_.send_batch(ring);
    unref();
}

// ---- time ----

// With the lock held. Later is found out when it fires.
void Listener::arm() noexcept {
    const Time next = table_.next_due();
    if (next == kNoTime || (armed_for_ != kNoTime && armed_for_ <= next)) return;
    armed_for_ = next;
    Background::instance().wheel().arm(timer_, next);
}

void Listener::timer_fired(Timer& timer) noexcept {
    Listener* l = static_cast<OwnTimer&>(timer).listener;
    // The last reference may have gone meanwhile; its holder waits for this callback in cancel().
    std::uint32_t n = l->refs_.load(std::memory_order_relaxed);
    do {
        if (n == 0) return;
    } while (!l->refs_.compare_exchange_weak(n, n + 1, std::memory_order_acquire, std::memory_order_relaxed));
    l->on_timer();
    l->unref();
}

// How often a SYN-ACK is repeated. As in the kernel's reqsk_timer_handler(), less often when the table is
// more than half full, mostly of entries that have been repeated: the peers of a flood do not answer.
unsigned Listener::retries_now() const noexcept {
    unsigned retries = options_.synack_retries;
    const std::size_t waiting = table_.waiting();
    if (2 * waiting <= most_half_open()) return retries;
    for (std::size_t young = 2 * table_.young(); retries > 2 && waiting >= young; young *= 2) retries--;
    return retries;
}

void Listener::on_timer() noexcept {
    struct Again {
        Handshake handshake;
        ReturnPath way;
    } again[kAgainAtOnce];
    std::size_t count;
    lock_.lock();
    armed_for_ = kNoTime;
    lock_.unlock();
    do {
        const Time now = Clock::now();
        count = 0;
        lock_.lock();
        const Options options = options_;
        const unsigned defer = defer_timeouts(options.defer_accept);
        while (count < kAgainAtOnce) {
            HalfOpen* e = table_.due(now);
            if (e == nullptr) break;
            // While data is waited for, nothing is repeated until the last chance.
            const bool deferred = defer != 0 && e->acked;
            if (e->timeouts >= retries_now() && (!deferred || e->timeouts >= defer)) {
                table_.remove(*e);
                continue;
            }
            const bool repeat = !deferred || e->timeouts + 1u >= defer;
            if (e->timeouts != 255) e->timeouts++;
            e->handshake.repeated |= repeat;
            table_.wait(*e, now);
            if (repeat) again[count++] = {e->handshake, e->way};
        }
        if (count < kAgainAtOnce) arm();
        lock_.unlock();
        for (std::size_t i = 0; i < count; i++)
            answers_.send_syn_ack(again[i].handshake, again[i].way, options, false, nullptr);
    } while (count == kAgainAtOnce);
}

// ---- from connections ----

bool Listener::completed(Connection& connection) noexcept {
    lock_.lock();
    HalfOpen* e = table_.find(connection.endpoints());
    if (closed_ || e == nullptr || e->connection != &connection) {
        lock_.unlock();
        return false;
    }
    try {
        ready_.push_back(&connection);  // the table's reference
    } catch (...) {
        lock_.unlock();
        return false;
    }
    table_.remove(*e);
    counters_.accepted++;
    pending_.store(static_cast<unsigned>(ready_.size()), std::memory_order_release);
    arrivals_.fetch_add(1, std::memory_order_release);
    if (owner_ != nullptr) owner_->changed();
    lock_.unlock();
    return true;
}

bool Listener::hold_up() noexcept {
    const std::lock_guard guard(lock_);
    const bool full_now = ready_.size() > backlog_;
    if (full_now) counters_.overflows++;
    return full_now;
}

void Listener::lost(Connection& connection) noexcept {
    lock_.lock();
    HalfOpen* e = table_.find(connection.endpoints());
    const bool ours = e != nullptr && e->connection == &connection;
    if (ours) table_.remove(*e);
    lock_.unlock();
    if (ours) connection.unref_later();
}

}  // namespace vma::tcp
