// SPDX-License-Identifier: BSD-2-Clause
// Sockets over fork: who asks whom, and when. The sockets are kernel ones; the object under their number only
// notes that it was told to leave to the kernel, by an option that every process with the same socket sees.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <new>
#include <random>
#include <thread>
#include <vector>

#include "libvma/runtime/runtime.h"
#include "libvma/sockets/fd_table.h"
#include "libvma/sockets/handover/shared_sockets.h"
#include "tests/support/child.h"

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
    std::atomic<int> left{0}, last_closes{0}, lowest_free{-1};
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
    void leave_to_kernel(int fd, LeaveCause) noexcept override {
        if (!state_.exchange(false)) return;
        counts_.left++;
        const int lowest = dup(fd);
        counts_.lowest_free = lowest;
        close(lowest);
        int one = 1;
        setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    }
    void before_last_close(int fd) noexcept override {
        counts_.last_closes++;
        if (sharing::shared_since(born_)) leave_to_kernel(fd, leave::end);
    }
    void recycle() noexcept override {}

  private:
    Counts& counts_;
    std::atomic<bool> state_;
    std::uint32_t born_ = sharing::generation();
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
                    sharing::start();
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

// What a thread of the parent gets from open() while the parent answers is what it would get without us.
TEST(Handing, ARequestDoesNotHoldTheLowestFreeNumber) {
    run([](Counts& counts) {
        Fake a(counts), b(counts);
        const int lowest = dup(0);
        close(lowest);
        expect_good_end(start_child([&] {
            EXPECT_FALSE(g_fds.find(a.fd()));
            EXPECT_EQ(counts.lowest_free, lowest);
            expect_good_end(
                start_child([&] { EXPECT_FALSE(g_fds.find(b.fd())); }));  // brings a socket for the answer
        }));
        EXPECT_EQ(counts.left, 2);
        EXPECT_EQ(counts.lowest_free, lowest);
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
        EXPECT_TRUE(sharing::shared_since(0));
        Fake young(counts);
        close_as_program(young.fd());
        EXPECT_EQ(counts.last_closes, 1);
        EXPECT_EQ(counts.left, 0) << "younger than the child";
        close_as_program(a.fd());
        EXPECT_EQ(counts.last_closes, 2);
        EXPECT_EQ(counts.left, 1);
        ASSERT_EQ(write(go[1], "", 1), 1);
        expect_good_end(pid);
        EXPECT_TRUE(eventually([] { return !sharing::shared_since(0); }));
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
        EXPECT_TRUE(sharing::shared_since(0));
        ASSERT_EQ(write(go[1], "", 1), 1);
        EXPECT_TRUE(eventually([&] { return counts.left == 1; }));
        EXPECT_TRUE(eventually([] { return !sharing::shared_since(0); }));
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
                while (getppid() != 1 && g_fds.peek(a.fd()) != nullptr && kill(getppid(), 0) == 0 &&
                       counts.left == 0)
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
        EXPECT_TRUE(eventually([] { return !sharing::shared_since(0); }));
    });
}

// All at once, so a parent that is stopped is waited for once.
TEST(Handing, AStoppedParentIsWaitedForOnce) {
    run([](Counts& counts) {
        constexpr int kSockets = 300;  // more than one message takes
        std::vector<std::unique_ptr<Fake>> sockets;
        for (int i = 0; i < kSockets; i++) {
            sockets.push_back(std::make_unique<Fake>(counts));
            fcntl(sockets.back()->fd(), F_SETFD, 0);
        }
        sharing::set_answer_limit(clock::Msec(200));
        int result[2];
        ASSERT_EQ(pipe(result), 0);
        const pid_t parent = getpid(), child = fork();
        if (child == 0) {
            kill(parent, SIGSTOP);
            const auto begin = std::chrono::steady_clock::now();
            sharing::hand_all(sharing::Before::exec);
            const bool once = std::chrono::steady_clock::now() - begin < std::chrono::seconds(20);
            const char c = once && !g_fds.any() ? 'y' : 'n';
            kill(parent, SIGCONT);
            _exit(write(result[1], &c, 1) == 1 ? 0 : 1);
        }
        char c = 0;
        EXPECT_EQ(read(result[0], &c, 1), 1);
        EXPECT_EQ(c, 'y');
        expect_good_end(child);
        // The requests are still there for the internal thread, which must be done with the sockets before
        // they go.
        EXPECT_TRUE(eventually([] { return !sharing::shared_since(0); }));
        EXPECT_EQ(counts.left, kSockets);
    });
}

