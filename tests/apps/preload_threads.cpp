// SPDX-License-Identifier: BSD-2-Clause
// Exceptions, threads, and pthread_cancel in every blocking call on a UDP socket.
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/uio.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "preload_loopback.h"

using namespace loopback;

namespace {

int g_fd;
std::atomic<int> g_inside{0};

struct Guard {
    const char* name;
    ~Guard() {
        printf("  unwound %s\n", name);
        fflush(stdout);
    }
};

struct Case {
    const char* name;
    void (*block)();
};

char g_buf[16];
iovec g_iov{g_buf, sizeof g_buf};

const Case kCases[] = {
    {"recv", [] { recv(g_fd, g_buf, sizeof g_buf, 0); }},
    {"read", [] { (void)!read(g_fd, g_buf, sizeof g_buf); }},
    {"readv", [] { (void)!readv(g_fd, &g_iov, 1); }},
    {"recvfrom", [] { recvfrom(g_fd, g_buf, sizeof g_buf, 0, nullptr, nullptr); }},
    {"recvmsg",
     [] {
         msghdr m{};
         m.msg_iov = &g_iov;
         m.msg_iovlen = 1;
         recvmsg(g_fd, &m, 0);
     }},
    {"recvmmsg",
     [] {
         mmsghdr m{};
         m.msg_hdr.msg_iov = &g_iov;
         m.msg_hdr.msg_iovlen = 1;
         recvmmsg(g_fd, &m, 1, 0, nullptr);
     }},
    {"poll",
     [] {
         pollfd p{g_fd, POLLIN, 0};
         poll(&p, 1, -1);
     }},
    {"select",
     [] {
         fd_set s;
         FD_ZERO(&s);
         FD_SET(g_fd, &s);
         select(g_fd + 1, &s, nullptr, nullptr, nullptr);
     }},
    {"epoll_wait",
     [] {
         int e = epoll_create1(0);
         epoll_event ev{EPOLLIN, {}};
         epoll_ctl(e, EPOLL_CTL_ADD, g_fd, &ev);
         epoll_wait(e, &ev, 1, -1);
     }},
    {"spinning recv",  // never blocks; the pending cancellation must be noticed all the same
     [] {
         for (;;) recv(g_fd, g_buf, sizeof g_buf, MSG_DONTWAIT);
     }},
};

void* run(void* arg) {
    const auto* c = static_cast<const Case*>(arg);
    Guard guard{c->name};
    g_inside = 1;
    c->block();
    printf("  %s returned\n", c->name);
    return nullptr;
}

int thrower(int depth) {
    std::string keep(100, 'x');
    if (depth == 0) throw std::runtime_error("thrown");
    return thrower(depth - 1) + static_cast<int>(keep.size());
}

}  // namespace

int main() {
    g_fd = udp();
    for (const Case& c : kCases) {
        pthread_t t;
        g_inside = 0;
        pthread_create(&t, nullptr, run, const_cast<Case*>(&c));
        while (g_inside == 0) usleep(100);
        usleep(20000);
        pthread_cancel(t);
        void* result = nullptr;
        pthread_join(t, &result);
        printf("%s: %s\n", c.name, result == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
    }
    try {
        thrower(20);
    } catch (const std::exception& e) {
        printf("caught %s\n", e.what());
    }

    int p[2];
    udp_pair(p);
    std::atomic<int> received{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++)
        threads.emplace_back([&] {
            char c;
            while (recv(p[1], &c, 1, 0) == 1 && c == 'x') received++;
        });
    for (int i = 0; i < 100; i++) {
        send(p[0], "x", 1, 0);
        while (received <= i) usleep(10);
    }
    for (int i = 0; i < 4; i++) send(p[0], "q", 1, 0);
    for (auto& t : threads) t.join();
    printf("received %d\n", received.load());
    // sockets made and closed by several threads at once
    threads.clear();
    std::atomic<int> bad{0};
    for (int i = 0; i < 4; i++)
        threads.emplace_back([&] {
            for (int n = 0; n < 500; n++) {
                int fd = udp();
                char c;
                if (recv(fd, &c, 1, MSG_DONTWAIT) != -1 || errno != EAGAIN) bad++;
                if (close(fd) != 0) bad++;
            }
        });
    for (auto& t : threads) t.join();
    printf("bad %d\n", bad.load());
}
