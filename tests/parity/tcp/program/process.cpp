// SPDX-License-Identifier: BSD-2-Clause
// Connections that are shared or move: dup, fork, exec, passing over a unix socket, and how a process ends.
#include <linux/close_range.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/apps/pass_descriptor.h"
#include "tests/parity/pair/tcp_harness.h"

extern char** environ;

namespace parity::tcp {
namespace {

template <class F>
pid_t child(F&& body) {
    pid_t pid = fork();
    if (pid == 0) {
        body();
        _exit(0);
    }
    return pid;
}

void reap(pid_t pid) {
    int status = -1;
    waitpid(pid, &status, 0);
    say("child status %x", static_cast<unsigned>(status));
}

std::string self() {
    char path[500];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path);
    return std::string(path, n > 0 ? static_cast<size_t>(n) : 0);
}

// Runs this program's after_exec part as a child that inherits `fd`.
void run_after_exec(const char* what, int fd) {
    std::string program = self(), number = std::to_string(fd);
    pid_t pid = fork();
    if (pid == 0) {
        execl(program.c_str(), program.c_str(), "--exec", what, number.c_str(), nullptr);
        _exit(9);
    }
    reap(pid);
}

void send_descriptor(int channel, int fd) { SHOW("pass", pass_descriptor(channel, fd)); }

// So that what parent and child say comes in order.
void await_word(int channel) {
    char word;
    ok(read(channel, &word, 1));
}

// The other side's part in most cases: one request, one answer.
void converse(int fd, const char* request) {
    put(fd, request);
    show_read("answer", fd, 100);
}

void answer_one(int fd, const char* who) {
    char text[100] = {};
    long n = recv(fd, text, 90, 0);
    if (n <= 0) {
        say("%s: recv = %ld %s", who, n, n < 0 ? strerrorname_np(errno) : "");
        return;
    }
    std::string reply = std::string(who) + " " + text;
    put(fd, reply.c_str());
}

}  // namespace

TCP_PAIR_CASE(process, duplicates) {
    int fd = connection();
    int copies[3] = {-1, -1, -1};
    at_left([&] {
        copies[0] = dup(fd);
        copies[1] = dup2(fd, 60);
        copies[2] = fcntl(fd, F_DUPFD_CLOEXEC, 70);
        say("numbers %d %d cloexec %d %d", copies[1], copies[2], fcntl(copies[1], F_GETFD),
            fcntl(copies[2], F_GETFD));
        for (int c : copies) put(c, "x");
        nonblocking(copies[0]);
        say("shared flag %d", (fcntl(copies[1], F_GETFL) & O_NONBLOCK) != 0);
        nonblocking(copies[0], false);
        show_peer("copy", copies[1]);
    });
    at_right([&] {
        show_read("recv", fd, 3, MSG_WAITALL);
        put(fd, "12345");
    });
    at_left([&] {
        await_bytes(fd, 5);
        show_read("by one", copies[0], 2);
        show_read("by another", copies[1], 1);
        SHOW("close", close(fd));
        show_read("closed", fd, 1);
        show_read("by the third", copies[2], 10);
        SHOW("close", close(copies[0]));
        put(copies[1], "still open");
    });
    at_right([&] {
        show_read("recv", fd, 100);
        show_events("open", fd);
    });
    at_left([&] {
        SHOW("close", close(copies[1]));
        SHOW("close", close(copies[2]));
    });
    at_right([&] { show_read("end", fd, 10); });
}

TCP_PAIR_CASE(process, duplicate_shut) {
    int fd = connection();
    at_left([&] {
        int copy = dup(fd);
        SHOW("shutdown", shutdown(copy, SHUT_WR));
        close(copy);
        SHOW("send", send(fd, "x", 1, MSG_NOSIGNAL));
    });
    at_right([&] {
        show_read("end", fd, 10);
        put(fd, "back");
    });
    at_left([&] { show_read("recv", fd, 10); });
}

TCP_PAIR_CASE(process, overwritten) {
    int fd = connection(), other = -1;
    at_left([&] {
        int p[2];
        ok(pipe(p));
        other = p[0];
        SHOW("pipe over the connection", dup2(p[1], fd));
        SHOW("write", write(fd, "into the pipe", 13));
        char c[20];
        SHOW("read", read(p[0], c, 20));
        SHOW("no socket any more", send(fd, "x", 1, 0));
    });
    at_right([&] { show_read("end", fd, 10); });
    at_left([&] { close(other); });
}

