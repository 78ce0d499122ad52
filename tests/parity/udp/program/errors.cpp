// SPDX-License-Identifier: BSD-2-Clause
// Errors that come from the network: a port nobody listens on.
#include <sys/epoll.h>

#include <thread>

#include "tests/parity/harness/harness.h"

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

// How often the calling thread has read from anything that is no socket, as the kernel counts it. A thread
// that goes to sleep in the library does so each time.
long reads_of_this_thread() {
    FILE* io = fopen("/proc/thread-self/io", "r");
    long rchar = 0, wchar = 0, reads = -1;
    if (io == nullptr || fscanf(io, "rchar: %ld wchar: %ld syscr: %ld", &rchar, &wchar, &reads) != 3)
        say("no count");
    if (io != nullptr) fclose(io);
    return reads;
}

// recv() in another thread, which finds nothing there; then `f` makes it return.
template <class F>
void receive_meanwhile(const char* what, int fd, F&& f) {
    std::thread receiver([&] {
        const long before = reads_of_this_thread();
        show_recv(what, fd);
        const long more = reads_of_this_thread() - before;
        say(more < 25 ? "it slept" : "it woke up again and again");
    });
    usleep(600'000);  // what it does in this time is counted; the results do not depend on it
    f();
    receiver.join();
}

}  // namespace

// What is sent after an error may go through the kernel, which has it.
PARITY_CASE(error, refused_on_receive, kernel_carries(4)) {
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

PARITY_CASE(error, refused_on_send, kernel_carries(4)) {
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

PARITY_CASE(error, refused_in_option, kernel_carries(2)) {
    int fd = connected(kThere, kPeerPort, kPort);
    provoke(fd);
    say("SO_ERROR %s", strerrorname_np(get(fd, SOL_SOCKET, SO_ERROR)));
    say("SO_ERROR %d", get(fd, SOL_SOCKET, SO_ERROR));
    SHOW("recv", recv(fd, g_buffer, 100, MSG_DONTWAIT));
    works_on(fd);
}

// A receiver that sleeps is woken by the error.
PARITY_CASE(error, refused_wakes_receiver, kernel_carries(3)) {
    int fd = connected(kThere, kPeerPort, kPort);
    if (fork() == 0) {
        usleep(100'000);
        ok(send(fd, "x", 1, 0));
        _exit(0);
    }
    SHOW("recv", recv(fd, g_buffer, 100, 0));
    works_on(fd);
}

PARITY_CASE(error, refused_in_epoll, kernel_carries(3)) {
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

PARITY_CASE(error, error_queue, Traffic::offloaded) {
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

// Errors that nobody reads from the queue keep no receiver from sleeping, nor from noticing the next one.
PARITY_CASE(error, unread_queue, kernel_carries(2)) {
    for (bool with_connect : {false, true}) {
        int fd = with_connect ? connected(kThere, kPeerPort, kPort) : bound(kHere, kPort);
        sockaddr_in a = at(kThere, kPeerPort);
        auto sends = [&] { ok(sendto(fd, "queue me", 8, 0, with_connect ? nullptr : raw(a), sizeof a)); };
        SHOW("IP_RECVERR", set(fd, IPPROTO_IP, IP_RECVERR, 1));
        sends();
        pollfd p{fd, POLLIN, 0};
        SHOW("poll", poll(&p, 1, 2000));
        show_recv("recv", fd, MSG_DONTWAIT);
        receive_meanwhile("the next error", fd, sends);
        peer_opens();
        receive_meanwhile("a datagram", fd, [&] { peer_sends(33); });
        ask("close p");
        close(fd);
    }
}

// With IP_RECVERR an error is the next call's, connected or not.
PARITY_CASE(error, queue_refuses_next_send, kernel_carries(3)) {
    for (bool with_connect : {false, true}) {
        int fd = with_connect ? connected(kThere, kPeerPort, kPort) : bound(kHere, kPort);
        sockaddr_in a = at(kThere, kPeerPort);
        SHOW("IP_RECVERR", set(fd, IPPROTO_IP, IP_RECVERR, 1));
        // The library is told of the error by a thread of its own, which may be late.
        ssize_t n = 0;
        for (int i = 0; i < 200 && n >= 0; i++) {
            n = sendto(fd, "x", 1, 0, with_connect ? nullptr : raw(a), sizeof a);
            const int error = errno;
            if (n < 0) say("a send %s", strerrorname_np(error));
            settle();
        }
        if (n >= 0) say("no send was refused");
        show_recv("error queue", fd, MSG_ERRQUEUE);
        close(fd);
    }
}

}  // namespace parity
