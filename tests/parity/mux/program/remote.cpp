// SPDX-License-Identifier: BSD-2-Clause
// Sockets that talk to the other host: each way of waiting, for everything that can happen to them.
#include "mux.h"

namespace parity::mux {
namespace {

constexpr int kEverything = POLLIN | POLLOUT | POLLPRI | POLLRDHUP;

bool one_shot(How how) { return how == How::one_shot; }
bool edges(How how) { return how == How::edge || how == How::edge_nested || how == How::nested_edge; }

void read_all(int fd) {
    char block[65536];
    while (recv(fd, block, sizeof block, MSG_DONTWAIT) > 0) {
    }
}

// Shows what a Watch reports once the socket has `wanted`. Whoever brings it shows it first and wakes waiters
// then, in the kernel as well: so a set may hear of it a moment after poll() does.
void show_with(Watch& w, const char* what, int fd, int wanted) {
    await_events(fd, wanted);
    w.show(what, kLong);
}

// ---- established connections ----

void tcp_data(How how) {
    scenario("%s: TCP: data before", name_of(how));
    int fd = connection();
    Watch w(how);
    at_left([&] {
        w.add(fd, POLLIN);
        w.show("idle");
        w.show("100 us", 100 * kUsec);
        w.show("1 ms", kMsec);
    });
    at_right([&] { put(fd, "ab"); });
    at_left([&] {
        await_bytes(fd, 2);
        w.show("data");
        w.show("again");
        show_read("half", fd, 1);
        w.show("some left");
        read_all(fd);
        w.show("drained");
    });
    at_right([&] { put(fd, "more"); });
    at_left([&] {
        await_bytes(fd, 4);
        w.show("more");
        w.show("more again");
    });
    // The next scenario, with the same connection.
    scenario("%s: TCP: data during", name_of(how));
    Watch during(how);
    at_left([&] {
        read_all(fd);
        during.add(fd, POLLIN);
        during.show("idle");
    });
    if (left()) {
        during.show("wakes", kForEver);
    } else {
        usleep(1500);
        put(fd, "x");
    }
    sync();
    at_left([&] {
        read_all(fd);
        during.show("drained", kMsec);
    });
    close(fd);
}

void tcp_end(How how) {
    scenario("%s: TCP: the peer ends its half, then we ours", name_of(how));
    int fd = connection();
    Watch in(how), end(how), all(how), none(how);
    at_left([&] {
        in.add(fd, POLLIN);
        end.add(fd, POLLRDHUP);
        all.add(fd, kEverything);
        none.add(fd, 0);
        all.show("connected");
    });
    at_right([&] { shutdown(fd, SHUT_WR); });
    at_left([&] {
        show_with(in, "in", fd, POLLRDHUP);
        end.show("end");
        all.show("all");
        none.show("none");
        in.show("in again");
        end.show("end again");
        show_read("read", fd, 1);
        end.show("end, read");
        shutdown(fd, SHUT_WR);
        await_events(fd, POLLHUP);
        in.show("in", one_shot(how) ? 0 : kLong);
        end.show("end");
        all.show("all");
        none.show("none");
        none.show("none again");
    });
    close(fd);
}

void tcp_end_wakes(How how) {
    scenario("%s: TCP: the end wakes", name_of(how));
    int fd = connection();
    Watch w(how);
    w.add(fd, POLLIN | POLLRDHUP);
    if (left()) {
        // On the kernel a FIN makes the socket readable a moment before it is the end.
        say("wakes: %d", w.wait(kForEver));
    } else {
        usleep(1500);
        close(fd);
    }
    sync();
    at_left([&] {
        await_events(fd, POLLRDHUP);
        show_read("end", fd, 1);
        close(fd);
    });
}

void tcp_reset(How how, bool during) {
    scenario("%s: TCP: reset %s", name_of(how), during ? "during" : "before");
    int fd = connection();
    Watch in(how), out(how), all(how), none(how);
    at_left([&] {
        in.add(fd, POLLIN);
        out.add(fd, POLLOUT);
        all.add(fd, kEverything);
        none.add(fd, 0);
        if (!one_shot(how)) out.show("connected");
    });
    auto reset = [&] {
        set_linger(fd, true, 0);
        close(fd);
    };
    if (during) {
        if (left())
            // What select and epoll ask for comes with the first wake-up; the kernel's has several for a
            // reset.
            say("wakes: %d", (how <= How::pselect ? in : none).wait(kForEver));
        else {
            usleep(1500);
            reset();
        }
        sync();
    } else {
        at_right(reset);
    }
    at_left([&] {
        await_events(fd, POLLERR | POLLHUP);
        if (!during) {
            in.show("in");
            in.show("in again");
        }
        out.show("out");
        all.show("all");
        if (!during) none.show("none");
        show_error("error", fd);
        if (!edges(how)) {
            none.show("none, error taken");
            all.show("all, error taken");
        }
        close(fd);
    });
}

void tcp_full(How how) {
    scenario("%s: TCP: full, and room again", name_of(how));
    int fd = connection();
    set(fd, SOL_SOCKET, SO_SNDBUF, 50'000);
    Watch out(how), both(how);
    size_t length = 0;
    at_left([&] {
        out.add(fd, POLLOUT);
        both.add(fd, POLLIN | POLLOUT);
        out.show("connected");
        both.show("connected");
        length = fill(fd);
        if (!edges(how)) {
            out.show("full");
            both.show("full");
        }
    });
    long other = exchange(static_cast<long>(length));
    at_right([&] { drain(fd, static_cast<size_t>(other)); });
    at_left([&] {
        await_acked(fd);
        if (edges(how)) return;  // how many edges that made is the kernel's secret
        out.show("room");
        both.show("both");
    });
    at_right([&] { put(fd, "x"); });
    at_left([&] {
        await_bytes(fd, 1);
        if (!edges(how)) out.show("and data: out");
        both.show("and data: both");
    });
    close(fd);
}

void tcp_full_wakes(How how) {
    scenario("%s: TCP: room wakes", name_of(how));
    int fd = connection();
    set(fd, SOL_SOCKET, SO_SNDBUF, 50'000);
    Watch out(how);
    size_t length = 0;
    at_left([&] {
        length = fill(fd);
        out.add(fd, POLLOUT);
        if (one_shot(how)) out.show("full");
    });
    long other = exchange(static_cast<long>(length));
    if (left()) {
        char c = 0;
        // The kernel tells of room only who has found none, so the peer must not read before.
        while (send(fd, &c, 1, MSG_DONTWAIT) == 1) {
        }
        sync();
        out.show("wakes", kForEver);
    } else {
        sync();
        usleep(1500);
        drain(fd, static_cast<size_t>(other));
    }
    sync();
    close(fd);
}

void tcp_urgent(How how) {
    scenario("%s: TCP: urgent data", name_of(how));
    int fd = connection();
    Watch pri(how), in(how), all(how);
    at_left([&] {
        pri.add(fd, POLLPRI);
        in.add(fd, POLLIN);
        all.add(fd, kEverything);
        pri.show("idle");
    });
    at_right([&] { ok(send(fd, "u", 1, MSG_OOB)); });
    at_left([&] {
        show_with(pri, "pri", fd, POLLPRI);
        if (!edges(how)) {
            in.show("in");
            all.show("all");
        }
        show_read("urgent", fd, 1, MSG_OOB);
        if (!edges(how)) pri.show("taken");
    });
    at_right([&] { put(fd, "x"); });
    at_left([&] {
        await_events(fd, POLLIN);
        in.show("data after that", one_shot(how) ? 0 : kLong);
    });
    close(fd);
}

// ---- datagrams ----

void udp_data(How how, int fd) {
    scenario("%s: UDP: data before", name_of(how));
    Watch w(how), all(how);
    at_left([&] {
        w.add(fd, POLLIN);
        all.add(fd, kEverything);
        w.show("idle");
        w.show("100 us", 100 * kUsec);
        if (!one_shot(how)) all.show("all");
    });
    at_right([&] {
        put(fd, "ab");
        put(fd, "c");
    });
    at_left([&] {
        wait_in(fd);
        usleep(3000);  // the second
        w.show("data");
        w.show("again");
        all.show("all");
        show_read("one", fd, 10);
        w.show("one left");
        show_read("two", fd, 10);
        w.show("drained");
    });
    at_right([&] { put(fd, ""); });
    at_left([&] {
        wait_in(fd);
        w.show("an empty one");
        show_read("empty", fd, 10);
        w.show("drained", kMsec);
    });
    scenario("%s: UDP: data during", name_of(how));
    Watch during(how);
    at_left([&] {
        during.add(fd, POLLIN);
        during.show("idle");
    });
    if (left()) {
        during.show("wakes", kForEver);
        show_read("it", fd, 10);
        during.show("drained");
    } else {
        usleep(1500);
        put(fd, "x");
    }
    sync();
}

// Room is told of whenever a datagram has left, though there was room before.
void udp_sent(int fd) {
    scenario("UDP: a datagram sent is an edge");
    at_left([&] {
        const int set = epoll_create1(0), narrow = epoll_create1(0);
        epoll_add(set, fd, EPOLLIN | EPOLLOUT | EPOLLET, 1);
        epoll_add(narrow, fd, EPOLLIN | EPOLLET, 2);
        show_set("fresh", set);
        for (int round = 0; round < 2; round++) {
            SHOW("send", send(fd, "x", 1, 0));
            show_set("sent", set);
            show_set("sent, again", set);
            show_set("sent, narrow", narrow);
        }
        epoll_mod(set, fd, EPOLLOUT | EPOLLET | EPOLLONESHOT, 3);
        show_set("one-shot", set);
        SHOW("send", send(fd, "x", 1, 0));
        show_set("fired", set);
        epoll_mod(set, fd, EPOLLWRNORM | EPOLLET, 4);
        show_set("armed", set);
        std::thread sender = soon([&] { (void)!send(fd, "x", 1, 0); });
        show_set("wakes", set, 5000);
        sender.join();
        epoll_mod(set, fd, EPOLLIN | EPOLLET, 5);
        SHOW("send", send(fd, "x", 1, 0));
        show_set("asks for data", set);
        for (int s : {set, narrow}) close(s);
    });
    at_right([&] {
        char b[8];
        while (recv(fd, b, sizeof b, MSG_DONTWAIT) >= 0) {
        }
    });
}

void udp_error(How how, int offset) {
    scenario("%s: UDP: nobody there", name_of(how));
    at_left([&] {
        int fd = datagram(offset);
        Watch in(how), none(how);
        in.add(fd, POLLIN);
        none.add(fd, 0);
        put(fd, "x");
        await_events(fd, POLLERR);
        in.show("in");
        none.show("none");
        none.show("again");
        show_error("error", fd);
        in.show("taken");
        none.show("taken");
        close(fd);
    });
}

void udp_shutdown(How how, int offset) {
    scenario("%s: UDP: shut down", name_of(how));
    at_left([&] {
        int fd = datagram(offset);
        Watch w(how);
        w.add(fd, kEverything);
        w.show("open");
        shutdown(fd, SHUT_RD);
        w.show("read half");
        shutdown(fd, SHUT_WR);
        w.show("both");
        w.show("again");
        close(fd);
    });
}

// ---- listeners and connecting sockets ----

void listener_ready(How how, bool during) {
    scenario("%s: listener: connection %s", name_of(how), during ? "during" : "before");
    int listener = -1, fd = -1;
    Watch w(how), all(how);
    at_left([&] {
        listener = listening(1, nullptr, 8);
        w.add(listener, POLLIN);
        all.add(listener, kEverything);
        w.show("idle");
        all.show("idle");
    });
    if (during) {
        if (left()) {
            w.show("wakes", kForEver);
        } else {
            usleep(1500);
            fd = connecting(there(), port(1));
        }
        sync();
    } else {
        at_right([&] { fd = connecting(there(), port(1)); });
        at_left([&] {
            show_with(w, "one", listener, POLLIN);
            w.show("again");
            all.show("all", kLong);
        });
    }
    at_left([&] {
        fd = accepted(listener);
        w.show("accepted");
        if (how != How::edge && how != How::edge_nested) {
            shutdown(listener, SHUT_RD);
            all.show("shut down");
        }
        close(listener);
    });
    close(fd);
}

void connect_ready(How how, bool refused) {
    scenario("%s: connecting: %s", name_of(how), refused ? "refused" : "accepted");
    int listener = -1, fd = -1;
    Watch w(how);
    if (!refused) at_right([&] { listener = listening(2, nullptr, 8); });
    at_left([&] {
        fd = stream(SOCK_NONBLOCK);
        if (how != How::edge_nested && how != How::edge) {
            Watch before(how);
            before.add(fd, kEverything);
            before.show("not connected");
        }
        sockaddr_in a = at(there(), port(refused ? 3 : 2));
        SHOW("connect", connect(fd, raw(a), sizeof a));
        w.add(fd, POLLOUT | (refused ? POLLIN : 0));
        if (refused) await_events(fd, POLLERR | POLLHUP);
        w.show("ready", kLong);
        if (!edges(how)) w.show("again");
        show_error("error", fd);
        Watch all(how);
        all.add(fd, kEverything);
        all.show("all");
        close(fd);
    });
    if (!refused)
        at_right([&] {
            close(accepted(listener));
            close(listener);
        });
}

// Members are reported in the order in which they became ready, from the first look on.
void tcp_order(uint32_t mode, int offset) {
    constexpr int kMembers = 5;
    scenario("order of reports, mode %x", mode);
    std::vector<int> fds;
    int listener = -1, set = -1;
    auto at = [&](int i) { return fds[static_cast<size_t>(i)]; };
    at_right([&] { listener = listening(offset); });
    at_left([&] {
        for (int i = 0; i < kMembers; i++) fds.push_back(connecting(there(), port(offset)));
    });
    at_right([&] {
        for (int i = 0; i < kMembers; i++) fds.push_back(accepted(listener));
        close(listener);
    });
    at_left([&] {
        set = epoll_create1(0);
        for (int i = 0; i < kMembers; i++) epoll_add(set, at(i), EPOLLIN | mode, static_cast<uint64_t>(i));
    });
    auto arrive = [&](std::initializer_list<int> order) {
        for (int i : order) {
            at_right([&] { put(at(i), "x"); });
            at_left([&] { await_bytes(at(i), 1); });
        }
    };
    auto show = [&](const char* what, int room) {
        at_left([&] {
            epoll_event got[kMembers];
            const int n = epoll_wait(set, got, room, 0);
            std::string text;
            for (int i = 0; i < n; i++) text += " " + std::to_string(got[i].data.u64);
            say("%s: %d%s", what, n, text.c_str());
        });
    };
    auto read_all = [&] {
        at_left([&] {
            char b[8];
            for (int fd : fds) (void)!recv(fd, b, sizeof b, MSG_DONTWAIT);
        });
    };
    arrive({3, 0, 4, 1, 2});
    show("first look", kMembers);
    show("again", kMembers);
    read_all();
    at_left([&] {
        for (int i = 0; i < kMembers; i++) epoll_mod(set, at(i), EPOLLIN | mode, static_cast<uint64_t>(i));
    });
    arrive({4, 2, 0});
    show("changed", kMembers);
    arrive({1, 3});
    show("two more", kMembers);
    // Ready already when they are added, in the order of adding.
    at_left([&] {
        for (int i = 0; i < kMembers; i++) epoll_del(set, at(i));
        for (int i : {2, 4, 1, 3, 0}) epoll_add(set, at(i), EPOLLIN | mode, static_cast<uint64_t>(i));
    });
    show("added ready", 2);
    show("the next", 2);
    show("all", kMembers);
    read_all();
    for (int fd : fds) close(fd);
    at_left([&] { close(set); });
}

}  // namespace

TCP_PAIR_CASE(tcp, order) {
    int offset = left() == server() ? 7 : 11;
    for (const uint32_t mode : {0u, static_cast<uint32_t>(EPOLLET), static_cast<uint32_t>(EPOLLONESHOT)})
        tcp_order(mode, offset++);
}
TCP_PAIR_CASE(tcp, data) {
    for (How how : kHows) tcp_data(how);
}
TCP_PAIR_CASE(tcp, end) {
    for (How how : kHows) tcp_end(how);
}
TCP_PAIR_CASE(tcp, end_wakes) {
    for (How how : kHows) tcp_end_wakes(how);
}
TCP_PAIR_CASE(tcp, reset) {
    for (How how : kHows)
        for (bool during : {false, true}) tcp_reset(how, during);
}
// To fill a socket takes long.
constexpr How kSome[] = {How::select, How::ppoll, How::level, How::one_shot, How::nested};
TCP_KERNEL_CASE(tcp, full, 7) {
    for (How how : kSome) tcp_full(how);
}
TCP_CASE(tcp, full_wakes) {
    for (How how : kSome) tcp_full_wakes(how);
    tcp_full_wakes(How::edge);
}
TCP_KERNEL_CASE(tcp, urgent, 94) {
    for (How how : {How::select, How::poll, How::level, How::edge, How::one_shot, How::nested})
        tcp_urgent(how);
}
TCP_PAIR_CASE(tcp, listener) {
    for (How how : kHows)
        for (bool during : {false, true}) listener_ready(how, during);
}
TCP_KERNEL_PAIR_CASE(tcp, connecting, 49) {
    for (How how : kHows)
        for (bool refused : {false, true}) connect_ready(how, refused);
}
TCP_PAIR_CASE(udp, data) {
    auto friends = company();
    int fd = datagram(5);
    sync();
    for (How how : kHows) udp_data(how, fd);
    close(fd);
}
TCP_PAIR_CASE(udp, sent) {
    auto friends = company();
    int fd = datagram(5);
    sync();
    udp_sent(fd);
    close(fd);
}
TCP_PAIR_CASE(udp, error_and_shutdown) {
    auto friends = company();
    int offset = 5;
    for (How how : kHows) {
        udp_error(how, offset);
        udp_shutdown(how, offset);
    }
}

}  // namespace parity::mux
