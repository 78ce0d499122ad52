// SPDX-License-Identifier: BSD-2-Clause
// The signal layer against the kernel: each scenario writes down everything the program can see, once with
// libc's functions and once with ours, and both texts must be the same.
#include "libvma/runtime/signals.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <setjmp.h>
#include <sys/syscall.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "libvma/runtime/runtime.h"
#include "tests/support/child.h"

namespace {

using vma::test::in_child;
namespace signals = vma::runtime::signals;

class Signals : public testing::Test {
  protected:
    void SetUp() override {
#ifdef __SANITIZE_THREAD__
        GTEST_SKIP()
            << "the thread sanitizer has a sigaction() of its own and delivers signals later than the kernel";
#endif
    }
};

struct Functions {
    int (*sigaction)(int, const struct sigaction*, struct sigaction*);
    sighandler_t (*signal)(int, sighandler_t);
    sighandler_t (*sysv_signal)(int, sighandler_t);
    int (*siginterrupt)(int, int);
    void (*start)();
};

int siginterrupt_of_libc(int sig, int flag) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    return ::siginterrupt(sig, flag);
#pragma GCC diagnostic pop
}

const Functions kLibc = {::sigaction, ::signal, ::sysv_signal, siginterrupt_of_libc, [] {}};
const Functions kOurs = {signals::sigaction, signals::signal, signals::sysv_signal, signals::siginterrupt,
                         [] { signals::start(); }};

std::string* g_seen = nullptr;  // what a scenario has seen so far

void note(const std::string& text) { *g_seen += text + "\n"; }

std::string name_of(const void* handler);

void simple(int sig) { note(fmt::format("simple {}", sig)); }
void another(int sig) { note(fmt::format("another {}", sig)); }
void with_info(int sig, siginfo_t* info, void* context) {
    note(fmt::format("info {} {} {} {} {}", sig, info->si_signo, info->si_code, info->si_value.sival_int,
                     context != nullptr));
}
void masks(int sig) {
    sigset_t now;
    sigprocmask(SIG_SETMASK, nullptr, &now);
    std::string text = fmt::format("masks {}:", sig);
    for (int i = 1; i < 32; i++)
        if (sigismember(&now, i) == 1) text += fmt::format(" {}", i);
    note(text);
}
void stack(int) {
    char here;
    stack_t now;
    sigaltstack(nullptr, &now);
    auto base = static_cast<char*>(now.ss_sp);
    note(fmt::format("on the alternate stack: {}", &here >= base && &here < base + now.ss_size));
}
void depth(int sig) {
    static int level = 0;
    note(fmt::format("depth {}", ++level));
    if (level < 3) raise(sig);
    note(fmt::format("leaving {}", level--));
}
sigjmp_buf g_jump;
void jumps(int sig) { siglongjmp(g_jump, sig); }
void throws(int sig) { throw std::runtime_error(fmt::format("signal {}", sig)); }

std::string name_of(const void* handler) {
    struct Name {
        const void* address;
        const char* name;
    };
    const Name names[] = {
        {reinterpret_cast<void*>(SIG_DFL), "SIG_DFL"}, {reinterpret_cast<void*>(SIG_IGN), "SIG_IGN"},
        {reinterpret_cast<void*>(SIG_ERR), "SIG_ERR"}, {reinterpret_cast<void*>(simple), "simple"},
        {reinterpret_cast<void*>(another), "another"}, {reinterpret_cast<void*>(with_info), "with_info"},
        {reinterpret_cast<void*>(masks), "masks"},     {reinterpret_cast<void*>(stack), "stack"},
        {reinterpret_cast<void*>(depth), "depth"},     {reinterpret_cast<void*>(jumps), "jumps"}};
    for (const Name& row : names)
        if (row.address == handler) return row.name;
    return "something else";
}

std::string text_of(const struct sigaction& action) {
    std::string mask;
    for (int i = 1; i < 65; i++)
        if (sigismember(&action.sa_mask, i) == 1) mask += fmt::format(" {}", i);
    return fmt::format(
        "{} flags {:#x} restorer {} mask{}", name_of(reinterpret_cast<void*>(action.sa_handler)),
        static_cast<unsigned>(action.sa_flags), reinterpret_cast<void*>(action.sa_restorer), mask);
}

