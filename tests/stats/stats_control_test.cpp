// SPDX-License-Identifier: BSD-2-Clause
// Commands to the process: who may, what is refused, and that a silent peer holds up nobody.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "libvma/runtime/log.h"
#include "libvma/stats/control_server.h"
#include "libvma/stats/counter.h"
#include "libvma/stats/stats_memory.h"
#include "tests/support/child.h"

namespace {

using namespace vma::stats;
using vma::test::in_child;

int g_zeroed, g_refreshed, g_dumped_fd, g_dumped_level;
const CommandHandlers kHandlers{[]() noexcept { g_refreshed++; }, []() noexcept { g_zeroed++; },
                                [](int fd, int level) noexcept {
                                    g_dumped_fd = fd;
                                    g_dumped_level = level;
                                    return fd == 77 ? 0u : 1u;
                                }};

Request request(Command command, int value = 0, int level = 0) {
    return {kControlMagic, kVersion, static_cast<std::uint32_t>(command), value, level, 0};
}
Answer ask_directly(const Request& r, unsigned uid = 5) { return answer_to(&r, sizeof r, uid, 5, kHandlers); }

TEST(StatsControl, OnlyTheOwnerAndRoot) {
    EXPECT_EQ(ask_directly(request(Command::zero), 6).error, EPERM);
    EXPECT_EQ(ask_directly(request(Command::zero), ~0u).error, EPERM);
    EXPECT_EQ(ask_directly(request(Command::zero), 5).error, 0);
    EXPECT_EQ(ask_directly(request(Command::zero), 0).error, 0);
}

TEST(StatsControl, BadRequests) {
    Request r = request(Command::log_level, 3);
    EXPECT_EQ(answer_to(&r, 0, 5, 5, kHandlers).error, EINVAL);
    EXPECT_EQ(answer_to(&r, sizeof r - 1, 5, 5, kHandlers).error, EINVAL);
    EXPECT_EQ(answer_to(&r, sizeof r + 1, 5, 5, kHandlers).error, EINVAL);
    r.magic++;
    EXPECT_EQ(ask_directly(r).error, EINVAL);
    r = request(Command::log_level, 3);
    r.version++;
    EXPECT_EQ(ask_directly(r).error, EPROTONOSUPPORT);
    EXPECT_EQ(ask_directly(request(static_cast<Command>(0))).error, EOPNOTSUPP);
    EXPECT_EQ(ask_directly(request(static_cast<Command>(0xffffffff))).error, EOPNOTSUPP);
    EXPECT_EQ(ask_directly(request(Command::log_level, 7)).error, EINVAL);
    EXPECT_EQ(ask_directly(request(Command::log_level, -2)).error, EINVAL);
    EXPECT_EQ(ask_directly(request(Command::log_details, 4)).error, EINVAL);
    EXPECT_EQ(ask_directly(request(Command::log_details, -1)).error, EINVAL);
    EXPECT_EQ(ask_directly(request(Command::dump_socket, -1, 3)).error, EBADF);
    EXPECT_EQ(ask_directly(request(Command::dump_socket, 77, 3)).error, EBADF);
    EXPECT_EQ(ask_directly(request(Command::dump_socket, 1, 9)).error, EINVAL);
    const Answer told = ask_directly(request(Command::log_level, 99));
    EXPECT_EQ(told.magic, kControlMagic);
    EXPECT_STREQ(told.text, "a log level is a number from -1 to 6");
}

TEST(StatsControl, Commands) {
    const auto outcome = in_child([] {
        EXPECT_EQ(ask_directly(request(Command::log_level, 2)).error, 0);
        EXPECT_EQ(vma::log::level(), vma::log::Level::warn);
        EXPECT_EQ(ask_directly(request(Command::log_details, 1)).error, 0);
        EXPECT_EQ(vma::log::details(), 1);
        g_zeroed = g_refreshed = 0;
        EXPECT_EQ(ask_directly(request(Command::zero)).error, 0);
        EXPECT_EQ(g_zeroed, 1);
        EXPECT_EQ(ask_directly(request(Command::refresh)).error, 0);
        EXPECT_EQ(g_refreshed, 1);
        EXPECT_EQ(ask_directly(request(Command::dump_socket, 12, 2)).error, 0);
        EXPECT_EQ(g_dumped_fd, 12);
        EXPECT_EQ(g_dumped_level, 2);
    });
    EXPECT_TRUE(outcome.passed());
}

// ---- over the socket ----

int open_connection() {
    const std::string_view name = text_of(current()->header().command_socket);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    timeval limit{5, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), length) == 0) return fd;
    close(fd);
    return -1;
}

// errno of the answer, or -1. When it returns, the serving thread is done with the connection.
int ask(const void* message, std::size_t length) {
    const int fd = open_connection();
    if (fd < 0) return -1;
    Answer answer{};
    const bool good = send(fd, message, length, MSG_NOSIGNAL) == static_cast<ssize_t>(length) &&
                      recv(fd, &answer, sizeof answer, 0) == static_cast<ssize_t>(sizeof answer);
    char byte;
    const bool closed = good && recv(fd, &byte, 1, 0) == 0;
    close(fd);
    return closed && answer.magic == kControlMagic ? answer.error : -1;
}
int ask(const Request& r) { return ask(&r, sizeof r); }