// The parent takes one descriptor of a message, on which it answers, and keeps none.
TEST(Handing, NoDescriptorOfARequestStaysOpen) {
    run([](Counts& counts) {
        Fake a(counts);
        int kept[2];
        ASSERT_EQ(pipe(kept), 0);
        const pid_t pid = start_child([&] {
            iovec data{const_cast<char*>("x"), 1};  // less than a request
            const int both[2] = {kept[1], kept[1]};
            alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof both)> control{};
            msghdr message{};
            message.msg_iov = &data;
            message.msg_iovlen = 1;
            message.msg_control = control.data();
            message.msg_controllen = control.size();
            cmsghdr* c = CMSG_FIRSTHDR(&message);
            c->cmsg_level = SOL_SOCKET;
            c->cmsg_type = SCM_RIGHTS;
            c->cmsg_len = CMSG_LEN(sizeof both);
            std::memcpy(CMSG_DATA(c), both, sizeof both);
            int sent = 0;
            for (int fd = 0; fd < 4096; fd++) {
                int type = 0;
                socklen_t length = sizeof type;
                if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_SEQPACKET)
                    sent += sendmsg(fd, &message, MSG_NOSIGNAL) == 1;
            }
            EXPECT_EQ(sent, 1) << "the channel to the parent";
        });
        close(kept[1]);
        expect_good_end(pid);
        EXPECT_TRUE(eventually([] { return !sharing::shared_since(0); }));
        pollfd end{kept[0], POLLIN, 0};
        EXPECT_EQ(poll(&end, 1, 0), 1) << "somebody can still write";
        EXPECT_EQ(end.revents, POLLHUP);
        EXPECT_EQ(counts.left, 0);
    });
}

TEST(Handing, AChildsExecAsksForAllAtOnce) {
    run([](Counts& counts) {
        constexpr int kSockets = 300;
        std::vector<std::unique_ptr<Fake>> sockets;
        for (int i = 0; i < kSockets; i++) {
            sockets.push_back(std::make_unique<Fake>(counts));
            fcntl(sockets.back()->fd(), F_SETFD, 0);
        }
        expect_good_end(start_child([&] {
            sharing::hand_all(sharing::Before::exec);
            for (auto& s : sockets) EXPECT_TRUE(is_kernels(s->fd()));
            EXPECT_FALSE(g_fds.any());
        }));
        EXPECT_EQ(counts.left, kSockets);
    });
}

// In our memory, with other numbers.
TEST(Handing, AVforkedChildAsksForWhatItCopies) {
    run([](Counts& counts) {
        sharing::open_own_channel();
        Fake a(counts), b(counts), c(counts);
        fcntl(c.fd(), F_SETFD, 0);
        runtime::enter_vfork();
        const pid_t pid = vfork();
        if (pid == 0) {
            sharing::hand_one(a.fd(), leave::end);
            // The number of b means another file here.
            syscall(SYS_dup2, a.fd(), b.fd());
            sharing::hand_one(b.fd(), leave::end);
            sharing::hand_all(sharing::Before::exec);
            _exit(0);
        }
        runtime::leave_vfork();
        expect_good_end(pid);
        EXPECT_TRUE(is_kernels(a.fd()));
        EXPECT_FALSE(is_kernels(b.fd()));
        EXPECT_TRUE(is_kernels(c.fd()));
        EXPECT_EQ(counts.left, 2);
    });
}

