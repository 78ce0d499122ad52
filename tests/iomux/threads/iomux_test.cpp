// SPDX-License-Identifier: BSD-2-Clause
// select, poll and epoll over offloaded descriptors, against the kernel: most cases are scenarios that write
// down all they see, played once on kernel sockets with the kernel's calls and once on sockets whose data
// waits in user space with ours. Both accounts must be the same.
//
// The offloaded sockets are small ones: a real shadow descriptor, a queue, a ring with an event channel
// (iomux_worlds.h).
#include "libvma/iomux/iomux.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "libvma/iomux/epoll_set.h"
#include "libvma/iomux/kernel_set.h"
#include "libvma/iomux/wait.h"
#include "libvma/os/calls.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/signals.h"
#include "libvma/sockets/fd_table.h"
#include "libvma/sockets/waiter.h"
#include "tests/iomux/iomux_worlds.h"
#include "tests/support/child.h"

namespace {

using namespace vma::test::worlds;
namespace signals = vma::runtime::signals;

// ---- poll ----

TEST(IomuxPoll, ReportsBothSides) {
    same([](World& w) {
        int a = w.socket(), b = w.socket(), c = w.plain_eventfd();
        auto all = [&] {
            w.polled({{a, POLLIN, 0},
                      {b, POLLIN | POLLOUT, 0},
                      {c, POLLIN, 0},
                      {a, POLLRDNORM, 0},
                      {a, POLLOUT, 0},
                      {-1, POLLIN, 0}});
        };
        all();
        w.deliver(a);
        all();
        w.deliver(b);
        all();
        eventfd_write(c, 1);
        all();
        w.consume(a);
        all();
        w.consume(b);
        all();
    });
}

TEST(IomuxPoll, ShadowDataCounts) {
    same([](World& w) {
        int a = w.socket();
        ASSERT_EQ(write(w.peer(a), "x", 1), 1);  // what the kernel's side received
        w.polled({{a, POLLIN, 0}}, 50);
        w.deliver(a);
        w.polled({{a, POLLIN | POLLRDNORM | POLLOUT, 0}});
    });
}

TEST(IomuxPoll, ErrorsAreTheKernels) {
    same([](World& w) {
        int a = w.socket();
        pollfd p{a, POLLIN, 0};
        timespec bad{0, 1'000'000'000}, negative{-1, 0}, none{0, 0};
        w.note(w.result(w.poll(&p, 1, &bad)));
        w.note(w.result(w.poll(&p, 1, &negative)));
        w.note(w.result(w.poll(nullptr, 1, &none)));
        std::vector<pollfd> many(2000, pollfd{-1, 0, 0});
        many[7] = p;
        rlimit old{}, low{};
        getrlimit(RLIMIT_NOFILE, &old);
        low = old;
        low.rlim_cur = 1999;
        setrlimit(RLIMIT_NOFILE, &low);
        w.note(w.result(w.poll(many.data(), many.size(), &none)));
        setrlimit(RLIMIT_NOFILE, &old);
        w.close(a);
        w.polled({{a, POLLIN, 0}});
    });
}

TEST(IomuxPoll, ErrnoIsUntouchedOnSuccess) {
    OurWorld w;
    int a = w.socket();
    pollfd p{a, POLLIN, 0};
    timespec t = msec(1);
    errno = 4711;
    EXPECT_EQ(w.poll(&p, 1, &t, nullptr), 0);
    EXPECT_EQ(errno, 4711);
    w.deliver(a);
    EXPECT_EQ(w.poll(&p, 1, &t, nullptr), 1);
    EXPECT_EQ(errno, 4711);
}

TEST(IomuxPoll, AsManyDescriptorsAsTheLimitAllows) {
    Spin spin(0);
    OurWorld w;
    int a = w.socket(), e = w.plain_eventfd();
    rlimit old{}, low{};
    getrlimit(RLIMIT_NOFILE, &old);
    low = old;
    low.rlim_cur = std::min<rlim_t>(old.rlim_cur, 1200);
    std::vector<pollfd> many(low.rlim_cur, pollfd{e, POLLIN, 0});
    many[5].fd = a;
    setrlimit(RLIMIT_NOFILE, &low);
    {
        Later later(20ms, [&] { w.deliver(a); });
        EXPECT_EQ(w.poll(many.data(), many.size(), nullptr, nullptr), 1);
    }
    w.consume(a);
    {
        Later later(20ms, [&] { eventfd_write(e, 1); });
        // It may become ready in the midst of a look at all of them.
        EXPECT_GE(w.poll(many.data(), many.size(), nullptr, nullptr), 1);
    }
    EXPECT_EQ(w.poll(many.data(), many.size(), nullptr, nullptr), static_cast<int>(many.size()) - 1);
    setrlimit(RLIMIT_NOFILE, &old);
}

// ---- select ----

struct Sets {
    fd_set r, w, e;
    Sets() {
        FD_ZERO(&r);
        FD_ZERO(&w);
        FD_ZERO(&e);
    }
};

std::string show(const fd_set& set, const std::vector<int>& fds) {
    std::string text;
    for (int fd : fds) text += FD_ISSET(fd, &set) ? '1' : '0';
    return text;
}

TEST(IomuxSelect, ReportsBothSides) {
    same([](World& w) {
        int a = w.socket(), b = w.socket(), c = w.plain_eventfd();
        std::vector<int> fds{a, b, c};
        auto once = [&](std::initializer_list<int> r, std::initializer_list<int> o, long ms = 0) {
            Sets s;
            for (int fd : r) FD_SET(fd, &s.r);
            for (int fd : o) FD_SET(fd, &s.w);
            timespec t = msec(ms);
            int n = w.select(std::max({a, b, c}) + 1, &s.r, &s.w, &s.e, &t);
            w.note(w.result(n) + " " + show(s.r, fds) + " " + show(s.w, fds));
        };
        once({a, b, c}, {});
        once({a}, {a, b});
        w.deliver(a);
        once({a, b, c}, {});
        once({a, b}, {a, b, c}, 20);
        once({b}, {}, 5);
        eventfd_write(c, 1);
        once({a, b, c}, {b});
        w.consume(a);
        once({a}, {}, 5);
        w.close(b);
        once({a, b}, {});
    });
}

TEST(IomuxSelect, ErrorsLeaveTheSetsAlone) {
    same([](World& w) {
        int a = w.socket(), gone = w.plain_eventfd();
        w.close(gone);
        w.deliver(a);
        Sets s;
        FD_SET(a, &s.r);
        FD_SET(gone, &s.r);
        timespec none{0, 0}, bad{0, -1};
        w.note(w.result(w.select(std::max(a, gone) + 1, &s.r, nullptr, nullptr, &none)) +
               show(s.r, {a, gone}));
        w.note(w.result(w.select(-1, &s.r, nullptr, nullptr, &none)) + show(s.r, {a, gone}));
        w.note(w.result(w.select(std::max(a, gone) + 1, &s.r, nullptr, nullptr, &bad)) +
               show(s.r, {a, gone}));
    });
}

TEST(IomuxSelect, SaysWhatIsLeftOfTheTimeout) {
    for (std::int64_t usec : {0, 1'000'000}) {
        Spin spin(usec);
        OurWorld w;
        int a = w.socket();
        Sets s;
        FD_SET(a, &s.r);
        timespec t{5, 0}, left{77, 77};
        Later later(30ms, [&] { w.deliver(a); });
        EXPECT_EQ(iomux::select(a + 1, &s.r, nullptr, nullptr, &t, nullptr, &left), 1);
        EXPECT_LE(left.tv_sec, 4);
        s = Sets{};
        FD_SET(a, &s.r);
        w.consume(a);
        t = msec(3);
        EXPECT_EQ(iomux::select(a + 1, &s.r, nullptr, nullptr, &t, nullptr, &left), 0);
        EXPECT_EQ(left.tv_sec, 0);
        EXPECT_EQ(left.tv_nsec, 0);
    }
}

// A descriptor that is only in the write set and hung up must not keep the call awake.
TEST(IomuxSelect, SleepsBesideAHungUpDescriptor) {
    Spin spin(0);
    OurWorld w;
    int a = w.socket();
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    close(ends[1]);  // the read end: hung up, never writable
    Sets s;
    FD_SET(a, &s.r);
    FD_SET(ends[0], &s.w);
    unsigned before = w.ring.polls;
    timespec t = msec(50);
    EXPECT_EQ(w.select(std::max(a, ends[0]) + 1, &s.r, &s.w, nullptr, &t, nullptr), 0);
    EXPECT_LT(w.ring.polls - before, 20u);
    close(ends[0]);
}

TEST(IomuxSelect, SetsBeyondFdSetsize) {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < 3200)
        limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 4096), setrlimit(RLIMIT_NOFILE, &limit);
    Spin spin(0);
    OurWorld w;
    int a = w.socket();
    int high = fcntl(w.plain_eventfd(), F_DUPFD, 3000);
    ASSERT_GE(high, 3000);
    std::vector<unsigned long> words(4096 / 64, 0);
    auto* set = reinterpret_cast<fd_set*>(words.data());
    words[static_cast<std::size_t>(a) / 64] |= 1ul << (a % 64);
    words[static_cast<std::size_t>(high) / 64] |= 1ul << (high % 64);
    {
        Later later(10ms, [&] { eventfd_write(high, 1); });
        EXPECT_EQ(iomux::select(high + 1, set, nullptr, nullptr, nullptr, nullptr, nullptr), 1);
    }
    EXPECT_NE(words[static_cast<std::size_t>(high) / 64], 0u);
    EXPECT_EQ(words[static_cast<std::size_t>(a) / 64], 0u);
    close(high);
}

