// SPDX-License-Identifier: BSD-2-Clause
// See peer.h.
#include "peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <vector>

#include "call.h"
#include "draw.h"
#include "stream.h"

namespace random_program {

void ask_without_waiting(const Asked& asked) {
    if (send(kMeeting, &asked, sizeof asked, MSG_NOSIGNAL) != sizeof asked) {
        say("the peer is gone");
        _exit(3);
    }
}
Told told() {
    Told t;
    pollfd p{kMeeting, POLLIN, 0};
    const long end = milliseconds() + 40'000;
    for (int r = 0; r <= 0;) {
        r = poll(&p, 1, 1000);
        if (milliseconds() > end) {
            say("the peer does not answer");
            _exit(3);
        }
    }
    if (recv(kMeeting, &t, sizeof t, 0) != sizeof t) {
        say("the peer is gone");
        _exit(3);
    }
    return t;
}

namespace {

struct Connection {
    int fd = -1;
    Stream to, from;
    uint64_t sent = 0, received = 0;
    bool datagrams = false, racing = false, end_after = false;
    long still_to_send = 0;
    Records records;
};

std::map<int, Connection> g_connections;
int g_listener = -1;

sockaddr_in at(const char* ip, int port) {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = htons(static_cast<uint16_t>(port));
    inet_pton(AF_INET, ip, &a.sin_addr);
    return a;
}
const sockaddr* raw(const sockaddr_in& a) { return reinterpret_cast<const sockaddr*>(&a); }

template <class... Arguments>
Told answer(long value, int error, const char* format, Arguments... arguments) {
    Told t{value, error, ""};
    snprintf(t.text, sizeof t.text, format, arguments...);
    return t;
}
Told done(long value = 0) { return {value, 0, ""}; }
Told failed(const char* what) { return answer(-1, errno, "%s: %s", what, strerrorname_np(errno)); }

bool readable(int fd, int msec) {
    pollfd p{fd, POLLIN, 0};
    return poll(&p, 1, msec) > 0;
}

Told await(const Connection& c, const Asked& w) {
    const long end = milliseconds() + 5000;
    for (;; usleep(100)) {
        int bytes = 0;
        ioctl(c.fd, FIONREAD, &bytes);
        pollfd p{c.fd, static_cast<short>(POLLIN | POLLRDHUP | w.b), 0};
        poll(&p, 1, 0);
        if ((w.a < 0 || bytes >= w.a) && (p.revents & w.b) == w.b)
            return answer(bytes, 0, "%s", events_text(static_cast<unsigned>(p.revents)).c_str());
        if (milliseconds() > end)
            return answer(-1, 0, "NEVER: %d bytes for %ld, %s for %s", bytes, w.a,
                          events_text(static_cast<unsigned>(p.revents)).c_str(),
                          events_text(static_cast<unsigned>(w.b)).c_str());
    }
}

// Up to `most` bytes; how it went.
Told read_stream(Connection& c, long most) {
    static uint8_t b[65536];
    long have = 0;
    while (have < most) {
        if (!readable(c.fd, 5000)) return answer(have, 0, "%ld bytes, then NOTHING", have);
        const long n = recv(c.fd, b, static_cast<size_t>(std::min<long>(sizeof b, most - have)), 0);
        if (n <= 0)
            return answer(have, 0, "%ld bytes, then %s", have, n == 0 ? "the end" : strerrorname_np(errno));
        const long wrong = c.from.wrong(b, n, c.received);
        if (wrong >= 0) return answer(have, 0, "WRONG bytes at %ld", static_cast<long>(c.received) + wrong);
        have += n;
        c.received += static_cast<uint64_t>(n);
    }
    return answer(have, 0, "%ld bytes", have);
}

void reset(Connection& c) {
    const linger l{1, 0};
    setsockopt(c.fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
}
void shut(Connection& c) {
    if (c.fd >= 0) close(c.fd);
    c.fd = -1;
}

Told begin(const Asked& w, int fd) {
    Connection& c = g_connections[w.id];
    shut(c);
    c = {};
    c.fd = fd;
    c.to.key = w.key;
    c.from.key = w.at;
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return done();
}

Told send_stream(Connection& c, long length) {
    static uint8_t b[65536];
    c.to.fill(b, length, c.sent);
    if (send(c.fd, b, static_cast<size_t>(length), MSG_NOSIGNAL) != length) return failed("peer's send");
    c.sent += static_cast<uint64_t>(length);
    return done();
}

// What is under way in races goes on.
void pump() {
    static uint8_t b[65536];
    for (auto& [id, c] : g_connections) {
        if (!c.racing || c.fd < 0) continue;
        for (long n; (n = recv(c.fd, b, sizeof b, MSG_DONTWAIT)) > 0;) c.records.add(b, n);
        if (c.still_to_send > 0) {
            const long length = std::min<long>(c.still_to_send, 1 + static_cast<long>(c.sent * 7 % 3000));
            c.to.fill(b, length, c.sent);
            const long n = send(c.fd, b, static_cast<size_t>(length), MSG_NOSIGNAL | MSG_DONTWAIT);
            if (n > 0) {
                c.sent += static_cast<uint64_t>(n);
                c.still_to_send -= n;
            }
        }
        if (c.still_to_send == 0 && c.end_after) {
            shutdown(c.fd, SHUT_WR);
            c.end_after = false;
        }
    }
}

Told race_over(Connection& c, long written) {
    const long end = milliseconds() + 8000;
    while ((c.still_to_send > 0 || static_cast<long>(c.records.total) < written) && milliseconds() < end) {
        pump();
        usleep(100);
    }
    usleep(1000);
    pump();  // more than was written?
    c.racing = false;
    if (!c.records.fault.empty()) return answer(-1, 0, "%s", c.records.fault.c_str());
    if (static_cast<long>(c.records.total) != written)
        return answer(-1, 0, "%ld bytes written, %ld came", written, static_cast<long>(c.records.total));
    if (c.still_to_send > 0) return answer(-1, 0, "%ld bytes could not be sent", c.still_to_send);
    return done();
}

Told crowd(const Asked& w) {
    std::vector<int> all;
    const timeval patience{8, 0};
    for (long i = 0; i < w.a; i++) {
        const int fd = socket(AF_INET, SOCK_STREAM, 0);
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
        all.push_back(fd);
        if (connect(fd, raw(at(kSubject[w.at], static_cast<int>(w.b))), sizeof(sockaddr_in)) != 0)
            return failed("crowd's connect");
        uint64_t word = static_cast<uint64_t>(i) * Stream::kStep;
        if (send(fd, &word, sizeof word, MSG_NOSIGNAL) != sizeof word) return failed("crowd's send");
    }
    long good = 0;
    const char* last = "";
    for (size_t i = 0; i < all.size(); i++) {
        uint64_t word = 0, rest;
        const long n = recv(all[i], &word, sizeof word, MSG_WAITALL);
        const long after = n == 8 ? recv(all[i], &rest, sizeof rest, 0) : -1;
        if (n == 8 && after == 0 && word == i * Stream::kStep)
            good++;
        else
            last = n < 0 || after < 0 ? strerrorname_np(errno) : "wrong bytes";
        close(all[i]);
    }
    return answer(good == w.a ? 0 : -1, 0, "%ld of %ld served %s", good, w.a, last);
}

Told send_datagrams(Connection& c, const Asked& w) {
    uint8_t b[1500];
    for (long i = 0; i < w.a; i++) {
        const long length = 1 + static_cast<long>(mix(w.key + static_cast<uint64_t>(i)) % 1000);
        b[0] = static_cast<uint8_t>(i);
        Stream{w.key + static_cast<uint64_t>(i)}.fill(b + 1, length - 1, 0);
        if (sendto(c.fd, b, static_cast<size_t>(length), 0, raw(at(kSubject[w.at], static_cast<int>(w.b))),
                   sizeof(sockaddr_in)) < 0)
            return failed("peer's datagrams");
        if (i % 8 == 7) usleep(300);
    }
    return done();
}

Told grant(const Asked& w) {
    Connection& c = g_connections[w.id];
    static uint8_t b[65536];
    switch (w.wish) {
        case Wish::connect: {
            const int fd = socket(AF_INET, SOCK_STREAM, 0);
            const timeval patience{8, 0};
            setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
            if (connect(fd, raw(at(kSubject[w.a], static_cast<int>(w.b))), sizeof(sockaddr_in)) != 0) {
                Told t = failed("peer's connect");
                close(fd);
                return t;
            }
            return begin(w, fd);
        }
        case Wish::accept: {
            if (!readable(g_listener, 5000)) return answer(-1, 0, "NOBODY connects");
            const int fd = accept(g_listener, nullptr, nullptr);
            return fd < 0 ? failed("peer's accept") : begin(w, fd);
        }
        case Wish::send:
            return send_stream(c, w.a);
        case Wish::await:
            return await(c, w);
        case Wish::read:
            return read_stream(c, w.a);
        case Wish::end:
            if (w.a == 0) return shutdown(c.fd, SHUT_WR) == 0 ? done() : failed("peer's shutdown");
            if (w.a == 2) reset(c);
            shut(c);
            return done();
        case Wish::finish: {
            Told t = read_stream(c, 1l << 40);
            shut(c);
            return t;
        }
        case Wish::options: {
            const int room = static_cast<int>(w.a);
            setsockopt(g_listener, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
            return done();
        }
        case Wish::race:
            c.racing = true;
            c.still_to_send = w.a;
            c.end_after = w.b != 0;
            c.records = {};
            return done();
        case Wish::race_over:
            return race_over(c, w.a);
        case Wish::crowd:
            return crowd(w);
        case Wish::open: {
            shut(c);
            c = {};
            c.datagrams = true;
            c.fd = socket(AF_INET, SOCK_DGRAM, 0);
            if (bind(c.fd, raw(at(kPeer[w.a], static_cast<int>(w.b))), sizeof(sockaddr_in)) != 0)
                return failed("peer's bind");
            return done();
        }
        case Wish::close:
            shut(c);
            return done();
        case Wish::send_to:
            Stream{w.key}.fill(b, w.a, 0);
            if (sendto(c.fd, b, static_cast<size_t>(w.a), 0, raw(at(kSubject[w.at], static_cast<int>(w.b))),
                       sizeof(sockaddr_in)) != w.a)
                return failed("peer's sendto");
            return done();
        case Wish::receive: {
            if (!readable(c.fd, 3000)) return answer(-1, 0, "NO datagram");
            sockaddr_in from{};
            socklen_t length = sizeof from;
            const long n = recvfrom(c.fd, b, sizeof b, 0, reinterpret_cast<sockaddr*>(&from), &length);
            if (n < 0) return failed("peer's recvfrom");
            return answer(n, 0, "%ld hash %08x from %s", n, hash_of(b, n),
                          address_text(&from, length).c_str());
        }
        case Wish::datagrams:
            return send_datagrams(c, w);
    }
    return done();
}

}  // namespace

int run_peer() {
    g_listener = socket(AF_INET, SOCK_STREAM, 0);
    int on = 1;
    setsockopt(g_listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(g_listener, raw(at("0.0.0.0", g_base)), sizeof(sockaddr_in)) != 0 ||
        listen(g_listener, 64) != 0) {
        say("cannot listen: %s", strerrorname_np(errno));
        return 3;
    }
    // Ready: the subject waits for the first answer.
    Told ready = done();
    (void)!send(kMeeting, &ready, sizeof ready, MSG_NOSIGNAL);
    for (;;) {
        pump();
        bool busy = false;
        for (auto& [id, c] : g_connections) busy = busy || c.racing;
        if (!readable(kMeeting, busy ? 0 : 1000)) {
            if (busy) usleep(50);
            continue;
        }
        Asked w;
        if (recv(kMeeting, &w, sizeof w, 0) != sizeof w) break;
        const Told t = grant(w);
        if (send(kMeeting, &t, sizeof t, MSG_NOSIGNAL) != sizeof t) break;
    }
    // How the subject's end ends what is left.
    for (auto& [id, c] : g_connections) {
        if (c.fd < 0 || c.datagrams) continue;
        const Told t = read_stream(c, 1l << 40);
        say("peer: at its end %d: %s", id, t.text);
    }
    return 0;
}

}  // namespace random_program
