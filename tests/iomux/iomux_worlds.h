// SPDX-License-Identifier: BSD-2-Clause
// What the tests of select, poll and epoll share: small offloaded sockets with a queue and a ring, and two
// worlds that a scenario can be played in, the kernel's and ours.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "libvma/iomux/iomux.h"
#include "libvma/iomux/wait.h"
#include "libvma/runtime/lock.h"
#include "libvma/sockets/fd_table.h"
#include "libvma/sockets/waiter.h"

namespace vma::test::worlds {

using namespace std::chrono_literals;
using vma::sockets::g_fds;
namespace iomux = vma::iomux;

// ---- offloaded sockets ----

class FakeSocket;

// Frames wait here until somebody polls; the channel is readable meanwhile, if it was armed.
class FakeRing {
  public:
    FakeRing() : channel_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
    ~FakeRing() { close(channel_); }
    void frame(FakeSocket* socket);
    unsigned progress();
    int arm() {
        std::lock_guard guard(lock_);
        armed_ = true;
        if (!frames_.empty()) eventfd_write(channel_, 1);
        return channel_;
    }
    std::atomic<unsigned> polls{0};

  private:
    vma::Lock lock_;
    std::vector<FakeSocket*> frames_;
    bool armed_ = false;
    int channel_;
};

class FakeSocket final : public vma::sockets::Socket {
  public:
    explicit FakeSocket(FakeRing& ring) : ring_(ring) {}
    void deliver() {
        std::lock_guard guard(lock_);
        queued_++;
        arrivals_++;
        waiters_.signal_all();
    }
    void consume() {
        ASSERT_GT(queued_.load(), 0u);
        queued_--;
    }
    FakeRing& ring() { return ring_; }
    bool no_waiters() {
        std::lock_guard guard(lock_);
        return waiters_.empty() && arms == disarms;
    }

    bool offloaded() const noexcept override { return is_offloaded; }
    std::uint32_t ready_events() const noexcept override { return queued_ != 0 ? EPOLLIN | EPOLLRDNORM : 0; }
    std::uint32_t arrivals() const noexcept override { return arrivals_; }
    unsigned progress() noexcept override { return ring_.progress(); }
    void flush() noexcept override { flushes++; }
    unsigned arm(int* fds, unsigned room) noexcept override {
        arms++;
        if (room == 0) return 0;
        fds[0] = ring_.arm();
        if (when_armed) std::exchange(when_armed, nullptr)();
        return 1;
    }
    void disarm() noexcept override { disarms++; }
    bool add_waiter(vma::sockets::Waiter* w) noexcept override {
        if (before_waiter) std::exchange(before_waiter, nullptr)();
        std::lock_guard guard(lock_);
        return waiters_.add(w);
    }
    void remove_waiter(vma::sockets::Waiter* w) noexcept override {
        std::lock_guard guard(lock_);
        waiters_.remove(w);
    }

    // Run once, at the moments between a call's last look and its sleep where a race is lost.
    std::function<void()> before_waiter, when_armed;

    std::atomic<unsigned> flushes{0}, arms{0}, disarms{0};
    std::atomic<bool> is_offloaded{true}, recycled{false};

  protected:
    void recycle() noexcept override { recycled = true; }