TCP_KERNEL_PAIR_CASE(process, connection_over_standard_input, 15) {
    int fd = connection();
    at_left([&] {
        int saved = dup(0);
        SHOW("dup2", dup2(fd, 0));
        SHOW("close", close(fd));
        SHOW("write", write(0, "from number 0", 13));
        dup2(saved, 0);
        close(saved);
    });
    at_right([&] { show_rest("recv", fd); });
}

// What connects before the fork, or before a child comes for the listener, is for whoever accepts.
TCP_KERNEL_CASE(process, queue_is_shared, 250) {
    for (const bool looked : {false, true}) {  // has the parent used the listener itself?
        int listener = -1;
        if (server()) listener = listening();
        sync();
        if (client()) {
            int early[2] = {connecting(there(), port()), connecting(there(), port())};
            put(early[0], "first");
            sync();  // connected
            int late = -1;
            sync();  // forked
            late = connecting(there(), port());
            sync();
            for (int fd : {early[0], early[1], late}) {
                if (fd != early[0]) put(fd, "later");
                show_read("answer", fd, 10);
                show_rest("end", fd);
                close(fd);
            }
        } else {
            sync();
            if (looked) await_events(listener, POLLIN);
            int go[2];
            ok(pipe(go));
            pid_t pid = child([&] {
                char byte;
                ok(read(go[0], &byte, 1));
                for (int i = 0; i < 2; i++) {
                    await_events(listener, POLLIN);
                    int fd = accepted(listener);
                    SHOW("flags", fcntl(fd, F_GETFL));
                    answer_one(fd, "child");
                    close(fd);
                }
            });
            sync();
            sync();
            ok(write(go[1], "", 1));
            reap(pid);
            int fd = accepted(listener);
            answer_one(fd, "parent");
            close(fd);
            close(listener);
            close(go[0]);
            close(go[1]);
        }
        sync();
    }
}

// Fork-per-connection: the child serves, the parent closes its copy at once.
TCP_KERNEL_CASE(process, forking_server, 53) {
    int listener = -1;
    at_server([&] { listener = listening(); });
    for (int i = 0; i < 3; i++) {
        if (server()) {
            int fd = accepted(listener);
            pid_t pid = child([&] {
                close(listener);
                for (int n = 0; n < 2; n++) answer_one(fd, "child");
                show_read("child: end", fd, 10);
            });
            close(fd);
            reap(pid);
        } else {
            int fd = connecting(there(), port());
            converse(fd, "one");
            converse(fd, "two");
            shutdown(fd, SHUT_WR);
            show_read("end", fd, 10);
            close(fd);
        }
        sync();
    }
}

// Data that came before the fork is the child's to read.
TCP_KERNEL_CASE(process, forking_server_with_data, 14) {
    int fd = connection();
    at_client([&] { put(fd, "before the fork"); });
    if (server()) {
        await_bytes(fd, 15);
        pid_t pid = child([&] {
            show_read("child: recv", fd, 6);
            put(fd, "from the child");
        });
        reap(pid);
        show_read("parent: the rest", fd, 100);
        put(fd, " and the parent");
        close(fd);
    } else {
        show_rest("recv", fd);
    }
    sync();
}

// A child finds a connection that is over as its parent left it: what was not read, the end, the error.
TCP_KERNEL_PAIR_CASE(process, child_has_what_is_over, 20) {
    for (const bool ended : {true, false}) {
        for (const bool unread : {true, false}) {
            int fd = connection();
            if (!left()) {
                if (unread) put(fd, "unread");
                sync();  // the left side has all of it
                if (ended) {
                    shutdown(fd, SHUT_WR);
                    sync();
                    show_rest("the left side's end", fd);
                } else {
                    const linger now{1, 0};
                    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
                    close(fd);
                    sync();
                }
                sync();
                continue;
            }
            if (unread) await_bytes(fd, 6);
            sync();
            if (ended) await_events(fd, POLLRDHUP);
            if (ended) sync();
            if (ended) shutdown(fd, SHUT_WR);
            await_events(fd, POLLHUP);
            if (!ended) sync();
            await_state(fd, TCP_CLOSE);
            reap(child([&] {
                show_events("child", fd);
                show_read("child: recv", fd, 4);
                show_read("child: recv", fd, 4);
                show_read("child: recv", fd, 4);
                SHOW("child: send", send(fd, "no", 2, MSG_NOSIGNAL));
                SHOW("child: shutdown", shutdown(fd, SHUT_WR));
                show_peer("child: getpeername", fd);
                say("child: segment %d", get(fd, IPPROTO_TCP, TCP_MAXSEG));
            }));
            show_events("parent", fd);
            show_read("parent: recv", fd, 4);
            say("parent: segment %d", get(fd, IPPROTO_TCP, TCP_MAXSEG));
            SHOW("parent: close", close(fd));
            sync();
        }
    }
}