void serve() {
    char directory[] = "/tmp/vma-control-test-XXXXXX";
    ASSERT_NE(mkdtemp(directory), nullptr);
    setenv("VMA_STATS_SHMEM_DIR", directory, 1);
    start();
    start_control(kHandlers);
    ASSERT_NE(text_of(current()->header().command_socket), "");
}
void done() {
    end();
    rmdir(getenv("VMA_STATS_SHMEM_DIR"));
}

TEST(StatsControl, AnswersOverItsSocket) {
    const auto outcome = in_child([] {
        serve();
        g_refreshed = 0;
        for (int i = 0; i < 50; i++) EXPECT_EQ(ask(request(Command::refresh)), 0);
        EXPECT_EQ(g_refreshed, 50);
        EXPECT_EQ(ask("junk", 4), EINVAL);
        const std::vector<char> large(100000, 'x');
        EXPECT_EQ(ask(large.data(), large.size()), EINVAL);
        EXPECT_EQ(ask(request(Command::log_level, 1)), 0);
        EXPECT_EQ(current()->header().log_level, 1);
        done();
    });
    EXPECT_TRUE(outcome.passed()) << outcome.output;
}

TEST(StatsControl, SilentPeersHoldUpNobody) {
    const auto outcome = in_child([] {
        serve();
        std::vector<int> silent;
        for (int i = 0; i < 30; i++) {
            silent.push_back(open_connection());
            EXPECT_GE(silent.back(), 0);
            if (i % 5 == 0) {
                EXPECT_EQ(ask(request(Command::refresh)), 0);
            }
        }
        EXPECT_EQ(ask(request(Command::refresh)), 0);
        char byte;
        EXPECT_EQ(recv(silent[0], &byte, 1, 0), 0) << "the oldest lost its place";
        // The youngest have kept theirs.
        const Request r = request(Command::refresh);
        Answer answer{};
        EXPECT_EQ(send(silent.back(), &r, sizeof r, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof r));
        EXPECT_EQ(recv(silent.back(), &answer, sizeof answer, 0), static_cast<ssize_t>(sizeof answer));
        EXPECT_EQ(answer.error, 0);
        EXPECT_EQ(recv(silent.back(), &answer, sizeof answer, 0), 0) << "one request a connection";
        for (int fd : silent) close(fd);
        // Somebody who asks and does not wait.
        for (int i = 0; i < 20; i++) {
            const int fd = open_connection();
            (void)!send(fd, &r, sizeof r, MSG_NOSIGNAL);
            close(fd);
        }
        EXPECT_EQ(ask(request(Command::refresh)), 0);
        done();
    });
    EXPECT_TRUE(outcome.passed()) << outcome.output;
}

TEST(StatsControl, AnotherUsersProcessIsRefused) {
    if (geteuid() != 0) GTEST_SKIP() << "needs root to become others";
    const auto outcome = in_child([] {
        serve();
        ASSERT_EQ(seteuid(12345), 0);
        const int connection = open_connection();  // SO_PEERCRED is taken here
        ASSERT_EQ(seteuid(0), 0);
        const Request r = request(Command::zero);
        g_zeroed = 0;
        Answer answer{};
        ASSERT_EQ(send(connection, &r, sizeof r, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof r));
        ASSERT_EQ(recv(connection, &answer, sizeof answer, 0), static_cast<ssize_t>(sizeof answer));
        EXPECT_EQ(answer.error, EPERM);
        EXPECT_EQ(g_zeroed, 0);
        close(connection);
        done();
    });
    EXPECT_TRUE(outcome.passed()) << outcome.output;
}

TEST(StatsControl, AForkedChildHasNone) {
    const auto outcome = in_child([] {
        serve();
        char name[sizeof(Header::command_socket)];
        std::memcpy(name, current()->header().command_socket, sizeof name);
        // The serving thread sleeps from here on: nothing guards a sanitizer's allocator against a fork in
        // the middle of it.
        EXPECT_EQ(ask(request(Command::refresh)), 0);
        const pid_t child = fork();
        if (child == 0) {
            forget_control_in_child();
            start();
            const bool none = text_of(current()->header().command_socket).empty();
            start_control(kHandlers);
            const bool own = text_of(current()->header().command_socket) != std::string_view(name);
            const bool answers = ask(request(Command::refresh)) == 0;
            end();
            _exit(none && own && answers ? 0 : 1);
        }
        int status = -1;
        waitpid(child, &status, 0);
        EXPECT_EQ(status, 0);
        EXPECT_EQ(ask(request(Command::refresh)), 0) << "the parent's goes on";
        done();
    });
    EXPECT_TRUE(outcome.passed()) << outcome.output;
}

}  // namespace
