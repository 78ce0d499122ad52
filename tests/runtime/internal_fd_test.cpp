// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/runtime/internal_fd.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "tests/support/child.h"

namespace {

using vma::InternalFd;
using vma::test::in_child;

bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

TEST(InternalFd, TakesOverAndMovesAway) {
    int low = eventfd(0, 0);
    {
        InternalFd fd(low);
        ASSERT_TRUE(fd);
        EXPECT_FALSE(is_open(low)) << "the number goes back to the program";
        EXPECT_GT(fd.get(), low);
        EXPECT_EQ(fcntl(fd.get(), F_GETFD), FD_CLOEXEC);
        EXPECT_TRUE(InternalFd::is_internal(fd.get()));
        EXPECT_FALSE(InternalFd::is_internal(low));
        EXPECT_FALSE(InternalFd::is_internal(-1));
        low = fd.get();
    }
    EXPECT_FALSE(is_open(low));
    EXPECT_FALSE(InternalFd::is_internal(low));
}

TEST(InternalFd, GivenUpOpen) {
    InternalFd fd(eventfd(0, 0));
    const int number = fd.release();
    EXPECT_FALSE(fd);
    EXPECT_TRUE(is_open(number));
    EXPECT_FALSE(InternalFd::is_internal(number));
    EXPECT_EQ(fd.release(), -1);
    close(number);
}

TEST(InternalFd, EmptyOnes) {
    InternalFd none, failed(-1);
    EXPECT_FALSE(none);
    EXPECT_FALSE(failed);
    EXPECT_EQ(none.get(), -1);
    none.reset();
    none = std::move(failed);
    EXPECT_FALSE(none);
}

TEST(InternalFd, Moves) {
    InternalFd a(eventfd(0, 0));
    int number = a.get();
    InternalFd b(std::move(a));
    EXPECT_FALSE(a);
    EXPECT_EQ(b.get(), number);
    InternalFd c(eventfd(0, 0));
    int replaced = c.get();
    c = std::move(b);
    EXPECT_EQ(c.get(), number);
    EXPECT_FALSE(is_open(replaced));
    c = std::move(c);
    EXPECT_EQ(c.get(), number);
    errno = 33;
    c.reset();
    EXPECT_EQ(errno, 33);
    EXPECT_FALSE(is_open(number));
}

TEST(InternalFd, MakesWayForTheProgram) {
    InternalFd fd(eventfd(7, 0));
    int before = fd.get();
    struct stat original, moved;
    ASSERT_EQ(fstat(before, &original), 0);
    int programs = open("/dev/null", O_RDONLY);
    ASSERT_TRUE(InternalFd::relocate(before));
    ASSERT_EQ(dup2(programs, before), before);
    EXPECT_NE(fd.get(), before);
    EXPECT_FALSE(InternalFd::is_internal(before));
    EXPECT_TRUE(InternalFd::is_internal(fd.get()));
    ASSERT_EQ(fstat(fd.get(), &moved), 0);
    std::uint64_t value = 0;
    EXPECT_EQ(read(fd.get(), &value, sizeof value), 8);
    EXPECT_EQ(value, 7u);
    fd.reset();
    EXPECT_TRUE(is_open(before)) << "the program's descriptor must not be closed with ours";
    close(before);
    close(programs);
}

TEST(InternalFd, RelocateOfForeignNumberDoesNothing) { EXPECT_TRUE(InternalFd::relocate(0)); }

TEST(InternalFd, ListIsSorted) {
    std::vector<InternalFd> fds;
    for (int i = 0; i < 10; i++) fds.emplace_back(eventfd(0, 0));
    int out[64];
    std::size_t n = InternalFd::list(out, 64);
    EXPECT_GE(n, 10u);
    EXPECT_TRUE(std::is_sorted(out, out + n));
    for (auto& fd : fds) EXPECT_TRUE(std::binary_search(out, out + n, fd.get()));
    EXPECT_EQ(InternalFd::list(out, 3), 3u);
}

TEST(InternalFd, FewDescriptorsAllowed) {
    auto outcome = in_child([] {
        rlimit limit{64, 64};
        ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
        InternalFd fd(eventfd(0, 0));
        EXPECT_GE(fd.get(), 32);
        EXPECT_TRUE(InternalFd::is_internal(fd.get()));
    });
    EXPECT_TRUE(outcome.passed()) << outcome.output;
}

TEST(InternalFd, RegistryFull) {
    auto outcome = in_child([] {
        const rlimit limit{InternalFd::kMost + 100, InternalFd::kMost + 100};
        ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
        std::vector<InternalFd> fds;
        for (std::size_t i = 0; i <= InternalFd::kMost; i++) {
            int fd = eventfd(0, 0);
            if (fd < 0) break;
            fds.emplace_back(fd);
            if (!fds.back()) {
                EXPECT_EQ(errno, EMFILE);
                return;
            }
        }
        ADD_FAILURE() << "never full";
    });
    EXPECT_TRUE(outcome.passed()) << outcome.output;
}

TEST(InternalFd, ClosedInChildAndStaleObjectsAreEmpty) {
    InternalFd fd(eventfd(0, 0));
    auto outcome = in_child([&] {
        int number = fd.get();
        InternalFd::close_all_in_child();
        EXPECT_FALSE(is_open(number));
        EXPECT_FALSE(fd);
        InternalFd fresh(eventfd(0, 0));  // gets the slot that `fd` still remembers
        ASSERT_TRUE(fresh);
        EXPECT_FALSE(fd);
        fd.reset();
        EXPECT_TRUE(is_open(fresh.get()));
    });
    EXPECT_TRUE(outcome.passed()) << outcome.output;
    EXPECT_TRUE(is_open(fd.get())) << "the parent's stays";
}

TEST(InternalFd, ManyThreads) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++)
        threads.emplace_back([] {
            for (int i = 0; i < 500; i++) {
                InternalFd a(eventfd(0, 0)), b(eventfd(0, 0));
                ASSERT_TRUE(a && b);
                ASSERT_NE(a.get(), b.get());
                ASSERT_TRUE(InternalFd::is_internal(a.get()));
            }
        });
    for (auto& thread : threads) thread.join();
}

}  // namespace
