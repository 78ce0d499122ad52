// SPDX-License-Identifier: BSD-2-Clause
// Every way to make a process, with UDP sockets open.
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "preload_loopback.h"

using namespace loopback;

extern char** environ;

namespace {

int g_pair[2];

void echo(const char* what) {
    char buf[64] = {};
    send(g_pair[0], what, strlen(what), 0);
    long n = readable(g_pair[1]) ? recv(g_pair[1], buf, sizeof buf - 1, 0) : -1;
    printf("  %d: %ld '%s'\n", getpid() == getpgrp(), n, buf);
    fflush(stdout);
}

void reap(const char* what, pid_t pid) {
    int status = 0;
    if (pid < 0) return show(what, pid);
    pid_t got;
    do got = waitpid(pid, &status, __WALL);
    while (got < 0 && errno == EINTR);
    printf("%s: %s %d\n", what, WIFEXITED(status) ? "exit" : "signal",
           WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    fflush(stdout);
}

// In a child with memory of its own: the sockets must still work, and new ones too.
[[noreturn]] void child_work(int code) {
    echo("from the child");
    int p[2];
    udp_pair(p);
    char c = 0;
    send(p[0], "n", 1, 0);
    if (readable(p[1])) recv(p[1], &c, 1, 0);
    printf("  new pair: %c\n", c);
    fflush(stdout);
    _exit(code);
}

int clone_entry(void* arg) {
    printf("  clone argument %s\n", static_cast<const char*>(arg));
    child_work(5);
}

// Runs in the parent's memory: plain system calls only.
int vfork_like_entry(void*) {
    close(g_pair[0]);
    dup2(open("/dev/null", O_WRONLY), g_pair[1]);
    execl("/bin/true", "true", static_cast<char*>(nullptr));
    _exit(99);
}

[[gnu::noinline]] pid_t vfork_and_exec(bool through_syscall) {
    int log = dup(1);
    pid_t pid = through_syscall ? static_cast<pid_t>(syscall(SYS_vfork)) : vfork();
    if (pid == 0) {
        // what a shell does in there
        signal(SIGINT, SIG_DFL);
        close(g_pair[0]);
        close(g_pair[1]);
        int file = open("/dev/null", O_RDWR);
        dup2(file, g_pair[1]);
        dup2(log, 1);
        execlp("sh", "sh", "-c", "echo '  in sh'; exit 7", static_cast<char*>(nullptr));
        _exit(99);
    }
    close(log);
    return pid;
}

}  // namespace

int main(int argc, char** argv_given) {
    udp_pair(g_pair);
    echo("first");
    // libc's own syscall() cannot do this: the child's next call overwrites the return address of its parent.
    if (argc > 1 && strcmp(argv_given[1], "syscall-vfork") == 0) {
        reap("syscall vfork and exec", vfork_and_exec(true));
        echo("after syscall vfork");
        return 0;
    }

    pid_t pid = fork();
    if (pid == 0) child_work(1);
    reap("fork", pid);
    echo("after fork");

    pid = _Fork();
    if (pid == 0) child_work(2);
    reap("_Fork", pid);

    pid = static_cast<pid_t>(syscall(SYS_fork));
    if (pid == 0) child_work(3);
    reap("syscall fork", pid);

    pid = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, 0));
    if (pid == 0) child_work(4);
    reap("syscall clone", pid);

    clone_args args{};
    args.exit_signal = SIGCHLD;
    pid = static_cast<pid_t>(syscall(SYS_clone3, &args, sizeof args));
    if (pid == 0) child_work(6);
    reap("syscall clone3", pid);

    const size_t size = 256 * 1024;
    char* stack = static_cast<char*>(
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0));
    reap("clone", clone(clone_entry, stack + size, SIGCHLD, const_cast<char*>("text")));
    echo("after clone");
    reap("clone as vfork", clone(vfork_like_entry, stack + size, CLONE_VM | CLONE_VFORK | SIGCHLD, nullptr));
    echo("after clone as vfork");
    show("clone without stack", clone(clone_entry, nullptr, SIGCHLD, nullptr));

    pid = vfork();
    if (pid == 0) _exit(8);
    reap("vfork", pid);
    reap("vfork and exec", vfork_and_exec(false));
    echo("after vfork");
    static int i;  // not in a register that the child could have changed
    for (i = 0; i < 200; i++) {
        pid = vfork();
        if (pid == 0) {
            close(g_pair[i & 1]);
            _exit(0);
        }
        int status;
        waitpid(pid, &status, 0);
    }
    echo("after 200 vforks");

    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addclose(&actions, g_pair[0]);
    posix_spawn_file_actions_adddup2(&actions, 1, g_pair[1]);
    posix_spawn_file_actions_addopen(&actions, 20, "/dev/null", O_RDWR, 0);
    char sh[] = "sh", dash_c[] = "-c", command[128];
    snprintf(command, sizeof command, "echo '  spawned' >&%d; set -- /proc/self/fd/*; echo $#; exit 9",
             g_pair[1]);
    char* argv[] = {sh, dash_c, command, nullptr};
    pid = -1;
    int spawned = posix_spawnp(&pid, "sh", &actions, nullptr, argv, environ);
    reap("posix_spawnp", pid);
    show("posix_spawnp", spawned);
    posix_spawn_file_actions_destroy(&actions);
    show("posix_spawn missing", posix_spawn(&pid, "/no/such/file", nullptr, nullptr, argv, environ));
    echo("after spawn");

    show("system", WEXITSTATUS(system("echo '  by system'; exit 3")));
    FILE* p = popen("cat; exit 4", "w");
    fputs("  by popen\n", p);
    show("pclose", WEXITSTATUS(pclose(p)));

    pid = fork();
    if (pid == 0) {
        char name[] = "true";
        char* none[] = {name, nullptr};
        char env0[] = "A=b";
        char* env[] = {env0, nullptr};
        show("execv missing", execv("/no/such", none));
        show("execve missing", execve("/no/such", none, env));
        show("execvp missing", execvp("no-such-program", none));
        show("execvpe missing", execvpe("no-such-program", none, env));
        show("execl missing", execl("/no/such", "a", "b", static_cast<char*>(nullptr)));
        show("fexecve bad", fexecve(-1, none, env));
        show("execveat bad", execveat(-1, "x", none, env, 0));
        echo("after failed exec");
        execle("/bin/sh", "sh", "-c", "echo \"  $A $1 $2 $3\"; exit 11", "0", "1", "2", "3",
               static_cast<char*>(nullptr), env);
        _exit(99);
    }
    reap("execle", pid);

    // An inherited socket is the kernel's after exec.
    pid = fork();
    if (pid == 0) {
        char command2[256];
        snprintf(command2, sizeof command2, "echo -n 'from exec' >&%d", g_pair[0]);
        execl("/bin/bash", "bash", "-c", command2, static_cast<char*>(nullptr));
        _exit(99);
    }
    reap("exec with socket", pid);
    char buf[32] = {};
    show("recv from exec", readable(g_pair[1]) ? recv(g_pair[1], buf, sizeof buf - 1, 0) : 0);
    printf("  %s\n", buf);

    int report[2];
    (void)!pipe(report);
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        if (daemon(1, 0) != 0) _exit(1);
        dprintf(report[1], "daemon: session leader %d, input %zd\n", getsid(0) == getpid(), read(0, buf, 1));
        int fd = open("/dev/null", O_RDONLY);
        dprintf(report[1], "daemon: next number %s\n", fd > 2 ? "above 2" : "low");
        _exit(0);
    }
    close(report[1]);
    reap("daemon", pid);
    char text[128];
    for (ssize_t n; (n = read(report[0], text, sizeof text)) > 0;) printf("%.*s", static_cast<int>(n), text);
    echo("last");
}
