// SPDX-License-Identifier: BSD-2-Clause
// What happens to TCP connections when a process forks, executes another program, passes descriptors, or
// ends. `serve CASE ADDRESS PORT` is the program under test, `peer CASE ADDRESS PORT` the other side, which
// tells what it saw.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "pass_descriptor.h"

namespace {

constexpr size_t kMuch = 1'000'000;
constexpr int kMany = 400;

[[noreturn]] void fail(const char* what) {
    printf("%s: %s\n", what, strerror(errno));
    exit(3);
}

sockaddr_in g_address{};

int listener(int backlog = 512) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, reinterpret_cast<sockaddr*>(&g_address), sizeof g_address) != 0) fail("bind");
    if (listen(fd, backlog) != 0) fail("listen");
    return fd;
}

int accept_one(int from) {
    int fd = accept(from, nullptr, nullptr);
    if (fd < 0) fail("accept");
    return fd;
}

char pattern(size_t at) { return static_cast<char>('a' + at * 7 % 26 + at / 1000 % 2); }

bool write_all(int fd, const char* data, size_t size) {
    while (size > 0) {
        ssize_t n = send(fd, data, size, MSG_NOSIGNAL);
        if (n <= 0) return false;
        data += n;
        size -= static_cast<size_t>(n);
    }
    return true;
}

bool write_much(int fd, size_t size = kMuch) {
    std::string data(size, ' ');
    for (size_t i = 0; i < data.size(); i++) data[i] = pattern(i);
    return write_all(fd, data.data(), data.size());
}

// Until the peer ends.
void echo(int fd) {
    char buf[4096];
    for (ssize_t n; (n = read(fd, buf, sizeof buf)) > 0;) {
        if (!write_all(fd, buf, static_cast<size_t>(n))) return;
    }
}

std::string read_exactly(int fd, size_t size) {
    std::string text(size, '\0');
    size_t have = 0;
    while (have < size) {
        ssize_t n = read(fd, text.data() + have, size - have);
        if (n <= 0) break;
        have += static_cast<size_t>(n);
    }
    text.resize(have);
    return text;
}

void reap(pid_t pid) {
    int status = 0;
    if (waitpid(pid, &status, 0) != pid) fail("waitpid");
    if (status != 0) printf("a child ended with %x\n", static_cast<unsigned>(status));
}

void send_fd(int channel, int fd) {
    if (pass_descriptor(channel, fd) != 1) fail("sendmsg");
}

// A child that echoes on `fd` once the parent has closed `gone`, or ended.
pid_t fork_patient(int fd, int& gone) {
    int ends[2];
    if (pipe(ends) != 0) fail("pipe");
    pid_t pid = fork();
    if (pid == 0) {
        char c;
        close(ends[1]);
        (void)!read(ends[0], &c, 1);
        echo(fd);
        _exit(0);
    }
    gone = ends[1];
    return pid;
}

// ---- the program under test ----