struct sigaction make(sighandler_t handler, int flags = 0, std::initializer_list<int> mask = {}) {
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = flags;
    for (int sig : mask) sigaddset(&action.sa_mask, sig);
    return action;
}
struct sigaction make(void (*handler)(int, siginfo_t*, void*), int flags,
                      std::initializer_list<int> mask = {}) {
    struct sigaction action = make(SIG_DFL, flags | SA_SIGINFO, mask);
    action.sa_sigaction = handler;
    return action;
}

void set(const Functions& f, int sig, struct sigaction action, const char* what) {
    struct sigaction old {};
    errno = 0;
    int result = f.sigaction(sig, &action, &old);
    note(fmt::format("{}: {} errno {} old {}", what, result, errno, text_of(old)));
}
void query(const Functions& f, int sig) {
    struct sigaction now {};
    errno = 0;
    int result = f.sigaction(sig, nullptr, &now);
    note(fmt::format("query {}: {} errno {} {}", sig, result, errno, text_of(now)));
}

// start() comes before the scenario, in the middle of it (where the scenario calls middle()), or never.
enum class When { before, middle, never };

template <class Scenario>
std::string see(const Functions& f, When when, Scenario scenario) {
    auto outcome = in_child([&] {
        std::string seen;
        seen.reserve(1 << 16);  // handlers of the scenario write into it; raised synchronously only
        g_seen = &seen;
        if (when == When::before) f.start();
        scenario(f, [&] {
            if (when == When::middle) f.start();
        });
        (void)!write(2, seen.data(), seen.size());
    });
    EXPECT_TRUE(outcome.passed()) << outcome.status;
    return outcome.output;
}

template <class Scenario>
void same_as_kernel(Scenario scenario) {
    std::string expected = see(kLibc, When::never, scenario);
    EXPECT_NE(expected, "");
    EXPECT_EQ(see(kOurs, When::never, scenario), expected);
    EXPECT_EQ(see(kOurs, When::before, scenario), expected);
    EXPECT_EQ(see(kOurs, When::middle, scenario), expected);
}

TEST_F(Signals, QueriesGiveBackWhatWasInstalled) {
    same_as_kernel([](const Functions& f, auto middle) {
        query(f, SIGUSR1);
        set(f, SIGUSR1, make(simple), "first");
        query(f, SIGUSR1);
        middle();
        query(f, SIGUSR1);
        set(f, SIGUSR1, make(with_info, SA_RESTART, {SIGUSR2, SIGKILL, SIGTERM}), "second");
        query(f, SIGUSR1);
        set(f, SIGUSR1, make(another, SA_NODEFER | SA_ONSTACK | SA_NOCLDSTOP), "third");
        query(f, SIGUSR1);
        set(f, SIGUSR1, make(another, SA_RESTART), "fourth");
        set(f, SIGUSR1, make(SIG_IGN), "ignored");
        query(f, SIGUSR1);
        set(f, SIGUSR1, make(SIG_DFL), "default");
        query(f, SIGUSR1);
    });
}

TEST_F(Signals, ErrorsAreTheKernels) {
    same_as_kernel([](const Functions& f, auto middle) {
        middle();
        for (int sig : {-1, 0, 32, 33, 65, 1000, SIGKILL, SIGSTOP}) {
            set(f, sig, make(simple), fmt::format("set {}", sig).c_str());
            set(f, sig, make(SIG_DFL), fmt::format("reset {}", sig).c_str());
            query(f, sig);
            errno = 0;
            int result = f.sigaction(sig, nullptr, nullptr);
            note(fmt::format("nothing: {} errno {}", result, errno));
        }
        errno = 0;
        note(name_of(reinterpret_cast<void*>(f.signal(SIGKILL, simple))) + fmt::format(" {}", errno));
        errno = 0;
        note(name_of(reinterpret_cast<void*>(f.signal(65, simple))) + fmt::format(" {}", errno));
        errno = 0;
        note(name_of(reinterpret_cast<void*>(f.signal(SIGUSR1, SIG_ERR))) + fmt::format(" {}", errno));
        errno = 0;
        note(fmt::format("siginterrupt {} {}", f.siginterrupt(65, 1), errno));
        query(f, SIGUSR1);
    });
}