  private:
    FakeRing& ring_;
    vma::Lock lock_;
    std::atomic<unsigned> queued_{0}, arrivals_{0};
    vma::sockets::WaiterList waiters_;
};

inline void FakeRing::frame(FakeSocket* socket) {
    std::lock_guard guard(lock_);
    frames_.push_back(socket);
    if (armed_) eventfd_write(channel_, 1);
}

inline unsigned FakeRing::progress() {
    polls++;
    std::lock_guard guard(lock_);
    eventfd_t count;
    if (armed_ && !frames_.empty()) eventfd_read(channel_, &count);
    auto n = static_cast<unsigned>(frames_.size());
    for (FakeSocket* s : frames_) s->deliver();
    frames_.clear();
    return n;
}

// Objects are never freed, as in the library.
inline FakeSocket* make_fake(FakeRing& ring) {
    static std::vector<std::unique_ptr<FakeSocket>> all;
    static std::mutex lock;
    std::lock_guard guard(lock);
    all.push_back(std::make_unique<FakeSocket>(ring));
    return all.back().get();
}

// ---- the two worlds ----

inline timespec msec(long n) { return {n / 1000, n % 1000 * 1'000'000}; }

// A program's view: descriptors, what happens to them, and the calls.
class World {
  public:
    virtual ~World() {
        for (int fd : open_) close_fd(fd);
    }
    // A socket whose data comes the fast way where there is one. Returns the descriptor.
    virtual int socket() = 0;
    virtual void deliver(int fd) = 0;
    virtual void consume(int fd) = 0;
    virtual int poll(pollfd* fds, nfds_t n, const timespec* t, const sigset_t* m = nullptr) = 0;
    virtual int select(int n, fd_set* r, fd_set* w, fd_set* e, const timespec* t,
                       const sigset_t* m = nullptr) = 0;
    virtual int epoll_ctl(int epfd, int op, int fd, epoll_event* ev) = 0;
    virtual int epoll_wait(int epfd, epoll_event* ev, int n, const timespec* t,
                           const sigset_t* m = nullptr) = 0;
    virtual void closed(int) {}
    virtual void dupped(int, int) {}
    virtual const char* name() const = 0;

    int epoll() { return track(epoll_create1(EPOLL_CLOEXEC)); }
    int plain_eventfd() { return track(eventfd(0, EFD_NONBLOCK)); }
    int dup(int fd) {
        int copy = track(::dup(fd));
        dupped(fd, copy);
        return copy;
    }
    void close(int fd) {
        open_.erase(fd);
        close_fd(fd);
    }
    int peer(int fd) const { return peers_.at(fd); }
    int track(int fd) {
        EXPECT_GE(fd, 0);
        open_.insert(fd);
        return fd;
    }

    // Numbers differ between the worlds, so accounts use names.
    int named(const std::string& name, int fd) {
        names_[fd] = name;
        return fd;
    }
    void note(const std::string& text) { account += text + "\n"; }
    std::string result(int rc) { return rc < 0 ? strerrorname_np(errno) : std::to_string(rc); }
    void ctl(int epfd, int op, int fd, std::uint32_t events, std::uint64_t data) {
        epoll_event ev{};
        ev.events = events;
        ev.data.u64 = data;
        errno = 0;
        note("ctl " + result(epoll_ctl(epfd, op, fd, &ev)));
    }
    // One epoll_wait; events sorted, since the order of members is not defined between two sources.
    void wait(int epfd, int max = 16, long ms = 0) {
        std::vector<epoll_event> ev(static_cast<std::size_t>(std::max(max, 1)));
        timespec t = msec(ms);
        int n = epoll_wait(epfd, ev.data(), max, &t);
        std::vector<std::string> seen;
        for (int i = 0; i < n; i++)
            seen.push_back(fmt::format(" {}:{:x}", std::uint64_t{ev[static_cast<std::size_t>(i)].data.u64},
                                       std::uint32_t{ev[static_cast<std::size_t>(i)].events}));
        std::sort(seen.begin(), seen.end());
        note("wait " + result(n) + fmt::format("{}", fmt::join(seen, "")));
    }
    void polled(std::vector<pollfd> fds, long ms = 0) {
        timespec t = msec(ms);
        int n = poll(fds.data(), fds.size(), &t);
        std::string text = "poll " + result(n);
        for (auto& p : fds) text += fmt::format(" {:x}", p.revents);
        note(text);
    }
    std::string account;

  protected:
    virtual void close_fd(int fd) {
        closed(fd);
        ::close(fd);
        if (auto it = peers_.find(fd); it != peers_.end()) {
            ::close(it->second);
            peers_.erase(it);
        }
    }
    int pair() {
        int ends[2];
        EXPECT_EQ(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, ends), 0);
        peers_[ends[0]] = ends[1];
        return track(ends[0]);
    }
    std::set<int> open_;
    std::map<int, int> peers_;
    std::map<int, std::string> names_;
};

