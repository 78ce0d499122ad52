// SPDX-License-Identifier: BSD-2-Clause
// How long a process's first socket takes, and the first use of one. tests/bench/start_cost runs it again and
// again.
//
// Usage: first_socket LOCAL-ADDRESS. Prints, in microseconds: socket(), another socket(), bind() to the
// address, and in a forked child socket() and bind().
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

namespace {

double now_us() {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) / 1e3;
}

int check(int result, const char* what) {
    if (result >= 0) return result;
    perror(what);
    exit(1);
}

template <class Call>
int timed(const char* name, Call call) {
    const double from = now_us();
    const int result = call();
    const double took = now_us() - from;
    check(result, name);
    printf("%s %.1f\n", name, took);
    return result;
}

}  // namespace

int main(int argc, char** argv) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    if (argc != 2 || inet_pton(AF_INET, argv[1], &address.sin_addr) != 1) {
        fputs("usage: first_socket LOCAL-ADDRESS\n", stderr);
        return 2;
    }
    auto datagrams = [] { return socket(AF_INET, SOCK_DGRAM, 0); };
    auto bound = [&](int fd) {
        return bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
    };
    const int first = timed("socket", datagrams);
    timed("second_socket", [] { return socket(AF_INET, SOCK_STREAM, 0); });
    timed("bind", [&] { return bound(first); });
    fflush(stdout);
    const pid_t child = check(fork(), "fork");
    if (child == 0) {
        const int own = timed("child_socket", datagrams);
        timed("child_bind", [&] { return bound(own); });
        exit(0);
    }
    int status = 0;
    check(waitpid(child, &status, 0), "waitpid");
    return status == 0 ? 0 : 1;
}
