// SPDX-License-Identifier: BSD-2-Clause
// A server that says what it reads of one connection, and where the urgent mark stands.
//
//   urgent_reader PORT at_once|told [inline] [late]
//
// It accepts, and reads to the end or the first error, 64 bytes at most in a call: at once, or when its
// stdin says so. `inline`: SO_OOBINLINE. `late`: that comes before it accepts. Bytes are told by number and
// sum, not by call: where one call ends depends on what has come.
#include <arpa/inet.h>
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

namespace {

void connected(bool wait) {
    puts("connected");
    fflush(stdout);
    pollfd p{STDIN_FILENO, POLLIN, 0};
    if (wait) poll(&p, 1, -1);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 3) return 2;
    bool inlined = false, late = false;
    for (int i = 3; i < argc; i++) {
        inlined |= strcmp(argv[i], "inline") == 0;
        late |= strcmp(argv[i], "late") == 0;
    }
    const bool told_when = strcmp(argv[2], "told") == 0;
    const int one = 1;
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (inlined) setsockopt(listener, SOL_SOCKET, SO_OOBINLINE, &one, sizeof one);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(static_cast<in_port_t>(atoi(argv[1])));
    if (bind(listener, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0 || listen(listener, 5) != 0)
        return 1;
    puts("ready");
    fflush(stdout);
    if (late) {
        pollfd p{listener, POLLIN, 0};
        poll(&p, 1, 10000);
        connected(told_when);
    }
    const int fd = accept(listener, nullptr, nullptr);
    if (fd < 0) return 1;
    if (!late) connected(told_when);
    long bytes = 0;
    unsigned sum = 0, in_vain = 0;
    bool told = false;
    for (;;) {
        int mark = 0;
        if (ioctl(fd, SIOCATMARK, &mark) == 0 && mark && !told) {
            told = true;
            char urgent = 0;
            const ssize_t n = inlined ? 0 : recv(fd, &urgent, 1, MSG_OOB | MSG_DONTWAIT);
            printf("mark after %ld, urgent %s %d\n", bytes, n < 0 ? strerrorname_np(errno) : "byte", urgent);
        }
        pollfd p{fd, POLLIN, 0};
        if (poll(&p, 1, 600) == 0) {
            printf("read %ld, sum %u, then nothing\n", bytes, sum);
            break;
        }
        char some[64];
        const ssize_t n = recv(fd, some, sizeof some, MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN && ++in_vain < 60) {  // poll() counts an urgent byte that recv() skips
            usleep(10000);
            continue;
        }
        if (n <= 0) {
            printf("read %ld, sum %u, then %s\n", bytes, sum, n == 0 ? "end" : strerrorname_np(errno));
            break;
        }
        for (ssize_t i = 0; i < n; i++) sum = sum * 31 + static_cast<unsigned char>(some[i]);
        bytes += n;
    }
    fflush(stdout);
    return 0;
}
