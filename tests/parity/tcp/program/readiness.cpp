// SPDX-License-Identifier: BSD-2-Clause
// poll, select and epoll over the life of a connection, by level and by edge.
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>

#include "tests/parity/pair/tcp_harness.h"

namespace parity::tcp {
namespace {

std::string epoll_text(uint32_t bits) {
    return events_text(static_cast<int>(bits & 0xffff)) + (bits >> 16 ? " and more" : "");
}

constexpr uint32_t kAll = EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDHUP;

struct Epoll {
    int ep = epoll_create1(0);
    int fd;
    Epoll(int of, uint32_t events) : fd(of) {
        epoll_event e{events, {.u32 = 5}};
        if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e) != 0) say("cannot add");
    }
    ~Epoll() { close(ep); }
    void show(const char* what, int timeout = 0) {
        epoll_event e[3] = {};
        int n = epoll_wait(ep, e, 3, timeout);
        say("%s: %d %s", what, n, n > 0 ? epoll_text(e[0].events).c_str() : "");
    }
    // Collects edges until all of `wanted` have been seen; an edge may come in pieces.
    void show_until(const char* what, uint32_t wanted) {
        uint32_t seen = 0;
        epoll_event e[3];
        eventually(what, [&] {
            for (int i = 0, n = epoll_wait(ep, e, 3, 0); i < n; i++) seen |= e[i].events;
            return (seen & wanted) == wanted;
        });
        say("%s: %s", what, epoll_text(seen).c_str());
    }
};

}  // namespace

TCP_PAIR_CASE(readiness, life_by_poll) {
    int fd = connection();
    at_left([&] {
        show_events("connected", fd);
        show_select("connected", fd);
    });
    at_right([&] { put(fd, "data"); });
    at_left([&] {
        show_events_with("data", fd, POLLIN);
        show_select("data", fd);
        show_read("recv", fd, 2);
        show_events("some left", fd);
        show_read("recv", fd, 2);
        show_events("none left", fd);
    });
    at_right([&] { shutdown(fd, SHUT_WR); });
    at_left([&] {
        show_events_with("end", fd, POLLRDHUP);
        show_select("end", fd);
        show_read("recv", fd, 2);
        show_events("end is read", fd);
        shutdown(fd, SHUT_WR);
        show_events_with("both ended", fd, POLLHUP);
        show_select("both ended", fd);
    });
}

TCP_PAIR_CASE(readiness, life_by_level) {
    int fd = connection();
    Epoll e(fd, kAll);
    at_left([&] { e.show("connected"); });
    at_right([&] { put(fd, "data"); });
    at_left([&] {
        await_readable(fd);
        e.show("data");
        e.show("data still");
        show_read("recv", fd, 2);
        e.show("some left");
        show_read("recv", fd, 2);
        e.show("none left");
    });
    at_right([&] { shutdown(fd, SHUT_WR); });
    at_left([&] {
        await_events(fd, POLLRDHUP);
        e.show("end");
        shutdown(fd, SHUT_WR);
        await_events(fd, POLLHUP);
        e.show("both ended");
    });
}

// Setting SO_RCVLOWAT tells again of what is there.
TCP_PAIR_CASE(readiness, edge_of_receive_lowat) {
    int fd = connection();
    at_right([&] { put(fd, "data"); });
    at_left([&] {
        await_bytes(fd, 4);
        Epoll e(fd, EPOLLIN | EPOLLET);
        e.show("data");
        e.show("no second edge");
        for (int lowat : {1, 4, 5, 0}) {
            SHOW("SO_RCVLOWAT", set(fd, SOL_SOCKET, SO_RCVLOWAT, lowat));
            e.show("edge");
        }
    });
}