TEST(IomuxSelect, LimitIgnoresTheLibrarysDescriptors) {
    auto outcome = vma::test::in_child([] {
        vma::InternalFd ours(eventfd(0, 0));
        EXPECT_EQ(iomux::select_limit(5), 5);
        EXPECT_EQ(iomux::select_limit(-1), -1);
        EXPECT_EQ(iomux::select_limit(1 << 20), 1024);
        int high = fcntl(ours.get(), F_DUPFD, 1500);
        EXPECT_GT(iomux::select_limit(1 << 20), 1500);
        EXPECT_EQ(iomux::select_limit(1501), 1501);
        close(high);
    });
    EXPECT_TRUE(outcome.passed());
}

// ---- waiting ----

enum class Call { poll, select, epoll };
class IomuxWait : public testing::TestWithParam<std::tuple<Call, std::int64_t>> {
  protected:
    Spin spin{std::get<1>(GetParam())};
    OurWorld w;
    int a = w.socket();
    int ep = w.epoll();
    void SetUp() override {
        epoll_event ev{};
        ev.events = EPOLLIN;
        ASSERT_EQ(w.epoll_ctl(ep, EPOLL_CTL_ADD, a, &ev), 0);
    }
    int wait(const timespec* t, const sigset_t* mask = nullptr) {
        switch (std::get<0>(GetParam())) {
            case Call::poll: {
                pollfd p{a, POLLIN, 0};
                return w.poll(&p, 1, t, mask);
            }
            case Call::select: {
                fd_set r;
                FD_ZERO(&r);
                FD_SET(a, &r);
                return w.select(a + 1, &r, nullptr, nullptr, t, mask);
            }
            default: {
                epoll_event ev;
                return w.epoll_wait(ep, &ev, 1, t, mask);
            }
        }
    }
};

std::string case_name(const testing::TestParamInfo<IomuxWait::ParamType>& info) {
    const char* calls[] = {"Poll", "Select", "Epoll"};
    auto usec = std::get<1>(info.param);
    return std::string(calls[static_cast<int>(std::get<0>(info.param))]) + (usec < 0    ? "Spinning"
                                                                            : usec == 0 ? "Sleeping"
                                                                                        : "Both");
}

INSTANTIATE_TEST_SUITE_P(All, IomuxWait,
                         testing::Combine(testing::Values(Call::poll, Call::select, Call::epoll),
                                          testing::Values(0, 1000, -1)),
                         case_name);

// What concerns the sleep has no case for calls that spin for ever.
class IomuxSleep : public IomuxWait {};
INSTANTIATE_TEST_SUITE_P(All, IomuxSleep,
                         testing::Combine(testing::Values(Call::poll, Call::select, Call::epoll),
                                          testing::Values(0, 1000)),
                         case_name);

TEST_P(IomuxWait, NeverEndsEarly) {
    for (long usec : {1, 300, 5000, 12345}) {
        timespec t{0, usec * 1000};
        const vma::clock::Time before = vma::clock::monotonic();
        EXPECT_EQ(wait(&t), 0);
        EXPECT_GE((vma::clock::monotonic() - before) / std::chrono::microseconds(1),
                  static_cast<std::uint64_t>(usec));
    }
    EXPECT_TRUE(w.fakes[a]->no_waiters());
}

