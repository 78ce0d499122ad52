// SPDX-License-Identifier: BSD-2-Clause
// syscall() instead of libc's functions.
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "preload_loopback.h"

using namespace loopback;

int main() {
    errno = 0;
    show("getpid", syscall(SYS_getpid) == getpid());
    show("errno", errno);
    show("no such call", syscall(9999));
    show("no such call", syscall(511));
    show("close -1", syscall(SYS_close, -1));
    void* m = reinterpret_cast<void*>(
        syscall(SYS_mmap, nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    show("mmap", m != MAP_FAILED);
    // six arguments, the last one of which counts
    int file = static_cast<int>(syscall(SYS_memfd_create, "f", 0));
    show("ftruncate", syscall(SYS_ftruncate, file, 8192));
    show("pwrite64", syscall(SYS_pwrite64, file, "Z", 1, 4096));
    char* z = reinterpret_cast<char*>(syscall(SYS_mmap, nullptr, 4096, PROT_READ, MAP_PRIVATE, file, 4096));
    printf("  %c\n", *z);
    int word = 1;
    show("futex", syscall(SYS_futex, &word, FUTEX_WAIT, 0, nullptr, nullptr, 0));

    int a = static_cast<int>(syscall(SYS_socket, AF_INET, SOCK_DGRAM, 0));
    int b = static_cast<int>(syscall(SYS_socket, AF_INET, SOCK_DGRAM, 0));
    sockaddr_in addr = any_port();
    socklen_t len = sizeof addr;
    show("bind", syscall(SYS_bind, a, &addr, sizeof addr));
    show("getsockname", syscall(SYS_getsockname, a, &addr, &len));
    show("connect", syscall(SYS_connect, b, &addr, sizeof addr));
    show("sendto", syscall(SYS_sendto, b, "hello", 5, 0, nullptr, 0));
    show("write", syscall(SYS_write, b, "world", 5));
    pollfd p{a, POLLIN, 0};
    show("poll", syscall(SYS_poll, &p, 1, 1000));
    timespec limit{5, 0};
    unsigned long mask = 1ul << (SIGUSR1 - 1);
    show("ppoll", syscall(SYS_ppoll, &p, 1, &limit, &mask, 8));
    show("  time was taken", limit.tv_sec < 5);
    show("ppoll bad set size", syscall(SYS_ppoll, &p, 1, &limit, &mask, 16));
    show("ppoll bad descriptors", syscall(SYS_ppoll, 8, 1, &limit, nullptr, 8));
    show("ppoll bad time", syscall(SYS_ppoll, &p, 1, 8, nullptr, 8));
    show("ppoll bad set", syscall(SYS_ppoll, &p, 1, &limit, 8, 8));
    fd_set set;
    FD_ZERO(&set);
    FD_SET(a, &set);
    struct {
        unsigned long* mask;
        size_t size;
    } signals{&mask, 8};
    limit = {5, 0};
    show("pselect6", syscall(SYS_pselect6, a + 1, &set, nullptr, nullptr, &limit, &signals));
    show("  time was taken", limit.tv_sec < 5);
    int e = static_cast<int>(syscall(SYS_epoll_create1, 0));
    epoll_event ev{EPOLLIN, {.fd = a}};
    show("epoll_ctl", syscall(SYS_epoll_ctl, e, EPOLL_CTL_ADD, a, &ev));
    show("epoll_wait", syscall(SYS_epoll_wait, e, &ev, 1, 1000));
    show("epoll_pwait", syscall(SYS_epoll_pwait, e, &ev, 1, 1000, nullptr, 8));
    char buf[16] = {};
    show("recvfrom", syscall(SYS_recvfrom, a, buf, 16, 0, &addr, &len));
    show("read", syscall(SYS_read, a, buf, 16));
    printf("  %s\n", buf);
    show("recvfrom empty", syscall(SYS_recvfrom, a, buf, 16, MSG_DONTWAIT, nullptr, nullptr));
    show("fcntl", syscall(SYS_fcntl, a, F_GETFL));
    show("dup2", syscall(SYS_dup2, a, 60));
    show("close", syscall(SYS_close, a));
    syscall(SYS_sendto, b, "copy", 4, 0, nullptr, 0);
    show("read on copy", syscall(SYS_read, 60, buf, 16));
    show("close", syscall(SYS_close, 60));
    show("read closed", syscall(SYS_read, 60, buf, 16));
    // the number comes back as a file
    int f = static_cast<int>(syscall(SYS_openat, AT_FDCWD, "/dev/zero", O_RDONLY));
    show("openat", f == a);
    show("read zeros", syscall(SYS_read, f, buf, 4));

    // parent waits
    pid_t pid = static_cast<pid_t>(syscall(SYS_clone, CLONE_VFORK | SIGCHLD, nullptr, nullptr, nullptr, 0));
    if (pid == 0) syscall(SYS_exit_group, 12);
    int status = 0;
    waitpid(pid, &status, 0);
    show("clone", WEXITSTATUS(status));
}
