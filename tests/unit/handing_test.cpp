// SPDX-License-Identifier: BSD-2-Clause
// Sockets over fork: who asks whom, and when. The sockets are kernel ones; the object under their number only notes
// that it was told to leave to the kernel, by an option that every process with the same socket sees.
#include "libvma/sockets/handing.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "child.h"
#include "libvma/runtime/runtime.h"
#include "libvma/sockets/fd_table.h"

namespace {

using namespace vma;
using namespace vma::sockets;

bool is_kernels(int fd) {
    int value = 0;
    socklen_t length = sizeof value;
    EXPECT_EQ(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, &length), 0);
    return value != 0;
}

// How often something happened, in all processes together.
struct Counts {
    std::atomic<int> left{0}, last_closes{0};
};
Counts* shared_counts() {
    void* memory = mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return new (memory) Counts;
}

class Fake final : public Socket {
  public:
    explicit Fake(Counts& counts, bool state = true) : counts_(counts), state_(state) {
        fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        g_fds.insert(fd_, this);
    }
    int fd() const { return fd_; }
    bool carries_state() const noexcept override { return state_; }
    void leave_to_kernel(int fd, const char*) noexcept override {
        if (!state_.exchange(false)) return;
        counts_.left++;
        int one = 1;
        setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    }
    void before_last_close(int fd) noexcept override {
        counts_.last_closes++;
        if (handing::shared_since(born_)) leave_to_kernel(fd, "");
    }
    void recycle() noexcept override {}

  private:
    Counts& counts_;
    std::atomic<bool> state_;
    std::uint32_t born_ = handing::generation();
    int fd_;
};

void close_as_program(int fd) {
    g_fds.close(fd);
    close(fd);
}

