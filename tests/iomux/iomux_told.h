// SPDX-License-Identifier: BSD-2-Clause
// Test sockets that tell of their changes, as UdpSocket and TcpSocket do, and count what they are asked.
#pragma once

#include <poll.h>

#include <set>

#include "libvma/sockets/ready_hook.h"
#include "tests/iomux/iomux_worlds.h"

namespace vma::test::worlds {

using vma::sockets::Readiness;

inline constexpr std::uint32_t kIn = EPOLLIN | EPOLLRDNORM, kOut = EPOLLOUT | EPOLLWRNORM,
                               kGone = EPOLLHUP | EPOLLERR;

class Told : public vma::sockets::Socket {
  public:
    bool offloaded() const noexcept override { return mode != Readiness::kernel; }
    Readiness readiness() const noexcept override { return mode; }
    std::uint32_t edges(std::uint32_t events) const noexcept override {
        return all_ + ((events & kIn) != 0 ? in_.load() : 0) + ((events & kOut) != 0 ? out_.load() : 0);
    }
    bool add_waiter(vma::sockets::Waiter* w) noexcept override {
        std::lock_guard guard(lock_);
        waiters_added++;
        return waiters_.add(w);
    }
    void remove_waiter(vma::sockets::Waiter* w) noexcept override {
        std::lock_guard guard(lock_);
        waiters_.remove(w);
    }
    bool subscribe(vma::sockets::ReadyHook* hook) noexcept override {
        std::lock_guard guard(lock_);
        if (silent) return false;
        hooks_.add(hook);
        subscribed_.insert(hook);
        return true;
    }
    bool unsubscribe(vma::sockets::ReadyHook* hook) noexcept override {
        std::lock_guard guard(lock_);
        if (busy) return false;
        hooks_.remove(hook);
        subscribed_.erase(hook);
        return true;
    }
    unsigned rings(vma::ring::Ring**, unsigned) const noexcept override { return 0; }
    unsigned progress() noexcept override {
        progressed++;
        return 0;
    }
    // Something happened, as a TCP engine would say it. `change` is made under the lock.
    template <class F>
    void woken(std::uint32_t key, F&& change) noexcept {
        std::lock_guard guard(lock_);
        change();
        if ((key & kIn) != 0) in_++;
        if ((key & kOut) != 0) out_++;
        if (key == 0 || (key & kGone) != 0) all_++;
        waiters_.signal_all();
        hooks_.wake_all(key);
    }
    bool alone() {
        std::lock_guard guard(lock_);
        return waiters_.empty() && subscribed_.empty();
    }

    std::atomic<Readiness> mode{Readiness::kernel};
    std::atomic<bool> silent{false}, busy{false}, recycled{false};
    mutable std::atomic<unsigned> asked{0};
    std::atomic<unsigned> waiters_added{0}, progressed{0};

  protected:
    void last_fd_closed() noexcept override {
        woken(0, [] {});
    }
    void recycle() noexcept override { recycled = true; }

  private:
    vma::Lock lock_;
    std::atomic<unsigned> in_{0}, out_{0}, all_{0};
    vma::sockets::WaiterList waiters_;
    vma::sockets::ReadyHooks hooks_;
    std::set<const vma::sockets::ReadyHook*> subscribed_;
};

// What is true is set by hand.
class Flags final : public Told {
  public:
    std::uint32_t ready_events() const noexcept override {
        asked++;
        return bits;
    }
    void set(std::uint32_t events) {
        woken(events, [&] { bits |= events; });
    }
    std::atomic<std::uint32_t> bits{0};
};

// Objects are never freed, as in the library.
template <class T, class... Args>
T* keep(Args... args) {
    static std::vector<std::unique_ptr<T>> all;
    all.push_back(std::make_unique<T>(args...));
    return all.back().get();
}

enum class Call { poll, select, epoll, outer };

inline int wait_in(World& w, Call call, int fd, int ep, int outer) {
    pollfd p{call == Call::outer ? outer : fd, POLLIN, 0};
    fd_set r, e;
    FD_ZERO(&r);
    FD_SET(fd, &r);
    e = r;
    epoll_event ev;
    timespec t{20, 0};
    switch (call) {
        case Call::poll:
        case Call::outer:
            return w.poll(&p, 1, &t);
        case Call::select:
            return w.select(fd + 1, &r, nullptr, &e, &t);
        default:
            return w.epoll_wait(ep, &ev, 1, &t);
    }
}

}  // namespace vma::test::worlds