TEST_F(Signals, SuccessLeavesErrnoAlone) {
    auto outcome = in_child([] {
        struct sigaction action = make(simple);
        errno = 44;
        EXPECT_EQ(signals::sigaction(SIGUSR1, &action, nullptr), 0);
        signals::start();
        EXPECT_EQ(signals::sigaction(SIGUSR1, &action, &action), 0);
        EXPECT_EQ(signals::sigaction(SIGUSR1, nullptr, &action), 0);
        EXPECT_EQ(signals::signal(SIGUSR2, another), SIG_DFL);
        EXPECT_EQ(errno, 44);
    });
    EXPECT_TRUE(outcome.passed());
}

TEST_F(Signals, HandlersGetTheirArguments) {
    same_as_kernel([](const Functions& f, auto middle) {
        set(f, SIGUSR1, make(simple), "simple");
        set(f, SIGRTMIN, make(with_info, 0), "info");
        middle();
        raise(SIGUSR1);
        sigqueue(getpid(), SIGRTMIN, sigval{.sival_int = 4711});
        set(f, SIGUSR1, make(another), "another");
        raise(SIGUSR1);
        set(f, SIGUSR1, make(with_info, SA_RESTART), "info");
        raise(SIGUSR1);
        set(f, SIGUSR1, make(SIG_IGN), "ignore");
        raise(SIGUSR1);
        set(f, SIGUSR1, make(simple), "simple");
        raise(SIGUSR1);
    });
}

TEST_F(Signals, ResetHand) {
    same_as_kernel([](const Functions& f, auto middle) {
        set(f, SIGURG, make(simple, static_cast<int>(SA_RESETHAND)), "reset");
        middle();
        query(f, SIGURG);
        raise(SIGURG);
        query(f, SIGURG);
        raise(SIGURG);  // ignored by default
        set(f, SIGURG, make(another, static_cast<int>(SA_RESETHAND | SA_NODEFER)), "again");
        query(f, SIGURG);
        raise(SIGURG);
        query(f, SIGURG);
    });
}

TEST_F(Signals, MasksInsideTheHandler) {
    same_as_kernel([](const Functions& f, auto middle) {
        set(f, SIGUSR1, make(masks, 0, {SIGTERM, SIGHUP}), "mask");
        set(f, SIGUSR2, make(masks, SA_NODEFER), "nodefer");
        middle();
        raise(SIGUSR1);
        raise(SIGUSR2);
        sigset_t now;
        sigprocmask(SIG_SETMASK, nullptr, &now);
        note(fmt::format("after: {}", sigismember(&now, SIGUSR1)));
    });
}

TEST_F(Signals, NestedHandlers) {
    same_as_kernel([](const Functions& f, auto middle) {
        set(f, SIGUSR1, make(depth, SA_NODEFER), "nodefer");
        middle();
        raise(SIGUSR1);
    });
}

TEST_F(Signals, AlternateStack) {
    same_as_kernel([](const Functions& f, auto middle) {
        static char memory[64 * 1024];
        stack_t alternate{};
        alternate.ss_sp = memory;
        alternate.ss_size = sizeof memory;
        sigaltstack(&alternate, nullptr);
        set(f, SIGUSR1, make(stack, SA_ONSTACK), "on");
        set(f, SIGUSR2, make(stack), "off");
        middle();
        raise(SIGUSR1);
        raise(SIGUSR2);
    });
}

TEST_F(Signals, JumpingOut) {
    same_as_kernel([](const Functions& f, auto middle) {
        set(f, SIGUSR1, make(jumps), "jumps");
        middle();
        static int round;
        for (round = 0; round < 3; round++) {
            if (int sig = sigsetjmp(g_jump, 1); sig != 0)
                note(fmt::format("came back with {}", sig));
            else
                raise(SIGUSR1);
        }
        query(f, SIGUSR1);
    });
}

TEST_F(Signals, ThrowingOut) {
    same_as_kernel([](const Functions& f, auto middle) {
        set(f, SIGUSR1, make(throws, SA_NODEFER), "throws");
        middle();
        int (*volatile send)(int) = raise;  // not known to the compiler as a function that does not throw
        try {
            send(SIGUSR1);
            note("nothing thrown");
        } catch (const std::exception& e) {
            note(e.what());
        }
    });
}