TEST(Handing, ExecTakesWhatStaysOpenExitTakesAll) {
    run([](Counts& counts) {
        Fake stays(counts), goes(counts), plain(counts, false);
        fcntl(stays.fd(), F_SETFD, 0);
        fcntl(plain.fd(), F_SETFD, 0);
        errno = 4711;
        sharing::hand_all(sharing::Before::exec);
        EXPECT_TRUE(is_kernels(stays.fd()));
        EXPECT_FALSE(is_kernels(goes.fd()));
        sharing::hand_all(sharing::Before::exit);
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
            sharing::hand_all(sharing::Before::exec);
            EXPECT_TRUE(is_kernels(stays.fd()));
            EXPECT_FALSE(is_kernels(goes.fd()));
            sharing::hand_all(sharing::Before::exit);  // the parent goes on serving what the child never used
            EXPECT_FALSE(is_kernels(goes.fd()));
        }));
        EXPECT_EQ(counts.left, 1);
    });
}

// ---- a hostile child ----

struct RawRequest {  // as handing.cpp has it
    std::uint64_t cookie;
    const void* object;
    int fd;
    std::uint32_t answer_on_channel;
};

std::uint64_t cookie_of(int fd) {
    std::uint64_t cookie = 0;
    socklen_t length = sizeof cookie;
    getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &length);
    return cookie;
}

// The child's end, as it finds it among its descriptors.
int channel_to_parent() {
    for (int fd = 3; fd < 2000; fd++) {
        int domain = 0, type = 0;
        socklen_t length = sizeof domain;
        if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 && domain == AF_UNIX &&
            getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_SEQPACKET)
            return fd;
    }
    return -1;
}

