// SPDX-License-Identifier: BSD-2-Clause
// Descriptors of UDP sockets through every call that copies, passes, reopens or reads them in an unusual way.
#include <aio.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

#include <initializer_list>

#include "preload_loopback.h"

using namespace loopback;

namespace {

void receive(const char* what, int fd) {
    char buf[64] = {};
    if (!readable(fd)) {
        printf("%s: nothing came\n", what);
        return;
    }
    long n = recv(fd, buf, sizeof buf - 1, MSG_DONTWAIT);
    show(what, n);
    printf("  '%s'\n", buf);
}

void copies() {
    int p[2];
    udp_pair(p);
    int d = dup(p[0]);
    show("dup", d);
    show("send", send(p[1], "to the copy", 11, 0));
    receive("recv on copy", d);
    show("close original", close(p[0]));
    show("send", send(p[1], "after close", 11, 0));
    receive("recv on copy", d);
    int f = fcntl(d, F_DUPFD_CLOEXEC, 40);
    show("F_DUPFD_CLOEXEC", f);
    show("F_GETFD", fcntl(f, F_GETFD));
    show("dup2", dup2(f, 50));
    show("dup2 same", dup2(50, 50));
    show("dup3", dup3(50, 51, O_CLOEXEC));
    show("dup3 same", dup3(50, 50, 0));
    show("dup2 from closed", dup2(900, 50));
    show("send", send(p[1], "x", 1, 0));
    receive("recv on 51", 51);
    int file = open("/dev/null", O_RDWR);
    show("dup2 file over socket", dup2(file, 51));
    char c;
    show("read /dev/null", read(51, &c, 1));
    show("recv there", recv(51, &c, 1, 0));
    show("dup2 socket over file", dup2(50, file));
    show("send", send(p[1], "y", 1, 0));
    receive("recv", file);
    for (int fd : {d, f, 50, 51, file, p[1]}) show("close", close(fd));
    show("close again", close(50));
}

void zero_and_vectors() {
    int p[2];
    udp_pair(p);
    char a[4], b[8] = {};
    show("write of nothing", write(p[0], "", 0));
    show("send", send(p[0], "12345678", 8, 0));
    show("ready", readable(p[1]));
    show("read of nothing", read(p[1], a, 0));
    show("recv of the empty one", recv(p[1], a, sizeof a, 0));
    iovec v[2] = {{a, 4}, {b, 7}}, none[1] = {{a, 0}};
    show("readv of nothing", readv(p[1], none, 1));
    volatile int minus_one = -1;  // hidden from the compiler, which would warn
    show("readv bad count", readv(p[1], v, minus_one));
    show("readv count 0", readv(p[1], v, 0));
    show("readv", readv(p[1], v, 2));
    printf("  %.4s %s\n", a, b);
    show("writev of nothing", writev(p[0], none, 1));
    show("writev", writev(p[0], v, 2));
    show("preadv2 at 0", preadv2(p[1], v, 2, 0, 0));
    show("preadv2 bad flag", preadv2(p[1], v, 2, -1, 0x4000));
    show("ready", readable(p[1]));
    show("preadv2", preadv2(p[1], v, 2, -1, 0));
    show("preadv2 nowait", preadv2(p[1], v, 2, -1, RWF_NOWAIT));
    show("pwritev2", pwritev2(p[0], v, 2, -1, 0));
    show("pread", pread(p[1], a, 4, 0));
    show("ready", readable(p[1]));
    show("recv peek", recv(p[1], a, 4, MSG_PEEK));
    show("FIONREAD", [&] {
        int n = 0;
        ioctl(p[1], FIONREAD, &n);
        return n;
    }());
    show("recv trunc", recv(p[1], a, 4, MSG_TRUNC));
    show("recv empty", recv(p[1], a, 4, MSG_DONTWAIT));
    close(p[0]);
    close(p[1]);
}

void passing() {
    int u[2], p[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, u);
    udp_pair(p);
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    char byte = 'x';
    iovec v{&byte, 1};
    msghdr m{};
    m.msg_iov = &v;
    m.msg_iovlen = 1;
    m.msg_control = control;
    m.msg_controllen = sizeof control;
    cmsghdr* c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &p[0], sizeof(int));
    show("sendmsg with a socket", sendmsg(u[0], &m, 0));
    close(p[0]);
    m.msg_controllen = sizeof control;
    show("recvmsg with a socket", recvmsg(u[1], &m, 0));
    int fd = -1;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
    show("number", fd);
    send(p[1], "through", 7, 0);
    receive("recv on passed", fd);
    for (int f : {fd, p[1], u[0], u[1]}) close(f);
}

void streams_and_files() {
    int p[2];
    udp_pair(p);
    FILE* out = fdopen(p[0], "r+");
    fputs("from stdio", out);
    fflush(out);
    receive("stdio to socket", p[1]);
    send(p[1], "line\n", 5, 0);
    char line[16] = {};
    show("fgets", fgets(line, sizeof line, out) != nullptr);
    printf("  %s", line);
    show("fclose", fclose(out));
    show("recv on closed", recv(p[0], line, 1, 0));
    int again = open("/dev/zero", O_RDONLY);
    show("number reused", again == p[0]);
    show("read zero", read(again, line, 4));
    close(again);
    close(p[1]);

    udp_pair(p);
    int file = memfd_create("source", 0);
    (void)!write(file, "file content", 12);
    off_t at = 5;
    show("sendfile", sendfile(p[0], file, &at, 7));
    receive("sendfile to socket", p[1]);
    int q[2];
    show("pipe", pipe(q));
    (void)!write(q[1], "piped", 5);
    show("splice to socket", splice(q[0], nullptr, p[0], nullptr, 5, 0));
    receive("spliced", p[1]);
    char buf[16] = {};
    aiocb cb{};
    cb.aio_fildes = p[1];
    cb.aio_buf = buf;
    cb.aio_nbytes = sizeof buf;
    send(p[0], "async", 5, 0);
    show("aio_read", aio_read(&cb));
    const aiocb* list[1] = {&cb};
    aio_suspend(list, 1, nullptr);
    show("aio_return", aio_return(&cb));
    printf("  %s\n", buf);
    for (int f : {p[0], p[1], q[0], q[1], file}) close(f);
}