TEST_F(Signals, SignalFamily) {
    same_as_kernel([](const Functions& f, auto middle) {
        auto result = [](sighandler_t old) { note(name_of(reinterpret_cast<void*>(old))); };
        result(f.signal(SIGUSR1, simple));
        query(f, SIGUSR1);
        middle();
        result(f.signal(SIGUSR1, another));
        raise(SIGUSR1);
        query(f, SIGUSR1);
        note(fmt::format("{}", f.siginterrupt(SIGUSR1, 1)));
        query(f, SIGUSR1);
        result(f.signal(SIGUSR1, simple));
        query(f, SIGUSR1);
        note(fmt::format("{}", f.siginterrupt(SIGUSR1, 0)));
        query(f, SIGUSR1);
        result(f.signal(SIGUSR1, simple));
        query(f, SIGUSR1);
        result(f.sysv_signal(SIGUSR1, masks));
        query(f, SIGUSR1);
        raise(SIGUSR1);
        query(f, SIGUSR1);
        result(f.signal(SIGUSR1, SIG_IGN));
        result(f.signal(SIGUSR1, SIG_DFL));
        query(f, SIGUSR1);
    });
}

TEST_F(Signals, ChildInheritsAndGoesItsOwnWay) {
    same_as_kernel([](const Functions& f, auto middle) {
        set(f, SIGUSR1, make(simple, SA_RESTART), "simple");
        middle();
        int ends[2];
        ASSERT_EQ(pipe(ends), 0);
        pid_t pid = fork();
        if (pid == 0) {
            g_seen->clear();
            query(f, SIGUSR1);
            raise(SIGUSR1);
            set(f, SIGUSR1, make(another), "child");
            raise(SIGUSR1);
            (void)!write(ends[1], g_seen->data(), g_seen->size());
            _exit(0);
        }
        waitpid(pid, nullptr, 0);
        char text[4096];
        ssize_t n = read(ends[0], text, sizeof text);
        note(std::string(text, n > 0 ? static_cast<size_t>(n) : 0));
        raise(SIGUSR1);
        query(f, SIGUSR1);
    });
}

TEST_F(Signals, VforkedChildLeavesTheTableAlone) {
    auto outcome = in_child([] {
        std::string seen;
        g_seen = &seen;
        set(kOurs, SIGUSR1, make(simple), "parent");
        signals::start();
        // As vfork(): own dispositions, shared memory. A stack of its own keeps this thread's frames intact.
        static char memory[256 * 1024];
        vma::runtime::enter_vfork();
        int pid = clone(
            [](void*) -> int {
                query(kOurs, SIGUSR1);
                set(kOurs, SIGUSR1, make(another), "child");
                query(kOurs, SIGUSR1);
                raise(SIGUSR1);
                set(kOurs, SIGUSR1, make(SIG_DFL), "default");
                return 0;
            },
            memory + sizeof memory, CLONE_VM | CLONE_VFORK | SIGCHLD, nullptr);
        vma::runtime::leave_vfork();
        ASSERT_GT(pid, 0);
        int status = 1;
        waitpid(pid, &status, 0);
        EXPECT_EQ(status, 0);
        auto before = vma::runtime::interruptions();
        raise(SIGUSR1);
        EXPECT_EQ(vma::runtime::interruptions(), before + 1);
        query(kOurs, SIGUSR1);
        EXPECT_NE(seen.find("child: 0 errno 0 old simple"), std::string::npos) << seen;
        EXPECT_NE(seen.find("another 10\ndefault: 0 errno 0 old another"), std::string::npos) << seen;
        EXPECT_NE(seen.find("simple 10\nquery 10: 0 errno 0 simple"), std::string::npos) << seen;
    });
    EXPECT_TRUE(outcome.passed());
}

void nothing(int) {}