TEST_P(IomuxWait, ZeroTimeoutLooksAtTheRings) {
    timespec none{0, 0};
    EXPECT_EQ(wait(&none), 0);
    w.deliver(a);  // still in the ring
    EXPECT_EQ(wait(&none), 1);
    EXPECT_EQ(w.fakes[a]->arms.load(), 0u);
    EXPECT_GE(w.fakes[a]->flushes.load(), 2u);
}

TEST_P(IomuxWait, WakesForAFrame) {
    Later later(20ms, [&] { w.deliver(a); });
    EXPECT_EQ(wait(nullptr), 1);
}

// Another thread takes the frame off the ring, so the ring's channel stays silent.
TEST_P(IomuxWait, WakesWhenAnotherThreadDelivers) {
    Later later(20ms, [&] { w.fakes[a]->deliver(); });
    EXPECT_EQ(wait(nullptr), 1);
}

TEST_P(IomuxWait, WakesForTheShadowSocket) {
    Later later(20ms, [&] { ASSERT_EQ(write(w.peer(a), "x", 1), 1); });
    EXPECT_EQ(wait(nullptr), 1);
}

TEST_P(IomuxWait, LosesNoWakeUp) {
    constexpr int kRounds = 3000;
    std::atomic<int> turn{0};
    std::thread other([&] {
        for (int i = 0; i < kRounds; i++) {
            while (turn.load() != i) std::this_thread::yield();
            for (int spin = i * 7 % 400; spin > 0; spin--) vma::cpu_relax();
            switch (i % 3) {
                case 0:
                    w.fakes[a]->deliver();
                    break;
                case 1:
                    w.deliver(a);
                    break;
                default:  // two threads race for the ring
                    w.deliver(a);
                    w.ring.progress();
            }
        }
    });
    for (int i = 0; i < kRounds; i++) {
        turn = i;
        ASSERT_EQ(wait(nullptr), 1) << i;
        w.consume(a);
    }
    other.join();
}

std::atomic<int> g_handled{0};
int g_pipe_in_handler = -1;

void on_signal(int) {
    g_handled++;
    if (g_pipe_in_handler >= 0) eventfd_write(g_pipe_in_handler, 1);
}

// Sends SIGUSR1 to the calling thread after a while.
class Kill {
  public:
    explicit Kill(std::chrono::milliseconds after, int sig = SIGUSR1)
        : self_(pthread_self()), later_(after, [this, sig] { pthread_kill(self_, sig); }) {}

  private:
    pthread_t self_;
    Later later_;
};

void install(int flags, int sig = SIGUSR1) {
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = flags;
    signals::start();
    ASSERT_EQ(signals::sigaction(sig, &action, nullptr), 0);
    g_handled = 0;
    g_pipe_in_handler = -1;
}

TEST_P(IomuxWait, HandlerInterrupts) {
    for (int flags : {0, SA_RESTART}) {
        install(flags);
        Kill kill(20ms);
        EXPECT_EQ(wait(nullptr), -1);
        EXPECT_EQ(errno, EINTR);
        EXPECT_EQ(g_handled.load(), 1);
    }
    EXPECT_TRUE(w.fakes[a]->no_waiters());
}

TEST_P(IomuxWait, IgnoredSignalDoesNotInterrupt) {
    signals::start();
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    ASSERT_EQ(signals::sigaction(SIGUSR1, &ignore, nullptr), 0);
    Kill kill(5ms);
    timespec t = msec(30);
    EXPECT_EQ(wait(&t), 0);
}

// Signals sent all the time: whenever the handler runs, the call ends; none slips in between a look and the
// sleep.
TEST_P(IomuxWait, NoSignalIsSleptThrough) {
    install(0);
    pthread_t self = pthread_self();
    constexpr int kRounds = 500;
    std::atomic<int> turn{-1};
    std::thread other([&] {
        for (int i = 0; i < kRounds; i++) {
            while (turn.load() != i) std::this_thread::yield();
            for (int spin = i * 13 % 900; spin > 0; spin--) vma::cpu_relax();
            pthread_kill(self, SIGUSR1);
        }
    });
    int ends_by_time = 0;
    for (int i = 0; i < kRounds; i++) {
        int handled = g_handled;
        timespec t = msec(2000);
        turn = i;
        // A handler that ran before the call began is none of its business: then the next one must not wait
        // for it.
        while (g_handled.load() == handled)
            if (wait(&t) == 0 && g_handled.load() == handled) ends_by_time++;
    }
    other.join();
    EXPECT_EQ(ends_by_time, 0);
}

// The same two races with the moment chosen: everything happens after the last look of the spin.
TEST_P(IomuxSleep, NothingIsLostBeforeTheSleep) {
    FakeSocket* s = w.fakes[a];
    // No timeout: the last look after one would find what was slept through.
    s->before_waiter = [&] { s->deliver(); };
    EXPECT_EQ(wait(nullptr), 1);
    w.consume(a);
    s->when_armed = [&] { s->deliver(); };
    EXPECT_EQ(wait(nullptr), 1);
    w.consume(a);
    s->when_armed = [&] { w.deliver(a); };
    EXPECT_EQ(wait(nullptr), 1);
    w.consume(a);
    for (int flags : {0, SA_RESTART}) {
        install(flags);
        s->when_armed = [] { pthread_kill(pthread_self(), SIGUSR1); };
        EXPECT_EQ(wait(nullptr), -1);
        EXPECT_EQ(errno, EINTR);
        EXPECT_EQ(g_handled.load(), 1);
    }
    EXPECT_TRUE(s->no_waiters());
}

// The peer waits for a frame that the thread's last look has answered and the device holds back: it leaves
// before the sleep.
TEST_P(IomuxSleep, WhatTheLastLookAnsweredIsFlushed) {
    FakeSocket* s = w.fakes[a];
    std::thread peer;
    std::atomic<bool> over{false};
    s->when_armed = [&] {
        peer = std::thread([&, before = s->flushes.load()] {
            while (s->flushes == before && !over) std::this_thread::sleep_for(1ms);
            if (s->flushes != before) w.deliver(a);
        });
    };
    const timespec t = msec(10'000);
    EXPECT_EQ(wait(&t), 1);
    over = true;
    ASSERT_TRUE(peer.joinable());
    peer.join();
}

TEST_P(IomuxWait, MaskHoldsForTheWholeCall) {
    install(0);
    sigset_t usr1, empty, old;
    sigemptyset(&empty);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);

    // Blocked by the mask only: the handler runs when the call is over.
    {
        Kill kill(10ms);
        timespec t = msec(50);
        EXPECT_EQ(wait(&t, &usr1), 0);
    }
    EXPECT_EQ(g_handled.load(), 1);

    // Let through by the mask only.
    pthread_sigmask(SIG_BLOCK, &usr1, &old);
    {
        Kill kill(10ms);
        EXPECT_EQ(wait(nullptr, &empty), -1);
        EXPECT_EQ(errno, EINTR);
    }
    EXPECT_EQ(g_handled.load(), 2);
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, nullptr, &now);
    EXPECT_EQ(sigismember(&now, SIGUSR1), 1);

    // Pending already: ends the call at once...
    pthread_kill(pthread_self(), SIGUSR1);
    EXPECT_EQ(wait(nullptr, &empty), -1);
    EXPECT_EQ(errno, EINTR);
    EXPECT_EQ(g_handled.load(), 3);
    // ... unless there is something to report; then it stays pending.
    pthread_kill(pthread_self(), SIGUSR1);
    w.deliver(a);
    EXPECT_EQ(wait(nullptr, &empty), 1);
    EXPECT_EQ(g_handled.load(), 3);
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    EXPECT_EQ(g_handled.load(), 4);
}