TCP_PAIR_CASE(readiness, life_by_edge) {
    int fd = connection();
    Epoll e(fd, EPOLLIN | EPOLLRDHUP | EPOLLET);
    at_left([&] { e.show("connected"); });
    at_right([&] { put(fd, "data"); });
    at_left([&] {
        e.show_until("data", EPOLLIN);
        e.show("no second edge");
        show_read("recv", fd, 2);
        e.show("some left, no edge");
    });
    at_right([&] { put(fd, "more"); });
    at_left([&] {
        e.show_until("an edge for new data with old unread", EPOLLIN);
        await_bytes(fd, 6);
        show_read("recv", fd, 100);
        e.show("nothing");
    });
    at_right([&] {
        shutdown(fd, SHUT_WR);
        await_state(fd, TCP_FIN_WAIT2);
    });
    at_left([&] {
        e.show_until("end", EPOLLIN | EPOLLRDHUP);
        e.show("no second edge");
        shutdown(fd, SHUT_WR);
        // The kernel makes one edge of the call and another of the peer's acknowledgement.
        await_state(fd, TCP_CLOSE);
        e.show_until("both ended", EPOLLHUP);
        e.show("no second edge");
    });
}

TCP_PAIR_CASE(readiness, reset_by_edge) {
    int fd = connection();
    Epoll level(fd, kAll), edge(fd, EPOLLIN | EPOLLRDHUP | EPOLLET), nothing(fd, 0);
    at_right([&] {
        set_linger(fd, true, 0);
        close(fd);
    });
    at_left([&] {
        edge.show_until("reset", EPOLLERR | EPOLLHUP | EPOLLIN | EPOLLRDHUP);
        edge.show("no second edge");
        level.show("level");
        nothing.show("asked for nothing");
        show_read("recv", fd, 1);
        level.show("error taken");
        nothing.show("error taken");
        show_select("error taken", fd);
    });
}

TCP_PAIR_CASE(readiness, one_shot) {
    int fd = connection();
    Epoll e(fd, EPOLLIN | EPOLLONESHOT);
    at_right([&] { put(fd, "a"); });
    at_left([&] {
        e.show("data", 3000);
        e.show("disarmed");
    });
    at_right([&] { put(fd, "b"); });
    at_left([&] {
        await_bytes(fd, 2);
        e.show("still disarmed");
        epoll_event again{EPOLLIN | EPOLLONESHOT, {.u32 = 6}};
        SHOW("arm", epoll_ctl(e.ep, EPOLL_CTL_MOD, fd, &again));
        e.show("armed");
        e.show("disarmed");
    });
    at_right([&] { close(fd); });
    at_left([&] {
        await_events(fd, POLLRDHUP);
        e.show("disarmed for the end too");
    });
}

TCP_PAIR_CASE(readiness, modify_makes_an_edge) {
    int fd = connection();
    Epoll e(fd, EPOLLOUT | EPOLLET);
    at_right([&] { put(fd, "data"); });
    at_left([&] {
        await_bytes(fd, 4);
        e.show_until("writable", EPOLLOUT);
        while (true) {  // whatever was still on its way
            epoll_event x;
            if (epoll_wait(e.ep, &x, 1, 0) == 0) break;
        }
        epoll_event in{EPOLLIN | EPOLLET, {.u32 = 6}};
        SHOW("modify", epoll_ctl(e.ep, EPOLL_CTL_MOD, fd, &in));
        e.show("edge of the modification");
        e.show("once");
        SHOW("delete", epoll_ctl(e.ep, EPOLL_CTL_DEL, fd, nullptr));
        e.show("gone");
        SHOW("delete again", epoll_ctl(e.ep, EPOLL_CTL_DEL, fd, nullptr));
        SHOW("add", epoll_ctl(e.ep, EPOLL_CTL_ADD, fd, &in));
        SHOW("add again", epoll_ctl(e.ep, EPOLL_CTL_ADD, fd, &in));
        e.show("edge of the addition");
    });
}

