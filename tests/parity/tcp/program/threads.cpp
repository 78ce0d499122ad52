// SPDX-License-Identifier: BSD-2-Clause
// Several threads on one connection, and signals that interrupt waiting calls.
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/time.h>

#include <atomic>
#include <thread>

#include "tests/parity/pair/tcp_harness.h"

namespace parity::tcp {
namespace {

volatile sig_atomic_t g_handled;

void handle_alarm(int flags) {
    g_handled = 0;
    struct sigaction action {};
    action.sa_handler = [](int) { g_handled = g_handled + 1; };
    action.sa_flags = flags;
    sigaction(SIGALRM, &action, nullptr);
}

// Again and again, so that a signal before the wait begins does not make the case hang.
void alarm_every(long usec) {
    itimerval t{{0, usec}, {0, usec}};
    setitimer(ITIMER_REAL, &t, nullptr);
}

// Is the thread in a system call that waits, or at least no longer on its way to it? Good enough to give a
// race a fair chance; the results do not depend on it.
void give_it_time() { usleep(10'000); }

}  // namespace

TCP_PAIR_CASE(thread, shutdown_wakes_reader) {
    int fd = connection();
    at_left([&] {
        std::thread reader([&] { show_read("woken", fd, 10); });
        give_it_time();
        long r = shutdown(fd, SHUT_RD);
        reader.join();
        say("shutdown %ld", r);
        show_read("after", fd, 10);
    });
    at_left([&] {
        std::thread waiter([&] {
            pollfd p{fd, POLLHUP, 0};
            SHOW("poll", poll(&p, 1, 3000));
        });
        shutdown(fd, SHUT_RDWR);
        waiter.join();
    });
    at_right([&] { show_read("end", fd, 10); });
}

TCP_PAIR_CASE(thread, shutdown_wakes_writer) {
    int fd = connection();
    at_left([&] {
        fill(fd);
        std::thread writer([&] {
            std::vector<uint8_t> data(1'000'000);
            errno = 0;
            long n = send(fd, data.data(), data.size(), MSG_NOSIGNAL);
            say("woken %d", n == -1 ? errno == EPIPE : n < 1'000'000);
        });
        give_it_time();
        long r = shutdown(fd, SHUT_WR);
        writer.join();
        say("shutdown %ld", r);
    });
    at_right([&] { set_linger(fd, true, 0); });
}

// close() in one thread does not disturb the call of another: it ends when data comes.
TCP_PAIR_CASE(thread, close_while_reading) {
    int fd = connection();
    std::thread reader;
    at_left([&] {
        std::atomic<bool> started{false};
        reader = std::thread([&, f = fd] {
            started = true;
            show_read("reading", f, 10);
        });
        while (!started) usleep(100);
        give_it_time();
        give_it_time();
        SHOW("close", close(fd));  // long before the reader has anything to say
    });
    at_right([&] { put(fd, "data"); });
    at_left([&] { reader.join(); });
    at_right([&] { await_events(fd, POLLIN); });
}

// A write that another thread's close() or dup2() overtakes finds the connection, no descriptor, or the other
// file.
TCP_CASE(thread, write_while_closing) {
    constexpr int kRounds = 100;
    int listener = -1, failed = 0, refused = 0;
    count_sigpipe();
    at_server([&] { listener = listening(); });
    const int nothing = open("/dev/null", O_WRONLY | O_CLOEXEC);
    for (int round = 0; round < kRounds; round++) {
        if (client()) {
            const int fd = connecting(there(), port());
            std::atomic<bool> writing{false}, done{false};
            std::thread writer([&] {
                while (!done)
                    if (write(fd, "x", 1) < 0) {
                        errno == EBADF ? refused++ : failed++;
                        break;
                    } else {
                        writing = true;
                    }
            });
            while (!writing) usleep(10);
            if (round % 2 == 0) {
                close(fd);
            } else {
                dup2(nothing, fd);
                done = true;
            }
            writer.join();
            if (round % 2 != 0) close(fd);
        } else {
            const int fd = accepted(listener);
            char block[1000];
            while (recv(fd, block, sizeof block, 0) > 0) continue;
            close(fd);
        }
    }
    say("refused %d, failed %d, sigpipes %d", refused, failed, sigpipes());
    close(nothing);
    sync();
}

TCP_PAIR_CASE(thread, read_and_write_at_once) {
    int fd = connection();
    std::thread writer([&] { put_bytes(fd, 1'000'000, left() ? 1 : 2); });
    show_read("recv", fd, 1'000'000, MSG_WAITALL);
    writer.join();
    sync();
    SHOW("close", close(fd));
}

TCP_PAIR_CASE(thread, many_writers) {
    constexpr int kWriters = 4, kEach = 200;
    int fd = connection();
    if (left()) {
        // All of it finds room: a thread that waits for room in the midst of a record lets others write, in
        // the kernel as well.
        set(fd, SOL_SOCKET, SO_SNDBUF, 1'000'000);
        std::vector<std::thread> writers;
        for (int w = 0; w < kWriters; w++)
            writers.emplace_back([&, w] {
                std::vector<uint8_t> record(100, static_cast<uint8_t>('a' + w));
                for (int i = 0; i < kEach; i++)
                    if (send(fd, record.data(), record.size(), 0) != 100) say("short");
            });
        for (auto& w : writers) w.join();
        shutdown(fd, SHUT_WR);
    } else {
        // A write of up to a buffer's room is not torn apart by another thread's.
        int whole = 0, of[kWriters] = {};
        uint8_t record[100];
        while (recv(fd, record, 100, MSG_WAITALL) == 100) {
            bool same = true;
            for (uint8_t byte : record) same = same && byte == record[0];
            whole += same;
            if (record[0] >= 'a' && record[0] < 'a' + kWriters) of[record[0] - 'a']++;
        }
        say("whole %d of each %d %d %d %d", whole, of[0], of[1], of[2], of[3]);
    }
    sync();
}

TCP_PAIR_CASE(thread, many_readers) {
    int fd = connection();
    if (left()) {
        put_bytes(fd, 500'000, 5);
        shutdown(fd, SHUT_WR);
    } else {
        std::atomic<long> total{0}, sum{0}, ends{0};
        std::vector<std::thread> readers;
        for (int r = 0; r < 3; r++)
            readers.emplace_back([&] {
                uint8_t block[3000];
                long n;
                while ((n = recv(fd, block, sizeof block, 0)) > 0) {
                    total += n;
                    long s = 0;
                    for (long i = 0; i < n; i++) s += block[i];
                    sum += s;
                }
                ends += n == 0;
            });
        for (auto& r : readers) r.join();
        say("total %ld sum %ld ends %ld", total.load(), sum.load(), ends.load());
    }
    sync();
}

TCP_CASE(thread, many_acceptors) {
    constexpr int kConnections = 12;
    int listener = -1;
    at_server([&] { listener = listening(0, nullptr, 50); });
    if (server()) {
        std::atomic<int> served{0}, refused{0};
        std::vector<std::thread> threads;
        for (int t = 0; t < 3; t++)
            threads.emplace_back([&] {
                int fd;
                while ((fd = accept(listener, nullptr, nullptr)) >= 0) {
                    char text[10] = {};
                    if (recv(fd, text, sizeof text, 0) > 0 && send(fd, "ok", 2, 0) == 2) served++;
                    close(fd);
                }
                refused += errno == EINVAL;
            });
        eventually("all are served", [&] { return served == kConnections; });
        shutdown(listener, SHUT_RD);
        for (auto& t : threads) t.join();
        say("served %d woken %d", served.load(), refused.load());
    } else {
        for (int i = 0; i < kConnections; i++) {
            int fd = connecting(there(), port());
            put(fd, "request");
            show_read("answer", fd, 10);
            close(fd);
        }
    }
    sync();
}

TCP_CASE(thread, connection_each) {
    constexpr int kThreads = 4;
    int listener = -1;
    at_server([&] { listener = listening(0, nullptr, 50); });
    std::atomic<int> good{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; t++)
        threads.emplace_back([&, t] {
            if (server()) {
                int fd = accepted(listener);
                uint8_t block[4000];
                long n;
                while ((n = recv(fd, block, sizeof block, 0)) > 0)
                    if (send(fd, block, static_cast<size_t>(n), MSG_NOSIGNAL) != n) return;
                good += n == 0;
                close(fd);
            } else {
                int fd = connecting(there(), port());
                for (uint32_t i = 0; i < 50; i++) {
                    auto data = bytes(500 + i * 20, i + static_cast<uint32_t>(t) * 100);
                    auto back = data;
                    std::fill(back.begin(), back.end(), 0);
                    if (send(fd, data.data(), data.size(), 0) == static_cast<long>(data.size()) &&
                        recv(fd, back.data(), back.size(), MSG_WAITALL) == static_cast<long>(data.size()) &&
                        back == data)
                        good++;
                }
                close(fd);
            }
        });
    for (auto& t : threads) t.join();
    say("good %d", good.load());
}

TCP_PAIR_CASE(thread, several_poll_one) {
    int fd = connection();
    if (left()) {
        std::atomic<int> woken{0};
        std::vector<std::thread> threads;
        for (int t = 0; t < 3; t++)
            threads.emplace_back([&] {
                pollfd p{fd, POLLIN, 0};
                woken += poll(&p, 1, 5000) == 1;
            });
        give_it_time();
        sync();
        for (auto& t : threads) t.join();
        say("woken %d", woken.load());
        show_read("recv", fd, 10);
    } else {
        sync();
        put(fd, "for all");
    }
    sync();
}

TCP_PAIR_CASE(signal, interrupts_receive) {
    int fd = connection();
    at_left([&] {
        char c[10];
        iovec iov{c, sizeof c};
        msghdr m{};
        m.msg_iov = &iov;
        m.msg_iovlen = 1;
        handle_alarm(0);
        alarm_every(5'000);
        SHOW("recv", recv(fd, c, sizeof c, 0));
        SHOW("recvfrom", recvfrom(fd, c, sizeof c, 0, nullptr, nullptr));
        SHOW("recvmsg", recvmsg(fd, &m, 0));
        SHOW("read", read(fd, c, sizeof c));
        SHOW("readv", readv(fd, &iov, 1));
        SHOW("peek", recv(fd, c, sizeof c, MSG_PEEK));
        SHOW("waitall", recv(fd, c, sizeof c, MSG_WAITALL));
        set_timeout(fd, SO_RCVTIMEO, 4000);
        SHOW("with a time limit", recv(fd, c, sizeof c, 0));
        pollfd p{fd, POLLIN, 0};
        SHOW("poll", poll(&p, 1, 4000));
        alarm_every(0);
        say("handled %d", g_handled > 0);
    });
}

TCP_PAIR_CASE(signal, restarts_receive) {
    int fd = connection();
    if (left()) {
        char c[10];
        handle_alarm(SA_RESTART);
        alarm_every(3'000);
        sync();
        SHOW("recv", recv(fd, c, sizeof c, 0));
        alarm_every(0);
        say("handled %d", g_handled > 0);
        set_timeout(fd, SO_RCVTIMEO, 4000);
        alarm_every(3'000);
        SHOW("a time limit is not restarted", recv(fd, c, sizeof c, 0));
        alarm_every(0);
    } else {
        sync();
        usleep(30'000);
        put(fd, "data");
    }
    sync();
}

// What has been received counts more than the signal.
TCP_PAIR_CASE(signal, part_of_waitall) {
    int fd = connection();
    at_right([&] { put(fd, "part"); });
    at_left([&] {
        await_bytes(fd, 4);
        handle_alarm(0);
        alarm_every(5'000);
        show_read("waitall", fd, 100, MSG_WAITALL);
        alarm_every(0);
    });
}

TCP_PAIR_CASE(signal, interrupts_send) {
    int fd = connection();
    at_left([&] {
        fill(fd);
        std::vector<uint8_t> data(4'000'000);
        handle_alarm(0);
        alarm_every(5'000);
        // The signal may find some bytes written, then none.
        long n;
        while ((n = send(fd, data.data(), data.size(), 0)) > 0) {
        }
        say("send %ld %s", n, strerrorname_np(errno));
        while ((n = write(fd, data.data(), data.size())) > 0) {
        }
        say("write %ld %s", n, strerrorname_np(errno));
        alarm_every(0);
    });
}

TCP_CASE(signal, interrupts_accept) {
    at_server([&] {
        int listener = listening();
        handle_alarm(0);
        alarm_every(5'000);
        SHOW("accept", accept(listener, nullptr, nullptr));
        SHOW("accept4", accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
        alarm_every(0);
    });
}

TCP_CASE(signal, restarts_accept) {
    if (server()) {
        int listener = listening();
        handle_alarm(SA_RESTART);
        alarm_every(3'000);
        sync();
        int fd = accept(listener, nullptr, nullptr);
        alarm_every(0);
        say("accepted %d handled %d", fd >= 0, g_handled > 0);
    } else {
        sync();
        usleep(30'000);
        connecting(there(), port());
    }
    sync();
}

TCP_KERNEL_CASE(signal, interrupts_connect, 5) {
    at_client([&] {
        sockaddr_in a = at(far_silent(), port());
        int fd = stream();
        handle_alarm(0);
        alarm_every(5'000);
        SHOW("connect", connect(fd, raw(a), sizeof a));
        alarm_every(0);
        show_state("goes on", fd);
        nonblocking(fd);
        SHOW("connect again", connect(fd, raw(a), sizeof a));
        close(fd);
    });
}

TCP_PAIR_CASE(signal, handler_uses_the_connection) {
    static int g_fd;
    int fd = connection();
    if (left()) {
        g_fd = fd;
        g_handled = 0;
        struct sigaction action {};
        action.sa_handler = [](int) {
            int saved = errno;
            if (g_handled == 0 && write(g_fd, "from the handler", 16) == 16) g_handled = 1;
            errno = saved;
        };
        action.sa_flags = SA_RESTART;
        sigaction(SIGALRM, &action, nullptr);
        alarm_every(10'000);
        sync();
        show_read("recv", fd, 100);
        alarm_every(0);
    } else {
        sync();
        show_read("recv", fd, 100);
        put(fd, "answer");
    }
    sync();
}

TCP_PAIR_CASE(signal, epoll_pwait_mask) {
    int fd = connection();
    at_left([&] {
        int ep = epoll_create1(0);
        epoll_event e{EPOLLIN, {.fd = fd}};
        epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
        handle_alarm(0);
        sigset_t blocked, none;
        sigemptyset(&none);
        sigemptyset(&blocked);
        sigaddset(&blocked, SIGALRM);
        sigprocmask(SIG_BLOCK, &blocked, nullptr);
        raise(SIGALRM);
        SHOW("blocked", epoll_pwait(ep, &e, 1, 5, &blocked));
        say("handled %d", static_cast<int>(g_handled));
        SHOW("open", epoll_pwait(ep, &e, 1, 3000, &none));
        say("handled %d", static_cast<int>(g_handled));
        raise(SIGALRM);
        pollfd p{fd, POLLIN, 0};
        timespec t{3, 0};
        SHOW("ppoll", ppoll(&p, 1, &t, &none));
        say("handled %d", static_cast<int>(g_handled));
        sigprocmask(SIG_UNBLOCK, &blocked, nullptr);
    });
}

}  // namespace parity::tcp