TEST_P(IomuxWait, CancelLeavesNothingBehind) {
#ifdef __SANITIZE_ADDRESS__
    GTEST_SKIP() << "AddressSanitizer does not follow the unwinding of pthread_cancel";
#endif
    std::atomic<bool> inside{false};
    std::thread::native_handle_type handle;
    std::thread thread([&] {
        inside = true;
        wait(nullptr);
        ADD_FAILURE() << "returned";
    });
    handle = thread.native_handle();
    while (!inside) std::this_thread::yield();
    std::this_thread::sleep_for(20ms);
    pthread_cancel(handle);
    thread.join();
    EXPECT_TRUE(w.fakes[a]->no_waiters());
    w.deliver(a);
    EXPECT_EQ(wait(nullptr), 1);  // and no lock is held
}

TEST(IomuxSignals, PendingAtZeroTimeoutAsInTheKernel) {
    install(0);
    same([](World& w) {
        g_handled = 0;
        int a = w.socket(), ep = w.epoll();
        w.ctl(ep, EPOLL_CTL_ADD, a, EPOLLIN, 1);
        sigset_t usr1, empty, old;
        sigemptyset(&empty);
        sigemptyset(&usr1);
        sigaddset(&usr1, SIGUSR1);
        pthread_sigmask(SIG_BLOCK, &usr1, &old);
        timespec none{0, 0};
        for (bool ready : {false, true}) {
            if (ready) w.deliver(a);
            pollfd p{a, POLLIN, 0};
            epoll_event ev;
            fd_set r;
            FD_ZERO(&r);
            FD_SET(a, &r);
            pthread_kill(pthread_self(), SIGUSR1);
            w.note("poll " + w.result(w.poll(&p, 1, &none, &empty)) + std::to_string(g_handled));
            pthread_kill(pthread_self(), SIGUSR1);
            w.note("select " + w.result(w.select(a + 1, &r, nullptr, nullptr, &none, &empty)) +
                   std::to_string(g_handled) + show(r, {a}));
            pthread_kill(pthread_self(), SIGUSR1);
            w.note("epoll " + w.result(w.epoll_wait(ep, &ev, 1, &none, &empty)) + std::to_string(g_handled));
        }
        pthread_sigmask(SIG_SETMASK, &old, nullptr);
        w.note(std::to_string(g_handled));
    });
}

// The self-pipe trick: the kernel's call was interrupted before the handler wrote.
TEST(IomuxSignals, SelfPipeEndsWithEintr) {
    install(0);
    for (std::int64_t usec : {0, -1}) {
        Spin spin(usec, 1000000);
        OurWorld w;
        int a = w.socket(), e = w.plain_eventfd();
        g_pipe_in_handler = e;
        pollfd p[2] = {{a, POLLIN, 0}, {e, POLLIN, 0}};
        Kill kill(10ms);
        EXPECT_EQ(w.poll(p, 2, nullptr, nullptr), -1);
        EXPECT_EQ(errno, EINTR);
        EXPECT_EQ(w.poll(p, 2, nullptr, nullptr), 1);
    }
    g_pipe_in_handler = -1;
}

// ---- epoll ----

TEST(IomuxEpoll, Level) {
    same([](World& w) {
        int ep = w.epoll(), a = w.socket(), b = w.socket(), c = w.plain_eventfd();
        w.ctl(ep, EPOLL_CTL_ADD, c, EPOLLIN, 3);
        w.ctl(ep, EPOLL_CTL_ADD, a, EPOLLIN, 1);
        w.ctl(ep, EPOLL_CTL_ADD, b, EPOLLIN | EPOLLOUT | EPOLLRDNORM, 2);
        w.wait(ep);
        w.deliver(a);
        w.wait(ep, 16, 20);
        w.deliver(b);
        w.wait(ep);
        w.wait(ep);
        eventfd_write(c, 1);
        w.wait(ep);
        w.consume(a);
        w.wait(ep);
        w.ctl(ep, EPOLL_CTL_MOD, b, EPOLLOUT, 22);
        w.wait(ep);
        w.ctl(ep, EPOLL_CTL_MOD, b, EPOLLIN, 23);
        w.wait(ep);
        w.ctl(ep, EPOLL_CTL_DEL, b, 0, 0);
        w.wait(ep);
        w.ctl(ep, EPOLL_CTL_DEL, b, 0, 0);
        w.ctl(ep, EPOLL_CTL_MOD, b, 0, 0);
        w.ctl(ep, EPOLL_CTL_ADD, b, EPOLLPRI, 5);
        w.wait(ep);
        w.ctl(ep, EPOLL_CTL_ADD, b, EPOLLIN, 5);
    });
}

TEST(IomuxEpoll, EdgeTriggered) {
    same([](World& w) {
        int ep = w.epoll(), a = w.socket(), b = w.socket(), c = w.socket();
        w.deliver(c);
        w.ctl(ep, EPOLL_CTL_ADD, a, EPOLLIN | EPOLLET, 1);
        w.ctl(ep, EPOLL_CTL_ADD, b, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 2);
        w.ctl(ep, EPOLL_CTL_ADD, c, EPOLLIN | EPOLLET, 3);  // ready when added
        w.wait(ep);
        w.wait(ep);
        w.deliver(a);
        w.deliver(b);
        w.wait(ep);
        w.wait(ep);
        w.deliver(a);
        w.wait(ep, 16, 10);
        w.consume(a);
        w.wait(ep);  // something is left, but nothing is new
        w.consume(a);
        w.deliver(a);
        w.consume(a);
        w.wait(ep);  // came and went
        w.ctl(ep, EPOLL_CTL_MOD, b, EPOLLIN | EPOLLET, 2);
        w.wait(ep);  // MOD shows what is there again
        w.wait(ep);
        w.deliver(b);
        ASSERT_EQ(write(w.peer(b), "x", 1), 1);
        w.wait(ep);
        w.wait(ep);
    });
}

