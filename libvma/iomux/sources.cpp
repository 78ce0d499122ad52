// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/iomux/sources.h"

#include "libvma/ring/ring.h"

namespace vma::iomux {

using sockets::Kind;
using sockets::Ref;
using sockets::Socket;

void WaitTargets::add(Ref<sockets::FdObject> object) {
    auto* raw = object.get();
    bool taken = raw->try_ref();  // a second count, so that the typed Ref below owns one of its own
    if (!taken) return;
    if (raw->kind() == Kind::socket) {
        Ref<Socket> socket(static_cast<Socket*>(raw));
        sockets_.push_back(std::move(socket));
    } else {
        Ref<EpollSet> set(static_cast<EpollSet*>(raw));
        roots_.push_back(std::move(set));
        look_into(roots_.back().get(), 0);
    }
}

void WaitTargets::look_into(EpollSet* set, unsigned depth) {
    // In a handler that interrupted the set's own code, only the kernel answers.
    if (depth > EpollSet::kMaxDepth || set->busy_in_this_thread()) return;
    views_.push_back(View{set, set->members()});
    // By index: views_ may move while inner sets are appended; the members themselves do not.
    auto members = views_.back().members;
    for (const auto& inner : members->sets) look_into(inner.get(), depth + 1);
}

bool WaitTargets::stale() const noexcept {
    for (const View& view : views_)
        if (view.members->generation != view.set->generation()) return true;
    return false;
}

void WaitTargets::refresh(bool rings) {
    constexpr unsigned kRingRounds = 64;
    if (!views_.empty() && stale()) {
        views_.clear();
        for (auto& root : roots_) look_into(root.get(), 0);
        rings = true;
    }
    if (rings || rounds_ == 0 || rounds_ == kRingRounds) find_rings();
    rounds_++;
}

void WaitTargets::find_rings() {
    rounds_ = 0;
    rings_.clear();
    own_rings_.clear();
    for (const View& view : views_)
        for (ring::Ring* ring : view.members->rings) take_ring(ring);
    each_socket([&](Socket& s) {
        take_rings(s);
        return true;
    });
}

void WaitTargets::take_rings(Socket& socket) {
    constexpr unsigned kRoom = 16;
    ring::Ring* rings[kRoom];
    unsigned n = socket.rings(rings, kRoom);
    if (n > kRoom)  // n may be kRingsUnknown
        own_rings_.push_back(&socket);
    else
        for (unsigned i = 0; i < n; i++) take_ring(rings[i]);
}

void WaitTargets::take_ring(ring::Ring* ring) {
    for (ring::Ring* known : rings_)
        if (known == ring) return;
    rings_.push_back(ring);
}

template <class F>
void WaitTargets::each_socket(F&& visit) const {
    for (const auto& socket : sockets_)
        if (!visit(*socket)) return;
    for (const View& view : views_)
        for (const auto& socket : view.members->sockets)
            if (!visit(*socket)) return;
}

void WaitTargets::flush() noexcept {
    for (ring::Ring* ring : rings_) ring->flush();
    for (Socket* socket : own_rings_) socket->flush();
}

unsigned WaitTargets::progress() noexcept {
    unsigned taken = 0;
    for (ring::Ring* ring : rings_) taken += ring->poll();
    for (Socket* socket : own_rings_) taken += socket->progress();
    return taken;
}

bool WaitTargets::offloaded() const noexcept {
    for (const View& view : views_)
        if (view.set->offloaded()) return true;
    for (const auto& socket : sockets_)
        if (socket->readiness() != sockets::Readiness::kernel) return true;
    return false;
}

void ArmedWait::watch(int fd) {
    // Many sockets share few rings, so the list stays short.
    for (int known : fds_)
        if (known == fd) return;
    fds_.push_back(fd);
}

void ArmedWait::arm() {
    if (waiter_ != nullptr) {
        for (const auto& view : sources_.views_) {
            if (!view.set->add_waiter(waiter_)) complete_ = false;
            sets_++;
        }
    }
    // All sockets, also those that are not offloaded now: another thread may bind one meanwhile.
    if (waiter_ != nullptr)
        sources_.each_socket([&](Socket& s) {
            if (!s.add_waiter(waiter_)) complete_ = false;
            waiting_++;
            return true;
        });
    if (interrupts_) {
        const std::size_t count = sources_.rings_.size();
        if (count <= sockets::RingWatch::kMost) {
            rings_.emplace(complete() ? waiter_ : nullptr, sources_.rings_.data(),
                           static_cast<unsigned>(count));
            watch_rings();
        } else {
            for (ring::Ring* ring : sources_.rings_) {
                ring->arm();
                watch(ring->channel_fd());
            }
        }
    }
    for (Socket* s : sources_.own_rings_) {
        if (!interrupts_) break;
        constexpr unsigned kRoom =
            16;  // a socket listens on a few rings at most: one for each port of a bond
        int fds[kRoom];
        armed_++;
        unsigned n = s->arm(fds, kRoom);
        for (unsigned i = 0; i < n; i++) watch(fds[i]);
    }
    if (waiter_ != nullptr) watch(waiter_->fd());
}

void ArmedWait::watch_rings() {
    pollfd channels[sockets::RingWatch::kMost];
    const unsigned n = rings_->arm(channels);
    for (unsigned i = 0; i < n; i++) watch(channels[i].fd);
}

bool ArmedWait::sleeps_on() {
    if (!rings_) {
        for (ring::Ring* ring : sources_.rings_) ring->woken();
        return false;
    }
    const unsigned frames = rings_->woken();
    if (!complete() || sources_.own_rings_.size() != 0) return false;
    const auto told = rings_->told();
    if (told == sockets::RingWatch::Told::signalled) return false;
    // A frame that another thread was quicker to take looks like an event of the kernel's descriptors, which
    // would be there still.
    const bool vain = frames == 0 && told == sockets::RingWatch::Told::nothing;
    vain_ = vain ? vain_ + 1 : 0;
    if (vain_ > 1) return false;
    fds_.clear();
    watch(waiter_->fd());
    watch_rings();
    return true;
}

ArmedWait::~ArmedWait() {
    for (std::size_t i = 0; i < armed_; i++) sources_.own_rings_.data()[i]->disarm();
    sources_.each_socket([&](Socket& s) {
        if (waiting_ == 0) return false;
        waiting_--;
        s.remove_waiter(waiter_);
        return waiting_ != 0;
    });
    for (std::size_t i = 0; i < sets_; i++) sources_.views_.data()[i].set->remove_waiter(waiter_);
}

}  // namespace vma::iomux
