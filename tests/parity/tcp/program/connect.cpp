// SPDX-License-Identifier: BSD-2-Clause
// connect: blocking and not, what it says meanwhile, how it fails, and using a socket again afterwards.
#include <sys/epoll.h>

#include "tests/parity/pair/tcp_harness.h"

namespace parity::tcp {
namespace {

long connect_to(int fd, const char* address, int number) {
    sockaddr_in a = at(address, number);
    return connect(fd, raw(a), sizeof a);
}

long disconnect(int fd) {
    sockaddr unspec{};
    unspec.sa_family = AF_UNSPEC;
    return connect(fd, &unspec, sizeof unspec);
}

}  // namespace

TCP_CASE(connect, blocking) {
    int listener = -1, fd = -1;
    at_server([&] { listener = listening(); });
    at_client([&] {
        fd = stream();
        show_events("fresh", fd);
        SHOW("connect", connect_to(fd, there(), port()));
        show_state("connected", fd);
        show_events("connected", fd);
        show_name("connected", fd);
        show_peer("connected", fd);
        show_error("connected", fd);
        SHOW("again", connect_to(fd, there(), port()));
        SHOW("elsewhere", connect_to(fd, there(), port(1)));
        SHOW("short address", connect(fd, nullptr, 0));
    });
    at_server([&] {
        fd = accepted(listener);
        SHOW("connect an accepted one", connect_to(fd, there(), port()));
    });
}

TCP_CASE(connect, nonblocking) {
    int listener = -1, fd = -1;
    at_server([&] { listener = listening(); });
    at_client([&] {
        fd = stream(SOCK_NONBLOCK);
        SHOW("connect", connect_to(fd, there(), port()));
        show_events_with("done", fd, POLLOUT);
        show_error("done", fd);
        SHOW("first time after", connect_to(fd, there(), port()));
        SHOW("second time after", connect_to(fd, there(), port()));
        show_state("done", fd);
        put(fd, "hello");
    });
    at_server([&] { show_read("recv", accepted(listener), 10); });
}

TCP_CASE(connect, while_connecting) {
    at_client([&] {
        int fd = stream(SOCK_NONBLOCK);
        SHOW("connect", connect_to(fd, far_silent(), port()));
        SHOW("again", connect_to(fd, far_silent(), port()));
        SHOW("elsewhere", connect_to(fd, there(), port()));
        show_state("connecting", fd);
        show_events("connecting", fd);
        show_name("connecting", fd);
        show_peer("connecting", fd);
        show_error("connecting", fd);
        show_select("select", fd);
        int ep = epoll_create1(0);
        epoll_event e{EPOLLIN | EPOLLOUT | EPOLLRDHUP, {.fd = fd}};
        SHOW("add", epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
        SHOW("epoll", epoll_wait(ep, &e, 1, 0));
        SHOW("send", send(fd, "x", 1, MSG_NOSIGNAL));
        show_read("recv", fd, 10);
        int n = -1;
        SHOW("FIONREAD", ioctl(fd, FIONREAD, &n));
        SHOW("listen", listen(fd, 1));
        SHOW("shutdown rd", shutdown(fd, SHUT_RD));
        show_state("after shutdown rd", fd);
        SHOW("shutdown wr", shutdown(fd, SHUT_WR));
        show_state("after shutdown wr", fd);
        show_events("after shutdown wr", fd);
        SHOW("close", close(fd));
    });
}

TCP_CASE(connect, epoll_sequence) {
    int listener = -1, fd = -1;
    at_server([&] { listener = listening(); });
    at_client([&] {
        fd = stream(SOCK_NONBLOCK);
        int ep = epoll_create1(0);
        epoll_event e{EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, {.fd = fd}};
        SHOW("add fresh", epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
        SHOW("fresh", epoll_wait(ep, &e, 1, 0));
        say("events %x", e.events);
        SHOW("connect", connect_to(fd, there(), port()));
        SHOW("wait", epoll_wait(ep, &e, 1, 3000));
        say("out %d", (e.events & EPOLLOUT) != 0);
        show_error("done", fd);
        say("more edges %d", epoll_wait(ep, &e, 1, 0));
    });
    at_server([&] { say("accepted %d", accepted(listener) >= 0); });
}

TCP_CASE(connect, select_writable) {
    int listener = -1, fd = -1;
    at_server([&] { listener = listening(); });
    at_client([&] {
        fd = stream(SOCK_NONBLOCK);
        SHOW("connect", connect_to(fd, there(), port()));
        await_events(fd, POLLOUT);
        show_select("select", fd);
    });
    at_server([&] { say("accepted %d", accepted(listener) >= 0); });
}

TCP_CASE(connect, refused) {
    at_client([&] {
        int fd = stream();
        SHOW("blocking", connect_to(fd, there(), port()));
        show_state("refused", fd);
        show_events("refused", fd);
        show_error("refused", fd);
        show_name("refused", fd);
        show_peer("refused", fd);
        show_read("recv", fd, 10);
        SHOW("send", send(fd, "x", 1, MSG_NOSIGNAL));
        SHOW("again", connect_to(fd, there(), port()));
    });
}

TCP_CASE(connect, refused_nonblocking) {
    at_client([&] {
        enum { with_error, with_connect, with_recv, with_send, with_peek, with_shutdown, count };
        for (int how = 0; how < count; how++) {
            int fd = stream(SOCK_NONBLOCK);
            SHOW("connect", connect_to(fd, there(), port()));
            show_events_with("refused", fd, POLLERR);
            show_peer("refused", fd);
            if (how == with_error) show_error("first", fd);
            if (how == with_connect) SHOW("first connect", connect_to(fd, there(), port()));
            if (how == with_recv) show_read("first recv", fd, 10);
            if (how == with_send) SHOW("first send", send(fd, "x", 1, MSG_NOSIGNAL));
            if (how == with_peek) show_read("first peek", fd, 10, MSG_PEEK);
            if (how == with_shutdown) SHOW("first shutdown", shutdown(fd, SHUT_RDWR));
            show_events("then", fd);
            show_error("then", fd);
            show_read("then recv", fd, 10);
            SHOW("then send", send(fd, "x", 1, MSG_NOSIGNAL));
            show_state("then", fd);
            close(fd);
        }
    });
}

TCP_CASE(connect, refused_select_epoll) {
    at_client([&] {
        int fd = stream(SOCK_NONBLOCK);
        SHOW("connect", connect_to(fd, there(), port()));
        int ep = epoll_create1(0);
        epoll_event e{EPOLLIN | EPOLLOUT | EPOLLRDHUP, {.fd = fd}};
        epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
        await_events(fd, POLLERR);
        SHOW("epoll", epoll_wait(ep, &e, 1, 3000));
        say("events %x", e.events);
        show_select("select", fd);
    });
}

TCP_KERNEL_CASE(connect, after_refusal, 10) {
    int listener = -1, fd = -1;
    for (int flags : {0, int{SOCK_NONBLOCK}}) {
        at_client([&] {
            fd = stream(flags);
            SHOW("connect", connect_to(fd, there(), port(flags == 0 ? 0 : 1)));
            if (flags != 0) {
                await_events(fd, POLLERR);
                show_error("refused", fd);
                SHOW("the attempt is over", connect_to(fd, there(), port(1)));
            }
        });
        at_server([&] { listener = listening(flags == 0 ? 0 : 1); });
        at_client([&] {
            SHOW("connect", connect_to(fd, there(), port(flags == 0 ? 0 : 1)));
            await_events(fd, POLLOUT);
            show_error("connected", fd);
            show_state("connected", fd);
            put(fd, "second try");
        });
        at_server([&] { show_read("recv", accepted(listener), 20); });
    }
}

TCP_CASE(connect, no_route) {
    at_client([&] {
        for (int flags : {0, int{SOCK_NONBLOCK}})
            for (const char* address : {kNoRoute, kUnreachableRoute, kProhibitRoute, kBlackholeRoute}) {
                int fd = stream(flags);
                SHOW(address, connect_to(fd, address, port()));
                show_error(address, fd);
                show_name(address, fd);
                show_events(address, fd);
                close(fd);
            }
    });
}

// The neighbour, or the gateway's neighbour, does not answer.
TCP_CASE(connect, unreachable) {
    int listener = -1;
    at_server([&] { listener = listening(); });
    at_client([&] {
        for (const char* address : {kNoNeighbour, far_unreachable()}) {
            int fd = stream();
            SHOW("blocking", connect_to(fd, address, port()));
            SHOW("the same socket", connect_to(fd, there(), port()));
            close(fd);
            fd = stream(SOCK_NONBLOCK);
            SHOW("nonblocking", connect_to(fd, address, port()));
            show_events_with("failed", fd, POLLERR);
            show_error("failed", fd);
            show_error("once", fd);
            show_peer("failed", fd);
            close(fd);
        }
    });
    at_server([&] {
        for (int i = 0; i < 2; i++) say("accepted %d", accepted(listener) >= 0);
    });
}

// An ICMP message that comes while the socket is in use ends the attempt with the next SYN only, and
// gateways limit their rate, so that this may last a second: only the error is the same.
TCP_CASE(connect, prohibited) {
    at_client([&] {
        int fd = stream(SOCK_NONBLOCK);
        SHOW("nonblocking", connect_to(fd, far_prohibited(), port()));
        await_events(fd, POLLERR);
        show_error("failed", fd);
        show_peer("failed", fd);
    });
}

// The first retransmission of a SYN is after a second, so that all wait at once.
TCP_CASE(connect, timed_out) {
    at_client([&] {
        int user = stream(SOCK_NONBLOCK), count = stream(SOCK_NONBLOCK);
        SHOW("user timeout", set(user, IPPROTO_TCP, TCP_USER_TIMEOUT, 300));
        SHOW("syncnt", set(count, IPPROTO_TCP, TCP_SYNCNT, 1));
        SHOW("user timeout", set(count, IPPROTO_TCP, TCP_USER_TIMEOUT, 500));
        SHOW("connect", connect_to(user, far_silent(), port()));
        SHOW("connect", connect_to(count, far_silent(), port()));
        for (int fd : {user, count}) {
            show_events_with("timed out", fd, POLLERR);
            show_error("timed out", fd);
            show_error("once", fd);
            show_state("timed out", fd);
            show_read("recv", fd, 10);
        }
    });
}

TCP_CASE(connect, time_limit) {
    at_client([&] {
        int fd = stream();
        set_timeout(fd, SO_SNDTIMEO, 30);
        SHOW("connect", connect_to(fd, far_silent(), port()));
        SHOW("again", connect_to(fd, far_silent(), port()));
        show_state("connecting", fd);
        set_timeout(fd, SO_RCVTIMEO, 20);
        show_read("recv", fd, 10);
        SHOW("send", send(fd, "x", 1, MSG_NOSIGNAL));
    });
}

TCP_KERNEL_CASE(connect, wrong_addresses, 25) {
    at_client([&] {
        int fd = stream();
        sockaddr_in a = at(there(), port());
        SHOW("bad pointer", connect(fd, reinterpret_cast<sockaddr*>(8), sizeof a));
        SHOW("no address", connect(fd, nullptr, 0));
        SHOW("short", connect(fd, raw(a), 4));
        SHOW("shorter by one", connect(fd, raw(a), sizeof a - 1));
        SHOW("negative", connect(fd, raw(a), static_cast<socklen_t>(-1)));
        a.sin_family = AF_INET6;
        SHOW("inet6", connect(fd, raw(a), sizeof a));
        a.sin_family = AF_UNIX;
        SHOW("unix", connect(fd, raw(a), sizeof a));
        SHOW("port zero", connect_to(fd, there(), 0));
        SHOW("multicast", connect_to(fd, "224.1.1.1", port()));
        SHOW("broadcast", connect_to(fd, "198.18.1.255", port()));
        SHOW("limited broadcast", connect_to(fd, "255.255.255.255", port()));
        SHOW("any is loopback", connect_to(fd, "0.0.0.0", port()));
        SHOW("loopback", connect_to(fd, "127.0.0.1", port()));
        SHOW("own address", connect_to(fd, here(), port()));
        SHOW("nothing", connect_to(999, there(), port()));
        SHOW("file", connect_to(open("/dev/null", O_RDONLY), there(), port()));
        show_state("unharmed", fd);
    });
}

TCP_KERNEL_CASE(connect, over_loopback, 154) {
    at_client([&] {
        int listener = listening(0, "0.0.0.0");
        for (const char* address : {"127.0.0.1", "0.0.0.0", here(), kThereSecond, kThereLink2}) {
            int c = connecting(address, port()), s = accepted(listener);
            show_name(address, c);
            show_peer(address, c);
            show_peer(address, s);
            put(c, "ping");
            show_read("recv", s, 10);
            put(s, "pong");
            show_read("recv", c, 10);
            close(c);
            show_read("end", s, 10);
            close(s);
        }
    });
}

// Two SYNs that meet: the socket is its own peer.
TCP_KERNEL_CASE(connect, to_itself, 43) {
    at_client([&] {
        for (const char* address : {"127.0.0.1", here()}) {
            int fd = stream();
            sockaddr_in a = at(address, port(3));
            set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
            SHOW("bind", bind(fd, raw(a), sizeof a));
            SHOW("connect", connect(fd, raw(a), sizeof a));
            show_name("self", fd);
            show_peer("self", fd);
            show_state("self", fd);
            put(fd, "to me");
            show_read("recv", fd, 10);
            SHOW("shutdown", shutdown(fd, SHUT_WR));
            show_read("end", fd, 10);
            set_linger(fd, true, 0);
            close(fd);
        }
    });
}

TCP_PAIR_CASE(connect, unspec_disconnects) {
    int fd = connection();
    at_left([&] {
        SHOW("disconnect", disconnect(fd));
        show_state("disconnected", fd);
        show_events("disconnected", fd);
        show_name("disconnected", fd);
        show_peer("disconnected", fd);
        show_error("disconnected", fd);
        show_read("recv", fd, 10);
        SHOW("send", send(fd, "x", 1, MSG_NOSIGNAL));
        SHOW("again", disconnect(fd));
    });
    at_right([&] {
        show_events_with("reset", fd, POLLERR);
        show_read("recv", fd, 10);
    });
    int listener = -1;
    at_right([&] { listener = listening(4); });
    at_left([&] {
        SHOW("connect again", connect_to(fd, there(), port(4)));
        show_peer("again", fd);
        put(fd, "a new life");
    });
    at_right([&] {
        int s = accepted(listener);
        show_read("recv", s, 20);
        close(listener);
    });
}

TCP_CASE(connect, disconnect_with_data) {
    int fd = connection();
    at_server([&] { put(fd, "unread"); });
    at_client([&] {
        await_bytes(fd, 6);
        SHOW("disconnect", disconnect(fd));
        int n = -1;
        SHOW("FIONREAD", ioctl(fd, FIONREAD, &n));
        say("queued %d", n);
        show_read("recv", fd, 10);
    });
    at_server([&] {
        show_events_with("reset", fd, POLLERR);
        show_read("recv", fd, 10);
    });
}

TCP_CASE(connect, disconnect_keeps_binding) {
    int listener = -1, fd = -1;
    at_server([&] { listener = listening(); });
    for (bool explicit_port : {false, true}) {
        at_client([&] {
            fd = stream();
            sockaddr_in a = at(here(), explicit_port ? port(5) : 0);
            SHOW("bind", bind(fd, raw(a), sizeof a));
            SHOW("connect", connect_to(fd, there(), port()));
            SHOW("disconnect", disconnect(fd));
            show_name("disconnected", fd);
            SHOW("connect", connect_to(fd, there(), port()));
            show_name("connected", fd);
        });
        at_server([&] {
            int first = accepted(listener), second = accepted(listener);
            show_events_with("first", first, POLLERR);
            show_events("second", second);
            show_peer("second", second);
        });
    }
}

TCP_KERNEL_CASE(connect, disconnect_elsewhere, 7) {
    int fd = -1, c = -1;
    at_server([&] {
        fd = stream();
        SHOW("fresh", disconnect(fd));
        sockaddr_in a = at(here(), port());
        SHOW("bind", bind(fd, raw(a), sizeof a));
        SHOW("bound", disconnect(fd));
        show_name("bound", fd);
        SHOW("listen", listen(fd, 3));
        SHOW("listening", disconnect(fd));
        show_name("listening", fd);
        show_state("listening", fd);
        SHOW("accept", accept(fd, nullptr, nullptr));
    });
    at_client([&] {
        SHOW("nobody listens", connect_to(stream(), there(), port()));
        c = stream(SOCK_NONBLOCK);
        SHOW("connect", connect_to(c, far_silent(), port()));
        SHOW("connecting", disconnect(c));
        show_state("connecting", c);
        show_error("connecting", c);
    });
    at_server([&] { SHOW("listen again", listen(fd, 3)); });
    at_client([&] {
        SHOW("connect", connect_to(c, there(), port()));
        show_events_with("connected", c, POLLOUT);
        put(c, "there");
    });
    at_server([&] { show_read("recv", accepted(fd), 10); });
}

TCP_CASE(connect, to_second_link_and_address) {
    int listener = -1;
    at_server([&] { listener = listening(0, "0.0.0.0"); });
    for (const char* address : {kHereSecond, kHereLink2}) {
        int fd = -1;
        at_client([&] {
            fd = stream(SOCK_NONBLOCK);
            SHOW("connect", connect_to(fd, address, port()));
            show_events_with("connected", fd, POLLOUT);
            show_name("connected", fd);
            put_bytes(fd, 5000, 3);
        });
        at_server([&] {
            fd = accepted(listener);
            show_read("recv", fd, 5000, MSG_WAITALL);
        });
    }
}

TCP_CASE(connect, many_at_once) {
    constexpr int kMany = 30;
    int listener = -1;
    at_server([&] { listener = listening(0, nullptr, 100); });
    int fds[kMany];
    at_client([&] {
        int progress = 0;
        for (int& fd : fds) {
            fd = stream(SOCK_NONBLOCK);
            if (connect_to(fd, there(), port()) != 0 && errno == EINPROGRESS) progress++;
        }
        say("in progress %d", progress);
        for (int fd : fds) await_events(fd, POLLOUT);
        for (int i = 0; i < kMany; i++) put(fds[i], ("number " + std::to_string(i)).c_str());
    });
    at_server([&] {
        int known = 0;
        for (int& fd : fds) {
            fd = accepted(listener);
            char text[20] = {};
            ok(recv(fd, text, sizeof text, 0));
            known += strncmp(text, "number ", 7) == 0;
            ok(send(fd, text, strlen(text), 0));
        }
        say("known %d", known);
    });
    at_client([&] {
        for (int fd : fds) {
            await_events(fd, POLLIN);
            show_read("echo", fd, 20, MSG_WAITALL | MSG_DONTWAIT);
        }
    });
}

}  // namespace parity::tcp
