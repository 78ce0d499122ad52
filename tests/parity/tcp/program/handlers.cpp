// SPDX-License-Identifier: BSD-2-Clause
// Handlers that jump out of waiting calls or end the process, cancelled threads, and many threads. The
// connection goes on, is closed in order, and nothing of it is lost.
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <atomic>
#include <thread>

#include "tests/parity/harness/jumps.h"
#include "tests/parity/pair/tcp_harness.h"

namespace parity::tcp {
namespace {

// Runs `call` in a thread and cancels it when it has had time to wait.
template <class F>
void cancelled(const char* what, F call) {
    std::atomic<bool> started{false};
    struct Start {
        F* call;
        std::atomic<bool>* started;
    } start{&call, &started};
    pthread_t thread;
    pthread_create(
        &thread, nullptr,
        [](void* p) -> void* {
            auto* s = static_cast<Start*>(p);
            *s->started = true;
            (*s->call)();
            return nullptr;
        },
        &start);
    while (!started) usleep(100);
    usleep(20'000);
    pthread_cancel(thread);
    void* result = nullptr;
    pthread_join(thread, &result);
    say("%s: cancelled %d", what, result == PTHREAD_CANCELED);
}

}  // namespace

// close() sends the FIN although calls were left by jumps.
TCP_PAIR_CASE(handler, jump_out_of_recv) {
    int fd = connection();
    at_left([&] {
        char buffer[100];
        jump_out("recv", 150, [&] { (void)!recv(fd, buffer, sizeof buffer, 0); });
        jump_out("recv without waiting", 100, [&] { (void)!recv(fd, buffer, sizeof buffer, MSG_DONTWAIT); });
        jump_out("poll", 50, [&] {
            pollfd p{fd, POLLIN, 0};
            poll(&p, 1, -1);
        });
    });
    at_right([&] { put(fd, "data"); });
    at_left([&] {
        show_read("still", fd, 10);
        SHOW("close", close(fd));
    });
    at_right([&] { show_read("end", fd, 10); });
}

TCP_PAIR_CASE(handler, jump_out_of_send) {
    int fd = connection();
    size_t queued = 0;
    at_left([&] {
        queued = fill(fd);
        static char block[100'000];
        // What finds room meanwhile is sent, so nothing is looked at but the end.
        jump_out("send", 100, [&] { (void)!send(fd, block, sizeof block, MSG_NOSIGNAL); });
        SHOW("close", close(fd));
    });
    at_right([&] {
        static char sink[200'000];
        ssize_t n;
        while ((n = recv(fd, sink, sizeof sink, 0)) > 0) {
        }
        say("end %zd %s", n, n < 0 ? strerrorname_np(errno) : "");
    });
}

TCP_CASE(handler, jump_out_of_connect) {
    int listener = -1;
    at_server([&] { listener = listening(); });
    at_client([&] {
        for (int i = 0; i < 3; i++) {
            int fd = stream();
            sockaddr_in silent = at(far_silent(), port());
            jump_out("connect", 10, [&] {
                if (connect(fd, raw(silent), sizeof silent) == 0 || (errno != EINTR && errno != EALREADY))
                    say("ended early");
            });
            SHOW("close", close(fd));
        }
        int fd = stream();
        sockaddr_in a = at(server_address(), port());
        SHOW("connect", connect(fd, raw(a), sizeof a));
        put(fd, "hello");
        SHOW("close", close(fd));
    });
    at_server([&] {
        int fd = accepted(listener);
        show_read("first", fd, 10);
        show_read("end", fd, 10);
    });
}

TCP_CASE(handler, jump_out_of_accept) {
    int listener = -1;
    at_server([&] {
        listener = listening();
        jump_out("accept", 120, [&] { accept(listener, nullptr, nullptr); });
    });
    int fd = -1;
    at_client([&] { fd = connecting(server_address(), port()); });
    at_server([&] {
        fd = accepted(listener);
        put(fd, "hello");
        SHOW("close", close(listener));
        SHOW("close", close(fd));
    });
    at_client([&] {
        show_read("first", fd, 10);
        show_read("end", fd, 10);
    });
}

// _exit() and exit() while data is being sent: it arrives, and then the end. The child is the first to make a
// socket here.
TCP_CASE(handler, end_while_sending) {
    constexpr int kRounds = 6;
    int listener = -1;
    at_server([&] { listener = listening(); });
    if (client()) {
        for (int i = 0; i < kRounds; i++) {
            sync();
            pid_t child = fork();
            if (child == 0) {
                handle(i % 2 == 0 ? [](int) { _exit(7); } : [](int) { exit(7); });
                int fd = connecting(server_address(), port());
                static char block[3000];
                alarm_in(3'000 + instant(i));
                for (;;)
                    if (send(fd, block, sizeof block, MSG_NOSIGNAL) < 0 && errno != EINTR) _exit(8);
            }
            int status = 0;
            waitpid(child, &status, 0);
            say("child %d", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
            sync();
        }
    } else {
        for (int i = 0; i < kRounds; i++) {
            sync();
            int fd = accepted(listener);
            static char sink[100'000];
            ssize_t n;
            while ((n = recv(fd, sink, sizeof sink, 0)) > 0) {
            }
            say("end %zd %s", n, n < 0 ? strerrorname_np(errno) : "");
            close(fd);
            sync();
        }
    }
    sync();
}

TCP_PAIR_CASE(handler, cancel_while_waiting) {
    int fd = connection();
    at_left([&] {
        cancelled("recv", [&] {
            char c;
            (void)!recv(fd, &c, 1, 0);
        });
        cancelled("recvmsg", [&] {
            char c;
            iovec iov{&c, 1};
            msghdr m{};
            m.msg_iov = &iov;
            m.msg_iovlen = 1;
            (void)!recvmsg(fd, &m, 0);
        });
        cancelled("poll", [&] {
            pollfd p{fd, POLLIN, 0};
            poll(&p, 1, -1);
        });
        fill(fd);
        cancelled("send", [&] {
            static char block[200'000];
            for (;;) (void)!send(fd, block, sizeof block, MSG_NOSIGNAL);
        });
        SHOW("close", close(fd));
    });
    at_right([&] {
        static char sink[200'000];
        ssize_t n;
        while ((n = recv(fd, sink, sizeof sink, 0)) > 0) {
        }
        say("end %zd", n);
    });
}

TCP_CASE(handler, cancel_connect_and_accept) {
    int listener = -1, fd = -1;
    at_server([&] {
        listener = listening();
        cancelled("accept", [&] { accept(listener, nullptr, nullptr); });
    });
    at_client([&] {
        int other = stream();
        cancelled("connect", [&] {
            sockaddr_in silent = at(far_silent(), port());
            connect(other, raw(silent), sizeof silent);
        });
        SHOW("close", close(other));
        fd = connecting(server_address(), port());
    });
    at_server([&] {
        fd = accepted(listener);
        put(fd, "hello");
        SHOW("close", close(fd));
    });
    at_client([&] {
        show_read("first", fd, 10);
        show_read("end", fd, 10);
    });
}

// At any instant of socket(), connect(), send(), recv(), close(): the thread ends, the process does not.
// The server closes with a byte unread, so each side may reset what the other one has forgotten: two segments
// for each connection may find nobody but the kernel.
constexpr int kCancelled = 60, kConnectionsOfOne = 4;
TCP_KERNEL_CASE(handler, cancel_at_any_instant, 2 * kCancelled * kConnectionsOfOne) {
    int listener = -1;
    constexpr int kThreads = kCancelled;
    std::atomic<bool> over{false};
    std::thread server_loop;
    at_server([&] {
        listener = listening(0, nullptr, 128);
        server_loop = std::thread([&] {
            while (!over) {
                pollfd p{listener, POLLIN, 0};
                if (poll(&p, 1, 20) <= 0) continue;
                int fd = accept(listener, nullptr, nullptr);
                if (fd >= 0) {
                    (void)!send(fd, "x", 1, MSG_NOSIGNAL);
                    close(fd);
                }
            }
        });
    });
    at_client([&] {
        int ended = 0;
        for (int i = 0; i < kThreads; i++) {
            pthread_t thread;
            pthread_create(
                &thread, nullptr,
                [](void*) -> void* {
                    for (int made = 0;; made++) {
                        if (made == kConnectionsOfOne) pause();
                        int fd = socket(AF_INET, SOCK_STREAM, 0);
                        sockaddr_in a = at(server_address(), port());
                        // The number is lost with the thread, in the kernel as well.
                        if (connect(fd, raw(a), sizeof a) == 0) {
                            char c = 'y';
                            (void)!send(fd, &c, 1, MSG_NOSIGNAL);
                            (void)!recv(fd, &c, 1, 0);
                        }
                        close(fd);
                    }
                },
                nullptr);
            usleep(static_cast<useconds_t>(100 + instant(i) * 3));
            pthread_cancel(thread);
            void* result = nullptr;
            pthread_join(thread, &result);
            ended += result == PTHREAD_CANCELED;
        }
        say("ended %d", ended);
        int fd = connecting(server_address(), port());
        show_read("still", fd, 1);
    });
    at_server([&] {
        over = true;
        server_loop.join();
    });
}

// More threads than a list of sleepers once had places.
TCP_CASE(handler, hundred_in_accept) {
    constexpr int kThreads = 80;
    int listener = -1;
    std::atomic<int> got{0};
    std::vector<std::thread> threads;
    at_server([&] {
        listener = listening(0, nullptr, 128);
        for (int i = 0; i < kThreads; i++)
            threads.emplace_back([&] {
                int fd = accept(listener, nullptr, nullptr);
                char c;
                if (fd >= 0 && recv(fd, &c, 1, 0) == 1) got++;
                close(fd);
            });
    });
    at_client([&] {
        for (int i = 0; i < kThreads; i++) {
            int fd = connecting(server_address(), port());
            put(fd, "x");
            close(fd);
        }
    });
    at_server([&] {
        for (auto& t : threads) t.join();
        say("got %d", static_cast<int>(got));
    });
}

}  // namespace parity::tcp
