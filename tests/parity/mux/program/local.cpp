// SPDX-License-Identifier: BSD-2-Clause
// Descriptors of the kernel: alone, and in the company of offloaded sockets, where a call goes through the
// library.
#include <sys/un.h>

#include "mux.h"

namespace parity::mux {
namespace {

// A descriptor to watch and what can happen to it. Empty functions: cannot happen.
struct Subject {
    const char* name;
    int fd = -1, other = -1;  // watched; the end that things are done to
    std::function<void()> fill, drain, hang_up, crowd, relieve;
    Subject(const char* n, int watched, int end) : name(n), fd(watched), other(end) {}
    Subject(Subject&& s) noexcept : Subject(s.name, s.fd, s.other) {
        s.fd = s.other = -1;
        fill = std::move(s.fill);
        drain = std::move(s.drain);
        hang_up = std::move(s.hang_up);
        crowd = std::move(s.crowd);
        relieve = std::move(s.relieve);
    }
    ~Subject() {
        if (fd >= 0) close(fd);
        if (other >= 0) close(other);
    }
};

void read_all(int fd) {
    char block[65536];
    nonblocking(fd);
    while (read(fd, block, sizeof block) > 0) {
    }
    nonblocking(fd, false);
}
void write_all(int fd) {
    char block[4096] = {};
    nonblocking(fd);
    while (write(fd, block, sizeof block) > 0) {
    }
    nonblocking(fd, false);
}
void give(int fd) { ok(write(fd, "x", 1)); }

// Things are done through numbers that the scenario's Subject holds; a closed end is no longer closed by it.
void stream_like(Subject& s, bool both_ways) {
    int fd = s.fd, other = s.other;
    s.fill = [other] { give(other); };
    s.drain = [fd] { read_all(fd); };
    s.hang_up = [&s] {
        close(s.other);
        s.other = -1;
    };
    if (both_ways) {
        s.crowd = [fd] { write_all(fd); };
        s.relieve = [fd, other] {
            for (int i = 0; i < 50; i++) {
                read_all(other);
                pollfd p{fd, POLLOUT, 0};
                if (poll(&p, 1, 1) == 1) return;
            }
        };
    }
}

enum Kind {
    kPipe,
    kEventfd,
    kTimerfd,
    kSignalfd,
    kUnixStream,
    kUnixDatagram,
    kLoopbackTcp,
    kLoopbackUdp,
    kLoopbackListener,
    kKinds
};
const char* const kNames[kKinds] = {"pipe",         "eventfd",      "timerfd",
                                    "signalfd",     "unix stream",  "unix datagram",
                                    "loopback TCP", "loopback UDP", "loopback listener"};

std::unique_ptr<Subject> make(Kind kind) {
    int two[2] = {-1, -1};
    switch (kind) {
        case kPipe:
            ok(pipe(two));
            break;
        case kUnixStream:
            ok(socketpair(AF_UNIX, SOCK_STREAM, 0, two));
            break;
        case kUnixDatagram:
            ok(socketpair(AF_UNIX, SOCK_DGRAM, 0, two));
            break;
        case kLoopbackTcp:
            loopback_pair(two[0], two[1]);
            break;
        case kLoopbackUdp:
            two[0] = bound("127.0.0.1", port(15));
            two[1] = connected("127.0.0.1", port(15));
            break;
        case kEventfd:
            two[0] = eventfd(0, 0);
            break;
        case kTimerfd:
            two[0] = timerfd_create(CLOCK_MONOTONIC, 0);
            break;
        case kSignalfd: {
            sigset_t set;
            sigemptyset(&set);
            sigaddset(&set, SIGUSR2);
            pthread_sigmask(SIG_BLOCK, &set, nullptr);
            two[0] = signalfd(-1, &set, 0);
            break;
        }
        case kLoopbackListener:
            two[0] = listening(14, "127.0.0.1");
            break;
        case kKinds:
            break;
    }
    auto made = std::make_unique<Subject>(kNames[kind], two[0], two[1]);
    Subject& s = *made;
    int fd = s.fd;
    switch (kind) {
        case kPipe:
            stream_like(s, false);
            break;
        case kUnixStream:
        case kLoopbackTcp:
            stream_like(s, true);
            break;
        case kUnixDatagram:
        case kLoopbackUdp:
            stream_like(s, false);
            s.hang_up = nullptr;
            break;
        case kEventfd:
            s.fill = [fd] { eventfd_write(fd, 1); };
            s.drain = [fd] { read_all(fd); };
            s.crowd = [fd] { eventfd_write(fd, 0xfffffffffffffffe); };
            s.relieve = [fd] { read_all(fd); };
            break;
        case kTimerfd:
            s.fill = [fd] {
                itimerspec t{{0, 0}, {0, 1000}};
                timerfd_settime(fd, 0, &t, nullptr);
                usleep(300);
            };
            s.drain = [fd] { read_all(fd); };
            break;
        case kSignalfd:
            s.fill = [] { kill(getpid(), SIGUSR2); };
            s.drain = [fd] { read_all(fd); };
            break;
        case kLoopbackListener:
            s.fill = [&s] { s.other = connecting("127.0.0.1", port(14)); };
            s.drain = [&s] {
                close(accepted(s.fd));
                close(s.other);
                s.other = -1;
            };
            break;
        case kKinds:
            break;
    }
    return made;
}

void scenarios(How how, Kind kind, const Company* friends) {
    const char* suffix = friends != nullptr ? " in company" : "";
    auto watch = [&](int fd, int events) {
        auto w = std::make_unique<Watch>(how);
        w->add(fd, events);
        if (friends != nullptr) friends->join(*w);
        return w;
    };
    {
        scenario("%s: %s: data before%s", name_of(how), kNames[kind], suffix);
        auto s = make(kind);
        auto w = watch(s->fd, POLLIN);
        w->show("idle");
        s->fill();
        w->show("data", kLong);
        w->show("again");
        s->drain();
        w->show("drained");
        s->fill();
        w->show("more", how == How::one_shot ? 0 : kLong);
        s->drain();
        w->show("drained", 100 * kUsec);
        w->show("drained", kMsec);
    }
    {
        scenario("%s: %s: data during%s", name_of(how), kNames[kind], suffix);
        auto s = make(kind);
        auto w = watch(s->fd, POLLIN);
        std::thread other = soon([&] { s->fill(); });
        w->show("wakes", kForEver);
        other.join();
        s->drain();
        w->show("drained");
    }
    if (make(kind)->hang_up) {
        scenario("%s: %s: hang-up%s", name_of(how), kNames[kind], suffix);
        auto s = make(kind);
        auto w = watch(s->fd, POLLIN | POLLRDHUP), all = watch(s->fd, POLLIN | POLLOUT | POLLPRI | POLLRDHUP);
        std::thread other = soon([&] { s->hang_up(); });
        if (kind == kLoopbackTcp) {
            // The kernel's FIN makes the socket readable a moment before it is the end; who looks all the
            // time sees that.
            say("wakes: %d", w->wait(kForEver));
            other.join();
            await_events(s->fd, POLLRDHUP);
        } else {
            w->show("wakes", kForEver);
            other.join();
            w->show("again");
        }
        all->show("everything");
    }
    if (make(kind)->crowd) {
        scenario("%s: %s: full%s", name_of(how), kNames[kind], suffix);
        auto s = make(kind);
        auto w = watch(s->fd, POLLOUT), both = watch(s->fd, POLLIN | POLLOUT);
        w->show("empty");
        both->show("empty");
        s->crowd();
        w->show("full");
        s->relieve();
        w->show("room", how == How::one_shot ? 0 : kLong);
        w->show("again");
        both->show("both");
    }
}

void group(Kind kind) {
    auto friends = company();
    if (server())
        for (How how : kHows)
            for (const Company* c :
                 {static_cast<const Company*>(nullptr), static_cast<const Company*>(friends.get())})
                scenarios(how, kind, c);
    sync();
}

}  // namespace

TCP_CASE(local, pipe) { group(kPipe); }
TCP_CASE(local, eventfd) { group(kEventfd); }
TCP_CASE(local, timerfd) { group(kTimerfd); }
TCP_CASE(local, signalfd) { group(kSignalfd); }
TCP_CASE(local, unix_stream) { group(kUnixStream); }
TCP_CASE(local, unix_datagram) { group(kUnixDatagram); }
TCP_KERNEL_CASE(local, loopback_tcp, 15979) { group(kLoopbackTcp); }
TCP_KERNEL_CASE(local, loopback_udp, 274) { group(kLoopbackUdp); }
TCP_KERNEL_CASE(local, loopback_listener, 1624) { group(kLoopbackListener); }

}  // namespace parity::mux
