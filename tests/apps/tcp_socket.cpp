// SPDX-License-Identifier: BSD-2-Clause
// Both sides of a conversation over TCP, told line by line what every call answered. The test runs it on the
// kernel and on the library, and the two transcripts must be equal.
//
//   tcp_socket server            echo on 5001, reset after the first byte on 5002, silence on 5003; says
//   "ready" tcp_socket client HOST OWN   HOST: the server's address; OWN: an address of this host
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

namespace {

sockaddr_in at(const char* address, int port) {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = htons(static_cast<uint16_t>(port));
    inet_pton(AF_INET, address, &a.sin_addr);
    return a;
}
sockaddr* raw(sockaddr_in& a) { return reinterpret_cast<sockaddr*>(&a); }

void say(const char* what, long result) {
    if (result < 0)
        printf("%s: %s\n", what, strerrorname_np(errno));
    else
        printf("%s: %ld\n", what, result);
    fflush(stdout);
}
int stream(int flags = 0) { return socket(AF_INET, SOCK_STREAM | flags, 0); }
int connect_to(int fd, const char* host, int port) {
    sockaddr_in a = at(host, port);
    return connect(fd, raw(a), sizeof a);
}
int connected(const char* host, int port) {
    int fd = stream();
    if (connect_to(fd, host, port) != 0) say("connect", -1);
    return fd;
}
int so_error(int fd) {
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
    return error;
}
void show_poll(const char* what, int fd, short events, int msec) {
    pollfd p{fd, events, 0};
    const int ready = poll(&p, 1, msec);
    printf("%s: %d %#x\n", what, ready, static_cast<unsigned>(p.revents));
}
void wait_for(int fd, short events) {
    pollfd p{fd, events, 0};
    poll(&p, 1, 5000);
}
std::string pattern(size_t length) {
    std::string s(length, 0);
    unsigned x = 12345;
    for (char& c : s) c = static_cast<char>((x = x * 1103515245u + 12345u) >> 16);
    return s;
}
bool read_all(int fd, std::string& into, size_t length) {
    into.clear();
    char buffer[8192];
    while (into.size() < length) {
        ssize_t n = recv(fd, buffer, std::min(sizeof buffer, length - into.size()), 0);
        if (n <= 0) return false;
        into.append(buffer, static_cast<size_t>(n));
    }
    return true;
}
void linger(int fd, int on, int seconds) {
    struct linger l {
        on, seconds
    };
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
}

// ---- server ----

void serve(int port, void (*one)(int)) {
    int listener = stream(), on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    sockaddr_in any = at("0.0.0.0", port);
    if (bind(listener, raw(any), sizeof any) != 0 || listen(listener, 16) != 0) exit(1);
    std::thread([=] {
        for (;;) {
            sockaddr_in peer{};
            socklen_t length = sizeof peer;
            int fd = accept4(listener, raw(peer), &length, SOCK_CLOEXEC);
            if (fd < 0) continue;
            // What an accepted socket inherits, and its names.
            int nodelay = 0;
            socklen_t size = sizeof nodelay;
            getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &nodelay, &size);
            sockaddr_in again{};
            socklen_t again_length = sizeof again;
            const bool alive =
                getpeername(fd, raw(again), &again_length) == 0;  // else it has been reset already
            if (nodelay == 0 || length != sizeof peer || (alive && memcmp(&peer, &again, sizeof peer) != 0))
                _exit(2);
            std::thread(one, fd).detach();
        }
    }).detach();
}
void echo(int fd) {
    static thread_local char buffer[65536];
    for (ssize_t n; (n = recv(fd, buffer, sizeof buffer, 0)) > 0;)
        if (send(fd, buffer, static_cast<size_t>(n), MSG_NOSIGNAL) != n) break;
    close(fd);
}
void reset(int fd) {
    char byte;
    recv(fd, &byte, 1, 0);
    linger(fd, 1, 0);
    close(fd);
}
void silence(int) { pause(); }

// ---- client ----

