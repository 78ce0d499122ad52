// SPDX-License-Identifier: BSD-2-Clause
// One end of a TCP conversation that counts its own calls and bytes, for tests of the statistics.
//
//   app_stats_tcp server|client ADDRESS PORT ROUNDS LENGTH [move]
//
// The client sends LENGTH bytes and waits for them to come back, ROUNDS times. move: in the middle an option
// is set that only the kernel serves. Prints "ready" when it listens, then "sent=<calls> <bytes> got=<calls>
// <bytes> eagain=<calls>", and ends when its descriptor 3 reports the end of file.
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace {

long sent_calls, sent_bytes, got_calls, got_bytes, eagain;

bool send_all(int fd, const char* data, size_t length) {
    while (length != 0) {
        const ssize_t n = send(fd, data, length, MSG_NOSIGNAL);
        if (n <= 0) return false;
        sent_calls++;
        sent_bytes += n;
        data += n;
        length -= static_cast<size_t>(n);
    }
    return true;
}

bool receive_all(int fd, char* data, size_t length) {
    while (length != 0) {
        const ssize_t n = recv(fd, data, length, 0);
        if (n <= 0) return false;
        got_calls++;
        got_bytes += n;
        data += n;
        length -= static_cast<size_t>(n);
    }
    return true;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 6) return 2;
    const bool server = strcmp(argv[1], "server") == 0, move = argc > 6 && strcmp(argv[6], "move") == 0;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    inet_pton(AF_INET, argv[2], &address.sin_addr);
    address.sin_port = htons(static_cast<uint16_t>(atoi(argv[3])));
    const int rounds = atoi(argv[4]);
    std::vector<char> data(static_cast<size_t>(atoi(argv[5])), 'x');

    int fd = socket(AF_INET, SOCK_STREAM, 0);
    auto* name = reinterpret_cast<sockaddr*>(&address);
    if (server) {
        const int on = 1, listener = fd;
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(listener, name, sizeof address) != 0 || listen(listener, 5) != 0) return 3;
        puts("ready");
        fflush(stdout);
        fd = accept(listener, nullptr, nullptr);
    } else if (connect(fd, name, sizeof address) != 0) {
        perror("connect");
        return 4;
    }
    if (fd < 0) return 5;
    char byte;
    if (recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0 && errno == EAGAIN) eagain++;
    bool good = true;
    for (int i = 0; good && i < rounds; i++) {
        if (move && i == rounds / 2) {
            const unsigned rate = 1'000'000'000;
            if (setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate) != 0) return 6;
        }
        if (server)
            good = receive_all(fd, data.data(), data.size()) && send_all(fd, data.data(), data.size());
        else
            good = send_all(fd, data.data(), data.size()) && receive_all(fd, data.data(), data.size());
    }
    printf("sent=%ld %ld got=%ld %ld eagain=%ld\n", sent_calls, sent_bytes, got_calls, got_bytes, eagain);
    fflush(stdout);
    while (read(3, &byte, 1) > 0) {
    }
    close(fd);
    return good ? 0 : 7;
}
