// SPDX-License-Identifier: BSD-2-Clause
// Errors that come from the network: a port nobody listens on.
#include <sys/epoll.h>

#include "harness.h"

namespace parity {
namespace {

char g_buffer[2000];

// Sends to the closed port and waits for the ICMP message.
void provoke(int fd) {
    ssize_t n = send(fd, "anybody?", 8, 0);
    pollfd p{fd, 0, 0};
    int r = poll(&p, 1, 2000);
    say("send %zd, poll %d events %x", n, r, static_cast<unsigned>(p.revents));
}

void works_on(int fd) {
    SHOW("send", send(fd, "again", 5, 0));
    settle();
    ok(get(fd, SOL_SOCKET, SO_ERROR));
    peer_opens();
    SHOW("send", send(fd, "there", 5, 0));
    tell("recv p 1000");
    peer_sends(33);
    if (wait_in(fd)) show_recv("recv", fd);
}

}  // namespace

PARITY_CASE(error, refused_on_receive, Traffic::offloaded) {
    int fd = connected(kThere, kPeerPort, kPort);
    provoke(fd);
    SHOW("recv", recv(fd, g_buffer, 100, 0));
    SHOW("recv dontwait", recv(fd, g_buffer, 100, MSG_DONTWAIT));
    provoke(fd);
    show_recv("recvmsg", fd);
    provoke(fd);
    SHOW("read", read(fd, g_buffer, 100));
    works_on(fd);
}

PARITY_CASE(error, refused_on_send, Traffic::offloaded) {
    int fd = connected(kThere, kPeerPort, kPort);
    provoke(fd);
    SHOW("send", send(fd, "x", 1, 0));
    provoke(fd);
    iovec iov{g_buffer, 10};
    mmsghdr m{};
    m.msg_hdr.msg_iov = &iov;
    m.msg_hdr.msg_iovlen = 1;
    SHOW("sendmmsg", sendmmsg(fd, &m, 1, 0));
    provoke(fd);
    SHOW("write", write(fd, "x", 1));
    works_on(fd);
}

PARITY_CASE(error, refused_in_option, Traffic::offloaded) {
    int fd = connected(kThere, kPeerPort, kPort);
    provoke(fd);
    say("SO_ERROR %s", strerrorname_np(get(fd, SOL_SOCKET, SO_ERROR)));
    say("SO_ERROR %d", get(fd, SOL_SOCKET, SO_ERROR));
    SHOW("recv", recv(fd, g_buffer, 100, MSG_DONTWAIT));
    works_on(fd);
}

// A receiver that sleeps is woken by the error.
PARITY_CASE(error, refused_wakes_receiver, Traffic::offloaded) {
    int fd = connected(kThere, kPeerPort, kPort);
    if (fork() == 0) {
        usleep(100'000);
        ok(send(fd, "x", 1, 0));
        _exit(0);
    }
    SHOW("recv", recv(fd, g_buffer, 100, 0));
    works_on(fd);
}

PARITY_CASE(error, refused_in_epoll, Traffic::offloaded) {
    int fd = connected(kThere, kPeerPort, kPort), epfd = epoll_create1(0);
    epoll_event event{EPOLLIN, {.u64 = 77}};
    SHOW("add", epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event));
    ok(send(fd, "x", 1, 0));
    epoll_event got{};
    SHOW("wait", epoll_wait(epfd, &got, 1, 2000));
    say("events %x data %lu", got.events, static_cast<unsigned long>(got.data.u64));
    say("SO_ERROR %s", strerrorname_np(get(fd, SOL_SOCKET, SO_ERROR)));
    SHOW("wait", epoll_wait(epfd, &got, 1, 0));
    works_on(fd);
}

PARITY_CASE(error, unconnected_hears_nothing, Traffic::offloaded) {
    int fd = bound(kHere, kPort);
    sockaddr_in a = at(kThere, kPeerPort);
    for (int i = 0; i < 3; i++) {
        SHOW("sendto", sendto(fd, "x", 1, 0, raw(a), sizeof a));
        settle();
    }
    pollfd p{fd, POLLIN | POLLOUT, 0};
    SHOW("poll", poll(&p, 1, 0));
    say("events %x, SO_ERROR %d", static_cast<unsigned>(p.revents), get(fd, SOL_SOCKET, SO_ERROR));
    SHOW("recv", recv(fd, g_buffer, 100, MSG_DONTWAIT));
    peer_opens();
    peer_sends(44);
    if (wait_in(fd)) show_recv("recv", fd);
}

PARITY_CASE(error, error_queue, Traffic::kernel) {
    for (bool with_connect : {false, true}) {
        int fd = with_connect ? connected(kThere, kPeerPort, kPort) : bound(kHere, kPort);
        SHOW("IP_RECVERR", set(fd, IPPROTO_IP, IP_RECVERR, 1));
        sockaddr_in a = at(kThere, kPeerPort);
        SHOW("sendto",
             with_connect ? send(fd, "queue me", 8, 0) : sendto(fd, "queue me", 8, 0, raw(a), sizeof a));
        pollfd p{fd, POLLIN, 0};
        SHOW("poll", poll(&p, 1, 2000));
        say("events %x", static_cast<unsigned>(p.revents));
        show_recv("recv", fd, MSG_DONTWAIT);
        show_recv("error queue", fd, MSG_ERRQUEUE);
        show_recv("error queue", fd, MSG_ERRQUEUE);
        show_recv("recv", fd, MSG_DONTWAIT);
        close(fd);
    }
}

}  // namespace parity
