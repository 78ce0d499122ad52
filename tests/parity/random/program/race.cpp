// SPDX-License-Identifier: BSD-2-Clause
// What an actor does in a race: the same descriptor is used by several at once, so no single result is
// foreseeable. What has to hold is checked afterwards: each byte once and in its place, everybody ends.
#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "call.h"
#include "draw.h"
#include "steps.h"

namespace random_program {
namespace {

constexpr long kLimit = 15'000;  // ms; what takes longer hangs

void fault(Result& r, const char* what, int error) {
    r.value = -1;
    r.error = error;
    if (r.text[0] == '\0') snprintf(r.text, sizeof r.text, " %s", what);
}

// Reads of the stream until all is read, or with `to_end` until the end.
void read_stream(const Call& call, SocketCounters& tally, Result& r, bool to_end) {
    Draw draw(static_cast<uint64_t>(call.b), 0);
    static thread_local uint8_t b[20000];
    const Stream stream{call.key};
    const long end = milliseconds() + kLimit;
    while (to_end || g_race->read < g_race->target) {
        if (milliseconds() > end) return fault(r, "not all comes", 0);
        const size_t room = static_cast<size_t>(draw.length(sizeof b));
        const unsigned manner = draw.below(6);
        int flags = to_end ? 0 : MSG_DONTWAIT;
        if (to_end && draw.one_in(3)) flags |= MSG_WAITALL;
        if (!to_end) {
            pollfd p{call.fd, POLLIN, 0};
            if (draw.one_in(2)) {
                poll(&p, 1, 10);
            } else {
                fd_set in;
                FD_ZERO(&in);
                FD_SET(call.fd, &in);
                timeval t{0, 10'000};
                select(call.fd + 1, &in, nullptr, nullptr, &t);
            }
        }
        iovec parts[2] = {{b, room / 2}, {b + room / 2, room - room / 2}};
        msghdr m{nullptr, 0, parts, 2, nullptr, 0, 0};
        if (manner == 0) {  // looks first
            const long n = recv(call.fd, b, room, MSG_PEEK | MSG_DONTWAIT);
            if (n >= 15 && !stream.has(b, n)) return fault(r, "peeked at what is not of the stream", 0);
        }
        const long n = manner < 3    ? recv(call.fd, b, room, flags)
                       : manner == 3 ? recvfrom(call.fd, b, room, flags, nullptr, nullptr)
                                     : recvmsg(call.fd, &m, flags);
        if (n > 0) {
            tally.add(stream, b, n, !to_end && call.d != 0);
            g_race->read += n;
        } else if (n == 0) {
            if (to_end) return;
            return fault(r, "the stream ends early", 0);
        } else if (errno != EINTR && errno != EAGAIN) {
            return fault(r, "recv", errno);
        } else if (errno == EAGAIN && to_end) {
            return fault(r, "a blocking recv answers EAGAIN", 0);
        }
    }
}

void read_datagrams(const Call& call, Result& r) {
    Draw draw(static_cast<uint64_t>(call.b), 0);
    const long end = milliseconds() + kLimit;
    while (g_race->read < g_race->target) {
        if (milliseconds() > end) return fault(r, "not all datagrams come", 0);
        pollfd p{call.fd, POLLIN, 0};
        if (draw.one_in(2)) poll(&p, 1, 10);
        uint8_t b[3][2000];
        mmsghdr several[3] = {};
        iovec one[3];
        for (int i = 0; i < 3; i++) {
            one[i] = {b[i], sizeof b[i]};
            several[i].msg_hdr = {nullptr, 0, &one[i], 1, nullptr, 0, 0};
        }
        int got = 1;
        if (draw.one_in(2)) {
            got = recvmmsg(call.fd, several, 3, MSG_DONTWAIT, nullptr);
        } else {
            const long n = recv(call.fd, b[0], sizeof b[0], MSG_DONTWAIT);
            if (n < 0) got = -1;
            several[0].msg_len = static_cast<unsigned>(n);
        }
        if (got < 0 && errno != EAGAIN && errno != EINTR) return fault(r, "recv", errno);
        for (int i = 0; i < got; i++) {
            const long n = several[i].msg_len;
            const unsigned serial = b[i][0];
            const Stream stream{call.key + serial};
            if (n < 1 || serial >= Race::kDatagrams || stream.wrong(b[i] + 1, n - 1, 0) >= 0)
                return fault(r, "a datagram that nobody sent", 0);
            if (g_race->seen[serial]++ != 0) return fault(r, "a datagram twice", 0);
            g_race->read++;
        }
    }
}

bool write_records(int fd, int writer, int how_many, uint64_t seed, Result& r) {
    Draw draw(seed, 1);
    uint64_t serial = 0, words[30];
    const long end = milliseconds() + kLimit;
    while (how_many-- > 0) {
        const unsigned n = 1 + draw.below(30);
        for (unsigned i = 0; i < n; i++) words[i] = Records::word(writer, serial + i);
        const size_t length = n * sizeof words[0];
        iovec parts[2] = {{words, 3}, {reinterpret_cast<uint8_t*>(words) + 3, length - 3}};
        long sent;
        do {
            const unsigned manner = draw.below(4);
            msghdr m{nullptr, 0, parts, 2, nullptr, 0, 0};
            sent = manner == 0   ? write(fd, words, length)
                   : manner == 1 ? send(fd, words, length, MSG_NOSIGNAL)
                   : manner == 2 ? writev(fd, parts, 2)
                                 : sendmsg(fd, &m, MSG_NOSIGNAL);
            // How much a socket takes before it is full is nobody's promise.
            pollfd p{fd, POLLOUT, 0};
            if (sent < 0 && errno == EAGAIN) poll(&p, 1, 10);
        } while (sent < 0 && (errno == EINTR || errno == EAGAIN) && milliseconds() < end);
        if (sent != static_cast<long>(length)) {
            fault(r, "a short send", sent < 0 ? errno : 0);
            return false;
        }
        g_race->written += sent;
        serial += n;
    }
    return true;
}

// Everything that looks and changes nothing.
void watch(const Call& call, Result& r) {
    Draw draw(static_cast<uint64_t>(call.b), 2);
    int set = epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{EPOLLIN | EPOLLOUT | (draw.one_in(2) ? EPOLLET : 0u), {.u64 = 7}};
    epoll_ctl(set, EPOLL_CTL_ADD, call.fd, &event);
    const long end = milliseconds() + kLimit;
    while (!g_race->stop) {
        if (milliseconds() > end) return fault(r, "the race has no end", 0);
        int value;
        socklen_t length = sizeof value;
        pollfd p{call.fd, POLLIN | POLLOUT, 0};
        switch (draw.below(8)) {
            case 0:
                poll(&p, 1, static_cast<int>(draw.below(3)));
                break;
            case 1:
                if (epoll_wait(set, &event, 1, static_cast<int>(draw.below(3))) < 0 && errno != EINTR)
                    return fault(r, "epoll_wait", errno);
                break;
            case 2:
                ioctl(call.fd, FIONREAD, &value);
                break;
            case 3: {
                tcp_info info;
                length = sizeof info;
                getsockopt(call.fd, IPPROTO_TCP, TCP_INFO, &info, &length);
                break;
            }
            case 4: {
                const int copy = dup(call.fd);
                if (copy < 0) return fault(r, "dup", errno);
                if (draw.one_in(2)) poll(&p, 1, 0);
                if (close(copy) != 0) return fault(r, "close", errno);
                break;
            }
            case 5:
                event = {EPOLLIN | (draw.one_in(2) ? EPOLLET : 0u) | (draw.one_in(2) ? EPOLLONESHOT : 0u),
                         {.u64 = 8}};
                if (epoll_ctl(set, EPOLL_CTL_MOD, call.fd, &event) != 0)
                    return fault(r, "EPOLL_CTL_MOD", errno);
                break;
            case 6:
                getsockopt(call.fd, SOL_SOCKET, SO_SNDBUF, &value, &length);
                if (fcntl(call.fd, F_GETFL) < 0) return fault(r, "F_GETFL", errno);
                break;
            default:
                usleep(draw.below(500));
                break;
        }
    }
    close(set);
}

// Children that end at once, write a word, or read a piece.
void fork_children(const Call& call, Result& r) {
    Draw draw(static_cast<uint64_t>(call.b), 3);
    for (long i = 0; i < call.a; i++) {
        const unsigned what = call.list[1] != 0 ? 0 : draw.below(call.c ? 2 : 3);
        const int writer = g_race->writers++, brief = (*g_brief_used)++;
        const pid_t child = fork();
        if (child < 0) return fault(r, "fork", errno);
        if (child == 0) {
            Result mine;
            if (what == 1 && !write_records(call.fd, writer, 3, draw.number(), mine)) _exit(9);
            if (what == 2) {
                uint8_t b[500];
                const long n = recv(call.fd, b, sizeof b, MSG_DONTWAIT);
                if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) _exit(8);
                if (n > 0) {
                    g_brief[brief].add(Stream{call.key}, b, n, true);
                    g_race->read += n;
                }
            }
            if (draw.one_in(2)) close(call.fd);
            _exit(0);
        }
        int status = -1;
        while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
        if (status != 0) {
            r.value = -1;
            snprintf(r.text, sizeof r.text, " a child that %s ended with %x",
                     what == 0   ? "did nothing"
                     : what == 1 ? "wrote"
                                 : "read",
                     static_cast<unsigned>(status));
            return;
        }
        usleep(draw.below(2000));
    }
}

// Connections of a crowd: each says eight bytes, wants them back, and the end.
void accept_crowd(const Call& call, Result& r) {
    Draw draw(static_cast<uint64_t>(call.b), 4);
    const long end = milliseconds() + kLimit;
    while (g_race->read < g_race->target) {
        if (milliseconds() > end) return fault(r, "not all are accepted", 0);
        pollfd p{call.fd, POLLIN, 0};
        poll(&p, 1, 10);
        const int fd = draw.one_in(2) ? accept(call.fd, nullptr, nullptr)
                                      : accept4(call.fd, nullptr, nullptr, SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EAGAIN || errno == EINTR) continue;
            return fault(r, "accept", errno);
        }
        g_race->read++;
        fcntl(fd, F_SETFL, 0);
        uint8_t b[8];
        long n;
        do n = recv(fd, b, sizeof b, MSG_WAITALL);
        while (n < 0 && errno == EINTR);
        if (n != 8) return fault(r, "an accepted connection has no data", n < 0 ? errno : 0);
        if (send(fd, b, 8, MSG_NOSIGNAL) != 8)
            return fault(r, "an accepted connection does not take data", errno);
        if (draw.one_in(2)) {
            const int copy = dup(fd);
            close(fd);
            close(copy);
        } else {
            close(fd);
        }
    }
}

}  // namespace

// fd; list[0] the role, list[1] of what (0 stream, 1 datagrams, 2 listener); key of the stream; count its
// number as a writer; a how many, b seed, c whether the stream ends, d whether what one call reads is one
// piece.
void take_part(const Call& call, Page& page, Result& r) {
    switch (static_cast<Role>(call.list[0])) {
        case Role::reader:
            if (call.list[1] == 0) return read_stream(call, page.tally, r, call.c != 0);
            if (call.list[1] == 1) return read_datagrams(call, r);
            return accept_crowd(call, r);
        case Role::writer:
            write_records(call.fd, call.count, static_cast<int>(call.a), static_cast<uint64_t>(call.b), r);
            return;
        case Role::watcher:
            return watch(call, r);
        case Role::forker:
            return fork_children(call, r);
    }
}

}  // namespace random_program