TEST(IomuxEpoll, OneShot) {
    same([](World& w) {
        for (std::uint32_t mode : {0u, unsigned{EPOLLET}}) {
            int ep = w.epoll(), a = w.socket(), b = w.socket();
            std::uint32_t in = EPOLLIN | EPOLLONESHOT | mode;
            w.ctl(ep, EPOLL_CTL_ADD, a, in, 1);
            w.ctl(ep, EPOLL_CTL_ADD, b, in, 2);
            w.deliver(a);
            w.wait(ep);
            w.wait(ep);
            w.deliver(a);
            w.wait(ep);
            w.ctl(ep, EPOLL_CTL_ADD, a, in, 1);  // EEXIST, although reported
            w.wait(ep);
            w.ctl(ep, EPOLL_CTL_MOD, a, in, 11);
            w.wait(ep);
            w.wait(ep);
            // Silent for the kernel's side, too.
            ASSERT_EQ(write(w.peer(a), "x", 1), 1);
            shutdown(a, SHUT_RDWR);
            w.wait(ep);
            w.ctl(ep, EPOLL_CTL_MOD, a, in, 12);
            w.wait(ep);
            w.wait(ep);
            w.ctl(ep, EPOLL_CTL_DEL, a, 0, 0);
            w.ctl(ep, EPOLL_CTL_DEL, a, 0, 0);
            w.ctl(ep, EPOLL_CTL_MOD, a, 0, 0);
            // Reported by the kernel's side first.
            ASSERT_EQ(write(w.peer(b), "x", 1), 1);
            w.wait(ep);
            w.deliver(b);
            w.wait(ep);
            w.ctl(ep, EPOLL_CTL_MOD, b, in | EPOLLOUT, 2);
            w.wait(ep);
            w.wait(ep);
            w.ctl(ep, EPOLL_CTL_DEL, b, 0, 0);
            // Deleted after our side reported.
            int c = w.socket();
            w.deliver(c);
            w.ctl(ep, EPOLL_CTL_ADD, c, in, 3);
            w.wait(ep);
            w.ctl(ep, EPOLL_CTL_DEL, c, 0, 0);
            w.ctl(ep, EPOLL_CTL_ADD, c, in, 4);
            w.wait(ep);
            epoll_event* bad = nullptr;
            w.note(w.result(w.epoll_ctl(ep, EPOLL_CTL_MOD, c, bad)));
            w.note(w.result(w.epoll_ctl(ep, EPOLL_CTL_ADD, c, bad)));
            w.ctl(ep, EPOLL_CTL_MOD, c, in | EPOLLEXCLUSIVE, 4);
            w.ctl(ep, 77, c, in, 4);
            w.note(w.result(w.epoll_ctl(ep, EPOLL_CTL_DEL, c, bad)));
        }
    });
}

// After a report of our side the kernel's set is silent as well: nobody who waits there, or on the set's
// descriptor, is kept awake.
TEST(IomuxEpoll, OneShotSilencesTheKernelsSet) {
    OurWorld w;
    int ep = w.epoll(), a = w.socket();
    w.ctl(ep, EPOLL_CTL_ADD, a, EPOLLIN | EPOLLONESHOT, 1);
    w.deliver(a);
    w.wait(ep);
    ASSERT_EQ(write(w.peer(a), "x", 1), 1);
    epoll_event ev;
    EXPECT_EQ(::epoll_wait(ep, &ev, 1, 0), 0);
    w.ctl(ep, EPOLL_CTL_MOD, a, EPOLLIN | EPOLLONESHOT, 2);
    EXPECT_EQ(::epoll_wait(ep, &ev, 1, 0), 1);
    EXPECT_EQ(ev.data.u64, 2u);
}

TEST(IomuxEpoll, Errors) {
    same([](World& w) {
        int ep = w.epoll(), a = w.socket();
        w.ctl(ep, EPOLL_CTL_ADD, a, EPOLLIN, 1);
        w.wait(ep, 0);
        w.wait(ep, -5);
        timespec bad{0, -1};
        epoll_event ev;
        if (std::string(w.name()) == "ours") {
            EXPECT_EQ(w.epoll_wait(ep, &ev, 1, &bad), -1);
            EXPECT_EQ(errno, EINVAL);
        }
        timespec none{0, 0};
        w.note(w.result(w.epoll_wait(ep, &ev, INT_MAX, &none)));
        w.note(w.result(w.epoll_wait(a, &ev, 1, &none)));
        w.note(w.result(w.epoll_wait(-1, &ev, 1, &none)));
        w.deliver(a);
        w.note(w.result(w.epoll_wait(ep, nullptr, 1, &none)));
        w.wait(ep);
        w.ctl(ep, EPOLL_CTL_ADD, ep, EPOLLIN, 1);
        w.ctl(a, EPOLL_CTL_ADD, a, EPOLLIN, 1);
        w.ctl(ep, EPOLL_CTL_ADD, -1, EPOLLIN, 1);
        w.ctl(-1, EPOLL_CTL_ADD, a, EPOLLIN, 1);
        w.ctl(ep, EPOLL_CTL_ADD, w.track(open("/dev/null", O_RDONLY)), EPOLLIN, 1);
        w.ctl(ep, EPOLL_CTL_ADD, w.track(open("/etc/passwd", O_RDONLY)), EPOLLIN, 1);
        w.ctl(ep, 99, a, EPOLLIN, 1);
        int inner = w.epoll();
        w.ctl(inner, EPOLL_CTL_ADD, ep, EPOLLIN, 1);
        w.ctl(ep, EPOLL_CTL_ADD, inner, EPOLLIN, 1);  // a loop
        int b = w.socket();
        w.ctl(ep, EPOLL_CTL_ADD, b, EPOLLIN | EPOLLEXCLUSIVE, 2);
        w.ctl(ep, EPOLL_CTL_MOD, b, EPOLLIN, 2);
        w.deliver(b);
        w.wait(ep);
    });
}

