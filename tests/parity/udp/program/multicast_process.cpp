// SPDX-License-Identifier: BSD-2-Clause
// Groups of a socket that moves: waiting for them, a forked child, another process, closing, joining again.
#include <sys/epoll.h>
#include <sys/wait.h>

#include <string>

#include "tests/apps/pass_descriptor.h"
#include "tests/parity/harness/harness.h"

namespace parity {
namespace {

constexpr const char* kGroup = "239.1.2.3";

int member() {
    peer_opens();
    ask(std::string("set p multicast_if ") + kThere);
    int fd = bound("0.0.0.0", kPort);
    const ip_mreq r{at(kGroup, 0).sin_addr, at(kHere, 0).sin_addr};
    SHOW("join", setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &r, sizeof r));
    return fd;
}

void receives(const char* what, int fd, int length) {
    peer_sends(length, 1, 1, kGroup);
    if (wait_in(fd)) show_recv(what, fd, MSG_DONTWAIT);
}

}  // namespace

PARITY_CASE(multicast_process, waits, Traffic::offloaded) {
    int fd = member();
    post(std::string("sleep 200"));
    answer();
    post(std::string("send p ") + kGroup + " " + std::to_string(kPort) + " 20 3");
    for (int i = 0; i < 3; i++) show_recv("blocking", fd);
    answer();
    int set_fd = epoll_create1(0);
    epoll_event e{};
    e.events = EPOLLIN | EPOLLET;
    SHOW("add", epoll_ctl(set_fd, EPOLL_CTL_ADD, fd, &e));
    SHOW("nothing", epoll_wait(set_fd, &e, 1, 0));
    for (int round = 0; round < 2; round++) {
        peer_sends(21, 1, 1, kGroup);
        SHOW("edge", epoll_wait(set_fd, &e, 1, 3000));
        say("events %x", e.events);
        SHOW("no edge", epoll_wait(set_fd, &e, 1, 0));
    }
    show_recv("first", fd, MSG_DONTWAIT);
    show_recv("second", fd, MSG_DONTWAIT);
    show_recv("none", fd, MSG_DONTWAIT);
}

PARITY_CASE(multicast_process, forked, kernel_carries(6)) {
    int fd = member();
    receives("before", fd, 11);
    const pid_t child = fork();
    if (child == 0) {
        show_recv("child's first use", fd, MSG_DONTWAIT);
        receives("child", fd, 12);
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    say("child status %x", static_cast<unsigned>(status));
    receives("parent", fd, 13);
    SHOW("close", close(fd));
    fd = member();
    receives("new socket", fd, 14);
}

PARITY_CASE(multicast_process, passed_over_unix, kernel_carries(6)) {
    int fd = member(), pair[2];
    receives("before", fd, 11);
    SHOW("pair", socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    SHOW("pass", static_cast<long>(pass_descriptor(pair[0], fd)));
    SHOW("close", close(fd));
    fd = take_descriptor(pair[1]);
    receives("passed", fd, 12);
}

PARITY_CASE(multicast_process, child_joins, kernel_carries(6)) {
    int fd = member();
    receives("before", fd, 11);
    // The child's own socket is a foreign one: both have a copy.
    int ready[2], done[2];
    SHOW("pipes", pipe(ready) | pipe(done));
    const pid_t child = fork();
    char byte = 0;
    if (child == 0) {
        int own = udp();
        set(own, SOL_SOCKET, SO_REUSEPORT, 1);
        const sockaddr_in name = at(kGroup, kPort);
        if (bind(own, raw(name), sizeof name) != 0) byte = 'x';  // the parent's socket does not share
        if (write(ready[1], &byte, 1) != 1 || read(done[0], &byte, 1) != 1) _exit(1);
        _exit(0);
    }
    SHOW("ready", read(ready[0], &byte, 1));
    say("bound: %d", byte == 0);
    receives("while it lives", fd, 12);
    SHOW("done", write(done[1], &byte, 1));
    int status = 0;
    waitpid(child, &status, 0);
    say("child status %x", static_cast<unsigned>(status));
    receives("after", fd, 13);
}

}  // namespace parity