TCP_PAIR_CASE(readiness, writable_again) {
    int fd = connection();
    Epoll edge(fd, EPOLLOUT | EPOLLET), level(fd, EPOLLOUT);
    size_t length = 0;
    at_left([&] {
        edge.show("connected");
        length = fill(fd);
        show_events("full", fd);
        show_select("full", fd);
        level.show("full");
        // An edge comes only after a write that found no room, so that has to be the last thing.
        epoll_event x;
        do
            for (char c = 'x'; send(fd, &c, 1, MSG_DONTWAIT) == 1;) length++;
        while (epoll_wait(edge.ep, &x, 1, 0) > 0);
    });
    long other = exchange(static_cast<long>(length));
    at_right([&] {
        std::vector<char> data(static_cast<size_t>(other));
        say("all %d", recv(fd, data.data(), data.size(), MSG_WAITALL) == other);
    });
    at_left([&] {
        await_acked(fd);
        edge.show_until("edge", EPOLLOUT);
        level.show("level");
        show_events("empty", fd);
        show_select("empty", fd);
    });
}

TCP_PAIR_CASE(readiness, wakes_the_waiting) {
    enum { by_poll, by_ppoll, by_select, by_pselect, by_epoll, by_epoll_pwait, count };
    int fd = connection();
    for (int how = 0; how < count; how++) {
        if (left()) {
            usleep(3000);
            put(fd, "x");
        } else {
            pollfd p{fd, POLLIN | POLLRDHUP, 0};
            timespec ts{3, 0};
            timeval tv{3, 0};
            fd_set r;
            FD_ZERO(&r);
            FD_SET(fd, &r);
            Epoll e(fd, EPOLLIN);
            epoll_event out{};
            sigset_t mask;
            sigemptyset(&mask);
            if (how == by_poll) SHOW("poll", poll(&p, 1, 3000));
            if (how == by_ppoll) SHOW("ppoll", ppoll(&p, 1, &ts, &mask));
            if (how == by_select) SHOW("select", select(fd + 1, &r, nullptr, nullptr, &tv));
            if (how == by_pselect) SHOW("pselect", pselect(fd + 1, &r, nullptr, nullptr, &ts, &mask));
            if (how == by_epoll) SHOW("epoll", epoll_wait(e.ep, &out, 1, 3000));
            if (how == by_epoll_pwait) SHOW("epoll_pwait", epoll_pwait(e.ep, &out, 1, 3000, &mask));
            show_read("recv", fd, 10);
        }
        sync();
    }
}

TCP_PAIR_CASE(readiness, the_end_wakes) {
    for (bool reset : {false, true}) {
        int fd = connection();
        if (left()) {
            usleep(3000);
            set_linger(fd, reset, 0);
            close(fd);
        } else {
            pollfd p{fd, reset ? short{0} : short{POLLRDHUP}, 0};
            SHOW("poll", poll(&p, 1, 3000));
            say("%s", events_text(p.revents).c_str());
        }
        sync();
    }
}

