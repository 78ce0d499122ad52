// SPDX-License-Identifier: BSD-2-Clause
// Several threads on one socket: who is woken, what arrives, what close and shutdown do to a sleeper,
// cancellation.
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/time.h>

#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include "tests/parity/harness/harness.h"

namespace parity {
namespace {

int listening() {
    peer_opens();
    return bound(kHere, kPort);
}

// A receiver on its own thread; result() is its answer once it has one.
struct Receiver {
    explicit Receiver(int fd)
        : thread([this, fd] {
              char buffer[2000];
              ssize_t n = recv(fd, buffer, sizeof buffer, 0);
              result = n < 0 ? -errno : n;
          }) {}
    const char* state() {
        for (int i = 0; i < 50 && result == 4711; i++) usleep(10'000);
        return result == 4711 ? "blocked" : "returned";
    }
    void show(const char* what) {
        thread.join();
        long r = result;
        say("%s: %ld %s", what, r, r < 0 ? strerrorname_np(static_cast<int>(-r)) : "");
    }
    std::atomic<long> result{4711};
    std::thread thread;
};

}  // namespace

PARITY_CASE(thread, shutdown_wakes, Traffic::offloaded) {
    for (int how : {SHUT_RD, SHUT_RDWR}) {
        peer_opens();
        int fd = connected(kThere, kPeerPort, kPort);
        Receiver r(fd);
        usleep(150'000);
        SHOW("shutdown", shutdown(fd, how));
        say("%s", r.state());
        r.show("receiver");
        close(fd);
    }
    int fd = bound(kHere, kPort);
    Receiver r(fd);
    usleep(150'000);
    SHOW("shutdown unconnected", shutdown(fd, SHUT_RDWR));
    say("%s", r.state());
    r.show("receiver");
}

// A sleeper holds the file open: close() of the number does not wake it, and the next datagram still reaches
// it.
PARITY_CASE(thread, close_under_receiver, Traffic::offloaded) {
    int fd = listening();
    Receiver r(fd);
    usleep(150'000);
    SHOW("close", close(fd));
    usleep(100'000);
    // A documented difference (docs/architecture/differences.md): the kernel's receiver keeps the socket
    // alive and waits on, ours gets EBADF at once. Whichever it is, nothing else may happen, and nothing that
    // is opened under the number next may be touched.
    bool waits = r.result == 4711;
    bool refused = r.result == -EBADF;
    say("receiver waits or was refused: %d", waits || refused);
    int pipe_fds[2];
    ok(pipe(pipe_fds));
    ok(write(pipe_fds[1], "pipe", 4));
    peer_sends(30);
    usleep(50'000);
    int held = 0;
    ok(ioctl(pipe_fds[0], FIONREAD, &held));
    say("pipe holds %d", held);
    end_at_once();
}

// Two threads block in different calls; each datagram wakes one reader, nothing is lost.
PARITY_CASE(thread, poll_beside_receive, Traffic::offloaded) {
    int fd = listening();
    std::atomic<int> received{0}, polls{0};
    std::atomic<bool> done{false};
    std::thread reader([&] {
        char buffer[200];
        for (int i = 0; i < 100; i++)
            if (recv(fd, buffer, sizeof buffer, 0) == 50) received++;
        done = true;
    });
    std::thread poller([&] {
        while (!done) {
            pollfd p{fd, POLLIN, 0};
            int r = poll(&p, 1, 20);
            if (r > 0 && p.revents != POLLIN) say("poll events %x", static_cast<unsigned>(p.revents));
            polls++;
        }
    });
    ask(std::string("send p ") + kHere + " 5000 50 50 1 1000");
    usleep(100'000);
    ask(std::string("send p ") + kHere + " 5000 50 50 51 1000");
    reader.join();
    poller.join();
    say("received %d, polled %d", received.load(), polls > 0);
}

PARITY_CASE(thread, sixty_four_receivers, Traffic::offloaded) {
    int fd = listening();
    set(fd, SOL_SOCKET, SO_RCVBUF, 2'000'000);
    std::mutex lock;
    std::multiset<uint32_t> seen;
    std::atomic<int> bad{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 64; i++)
        threads.emplace_back([&] {
            for (int k = 0; k < 10; k++) {
                uint8_t buffer[200];
                ssize_t n = recv(fd, buffer, sizeof buffer, 0);
                if (n != 80 || !payload::intact(buffer, 80)) bad++;
                std::lock_guard guard(lock);
                seen.insert(payload::seed_of(buffer, 80));
            }
        });
    ask(std::string("send p ") + kHere + " 5000 80 320 0 50");
    usleep(50'000);
    ask(std::string("send p ") + kHere + " 5000 80 320 320");
    for (auto& t : threads) t.join();
    say("received %zu, distinct %zu, bad %d", seen.size(),
        std::set<uint32_t>(seen.begin(), seen.end()).size(), bad.load());
}

PARITY_CASE(thread, sixty_four_senders, Traffic::offloaded) {
    peer_opens();
    ask("set p rcvbuf 4000000");
    int fd = connected(kThere, kPeerPort, kPort);
    std::vector<std::thread> threads;
    std::atomic<int> failed{0};
    for (uint32_t i = 0; i < 64; i++)
        threads.emplace_back([&, i] {
            for (uint32_t k = 0; k < 10; k++) {
                auto data = payload::make(100, i * 10 + k);
                if (send(fd, data.data(), data.size(), 0) != 100) failed++;
            }
        });
    for (auto& t : threads) t.join();
    std::string all = ask("drain p 300");
    say("failed %d; %s", failed.load(), all.substr(0, all.find(" disordered")).c_str());
}

// Many sockets, each with its own thread, all talking at the same time.
PARITY_CASE(thread, socket_for_each_thread, Traffic::offloaded) {
    peer_opens();
    std::atomic<int> answered{0};
    post("echo p 160 5000");  // the first of them opens the device, which takes its time
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; i++)
        threads.emplace_back([&, i] {
            int fd = connected(kThere, kPeerPort, kPort + i);
            timeval t{2, 0};
            setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
            for (uint32_t k = 0; k < 20; k++) {
                auto data = payload::make(200, static_cast<uint32_t>(i) * 100 + k);
                uint8_t back[300];
                ok(send(fd, data.data(), data.size(), 0));
                if (recv(fd, back, sizeof back, 0) == 200 && memcmp(back, data.data(), 200) == 0) answered++;
            }
            close(fd);
        });
    for (auto& t : threads) t.join();
    say("answered %d; %s", answered.load(), answer().c_str());
}

PARITY_CASE(thread, open_and_close_meanwhile, Traffic::offloaded) {
    int fd = listening();
    std::atomic<bool> done{false};
    std::atomic<int> failures{0};
    std::thread churn([&] {
        while (!done) {
            int other = udp();
            sockaddr_in a = at(kHere, kPort + 1);
            if (bind(other, raw(a), sizeof a) != 0) failures++;
            close(other);
        }
    });
    post(std::string("send p ") + kHere + " 5000 60 200 1 500");
    int n = 0;
    char buffer[100];
    while (n < 200 && wait_in(fd, 1000))
        if (recv(fd, buffer, sizeof buffer, MSG_DONTWAIT) == 60) n++;
    done = true;
    churn.join();
    say("received %d, failed binds %d, %s", n, failures.load(), answer().c_str());
}

// The first datagram of a bound socket takes the way past the kernel at once, whatever others change
// meanwhile.
PARITY_CASE(thread, first_send_beside_binds, Traffic::offloaded) {
    int fd = listening();
    std::atomic<bool> done{false};
    std::atomic<int> binds{0}, failures{0};
    std::vector<std::thread> churn;
    for (int i = 1; i <= 3; i++)
        churn.emplace_back([&, i] {
            while (!done) {
                int other = udp();
                sockaddr_in a = at(kHere, kPort + i);
                if (bind(other, raw(a), sizeof a) != 0) failures++;
                close(other);
                binds++;
            }
        });
    while (binds < 30) sched_yield();
    sockaddr_in a = at(kThere, kPeerPort);
    SHOW("first", sendto(fd, "first", 5, 0, raw(a), sizeof a));
    done = true;
    for (auto& t : churn) t.join();
    tell("recv p 1500");
    say("failed binds %d", failures.load());
}

namespace {
struct Cancelled {
    int fd;
    const char* how;
};
void* cancellable(void* argument) {
    auto* c = static_cast<Cancelled*>(argument);
    char buffer[100];
    pthread_cleanup_push([](void*) { say("clean-up ran"); }, nullptr);
    pollfd p{c->fd, POLLIN, 0};
    epoll_event e{};
    iovec iov{buffer, sizeof buffer};
    msghdr m{};
    m.msg_iov = &iov;
    m.msg_iovlen = 1;
    if (strcmp(c->how, "recv") == 0) ok(recv(c->fd, buffer, sizeof buffer, 0));
    if (strcmp(c->how, "recvmsg") == 0) ok(recvmsg(c->fd, &m, 0));
    if (strcmp(c->how, "poll") == 0) ok(poll(&p, 1, -1));
    if (strcmp(c->how, "epoll") == 0) {
        int ep = epoll_create1(0);
        epoll_event add{EPOLLIN, {}};
        epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &add);
        ok(epoll_wait(ep, &e, 1, -1));
    }
    pthread_cleanup_pop(0);
    say("%s returned", c->how);
    return nullptr;
}
}  // namespace

PARITY_CASE(thread, cancellation, Traffic::offloaded) {
    int fd = listening();
    for (const char* how : {"recv", "recvmsg", "poll", "epoll"})
        for (int delay : {0, 200'000}) {
            Cancelled c{fd, how};
            pthread_t t;
            pthread_create(&t, nullptr, cancellable, &c);
            usleep(static_cast<useconds_t>(delay));
            pthread_cancel(t);
            void* result = nullptr;
            pthread_join(t, &result);
            say("%s after %d: %s", how, delay, result == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
        }
    peer_sends(40);
    if (wait_in(fd)) show_recv("works on", fd);
    sockaddr_in a = at(kThere, kPeerPort);
    SHOW("sendto", sendto(fd, "x", 1, 0, raw(a), sizeof a));
    tell("recv p 1000");
}

}  // namespace parity