void connecting(const char* host) {
    int fd = stream();
    say("refused", connect_to(fd, host, 9));
    say("refused again", connect_to(fd, host, 9));
    say("then accepted", connect_to(fd, host, 5001));
    say("twice", connect_to(fd, host, 5001));
    say("listen while connected", listen(fd, 1));
    close(fd);

    fd = stream(SOCK_NONBLOCK);
    say("non-blocking", connect_to(fd, host, 5001));
    show_poll("its outcome", fd, POLLOUT, 5000);
    say("asked", connect_to(fd, host, 5001));
    say("asked again", connect_to(fd, host, 5001));
    char byte;
    say("nothing there", recv(fd, &byte, 1, 0));
    close(fd);

    fd = stream(SOCK_NONBLOCK);
    say("non-blocking refused", connect_to(fd, host, 9));
    show_poll("its outcome", fd, POLLIN | POLLOUT | POLLRDHUP, 5000);
    const int first = so_error(fd), second = so_error(fd);
    printf("SO_ERROR %d, then %d\n", first, second);
    say("asked after the error was read", connect_to(fd, host, 9));
    close(fd);

    fd = stream();
    sockaddr_in there = at(host, 5001);
    say("short name", connect(fd, raw(there), 8));
    there.sin_family = AF_INET6;
    say("wrong family", connect(fd, raw(there), sizeof there));
    say("no route", connect_to(fd, "198.19.255.1", 5001));
    timeval limit{0, 200000};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    say("nobody there, for a while", connect_to(fd, "198.18.1.77", 5001));
    say("still nobody", connect_to(fd, "198.18.1.77", 5001));
    close(fd);
}

void stream_of_bytes(const char* host) {
    int fd = connected(host, 5001);
    std::string got, sent;
    for (size_t length : {1u, 100u, 1448u, 1449u, 5000u, 300000u}) {
        sent = pattern(length);
        std::thread writer([&] { say("sent", send(fd, sent.data(), sent.size(), 0)); });
        bool all = read_all(fd, got, length);
        writer.join();
        printf("back %d %d\n", all, got == sent);
    }
    char a[3], b[4], buffer[64] = {};
    iovec pieces[] = {{a, 3}, {nullptr, 0}, {b, 4}};
    memcpy(a, "abc", 3), memcpy(b, "defg", 4);
    say("writev", writev(fd, pieces, 3));
    say("peek", recv(fd, buffer, 7, MSG_PEEK | MSG_WAITALL));
    memset(a, 0, 3), memset(b, 0, 4);
    say("readv", readv(fd, pieces, 3));
    printf("%.3s %.4s %.7s\n", a, b, buffer);
    say("send of nothing", send(fd, a, 0, 0));
    say("read of nothing", read(fd, buffer, 0));
    say("recv of nothing, nothing there", recv(fd, buffer, 0, MSG_DONTWAIT));
    say("urgent, none there", recv(fd, buffer, 1, MSG_OOB));
    say("bad buffer", send(fd, reinterpret_cast<void*>(8), 10, 0));
    send(fd, "0123456789", 10, 0);
    wait_for(fd, POLLIN);
    int there = 0;
    say("FIONREAD", ioctl(fd, FIONREAD, &there));
    printf("%d bytes\n", there);
    say("into a bad buffer", recv(fd, reinterpret_cast<void*>(8), 10, 0));
    say("discard", recv(fd, nullptr, 4, MSG_TRUNC));
    sockaddr_in from{};
    socklen_t length = sizeof from;
    say("recvfrom", recvfrom(fd, buffer, sizeof buffer, 0, raw(from), &length));
    printf("name %u, %.6s\n", length, buffer);
    int mss = 0;
    length = sizeof mss;
    say("TCP_MAXSEG", getsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &mss, &length));
    printf("%d\n", mss);
    tcp_info info{};
    length = sizeof info;
    say("TCP_INFO", getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length));
    printf("state %d, timestamps and more %#x\n", info.tcpi_state, info.tcpi_options & 7u);
    timeval limit{0, 100000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    say("after a while", recv(fd, buffer, 1, 0));
    close(fd);
}

