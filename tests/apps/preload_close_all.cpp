// SPDX-License-Identifier: BSD-2-Clause
// Programs that close what they do not know, and expect the lowest free numbers afterwards.
#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "preload_loopback.h"

using namespace loopback;

namespace {

void start_sockets() {
    int p[2];
    udp_pair(p);
    send(p[0], "x", 1, 0);
    char c;
    recv(p[1], &c, 1, 0);
}

void open_some(const char* after) {
    printf("after %s:", after);
    for (int i = 0; i < 4; i++) printf(" %d", open("/dev/null", O_RDONLY | O_CLOEXEC));
    int p[2];
    (void)!pipe(p);
    printf(" %d %d", p[0], p[1]);
    udp_pair(p);
    printf(" %d %d", p[0], p[1]);
    send(p[0], "again", 5, 0);
    char buf[8] = {};
    long n = readable(p[1]) ? recv(p[1], buf, sizeof buf, 0) : -1;
    printf(" %ld %s\n", n, buf);
}

}  // namespace

int main() {
    start_sockets();
    show("close_range", close_range(3, ~0u, 0));
    open_some("close_range");
    show("close_range cloexec", close_range(3, ~0u, CLOSE_RANGE_CLOEXEC));
    show("F_GETFD", fcntl(8, F_GETFD));
    show("close_range backwards", close_range(5, 4, 0));
    show("close_range bad flag", close_range(3, ~0u, 0x80));
    closefrom(3);
    open_some("closefrom");
    show("close_range unshare", close_range(3, ~0u, CLOSE_RANGE_UNSHARE));
    open_some("unshare");
    show("syscall close_range", syscall(SYS_close_range, 3, ~0u, 0));
    open_some("syscall close_range");
    int closed = 0;
    for (int fd = 3; fd < 4096; fd++)
        if (close(fd) == 0) closed++;
    show("closed one by one", closed);
    open_some("loop");
    closed = 0;
    for (int fd = 3; fd < 4096; fd++)
        if (fcntl(fd, F_GETFD) >= 0) closed++;
    show("seen open", closed);
    for (int fd = 1090; fd < 1200; fd++)
        if (dup2(0, fd) != fd) printf("dup2 to %d failed\n", fd);
    start_sockets();
    show("close_range part", close_range(100, 2000, 0));
    show("shut by now", fcntl(1100, F_GETFD));
    // stderr closed and reused: nothing of the library may appear in the program's file
    close(2);
    int file = open(".", O_TMPFILE | O_RDWR, 0600);
    show("descriptor 2", file);
    start_sockets();
    show("bytes written there", lseek(2, 0, SEEK_END));
}
