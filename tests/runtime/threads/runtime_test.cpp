// SPDX-License-Identifier: BSD-2-Clause
// Fork, vfork and the internal thread.
#include "libvma/runtime/runtime.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/internal_fd.h"
#include "libvma/runtime/internal_thread.h"
#include "libvma/runtime/log.h"
#include "tests/support/child.h"

namespace {

using namespace vma;
using test::in_child;

// A counter that tests wait on; 30 seconds stand for "never".
class Count {
  public:
    Count() { sem_init(&semaphore_, 0, 0); }
    void add() { sem_post(&semaphore_); }
    bool wait(int times = 1) {
        timespec deadline;
        clock_gettime(CLOCK_REALTIME, &deadline);
        deadline.tv_sec += 30;
        for (; times > 0; times--)
            while (sem_timedwait(&semaphore_, &deadline) != 0)
                if (errno != EINTR) return false;
        return true;
    }

  private:
    sem_t semaphore_;
};

void drain(int fd) {
    std::uint64_t count;
    (void)!read(fd, &count, sizeof count);
}
void ring(int fd) {
    std::uint64_t one = 1;
    (void)!write(fd, &one, sizeof one);
}

TEST(Runtime, OrdinaryProcessIsNotInert) { EXPECT_FALSE(runtime::inert()); }

TEST(Runtime, VforkFlagCountsAndBelongsToTheThread) {
    EXPECT_FALSE(runtime::in_vfork_child());
    runtime::enter_vfork();
    runtime::enter_vfork();
    EXPECT_TRUE(runtime::in_vfork_child());
    std::thread([] { EXPECT_FALSE(runtime::in_vfork_child()); }).join();
    runtime::leave_vfork();
    EXPECT_TRUE(runtime::in_vfork_child());
    runtime::leave_vfork();
    EXPECT_FALSE(runtime::in_vfork_child());
    runtime::leave_vfork();
    EXPECT_FALSE(runtime::in_vfork_child());
}

TEST(Runtime, ForeignProcess) {
    EXPECT_FALSE(runtime::in_foreign_process());
    auto outcome = in_child([] {
        runtime::install_fork_hooks();
        int status = 0;
        // A child that no atfork handler ran in stays foreign, like a vforked one.
        pid_t raw = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
        if (raw == 0) _exit(runtime::in_foreign_process() ? 7 : 8);
        waitpid(raw, &status, 0);
        EXPECT_EQ(WEXITSTATUS(status), 7);
        pid_t forked = fork();
        if (forked == 0) _exit(runtime::in_foreign_process() ? 7 : 8);
        waitpid(forked, &status, 0);
        EXPECT_EQ(WEXITSTATUS(status), 8);
    });
    EXPECT_TRUE(outcome.passed());
}

std::string g_order;

TEST(Runtime, ForkHooksRunInOrder) {
    auto outcome = in_child([] {
        runtime::at_fork({.prepare = [] { g_order += "p1 "; },
                          .parent = [] { g_order += "a1 "; },
                          .child = [] { g_order += "c1 "; }});
        runtime::at_fork({.child = [] { g_order += "c2 "; }});
        runtime::at_fork({.prepare = [] { g_order += "p3 "; }, .parent = [] { g_order += "a3 "; }});
        int status = 0;
        pid_t pid = fork();
        if (pid == 0) {
            EXPECT_EQ(g_order, "p3 p1 c1 c2 ");
            _exit(::testing::Test::HasFailure());
        }
        waitpid(pid, &status, 0);
        EXPECT_EQ(status, 0);
        EXPECT_EQ(g_order, "p3 p1 a1 a3 ");
    });
    EXPECT_TRUE(outcome.passed());
}

std::string* g_renewed = nullptr;
void renew_for_test() noexcept {
    if (g_renewed != nullptr) *g_renewed += "renewed ";
}
VMA_RENEW_IN_CHILD(renew_for_test);

TEST(Runtime, StateIsRenewedInAForkedChildOnlyAndBeforeItsHooks) {
    auto outcome = in_child([] {
        g_renewed = &g_order;
        runtime::at_fork({.child = [] { g_order += "hook "; }});
        int status = 0;
        pid_t pid = fork();
        if (pid == 0) {
            EXPECT_EQ(g_order, "renewed hook ");
            _exit(::testing::Test::HasFailure());
        }
        waitpid(pid, &status, 0);
        EXPECT_EQ(status, 0);
        EXPECT_EQ(g_order, "");
    });
    EXPECT_TRUE(outcome.passed());
}

TEST(Runtime, TooManyForkHooksAreRefused) {
    auto outcome = in_child([] {
        log::configure({});
        for (int i = 0; i < 17; i++) runtime::at_fork({});
    });
    // Other tests of this process may have added some that the child has, too.
    EXPECT_TRUE(outcome.output.starts_with("VMA ERROR: no room for another fork hook\n")) << outcome.output;
}

TEST(InternalThread, WatchCallsUntilUnwatched) {
    InternalFd event(eventfd(0, EFD_NONBLOCK));
    Count calls;
    std::atomic<pid_t> tid{0};
    runtime::watch(event.get(), [&] {
        EXPECT_TRUE(runtime::internal_thread::is_current());
        tid = gettid();
        drain(event.get());
        calls.add();
    });
    ring(event.get());
    ASSERT_TRUE(calls.wait());
    ring(event.get());
    ASSERT_TRUE(calls.wait());
    EXPECT_NE(tid, gettid());
    EXPECT_FALSE(runtime::internal_thread::is_current());

    std::ifstream comm("/proc/self/task/" + std::to_string(tid) + "/comm");
    std::string name;
    std::getline(comm, name);
    EXPECT_EQ(name, "vma");
    runtime::unwatch(event.get());
}

// dup2() of the program onto our number: we move, and go on watching ours and not the program's.
TEST(InternalThread, WatchMovesWithTheDescriptor) {
    InternalFd event(eventfd(0, EFD_NONBLOCK));
    Count calls, others;
    std::atomic<int> called{0};
    runtime::watch(event.get(), [&] {
        drain(event.get());
        called++;
        calls.add();
    });
    const int number = event.get();
    int mirrored = -1;
    event.mirror(&mirrored);
    EXPECT_EQ(mirrored, number);
    ASSERT_TRUE(InternalFd::relocate(number));
    ASSERT_NE(event.get(), number);
    EXPECT_EQ(mirrored, event.get());
    const int programs = eventfd(1, EFD_NONBLOCK);
    ASSERT_EQ(dup2(programs, number), number);
    ring(event.get());
    ASSERT_TRUE(calls.wait());
    runtime::unwatch(event.get());
    ring(event.get());
    runtime::watch(programs, [&] {  // afterwards the thread has looked at the first, too
        runtime::unwatch_this();
        others.add();
    });
    ASSERT_TRUE(others.wait());
    EXPECT_EQ(called, 1);
    mirrored = -2;
    event.reset();
    EXPECT_EQ(mirrored, -2);
    close(number);
    close(programs);
}

TEST(InternalThread, BlocksEverySignal) {
    auto outcome = in_child([] {
        Count called;
        static sigset_t theirs;
        runtime::every(vma::clock::Msec(1), [&] {
            pthread_sigmask(SIG_SETMASK, nullptr, &theirs);
            called.add();
            return false;
        });
        ASSERT_TRUE(called.wait());
        for (int sig = 1; sig < 65; sig++) {
            if (sig == 32 || sig == 33) continue;
            if (sig == SIGKILL || sig == SIGSTOP) continue;
            EXPECT_EQ(sigismember(&theirs, sig), 1) << sig;
        }
        sigset_t mine;
        pthread_sigmask(SIG_SETMASK, nullptr, &mine);
        for (int sig = 1; sig < 65; sig++) EXPECT_NE(sigismember(&mine, sig), 1) << sig;
        EXPECT_EQ(setuid(getuid()), 0);  // libc signals every thread for this, ours included
    });
    EXPECT_TRUE(outcome.passed());
}

TEST(InternalThread, UnwatchWaitsForTheCallback) {
    for (int round = 0; round < 200; round++) {
        InternalFd event(eventfd(1, EFD_NONBLOCK));
        auto alive = std::make_shared<std::atomic<bool>>(true);
        Count entered;
        runtime::watch(event.get(), [&, raw = alive.get()] {
            entered.add();
            std::this_thread::yield();
            EXPECT_TRUE(raw->load());
        });
        ASSERT_TRUE(entered.wait());
        runtime::unwatch(event.get());
        alive->store(false);  // a callback that still ran would see this
    }
}

TEST(InternalThread, UnwatchInsideTheCallback) {
    InternalFd event(eventfd(1, EFD_NONBLOCK));
    Count calls;
    std::atomic<int> times{0};
    int fd = event.get();
    runtime::watch(fd, [&, fd] {
        runtime::unwatch(fd);
        times++;
        calls.add();
    });
    ASSERT_TRUE(calls.wait());
    Count later;
    runtime::every(vma::clock::Msec(1), [&] {
        later.add();
        return false;
    });
    ASSERT_TRUE(later.wait());
    EXPECT_EQ(times, 1);
}

TEST(InternalThread, SecondWatchReplacesTheFirst) {
    InternalFd event(eventfd(0, EFD_NONBLOCK));
    Count first, second;
    runtime::watch(event.get(), [&] {
        drain(event.get());
        first.add();
    });
    runtime::watch(event.get(), [&] {
        drain(event.get());
        second.add();
    });
    ring(event.get());
    EXPECT_TRUE(second.wait());
    runtime::unwatch(event.get());
    runtime::unwatch(event.get());
    runtime::unwatch(-1);
}

TEST(InternalThread, BadDescriptorIsReported) {
    auto outcome = in_child([] {
        log::configure({});
        runtime::watch(900, [] {});
    });
    EXPECT_EQ(outcome.output,
              "VMA ERROR: internal thread: cannot watch descriptor 900 (Bad file descriptor)\n");
}

TEST(InternalThread, ExceptionOfACallbackIsReported) {
    auto outcome = in_child([] {
        log::configure({});
        Count again;
        int times = 0;
        runtime::every(vma::clock::Msec(1), [&]() -> bool {
            if (times++ == 0) throw std::runtime_error("odd");
            again.add();
            return false;
        });
        EXPECT_TRUE(again.wait());
    });
    EXPECT_EQ(outcome.output, "VMA ERROR: internal thread: odd\n");
}

TEST(InternalThread, TicksUntilFalse) {
    auto outcome = in_child([] {  // one tick never ends
        Count fast, slow;
        runtime::every(vma::clock::Msec(1), [&] {
            fast.add();
            return true;
        });
        std::atomic<int> rest{3};
        runtime::every(vma::clock::Msec(2), [&] {
            slow.add();
            return --rest > 0;
        });
        EXPECT_TRUE(slow.wait(3));
        EXPECT_TRUE(fast.wait(20));
        EXPECT_EQ(rest, 0);
    });
    EXPECT_TRUE(outcome.passed());
}

TEST(InternalThread, TickMayAddTicks) {
    Count done;
    runtime::every(vma::clock::Msec(1), [&] {
        runtime::every(vma::clock::Msec(1), [&] {
            done.add();
            return false;
        });
        return false;
    });
    EXPECT_TRUE(done.wait());
}

std::atomic<std::uint64_t> g_token{0};
std::atomic<int> g_errors{0};
Count* g_error_count = nullptr;

void on_error(std::uint64_t token) {
    g_token = token;
    g_errors++;
    g_error_count->add();
}

// Two UDP sockets on loopback; nobody listens on the port that `fd` is connected to, so a send gives an ICMP
// error.
struct Refused {
    Refused() {
        int closed = socket(AF_INET, SOCK_DGRAM, 0);
        sockaddr_in addr{};
        addr.sin_family = AF_INET;
        addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t len = sizeof addr;
        EXPECT_EQ(bind(closed, reinterpret_cast<sockaddr*>(&addr), len), 0);
        EXPECT_EQ(getsockname(closed, reinterpret_cast<sockaddr*>(&addr), &len), 0);
        fd = socket(AF_INET, SOCK_DGRAM, 0);
        EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&addr), len), 0);
        close(closed);
    }
    ~Refused() {
        if (fd >= 0) close(fd);
    }
    void provoke() { EXPECT_EQ(send(fd, "x", 1, 0), 1); }
    int take_error() {
        int error = 0;
        socklen_t len = sizeof error;
        EXPECT_EQ(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len), 0);
        return error;
    }
    int fd = -1;
};