TEST(IomuxEpoll, EqualDataIsTold) {
    same([](World& w) {
        int ep = w.epoll(), a = w.socket(), b = w.socket(), c = w.plain_eventfd();
        w.ctl(ep, EPOLL_CTL_ADD, c, EPOLLIN, 9);  // not ours, same data, before there is an EpollSet
        w.ctl(ep, EPOLL_CTL_ADD, a, EPOLLIN, 9);
        w.deliver(a);
        w.wait(ep);
        eventfd_write(c, 1);
        w.wait(ep);
        w.ctl(ep, EPOLL_CTL_MOD, c, EPOLLIN, 10);
        w.ctl(ep, EPOLL_CTL_MOD, a, EPOLLIN | EPOLLOUT, 9);
        w.wait(ep);  // unique now: one event for a
        w.ctl(ep, EPOLL_CTL_ADD, b, EPOLLIN | EPOLLONESHOT, 9);
        w.ctl(ep, EPOLL_CTL_MOD, a, EPOLLIN, 9);
        w.deliver(b);
        w.wait(ep);
        w.wait(ep);
        w.ctl(ep, EPOLL_CTL_MOD, b, EPOLLIN | EPOLLONESHOT, 9);
        w.consume(b);
        ASSERT_EQ(write(w.peer(b), "x", 1), 1);
        w.wait(ep);  // fired on the kernel's side
        w.deliver(b);
        w.wait(ep);
        w.ctl(ep, EPOLL_CTL_DEL, a, 0, 0);
        w.ctl(ep, EPOLL_CTL_MOD, b, EPOLLIN | EPOLLOUT, 9);
        w.wait(ep);
    });
}

TEST(IomuxEpoll, ClosedMembersLeave) {
    same([](World& w) {
        int ep = w.epoll(), a = w.socket(), b = w.socket();
        w.ctl(ep, EPOLL_CTL_ADD, a, EPOLLIN, 1);
        w.ctl(ep, EPOLL_CTL_ADD, b, EPOLLIN, 2);
        w.deliver(a);
        w.deliver(b);
        w.wait(ep);
        int copy = w.dup(a);
        w.close(b);
        w.wait(ep);
        w.close(a);  // lives on in the copy
        w.wait(ep);
        w.ctl(ep, EPOLL_CTL_DEL, copy, 0, 0);
        w.close(copy);
        w.wait(ep);
        int again = w.socket();
        w.ctl(ep, EPOLL_CTL_ADD, again, EPOLLIN, 3);
        w.deliver(again);
        w.wait(ep);
    });
}

TEST(IomuxEpoll, MembersAreReleased) {
    OurWorld w;
    int ep = w.epoll(), a = w.socket(), b = w.socket(), c = w.socket();
    for (int fd : {a, b, c}) w.ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, 0);
    w.wait(ep);
    FakeSocket *fa = w.fakes[a], *fb = w.fakes[b], *fc = w.fakes[c];
    w.ctl(ep, EPOLL_CTL_DEL, a, 0, 0);
    w.wait(ep);
    w.close(a);
    EXPECT_TRUE(fa->recycled);
    w.close(b);
    w.wait(ep);
    w.wait(ep);
    EXPECT_TRUE(fb->recycled);
    w.close(ep);
    w.close(c);
    EXPECT_TRUE(fc->recycled);
}

TEST(IomuxEpoll, MaxEventsAndTurns) {
    for (int max : {1, 2, 3, 7}) {
        OurWorld w;
        int ep = w.epoll();
        std::set<std::uint64_t> all;
        for (std::uint64_t i = 0; i < 10; i++) {
            int fd = i % 2 == 0 ? w.socket() : w.plain_eventfd();
            w.ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, i);
            if (i % 2 == 0)
                w.deliver(fd);
            else
                eventfd_write(fd, 1);
            all.insert(i);
        }
        std::set<std::uint64_t> seen;
        for (int round = 0; round < 40; round++) {
            std::vector<epoll_event> ev(static_cast<std::size_t>(max) + 1);
            ev.back().data.u64 = 4711;
            timespec none{0, 0};
            int n = w.epoll_wait(ep, ev.data(), max, &none, nullptr);
            ASSERT_EQ(n, max);
            std::set<std::uint64_t> once;
            for (int i = 0; i < n; i++) once.insert(ev[static_cast<std::size_t>(i)].data.u64);
            EXPECT_EQ(once.size(), static_cast<std::size_t>(n)) << "a member twice in one call";
            EXPECT_EQ(ev.back().data.u64, 4711u);
            seen.insert(once.begin(), once.end());
        }
        EXPECT_EQ(seen, all) << "max " << max;
    }
}

TEST(IomuxEpoll, Nested) {
    same([](World& w) {
        int outer = w.epoll(), inner = w.epoll(), a = w.socket(), b = w.socket();
        w.ctl(inner, EPOLL_CTL_ADD, a, EPOLLIN, 1);
        w.ctl(outer, EPOLL_CTL_ADD, inner, EPOLLIN, 100);
        w.ctl(outer, EPOLL_CTL_ADD, b, EPOLLIN, 2);
        auto look = [&] {
            w.wait(outer);
            w.wait(inner);
            w.polled({{outer, POLLIN, 0}, {inner, POLLIN | POLLRDNORM | POLLOUT, 0}});
            Sets s;
            FD_SET(outer, &s.r);
            timespec none{0, 0};
            w.note(w.result(w.select(outer + 1, &s.r, nullptr, nullptr, &none)));
        };
        look();
        w.deliver(a);
        look();
        w.deliver(b);
        look();
        w.consume(a);
        look();
        w.ctl(outer, EPOLL_CTL_MOD, inner, EPOLLIN | EPOLLET, 101);
        w.wait(outer);
        w.deliver(a);
        w.wait(outer);
        w.wait(outer);
        w.close(inner);
        w.wait(outer);
    });
}

// The sets were put into each other, or duplicated, before anything offloaded was in them.
TEST(IomuxEpoll, NestedBeforeTheFirstMember) {
    same([](World& w) {
        int top = w.epoll(), outer = w.epoll(), inner = w.epoll();
        w.ctl(top, EPOLL_CTL_ADD, outer, EPOLLIN, 200);
        w.ctl(outer, EPOLL_CTL_ADD, inner, EPOLLIN, 100);
        int copy = w.dup(inner);
        int a = w.socket();
        w.ctl(inner, EPOLL_CTL_ADD, a, EPOLLIN, 1);
        for (int ep : {top, outer, inner, copy}) w.wait(ep);
        w.deliver(a);
        for (int ep : {top, outer, inner, copy}) w.wait(ep);
        w.close(inner);
        for (int ep : {top, outer, copy}) w.wait(ep);
        w.ctl(copy, EPOLL_CTL_DEL, a, 0, 0);
        for (int ep : {top, outer, copy}) w.wait(ep);
    });
}