TCP_KERNEL_CASE(process, pre_forked_servers, 49) {
    int listener = -1;
    if (server()) {
        listener = listening();
        pid_t pids[3];
        for (pid_t& pid : pids)
            pid = child([&] {
                int fd = accepted(listener);
                answer_one(fd, "worker");
                close(fd);
            });
        close(listener);
        sync();
        for (pid_t pid : pids) reap(pid);
    } else {
        sync();
        for (int i = 0; i < 3; i++) {
            int fd = connecting(there(), port());
            converse(fd, "work");
            show_read("end", fd, 10);
            close(fd);
        }
    }
    sync();
}

TCP_KERNEL_PAIR_CASE(process, parent_and_child_share, 25) {
    int fd = connection();
    if (left()) {
        pid_t pid = child([&] {
            answer_one(fd, "child");
            close(fd);
        });
        reap(pid);
        answer_one(fd, "parent");
        pid = child([&] { answer_one(fd, "second child"); });
        reap(pid);
        close(fd);
    } else {
        converse(fd, "one");
        converse(fd, "two");
        converse(fd, "three");
        show_read("end", fd, 10);
    }
    sync();
}

// The end comes with the last copy, not with the parent's.
TCP_KERNEL_PAIR_CASE(process, child_holds_it_open, 13) {
    int fd = connection(), go[2];
    ok(pipe(go));
    if (left()) {
        pid_t pid = child([&] {
            char c;
            ok(read(go[0], &c, 1));
            put(fd, "last words");
        });
        close(fd);
        sync();
        sync();
        ok(write(go[1], "x", 1));
        reap(pid);
    } else {
        sync();
        show_events("still open", fd);
        sync();
        show_rest("recv", fd);
    }
    sync();
}

TCP_KERNEL_PAIR_CASE(process, child_shuts, 13) {
    int fd = connection();
    at_left([&] {
        reap(child([&] { shutdown(fd, SHUT_WR); }));
        SHOW("send", send(fd, "x", 1, MSG_NOSIGNAL));
    });
    at_right([&] {
        show_read("end", fd, 10);
        put(fd, "answer");
    });
    at_left([&] { show_read("recv", fd, 10); });
}

TCP_KERNEL_CASE(process, child_connects, 17) {
    int listener = -1;
    at_server([&] { listener = listening(); });
    if (client()) {
        reap(child([&] {
            int fd = connecting(there(), port());
            converse(fd, "child");
        }));
        int fd = connecting(there(), port());
        converse(fd, "parent");
        reap(child([&] { put(fd, "and again"); }));
        close(fd);
    } else {
        answer_one(accepted(listener), "server");
        int fd = accepted(listener);
        answer_one(fd, "server");
        show_rest("rest", fd);
    }
    sync();
}

TCP_KERNEL_PAIR_CASE(process, inherited_by_exec, 22) {
    int fd = connection();
    if (left()) {
        run_after_exec("echo", fd);
        put(fd, " parent again");
        close(fd);
    } else {
        show_read("greeting", fd, 9, MSG_WAITALL);
        put(fd, "lower case");
        show_read("capitals", fd, 10, MSG_WAITALL);
        shutdown(fd, SHUT_WR);
        show_rest("rest", fd);
    }
    sync();
}