inline int to_ms(const timespec* t) {
    return t == nullptr ? -1 : static_cast<int>(t->tv_sec * 1000 + (t->tv_nsec + 999'999) / 1'000'000);
}

class KernelWorld : public World {
  public:
    int socket() override { return pair(); }
    void deliver(int fd) override { ASSERT_EQ(write(peer(fd), "x", 1), 1); }
    void consume(int fd) override {
        char c;
        ASSERT_EQ(read(fd, &c, 1), 1);
    }
    int poll(pollfd* f, nfds_t n, const timespec* t, const sigset_t* m) override {
        return ::ppoll(f, n, t, m);
    }
    int select(int n, fd_set* r, fd_set* w, fd_set* e, const timespec* t, const sigset_t* m) override {
        return ::pselect(n, r, w, e, t, m);
    }
    int epoll_ctl(int ep, int op, int fd, epoll_event* ev) override { return ::epoll_ctl(ep, op, fd, ev); }
    int epoll_wait(int ep, epoll_event* ev, int n, const timespec* t, const sigset_t* m) override {
        return ::epoll_pwait(ep, ev, n, to_ms(t), m);
    }
    const char* name() const override { return "kernel"; }
};

class OurWorld : public World {
  public:
    ~OurWorld() override {
        for (int fd : std::vector<int>(open_.begin(), open_.end())) close(fd);
    }
    int socket() override {
        int fd = pair();
        FakeSocket* s = make_fake(ring);
        EXPECT_TRUE(g_fds.insert(fd, s));
        s->unref();
        fakes[fd] = s;
        return fd;
    }
    void deliver(int fd) override { ring.frame(fakes.at(fd)); }
    void consume(int fd) override {
        ring.progress();
        fakes.at(fd)->consume();
    }
    int poll(pollfd* f, nfds_t n, const timespec* t, const sigset_t* m) override {
        return iomux::poll(f, n, t, m);
    }
    int select(int n, fd_set* r, fd_set* w, fd_set* e, const timespec* t, const sigset_t* m) override {
        return iomux::select(n, r, w, e, t, m, nullptr);
    }
    int epoll_ctl(int ep, int op, int fd, epoll_event* ev) override {
        return iomux::epoll_ctl(ep, op, fd, ev);
    }
    int epoll_wait(int ep, epoll_event* ev, int n, const timespec* t, const sigset_t* m) override {
        if (g_fds.peek(ep) != nullptr) return iomux::epoll_wait(ep, ev, n, t, m);
        return iomux::kernel_epoll_wait(ep, ev, n, t, m,
                                        [&] { return ::epoll_pwait(ep, ev, n, to_ms(t), m); });
    }
    void closed(int fd) override { g_fds.remove(fd); }
    void dupped(int from, int to) override {
        vma::sockets::on_dup(from, to);
        if (fakes.contains(from)) fakes[to] = fakes[from];
    }
    const char* name() const override { return "ours"; }
    FakeRing ring;
    std::map<int, FakeSocket*> fakes;
};

// Sets the spin for a scope.
class Spin {
  public:
    Spin(std::int64_t usec, std::int64_t ratio = 10) : old_(iomux::spin_policy()) {
        iomux::set_spin_policy({std::chrono::microseconds(usec), ratio});
    }
    ~Spin() { iomux::set_spin_policy(old_); }

  private:
    iomux::SpinPolicy old_;
};

// Plays `scene` in both worlds, ours also without spinning, and compares.
inline void same(const std::function<void(World&)>& scene) {
    std::string expected;
    {
        KernelWorld world;
        scene(world);
        expected = world.account;
    }
    for (std::int64_t usec : {0, 2000}) {
        Spin spin(usec);
        OurWorld world;
        scene(world);
        EXPECT_EQ(world.account, expected) << "spin " << usec;
        for (auto& [fd, s] : world.fakes) EXPECT_TRUE(s->no_waiters());
    }
    ASSERT_FALSE(expected.empty());
}

// Runs `act` on another thread after a while.
class Later {
  public:
    Later(std::chrono::milliseconds after, std::function<void()> act)
        : thread_([=] {
              std::this_thread::sleep_for(after);
              act();
          }) {}
    ~Later() { thread_.join(); }

  private:
    std::thread thread_;
};

}  // namespace vma::test::worlds