TEST(InternalThread, ErrorsOfTheProgramsSockets) {
    auto outcome = in_child([] {
        Count errors;
        g_error_count = &errors;
        runtime::on_error(on_error);
        Refused socket;
        runtime::watch_errors(socket.fd, 0xfeedfacecafe0001);
        socket.provoke();
        ASSERT_TRUE(errors.wait());
        EXPECT_EQ(g_token, 0xfeedfacecafe0001);
        EXPECT_EQ(socket.take_error(), ECONNREFUSED);
        runtime::watch_errors(socket.fd, 2);  // a new token, small like the thread's own ones
        socket.provoke();
        ASSERT_TRUE(errors.wait());
        EXPECT_EQ(g_token, 2u);
        EXPECT_EQ(socket.take_error(), ECONNREFUSED);

        // Datagrams do not count, and a closed descriptor has left the set.
        int before = g_errors;
        int receiver = ::socket(AF_INET, SOCK_DGRAM, 0);
        sockaddr_in addr{};
        addr.sin_family = AF_INET;
        addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t len = sizeof addr;
        ASSERT_EQ(bind(receiver, reinterpret_cast<sockaddr*>(&addr), len), 0);
        ASSERT_EQ(getsockname(receiver, reinterpret_cast<sockaddr*>(&addr), &len), 0);
        runtime::watch_errors(receiver, 3);
        ASSERT_EQ(sendto(receiver, "x", 1, 0, reinterpret_cast<sockaddr*>(&addr), len), 1);
        close(receiver);
        close(socket.fd);
        socket.fd = -1;
        runtime::watch_errors(receiver, 4);  // not open any more: no more than a debug line
        Count later;
        runtime::every(vma::clock::Msec(1), [&] {
            later.add();
            return false;
        });
        ASSERT_TRUE(later.wait());
        EXPECT_EQ(g_errors, before);
    });
    EXPECT_TRUE(outcome.passed());
    EXPECT_EQ(outcome.output, "");
}