TEST(IomuxEpoll, NestedSleepersWake) {
    for (std::int64_t usec : {0, -1}) {
        Spin spin(usec);
        OurWorld w;
        int outer = w.epoll(), inner = w.epoll(), a = w.socket(), b = w.socket();
        w.ctl(inner, EPOLL_CTL_ADD, a, EPOLLIN, 1);
        w.ctl(outer, EPOLL_CTL_ADD, inner, EPOLLIN, 100);
        epoll_event ev;
        {
            Later later(20ms, [&] { w.fakes[a]->deliver(); });
            EXPECT_EQ(w.epoll_wait(outer, &ev, 1, nullptr, nullptr), 1);
        }
        w.consume(a);
        // A new member of the inner set, added while a thread sleeps on the outer one.
        w.fakes[b]->deliver();
        Later later(20ms, [&] { w.ctl(inner, EPOLL_CTL_ADD, b, EPOLLIN, 2); });
        pollfd p{outer, POLLIN, 0};
        EXPECT_EQ(w.poll(&p, 1, nullptr, nullptr), 1);
    }
}

TEST(IomuxEpoll, ControlWakesSleepers) {
    for (std::int64_t usec : {0, -1}) {
        Spin spin(usec);
        OurWorld w;
        int ep = w.epoll(), a = w.socket(), b = w.socket();
        w.ctl(ep, EPOLL_CTL_ADD, a, EPOLLIN, 1);
        w.deliver(b);
        w.ring.progress();
        epoll_event ev;
        {
            Later later(20ms, [&] { w.ctl(ep, EPOLL_CTL_ADD, b, EPOLLIN | EPOLLONESHOT, 2); });
            EXPECT_EQ(w.epoll_wait(ep, &ev, 1, nullptr, nullptr), 1);
            EXPECT_EQ(ev.data.u64, 2u);
        }
        Later later(20ms, [&] { w.ctl(ep, EPOLL_CTL_MOD, b, EPOLLIN | EPOLLONESHOT, 3); });
        EXPECT_EQ(w.epoll_wait(ep, &ev, 1, nullptr, nullptr), 1);
        EXPECT_EQ(ev.data.u64, 3u);
    }
}

// Event loops often sleep already when the first socket is added.
TEST(IomuxEpoll, FirstMemberWakesThreadsInTheKernel) {
    Spin spin(0);
    for (int round = 0; round < 20; round++) {
        OurWorld w;
        int ep = w.epoll(), a = w.socket(), e = w.plain_eventfd();
        w.ctl(ep, EPOLL_CTL_ADD, e, EPOLLIN, 7);
        std::atomic<int> woken{0}, sleeping{0};
        std::vector<std::thread> threads;
        for (int i = 0; i < 3; i++)
            threads.emplace_back([&, i] {
                epoll_event ev[4];
                timespec t{20, 0};
                sleeping++;
                int n = w.epoll_wait(ep, ev, i == 0 ? 1 : 4, i == 1 ? nullptr : &t, nullptr);
                EXPECT_EQ(n, 1);
                EXPECT_EQ(ev[0].data.u64, 1u);
                woken++;
            });
        while (sleeping.load() != 3) std::this_thread::yield();
        std::this_thread::sleep_for(round % 2 == 0 ? 5ms : 0ms);
        w.ctl(ep, EPOLL_CTL_ADD, a, EPOLLIN, 1);
        std::this_thread::sleep_for(round % 3 == 0 ? 5ms : 0ms);
        EXPECT_EQ(woken.load(), 0);
        w.fakes[a]->deliver();
        for (auto& t : threads) t.join();
        // The library's own event is gone, so a child or an uncaught call does not see it.
        epoll_event ev[4];
        EXPECT_EQ(::epoll_wait(ep, ev, 4, 0), 0);
        std::ifstream info("/proc/self/fdinfo/" + std::to_string(ep));
        std::string text((std::istreambuf_iterator<char>(info)), {});
        EXPECT_EQ(text.find(fmt::format("{:x}", iomux::sleepers::kick_data())), text.npos);
    }
}

TEST(IomuxEpoll, ClosingTheSetUnderASleeper) {
    for (bool deliver : {false, true}) {
        Spin spin(0);
        OurWorld w;
        int ep = w.epoll(), a = w.socket();
        w.ctl(ep, EPOLL_CTL_ADD, a, EPOLLIN, 1);
        Later later(20ms, [&] {
            w.close(ep);
            std::this_thread::sleep_for(20ms);
            if (deliver) {
                ASSERT_EQ(write(w.peer(a), "x", 1), 1);
            }
        });
        epoll_event ev;
        timespec t = msec(200);
        EXPECT_EQ(w.epoll_wait(ep, &ev, 1, &t, nullptr), deliver ? 1 : 0);
    }
}

TEST(IomuxEpoll, SeveralThreadsShareEdges) {
    for (std::int64_t usec : {0, 500}) {
        Spin spin(usec);
        OurWorld w;
        int ep = w.epoll();
        constexpr int kSockets = 8, kEach = 400;
        std::vector<int> fds;
        for (int i = 0; i < kSockets; i++) {
            fds.push_back(w.socket());
            w.ctl(ep, EPOLL_CTL_ADD, fds.back(), EPOLLIN | EPOLLONESHOT, static_cast<std::uint64_t>(i));
        }
        int stop = w.plain_eventfd();
        w.ctl(ep, EPOLL_CTL_ADD, stop, EPOLLIN, 99);
        std::atomic<int> taken{0};
        std::atomic<bool> busy[kSockets]{};
        auto work = [&] {
            for (;;) {
                epoll_event ev[3];
                int n = w.epoll_wait(ep, ev, 3, nullptr, nullptr);
                ASSERT_GT(n, 0);
                for (int i = 0; i < n; i++) {
                    if (ev[i].data.u64 == 99) return;
                    auto index = ev[i].data.u64;
                    EXPECT_FALSE(busy[index].exchange(true)) << "one-shot given to two threads";
                    FakeSocket* s = w.fakes[fds[index]];
                    while (s->ready_events() != 0) {
                        s->consume();
                        taken++;
                    }
                    busy[index] = false;
                    epoll_event again{};
                    again.events = EPOLLIN | EPOLLONESHOT;
                    again.data.u64 = index;
                    ASSERT_EQ(w.epoll_ctl(ep, EPOLL_CTL_MOD, fds[index], &again), 0);
                }
            }
        };
        std::vector<std::thread> threads;
        for (int i = 0; i < 3; i++) threads.emplace_back(work);
        for (int i = 0; i < kEach; i++)
            for (int fd : fds) i % 2 == 0 ? w.deliver(fd) : w.fakes[fd]->deliver();
        auto limit = std::chrono::steady_clock::now() + 20s;
        while (taken.load() != kSockets * kEach && std::chrono::steady_clock::now() < limit)
            std::this_thread::sleep_for(1ms);
        EXPECT_EQ(taken.load(), kSockets * kEach);
        eventfd_write(stop, 1);
        for (auto& t : threads) t.join();
    }
}

