// SPDX-License-Identifier: BSD-2-Clause
// What the TCP measuring programs share: a server's loop over epoll, sockets, and the command line. Only
// calls that any program would use: with the library preloaded these are the unmodified programs.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "fd.h"

namespace bench {

using Clock = std::chrono::steady_clock;
inline constexpr std::size_t kMessage = 64;  // bytes of every request and reply
using Message = std::array<std::uint8_t, kMessage>;

inline volatile sig_atomic_t g_stop = 0;
inline void stop_on_signals() {
    struct sigaction action {};
    action.sa_handler = [](int) { g_stop = 1; };
    for (int number : {SIGINT, SIGTERM}) sigaction(number, &action, nullptr);
}

// As many descriptors as are allowed, at least `count` and some for whatever else is open.
inline void allow_descriptors(std::size_t count) {
    const rlim_t wanted = count + 100;
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_max < wanted) {
        const rlimit higher{wanted, wanted};  // takes CAP_SYS_RESOURCE
        if (setrlimit(RLIMIT_NOFILE, &higher) != 0) fail("RLIMIT_NOFILE of " + std::to_string(wanted));
        return;
    }
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) fail("RLIMIT_NOFILE");
}

inline sockaddr_in address_of(const char* address, const char* port) {
    sockaddr_in result{};
    result.sin_family = AF_INET;
    const int number = atoi(port);
    if (inet_pton(AF_INET, address, &result.sin_addr) != 1 || number < 1 || number > 65535)
        throw std::runtime_error(std::string("no address and port: ") + address + " " + port);
    result.sin_port = htons(static_cast<std::uint16_t>(number));
    return result;
}

inline const sockaddr* plain(const sockaddr_in& address) {
    return reinterpret_cast<const sockaddr*>(&address);
}

inline Fd listen_on(const sockaddr_in& at) {
    Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int on = 1;
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd.get(), plain(at), sizeof at) != 0) fail("bind");
    if (listen(fd.get(), 4096) != 0) fail("listen");
    return fd;
}

inline void watch(int epoll, int fd, std::uint32_t events, int operation = EPOLL_CTL_ADD) {
    epoll_event event{};
    event.events = events;
    event.data.fd = fd;
    if (epoll_ctl(epoll, operation, fd, &event) != 0) fail("epoll_ctl");
}

inline void no_delay(int fd) {
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// All of the message; false at the end of the stream. The socket blocks, or is known to have it.
inline bool receive(int fd, Message& message) {
    for (std::size_t have = 0; have < message.size();) {
        const ssize_t count = recv(fd, message.data() + have, message.size() - have, 0);
        if (count == 0) return false;
        if (count < 0) {
            if (errno == EINTR) continue;
            fail("recv");
        }
        have += static_cast<std::size_t>(count);
    }
    return true;
}

inline void transmit(int fd, const Message& message) {
    for (std::size_t done = 0; done < message.size();) {
        const ssize_t count = send(fd, message.data() + done, message.size() - done, MSG_NOSIGNAL);
        if (count < 0) {
            if (errno == EINTR) continue;
            fail("send");
        }
        done += static_cast<std::size_t>(count);
    }
}

// Serves until SIGTERM or SIGINT: `reply` turns a request into its reply and says whether the connection goes
// on. A request of 64 bytes never comes in pieces here, so connections need no state; one that does is a
// program error and ends all.
template <class Reply>
std::uint64_t serve(const sockaddr_in& at, Reply&& reply) {
    stop_on_signals();
    const Fd listener = listen_on(at);
    const Fd epoll(epoll_create1(EPOLL_CLOEXEC));
    watch(epoll.get(), listener.get(), EPOLLIN);
    std::uint64_t accepted = 0;
    std::array<epoll_event, 256> events;
    while (!g_stop) {
        const int count = epoll_wait(epoll.get(), events.data(), static_cast<int>(events.size()), 200);
        for (const epoll_event& event :
             std::span(events).first(static_cast<std::size_t>(std::max(count, 0)))) {
            const int fd = event.data.fd;
            if (fd == listener.get()) {
                int next;
                while ((next = accept4(fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
                    accepted++;
                    no_delay(next);
                    watch(epoll.get(), next, EPOLLIN);
                }
                if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) fail("accept4");
                continue;
            }
            Message message;
            const ssize_t got = recv(fd, message.data(), message.size(), 0);
            if (got < 0 && errno == EAGAIN) continue;
            if (got > 0 && got < static_cast<ssize_t>(message.size()))
                throw std::runtime_error("a request in pieces");
            const bool goes_on = got > 0 && reply(message);
            // A client that ends in the middle is no error of the server.
            const bool sent = got > 0 && send(fd, message.data(), message.size(), MSG_NOSIGNAL) == got;
            if (!goes_on || !sent) close(fd);
        }
    }
    return accepted;
}

// Percentiles of times in nanoseconds, in microseconds; sorts them.
inline std::string percentiles(std::vector<std::uint32_t>& times) {
    std::ranges::sort(times);
    auto at = [&](double p) {
        return times[static_cast<std::size_t>(p * static_cast<double>(times.size() - 1))] / 1e3;
    };
    char text[80];
    snprintf(text, sizeof text, "{\"p50\": %.3f, \"p99\": %.3f}", at(0.5), at(0.99));
    return text;
}

// "--name VALUE" pairs behind the fixed words; `fallback` without the name. Unknown names are not looked for.
inline double option(int argc, char** argv, int first, std::string_view name, double fallback) {
    for (int i = first; i + 1 < argc; i += 2)
        if (argv[i] == name) return atof(argv[i + 1]);
    return fallback;
}

// main(): what `run` throws goes to stderr.
inline int run_tool(const char* name, int (*run)(int, char**), int argc, char** argv) {
    try {
        return run(argc, argv);
    } catch (const std::exception& error) {
        fprintf(stderr, "%s: %s\n", name, error.what());
        return 1;
    }
}

}  // namespace bench
