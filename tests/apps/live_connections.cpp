// SPDX-License-Identifier: BSD-2-Clause
// Connections that all stay open while something happens to the network.
//
//   live_connections ADDRESS PORT COUNT
//
// Opens COUNT connections to a server that echoes. Then, round after round until SIGTERM, each connection
// gets back what it sends. Prints "round N" after each; a byte that is missing or wrong ends the program
// with 1.
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

namespace {

volatile sig_atomic_t g_end = 0;

// The signal ends a call that waits with EINTR: the end is no fault.
int fault(const char* what, std::size_t number) {
    if (g_end != 0) return 0;
    printf("fault: connection %zu: %s: %s\n", number, what, strerror(errno));
    return 1;
}

// What connection `number` sends in a round.
void fill(std::vector<char>& bytes, unsigned round, std::size_t number) {
    for (std::size_t at = 0; at < bytes.size(); at++) bytes[at] = static_cast<char>(round + number + 7 * at);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 4) return 2;
    setvbuf(stdout, nullptr, _IOLBF, 0);
    signal(SIGTERM, [](int) { g_end = 1; });
    sockaddr_in server{};
    server.sin_family = AF_INET;
    server.sin_addr.s_addr = inet_addr(argv[1]);
    server.sin_port = htons(static_cast<in_port_t>(atoi(argv[2])));
    const timeval patience{60, 0};
    std::vector<int> connections(static_cast<std::size_t>(atoi(argv[3])));
    for (std::size_t i = 0; i < connections.size(); i++) {
        const int fd = connections[i] = socket(AF_INET, SOCK_STREAM, 0);
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        if (connect(fd, reinterpret_cast<sockaddr*>(&server), sizeof server) != 0) return fault("connect", i);
    }
    std::vector<char> out(1000), in(out.size());
    for (unsigned round = 1; g_end == 0; round++) {
        for (std::size_t i = 0; i < connections.size(); i++) {
            fill(out, round, i);
            if (send(connections[i], out.data(), out.size(), MSG_NOSIGNAL) !=
                static_cast<ssize_t>(out.size()))
                return fault("send", i);
        }
        for (std::size_t i = 0; i < connections.size(); i++) {
            fill(out, round, i);
            if (recv(connections[i], in.data(), in.size(), MSG_WAITALL) != static_cast<ssize_t>(in.size()))
                return fault("recv", i);
            if (in != out) return fault("wrong bytes", i);
        }
        printf("round %u\n", round);
    }
    return 0;
}
