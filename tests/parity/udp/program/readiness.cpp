// SPDX-License-Identifier: BSD-2-Clause
// select and poll in all their forms. epoll has its own file.
#include <signal.h>
#include <sys/select.h>
#include <time.h>

#include "tests/parity/harness/harness.h"

namespace parity {
namespace {

char g_buffer[2000];

int listening() {
    peer_opens();
    return bound(kHere, kPort);
}

void show_poll(const char* what, std::vector<pollfd> fds, int timeout) {
    int r = poll(fds.data(), fds.size(), timeout), error = errno;
    std::string events;
    for (auto& p : fds) {
        char s[16];
        snprintf(s, sizeof s, " %x", static_cast<unsigned>(p.revents));
        events += s;
    }
    say("%s: %d%s%s, events%s", what, r, r < 0 ? " " : "", r < 0 ? strerrorname_np(error) : "",
        events.c_str());
}

void later(int msec, int length = 31) {
    post("sleep " + std::to_string(msec));
    post(std::string("send p ") + kHere + " 5000 " + std::to_string(length));
}
void later_done() { answer(), answer(); }

void show_select(const char* what, int nfds, fd_set* r, fd_set* w, fd_set* e, timeval* t,
                 std::initializer_list<int> fds) {
    int n = select(nfds, r, w, e, t), error = errno;
    std::string bits;
    for (int fd : fds) {
        bits += " ";
        if (r) bits += FD_ISSET(fd, r) ? "r" : "-";
        if (w) bits += FD_ISSET(fd, w) ? "w" : "-";
        if (e) bits += FD_ISSET(fd, e) ? "e" : "-";
    }
    say("%s: %d%s%s, bits%s", what, n, n < 0 ? " " : "", n < 0 ? strerrorname_np(error) : "", bits.c_str());
}

}  // namespace

PARITY_CASE(poll, basics, Traffic::offloaded) {
    int fd = listening(), p[2];
    ok(pipe(p));
    show_poll("nothing, 0", {{fd, POLLIN, 0}}, 0);
    show_poll("nothing, 30", {{fd, POLLIN, 0}}, 30);
    show_poll("out", {{fd, POLLIN | POLLOUT, 0}}, 1000);
    show_poll("all bits", {{fd, POLLIN | POLLPRI | POLLOUT | POLLRDNORM | POLLWRNORM | POLLRDHUP, 0}}, 0);
    show_poll("no bits", {{fd, 0, 0}}, 0);
    show_poll("negative", {{-1, POLLIN, 0}, {fd, POLLOUT, 0}}, 0);
    show_poll("closed number", {{999, POLLIN, 0}, {fd, POLLIN, 0}}, 1000);
    peer_sends(30);
    settle();
    show_poll("data", {{fd, POLLIN, 0}}, 1000);
    show_poll("data, 0", {{fd, POLLIN, 0}}, 0);
    show_poll("data, rdnorm", {{fd, POLLRDNORM, 0}}, 0);
    show_poll("data, out only", {{fd, POLLOUT, 0}}, 0);
    show_poll("data, all", {{fd, POLLIN | POLLOUT | POLLRDNORM | POLLWRNORM, 0}}, 0);
    show_poll("same twice", {{fd, POLLIN, 0}, {fd, POLLIN | POLLOUT, 0}}, 0);
    show_poll("with pipe", {{p[0], POLLIN, 0}, {fd, POLLIN, 0}, {p[1], POLLOUT, 0}}, 0);
    ok(write(p[1], "x", 1));
    show_poll("with full pipe", {{p[0], POLLIN, 0}, {fd, POLLIN, 0}}, 0);
    ok(recv(fd, g_buffer, 100, 0));
    show_poll("pipe only", {{p[0], POLLIN, 0}, {fd, POLLIN, 0}}, 1000);
    SHOW("none at all", poll(nullptr, 0, 10));
    SHOW("null array", poll(nullptr, 3, 10));
    SHOW("too many", poll(nullptr, 0xffffffffu, 10));
}

PARITY_CASE(poll, waiting, Traffic::offloaded) {
    int fd = listening(), p[2];
    ok(pipe(p));
    later(10);
    show_poll("spinning", {{fd, POLLIN, 0}}, 5000);
    later_done();
    ok(recv(fd, g_buffer, 100, 0));
    later(200);
    show_poll("sleeping", {{p[0], POLLIN, 0}, {fd, POLLIN, 0}}, 5000);
    later_done();
    ok(recv(fd, g_buffer, 100, 0));
    later(20);
    show_poll("for ever", {{fd, POLLIN, 0}}, -1);
    later_done();
    ok(recv(fd, g_buffer, 100, 0));
    if (fork() == 0) {
        usleep(150'000);
        ok(write(p[1], "x", 1));
        _exit(0);
    }
    show_poll("pipe wakes", {{fd, POLLIN, 0}, {p[0], POLLIN, 0}}, 5000);
    later(20, 3000);
    show_poll("fragmented", {{fd, POLLIN, 0}}, 5000);
    later_done();
}

PARITY_CASE(poll, ppoll_timeouts, Traffic::offloaded) {
    int fd = listening();
    pollfd p{fd, POLLIN, 0};
    timespec t{0, 20'000'000};
    SHOW("20 ms", ppoll(&p, 1, &t, nullptr));
    say("time-out argument unchanged %d", t.tv_sec == 0 && t.tv_nsec == 20'000'000);
    t = {0, 1000};
    SHOW("1 us", ppoll(&p, 1, &t, nullptr));
    t = {0, 0};
    SHOW("0", ppoll(&p, 1, &t, nullptr));
    t = {0, 1'000'000'000};
    SHOW("bad", ppoll(&p, 1, &t, nullptr));
    t = {-1, 0};
    SHOW("negative", ppoll(&p, 1, &t, nullptr));
    peer_sends(20);
    t = {2, 0};
    SHOW("data", ppoll(&p, 1, &t, nullptr));
    SHOW("data, no timeout", ppoll(&p, 1, nullptr, nullptr));
}

PARITY_CASE(poll, select_basics, Traffic::offloaded) {
    int fd = listening(), p[2];
    ok(pipe(p));
    fd_set r, w, e;
    auto clear = [&] {
        FD_ZERO(&r);
        FD_ZERO(&w);
        FD_ZERO(&e);
    };
    auto add = [](int number, fd_set& set) { FD_SET(number, &set); };
    timeval t{0, 0};
    clear(), add(fd, r);
    show_select("nothing", fd + 1, &r, nullptr, nullptr, &t, {fd});
    clear(), add(fd, r), add(fd, w), add(fd, e);
    t = {1, 0};
    show_select("all", fd + 1, &r, &w, &e, &t, {fd});
    clear(), add(fd, r), add(p[0], r);
    t = {0, 50'000};
    show_select("time-out", p[1] + 1, &r, nullptr, nullptr, &t, {fd, p[0]});
    say("time left %ld.%06ld", t.tv_sec, t.tv_usec);
    later(20);
    clear(), add(fd, r), add(p[0], r);
    t = {5, 0};
    show_select("data", p[1] + 1, &r, nullptr, nullptr, &t, {fd, p[0]});
    say("time left is less %d", t.tv_sec < 5);
    later_done();
    ok(write(p[1], "x", 1));
    clear(), add(fd, r), add(p[0], r), add(p[1], w);
    show_select("both", p[1] + 1, &r, &w, nullptr, nullptr, {fd, p[0], p[1]});
    clear(), add(p[0], r);
    show_select("nfds leaves the socket out", p[0] + 1, &r, nullptr, nullptr, &t, {fd, p[0]});
    clear(), add(fd, r);
    show_select("nfds excludes it", fd, &r, nullptr, nullptr, &(t = {0, 1000}), {fd});
    // The number is small because the kernel ignores those beyond the size its table happens to have.
    clear(), add(fd, r), add(40, r);
    show_select("closed number", 41, &r, nullptr, nullptr, &t, {fd});
    SHOW("negative nfds", select(-1, nullptr, nullptr, nullptr, &t));
    t = {0, 1000};
    SHOW("no sets", select(0, nullptr, nullptr, nullptr, &t));
    t = {-1, 0};
    clear(), add(fd, r);
    SHOW("negative time", select(fd + 1, &r, nullptr, nullptr, &t));
    timespec ts{0, 1'000'000};
    ok(recv(fd, g_buffer, 100, 0));
    clear(), add(fd, r);
    SHOW("pselect", pselect(fd + 1, &r, nullptr, nullptr, &ts, nullptr));
    say("time-out argument unchanged %d", ts.tv_nsec == 1'000'000);
    clear(), add(fd, r);
    peer_sends(20);
    ts = {2, 0};
    SHOW("pselect data", pselect(fd + 1, &r, nullptr, nullptr, &ts, nullptr));
}

PARITY_CASE(poll, many_sockets, Traffic::offloaded) {
    peer_opens();
    std::vector<pollfd> fds;
    for (int i = 0; i < 100; i++) fds.push_back({bound(kHere, kPort + i), POLLIN, 0});
    for (int i : {0, 7, 50, 99}) peer_sends(20 + i, 1, i, kHere, kPort + i);
    settle();
    SHOW("poll", poll(fds.data(), fds.size(), 1000));
    for (size_t i = 0; i < fds.size(); i++)
        if (fds[i].revents != 0) say("%zu: %x", i, static_cast<unsigned>(fds[i].revents));
    for (auto& p : fds)
        if (p.revents & POLLIN) show_recv("recv", p.fd, MSG_DONTWAIT);
    SHOW("poll", poll(fds.data(), fds.size(), 0));
}

}  // namespace parity
