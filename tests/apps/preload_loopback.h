// SPDX-License-Identifier: BSD-2-Clause
// Shared by the preload_* programs: they print what each call answered, the same lines with and without the
// library.
#pragma once

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

namespace loopback {

// Prints a call's result and, where it failed, errno.
inline void show(const char* what, long result) {
    if (result < 0)
        printf("%s: -1 %s\n", what, strerrorname_np(errno));
    else
        printf("%s: %ld\n", what, result);
    fflush(stdout);
}

inline sockaddr_in any_port() {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return a;
}

inline sockaddr_in name_of(int fd) {
    sockaddr_in a{};
    socklen_t len = sizeof a;
    getsockname(fd, reinterpret_cast<sockaddr*>(&a), &len);
    return a;
}

// A UDP socket bound to the loopback address and connected to `peer`'s name (or not, for -1).
inline int udp(int peer = -1) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    sockaddr_in a = any_port();
    bind(fd, reinterpret_cast<sockaddr*>(&a), sizeof a);
    if (peer >= 0) {
        a = name_of(peer);
        connect(fd, reinterpret_cast<sockaddr*>(&a), sizeof a);
    }
    return fd;
}

// Two UDP sockets connected to each other.
inline void udp_pair(int fds[2]) {
    fds[0] = udp();
    fds[1] = udp(fds[0]);
    sockaddr_in a = name_of(fds[1]);
    connect(fds[0], reinterpret_cast<sockaddr*>(&a), sizeof a);
}

inline bool readable(int fd, int msec = 5000) {
    pollfd p{fd, POLLIN, 0};
    return poll(&p, 1, msec) == 1 && (p.revents & POLLIN) != 0;
}

}  // namespace loopback
