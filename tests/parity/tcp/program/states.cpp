// SPDX-License-Identifier: BSD-2-Clause
// Every call in every state of a socket: generated combinations, one socket for each pair.
#include <sys/epoll.h>
#include <sys/sendfile.h>

#include "tests/parity/pair/tcp_harness.h"

namespace parity::tcp {
namespace {

enum class State {
    fresh,
    bound,
    listening,
    connecting,
    refused,  // with its error not yet taken
    established,
    with_data,      // received data waits
    close_wait,     // the peer has ended
    end_with_data,  // ... with data waiting
    fin_wait2,      // we have ended
    shut_read,
    shut_both,
    closed,  // both have ended
    reset,   // with its error not yet taken
    reset_taken,
    disconnected,  // connect(AF_UNSPEC)
};

// Called by both; the left side's socket in that state (nonblocking), and the right side's.
int reach(State s) {
    if (s == State::fresh || s == State::bound || s == State::listening || s == State::connecting ||
        s == State::refused) {
        if (!left()) return -1;
        int fd = stream(SOCK_NONBLOCK);
        set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
        sockaddr_in a = at(here(), port(1));
        if (s == State::bound || s == State::listening) ok(bind(fd, raw(a), sizeof a));
        if (s == State::listening) ok(listen(fd, 5));
        a = at(s == State::refused ? there() : far_silent(), port(2));
        if (s == State::refused || s == State::connecting) ok(connect(fd, raw(a), sizeof a));
        if (s == State::refused) await_events(fd, POLLERR);
        return fd;
    }
    int fd = connection();
    if (left()) nonblocking(fd);
    at_right([&] {
        if (s == State::with_data || s == State::end_with_data) put(fd, "waiting data");
        if (s == State::close_wait || s == State::end_with_data || s == State::closed) shutdown(fd, SHUT_WR);
        if (s == State::reset || s == State::reset_taken) {
            set_linger(fd, true, 0);
            close(fd);
        }
    });
    at_left([&] {
        if (s == State::with_data || s == State::end_with_data) await_bytes(fd, 12);
        if (s == State::close_wait || s == State::end_with_data || s == State::closed)
            await_events(fd, POLLRDHUP);
        if (s == State::fin_wait2 || s == State::closed) shutdown(fd, SHUT_WR);
        if (s == State::shut_read) shutdown(fd, SHUT_RD);
        if (s == State::shut_both) shutdown(fd, SHUT_RDWR);
        if (s == State::fin_wait2 || s == State::shut_both) await_state(fd, TCP_FIN_WAIT2);
        if (s == State::closed) await_state(fd, TCP_CLOSE);
        if (s == State::reset || s == State::reset_taken) await_events(fd, POLLERR);
        int error;
        socklen_t length = sizeof error;
        if (s == State::reset_taken) getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
        sockaddr unspec{};
        if (s == State::disconnected) ok(connect(fd, &unspec, sizeof unspec));
    });
    return fd;
}

struct Operation {
    const char* name;
    void (*run)(int fd, const char* name);
};

long ioctl_value(int fd, unsigned long request) {
    int value = -1;
    return ioctl(fd, request, &value) == 0 ? value : -1;
}

const Operation kOperations[] = {
    {"recv", [](int fd, const char* n) { show_read(n, fd, 100); }},
    {"recv nothing", [](int fd, const char* n) { show_read(n, fd, 0); }},
    {"peek", [](int fd, const char* n) { show_read(n, fd, 100, MSG_PEEK); }},
    {"recv oob", [](int fd, const char* n) { show_read(n, fd, 100, MSG_OOB); }},
    {"recv waitall", [](int fd, const char* n) { show_read(n, fd, 100, MSG_WAITALL); }},
    {"read",
     [](int fd, const char* n) {
         char c[100];
         SHOW(n, read(fd, c, sizeof c));
     }},
    {"send", [](int fd, const char* n) { SHOW(n, send(fd, "x", 1, MSG_NOSIGNAL)); }},
    {"send nothing", [](int fd, const char* n) { SHOW(n, send(fd, "", 0, MSG_NOSIGNAL)); }},
    {"write",
     [](int fd, const char* n) {
         count_sigpipe();
         SHOW(n, write(fd, "x", 1));
         say("sigpipes %d", sigpipes());
     }},
    {"send oob", [](int fd, const char* n) { SHOW(n, send(fd, "x", 1, MSG_OOB | MSG_NOSIGNAL)); }},
    {"sendto",
     [](int fd, const char* n) {
         sockaddr_in a = at(there(), port(7));
         SHOW(n, sendto(fd, "x", 1, MSG_NOSIGNAL, raw(a), sizeof a));
     }},
    {"send bad pointer",
     [](int fd, const char* n) { SHOW(n, send(fd, reinterpret_cast<void*>(8), 1, MSG_NOSIGNAL)); }},
    {"sendfile",
     [](int fd, const char* n) {
         count_sigpipe();
         int file = open("/proc/self/exe", O_RDONLY);
         SHOW(n, sendfile(fd, file, nullptr, 10));
         close(file);
     }},
    {"poll", [](int fd, const char* n) { show_events(n, fd); }},
    {"select", [](int fd, const char* n) { show_select(n, fd); }},
    {"epoll",
     [](int fd, const char* n) {
         int ep = epoll_create1(0);
         epoll_event e{EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI, {.fd = fd}};
         SHOW(n, epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
         e.events = 0;
         SHOW(n, epoll_wait(ep, &e, 1, 0));
         say("%s", events_text(static_cast<int>(e.events)).c_str());
         close(ep);
     }},
    {"shutdown rd",
     [](int fd, const char* n) {
         SHOW(n, shutdown(fd, SHUT_RD));
         show_events("then", fd);
     }},
    {"shutdown wr",
     [](int fd, const char* n) {
         SHOW(n, shutdown(fd, SHUT_WR));
         SHOW("then send", send(fd, "x", 1, MSG_NOSIGNAL));
     }},
    {"shutdown rdwr",
     [](int fd, const char* n) {
         SHOW(n, shutdown(fd, SHUT_RDWR));
         SHOW("then send", send(fd, "x", 1, MSG_NOSIGNAL));
     }},
    {"getsockname", [](int fd, const char* n) { show_name(n, fd); }},
    {"getpeername", [](int fd, const char* n) { show_peer(n, fd); }},
    {"error", [](int fd, const char* n) { show_error(n, fd); }},
    {"state", [](int fd, const char* n) { show_state(n, fd); }},
    {"bind",
     [](int fd, const char* n) {
         sockaddr_in a = at(here(), port(3));
         SHOW(n, bind(fd, raw(a), sizeof a));
     }},
    {"listen",
     [](int fd, const char* n) {
         SHOW(n, listen(fd, 3));
         show_state("then", fd);
     }},
    {"accept", [](int fd, const char* n) { SHOW(n, accept(fd, nullptr, nullptr)); }},
    {"connect",
     [](int fd, const char* n) {
         sockaddr_in a = at(far_silent(), port(2));
         SHOW(n, connect(fd, raw(a), sizeof a));
     }},
    {"disconnect",
     [](int fd, const char* n) {
         sockaddr unspec{};
         SHOW(n, connect(fd, &unspec, sizeof unspec));
         show_state("then", fd);
     }},
    {"FIONREAD", [](int fd, const char* n) { say("%s %ld", n, ioctl_value(fd, FIONREAD)); }},
    {"SIOCOUTQ", [](int fd, const char* n) { say("%s %ld", n, ioctl_value(fd, SIOCOUTQ)); }},
    {"SIOCOUTQNSD", [](int fd, const char* n) { say("%s %ld", n, ioctl_value(fd, SIOCOUTQNSD)); }},
    {"SIOCATMARK", [](int fd, const char* n) { say("%s %ld", n, ioctl_value(fd, SIOCATMARK)); }},
    {"nodelay", [](int fd, const char* n) { SHOW(n, set(fd, IPPROTO_TCP, TCP_NODELAY, 1)); }},
    {"cork", [](int fd, const char* n) { SHOW(n, set(fd, IPPROTO_TCP, TCP_CORK, 1)); }},
    {"maxseg", [](int fd, const char* n) { say("%s %d", n, get(fd, IPPROTO_TCP, TCP_MAXSEG)); }},
    {"keepalive", [](int fd, const char* n) { SHOW(n, set(fd, SOL_SOCKET, SO_KEEPALIVE, 1)); }},
    {"accepting", [](int fd, const char* n) { say("%s %d", n, get(fd, SOL_SOCKET, SO_ACCEPTCONN)); }},
};

void matrix(State s) {
    for (const Operation& operation : kOperations) {
        // What the kernel counts there is left over from the peer's window, and grows with it.
        if (s == State::disconnected && strncmp(operation.name, "SIOCOUTQ", 8) == 0) continue;
        int fd = reach(s);
        if (left()) operation.run(fd, operation.name);
        sync();
        // Without a trace for the next one.
        bool already_closed = !left() && (s == State::reset || s == State::reset_taken);
        if (fd >= 0 && !already_closed) {
            set_linger(fd, true, 0);
            close(fd);
        }
        sync();
    }
}

}  // namespace

// Some calls of the matrix move a connection to the kernel.
#define STATE_CASE(name, limit)                                       \
    TCP_KERNEL_PAIR_CASE(state, name, limit) { matrix(State::name); } \
    static_assert(true)

TCP_CASE(state, fresh) { matrix(State::fresh); }
TCP_CASE(state, bound) { matrix(State::bound); }
TCP_CASE(state, listening) { matrix(State::listening); }
TCP_CASE(state, connecting) {
    swap_sides();
    matrix(State::connecting);
}
TCP_CASE(state, refused) {
    swap_sides();
    matrix(State::refused);
}
STATE_CASE(established, 160);
STATE_CASE(with_data, 320);
STATE_CASE(close_wait, 290);
STATE_CASE(end_with_data, 310);
STATE_CASE(fin_wait2, 120);
STATE_CASE(shut_read, 160);
STATE_CASE(shut_both, 120);
STATE_CASE(closed, 2);
STATE_CASE(reset, 2);
STATE_CASE(reset_taken, 2);
STATE_CASE(disconnected, 110);

}  // namespace parity::tcp
