// SPDX-License-Identifier: BSD-2-Clause
// Who may have which address and port, before, during and after connections.
#include "tests/parity/pair/tcp_harness.h"

namespace parity::tcp {
namespace {

long bind_to(int fd, const char* address, int number) {
    sockaddr_in a = at(address, number);
    return bind(fd, raw(a), sizeof a);
}

const char* outcome(long result) { return result >= 0 ? "ok" : strerrorname_np(errno); }

// Every combination of two sockets on one port: their addresses, their options, and whether the first
// listens.
void rules(bool first_listens) {
    const char* addresses[] = {"0.0.0.0", kHere, kHereSecond, "127.0.0.1"};
    for (const char* first : addresses)
        for (const char* second : addresses) {
            std::string line;
            for (int options = 0; options < 16; options++) {
                int a = stream(), b = stream();
                set(a, SOL_SOCKET, SO_REUSEADDR, options & 1);
                set(b, SOL_SOCKET, SO_REUSEADDR, options >> 1 & 1);
                set(a, SOL_SOCKET, SO_REUSEPORT, options >> 2 & 1);
                set(b, SOL_SOCKET, SO_REUSEPORT, options >> 3 & 1);
                long r = bind_to(a, first, port());
                if (r == 0 && first_listens) r = listen(a, 1);
                if (r != 0) say("the first fails: %s", strerrorname_np(errno));
                std::string result = outcome(bind_to(b, second, port()));
                if (result == "ok") result += std::string("/") + outcome(listen(b, 1));
                line += " " + result;
                close(a);
                close(b);
            }
            say("%s %s:%s", first, second, line.c_str());
        }
}

}  // namespace

TCP_CASE(bind, rules_bound) {
    at_server([&] { rules(false); });
}
TCP_CASE(bind, rules_listening) {
    at_server([&] { rules(true); });
}

TCP_CASE(bind, wrong_addresses) {
    at_server([&] {
        int fd = stream();
        SHOW("not ours", bind_to(fd, kThere, port()));
        SHOW("multicast", bind_to(stream(), "224.1.1.1", port()));
        SHOW("broadcast", bind_to(fd, "198.18.1.255", port()));
        SHOW("limited broadcast", bind_to(fd, "255.255.255.255", port()));
        sockaddr_in a = at(here(), port());
        SHOW("short", bind(fd, raw(a), 4));
        SHOW("shorter by one", bind(fd, raw(a), sizeof a - 1));
        SHOW("long", bind(fd, raw(a), sizeof a + 200));
        SHOW("bad pointer", bind(fd, reinterpret_cast<sockaddr*>(8), sizeof a));
        a.sin_family = AF_INET6;
        SHOW("family inet6", bind(fd, raw(a), sizeof a));
        a.sin_family = AF_UNIX;
        SHOW("family unix", bind(fd, raw(a), sizeof a));
        a.sin_family = AF_UNSPEC;
        SHOW("family unspec with address", bind(fd, raw(a), sizeof a));
        show_name("still unbound", fd);
        a = at("0.0.0.0", port());
        a.sin_family = AF_UNSPEC;
        SHOW("family unspec any", bind(fd, raw(a), sizeof a));
        show_name("bound", fd);
        SHOW("again", bind_to(fd, here(), port(1)));
        int free = stream();
        set(free, SOL_IP, IP_FREEBIND, 1);
        SHOW("freebind", bind_to(free, "198.18.1.77", port(2)));
        show_name("freebind", free);
        SHOW("low port", bind_to(stream(), here(), 99));
    });
}

TCP_CASE(bind, busy_port) {
    at_server([&] {
        int l = listening();
        SHOW("listening", bind_to(stream(), here(), port()));
        SHOW("any", bind_to(stream(), "0.0.0.0", port()));
        SHOW("other address", bind_to(stream(), kHereSecond, port()));
        close(l);
        SHOW("after close", bind_to(stream(), here(), port()));
    });
}

// A connection without its listener keeps the port busy, unless both sides said SO_REUSEADDR.
TCP_CASE(bind, port_of_a_connection) {
    for (int reuse : {0, 1}) {
        int fd = -1;
        if (server()) {
            int l = stream();
            set(l, SOL_SOCKET, SO_REUSEADDR, reuse);
            SHOW("bind", bind_to(l, here(), port(reuse)));
            listen(l, 3);
            sync();
            fd = accepted(l);
            close(l);
            for (int second : {0, 1}) {
                int other = stream();
                set(other, SOL_SOCKET, SO_REUSEADDR, second);
                SHOW("bind", bind_to(other, here(), port(reuse)));
                SHOW("listen", listen(other, 1));
                close(other);
            }
            set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
            int other = stream();
            set(other, SOL_SOCKET, SO_REUSEADDR, 1);
            SHOW("bind later", bind_to(other, here(), port(reuse)));
            SHOW("listen later", listen(other, 1));
        } else {
            sync();
            fd = connecting(there(), port(reuse));
        }
        sync();
    }
}

// The side that closes first holds the port for a minute; only SO_REUSEADDR gets it back.
TCP_PAIR_CASE(bind, time_wait) {
    int offset = left() == server() ? 0 : 5;
    for (int reuse : {0, 1}) {
        int fd = -1;
        if (server()) {
            int l = stream();
            set(l, SOL_SOCKET, SO_REUSEADDR, reuse);
            SHOW("bind", bind_to(l, here(), port(offset + reuse)));
            listen(l, 3);
            sync();
            fd = accepted(l);
            close(l);
        } else {
            sync();
            fd = stream();
            set(fd, SOL_SOCKET, SO_REUSEADDR, reuse);
            SHOW("bind", bind_to(fd, here(), port(offset + 10 + reuse)));
            sockaddr_in a = at(there(), port(offset + reuse));
            SHOW("connect", connect(fd, raw(a), sizeof a));
        }
        sync();
        at_left([&] { shutdown(fd, SHUT_WR); });
        at_right([&] {
            show_read("end", fd, 10);
            close(fd);
        });
        at_left([&] {
            show_read("end", fd, 10);
            show_state("closed", fd);
            close(fd);
        });
        int number = port(offset + (server() ? 0 : 10) + reuse);
        for (int second : {0, 1}) {
            int other = stream();
            set(other, SOL_SOCKET, SO_REUSEADDR, second);
            SHOW("bind", bind_to(other, here(), number));
            SHOW("listen", listen(other, 1));
            close(other);
        }
        sync();
    }
}

// A reset leaves nothing behind.
TCP_PAIR_CASE(bind, after_reset) {
    int fd = connection();
    at_left([&] {
        set_linger(fd, true, 0);
        close(fd);
    });
    at_right([&] {
        await_events(fd, POLLERR);
        close(fd);
    });
    at_server([&] {
        int other = stream();
        SHOW("bind", bind_to(other, here(), port(kConnectionPort)));
        SHOW("listen", listen(other, 1));
        close(other);
    });
}

// The old connection's TIME_WAIT is at the server: a new one on the same four numbers is let in.
TCP_CASE(bind, same_connection_again) {
    int listener = -1;
    at_server([&] { listener = listening(); });
    for (int round = 0; round < 3; round++) {
        int fd = -1;
        at_client([&] {
            fd = stream();
            set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
            SHOW("bind", bind_to(fd, here(), port(3)));
            sockaddr_in a = at(there(), port());
            SHOW("connect", connect(fd, raw(a), sizeof a));
        });
        at_server([&] {
            fd = accepted(listener);
            show_peer("accepted", fd);
            put(fd, "bye");
            shutdown(fd, SHUT_WR);
        });
        at_client([&] {
            show_rest("recv", fd);
            close(fd);
        });
        at_server([&] {
            show_read("end", fd, 10);
            close(fd);
        });
    }
}

// The other way round the client itself is in TIME_WAIT.
TCP_CASE(bind, same_connection_after_own_close) {
    int listener = -1, fd = -1;
    at_server([&] { listener = listening(); });
    at_client([&] {
        fd = stream();
        SHOW("bind", bind_to(fd, here(), port(3)));
        sockaddr_in a = at(there(), port());
        SHOW("connect", connect(fd, raw(a), sizeof a));
        shutdown(fd, SHUT_WR);
    });
    at_server([&] {
        fd = accepted(listener);
        show_read("end", fd, 10);
        close(fd);
    });
    at_client([&] {
        show_read("end", fd, 10);
        close(fd);
        fd = stream();
        SHOW("without option", bind_to(fd, here(), port(3)));
        set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
        SHOW("with", bind_to(fd, here(), port(3)));
        sockaddr_in a = at(there(), port());
        SHOW("same connection", connect(fd, raw(a), sizeof a));
        a = at(kHereSecond, port());
        SHOW("another one", connect(fd, raw(a), sizeof a));
    });
}

TCP_KERNEL_CASE(bind, then_connect, 19) {
    int listener = -1, fd = -1;
    at_server([&] { listener = listening(0, "0.0.0.0"); });
    struct {
        const char* local;
        int number;
        const char* remote;
    } const attempts[] = {{kThere, 1, kHere},       {"0.0.0.0", 2, kHere},      {kThereSecond, 3, kHere},
                          {kThere, 4, kHereLink2},  {kThereLink2, 5, kHere},    {"0.0.0.0", 6, kHereLink2},
                          {kThereSecond, 0, kHere}, {"0.0.0.0", 0, kHereSecond}};
    for (const auto& x : attempts) {
        at_client([&] {
            fd = stream();
            SHOW("bind", bind_to(fd, x.local, x.number == 0 ? 0 : port(x.number)));
            show_name("bound", fd);
            sockaddr_in a = at(x.remote, port());
            SHOW("connect", connect(fd, raw(a), sizeof a));
            show_name("connected", fd);
            SHOW("bind again", bind_to(fd, x.local, port(9)));
            put(fd, "hello");
        });
        at_server([&] {
            fd = accepted(listener);
            show_name("accepted", fd);
            show_peer("accepted", fd);
            show_read("recv", fd, 10);
        });
    }
    at_client([&] {
        fd = stream();
        SHOW("bind to loopback", bind_to(fd, "127.0.0.1", 0));
        sockaddr_in a = at(there(), port());
        SHOW("connect to the wire", connect(fd, raw(a), sizeof a));
    });
}

TCP_CASE(bind, one_port_many_peers) {
    int l[3] = {-1, -1, -1};
    at_server([&] {
        for (int i = 0; i < 3; i++) l[i] = listening(i);
    });
    int fds[4];
    at_client([&] {
        for (int i = 0; i < 4; i++) {
            fds[i] = stream();
            set(fds[i], SOL_SOCKET, SO_REUSEADDR, 1);
            SHOW("bind", bind_to(fds[i], here(), port(10)));
        }
        for (int i = 0; i < 4; i++) {
            sockaddr_in a = at(there(), port(i % 3));
            SHOW("connect", connect(fds[i], raw(a), sizeof a));
            if (i < 3) put(fds[i], std::to_string(i).c_str());
        }
        show_name("the fourth", fds[3]);
        show_state("the fourth", fds[3]);
    });
    at_server([&] {
        for (int fd : l) {
            int s = accepted(fd);
            show_peer("accepted", s);
            show_read("recv", s, 10);
        }
    });
}

TCP_CASE(bind, late_port) {
    int listener = -1, fd = -1;
    at_server([&] { listener = listening(); });
    at_client([&] {
        fd = stream();
        SHOW("option", set(fd, SOL_IP, IP_BIND_ADDRESS_NO_PORT, 1));
        say("option %d", get(fd, SOL_IP, IP_BIND_ADDRESS_NO_PORT));
        SHOW("bind", bind_to(fd, kThereSecond, 0));
        show_name("no port yet", fd);
        sockaddr_in a = at(there(), port());
        SHOW("connect", connect(fd, raw(a), sizeof a));
        show_name("connected", fd);
    });
    at_server([&] { show_peer("accepted", accepted(listener)); });
}

TCP_CASE(bind, port_range_of_a_socket) {
    int listener = -1;
    at_server([&] { listener = listening(); });
    at_client([&] {
        constexpr int kLocalPortRange = 51;  // IP_LOCAL_PORT_RANGE
        // A port that nobody has: earlier cases have left sockets with some.
        const int finder = stream();
        sockaddr_in free = at(here(), 0);
        ok(bind(finder, raw(free), sizeof free));
        const auto low = static_cast<unsigned>(own_port(finder));
        close(finder);
        for (int i = 0; i < 2; i++) {
            int fd = stream();
            unsigned range = low << 16 | low;
            SHOW("range", setsockopt(fd, SOL_IP, kLocalPortRange, &range, sizeof range));
            sockaddr_in a = at(there(), port());
            SHOW("connect", connect(fd, raw(a), sizeof a));
            show_name("connected", fd);
        }
    });
    at_server([&] { show_peer("accepted", accepted(listener)); });
}

TCP_CASE(bind, ephemeral_ports) {
    constexpr int kMany = 30;
    int listener = -1;
    at_server([&] { listener = listening(); });
    bool seen[65536] = {};
    bool distinct = true, in_range = true, agreed = true;
    int fds[kMany];
    for (int& fd : fds) {
        int number = 0;
        at_client([&] {
            fd = connecting(there(), port());
            number = own_port(fd);
            distinct = distinct && !seen[number];
            seen[number] = true;
            in_range = in_range && number >= 32768 && number <= 60999;
        });
        if (server()) {
            sockaddr_in a{};
            socklen_t length = sizeof a;
            fd = accept(listener, raw(a), &length);
            agreed = agreed && exchange(0) == ntohs(a.sin_port);
        } else {
            exchange(number);
        }
    }
    say("distinct %d in range %d agreed %d", distinct, in_range, agreed);
    // Bound by the kernel's choice: nobody else gets it.
    int a = stream(), b = stream();
    SHOW("bind", bind_to(a, here(), 0));
    show_name("bound", a);
    SHOW("the same", bind_to(b, here(), own_port(a)));
}

}  // namespace parity::tcp