void closing(const char* host) {
    char byte = 'x', buffer[16];
    int fd = connected(host, 5001);
    say("shutdown", shutdown(fd, SHUT_WR));
    say("send after it", send(fd, &byte, 1, 0));
    say("its end", recv(fd, buffer, 1, 0));
    say("and again", recv(fd, buffer, 1, 0));
    show_poll("closed both ways", fd, POLLIN | POLLOUT | POLLRDHUP, 1000);
    close(fd);

    fd = connected(host, 5002);
    send(fd, &byte, 1, 0);
    wait_for(fd, POLLIN);
    say("reset", recv(fd, buffer, 1, 0));
    say("afterwards", recv(fd, buffer, 1, 0));
    say("write to it", write(fd, &byte, 1));
    sockaddr_in peer{};
    socklen_t length = sizeof peer;
    say("its peer", getpeername(fd, raw(peer), &length));
    close(fd);

    fd = connected(host, 5001);
    linger(fd, 1, 5);
    std::string sent = pattern(200000), got;
    std::thread writer([&] { send(fd, sent.data(), sent.size(), 0); });
    printf("before lingering: %d\n", read_all(fd, got, sent.size()));
    writer.join();
    say("lingering close", close(fd));
    fd = connected(host, 5001);
    linger(fd, 1, 0);
    say("resetting close", close(fd));
    fd = connected(host, 5001);
    sockaddr none{};
    none.sa_family = AF_UNSPEC;
    say("disconnect", connect(fd, &none, sizeof none));
    printf("SO_ERROR %d\n", so_error(fd));
    say("and connect", connect_to(fd, host, 5001));
    close(fd);
}

void moving(const char* host) {
    std::string content = pattern(400000), got;
    char name[] = "/tmp/tcp_socket_XXXXXX";
    int file = mkstemp(name);
    unlink(name);
    if (write(file, content.data(), content.size()) != static_cast<ssize_t>(content.size())) return;
    int fd = connected(host, 5001);
    off_t offset = 0;
    std::thread writer([&] {
        while (offset < static_cast<off_t>(content.size()))
            if (sendfile(fd, file, &offset, content.size() - static_cast<size_t>(offset)) <= 0) break;
    });
    bool all = read_all(fd, got, content.size());
    writer.join();
    printf("sendfile %d %d, offset %ld\n", all, got == content, static_cast<long>(offset));
    lseek(file, 399990, SEEK_SET);
    say("the rest, by position", sendfile(fd, file, nullptr, 100));
    printf("position %ld\n", static_cast<long>(lseek(file, 0, SEEK_CUR)));
    read_all(fd, got, 10);
    say("at the end", sendfile(fd, file, nullptr, 100));
    int ends[2];
    if (pipe(ends) != 0 || write(ends[1], "through a pipe", 14) != 14) return;
    say("splice in", splice(ends[0], nullptr, fd, nullptr, 14, 0));
    wait_for(fd, POLLIN);
    say("splice out", splice(fd, nullptr, ends[1], nullptr, 100, 0));
    char buffer[32] = {};
    say("from the pipe", read(ends[0], buffer, sizeof buffer));
    printf("%s\n", buffer);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    say("nothing to splice", splice(fd, nullptr, ends[1], nullptr, 100, 0));
    close(fd);
}

void filling(const char* host) {
    int fd = connected(host, 5003);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    std::string chunk = pattern(65536);
    ssize_t n;
    do {  // buffers grow while there is somebody to fill them
        while ((n = send(fd, chunk.data(), chunk.size(), 0)) > 0) {
        }
        pollfd p{fd, POLLOUT, 0};
        if (poll(&p, 1, 300) == 0) break;
    } while (errno == EAGAIN);
    say("full", n);
    show_poll("no room", fd, POLLOUT, 0);
    int set = epoll_create1(0);
    epoll_event want{EPOLLIN | EPOLLOUT, {}}, out{};
    say("epoll_ctl", epoll_ctl(set, EPOLL_CTL_ADD, fd, &want));
    say("epoll_wait", epoll_wait(set, &out, 1, 50));
    linger(fd, 1, 0);
    close(fd);
}

// What no rule of ours steers: loopback, on the same listener, and in both orders.
void local(const char* own) {
    serve(5101, echo);
    for (const char* address : {"127.0.0.1", own}) {
        int fd = connected(address, 5101);
        char buffer[8] = {};
        send(fd, "here", 4, 0);
        say("echo of this host", recv(fd, buffer, 4, MSG_WAITALL));
        printf("%s\n", buffer);
        close(fd);
    }
}

}  // namespace

int main(int argc, char** argv) {
    signal(SIGPIPE, SIG_IGN);
    if (argc == 2 && strcmp(argv[1], "server") == 0) {
        serve(5001, echo);
        serve(5002, reset);
        serve(5003, silence);
        printf("ready\n");
        fflush(stdout);
        pause();
    }
    if (argc != 4) return 2;
    connecting(argv[2]);
    stream_of_bytes(argv[2]);
    closing(argv[2]);
    moving(argv[2]);
    filling(argv[2]);
    local(argv[3]);
    return 0;
}
