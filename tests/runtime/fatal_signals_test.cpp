// SPDX-License-Identifier: BSD-2-Clause
// What happens before a signal ends the process: the backtrace of a fault, the end in good order after
// SIGINT, and that the process then dies as it would have died without the library, or its own handlers run.
#include "libvma/runtime/fatal_signals.h"

#include <gmock/gmock.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>

#include <thread>

#include "libvma/runtime/log.h"
#include "libvma/runtime/signals.h"
#include "tests/support/child.h"

namespace {

using namespace vma;
using test::in_child;
using test::Outcome;
using testing::HasSubstr;
using testing::MatchesRegex;
namespace signals = runtime::signals;
namespace fatal = runtime::fatal_signals;

class FatalSignals : public testing::Test {
  protected:
    void SetUp() override {
#ifdef __SANITIZE_THREAD__
        GTEST_SKIP() << "the thread sanitizer has a sigaction() of its own";
#endif
    }
};

int killed_by(const Outcome& outcome) { return WIFSIGNALED(outcome.status) ? WTERMSIG(outcome.status) : 0; }

void set(int sig, void (*handler)(int), int flags = 0) {
    struct sigaction action {};
    action.sa_handler = handler;
    action.sa_flags = flags;
    EXPECT_EQ(signals::sigaction(sig, &action, nullptr), 0);
}

sighandler_t now(int sig) {
    struct sigaction action {};
    EXPECT_EQ(signals::sigaction(sig, nullptr, &action), 0);
    EXPECT_EQ(action.sa_flags & ~0x04000000, 0);
    return action.sa_handler;
}

// A sanitizer's own handler would come first.
void begin(bool interrupt, bool fault) {
    set(SIGSEGV, SIG_DFL);
    set(SIGINT, SIG_DFL);
    log::configure({});
    signals::start();
    fatal::start(interrupt, fault);
}

void write_to(std::uintptr_t where) {
    volatile std::uintptr_t address = where;  // or the compiler knows better
    *reinterpret_cast<volatile int*>(address) = 1;
}

void wait_for_death() {
    for (int i = 0; i < 100; i++) usleep(100000);
    _exit(99);
}

TEST_F(FatalSignals, BacktraceAndThenTheDefault) {
    auto outcome = in_child([] {
        begin(false, true);
        write_to(16);
    });
    EXPECT_EQ(killed_by(outcome), SIGSEGV);
    EXPECT_THAT(outcome.output,
                MatchesRegex("VMA ERROR: SIGSEGV at 0x[0-9a-f]+, address 0x10; backtrace of thread [0-9]+:\n"
                             "VMA ERROR: #0  0x[0-9a-f]+ unit_tests\\+0x[0-9a-f]+\n(.|\n)*"));
    // The chain goes on to the beginning of the program, in libraries with names.
    EXPECT_THAT(outcome.output, HasSubstr(" libc.so.6+0x"));
    EXPECT_THAT(outcome.output, HasSubstr(" __libc_start_main+0x"));
}

TEST_F(FatalSignals, SentAndJumpToNowhere) {
    auto outcome = in_child([] {
        begin(false, true);
        raise(SIGSEGV);
        wait_for_death();
    });
    EXPECT_EQ(killed_by(outcome), SIGSEGV);
    EXPECT_THAT(outcome.output, HasSubstr("SIGSEGV sent by process "));
    outcome = in_child([] {
        begin(false, true);
        void (*volatile nowhere)() = nullptr;
        nowhere();
    });
    EXPECT_EQ(killed_by(outcome), SIGSEGV);
    EXPECT_THAT(outcome.output, HasSubstr("SIGSEGV at 0x0, address 0x0;"));
    EXPECT_THAT(outcome.output, HasSubstr("VMA ERROR: #0  0x0\n"));
}

TEST_F(FatalSignals, OtherThread) {
    auto outcome = in_child([] {
        begin(false, true);
        std::thread([] { write_to(32); }).join();
    });
    EXPECT_EQ(killed_by(outcome), SIGSEGV);
    EXPECT_THAT(outcome.output, HasSubstr("address 0x20"));
}

volatile sig_atomic_t g_calls = 0;
sigjmp_buf g_back;
void recovers(int) {
    g_calls = g_calls + 1;
    siglongjmp(g_back, 1);
}

TEST_F(FatalSignals, ProgramsHandlerRuns) {
    for (bool before : {false, true}) {
        auto outcome = in_child([&] {
            if (before) {
                set(SIGINT, SIG_DFL);
                log::configure({});
                set(SIGSEGV, recovers);
                signals::start();
                fatal::start(false, true);
            } else {
                begin(false, true);
                set(SIGSEGV, recovers);
            }
            EXPECT_EQ(now(SIGSEGV), recovers);
            while (g_calls < 20)
                if (sigsetjmp(g_back, 1) == 0) write_to(16);
            EXPECT_EQ(g_calls, 20);
            set(SIGSEGV, SIG_DFL);
            EXPECT_EQ(now(SIGSEGV), SIG_DFL);
        });
        EXPECT_TRUE(outcome.passed());
        std::size_t times = 0;
        for (std::size_t at = 0; (at = outcome.output.find("backtrace of", at)) != std::string::npos; at++)
            times++;
        EXPECT_EQ(times, 5u);  // no flood from a program that lives with faults
    }
}

TEST_F(FatalSignals, DispositionsAsWithoutUs) {
    auto outcome = in_child([] {
        set(SIGINT, SIG_IGN);
        log::configure({});
        signals::start();
        fatal::start(true, true);
        EXPECT_EQ(now(SIGINT), SIG_IGN);
        raise(SIGINT);
        EXPECT_EQ(signals::signal(SIGINT, SIG_DFL), SIG_IGN);
        EXPECT_EQ(now(SIGINT), SIG_DFL);
        EXPECT_EQ(signals::signal(SIGINT, recovers), SIG_DFL);
        EXPECT_EQ(signals::signal(SIGINT, SIG_IGN), recovers);
        raise(SIGINT);
        set(SIGSEGV, recovers, static_cast<int>(SA_RESETHAND));
        EXPECT_EQ(signals::signal(SIGSEGV, SIG_DFL), recovers);
        EXPECT_EQ(signals::siginterrupt(SIGSEGV, 1), 0);
        EXPECT_EQ(now(SIGSEGV), SIG_DFL);
    });
    EXPECT_TRUE(outcome.passed());
    EXPECT_EQ(outcome.output, "");
}

void end_says() noexcept { log::info("the end"); }
void end_hangs() noexcept {
    for (;;) pause();
}

TEST_F(FatalSignals, InterruptEndsInGoodOrder) {
    auto outcome = in_child([] {
        fatal::set_end(end_says);
        begin(true, false);
        EXPECT_EQ(now(SIGINT), SIG_DFL);
        raise(SIGINT);
        wait_for_death();
    });
    EXPECT_EQ(killed_by(outcome), SIGINT);
    EXPECT_EQ(outcome.output, "VMA INFO: SIGINT ends the process\nVMA INFO: the end\n");
}

TEST_F(FatalSignals, SecondInterruptDoesNotWait) {
    auto outcome = in_child([] {
        fatal::set_end(end_hangs);
        begin(true, false);
        raise(SIGINT);
        usleep(50000);
        raise(SIGINT);
        wait_for_death();
    });
    EXPECT_EQ(killed_by(outcome), SIGINT);
}

void counts(int) { g_calls = g_calls + 1; }

TEST_F(FatalSignals, InterruptIsTheProgramsIfItHasAHandler) {
    auto outcome = in_child([] {
        fatal::set_end(end_says);
        begin(true, false);
        set(SIGINT, counts);
        raise(SIGINT);
        usleep(20000);
        EXPECT_EQ(g_calls, 1);
    });
    EXPECT_TRUE(outcome.passed());
    EXPECT_EQ(outcome.output, "");
}

// A forked child has no internal thread of its own to end it.
TEST_F(FatalSignals, ForkedChild) {
    auto outcome = in_child([] {
        fatal::set_end(end_says);
        begin(true, true);
        for (int sig : {SIGINT, SIGSEGV}) {
            const pid_t child = fork();
            if (child == 0) {
                raise(sig);
                wait_for_death();
            }
            int status = 0;
            EXPECT_EQ(waitpid(child, &status, 0), child);
            EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == sig) << status;
        }
    });
    EXPECT_TRUE(outcome.passed());
    EXPECT_THAT(outcome.output, testing::Not(HasSubstr("the end")));
    EXPECT_THAT(outcome.output, HasSubstr("SIGSEGV sent by process"));
}

}  // namespace