TEST_F(Signals, CountersTellRestartFromInterruption) {
    auto outcome = in_child([] {
        using vma::runtime::interruptions;
        using vma::runtime::restarts;
        signals::signal(SIGUSR1, nothing);  // restarts
        struct sigaction action = make(nothing);
        signals::sigaction(SIGUSR2, &action, nullptr);
        raise(SIGUSR1);
        raise(SIGUSR2);
        EXPECT_EQ(interruptions(), 0u) << "before start nothing stands between";
        EXPECT_EQ(restarts(), 0u);
        signals::start();
        signals::start();
        raise(SIGUSR1);
        EXPECT_EQ(interruptions(), 0u);
        EXPECT_EQ(restarts(), 1u);
        raise(SIGUSR2);
        EXPECT_EQ(interruptions(), 1u);
        EXPECT_EQ(restarts(), 1u);
        signals::siginterrupt(SIGUSR1, 1);
        raise(SIGUSR1);
        EXPECT_EQ(interruptions(), 2u);
        std::thread([] {
            EXPECT_EQ(interruptions(), 0u);
            raise(SIGUSR2);
            EXPECT_EQ(interruptions(), 1u);
        }).join();
        EXPECT_EQ(interruptions(), 2u);
        signals::signal(SIGUSR1, SIG_IGN);
        raise(SIGUSR1);
        EXPECT_EQ(interruptions(), 2u);
        EXPECT_EQ(restarts(), 1u);
    });
    EXPECT_TRUE(outcome.passed());
}

TEST_F(Signals, OurFunctionHandedBackIsNotPutBehindItself) {
    auto outcome = in_child([] {
        std::string seen;
        g_seen = &seen;
        struct sigaction action = make(simple), raw{};
        signals::start();
        signals::sigaction(SIGUSR1, &action, nullptr);
        ASSERT_EQ(::sigaction(SIGUSR1, nullptr, &raw), 0);  // past us: sees our function
        EXPECT_NE(raw.sa_handler, simple);
        for (int i = 0; i < 3; i++) ASSERT_EQ(signals::sigaction(SIGUSR1, &raw, &action), 0);
        EXPECT_EQ(action.sa_handler, simple);
        auto before = vma::runtime::interruptions();
        raise(SIGUSR1);
        EXPECT_EQ(seen, "simple 10\n");
        EXPECT_EQ(vma::runtime::interruptions(), before + 1);
    });
    EXPECT_TRUE(outcome.passed());
}

std::atomic<long> g_handled[2];
void first(int) { g_handled[0]++; }
void second(int) { g_handled[1]++; }

TEST_F(Signals, ChangingWhileSignalsArrive) {
    auto outcome = in_child([] {
        struct sigaction a = make(first), b = make(second, SA_RESTART);
        signals::sigaction(SIGUSR1, &a, nullptr);
        std::atomic<bool> stop{false};
        std::vector<std::thread> threads;
        for (int t = 0; t < 2; t++)
            threads.emplace_back([&, t] {
                struct sigaction old;
                while (!stop) {
                    EXPECT_EQ(signals::sigaction(SIGUSR1, t == 0 ? &a : &b, &old), 0);
                    EXPECT_TRUE(old.sa_handler == first || old.sa_handler == second);
                    EXPECT_EQ(signals::sigaction(SIGUSR1, nullptr, &old), 0);
                    EXPECT_TRUE(old.sa_handler == first || old.sa_handler == second);
                }
            });
        constexpr int kSignals = 20000;
        for (int i = 0; i < kSignals; i++) {
            if (i == 1000) signals::start();
            raise(SIGUSR1);
        }
        EXPECT_EQ(g_handled[0] + g_handled[1], kSignals);
        stop = true;
        for (auto& thread : threads) thread.join();
        g_handled[0] = g_handled[1] = 0;
        auto before = vma::runtime::interruptions() + vma::runtime::restarts();
        for (int i = 0; i < 100; i++) raise(SIGUSR1);
        EXPECT_EQ(vma::runtime::interruptions() + vma::runtime::restarts(), before + 100);
    });
    EXPECT_TRUE(outcome.passed());
}

void calls_us(int) {
    struct sigaction action = make(calls_us, SA_NODEFER);
    signals::sigaction(SIGUSR1, &action, nullptr);
    g_handled[0]++;
}

TEST_F(Signals, HandlerThatInstallsItself) {
    auto outcome = in_child([] {
        signals::start();
        struct sigaction action = make(calls_us, SA_NODEFER);
        signals::sigaction(SIGUSR1, &action, nullptr);
        pthread_t self = pthread_self();
        std::thread sender([self] {
            for (int i = 0; i < 2000; i++) pthread_kill(self, SIGUSR1);
        });
        // The signals hit this thread inside sigaction() as well.
        for (int i = 0; i < 2000; i++) signals::sigaction(SIGUSR1, &action, nullptr);
        sender.join();
        raise(SIGUSR1);
        EXPECT_GT(g_handled[0], 0);
    });
    EXPECT_TRUE(outcome.passed());
}

}  // namespace