void waiting() {
    int p[2];
    udp_pair(p);
    fd_set r;
    FD_ZERO(&r);
    FD_SET(p[1], &r);
    timeval tv{0, 3000};
    show("select timeout", select(p[1] + 1, &r, nullptr, nullptr, &tv));
    printf("  remaining %ld %ld\n", tv.tv_sec, tv.tv_usec);
    tv = {-1, 0};
    show("select bad time", select(p[1] + 1, &r, nullptr, nullptr, &tv));
    send(p[0], "x", 1, 0);
    FD_SET(p[1], &r);
    tv = {5, 1500000};
    show("select", select(p[1] + 1, &r, nullptr, nullptr, &tv));
    show("  isset", FD_ISSET(p[1], &r));
    show("  some time left", tv.tv_sec >= 5);
    FD_ZERO(&r);
    FD_SET(30, &r);
    show("select closed", select(31, &r, nullptr, nullptr, &tv));
    pollfd f[2] = {{p[1], POLLIN, 0}, {-1, POLLIN, 0}};
    timespec bad{0, -1}, soon{0, 1000};
    show("ppoll bad time", ppoll(f, 2, &bad, nullptr));
    show("ppoll", ppoll(f, 2, &soon, nullptr));
    show("  revents", f[0].revents & POLLIN);
    f[0].fd = 900;
    show("poll closed", poll(f, 1, 0));
    show("  revents", f[0].revents);
    int e = epoll_create1(EPOLL_CLOEXEC);
    epoll_event ev{EPOLLIN, {.u64 = 77}};
    show("epoll_ctl add", epoll_ctl(e, EPOLL_CTL_ADD, p[1], &ev));
    show("epoll_ctl add again", epoll_ctl(e, EPOLL_CTL_ADD, p[1], &ev));
    show("epoll_ctl closed", epoll_ctl(e, EPOLL_CTL_ADD, 900, &ev));
    ev = {};
    show("epoll_wait", epoll_wait(e, &ev, 1, 1000));
    printf("  %u %lu\n", ev.events, static_cast<unsigned long>(ev.data.u64));
    show("epoll_wait bad count", epoll_wait(e, &ev, 0, 0));
    show("epoll_pwait2", epoll_pwait2(e, &ev, 1, &soon, nullptr));
    show("epoll_pwait2 bad time", epoll_pwait2(e, &ev, 1, &bad, nullptr));
    int copy = dup(e);
    show("epoll_wait on a copy", epoll_pwait(copy, &ev, 1, 1000, nullptr));
    char c;
    recv(p[1], &c, 1, 0);
    show("epoll_wait empty", epoll_wait(copy, &ev, 1, 1));
    show("epoll_ctl del", epoll_ctl(copy, EPOLL_CTL_DEL, p[1], nullptr));
    for (int x : {p[0], p[1], e, copy}) close(x);
}

void odd_numbers() {
    char c;
    show("read -1", read(-1, &c, 1));
    show("recv huge", recv(0x7fffffff, &c, 1, 0));
    show("close -1", close(-1));
    show("close huge", close(0x7fffffff));
    show("dup -5", dup(-5));
    // Of the options on -1, the library answers only those that ask for the extra API, as a whole.
    show("getsockopt SO_TYPE on -1", [] {
        int type = 0;
        socklen_t len = sizeof type;
        return getsockopt(-1, SOL_SOCKET, SO_TYPE, &type, &len);
    }());
    show("getsockopt 2800 on -1, half of a pointer", [] {
        int half = 0;
        socklen_t len = sizeof half;
        return getsockopt(-1, SOL_SOCKET, 2800, &half, &len);
    }());
    show("fcntl -1", fcntl(-1, F_GETFL));
    show("send to a file", send(0, &c, 1, 0));
    int u = udp();
    show("listen", listen(u, 5));
    show("accept", accept(u, nullptr, nullptr));
    show("getpeername", getpeername(u, nullptr, nullptr));
    show("shutdown", shutdown(u, SHUT_RDWR));
    show("SO_TYPE", [&] {
        int v = 0;
        socklen_t len = sizeof v;
        getsockopt(u, SOL_SOCKET, SO_TYPE, &v, &len);
        return v;
    }());
    show("F_GETFL", fcntl(u, F_GETFL));
    show("F_SETFL", fcntl(u, F_SETFL, O_NONBLOCK));
    show("recv", recv(u, &c, 1, 0));
    show("close", close(u));
    errno = 4242;
    u = udp();
    close(u);
    show("errno untouched", errno);
}

}  // namespace

int main() {
    copies();
    zero_and_vectors();
    passing();
    streams_and_files();
    waiting();
    odd_numbers();
}