TEST(InternalThread, RestartsInAForkedChild) {
    auto outcome = in_child([] {
        Count parent;
        InternalFd event(eventfd(0, EFD_NONBLOCK));
        runtime::watch(event.get(), [&] {
            drain(event.get());
            parent.add();
        });
        ring(event.get());
        ASSERT_TRUE(parent.wait());
        pid_t pid = fork();
        if (pid == 0) {
            EXPECT_FALSE(event) << "the parent's descriptors are closed";
            Count child;
            InternalFd own(eventfd(1, EFD_NONBLOCK));
            runtime::watch(own.get(), [&] {
                drain(own.get());
                child.add();
            });
            EXPECT_TRUE(child.wait());
            runtime::unwatch(own.get());
            _exit(::testing::Test::HasFailure());
        }
        int status = 0;
        waitpid(pid, &status, 0);
        EXPECT_EQ(status, 0);
        ring(event.get());
        EXPECT_TRUE(parent.wait());
        runtime::unwatch(event.get());
    });
    EXPECT_TRUE(outcome.passed());
}

TEST(InternalThread, ForkWhileEveryThreadIsBusy) {
#ifdef __SANITIZE_ADDRESS__
    GTEST_SKIP()
        << "GCC 12's AddressSanitizer does not guard its allocator against fork: the child may wait for ever";
#endif
    auto outcome = in_child([] {
        std::atomic<bool> stop{false};
        std::thread busy([&] {
            while (!stop) {
                InternalFd event(eventfd(1, EFD_NONBLOCK));
                runtime::watch(event.get(), [] {});
                runtime::unwatch(event.get());
            }
        });
        for (int i = 0; i < 100; i++) {
            pid_t pid = fork();
            if (pid == 0) {
                Count called;
                runtime::every(vma::clock::Msec(1), [&] {
                    called.add();
                    return false;
                });
                _exit(called.wait() ? 0 : 1);
            }
            int status = 0;
            waitpid(pid, &status, 0);
            ASSERT_EQ(status, 0) << i;
        }
        stop = true;
        busy.join();
    });
    EXPECT_TRUE(outcome.passed());
}

