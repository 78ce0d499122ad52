// SPDX-License-Identifier: BSD-2-Clause
// What a program's first call says of frames that have just arrived: the program makes one call after its
// peer has acted, and none before it that looks at the network.
//
//   app_arrived IP PORT CASE     descriptor 5 tells, by a byte, that the peer has acted
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <string>

namespace {

int g_fd = -1;

std::string shown(long result) {
    return result >= 0 ? std::to_string(result) : std::string("-1 ") + strerrorname_np(errno);
}
std::string option(int level, int name) {
    int value = 0;
    socklen_t length = sizeof value;
    if (getsockopt(g_fd, level, name, &value, &length) != 0) return shown(-1);
    return name == SO_ERROR && value != 0 ? strerrorname_np(value) : std::to_string(value);
}
tcp_info info() {
    tcp_info i{};
    socklen_t length = sizeof i;
    if (getsockopt(g_fd, IPPROTO_TCP, TCP_INFO, &i, &length) != 0) i.tcpi_state = 0;
    return i;
}
std::string asked(unsigned long request) {
    int value = 0;
    return ioctl(g_fd, request, &value) != 0 ? shown(-1) : std::to_string(value);
}
std::string peer(bool by_option) {
    sockaddr_in a{};
    socklen_t length = sizeof a;
    const auto where = reinterpret_cast<sockaddr*>(&a);
    return shown(by_option ? getsockopt(g_fd, SOL_SOCKET, SO_PEERNAME, &a, &length)
                           : getpeername(g_fd, where, &length));
}
std::string polled() {
    pollfd p{g_fd, POLLIN | POLLOUT | POLLRDHUP, 0};
    const int n = poll(&p, 1, 0);
    return shown(n) + " " + std::to_string(p.revents);
}
std::string waited() {
    const int set = epoll_create1(0);
    epoll_event e{EPOLLIN | EPOLLRDHUP, {}};
    epoll_ctl(set, EPOLL_CTL_ADD, g_fd, &e);
    const int n = epoll_wait(set, &e, 1, 0);
    return shown(n) + " " + std::to_string(n > 0 ? e.events : 0);
}
std::string received(int flags) {
    char text[100];
    return shown(recv(g_fd, text, sizeof text, flags | MSG_DONTWAIT));
}

// Without a look at the network: both go to the kernel.
void await_peer() {
    char byte;
    while (read(5, &byte, 1) < 0 && errno == EINTR) {
    }
    usleep(20'000);
}

const std::map<std::string, std::function<std::string()>> kCalls = {
    {"getpeername", [] { return peer(false); }},
    {"so_peername", [] { return peer(true); }},
    {"so_error", [] { return option(SOL_SOCKET, SO_ERROR); }},
    {"state", [] { return std::to_string(info().tcpi_state); }},
    {"unacked", [] { return std::to_string(info().tcpi_unacked); }},
    {"shutdown", [] { return shown(shutdown(g_fd, SHUT_WR)); }},
    {"send", [] { return shown(send(g_fd, "x", 1, MSG_NOSIGNAL)); }},
    {"send_twice",
     [] {
         const std::string first = shown(send(g_fd, "x", 1, MSG_NOSIGNAL));
         return first + " " + shown(send(g_fd, "x", 1, MSG_NOSIGNAL));
     }},
    {"recv", [] { return received(0); }},
    {"peek", [] { return received(MSG_PEEK); }},
    {"inq", [] { return asked(SIOCINQ); }},
    {"outq", [] { return asked(SIOCOUTQ); }},
    {"outqnsd", [] { return asked(SIOCOUTQNSD); }},
    {"poll", [] { return polled(); }},
    {"epoll", [] { return waited(); }},
};

}  // namespace

int main(int argc, char** argv) {
    if (argc != 5) return 2;
    const std::string how = argv[3], what = argv[4];
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<in_port_t>(atoi(argv[2])));
    inet_pton(AF_INET, argv[1], &to.sin_addr);
    g_fd = socket(AF_INET, SOCK_STREAM, 0);
    const auto name = reinterpret_cast<sockaddr*>(&to);
    if (how == "connects") {
        fcntl(g_fd, F_SETFL, O_NONBLOCK);
        printf("%s ", shown(connect(g_fd, name, sizeof to)).c_str());
        puts("begun");
        fflush(stdout);
        await_peer();
        if (what == "again") {
            printf("%s", shown(connect(g_fd, name, sizeof to)).c_str());
            printf(" %s\n", shown(connect(g_fd, name, sizeof to)).c_str());
            return 0;
        }
    } else {
        if (connect(g_fd, name, sizeof to) != 0) return 3;
        if (how == "sees10") {  // bytes that a call has seen before
            char text[100];
            if (recv(g_fd, text, sizeof text, MSG_PEEK) != 10) return 4;
        }
        if (how == "writes" && send(g_fd, "0123456789", 10, 0) != 10) return 5;
        puts("begun");
        fflush(stdout);
        await_peer();
    }
    printf("%s\n", kCalls.at(what)().c_str());
    return 0;
}