TEST(IomuxEpoll, ManyMembers) {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    rlimit high = limit;
    high.rlim_cur = std::min<rlim_t>(limit.rlim_max, 8192);
    setrlimit(RLIMIT_NOFILE, &high);
    constexpr int kMany = 2000;
    if (high.rlim_cur < 2 * kMany + 200) GTEST_SKIP() << "RLIMIT_NOFILE is too low";
    for (std::int64_t usec : {0, 3000}) {
        Spin spin(usec);
        OurWorld w;
        int ep = w.epoll();
        std::vector<int> fds;
        std::vector<pollfd> polls;
        for (int i = 0; i < kMany; i++) {
            fds.push_back(w.socket());
            polls.push_back({fds.back(), POLLIN, 0});
            epoll_event ev{};
            ev.events = i % 2 == 0 ? unsigned{EPOLLIN} : EPOLLIN | EPOLLOUT | EPOLLET;
            ev.data.u64 = static_cast<std::uint64_t>(i);
            ASSERT_EQ(w.epoll_ctl(ep, EPOLL_CTL_ADD, fds.back(), &ev), 0);
        }
        std::vector<epoll_event> ev(kMany);
        timespec none{0, 0};
        // Every edge-triggered one reports that it can be written to, once.
        EXPECT_EQ(w.epoll_wait(ep, ev.data(), kMany, &none, nullptr), kMany / 2);
        {
            Later later(20ms, [&] { w.deliver(fds[1234]); });
            ASSERT_EQ(w.poll(polls.data(), polls.size(), nullptr, nullptr), 1);
            EXPECT_EQ(polls[1234].revents, POLLIN);
        }
        ASSERT_EQ(w.epoll_wait(ep, ev.data(), kMany, nullptr, nullptr), 1);
        EXPECT_EQ(ev[0].data.u64, 1234u);
        w.consume(fds[1234]);
        Later later(20ms, [&] {
            for (int fd : fds) w.deliver(fd);
        });
        std::set<std::uint64_t> seen;
        while (seen.size() != kMany) {
            timespec t{20, 0};
            int n = w.epoll_wait(ep, ev.data(), 100, &t, nullptr);
            ASSERT_GT(n, 0);
            for (int i = 0; i < n; i++) {
                auto k = ev[static_cast<std::size_t>(i)].data.u64;
                if (k % 2 == 1) {
                    EXPECT_EQ(std::uint32_t{ev[static_cast<std::size_t>(i)].events}, EPOLLIN | EPOLLOUT) << k;
                }
                seen.insert(k);
            }
        }
    }
    setrlimit(RLIMIT_NOFILE, &limit);
}

// A child that inherits the set finds the program's own events and data in the kernel's.
TEST(IomuxEpoll, ForkedChildSeesTheKernelsSet) {
    OurWorld w;
    int ep = w.epoll(), a = w.socket();
    w.ctl(ep, EPOLL_CTL_ADD, a, EPOLLIN | EPOLLOUT, 5);
    w.deliver(a);
    w.wait(ep);
    auto outcome = vma::test::in_child([&] {
        epoll_event ev{};
        EXPECT_EQ(::epoll_wait(ep, &ev, 1, 0), 1);
        EXPECT_EQ(std::uint32_t{ev.events}, std::uint32_t{EPOLLOUT});
        EXPECT_EQ(ev.data.u64, 5u);
        g_fds.clear_in_child();
        vma::sockets::Waiter::reset_in_child();
        // And can make sets of its own.
        OurWorld mine;
        int set = mine.epoll(), b = mine.socket();
        mine.ctl(set, EPOLL_CTL_ADD, b, EPOLLIN, 6);
        Spin spin(0);
        timespec t = msec(5);
        EXPECT_EQ(mine.epoll_wait(set, &ev, 1, &t, nullptr), 0);
        mine.deliver(b);
        EXPECT_EQ(mine.epoll_wait(set, &ev, 1, nullptr, nullptr), 1);
        EXPECT_EQ(ev.data.u64, 6u);
    });
    EXPECT_TRUE(outcome.passed());
}

// ---- Waiter ----

TEST(Waiter, OneForEachThread) {
    auto* mine = vma::sockets::Waiter::mine();
    ASSERT_NE(mine, nullptr);
    EXPECT_EQ(mine, vma::sockets::Waiter::mine());
    EXPECT_TRUE(vma::InternalFd::is_internal(mine->fd()));
    vma::sockets::Waiter *other = nullptr, *third = nullptr;
    std::thread([&] { other = vma::sockets::Waiter::mine(); }).join();
    std::thread([&] { third = vma::sockets::Waiter::mine(); }).join();
    EXPECT_NE(other, mine);
    EXPECT_EQ(other, third);  // the pool's
}

TEST(Waiter, SignalMakesItReadableOnce) {
    auto* w = vma::sockets::Waiter::mine();
    ASSERT_NE(w, nullptr);
    auto readable = [&] {
        pollfd p{w->fd(), POLLIN, 0};
        return ::poll(&p, 1, 0) == 1;
    };
    w->clear();
    EXPECT_FALSE(readable());
    errno = 4711;
    auto by_another = [&](int times) {
        std::thread([&] {
            errno = 4712;
            for (int i = 0; i < times; i++) w->signal();
            EXPECT_EQ(errno, 4712);
        }).join();
    };
    by_another(2);
    EXPECT_TRUE(readable());
    w->clear();
    EXPECT_EQ(errno, 4711);
    EXPECT_FALSE(readable());
    by_another(1);
    EXPECT_TRUE(readable());
    w->clear();
    w->signal();  // a thread that can do this is awake
    EXPECT_FALSE(readable());
}

TEST(Waiter, ChildMakesItsOwn) {
    auto* mine = vma::sockets::Waiter::mine();
    ASSERT_NE(mine, nullptr);
    auto outcome = vma::test::in_child([&] {
        vma::sockets::Waiter::reset_in_child();
        auto* own = vma::sockets::Waiter::mine();
        ASSERT_NE(own, nullptr);
        EXPECT_NE(own, mine);
        EXPECT_GE(own->fd(), 0);
    });
    EXPECT_TRUE(outcome.passed());
}

}  // namespace