TEST(InternalThread, ExitDoesNotHang) {
    for (int round = 0; round < 20; round++) {
        auto outcome = in_child([] {
            static InternalFd event(eventfd(1, EFD_NONBLOCK));
            runtime::watch(event.get(), [] {});  // busy for ever, even when exit() has closed the descriptor
            runtime::every(vma::clock::Msec(1), [] { return true; });
            // Not _exit(): destructors and atexit functions run beside the thread. gtest's own results do not
            // matter.
            fflush(nullptr);
            exit(5);
        });
        ASSERT_TRUE(WIFEXITED(outcome.status));
        ASSERT_EQ(WEXITSTATUS(outcome.status), 5) << outcome.output;
    }
}

TEST(InternalThread, PthreadExitOfTheLastThreadEndsTheProcess) {
#ifdef __SANITIZE_ADDRESS__
    GTEST_SKIP() << "what the vanished main thread's stack refers to counts as leaked";
#endif
    auto outcome = in_child([] {
        Count started;
        runtime::every(vma::clock::Msec(1000000), [] { return true; });
        pthread_t other;
        pthread_create(
            &other, nullptr,
            [](void*) -> void* {
                usleep(20000);
                return nullptr;
            },
            nullptr);
        syscall(SYS_exit, 0);  // as pthread_exit() in main, without unwinding gtest's frames
    });
    EXPECT_TRUE(WIFEXITED(outcome.status));
    EXPECT_EQ(WEXITSTATUS(outcome.status), 0) << outcome.output;
}

}  // namespace