void serve(const std::string& what) {
    if (what == "workers") {
        int from = listener();
        std::vector<pid_t> workers;
        for (int i = 0; i < 2; i++) {
            pid_t pid = fork();
            if (pid == 0) {
                int set = epoll_create1(0);
                epoll_event event{EPOLLIN, {}};
                epoll_ctl(set, EPOLL_CTL_ADD, from, &event);
                fcntl(from, F_SETFL, O_NONBLOCK);
                while (epoll_wait(set, &event, 1, -1) >= 0) {
                    int fd = accept(from, nullptr, nullptr);
                    if (fd < 0) continue;
                    echo(fd);
                    close(fd);
                }
                _exit(1);
            }
            workers.push_back(pid);
        }
        char buf[1];
        (void)!read(0, buf, 1);  // the test has ended
        for (pid_t pid : workers) kill(pid, SIGKILL), waitpid(pid, nullptr, 0);
        return;
    }
    int from = listener();
    if (what == "fork-each") {
        for (int i = 0; i < 20; i++) {
            int fd = accept_one(from);
            pid_t pid = fork();
            if (pid == 0) {
                close(from);
                echo(fd);
                _exit(0);
            }
            close(fd);
            if (i % 2 == 0) reap(pid);
        }
        while (waitpid(-1, nullptr, 0) > 0) continue;
        return;
    }
    if (what == "pass") {
        int channel[2];
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, channel) != 0) fail("socketpair");
        pid_t pid = fork();
        if (pid == 0) {
            close(channel[0]);
            close(from);
            for (int fd; (fd = take_descriptor(channel[1])) >= 0;) {
                echo(fd);
                close(fd);
            }
            _exit(0);
        }
        close(channel[1]);
        for (int i = 0; i < 5; i++) {
            int fd = accept_one(from);
            send_fd(channel[0], fd);
            close(fd);
        }
        close(channel[0]);
        reap(pid);
        return;
    }
    if (what == "many-exit") {
        for (int i = 0; i < kMany; i++) (void)write(accept_one(from), "x", 1);
        char buf[1];
        (void)!read(0, buf, 1);
        exit(0);
    }
    if (what == "echo") {  // what "restart" has become
        printf("listens again\n");
        fflush(stdout);
    }
    int fd = accept_one(from);
    if (what == "idle-child") {
        for (int i = 0; i < 5; i++) {
            pid_t pid = fork();
            if (pid == 0) _exit(0);
            std::string text = read_exactly(fd, 5);
            write_all(fd, text.data(), text.size());
            reap(pid);
        }
        echo(fd);
    } else if (what == "child-reads-rest") {
        std::string first = read_exactly(fd, 5);
        printf("parent read %s\n", first.c_str());
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            std::string rest = read_exactly(fd, 5);
            printf("child read %s\n", rest.c_str());
            fflush(stdout);
            write_all(fd, "child", 5);
            _exit(0);
        }
        reap(pid);
        write_all(fd, "parent", 6);
        echo(fd);
    } else if (what == "grandchild") {
        pid_t pid = fork();
        if (pid == 0) {
            pid_t next = fork();
            if (next == 0) {
                echo(fd);
                _exit(0);
            }
            reap(next);
            _exit(0);
        }
        close(fd);
        reap(pid);
    } else if (what == "parent-closes") {
        int gone;
        pid_t pid = fork_patient(fd, gone);
        close(fd);
        close(gone);
        reap(pid);
    } else if (what == "parent-exits") {
        int gone;
        fork_patient(fd, gone);
        exit(0);
    } else if (what == "exec") {
        dup2(fd, 0);
        dup2(fd, 1);
        execlp("cat", "cat", nullptr);
    } else if (what == "fork-exec") {
        write_all(fd, "ready", 5);
        pid_t pid = fork();
        if (pid == 0) {
            dup2(fd, 0);
            dup2(fd, 1);
            execlp("cat", "cat", nullptr);
            _exit(9);
        }
        close(fd);
        reap(pid);
    } else if (what == "daemon") {
        if (daemon(1, 1) != 0) fail("daemon");
        echo(fd);
    } else if (what == "exit-unsent") {
        write_much(fd);
        exit(0);
    } else if (what == "_exit-unsent") {
        write_much(fd);
        _exit(0);
    } else if (what == "close-exit") {
        write_much(fd);
        close(fd);
        _exit(0);
    } else if (what == "shutdown-exit") {
        write_much(fd);
        shutdown(fd, SHUT_WR);
        exit(0);
    } else if (what == "restart") {
        // A new program listens on the port while the kernel still sends for the old one.
        int room = 500'000;
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
        write_much(fd, 100'000);
        close(fd);
        close(from);
        const std::string port = std::to_string(ntohs(g_address.sin_port));
        char address[INET_ADDRSTRLEN];
        inet_ntop(AF_INET, &g_address.sin_addr, address, sizeof address);
        execl("/proc/self/exe", "tcp_processes", "serve", "echo", address, port.c_str(), nullptr);
    } else if (what == "echo") {
        echo(fd);
    } else if (what == "exit-unread") {
        pollfd p{fd, POLLIN, 0};
        poll(&p, 1, -1);
        exit(0);
    } else if (what == "exit-linger0") {
        linger l{1, 0};
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
        usleep(50'000);  // else the peer's connect() may be told of the reset
        exit(0);
    } else if (what == "exit-idle") {
        exit(0);
    } else {
        printf("no such case\n");
    }
}

// ---- the other side ----

int connect_one(int receive_buffer = 0) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (receive_buffer != 0) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    if (connect(fd, reinterpret_cast<sockaddr*>(&g_address), sizeof g_address) != 0) fail("connect");
    return fd;
}

