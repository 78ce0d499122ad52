// SPDX-License-Identifier: BSD-2-Clause
// Descriptors that multiply or move: dup, fork, exec, passing over a unix socket, closing behind the
// library's back.
#include "process.h"

#include <linux/close_range.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/wait.h>

#include "tests/apps/pass_descriptor.h"
#include "tests/parity/harness/harness.h"

extern char** environ;

namespace parity {
namespace {

char g_buffer[2000];

int listening() {
    peer_opens();
    return bound(kHere, kPort);
}

void sends(const char* what, int fd) {
    sockaddr_in a = at(kThere, kPeerPort);
    SHOW(what, sendto(fd, what, strlen(what), 0, raw(a), sizeof a));
    tell("recv p 1500");
}

void receives(const char* what, int fd, int length = 30) {
    peer_sends(length);
    if (wait_in(fd)) show_recv(what, fd, MSG_DONTWAIT);
}

// Runs `body` in a forked child to its end.
template <class F>
void in_child(F&& body) {
    pid_t pid = fork();
    if (pid == 0) {
        body();
        _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    say("child status %x", static_cast<unsigned>(status));
}

std::string self() {
    char path[500];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path);
    return std::string(path, n > 0 ? static_cast<size_t>(n) : 0);
}

}  // namespace

PARITY_CASE(process, duplicates, Traffic::offloaded) {
    int fd = listening();
    int copies[] = {dup(fd), dup2(fd, 50), dup3(fd, 51, O_CLOEXEC), fcntl(fd, F_DUPFD, 60),
                    fcntl(fd, F_DUPFD_CLOEXEC, 61)};
    for (int copy : copies) {
        say("copy %d cloexec %d", copy, fcntl(copy, F_GETFD));
        sends("copy", copy);
        receives("copy", copy);
    }
    SHOW("close the original", close(fd));
    SHOW("original is gone", send(fd, "x", 1, 0));
    sends("after close", copies[0]);
    receives("after close", copies[1]);
    for (int i = 0; i < 4; i++) SHOW("close", close(copies[i]));
    receives("last", copies[4]);
    SHOW("close last", close(copies[4]));
    fd = listening();
    receives("reopened", fd);
    SHOW("dup2 to itself", dup2(fd, fd));
    SHOW("dup3 to itself", dup3(fd, fd, 0));
    SHOW("dup of nothing", dup(999));
    SHOW("dup2 of nothing", dup2(999, 50));
    SHOW("dup2 to -1", dup2(fd, -1));
    SHOW("F_DUPFD bad", fcntl(fd, F_DUPFD, -1));
    receives("untouched", fd);
}

PARITY_CASE(process, overwritten, Traffic::offloaded) {
    int fd = listening(), p[2];
    receives("before", fd);
    ok(pipe(p));
    SHOW("pipe over the socket", dup2(p[1], fd));
    SHOW("write", write(fd, "into the pipe", 13));
    SHOW("read", read(p[0], g_buffer, 100));
    SHOW("recv", recv(fd, g_buffer, 100, MSG_DONTWAIT));
    close(fd);
    int other = listening();
    SHOW("socket over the pipe", dup2(other, p[0]));
    receives("over the pipe", p[0]);
    SHOW("close", close(other));
    receives("still", p[0]);
}

PARITY_CASE(process, closed_behind_the_back, Traffic::offloaded) {
    int fd = listening();
    receives("before", fd);
    FILE* f = fdopen(fd, "r+");
    SHOW("fclose", fclose(f));
    int file = open("/dev/null", O_RDWR);
    say("same number %d", file == fd);
    SHOW("write to the file", write(file, "x", 1));
    SHOW("recv from the file", recv(file, g_buffer, 10, MSG_DONTWAIT));
    close(file);
    fd = listening();
    receives("again", fd);
    SHOW("close_range", close_range(static_cast<unsigned>(fd), static_cast<unsigned>(fd), 0));
    SHOW("recv", recv(fd, g_buffer, 10, MSG_DONTWAIT));
    fd = listening();
    receives("and again", fd);
    SHOW("close_range cloexec",
         close_range(static_cast<unsigned>(fd), static_cast<unsigned>(fd), CLOSE_RANGE_CLOEXEC));
    say("cloexec %d", fcntl(fd, F_GETFD));
    receives("still open", fd);
}

// As daemons do, while the control descriptors of the test stay.
PARITY_CASE(process, closes_everything, Traffic::offloaded) {
    int fd = listening();
    receives("before", fd);
    for (int i = 3; i < 1024; i++)
        if (i != 100 && i != 101) close(i);
    fd = listening();
    say("number %d", fd);
    receives("after", fd);
    SHOW("close_range", close_range(102, ~0u, 0));
    receives("after close_range", fd);
    sends("after close_range", fd);
    close(fd);
    closefrom(102);
    fd = listening();
    receives("after closefrom", fd);
}

PARITY_CASE(process, use_after_close, Traffic::offloaded) {
    int fd = listening();
    sockaddr_in a = at(kThere, kPeerPort);
    socklen_t length = sizeof a;
    iovec iov{g_buffer, 10};
    msghdr m{};
    mmsghdr mm{};
    SHOW("close", close(fd));
    SHOW("bind", bind(fd, raw(a), sizeof a));
    SHOW("connect", connect(fd, raw(a), sizeof a));
    SHOW("getsockname", getsockname(fd, raw(a), &length));
    SHOW("getpeername", getpeername(fd, raw(a), &length));
    SHOW("recv", recv(fd, g_buffer, 10, 0));
    SHOW("recvfrom", recvfrom(fd, g_buffer, 10, 0, nullptr, nullptr));
    SHOW("recvmsg", recvmsg(fd, &m, 0));
    SHOW("recvmmsg", recvmmsg(fd, &mm, 1, 0, nullptr));
    SHOW("read", read(fd, g_buffer, 10));
    SHOW("readv", readv(fd, &iov, 1));
    SHOW("send", send(fd, g_buffer, 10, 0));
    SHOW("sendto", sendto(fd, g_buffer, 10, 0, raw(a), sizeof a));
    SHOW("sendmsg", sendmsg(fd, &m, 0));
    SHOW("sendmmsg", sendmmsg(fd, &mm, 1, 0));
    SHOW("write", write(fd, g_buffer, 10));
    SHOW("writev", writev(fd, &iov, 1));
    SHOW("setsockopt", set(fd, SOL_SOCKET, SO_RCVBUF, 1000));
    SHOW("fcntl", fcntl(fd, F_GETFL));
    SHOW("shutdown", shutdown(fd, SHUT_RD));
    SHOW("dup", dup(fd));
    SHOW("recv -1", recv(-1, g_buffer, 10, 0));
    SHOW("close -1", close(-1));
    SHOW("recv huge", recv(0x7fffffff, g_buffer, 10, 0));
}

PARITY_CASE(process, fork_child_uses_the_socket, kernel_carries(3)) {
    int fd = listening();
    receives("before", fd);
    sends("before", fd);
    in_child([&] {
        sends("child", fd);
        show_name("child", fd);
        SHOW("child closes", close(fd));
    });
    receives("parent", fd);
    sends("parent", fd);
    in_child([&] {
        int own = bound(kHere, kPort + 1);
        peer_sends(40, 1, 1, kHere, kPort + 1);
        if (wait_in(own)) show_recv("child's own", own, MSG_DONTWAIT);
        sends("child's own", own);
        int tcp = socket(AF_INET, SOCK_STREAM, 0);
        SHOW("close", close(tcp));
    });
    receives("parent again", fd);
}

// The parent talks all the time while children come and go.
PARITY_CASE(process, fork_under_traffic, Traffic::offloaded) {
    int fd = listening();
    int answered = 0;
    sockaddr_in a = at(kThere, kPeerPort);
    post("echo p 400 1000");
    for (uint32_t i = 0; i < 400; i++) {
        pid_t pid = -1;
        if (i % 40 == 0 && (pid = fork()) == 0) {
            close(fd);
            _exit(0);
        }
        auto data = payload::make(64, i);
        uint8_t back[100];
        ok(sendto(fd, data.data(), data.size(), 0, raw(a), sizeof a));
        if (wait_in(fd, 1000) && recv(fd, back, sizeof back, 0) == 64 && memcmp(back, data.data(), 64) == 0)
            answered++;
        if (pid > 0) waitpid(pid, nullptr, 0);
    }
    say("answered %d, %s", answered, answer().c_str());
}

int after_exec(int argc, char** argv) {
    int fd = argc > 1 ? atoi(argv[1]) : -1;
    say("executed: %s", argv[0]);
    if (strcmp(argv[0], "closed") == 0) {
        SHOW("inherited", fcntl(fd, F_GETFD));
        return 0;
    }
    show_name("inherited", fd);
    sends("inherited", fd);
    receives("inherited", fd, 45);
    int own = bound(kHere, kPort + 2);
    peer_sends(41, 1, 1, kHere, kPort + 2);
    if (wait_in(own)) show_recv("own", own, MSG_DONTWAIT);
    return 0;
}

PARITY_CASE(process, exec_in_place, kernel_carries(2)) {
    int fd = listening();
    receives("before", fd);
    std::string path = self(), number = std::to_string(fd);
    execl(path.c_str(), "parity", "--exec", "in place", number.c_str(), nullptr);
    say("exec failed");
}

PARITY_CASE(process, exec_fails, Traffic::offloaded) {
    int fd = listening();
    receives("before", fd);
    char name[] = "x";
    char* argv[] = {name, nullptr};
    SHOW("execv", execv("/nonexistent/program", argv));
    receives("after", fd);
    sends("after", fd);
}

PARITY_CASE(process, spawned_programs, Traffic::offloaded) {
    int fd = listening();
    std::string path = self(), number = std::to_string(fd);
    receives("before", fd);
    auto spawn = [&](const char* what) {
        std::vector<char*> argv = {const_cast<char*>("parity"), const_cast<char*>("--exec"),
                                   const_cast<char*>(what), number.data(), nullptr};
        pid_t pid = -1;
        int status = -1;
        int error = posix_spawn(&pid, path.c_str(), nullptr, nullptr, argv.data(), environ);
        waitpid(pid, &status, 0);
        say("posix_spawn %d status %x", error, static_cast<unsigned>(status));
    };
    SHOW("cloexec", fcntl(fd, F_SETFD, FD_CLOEXEC));
    spawn("closed");
    receives("after spawn", fd);
    SHOW("system", system("exit 3"));
    FILE* f = popen("echo text", "r");
    say("popen %d", f != nullptr && fgets(g_buffer, 100, f) != nullptr && strcmp(g_buffer, "text\n") == 0);
    SHOW("pclose", pclose(f));
    pid_t pid = vfork();
    if (pid == 0) {
        execl(path.c_str(), "parity", "--exec", "closed", number.c_str(), nullptr);
        _exit(9);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    say("vfork status %x", static_cast<unsigned>(status));
    pid = vfork();
    if (pid == 0) {
        close(fd);
        _exit(0);
    }
    waitpid(pid, &status, 0);
    receives("after vfork", fd);
    sends("after vfork", fd);
}

// A child that only sends takes nothing from the parent: it goes on past the kernel.
PARITY_CASE(process, child_only_sends, kernel_carries(3)) {
    int fd = listening();
    receives("before", fd);
    int go[2], ready[2];
    ok(pipe(go));
    ok(pipe(ready));
    pid_t pid = fork();
    if (pid == 0) {
        char c;
        for (int i = 0; i < 3; i++) sends("child", fd);
        ok(write(ready[1], "r", 1));
        ok(read(go[0], &c, 1));
        _exit(0);
    }
    char c;
    ok(read(ready[0], &c, 1));
    for (int i = 0; i < 20; i++) receives("parent", fd, 30 + i);
    ok(write(go[1], "g", 1));
    waitpid(pid, nullptr, 0);
}

// A server that lets a child answer.
PARITY_CASE(process, child_receives, kernel_carries(6)) {
    int fd = listening();
    receives("before", fd);
    for (int i = 0; i < 2; i++)
        in_child([&] {
            receives("child", fd, 50 + i);
            sends("child", fd);
        });
    receives("parent", fd);
    sends("parent", fd);
}

// What came before the fork is for whoever reads first.
PARITY_CASE(process, child_receives_what_waits, kernel_carries(3)) {
    int fd = listening();
    receives("before", fd);
    peer_sends(40, 4);
    if (!wait_in(fd)) return;
    show_recv("peek", fd, MSG_PEEK);
    settle();
    show_recv("parent", fd, MSG_DONTWAIT);
    in_child([&] {
        show_recv("child", fd, MSG_DONTWAIT);
        show_recv("child", fd, MSG_DONTWAIT);
    });
    show_recv("parent", fd, MSG_DONTWAIT);
    show_recv("nothing", fd, MSG_DONTWAIT);
}

// The parent waits in recv() while a child begins to read.
PARITY_CASE(process, child_receives_for_a_waiting_parent, kernel_carries(1)) {
    int fd = listening(), told[2];
    receives("before", fd);
    ok(pipe(told));
    pid_t pid = fork();
    if (pid == 0) {
        SHOW("child: nothing yet", recv(fd, g_buffer, sizeof g_buffer, MSG_DONTWAIT));
        ok(write(told[1], "x", 1));
        _exit(0);
    }
    char c;
    pollfd both[] = {{fd, POLLIN, 0}, {told[0], POLLIN, 0}};
    SHOW("poll", poll(both, 2, 3000));
    say("socket %d child %d", both[0].revents, both[1].revents);
    ok(read(told[0], &c, 1));
    waitpid(pid, nullptr, 0);
    receives("parent", fd);
}

// The parent has closed its copy; connected, as servers do that have a child for each client.
PARITY_CASE(process, child_of_each_client, kernel_carries(9)) {
    for (int i = 0; i < 3; i++) {
        int fd = listening();
        peer_sends(60 + i);
        if (!wait_in(fd)) return;
        sockaddr_in from{};
        socklen_t length = sizeof from;
        SHOW("peek", recvfrom(fd, g_buffer, sizeof g_buffer, MSG_PEEK, raw(from), &length));
        SHOW("connect", connect(fd, raw(from), length));
        int go[2];
        ok(pipe(go));
        pid_t pid = fork();
        if (pid == 0) {
            char c;
            ok(read(go[0], &c, 1));
            show_recv("first", fd, MSG_DONTWAIT);
            receives("second", fd);
            SHOW("answer", send(fd, "answer", 6, 0));
            _exit(0);
        }
        close(fd);
        ok(write(go[1], "g", 1));
        waitpid(pid, nullptr, 0);
        tell("recv p 1500");
        close(go[0]);
        close(go[1]);
    }
}

PARITY_CASE(process, child_waits_on_an_epoll_set, kernel_carries(2)) {
    int fd = listening(), set = epoll_create1(0);
    epoll_event event{EPOLLIN, {.u64 = 7}};
    SHOW("add", epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    peer_sends(30);
    SHOW("wait", epoll_wait(set, &event, 1, 3000));
    show_recv("parent", fd, MSG_DONTWAIT);
    in_child([&] {
        SHOW("nothing", epoll_wait(set, &event, 1, 0));
        peer_sends(31);
        SHOW("wait", epoll_wait(set, &event, 1, 3000));
        say("data %d", static_cast<int>(event.data.u64));
        show_recv("child", fd, MSG_DONTWAIT);
    });
    peer_sends(32);
    SHOW("wait", epoll_wait(set, &event, 1, 3000));
    show_recv("parent", fd, MSG_DONTWAIT);
}

PARITY_CASE(process, forked_program_receives, kernel_carries(4)) {
    int fd = listening();
    receives("before", fd);
    std::string path = self(), number = std::to_string(fd);
    in_child([&] {
        execl(path.c_str(), "parity", "--exec", "in a child", number.c_str(), nullptr);
        _exit(9);
    });
    receives("parent", fd);
}

// As inetd starts a server for datagrams, here from a vforked child.
PARITY_CASE(process, vforked_program_receives, kernel_carries(4)) {
    int fd = listening();
    receives("before", fd);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    std::string path = self();
    pid_t pid = vfork();
    if (pid == 0) {
        dup2(fd, 0);
        execl(path.c_str(), "parity", "--exec", "by vfork", "0", nullptr);
        _exit(9);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    say("status %x", static_cast<unsigned>(status));
    receives("parent", fd);
}

PARITY_CASE(process, standard_streams, kernel_carries(4)) {
    int fd = listening();
    sends("before", fd);
    sockaddr_in a = at(kThere, kPeerPort);
    SHOW("connect", connect(fd, raw(a), sizeof a));
    receives("before", fd);
    int in = fcntl(0, F_DUPFD, 80), out = fcntl(1, F_DUPFD, 80);
    fflush(stdout);
    dup2(fd, 1);
    printf("printed\n");
    fflush(stdout);
    dup2(out, 1);
    tell("recv p 1500");
    dup2(fd, 0);
    peer_sends(20);
    char text[100];
    size_t n = 0;
    say("fread %d", wait_in(fd) && (n = fread(text, 1, 20, stdin)) == 20);
    dup2(in, 0);
    SHOW("dprintf", dprintf(fd, "%s %d", "formatted", 5));
    tell("recv p 1500");
    receives("after", fd);
}

PARITY_CASE(process, fork_and_exec, kernel_carries(2)) {
    int fd = listening();
    receives("before", fd);
    int keep = fcntl(fd, F_DUPFD, 70);
    in_child([&] {
        sends("child before exec", keep);
        execl("/bin/true", "true", nullptr);
        _exit(9);
    });
    receives("parent", fd);
}

PARITY_CASE(process, passed_over_unix, kernel_carries(6)) {
    int fd = listening(), pair[2];
    receives("before", fd);
    ok(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    SHOW("pass", pass_descriptor(pair[0], fd));
    int twin = -1;
    SHOW("take", DescriptorMessage().receive(pair[1], twin));
    say("number differs %d", twin != fd);
    sends("twin", twin);
    receives("twin", twin);
    receives("original", fd);
    SHOW("close", close(fd));
    receives("twin alone", twin);
    in_child([&] {
        receives("child", twin);
        sends("child", twin);
    });
}

}  // namespace parity