template <class Body>
pid_t start_child(Body&& body) {
    pid_t pid = fork();
    if (pid == 0) {
        body();
        fflush(nullptr);
        _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    return pid;
}
void expect_good_end(pid_t pid) {
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

template <class Condition>
bool eventually(Condition reached) {
    for (int i = 0; i < 10000; i++) {
        if (reached()) return true;
        usleep(1000);
    }
    return false;
}

// Each test in a process of its own: hooks and table are things of a whole process.
void run(const std::function<void(Counts&)>& test) {
    runtime::install_fork_hooks();  // so that the child knows that it is a process of its own
    EXPECT_TRUE(vma::test::in_child([&] {
                    handing::start();
                    test(*shared_counts());
                }).passed());
}

TEST(Handing, TheFirstUseAsksTheParentOnce) {
    run([](Counts& counts) {
        Fake a(counts), b(counts);
        expect_good_end(start_child([&] {
            EXPECT_NE(g_fds.peek(a.fd()), nullptr);
            EXPECT_EQ(counts.left, 0);
            errno = 4711;
            EXPECT_FALSE(g_fds.find(a.fd()));
            EXPECT_EQ(errno, 4711);
            EXPECT_TRUE(is_kernels(a.fd())) << "before the call returns";
            EXPECT_EQ(g_fds.peek(a.fd()), nullptr);
            EXPECT_FALSE(g_fds.socket(a.fd()));
            EXPECT_FALSE(is_kernels(b.fd()));
        }));
        EXPECT_EQ(counts.left, 1);
        EXPECT_TRUE(g_fds.socket(b.fd()));
    });
}

TEST(Handing, ClosingAsksNobody) {
    run([](Counts& counts) {
        Fake a(counts);
        expect_good_end(start_child([&] { close_as_program(a.fd()); }));
        EXPECT_EQ(counts.left, 0);
        EXPECT_EQ(counts.last_closes, 0);
    });
}

TEST(Handing, WhatCarriesNoStateIsTheKernelsInTheChild) {
    run([](Counts& counts) {
        Fake a(counts, false), b(counts);
        expect_good_end(start_child([&] {
            EXPECT_EQ(g_fds.peek(a.fd()), nullptr);
            EXPECT_NE(g_fds.peek(b.fd()), nullptr);
            EXPECT_TRUE(g_fds.any());
            close_as_program(b.fd());
            EXPECT_FALSE(g_fds.any());
        }));
        EXPECT_EQ(counts.left, 0);
    });
}

TEST(Handing, TheParentsLastCloseLeavesWhatAChildShares) {
    run([](Counts& counts) {
        Fake a(counts), b(counts);
        int go[2];
        ASSERT_EQ(pipe(go), 0);
        pid_t pid = start_child([&] {
            char c;
            EXPECT_EQ(read(go[0], &c, 1), 1);
            EXPECT_FALSE(g_fds.find(a.fd()));
            EXPECT_TRUE(is_kernels(a.fd()));
        });
        EXPECT_TRUE(handing::shared_since(0));
        Fake young(counts);
        close_as_program(young.fd());
        EXPECT_EQ(counts.last_closes, 1);
        EXPECT_EQ(counts.left, 0) << "younger than the child";
        close_as_program(a.fd());
        EXPECT_EQ(counts.last_closes, 2);
        EXPECT_EQ(counts.left, 1);
        ASSERT_EQ(write(go[1], "", 1), 1);
        expect_good_end(pid);
        EXPECT_TRUE(eventually([] { return !handing::shared_since(0); }));
        close_as_program(b.fd());
        EXPECT_EQ(counts.left, 1) << "the child is gone";
    });
}

TEST(Handing, AnotherNumberOfTheSameSocketDoes) {
    run([](Counts& counts) {
        Fake a(counts);
        int go[2];
        ASSERT_EQ(pipe(go), 0);
        pid_t pid = start_child([&] {
            char c;
            EXPECT_EQ(read(go[0], &c, 1), 1);
            EXPECT_FALSE(g_fds.find(a.fd()));
            EXPECT_TRUE(is_kernels(a.fd()));
        });
        int copy = dup(a.fd());
        on_dup(a.fd(), copy);
        close_as_program(a.fd());
        EXPECT_EQ(counts.last_closes, 0);
        Fake other(counts);  // under the number that has come free
        EXPECT_EQ(other.fd(), a.fd());
        ASSERT_EQ(write(go[1], "", 1), 1);
        expect_good_end(pid);
        EXPECT_EQ(counts.left, 1);
        EXPECT_TRUE(is_kernels(copy));
        EXPECT_FALSE(is_kernels(other.fd()));
    });
}

TEST(Handing, ACopyInTheChildAsksToo) {
    run([](Counts& counts) {
        Fake a(counts);
        expect_good_end(start_child([&] {
            int copy = dup(a.fd());
            on_dup(a.fd(), copy);
            EXPECT_TRUE(is_kernels(copy));
            EXPECT_EQ(g_fds.peek(copy), nullptr);
        }));
        EXPECT_EQ(counts.left, 1);
    });
}

TEST(Handing, DescendantsAskTheOwner) {
    run([](Counts& counts) {
        Fake a(counts), b(counts);
        expect_good_end(start_child([&] {
            Fake own(counts);
            expect_good_end(start_child([&] {
                expect_good_end(start_child([&] {
                    EXPECT_FALSE(g_fds.find(a.fd()));
                    EXPECT_TRUE(is_kernels(a.fd()));
                    EXPECT_FALSE(g_fds.find(own.fd()));
                    EXPECT_TRUE(is_kernels(own.fd()));
                }));
            }));
            EXPECT_TRUE(g_fds.socket(own.fd()));
        }));
        EXPECT_EQ(counts.left, 2);
    });
}

// The child has gone, its own child has not.
TEST(Handing, GrandchildrenKeepASocketShared) {
    run([](Counts& counts) {
        Fake a(counts);
        int go[2];
        ASSERT_EQ(pipe(go), 0);
        expect_good_end(start_child([&] {
            if (fork() != 0) return;
            char c;
            EXPECT_EQ(read(go[0], &c, 1), 1);
            EXPECT_FALSE(g_fds.find(a.fd()));
            EXPECT_TRUE(is_kernels(a.fd()));
        }));
        EXPECT_TRUE(handing::shared_since(0));
        ASSERT_EQ(write(go[1], "", 1), 1);
        EXPECT_TRUE(eventually([&] { return counts.left == 1; }));
        EXPECT_TRUE(eventually([] { return !handing::shared_since(0); }));
    });
}

TEST(Handing, AParentThatDiedIsNotWaitedFor) {
    run([](Counts& counts) {
        int result[2];
        ASSERT_EQ(pipe(result), 0);
        pid_t parent = start_child([&] {
            Fake a(counts);
            if (fork() == 0) {
                close(result[0]);
                while (getppid() != 1 && g_fds.peek(a.fd()) != nullptr && kill(getppid(), 0) == 0 && counts.left == 0)
                    usleep(1000);
                EXPECT_FALSE(g_fds.find(a.fd()));
                EXPECT_EQ(write(result[1], testing::Test::HasFailure() ? "n" : "y", 1), 1);
                _exit(0);
            }
            counts.left++;  // now
            raise(SIGKILL);
        });
        int status;
        EXPECT_EQ(waitpid(parent, &status, 0), parent);
        char c = 0;
        EXPECT_EQ(read(result[0], &c, 1), 1);
        EXPECT_EQ(c, 'y');
    });
}

TEST(Handing, ManyChildrenAtOnce) {
    run([](Counts& counts) {
        constexpr int kChildren = 100;  // more than there are channels
        std::vector<std::unique_ptr<Fake>> sockets;
        int go[2];
        ASSERT_EQ(pipe(go), 0);
        std::vector<pid_t> children;
        for (int i = 0; i < kChildren; i++) {
            sockets.push_back(std::make_unique<Fake>(counts));
            children.push_back(start_child([&] {
                char c;
                EXPECT_EQ(read(go[0], &c, 1), 1);
                const int fd = sockets.back()->fd();
                EXPECT_FALSE(g_fds.find(fd));
                EXPECT_TRUE(is_kernels(fd));
            }));
        }
        ASSERT_EQ(write(go[1], std::string(kChildren, 'x').data(), kChildren), kChildren);
        for (pid_t child : children) expect_good_end(child);
        EXPECT_EQ(counts.left, kChildren);
    });
}

TEST(Handing, ThreadsOfTheChildAskTogether) {
    run([](Counts& counts) {
        std::vector<std::unique_ptr<Fake>> sockets;
        for (int i = 0; i < 50; i++) sockets.push_back(std::make_unique<Fake>(counts));
        expect_good_end(start_child([&] {
            std::vector<std::thread> threads;
            for (int t = 0; t < 4; t++)
                threads.emplace_back([&] {
                    for (auto& s : sockets) {
                        EXPECT_FALSE(g_fds.find(s->fd()));
                        EXPECT_TRUE(is_kernels(s->fd()));
                    }
                });
            for (auto& t : threads) t.join();
            EXPECT_FALSE(g_fds.any());
        }));
        EXPECT_EQ(counts.left, 50);
    });
}

TEST(Handing, ForksOfManyThreads) {
    run([](Counts& counts) {
        Fake a(counts);
        std::vector<std::thread> threads;
        for (int t = 0; t < 4; t++)
            threads.emplace_back([&] {
                for (int i = 0; i < 20; i++) {
                    pid_t pid = fork();
                    if (pid == 0) {
                        bool good = g_fds.peek(a.fd()) != nullptr;
                        if (i % 5 == 0) good = !g_fds.find(a.fd()) && is_kernels(a.fd()) && good;
                        _exit(good || counts.left != 0 ? 0 : 1);
                    }
                    expect_good_end(pid);
                }
            });
        for (auto& t : threads) t.join();
        EXPECT_EQ(counts.left, 1);
        EXPECT_TRUE(eventually([] { return !handing::shared_since(0); }));
    });
}

TEST(Handing, ExecTakesWhatStaysOpenExitTakesAll) {
    run([](Counts& counts) {
        Fake stays(counts), goes(counts), plain(counts, false);
        fcntl(stays.fd(), F_SETFD, 0);
        fcntl(plain.fd(), F_SETFD, 0);
        errno = 4711;
        handing::hand_all(handing::Before::exec);
        EXPECT_TRUE(is_kernels(stays.fd()));
        EXPECT_FALSE(is_kernels(goes.fd()));
        handing::hand_all(handing::Before::exit);
        EXPECT_EQ(errno, 4711);
        EXPECT_TRUE(is_kernels(goes.fd()));
        EXPECT_FALSE(is_kernels(plain.fd()));
        EXPECT_EQ(counts.left, 2);
    });
}

TEST(Handing, AChildsExecTakesWhatItInherited) {
    run([](Counts& counts) {
        Fake stays(counts), goes(counts);
        fcntl(stays.fd(), F_SETFD, 0);
        expect_good_end(start_child([&] {
            handing::hand_all(handing::Before::exec);
            EXPECT_TRUE(is_kernels(stays.fd()));
            EXPECT_FALSE(is_kernels(goes.fd()));
            handing::hand_all(handing::Before::exit);  // the parent goes on serving what the child never used
            EXPECT_FALSE(is_kernels(goes.fd()));
        }));
        EXPECT_EQ(counts.left, 1);
    });
}

}  // namespace