void tell_end(int fd) {
    char buf[4096];
    size_t have = 0, wrong = 0;
    ssize_t n;
    while ((n = read(fd, buf, sizeof buf)) > 0) {
        for (ssize_t i = 0; i < n; i++) wrong += buf[i] != pattern(have + static_cast<size_t>(i));
        have += static_cast<size_t>(n);
    }
    printf("%zu bytes, %zu wrong, then %s\n", have, wrong, n == 0 ? "the end" : strerror(errno));
}

void talk(int fd, int rounds) {
    for (int i = 0; i < rounds; i++) {
        const std::string text = std::to_string(10000 + i);
        if (!write_all(fd, text.data(), text.size())) printf("write %d: %s\n", i, strerror(errno));
        const std::string back = read_exactly(fd, text.size());
        if (back != text) printf("round %d: '%s' instead of '%s'\n", i, back.c_str(), text.c_str());
    }
}

void talk_and_end(int fd, int rounds) {
    talk(fd, rounds);
    shutdown(fd, SHUT_WR);
    tell_end(fd);
    close(fd);
}

void peer(const std::string& what) {
    if (what == "fork-each" || what == "pass" || what == "workers") {
        const int rounds = what == "pass" ? 5 : 20;
        for (int i = 0; i < rounds; i++) talk_and_end(connect_one(), 5);
        return;
    }
    if (what == "many-exit") {
        std::vector<int> all;
        for (int i = 0; i < kMany; i++) {
            all.push_back(connect_one());
            char c;
            if (read(all.back(), &c, 1) != 1) fail("read");
        }
        printf("connected\n");
        fflush(stdout);
        int ended = 0;
        for (int fd : all) {
            char c;
            ended += read(fd, &c, 1) == 0;
        }
        printf("%d of %d ended in order\n", ended, kMany);
        return;
    }
    int fd = connect_one(what == "restart" ? 8192 : 0);
    if (what == "child-reads-rest") {
        write_all(fd, "0123456789", 10);
        printf("%s\n", read_exactly(fd, 11).c_str());
        talk_and_end(fd, 3);
    } else if (what == "exit-unsent" || what == "_exit-unsent" || what == "close-exit" ||
               what == "shutdown-exit") {
        usleep(300'000);
        tell_end(fd);
    } else if (what == "restart") {
        char buf[1];
        (void)!read(0, buf, 1);  // the new program listens
        int other = connect_one();
        talk(other, 3);
        tell_end(fd);
        talk_and_end(other, 3);
        return;
    } else if (what == "exit-unread") {
        write_all(fd, "never read", 10);
        tell_end(fd);
    } else if (what == "exit-linger0" || what == "exit-idle") {
        tell_end(fd);
    } else if (what == "fork-exec") {
        printf("%s\n", read_exactly(fd, 5).c_str());
        talk_and_end(fd, 5);
    } else {
        talk_and_end(fd, 7);
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: %s serve|peer CASE ADDRESS PORT\n", argv[0]);
        return 2;
    }
    g_address.sin_family = AF_INET;
    g_address.sin_addr.s_addr = inet_addr(argv[3]);
    g_address.sin_port = htons(static_cast<uint16_t>(atoi(argv[4])));
    rlimit files{4096, 4096};
    setrlimit(RLIMIT_NOFILE, &files);
    if (strcmp(argv[1], "serve") == 0)
        serve(argv[2]);
    else
        peer(argv[2]);
    return 0;
}
