// SPDX-License-Identifier: BSD-2-Clause
// A program with a UDP socket that ends by a fault, or waits for a signal: preload_fatal ADDRESS fault |
// handler-before | handler-after | receive.
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

// The fault is what it is for, so no sanitizer shall see it first.
extern "C" __attribute__((visibility("default"), noinline, no_sanitize("undefined", "address"))) int
faulty_function(volatile int* where) {
    *where = 1;
    return *where;
}

namespace {

void leave(int) { _exit(42); }

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    const char* what = argv[2];
    if (strcmp(what, "handler-before") == 0) signal(SIGSEGV, leave);
    const int fd = socket(AF_INET, SOCK_DGRAM, 0);
    sockaddr_in here{};
    here.sin_family = AF_INET;
    here.sin_port = htons(5000);
    if (inet_pton(AF_INET, argv[1], &here.sin_addr) != 1) return 2;
    if (bind(fd, reinterpret_cast<sockaddr*>(&here), sizeof here) != 0) {
        perror("bind");
        return 1;
    }
    if (strcmp(what, "handler-after") == 0) signal(SIGSEGV, leave);
    if (strcmp(what, "receive") == 0) {
        puts("receiving");
        fflush(stdout);
        char data[100];
        return recv(fd, data, sizeof data, 0) >= 0 ? 0 : 1;
    }
    int* volatile nowhere = nullptr;
    return faulty_function(nowhere);
}