TCP_PAIR_CASE(readiness, time_limits) {
    int fd = connection();
    pollfd p{fd, POLLIN, 0};
    Epoll e(fd, EPOLLIN);
    epoll_event out;
    fd_set r;
    FD_ZERO(&r);
    FD_SET(fd, &r);
    timeval tv{0, 10'000};
    SHOW("poll", poll(&p, 1, 10));
    SHOW("select", select(fd + 1, &r, nullptr, nullptr, &tv));
    SHOW("epoll", epoll_wait(e.ep, &out, 1, 10));
    SHOW("epoll, no room", epoll_wait(e.ep, &out, 0, 10));
}

TCP_CASE(readiness, many_connections) {
    constexpr int kMany = 20;
    int listener = -1, fds[kMany];
    at_server([&] { listener = listening(0, nullptr, 100); });
    at_client([&] {
        for (int& fd : fds) fd = connecting(there(), port());
    });
    int ep = epoll_create1(0);
    at_server([&] {
        for (int i = 0; i < kMany; i++) {
            fds[i] = accepted(listener);
            epoll_event e{EPOLLIN, {.u32 = static_cast<uint32_t>(i)}};
            epoll_ctl(ep, EPOLL_CTL_ADD, fds[i], &e);
        }
    });
    at_client([&] {
        for (int i = 0; i < kMany; i += 3) put(fds[i], "ready");
    });
    at_server([&] {
        for (int i = 0; i < kMany; i += 3) await_readable(fds[i]);
        epoll_event e[kMany];
        SHOW("wait", epoll_wait(ep, e, kMany, 3000));
        int few = epoll_wait(ep, e, 2, 0);
        say("at most two %d", few);
        // The rest gets its turn.
        bool seen[kMany] = {};
        for (int i = 0; i < 10; i++)
            for (int j = 0, n = epoll_wait(ep, e, 2, 0); j < n; j++) seen[e[j].data.u32] = true;
        std::string line;
        for (bool s : seen) line += s ? '1' : '0';
        say("seen %s", line.c_str());
        close(fds[0]);
        SHOW("one closed", epoll_wait(ep, e, kMany, 0));
    });
}

TCP_PAIR_CASE(readiness, mixed_with_others) {
    int fd = connection();
    int p[2], u = udp();
    ok(pipe(p));
    int ep = epoll_create1(0);
    int all[] = {fd, p[0], u};
    for (int i = 0; i < 3; i++) {
        epoll_event e{EPOLLIN, {.u32 = static_cast<uint32_t>(i)}};
        epoll_ctl(ep, EPOLL_CTL_ADD, all[i], &e);
    }
    epoll_event e[4];
    at_left([&] { put(fd, "data"); });
    at_right([&] {
        await_readable(fd);
        SHOW("socket", epoll_wait(ep, e, 4, 3000));
        say("which %u", e[0].data.u32);
        ok(write(p[1], "x", 1));
        SHOW("both", epoll_wait(ep, e, 4, 3000));
        pollfd polled[4] = {{fd, POLLIN, 0}, {p[0], POLLIN, 0}, {u, POLLIN, 0}, {-1, POLLIN, 0}};
        SHOW("poll", poll(polled, 4, 3000));
        for (const pollfd& x : polled) say("%s", events_text(x.revents).c_str());
        // Level-triggered epoll descriptors nest.
        pollfd nested{ep, POLLIN, 0};
        SHOW("poll of epoll", poll(&nested, 1, 0));
        int outer = epoll_create1(0);
        epoll_event in{EPOLLIN, {.u32 = 9}};
        epoll_ctl(outer, EPOLL_CTL_ADD, ep, &in);
        SHOW("nested", epoll_wait(outer, e, 4, 3000));
        show_read("recv", fd, 10);
        char c;
        ok(read(p[0], &c, 1));
        SHOW("nested, nothing", epoll_wait(outer, e, 4, 0));
        SHOW("poll of epoll, nothing", poll(&nested, 1, 0));
    });
}

TCP_PAIR_CASE(readiness, nested_wakes) {
    int fd = connection();
    if (left()) {
        usleep(5000);
        put(fd, "x");
    } else {
        Epoll inner(fd, EPOLLIN);
        Epoll outer(inner.ep, EPOLLIN);
        outer.show("wakes", 3000);
        show_read("recv", fd, 10);
    }
    sync();
}

// Asynchronous notification: SIGIO for data, and for a connection's end.
TCP_KERNEL_PAIR_CASE(readiness, sigio, 11) {
    static volatile sig_atomic_t signals;
    int fd = connection();
    signals = 0;
    at_right([&] {
        struct sigaction action {};
        action.sa_handler = [](int) { signals = signals + 1; };
        action.sa_flags = SA_RESTART;
        sigaction(SIGIO, &action, nullptr);
        SHOW("owner", fcntl(fd, F_SETOWN, getpid()));
        SHOW("async", fcntl(fd, F_SETFL, O_ASYNC | O_NONBLOCK));
        say("flags %x", fcntl(fd, F_GETFL) & (O_ASYNC | O_NONBLOCK));
    });
    at_left([&] { put(fd, "data"); });
    at_right([&] {
        eventually("a signal", [] { return signals > 0; });
        await_readable(fd);
        show_read("recv", fd, 10);
        signals = 0;
    });
    at_left([&] { shutdown(fd, SHUT_WR); });
    at_right([&] {
        eventually("a signal for the end", [] { return signals > 0; });
        int off = 0;
        SHOW("FIOASYNC off", ioctl(fd, FIOASYNC, &off));
        say("flags %x", fcntl(fd, F_GETFL) & (O_ASYNC | O_NONBLOCK));
    });
}

}  // namespace parity::tcp
