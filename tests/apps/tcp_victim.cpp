// SPDX-License-Identifier: BSD-2-Clause
// A program to be attacked: an ordinary server or client on epoll that knows nothing of all that.
//
//   tcp_victim serve PORT             echoes what it gets, on as many connections as come, until SIGTERM
//   tcp_victim connect ADDRESS PORT   connects, writes, reads, closes; again and again, four at a time, until
//   SIGTERM
//   tcp_victim once ADDRESS PORT      connects once, and echoes what it gets after its first bytes
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <string>

namespace {

volatile sig_atomic_t g_end = 0;

struct Connection {
    std::string waiting;  // to be echoed
    bool ended = false;
};

int g_epoll;
std::map<int, Connection> g_connections;

void watch(int fd, unsigned events, int how = EPOLL_CTL_ADD) {
    epoll_event e{.events = events, .data = {.fd = fd}};
    epoll_ctl(g_epoll, how, fd, &e);
}
void drop(int fd) {
    g_connections.erase(fd);
    close(fd);
}

// Reads while there is little to echo, so that one peer who does not read costs little.
void echo(int fd) {
    Connection& c = g_connections[fd];
    char bytes[16384];
    for (;;) {
        while (!c.waiting.empty()) {
            const ssize_t n = send(fd, c.waiting.data(), c.waiting.size(), MSG_NOSIGNAL);
            if (n < 0 && errno == EAGAIN) return watch(fd, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
            if (n < 0) return drop(fd);
            c.waiting.erase(0, static_cast<std::size_t>(n));
        }
        if (c.ended) return drop(fd);
        const ssize_t n = recv(fd, bytes, sizeof bytes, 0);
        if (n < 0 && errno == EAGAIN) return watch(fd, EPOLLIN, EPOLL_CTL_MOD);
        if (n < 0) return drop(fd);
        if (n == 0)
            c.ended = true;
        else
            c.waiting.assign(bytes, static_cast<std::size_t>(n));
    }
}

int listen_on(int port) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = htons(static_cast<in_port_t>(port));
    if (bind(fd, reinterpret_cast<sockaddr*>(&a), sizeof a) != 0 || listen(fd, 128) != 0) {
        perror("listen");
        exit(1);
    }
    return fd;
}

void start(const char* address, int port) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = htons(static_cast<in_port_t>(port));
    a.sin_addr.s_addr = inet_addr(address);
    if (connect(fd, reinterpret_cast<sockaddr*>(&a), sizeof a) != 0 && errno != EINPROGRESS) {
        close(fd);
        return;
    }
    g_connections[fd].waiting.assign(4000, 'v');
    watch(fd, EPOLLIN | EPOLLOUT);
}

}  // namespace

int main(int argc, char** argv) {
    const bool serves = argc == 3 && strcmp(argv[1], "serve") == 0;
    const bool once = argc == 4 && strcmp(argv[1], "once") == 0;
    if (!serves && !once && !(argc == 4 && strcmp(argv[1], "connect") == 0)) return 2;
    struct sigaction action {};
    action.sa_handler = [](int) { g_end = 1; };
    sigaction(SIGTERM, &action, nullptr);
    g_epoll = epoll_create1(0);
    const int listener = serves ? listen_on(atoi(argv[2])) : -1;
    if (serves) watch(listener, EPOLLIN);
    puts("ready");
    fflush(stdout);
    if (once) start(argv[2], atoi(argv[3]));
    while (!g_end) {
        while (!serves && !once && g_connections.size() < 4) {
            const std::size_t before = g_connections.size();
            start(argv[2], atoi(argv[3]));
            if (g_connections.size() == before) break;
        }
        epoll_event events[64];
        const int n = epoll_wait(g_epoll, events, 64, 100);
        for (int i = 0; i < n; i++) {
            const int fd = events[i].data.fd;
            if (fd == listener) {
                for (int c; (c = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK)) >= 0;) {
                    g_connections[c];
                    watch(c, EPOLLIN);
                }
            } else if (g_connections.contains(fd)) {
                echo(fd);
            }
        }
        // A client that hears nothing gives up after a while.
        if (!serves && !once && n == 0)
            while (!g_connections.empty()) drop(g_connections.begin()->first);
    }
    printf("ended with %zu connections\n", g_connections.size());
    return 0;
}
