// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/ring_watch.h"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <new>

#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/lock.h"
#include "libvma/runtime/wake_fd.h"

namespace vma::sockets {
namespace {

// What an appointment adds to the count of the waiter's descriptor, to which signals add 1: so whoever reads
// it sees which of the two it was, also when it was both.
constexpr std::uint64_t kAppointment = std::uint64_t{1} << 32;

}  // namespace

struct RingWatch::Place {
    std::atomic<ring::Ring*> ring{nullptr};  // set once: rings stay
    Lock lock;                               // a leaf
    Sleeper* leader = nullptr;
    Sleeper* others = nullptr;  // the last one to come first: its caches are the warmest
    std::atomic<unsigned> sleepers{0};
};

constinit RingWatch::Place RingWatch::g_places[kPlaces];

// Null: there is no room.
RingWatch::Place* RingWatch::place_of(ring::Ring* ring) noexcept {
    for (Place& place : g_places) {
        ring::Ring* known = place.ring.load(std::memory_order_acquire);
        if (known == ring) return &place;
        if (known == nullptr && (place.ring.compare_exchange_strong(known, ring) || known == ring))
            return &place;
    }
    return nullptr;
}

RingWatch::RingWatch(Waiter* waiter, ring::Ring* const* rings, unsigned count) noexcept
    : waiter_(waiter), count_(std::min(count, kMost)) {
    for (unsigned i = 0; i < count_; i++) {
        rings_[i] = rings[i];
        places_[i] = waiter_ != nullptr ? place_of(rings[i]) : nullptr;
        enter(i);
    }
}

RingWatch::~RingWatch() {
    for (unsigned i = 0; i < count_; i++) leave(i);
}

void RingWatch::enter(unsigned i) noexcept {
    Sleeper& me = sleepers_[i];
    Place* place = places_[i];
    me.waiter = waiter_;
    if (place == nullptr) {
        me.leads.store(true, std::memory_order_relaxed);
        return;
    }
    const std::lock_guard guard(place->lock);
    place->sleepers.store(place->sleepers.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    if (place->leader == nullptr) {
        place->leader = &me;
        me.leads.store(true, std::memory_order_relaxed);
    } else {
        me.next = place->others;
        if (me.next != nullptr) me.next->before = &me;
        place->others = &me;
    }
}

void RingWatch::leave(unsigned i) noexcept {
    Sleeper& me = sleepers_[i];
    Place* place = places_[i];
    if (place == nullptr) return;
    std::unique_lock guard(place->lock);
    place->sleepers.store(place->sleepers.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
    if (place->leader != &me) {
        (me.before != nullptr ? me.before->next : place->others) = me.next;
        if (me.next != nullptr) me.next->before = me.before;
    } else {
        Sleeper* heir = place->others;
        place->leader = heir;
        if (heir != nullptr) {
            place->others = heir->next;
            if (heir->next != nullptr) heir->next->before = nullptr;
            heir->next = nullptr;
            heir->leads.store(true, std::memory_order_release);
            // Without the lock, which the heir may want next. If it has left meanwhile, it has appointed
            // another one, and its waiter is woken for nothing.
            const int fd = heir->waiter->fd();
            guard.unlock();
            WakeFd::wake(fd, kAppointment);
        }
    }
}

unsigned RingWatch::arm(pollfd* out) noexcept {
    unsigned n = 0;
    for (unsigned i = 0; i < count_; i++) {
        if (!sleepers_[i].leads.load(std::memory_order_acquire)) continue;
        rings_[i]->arm();
        out[n++] = {rings_[i]->channel_fd(), POLLIN, 0};
    }
    return n;
}

unsigned RingWatch::woken() noexcept {
    unsigned frames = 0;
    for (unsigned i = 0; i < count_; i++)
        if (sleepers_[i].leads.load(std::memory_order_acquire)) frames += rings_[i]->woken();
    return frames;
}

bool RingWatch::sleeps_on(short event) noexcept {
    if (waiter_ == nullptr) return false;
    if (event == 0) {  // a channel
        for (unsigned i = 0; i < count_; i++)
            if (places_[i] != nullptr && places_[i]->sleepers.load(std::memory_order_relaxed) > 1)
                return true;
        return false;
    }
    return told() != Told::signalled;
}

RingWatch::Told RingWatch::told() noexcept {
    std::uint64_t count = 0;
    os::raw_syscall(SYS_read, waiter_->fd(), &count, sizeof count);
    return count == 0 ? Told::nothing : count % kAppointment == 0 ? Told::appointed : Told::signalled;
}

void RingWatch::reset_in_child() noexcept {
    for (Place& place : g_places) new (&place) Place;
}
VMA_RENEW_IN_CHILD(RingWatch::reset_in_child);

}  // namespace vma::sockets