// While another process has the listener, too, the kernel accepts.
TCP_KERNEL_CASE(process, listener_inherited_by_exec, 23) {
    if (server()) {
        int listener = listening();
        sync();
        run_after_exec("accept", listener);
        put(accepted(listener), "from the parent");
    } else {
        sync();
        usleep(200'000);  // a handshake that is under way when the server forks:
                          // docs/architecture/differences.md, differences
        int fd = connecting(there(), port());
        converse(fd, "hello");
        fd = connecting(there(), port());
        show_read("recv", fd, 100);
    }
    sync();
}

TCP_KERNEL_PAIR_CASE(process, close_on_exec, 7) {
    int fd = connection();
    if (left()) {
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        run_after_exec("gone", fd);
        put(fd, "the parent has it");
        close(fd);
    } else {
        show_rest("recv", fd);
    }
    sync();
}

// As inetd does: a program that knows nothing of sockets.
TCP_KERNEL_CASE(process, cat_on_a_connection, 359) {
    int fd = connection();
    if (server()) {
        pid_t pid = fork();
        if (pid == 0) {
            dup2(fd, 0);
            dup2(fd, 1);
            close(fd);
            execlp("cat", "cat", nullptr);
            _exit(9);
        }
        close(fd);
        reap(pid);
    } else {
        put(fd, "to the cat");
        show_read("from the cat", fd, 10, MSG_WAITALL);
        put_bytes(fd, 100'000, 3);
        shutdown(fd, SHUT_WR);
        show_rest("from the cat", fd);
    }
    sync();
}

TCP_KERNEL_CASE(process, posix_spawn_on_a_connection, 13) {
    int fd = connection();
    if (server()) {
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, fd, 1);
        char* argv[] = {const_cast<char*>("echo"), const_cast<char*>("spawned"), nullptr};
        pid_t pid = -1;
        SHOW("spawn", posix_spawnp(&pid, "echo", &actions, nullptr, argv, environ));
        posix_spawn_file_actions_destroy(&actions);
        reap(pid);
        close(fd);
    } else {
        show_rest("recv", fd);
    }
    sync();
}

TCP_CASE(process, system_beside_a_connection) {
    int fd = connection();
    at_server([&] {
        put(fd, "before ");
        SHOW("system", system("true"));
        FILE* f = popen("echo from the shell", "r");
        char line[100] = {};
        if (fgets(line, sizeof line, f) == nullptr) say("no line");
        SHOW("pclose", pclose(f));
        put(fd, line);
        close(fd);
    });
    at_client([&] { show_rest("recv", fd); });
}

TCP_KERNEL_PAIR_CASE(process, passed_to_a_child, 14) {
    int fd = connection();
    at_right([&] { put(fd, "before passing"); });
    if (left()) {
        await_bytes(fd, 14);
        int pair[2];
        ok(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
        pid_t pid = child([&] {
            close(fd);
            int got = take_descriptor(pair[1]);
            await_word(pair[1]);
            show_read("child: recv", got, 14, MSG_WAITALL);
            answer_one(got, "child");
        });
        send_descriptor(pair[0], fd);
        SHOW("close", close(fd));
        ok(write(pair[0], "g", 1));
        sync();
        reap(pid);
    } else {
        sync();
        converse(fd, "to whoever has it");
        show_read("end", fd, 10);
    }
    sync();
}

TCP_KERNEL_PAIR_CASE(process, passed_to_itself, 17) {
    int fd = connection();
    at_left([&] {
        int pair[2];
        ok(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
        send_descriptor(pair[0], fd);
        int got = take_descriptor(pair[1]);
        put(fd, "by the old number ");
        put(got, "by the new number");
        close(fd);
        shutdown(got, SHUT_WR);
    });
    at_right([&] {
        show_rest("recv", fd);
        put(fd, "back");
    });
}

TCP_KERNEL_CASE(process, listener_passed, 16) {
    if (server()) {
        int listener = listening(), pair[2];
        ok(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
        pid_t pid = child([&] {
            close(listener);
            int got = take_descriptor(pair[1]);
            answer_one(accepted(got), "child");
        });
        send_descriptor(pair[0], listener);
        close(listener);
        sync();
        reap(pid);
    } else {
        sync();
        int fd = connecting(there(), port());
        converse(fd, "hello");
        show_read("end", fd, 10);
    }
    sync();
}

// exit() with the send queue full: all of it arrives, and the end. The kernel may have to send 4 MiB, and
// get an ACK for each segment.
TCP_KERNEL_PAIR_CASE(process, exit_with_unsent_data, 5800) {
    int report[2];
    ok(pipe(report));
    long total = 0;
    int listener = -1;
    at_right([&] { listener = listening(5); });
    if (left()) {
        pid_t pid = child([&] {
            int c = connecting(there(), port(5));
            long n = static_cast<long>(fill(c));
            ok(write(report[1], &n, sizeof n));
            exit(0);
        });
        ok(read(report[0], &total, sizeof total));
        reap(pid);
        exchange(total);
    } else {
        int c = accepted(listener);
        total = exchange(0);
        drain(c, static_cast<size_t>(total));
        show_read("end", c, 10);
        close(listener);
    }
    sync();
}

// The same without any farewell. What was acknowledged before has arrived in any case; an end follows.
TCP_KILLED_CASE(process, killed) {
    int listener = -1, report[2];
    ok(pipe(report));
    at_client([&] { listener = listening(6); });
    if (server()) {
        pid_t pid = child([&] {
            int c = connecting(there(), port(6));
            put(c, "delivered");
            await_acked(c);
            ok(write(report[1], "x", 1));
            pause();
        });
        char x;
        ok(read(report[0], &x, 1));
        kill(pid, SIGKILL);
        reap(pid);
    } else {
        int c = accepted(listener);
        show_rest("recv", c);
        close(listener);
    }
    sync();
}

TCP_KILLED_CASE(process, killed_with_unread_data) {
    int listener = -1, report[2];
    ok(pipe(report));
    at_client([&] { listener = listening(7); });
    if (server()) {
        pid_t pid = child([&] {
            int c = connecting(there(), port(7));
            await_bytes(c, 6);
            ok(write(report[1], "x", 1));
            pause();
        });
        char x;
        ok(read(report[0], &x, 1));
        kill(pid, SIGKILL);
        reap(pid);
    } else {
        int c = accepted(listener);
        put(c, "unread");
        await_events(c, POLLERR);
        show_read("reset", c, 10);
        close(listener);
    }
    sync();
}

TCP_KERNEL_CASE(process, exec_replaces_the_program, 23) {
    int fd = connection();
    if (server()) {
        // The child is a program that uses its connection, then becomes another program with it.
        pid_t pid = child([&] {
            answer_one(fd, "before exec");
            std::string program = self(), number = std::to_string(fd);
            execl(program.c_str(), program.c_str(), "--exec", "echo", number.c_str(), nullptr);
            _exit(9);
        });
        close(fd);
        reap(pid);
    } else {
        put(fd, "one");
        show_read("answer", fd, 15, MSG_WAITALL);
        show_read("greeting", fd, 9, MSG_WAITALL);
        put(fd, "two");
        show_read("capitals", fd, 3, MSG_WAITALL);
        shutdown(fd, SHUT_WR);
        show_rest("rest", fd);
    }
    sync();
}

// ---- children in the parent's memory ----

namespace {

const char* const kEcho[] = {"--exec", "echo"};
int g_vforked;

// What subprocess.Popen(stdin=connection) of Python does.
[[gnu::noinline]] pid_t vfork_cat(int fd) {
    pid_t pid = vfork();
    if (pid == 0) {
        dup2(fd, 0);
        dup2(fd, 1);
        close_range(3, ~0u, 0);
        execlp("cat", "cat", nullptr);
        _exit(9);
    }
    return pid;
}

[[gnu::noinline]] pid_t clone_cat(int fd) {
    g_vforked = fd;
    std::vector<char> stack(256 << 10);
    auto child = [](void*) -> int {
        dup2(g_vforked, 0);
        dup2(g_vforked, 1);
        execlp("cat", "cat", nullptr);
        _exit(9);
    };
    return clone(child, stack.data() + stack.size(), CLONE_VM | CLONE_VFORK | SIGCHLD, nullptr);
}

// Its own number goes over exec.
[[gnu::noinline]] pid_t vfork_itself(const char* program, const char* number) {
    pid_t pid = vfork();
    if (pid == 0) {
        execl(program, program, kEcho[0], kEcho[1], number, nullptr);
        _exit(9);
    }
    return pid;
}

void converse_with_cat(int fd) {
    put(fd, "to the cat");
    show_read("from the cat", fd, 10, MSG_WAITALL);
    put_bytes(fd, 100'000, 3);
    shutdown(fd, SHUT_WR);
    show_rest("from the cat", fd);
}

// `start` makes a child that is a cat with the connection as input and output.
void through_a_cat(pid_t (*start)(int fd)) {
    int fd = connection();
    if (left()) {
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        pid_t pid = start(fd);
        close(fd);
        reap(pid);
    } else {
        converse_with_cat(fd);
    }
    sync();
}

}  // namespace

TCP_KERNEL_PAIR_CASE(process, vfork_and_cat, 500) { through_a_cat(vfork_cat); }
TCP_KERNEL_PAIR_CASE(process, clone_as_vfork_and_cat, 500) { through_a_cat(clone_cat); }

TCP_KERNEL_PAIR_CASE(process, vfork_inherits, 25) {
    int fd = connection();
    if (left()) {
        const std::string program = self(), number = std::to_string(fd);
        reap(vfork_itself(program.c_str(), number.c_str()));
        put(fd, " parent again");
        close(fd);
    } else {
        show_read("greeting", fd, 9, MSG_WAITALL);
        put(fd, "lower case");
        show_read("capitals", fd, 10, MSG_WAITALL);
        shutdown(fd, SHUT_WR);
        show_rest("rest", fd);
    }
    sync();
}

// A vforked child that does not take the connection along leaves it where it was.
TCP_PAIR_CASE(process, vfork_leaves_alone) {
    int fd = connection();
    at_left([&] {
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        pid_t pid = vfork();
        if (pid == 0) {
            execlp("true", "true", nullptr);
            _exit(9);
        }
        reap(pid);
        put(fd, "mine still");
    });
    at_right([&] {
        show_read("recv", fd, 100);
        put(fd, "answer");
    });
    at_left([&] { show_read("recv", fd, 100); });
    close(fd);  // the second half takes nothing of this one over exec
}

// exec ends a connection that it closes, after what is queued.
TCP_KERNEL_PAIR_CASE(process, closed_by_exec, 4300) {
    int report[2], listener = -1;
    long total = 0;
    ok(pipe(report));
    at_right([&] { listener = listening(5); });
    if (left()) {
        pid_t pid = child([&] {
            int c = connecting(there(), port(5));
            fcntl(c, F_SETFD, FD_CLOEXEC);
            long n = static_cast<long>(fill(c));
            ok(write(report[1], &n, sizeof n));
            execlp("sleep", "sleep", "0.1", nullptr);
        });
        ok(read(report[0], &total, sizeof total));
        exchange(total);
        reap(pid);
    } else {
        int c = accepted(listener);
        total = exchange(0);
        drain(c, static_cast<size_t>(total));
        show_read("end", c, 10);
        close(listener);
    }
    sync();
}

// A daemon gives up root while it has a connection; what it has queued arrives, and so does what comes later.
// That is some 4400 packets of the kernel's, with more ACKs where the machine is busy.
TCP_KERNEL_PAIR_CASE(process, privileges_given_up, 5000) {
    int report[2], listener = -1;
    long total = 0;
    ok(pipe(report));
    at_right([&] { listener = listening(5); });
    if (left()) {
        pid_t pid = child([&] {
            int c = connecting(there(), port(5));
            put(c, "as root ");
            SHOW("setuid", setuid(65534));
            int later = connecting(there(), port(5));
            put(later, "as nobody");
            long n = static_cast<long>(fill(c));
            ok(write(report[1], &n, sizeof n));
            exit(0);
        });
        ok(read(report[0], &total, sizeof total));
        reap(pid);
        exchange(total);
    } else {
        int c = accepted(listener), later = accepted(listener);
        show_read("recv", c, 8, MSG_WAITALL);
        total = exchange(0);
        drain(c, static_cast<size_t>(total));
        show_read("end", c, 10);
        show_rest("recv", later);
        close(listener);
    }
    sync();
}

// ---- epoll sets over fork ----

TCP_KERNEL_PAIR_CASE(process, child_waits_on_an_epoll_set, 40) {
    int fd = connection(), set = epoll_create1(0);
    epoll_event event{EPOLLIN | EPOLLRDHUP, {.u64 = 7}};
    auto wait = [&](const char* what, int msec) {
        event = {};
        SHOW(what, epoll_wait(set, &event, 1, msec));
        say("events %x data %d", event.events, static_cast<int>(event.data.u64));
    };
    SHOW("add", epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    at_right([&] { put(fd, "one"); });
    at_left([&] {
        wait("parent", 5000);
        show_read("recv", fd, 10);
    });
    int told[2];
    ok(pipe(told));
    pid_t pid = -1;
    if (left()) {
        pid = child([&] {
            wait("child: nothing", 0);
            ok(write(told[1], "x", 1));
            wait("child", 5000);
            show_read("child: recv", fd, 10);
            put(fd, "from the child");
        });
        char c;
        ok(read(told[0], &c, 1));
    }
    sync();
    at_right([&] {
        put(fd, "two");
        show_read("recv", fd, 14, MSG_WAITALL);
    });
    if (left()) reap(pid);
    at_right([&] { put(fd, "three"); });
    at_left([&] {
        wait("parent again", 5000);
        show_read("recv", fd, 10);
        event = {EPOLLIN, {.u64 = 8}};
        SHOW("mod", epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
    });
    at_right([&] { close(fd); });
    at_left([&] { wait("end", 5000); });
}

// A member whose last number is closed here lives on in a child, and so in the set.
TCP_KERNEL_PAIR_CASE(process, member_closed_here_open_in_a_child, 40) {
    int fd = connection(), set = epoll_create1(0), narrow = epoll_create1(0);
    if (left()) {
        auto look = [&](const char* what, int s) {
            epoll_event event{};
            SHOW(what, epoll_wait(s, &event, 1, 0));
            say("events %x data %d", event.events, static_cast<int>(event.data.u64));
            pollfd p{s, POLLIN, 0};
            SHOW("poll", poll(&p, 1, 0));
        };
        epoll_event event{EPOLLIN, {.u64 = 7}};
        SHOW("add", epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
        event = {EPOLLOUT | EPOLLRDHUP, {.u64 = 8}};
        SHOW("add", epoll_ctl(narrow, EPOLL_CTL_ADD, fd, &event));
        look("nothing", set);
        int told[2];
        ok(pipe(told));
        const pid_t pid = child([&] {
            close(told[1]);
            await_word(told[0]);
            show_rest("child: recv", fd);
            close(fd);
        });
        look("forked", narrow);
        SHOW("close", close(fd));
        look("closed", set);
        look("closed", narrow);
        sync();
        sync();  // data and the end have come
        for (int i = 0; i < 1000; i++) {
            pollfd p{set, POLLIN, 0};
            if (poll(&p, 1, 5) > 0) break;
        }
        look("data", set);
        look("data", narrow);
        ok(write(told[1], "x", 1));
        reap(pid);
        look("gone", set);
        look("gone", narrow);
        for (int s : {set, narrow, told[0], told[1]}) close(s);
    } else {
        sync();
        put(fd, "data");
        shutdown(fd, SHUT_WR);
        sync();
        show_rest("recv", fd);
        close(fd);
    }
    sync();
}

// daemon() by hand: the parent goes at once.
TCP_KERNEL_PAIR_CASE(process, daemon_with_an_epoll_set, 25) {
    int told[2], listener = -1;
    ok(pipe(told));
    at_right([&] { listener = listening(5); });
    if (left()) {
        const bool by_libc = !server();
        pid_t pid = child([&] {
            int c = connecting(there(), port(5)), set = epoll_create1(0);
            epoll_event event{EPOLLIN, {.u64 = 7}};
            epoll_ctl(set, EPOLL_CTL_ADD, c, &event);
            if (by_libc ? daemon(1, 1) != 0 : fork() != 0) _exit(0);
            SHOW("daemon: wait", epoll_wait(set, &event, 1, 5000));
            show_read("daemon: recv", c, 10);
            put(c, "from the daemon");
            close(c);
            ok(write(told[1], "x", 1));
        });
        sync();
        char c;
        ok(read(told[0], &c, 1));
        reap(pid);
    } else {
        int c = accepted(listener);
        sync();
        put(c, "to it");
        show_rest("recv", c);
        close(listener);
    }
    sync();
}

TCP_PAIR_CASE(process, fcntl_flags) {
    int fd = connection();
    say("flags %x", fcntl(fd, F_GETFL) & ~O_LARGEFILE);
    SHOW("set", fcntl(fd, F_SETFL, O_NONBLOCK | O_APPEND));
    say("flags %x", fcntl(fd, F_GETFL) & ~O_LARGEFILE);
    SHOW("set", fcntl(fd, F_SETFL, 0));
    say("flags %x", fcntl(fd, F_GETFL) & ~O_LARGEFILE);
    SHOW("F_SETOWN", fcntl(fd, F_SETOWN, getpid()));
    SHOW("F_SETSIG", fcntl(fd, F_SETSIG, SIGUSR1));
    say("signal %d", fcntl(fd, F_GETSIG) == SIGUSR1);
    SHOW("lock", fcntl(fd, F_GETLEASE));
    SHOW("unknown", fcntl(fd, 9999));
}

}  // namespace parity::tcp