bool send_raw(int channel, const void* data, std::size_t length, const std::vector<int>& fds = {}) {
    alignas(cmsghdr) std::array<char, CMSG_SPACE(8 * sizeof(int))> control{};
    iovec whole{const_cast<void*>(data), length};
    msghdr message{};
    message.msg_iov = &whole;
    message.msg_iovlen = 1;
    if (!fds.empty()) {
        message.msg_control = control.data();
        message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
        cmsghdr* c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
        std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
    }
    return sendmsg(channel, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(length);
}

int open_descriptors() {
    int count = 0;
    for (int fd = 0; fd < 2000; fd++) count += ::fcntl(fd, F_GETFD) >= 0;
    return count;
}

// What the parent's internal thread keeps is there.
void warm_up() {
    expect_good_end(start_child([] {}));
    EXPECT_TRUE(eventually([] { return !sharing::shared_since(0); }));
}

TEST(Handing, NonsenseFromAChildDoesNoHarm) {
    run([](Counts& counts) {
        Fake a(counts), b(counts), c(counts);
        warm_up();
        const int before = open_descriptors();
        int told[2], go[2];
        ASSERT_EQ(pipe(told), 0);
        ASSERT_EQ(pipe(go), 0);
        const pid_t pid = start_child([&] {
            const int channel = channel_to_parent();
            ASSERT_GE(channel, 0);
            // None of these is to be answered on.
            const int to = socket(AF_INET, SOCK_DGRAM, 0), from = socket(AF_INET, SOCK_DGRAM, 0);
            sockaddr_in where{};
            where.sin_family = AF_INET;
            where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
            socklen_t length = sizeof where;
            ASSERT_EQ(bind(to, reinterpret_cast<sockaddr*>(&where), length), 0);
            ASSERT_EQ(getsockname(to, reinterpret_cast<sockaddr*>(&where), &length), 0);
            ASSERT_EQ(connect(from, reinterpret_cast<sockaddr*>(&where), length), 0);
            int packets[2];
            ASSERT_EQ(socketpair(AF_UNIX, SOCK_DGRAM, 0, packets), 0);
            const int passed[] = {from, packets[0], go[0], a.fd(), channel};

            std::mt19937 random(1);
            const std::uint64_t cookies[] = {0, 1, cookie_of(b.fd()), ~0ull};
            const void* objects[] = {nullptr, &a, reinterpret_cast<void*>(8), reinterpret_cast<void*>(~0ull),
                                     &told};
            const int numbers[] = {-1, 0, a.fd(), b.fd(), channel, INT_MAX, INT_MIN};
            for (int i = 0; i < 3000; i++) {
                std::array<RawRequest, 300> requests;  // more than an owner takes
                for (RawRequest& r : requests)
                    r = {cookies[random() % std::size(cookies)], objects[random() % std::size(objects)],
                         numbers[random() % std::size(numbers)], static_cast<std::uint32_t>(random())};
                std::vector<int> fds(random() % 4);
                for (int& fd : fds) fd = passed[random() % std::size(passed)];
                const std::size_t most = random() % 4 == 0 ? sizeof requests : 3 * sizeof(RawRequest);
                ASSERT_TRUE(send_raw(channel, requests.data(), random() % most, fds)) << errno;
            }
            for (int i = 0; i < 20; i++) ASSERT_TRUE(send_raw(channel, "", 0, {from}));
            const std::vector<RawRequest> same(128, {cookie_of(a.fd()), &a, a.fd(), 0});
            for (int i = 0; i < 20; i++)
                ASSERT_TRUE(send_raw(channel, same.data(), same.size() * sizeof(RawRequest), {packets[0]}));
            EXPECT_TRUE(eventually([&] { return counts.left == 1; }));
            char byte;
            EXPECT_EQ(recv(to, &byte, 1, MSG_DONTWAIT), -1);
            EXPECT_EQ(recv(packets[1], &byte, 1, MSG_DONTWAIT), -1);
            ASSERT_EQ(write(told[1], "", 1), 1);
            EXPECT_EQ(read(go[0], &byte, 1), 1);
        });
        char byte;
        close(told[1]);
        ASSERT_EQ(read(told[0], &byte, 1), 1);
        EXPECT_TRUE(eventually([&] { return open_descriptors() == before + 3 + 1; }))
            << "of pipes, and a channel, not " << open_descriptors() - before;
        EXPECT_TRUE(sharing::shared_since(0));
        expect_good_end(start_child([&] {
            EXPECT_FALSE(g_fds.find(b.fd()));
            EXPECT_TRUE(is_kernels(b.fd()));
        }));
        EXPECT_EQ(counts.left, 2);
        EXPECT_TRUE(is_kernels(a.fd()));
        EXPECT_FALSE(is_kernels(c.fd()));
        ASSERT_EQ(write(go[1], "", 1), 1);
        expect_good_end(pid);
        EXPECT_TRUE(eventually([&] { return open_descriptors() == before + 3; }));
    });
}

// A message of no bytes is not the end of a channel, which many children may share.
TEST(Handing, AnEmptyMessageEndsNothing) {
    run([](Counts& counts) {
        Fake a(counts);
        expect_good_end(start_child([&] {
            const int channel = channel_to_parent();
            ASSERT_TRUE(send_raw(channel, "", 0));
            EXPECT_FALSE(g_fds.find(a.fd()));
            EXPECT_TRUE(is_kernels(a.fd()));
            ASSERT_EQ(shutdown(channel, SHUT_WR), 0);  // the end for whom it serves, and for nobody else
        }));
        EXPECT_EQ(counts.left, 1);
        EXPECT_TRUE(eventually([] { return !sharing::shared_since(0); }));
    });
}

// The numbers come to mean other sockets while requests for those of before arrive.
TEST(Handing, OnlyWhatIsNamedLeaves) {
    run([](Counts& counts) {
        Counts& others = *shared_counts();
        std::vector<std::unique_ptr<Fake>> named, young;
        for (int i = 0; i < 600; i++) named.push_back(std::make_unique<Fake>(counts));
        int told[2];
        ASSERT_EQ(pipe(told), 0);
        const pid_t pid = start_child([&] {
            const int channel = channel_to_parent();
            std::vector<RawRequest> all;
            for (const auto& s : named) all.push_back({cookie_of(s->fd()), s.get(), s->fd(), 0});
            for (int i = 0; i < 60; i++) {
                if (i == 1) {
                    ASSERT_EQ(write(told[1], "", 1), 1);
                }
                for (std::size_t at = 0; at < all.size(); at += 100)
                    ASSERT_TRUE(send_raw(channel, &all[at], 100 * sizeof(RawRequest)));
            }
        });
        char byte;
        close(told[1]);
        ASSERT_EQ(read(told[0], &byte, 1), 1);
        for (const auto& s : named) {
            close_as_program(s->fd());
            young.push_back(std::make_unique<Fake>(others));
        }
        expect_good_end(pid);
        EXPECT_TRUE(eventually([] { return !sharing::shared_since(0); }));
        EXPECT_EQ(others.left, 0);
    });
}

}  // namespace
