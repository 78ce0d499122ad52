// SPDX-License-Identifier: BSD-2-Clause
// The log: what a line looks like, where it goes, and where it must not go.
#include "libvma/runtime/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "libvma/config/log_callback.h"
#include "libvma/config/params.h"
#include "libvma/runtime/internal_fd.h"
#include "libvma/runtime/pid_name.h"
#include "tests/support/child.h"

namespace {

using namespace vma;
using log::Level;
using test::in_child;

std::string content(const std::string& name) {
    std::ifstream in(name);
    std::ostringstream out;
    out << in.rdbuf();
    return out.str();
}

class TemporaryDirectory {
  public:
    TemporaryDirectory() { EXPECT_NE(mkdtemp(name_), nullptr); }
    ~TemporaryDirectory() { std::filesystem::remove_all(name_); }
    std::string file(const std::string& name) const { return std::string(name_) + "/" + name; }

  private:
    char name_[32] = "/tmp/vma_log_test_XXXXXX";
};

TEST(Log, LevelsByNameAndNumber) {
    EXPECT_EQ(log::parse_level("none"), Level::none);
    EXPECT_EQ(log::parse_level("PANIC"), Level::panic);
    EXPECT_EQ(log::parse_level("Warn"), Level::warn);
    EXPECT_EQ(log::parse_level("details"), Level::info);
    EXPECT_EQ(log::parse_level("all"), Level::finer);
    EXPECT_EQ(log::parse_level("func"), Level::fine);
    for (int n = 0; n <= 6; n++) EXPECT_EQ(log::parse_level(std::to_string(n)), static_cast<Level>(n));
    for (const char* wrong : {"", "7", "-1", "03", "infos", "inf", "3 "})
        EXPECT_FALSE(log::parse_level(wrong)) << wrong;
}

TEST(Log, SilentBeforeStart) {
    auto outcome = in_child([] {
        log::error("too early");
        log::write(Level::panic, "too early");
    });
    EXPECT_TRUE(outcome.passed());
    EXPECT_EQ(outcome.output, "");
}

TEST(Log, PrefixAndThreshold) {
    auto outcome = in_child([] {
        log::configure({.level = Level::info});
        errno = 77;
        log::error("e {}", 1);
        log::warn("w");
        log::info("i");
        log::debug("d");
        log::write(Level::none, "never");
        EXPECT_EQ(errno, 77);
    });
    EXPECT_TRUE(outcome.passed());
    EXPECT_EQ(outcome.output, "VMA ERROR: e 1\nVMA WARNING: w\nVMA INFO: i\n");
}

TEST(Log, LevelNoneIsSilent) {
    auto outcome = in_child([] {
        log::configure({.level = Level::none});
        log::error("no");
        log::write(Level::panic, "no");
        log::write(Level::none, "no");
    });
    EXPECT_EQ(outcome.output, "");
}

TEST(Log, OneLineWhateverTheText) {
    auto outcome = in_child([] {
        log::configure({});
        log::info("{}", "a\nb\x1b[2Jc\td");
        log::info("{}", std::string(3000, 'x'));
    });
    EXPECT_EQ(outcome.output, "VMA INFO: a?b?[2Jc?d\nVMA INFO: " + std::string(1024, 'x') + "\n");
}

TEST(Log, Details) {
    EXPECT_THAT(in_child([] {
                    log::configure({.details = 1});
                    log::info("x");
                }).output,
                testing::MatchesRegex("VMA INFO: \\[tid [0-9]+\\] x\n"));
    EXPECT_THAT(
        in_child([] {
            log::configure({.details = 3});
            log::info("x");
        }).output,
        testing::MatchesRegex("VMA INFO: \\[time [0-9]+\\.[0-9][0-9][0-9] pid [0-9]+ tid [0-9]+\\] x\n"));
    EXPECT_THAT(in_child([] {
                    log::configure({.level = Level::debug});
                    log::debug("x");
                }).output,
                testing::MatchesRegex("VMA DEBUG: \\[pid [0-9]+ tid [0-9]+\\] x\n"));
}

TEST(Log, NotToAnotherFileUnderNumberTwo) {
    auto outcome = in_child([] {
        log::remember_stderr();
        log::configure({});
        log::info("before");
        int keep = dup(2);
        int other = open("/dev/null", O_WRONLY);
        dup2(other, 2);
        log::info("to the daemon's own file");
        close(2);
        log::info("to nowhere");
        dup2(keep, 2);
        log::info("after");
    });
    EXPECT_EQ(outcome.output, "VMA INFO: before\nVMA INFO: after\n");
}

TEST(Log, ClosedStderrStaysSilent) {
    TemporaryDirectory dir;
    std::string name = dir.file("program");
    auto outcome = in_child([&] {
        close(2);
        log::remember_stderr();
        EXPECT_EQ(open(name.c_str(), O_CREAT | O_RDWR, 0600), 2);
        log::configure({});
        log::error("must not land in the program's file");
    });
    EXPECT_TRUE(outcome.passed());
    EXPECT_EQ(content(name), "");
}

TEST(Log, BrokenPipeDoesNotKill) {
    auto outcome = in_child([] {
        int ends[2];
        ASSERT_EQ(pipe(ends), 0);
        dup2(ends[1], 2);
        close(ends[0]);
        log::configure({});
        log::info("nobody listens");
        sigset_t pending;
        sigpending(&pending);
        EXPECT_EQ(sigismember(&pending, SIGPIPE), 0);
        sigset_t mask;
        sigprocmask(SIG_SETMASK, nullptr, &mask);
        EXPECT_EQ(sigismember(&mask, SIGPIPE), 0);
    });
    EXPECT_TRUE(outcome.passed());
}

TEST(Log, FileWithProcessId) {
    TemporaryDirectory dir;
    pid_t pid = 0;
    auto outcome = in_child([&] {
        log::configure({.file = dir.file("log.%d")});
        log::info("in the file");
        int fds[8];
        EXPECT_EQ(InternalFd::list(fds, 8), 1u);
        struct stat a, b;
        EXPECT_EQ(fstat(fds[0], &a), 0);
        EXPECT_EQ(stat(dir.file("log." + std::to_string(getpid())).c_str(), &b), 0);
        EXPECT_EQ(a.st_ino, b.st_ino);
        EXPECT_EQ(fcntl(fds[0], F_GETFD), FD_CLOEXEC);
        dprintf(2, "%d", getpid());
    });
    EXPECT_TRUE(outcome.passed());
    pid = std::stoi(outcome.output);
    EXPECT_EQ(content(dir.file("log." + std::to_string(pid))), "VMA INFO: in the file\n");
}

TEST(Log, FileOfAForkedChild) {
    TemporaryDirectory dir;
    auto outcome = in_child([&] {
        ASSERT_EQ(chdir(dir.file("").c_str()), 0);
        log::configure({.file = "log.%d"});
        log::info("parent");
        ASSERT_EQ(chdir("/"), 0);
        pid_t child = fork();
        if (child == 0) {
            log::info("child");
            log::info("again");
            _exit(0);
        }
        waitpid(child, nullptr, 0);
        log::info("parent again");
        EXPECT_EQ(content(dir.file("log." + std::to_string(child))), "VMA INFO: child\nVMA INFO: again\n");
        EXPECT_EQ(content(dir.file("log." + std::to_string(getpid()))),
                  "VMA INFO: parent\nVMA INFO: parent again\n");
    });
    EXPECT_TRUE(outcome.passed());
    EXPECT_EQ(outcome.output, "");
}

TEST(Log, BadFileFallsBackToStderr) {
    auto outcome = in_child([] {
        log::configure({.file = "/no/such/directory/log"});
        log::info("here");
    });
    EXPECT_EQ(outcome.output,
              "VMA WARNING: VMA_LOG_FILE=\"/no/such/directory/log\" cannot be opened (No such file or "
              "directory): the "
              "log goes to stderr\nVMA INFO: here\n");
}

TEST(Log, ColorsOnATerminalOnly) {
    auto on_terminal = [](bool colors) {
        std::string seen;
        int master = posix_openpt(O_RDWR | O_NOCTTY);
        EXPECT_GE(master, 0);
        EXPECT_EQ(grantpt(master), 0);
        EXPECT_EQ(unlockpt(master), 0);
        int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
        in_child([&] {
            dup2(slave, 2);
            log::configure({.colors = colors});
            log::warn("w");
            log::info("i");
        });
        // The kernel passes on what was written from a worker of its own, so it may come in parts.
        pollfd ready{master, POLLIN, 0};
        while (seen.find("i\r\n") == seen.npos && poll(&ready, 1, 10'000) > 0) {
            char text[256];
            const ssize_t n = read(master, text, sizeof text);
            if (n <= 0) break;
            seen.append(text, static_cast<size_t>(n));
        }
        close(slave);
        close(master);
        return seen;
    };
    EXPECT_EQ(on_terminal(true), "\033[31mVMA WARNING: w\033[0m\r\nVMA INFO: i\r\n");
    EXPECT_EQ(on_terminal(false), "VMA WARNING: w\r\nVMA INFO: i\r\n");
}

TEST(Log, OnceForEachText) {
    auto outcome = in_child([] {
        log::configure({});
        for (int round = 0; round < 3; round++)
            for (int text = 0; text < 3; text++) log::once(Level::info, "text {}", text);
        log::once(Level::debug, "not now");
        for (int text = 0; text < 1000; text++) log::once(Level::warn, "flood {}", text);
    });
    EXPECT_THAT(
        outcome.output,
        testing::StartsWith("VMA INFO: text 0\nVMA INFO: text 1\nVMA INFO: text 2\nVMA WARNING: flood 0\n"));
    EXPECT_EQ(std::count(outcome.output.begin(), outcome.output.end(), '\n'), 256);
}

TEST(Log, StartReadsTheEnvironmentAndComplainsAfterwards) {
    auto outcome = in_child([] {
        setenv("VMA_TRACELEVEL", "WARN", 1);
        setenv("VMA_RX_POLL", "many", 1);
        setenv("VMA_RX_POL", "1", 1);
        setenv("VMA_MSS", "1400", 1);
        log::start();
        log::info("below the threshold");
        log::start();
    });
    EXPECT_EQ(outcome.output,
              "VMA WARNING: VMA_RX_POLL=\"many\" is not a number: the default 100000 is used\n"
              "VMA WARNING: VMA_RX_POL is not a parameter and has no effect: is VMA_RX_POLL meant?\n");
}

TEST(Log, FirstUseOfAParameterStartsTheLog) {
    auto outcome = in_child([] {
        setenv("VMA_TRACELEVEL", "4", 1);
        EXPECT_EQ(config::get().rx_poll, 100000);
        log::debug("it has begun");
        config::print_start();
    });
    EXPECT_TRUE(outcome.passed());
    EXPECT_LT(outcome.output.find("it has begun"), outcome.output.find("] VMA_VERSION: "));
    EXPECT_THAT(outcome.output, testing::HasSubstr("] Pid: "));
    // All parameters, and that this level is not for every day.
    EXPECT_THAT(outcome.output, testing::HasSubstr("[VMA_RX_POLL]\n"));
    EXPECT_THAT(outcome.output, testing::HasSubstr("VMA WARNING: "));
    EXPECT_THAT(outcome.output, testing::HasSubstr("log level 4 makes the program slow"));
}

TEST(Log, StartUpPrint) {
    auto outcome = in_child([] {
        setenv("VMA_RX_POLL", "-1", 1);
        setenv("VMA_TX_PREFETCH_BYTES", "0", 1);
        config::get();
        config::print_start();
        config::print_start();
    });
    const std::string rule = "VMA INFO: " + std::string(75, '-') + "\n";
    EXPECT_THAT(outcome.output,
                testing::StartsWith(rule + "VMA INFO: VMA_VERSION: " VMA_VERSION "\nVMA INFO: Cmd Line: "));
    const std::string lines = outcome.output.substr(outcome.output.find(rule, 1) + rule.size());
    EXPECT_EQ(
        lines,
        "VMA INFO: Log Level                      info                       [VMA_TRACELEVEL]\n"
        "VMA INFO: Log File                                                  [VMA_LOG_FILE]\n"
        "VMA INFO: Tx Prefetch Bytes              0                          [VMA_TX_PREFETCH_BYTES] no "
        "effect: a datagram is "
        "copied once, which fetches it\n"
        "VMA INFO: Rx Poll Loops                  -1                         [VMA_RX_POLL]\n"
        "VMA INFO: CQ Interrupts Moderation       Disabled                   [VMA_CQ_MODERATION_ENABLE]\n" +
            rule);
}

TEST(Log, LevelAndDetailsAtRunTime) {
    auto outcome = in_child([] {
        log::configure({.level = Level::warn});
        log::info("1");
        log::set_level(Level::info);
        EXPECT_EQ(log::level(), Level::info);
        log::info("2");
        log::set_level(Level::debug);
        EXPECT_EQ(log::details(), 2);
        log::set_details(-5);
        log::debug("3");
        log::set_details(99);
        EXPECT_EQ(log::details(), 3);
        log::set_details(0);
        log::set_level(Level::none);
        log::error("4");
    });
    EXPECT_TRUE(outcome.passed());
    EXPECT_EQ(outcome.output, "VMA INFO: 2\nVMA DEBUG: 3\n");
}

std::string g_heard;
void hear(int level, const char* line) {
    g_heard += std::to_string(level) + " " + line;
    log::info("about a line");  // lost
    errno = EBADF;
}

TEST(Log, Callback) {
    auto outcome = in_child([] {
        log::configure({.level = Level::debug, .callback = hear});
        log::set_details(0);
        errno = 5;
        log::warn("one");
        EXPECT_EQ(errno, 5);
        log::debug("two");
        log::fine("three");
        log::write_direct(Level::error, "past it");
        EXPECT_EQ(g_heard, "2 VMA WARNING: one\n4 VMA DEBUG: two\n");
    });
    EXPECT_TRUE(outcome.passed());
    EXPECT_EQ(outcome.output, "VMA ERROR: past it\n");
}

std::string address_of(const void* p) {
    char text[32];
    snprintf(text, sizeof text, "%p", p);
    return text;
}

TEST(Log, CallbackAddresses) {
    std::string refused;
    EXPECT_EQ(config::log_callback(address_of(reinterpret_cast<void*>(hear)), refused), hear);
    EXPECT_EQ(refused, "");
    static int data;
    for (std::string text :
         {std::string("(nil)"), std::string(), std::string("0x"), std::string("0x0"), std::string("hear"),
          address_of(reinterpret_cast<void*>(hear)) + " ", std::string("0x12345678901234567890"),
          address_of(reinterpret_cast<void*>(hear)).substr(2)}) {
        refused.clear();
        EXPECT_EQ(config::log_callback(text, refused), nullptr) << text;
        EXPECT_EQ(refused, "it is not an address as %p writes it") << text;
    }
    for (std::string text :
         {address_of(&data), address_of(&refused), std::string("0x1"), std::string("0xffffffffffffffff")}) {
        refused.clear();
        EXPECT_EQ(config::log_callback(text, refused), nullptr) << text;
        EXPECT_EQ(refused, "there is no code at that address") << text;
    }
}

TEST(Log, CallbackFromTheEnvironment) {
    auto outcome = in_child([] {
        setenv("VMA_LOG_CB_FUNC_PTR", address_of(reinterpret_cast<void*>(hear)).c_str(), 1);
        config::print_start();
        EXPECT_THAT(g_heard, testing::StartsWith("3 VMA INFO: ---"));
    });
    EXPECT_TRUE(outcome.passed());
    EXPECT_EQ(outcome.output, "");
    outcome = in_child([] {
        setenv("VMA_TRACELEVEL", "warn", 1);
        setenv("VMA_LOG_CB_FUNC_PTR", "0x10", 1);
        config::get();
    });
    EXPECT_EQ(outcome.output,
              "VMA WARNING: VMA_LOG_CB_FUNC_PTR=0x10 is not used: there is no code at that address\n");
}

TEST(PidName, ReplacesOnePlaceholder) {
    auto expand = [](const char* text) {
        char out[64];
        return expand_pid(text, 1234, out, sizeof out) ? std::string(out) : std::string("(does not fit)");
    };
    EXPECT_EQ(expand("/tmp/x"), "/tmp/x");
    EXPECT_EQ(expand("/tmp/%d.log"), "/tmp/1234.log");
    EXPECT_EQ(expand("%d-%d"), "1234-%d");
    EXPECT_EQ(expand("100%"), "100%");
    EXPECT_EQ(expand("%s%n"), "%s%n");
    EXPECT_EQ(expand(std::string(64, 'x').c_str()), "(does not fit)");
    char small[4];
    EXPECT_FALSE(expand_pid("%d", 1234, small, sizeof small));
    EXPECT_TRUE(expand_pid("%d", 123, small, sizeof small));
}

}  // namespace
