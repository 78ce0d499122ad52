// SPDX-License-Identifier: BSD-2-Clause
// listen, accept and accept4: flags, addresses, queues, and where connections may come from.
#include <sys/epoll.h>

#include "tests/parity/pair/tcp_harness.h"

namespace parity::tcp {

TCP_CASE(listen, accepted_descriptor_flags) {
    int listener = -1;
    at_server([&] {
        listener = listening();
        nonblocking(listener);
        fcntl(listener, F_SETFD, FD_CLOEXEC);
    });
    for (int flags : {-1, 0, int{SOCK_NONBLOCK}, int{SOCK_CLOEXEC}, SOCK_NONBLOCK | SOCK_CLOEXEC}) {
        at_client([&] { close(connecting(there(), port())); });
        at_server([&] {
            await_readable(listener);
            int fd =
                flags < 0 ? accept(listener, nullptr, nullptr) : accept4(listener, nullptr, nullptr, flags);
            say("nonblock %d cloexec %d access %d", (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0,
                fcntl(fd, F_GETFD), fcntl(fd, F_GETFL) & O_ACCMODE);
            close(fd);
        });
    }
}

// Connections are accepted in the order of their SYNs, however close these follow one another.
TCP_CASE(listen, order_of_connects) {
    constexpr int kRound = 12;
    int listener = -1;
    at_server([&] { listener = listening(0, nullptr, 64); });
    for (int round = 0; round < 3; round++) {
        std::vector<int> fds;
        at_client([&] {
            sockaddr_in to = at(there(), port());
            for (int i = 0; i < kRound; i++) {
                fds.push_back(stream());
                nonblocking(fds.back());
            }
            for (int fd : fds) (void)connect(fd, raw(to), sizeof to);
            for (int i = 0; i < kRound; i++) {
                await_events(fds[static_cast<size_t>(i)], POLLOUT);
                put(fds[static_cast<size_t>(i)], std::string(1, static_cast<char>('a' + i)).c_str());
            }
        });
        at_server([&] {
            for (int i = 0; i < kRound; i++) {
                fds.push_back(accepted(listener));
                await_readable(fds.back());
                show_read("accepted", fds.back(), 1);
            }
        });
        for (int fd : fds) close(fd);
    }
}

TCP_CASE(listen, accept4_bad_flags) {
    int listener = -1, fd = -1;
    at_server([&] { listener = listening(); });
    at_client([&] { fd = connecting(there(), port()); });
    at_server([&] {
        await_readable(listener);
        for (int flags : {1, 0x40, int{SOCK_NONBLOCK} | 2, -1})
            SHOW("accept4", accept4(listener, nullptr, nullptr, flags));
        fd = accepted(listener);
        show_peer("still there", fd);
    });
}

TCP_CASE(listen, accept_address_lengths) {
    constexpr int kFill = 0xee;
    int listener = -1;
    at_server([&] { listener = listening(); });
    for (int room : {0, 1, 2, 4, 8, 15, 16, 17, 100, 1 << 30}) {
        int fd = -1;
        at_client([&] {
            // A port whose bytes differ from what the buffer is filled with.
            do {
                if (fd >= 0) close(fd);
                fd = stream();
                sockaddr_in any = at(here(), 0);
                bind(fd, raw(any), sizeof any);
            } while ((own_port(fd) & 0xff) == kFill);
            sockaddr_in to = at(there(), port());
            if (connect(fd, raw(to), sizeof to) != 0) say("cannot connect: %s", strerrorname_np(errno));
        });
        at_server([&] {
            unsigned char address[200];
            memset(address, kFill, sizeof address);
            socklen_t length = static_cast<socklen_t>(room);
            fd = accept(listener, reinterpret_cast<sockaddr*>(address), &length);
            size_t touched = sizeof address;
            while (touched > 0 && address[touched - 1] == kFill) touched--;
            say("room %d: fd %s, length %u, touched %zu", room, fd >= 0 ? "good" : strerrorname_np(errno),
                length, touched);
        });
        close(fd);
    }
}

TCP_CASE(listen, accept_bad_addresses) {
    int listener = -1;
    at_server([&] { listener = listening(); });
    auto arrives = [&] {
        int fd = -1;
        at_client([&] { fd = connecting(there(), port()); });
        if (client()) close(fd);
    };
    sockaddr_in a{};
    socklen_t length = sizeof a;
    arrives();
    at_server([&] {
        await_readable(listener);
        length = static_cast<socklen_t>(-1);
        SHOW("negative length", accept(listener, raw(a), &length));
        length = sizeof a;
        show_events("after a negative length", listener);
    });
    arrives();
    at_server([&] {
        await_readable(listener);
        SHOW("bad address", accept(listener, reinterpret_cast<sockaddr*>(8), &length));
    });
    arrives();
    at_server([&] {
        await_readable(listener);
        SHOW("bad length pointer", accept(listener, raw(a), reinterpret_cast<socklen_t*>(8)));
    });
    arrives();
    at_server([&] {
        await_readable(listener);
        SHOW("address without length", accept(listener, raw(a), nullptr));
    });
    arrives();
    at_server([&] {
        length = 5;
        int fd = accept(listener, nullptr, &length);
        say("length without address: %s, length %u", fd >= 0 ? "good" : "bad", length);
    });
}

TCP_CASE(listen, accept_on_others) {
    at_server([&] {
        int fresh = stream(), datagram = udp(), file = open("/dev/null", O_RDONLY);
        SHOW("fresh", accept(fresh, nullptr, nullptr));
        sockaddr_in a = at(here(), port());
        SHOW("bind", bind(fresh, raw(a), sizeof a));
        SHOW("bound", accept(fresh, nullptr, nullptr));
        SHOW("datagram", accept(datagram, nullptr, nullptr));
        SHOW("file", accept(file, nullptr, nullptr));
        SHOW("nothing", accept(999, nullptr, nullptr));
        SHOW("minus one", accept(-1, nullptr, nullptr));
        SHOW("fresh, bad flags", accept4(fresh, nullptr, nullptr, 1));
    });
    int fd = connection();
    SHOW("connected", accept(fd, nullptr, nullptr));
}

TCP_CASE(listen, nonblocking_accept) {
    int listener = -1, fd = -1;
    at_server([&] {
        listener = listening();
        nonblocking(listener);
        SHOW("nobody", accept(listener, nullptr, nullptr));
        show_events("nobody", listener);
    });
    at_client([&] { fd = connecting(there(), port()); });
    at_server([&] {
        await_readable(listener);
        show_events("somebody", listener);
        fd = accepted(listener);
        show_events("taken", listener);
        SHOW("nobody again", accept(listener, nullptr, nullptr));
        put(fd, "hello");
    });
    at_client([&] { show_read("recv", fd, 100); });
}

TCP_CASE(listen, repeated_and_wrong) {
    at_server([&] {
        int fd = stream();
        say("accepting %d", get(fd, SOL_SOCKET, SO_ACCEPTCONN));
        sockaddr_in a = at(here(), port());
        SHOW("bind", bind(fd, raw(a), sizeof a));
        for (int backlog : {5, 0, -1, 100000, 1}) SHOW("listen", listen(fd, backlog));
        say("accepting %d", get(fd, SOL_SOCKET, SO_ACCEPTCONN));
        show_name("listening", fd);
        show_peer("listening", fd);
        show_state("listening", fd);
        SHOW("bind again", bind(fd, raw(a), sizeof a));
        char c;
        SHOW("recv", recv(fd, &c, 1, 0));
        SHOW("read", read(fd, &c, 1));
        SHOW("send", send(fd, &c, 1, MSG_NOSIGNAL));
        count_sigpipe();
        SHOW("write", write(fd, &c, 1));
        say("sigpipes %d", sigpipes());
        SHOW("connect", connect(fd, raw(a), sizeof a));
        int queued = 7;
        SHOW("FIONREAD", ioctl(fd, FIONREAD, &queued));
        SHOW("SIOCOUTQ", ioctl(fd, SIOCOUTQ, &queued));
        SHOW("udp", listen(udp(), 1));
        SHOW("file", listen(open("/dev/null", O_RDONLY), 1));
        SHOW("nothing", listen(999, 1));
        int other = stream();
        SHOW("same port", bind(other, raw(a), sizeof a));
    });
    int fd = connection();
    SHOW("connected", listen(fd, 1));
}

TCP_CASE(listen, without_bind) {
    int fd = -1, number = 0;
    at_server([&] {
        fd = stream();
        SHOW("listen", listen(fd, 4));
        show_name("listening", fd);
        number = own_port(fd);
    });
    number = static_cast<int>(server() ? (exchange(number), number) : exchange(0));
    int c = -1;
    at_client([&] {
        c = connecting(there(), number);
        show_name("connected", c);
        show_peer("connected", c);
    });
    at_server([&] {
        c = accepted(fd);
        show_name("accepted", c);
        show_peer("accepted", c);
        put(c, "hello");
    });
    at_client([&] { show_read("recv", c, 100); });
}

// What does not fit waits as the kernel has it, and is served once there is room.
TCP_CASE(listen, backlog_overflow) {
    int listeners[2] = {-1, -1}, clients[2][4];
    at_server([&] {
        for (int b : {0, 1}) listeners[b] = listening(b, nullptr, b);
    });
    at_client([&] {
        for (int b : {0, 1}) {
            for (int i = 0; i <= b; i++) clients[b][i] = connecting(there(), port(b));
            clients[b][b + 1] = stream(SOCK_NONBLOCK);
        }
    });
    at_server([&] {
        for (int b : {0, 1}) await_readable(listeners[b]);
    });
    at_client([&] {
        for (int b : {0, 1}) {
            sockaddr_in a = at(there(), port(b));
            SHOW("one too many", connect(clients[b][b + 1], raw(a), sizeof a));
        }
    });
    at_server([&] {
        for (int b : {0, 1})
            for (int i = 0; i <= b; i++) say("accepted %d", accepted(listeners[b]) >= 0);
    });
    at_client([&] {
        for (int b : {0, 1}) {
            show_events_with("one too many", clients[b][b + 1], POLLOUT);
            show_error("one too many", clients[b][b + 1]);
            nonblocking(clients[b][b + 1], false);
            put(clients[b][b + 1], "late");
        }
    });
    at_server([&] {
        for (int b : {0, 1}) show_read("late one", accepted(listeners[b]), 100);
    });
}

TCP_CASE(listen, backlog_many) {
    constexpr int kMany = 50;
    int listener = -1, fds[kMany];
    at_server([&] { listener = listening(0, nullptr, 100); });
    at_client([&] {
        for (int i = 0; i < kMany; i++) {
            fds[i] = connecting(there(), port());
            put(fds[i], std::to_string(i).c_str());
        }
    });
    at_server([&] {
        // In the order in which they were established.
        for (int i = 0; i < kMany; i++) {
            fds[i] = accepted(listener);
            show_read("first words", fds[i], 10);
        }
        show_events("empty", listener);
        for (int i = kMany; i-- > 0;) put(fds[i], std::to_string(i + 1000).c_str());
    });
    at_client([&] {
        for (int fd : fds) show_read("answer", fd, 10);
    });
}

TCP_KERNEL_CASE(listen, close_with_pending, 7) {
    int listener = -1, fds[3];
    at_server([&] { listener = listening(); });
    at_client([&] {
        for (int& fd : fds) fd = connecting(there(), port());
        put(fds[1], "unread");
        shutdown(fds[2], SHUT_WR);
        await_acked(fds[1]);
        await_acked(fds[2]);
    });
    at_server([&] {
        await_readable(listener);
        SHOW("close", close(listener));
    });
    at_client([&] {
        for (int fd : fds) {
            show_events_with("reset", fd, POLLERR | POLLHUP);
            show_read("recv", fd, 10);
            show_read("recv again", fd, 10);
            SHOW("send", send(fd, "x", 1, MSG_NOSIGNAL));
            show_state("after", fd);
        }
        sockaddr_in a = at(there(), port());
        SHOW("nobody listens", connect(stream(), raw(a), sizeof a));
    });
}

TCP_KERNEL_CASE(listen, shutdown_of_listener, 7) {
    int listener = -1, fd = -1;
    at_server([&] {
        listener = listening();
        SHOW("shutdown wr", shutdown(listener, SHUT_WR));
        show_state("after shutdown wr", listener);
    });
    at_client([&] { fd = connecting(there(), port()); });
    at_server([&] {
        await_readable(listener);
        SHOW("shutdown rd", shutdown(listener, SHUT_RD));
        show_state("after shutdown rd", listener);
        show_events("after shutdown rd", listener);
        SHOW("accept", accept(listener, nullptr, nullptr));
        show_name("after shutdown rd", listener);
    });
    at_client([&] {
        show_events_with("reset", fd, POLLERR | POLLHUP);
        show_read("recv", fd, 10);
        sockaddr_in a = at(there(), port());
        SHOW("nobody listens", connect(stream(), raw(a), sizeof a));
    });
    at_server([&] {
        SHOW("listen again", listen(listener, 3));
        show_state("listening again", listener);
    });
    at_client([&] { fd = connecting(there(), port()); });
    at_server([&] { SHOW("close", close(accepted(listener))); });
    at_client([&] { show_read("recv", fd, 10); });
}

// One listener for every way to this host.
TCP_KERNEL_CASE(listen, any_address, 109) {
    int listener = -1;
    at_server([&] { listener = listening(0, "0.0.0.0"); });
    for (const char* address : {kHere, kHereSecond, kHereLink2}) {
        int fd = -1;
        at_client([&] {
            fd = connecting(address, port());
            show_name("connected", fd);
            show_peer("connected", fd);
            put(fd, "from the wire");
        });
        at_server([&] {
            fd = accepted(listener);
            show_name("accepted", fd);
            show_peer("accepted", fd);
            show_read("recv", fd, 100);
            put(fd, "answer");
        });
        at_client([&] { show_read("recv", fd, 100); });
    }
    at_server([&] {
        for (const char* address : {"127.0.0.1", "127.3.2.1", kHere, kHereLink2, "0.0.0.0"}) {
            int c = connecting(address, port());
            int fd = accepted(listener);
            show_name("accepted", fd);
            show_peer("accepted", fd);
            put(c, "from here");
            show_read("recv", fd, 100);
            put(fd, "answer");
            show_read("recv", c, 100);
        }
    });
}

TCP_KERNEL_CASE(listen, any_address_mixed_queue, 19) {
    int listener = -1, wire = -1;
    at_server([&] { listener = listening(0, "0.0.0.0"); });
    at_client([&] {
        wire = connecting(there(), port());
        put(wire, "wire");
    });
    at_server([&] {
        await_readable(listener);
        int local = connecting("127.0.0.1", port());
        put(local, "loop");
        // The order between the two is not promised by anybody: sets.
        std::string got[2];
        for (std::string& s : got) {
            int fd = accepted(listener);
            char text[10] = {};
            ok(recv(fd, text, 4, MSG_WAITALL));
            s = text;
        }
        say("both %d", (got[0] == "wire" && got[1] == "loop") || (got[0] == "loop" && got[1] == "wire"));
        nonblocking(listener);
        SHOW("no more", accept(listener, nullptr, nullptr));
    });
}

TCP_KERNEL_CASE(listen, only_its_address, 25) {
    int lo = -1, link1 = -1, second = -1;
    at_server([&] {
        lo = listening(0, "127.0.0.1");
        link1 = listening(1, kHere);
        second = listening(1, kHereSecond);
    });
    at_client([&] {
        auto attempt = [](const char* what, const char* address, int number) {
            sockaddr_in a = at(address, number);
            int fd = stream();
            SHOW(what, connect(fd, raw(a), sizeof a));
            return fd;
        };
        attempt("loopback only", kHere, port());
        attempt("other link", kHereLink2, port(1));
        put(attempt("first", kHere, port(1)), "first");
        put(attempt("second", kHereSecond, port(1)), "second");
    });
    at_server([&] {
        show_read("first", accepted(link1), 10);
        show_read("second", accepted(second), 10);
        show_events("loopback", lo);
        sockaddr_in a = at("127.0.0.1", port(1));
        SHOW("link only", connect(stream(), raw(a), sizeof a));
        a = at(kHere, port(1));
        SHOW("own address", connect(stream(), raw(a), sizeof a));
        show_events_with("own address", link1, POLLIN);
    });
}

TCP_CASE(listen, specific_before_any) {
    int any = -1, link1 = -1;
    at_server([&] {
        any = stream();
        link1 = stream();
        for (int fd : {any, link1}) set(fd, SOL_SOCKET, SO_REUSEPORT, 1);
        sockaddr_in a = at("0.0.0.0", port());
        SHOW("bind any", bind(any, raw(a), sizeof a));
        a = at(kHere, port());
        SHOW("bind specific", bind(link1, raw(a), sizeof a));
        SHOW("listen", listen(any, 5));
        SHOW("listen", listen(link1, 5));
    });
    int fd = -1;
    at_client([&] {
        put(connecting(kHere, port()), "specific");
        put(connecting(kHereSecond, port()), "second");
        put(connecting(kHereLink2, port()), "link2");
    });
    at_server([&] {
        show_read("at the specific one", fd = accepted(link1), 10);
        show_read("at any", accepted(any), 10);
        show_read("at any", accepted(any), 10);
        SHOW("close the specific one", close(link1));
    });
    at_client([&] { put(connecting(kHere, port()), "again"); });
    at_server([&] { show_read("now at any", accepted(any), 10); });
}

TCP_CASE(listen, data_and_end_before_accept) {
    int listener = -1;
    at_server([&] { listener = listening(); });
    at_client([&] {
        int fd = connecting(there(), port());
        put(fd, "all there is");
        shutdown(fd, SHUT_WR);
        await_acked(fd);
        eventually("fin acknowledged", [&] { return state(fd) == TCP_FIN_WAIT2; });
        close(fd);
    });
    at_server([&] {
        int fd = accepted(listener);
        show_events("accepted", fd);
        show_peer("accepted", fd);
        show_read("recv", fd, 100);
        show_read("recv", fd, 100);
        show_state("after", fd);
        SHOW("close", close(fd));
    });
}

TCP_CASE(listen, reset_before_accept) {
    int listener = -1;
    at_server([&] { listener = listening(); });
    at_client([&] {
        int fd = connecting(there(), port());
        put(fd, "lost");
        await_acked(fd);
        set_linger(fd, true, 0);
        close(fd);
        // In order behind the reset: when the second is there, the reset is too.
        fd = connecting(there(), port());
        put(fd, "kept");
        await_acked(fd);
    });
    at_server([&] {
        int dead = accepted(listener), live = accepted(listener);
        await_readable(live);
        show_events("reset one", dead);
        show_peer("reset one", dead);
        show_name("reset one", dead);
        show_read("reset one", dead, 10);
        show_read("reset one again", dead, 10);
        show_read("live one", live, 10);
    });
}

TCP_KERNEL_CASE(listen, reuseport_group, 7) {
    constexpr int kConnections = 24;
    int group[2] = {-1, -1}, fds[kConnections];
    at_server([&] {
        for (int& fd : group) {
            fd = stream(SOCK_NONBLOCK);
            set(fd, SOL_SOCKET, SO_REUSEPORT, 1);
            sockaddr_in a = at(here(), port());
            SHOW("bind", bind(fd, raw(a), sizeof a));
            SHOW("listen", listen(fd, 100));
        }
    });
    int each[2] = {0, 0};
    auto accept_all = [&](int wanted) {
        int total = 0;
        eventually("all accepted", [&] {
            for (int g : {0, 1})
                while (accept(group[g], nullptr, nullptr) >= 0) each[g]++, total++;
            return total >= wanted;
        });
        say("accepted %d", total);
    };
    at_client([&] {
        for (int& fd : fds) fd = connecting(there(), port());
    });
    at_server([&] {
        accept_all(kConnections);
        say("both were used %d", each[0] > 0 && each[1] > 0);
        close(group[0]);
    });
    at_client([&] {
        for (int& fd : fds) fd = connecting(there(), port());
    });
    at_server([&] {
        accept_all(kConnections);
        close(group[1]);
    });
    at_client([&] {
        sockaddr_in a = at(there(), port());
        SHOW("nobody", connect(stream(), raw(a), sizeof a));
    });
}

TCP_CASE(listen, defer_accept) {
    int listener = -1, fd = -1;
    at_server([&] {
        listener = listening();
        SHOW("defer", set(listener, IPPROTO_TCP, TCP_DEFER_ACCEPT, 5));
    });
    at_client([&] {
        fd = connecting(there(), port());
        show_state("connected", fd);
    });
    at_server([&] { show_events("no data yet", listener); });
    at_client([&] { put(fd, "data"); });
    at_server([&] {
        show_events_with("data", listener, POLLIN);
        int s = accepted(listener);
        SHOW("at once", recv(s, nullptr, 0, MSG_DONTWAIT));
        show_read("recv", s, 100, MSG_DONTWAIT);
        put(s, "answer");
    });
    at_client([&] { show_read("recv", fd, 100); });
}

TCP_CASE(listen, accept_time_limit) {
    at_server([&] {
        int listener = listening();
        set_timeout(listener, SO_RCVTIMEO, 20);
        SHOW("accept", accept(listener, nullptr, nullptr));
        SHOW("accept4", accept4(listener, nullptr, nullptr, SOCK_NONBLOCK));
    });
}

TCP_CASE(listen, accept_waits) {
    int listener = -1, fd = -1;
    at_server([&] {
        listener = listening();
        set_timeout(listener, SO_RCVTIMEO, 5000);
    });
    if (server()) {
        fd = accepted(listener);  // before or after the client came
        timeval t{9, 9};
        socklen_t length = sizeof t;
        getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, &length);
        say("time limit of the accepted one %ld.%06ld", static_cast<long>(t.tv_sec),
            static_cast<long>(t.tv_usec));
        show_read("recv", fd, 100);
    } else {
        usleep(5000);
        fd = connecting(there(), port());
        put(fd, "hello");
    }
    sync();
}

TCP_CASE(listen, epoll_of_listener) {
    int listener = -1, ep = -1, fds[4];
    epoll_event e[4];
    at_server([&] {
        listener = listening();
        nonblocking(listener);
        ep = epoll_create1(0);
        epoll_event wanted{EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, {.u64 = 77}};
        SHOW("add", epoll_ctl(ep, EPOLL_CTL_ADD, listener, &wanted));
        SHOW("nobody", epoll_wait(ep, e, 4, 0));
    });
    at_client([&] { fds[0] = connecting(there(), port()); });
    at_server([&] {
        SHOW("one", epoll_wait(ep, e, 4, 3000));
        say("events %x data %llu", e[0].events, static_cast<unsigned long long>(e[0].data.u64));
        SHOW("no second edge", epoll_wait(ep, e, 4, 0));
    });
    at_client([&] { fds[1] = connecting(there(), port()); });
    at_server([&] {
        SHOW("an edge for the second", epoll_wait(ep, e, 4, 3000));
        say("accepted %d", accept(listener, nullptr, nullptr) >= 0);
        say("accepted %d", accept(listener, nullptr, nullptr) >= 0);
        SHOW("no more", accept(listener, nullptr, nullptr));
        SHOW("empty", epoll_wait(ep, e, 4, 0));
        epoll_event wanted{EPOLLIN, {.u64 = 78}};
        SHOW("level", epoll_ctl(ep, EPOLL_CTL_MOD, listener, &wanted));
        SHOW("empty", epoll_wait(ep, e, 4, 0));
    });
    at_client([&] { fds[2] = connecting(there(), port()); });
    at_server([&] {
        for (int i = 0; i < 3; i++) SHOW("level", epoll_wait(ep, e, 4, 3000));
        say("events %x data %llu", e[0].events, static_cast<unsigned long long>(e[0].data.u64));
        say("accepted %d", accept(listener, nullptr, nullptr) >= 0);
        SHOW("empty", epoll_wait(ep, e, 4, 0));
    });
}

// The second family of programs: one IPv6 socket for both protocols.
TCP_KERNEL_CASE(listen, dual_stack, 11) {
    int listener = -1, fd = -1;
    at_server([&] {
        listener = socket(AF_INET6, SOCK_STREAM, 0);
        sockaddr_in6 a{};
        a.sin6_family = AF_INET6;
        a.sin6_port = htons(static_cast<uint16_t>(port()));
        SHOW("bind", bind(listener, reinterpret_cast<sockaddr*>(&a), sizeof a));
        SHOW("listen", listen(listener, 5));
    });
    at_client([&] {
        fd = connecting(there(), port());
        put(fd, "four");
    });
    at_server([&] {
        sockaddr_in6 a{};
        socklen_t length = sizeof a;
        fd = accept(listener, reinterpret_cast<sockaddr*>(&a), &length);
        char text[INET6_ADDRSTRLEN];
        say("accepted from %s length %u", inet_ntop(AF_INET6, &a.sin6_addr, text, sizeof text), length);
        show_read("recv", fd, 10);
        put(fd, "six");
    });
    at_client([&] {
        show_read("recv", fd, 10);
        int six = socket(AF_INET6, SOCK_STREAM, 0);
        sockaddr_in6 a{};
        a.sin6_family = AF_INET6;
        a.sin6_port = htons(static_cast<uint16_t>(port()));
        inet_pton(AF_INET6, "::ffff:198.18.1.1", &a.sin6_addr);
        SHOW("connect mapped", connect(six, reinterpret_cast<sockaddr*>(&a), sizeof a));
        put(six, "mapped");
        fd = six;
    });
    at_server([&] { show_read("recv", accepted(listener), 10); });
}

}  // namespace parity::tcp
