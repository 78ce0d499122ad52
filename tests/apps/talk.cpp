// SPDX-License-Identifier: BSD-2-Clause
// One end of a conversation over TCP and UDP, which checks each byte. A guest in an emulator runs it, so it
// starts quickly.
//
//   talk server ADDRESS[:PORT]
//   talk client ADDRESS[:PORT] EACH SIZE,SIZE,... [COMMAND]
//
// The server answers with what it gets, to one client. The client sends EACH messages of each size, one after
// the other (over TCP alone what no datagram holds), and prints as JSON how many came back whole, and which
// datagrams did not. COMMAND, for a shell, runs in the middle, without a library that is preloaded here. Both
// print how many datagrams the kernel had.
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <vector>

namespace {

constexpr int kPort = 7000;
constexpr int kConnectSeconds = 60;  // until a connection is there
constexpr int kAnswerSeconds = 3;    // for a datagram's answer
constexpr int kSegmentSeconds = 60;  // for what TCP brings
constexpr int kLongestDatagram = 65507;
constexpr int kLongestFrame = 1472;  // a longer datagram is several frames

using Bytes = std::vector<char>;

[[noreturn]] void fail(const char* what) {
    fprintf(stderr, "talk: %s: %s\n", what, strerror(errno));
    exit(1);
}
void check(bool good, const char* what) {
    if (!good) fail(what);
}

sockaddr_in address_of(const char* text) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    const std::string both = text;
    const std::size_t colon = both.find(':');
    const int port = colon == both.npos ? kPort : atoi(both.c_str() + colon + 1);
    address.sin_port = htons(static_cast<in_port_t>(port));
    check(inet_pton(AF_INET, both.substr(0, colon).c_str(), &address.sin_addr) == 1, text);
    return address;
}
int connect_to(int fd, const sockaddr_in& to) {
    return connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to);
}

Bytes content(int size, int number) {
    Bytes bytes(static_cast<std::size_t>(size));
    for (int i = 0; i < size; i++) bytes[static_cast<std::size_t>(i)] = static_cast<char>(7 * i + number);
    return bytes;
}

void send_all(int fd, const char* bytes, std::size_t length) {
    while (length > 0) {
        const ssize_t sent = send(fd, bytes, length, MSG_NOSIGNAL);
        check(sent > 0, "send over TCP");
        bytes += sent;
        length -= static_cast<std::size_t>(sent);
    }
}

// The number of the kernel's /proc/net/snmp.
long datagrams_of_the_kernel() {
    FILE* file = fopen("/proc/net/snmp", "r");
    check(file != nullptr, "/proc/net/snmp");
    char line[4096];
    long datagrams = -1;
    while (fgets(line, sizeof line, file) != nullptr) sscanf(line, "Udp: %ld", &datagrams);
    fclose(file);
    return datagrams;
}

void limit(int fd, int seconds) {
    const timeval time{seconds, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
}

int serve(const char* text) {
    const sockaddr_in address = address_of(text);
    const auto* own = reinterpret_cast<const sockaddr*>(&address);
    const int datagrams = socket(AF_INET, SOCK_DGRAM, 0), listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    check(bind(datagrams, own, sizeof address) == 0 && bind(listener, own, sizeof address) == 0, "bind");
    check(listen(listener, 1) == 0, "listen");
    int stream = -1;
    long before = 0;
    Bytes bytes(65536);
    while (true) {
        pollfd ready[] = {{datagrams, POLLIN, 0}, {stream < 0 ? listener : stream, POLLIN, 0}};
        check(poll(ready, 2, -1) > 0, "poll");
        if (ready[0].revents != 0) {
            sockaddr_in peer{};
            socklen_t length = sizeof peer;
            auto* from = reinterpret_cast<sockaddr*>(&peer);
            const ssize_t got = recvfrom(datagrams, bytes.data(), bytes.size(), MSG_DONTWAIT, from, &length);
            if (got >= 0) sendto(datagrams, bytes.data(), static_cast<std::size_t>(got), 0, from, length);
        }
        if (ready[1].revents == 0) continue;
        if (stream < 0) {
            stream = accept(listener, nullptr, nullptr);
            check(stream >= 0, "accept");
            before = datagrams_of_the_kernel();
            continue;
        }
        const ssize_t got = recv(stream, bytes.data(), bytes.size(), 0);
        check(got >= 0, "recv");
        if (got == 0) break;
        send_all(stream, bytes.data(), static_cast<std::size_t>(got));
    }
    printf("{\"kernel\": %ld}\n", datagrams_of_the_kernel() - before);
    return 0;
}

int connected(const sockaddr_in& server) {
    using Clock = std::chrono::steady_clock;
    for (const auto end = Clock::now() + std::chrono::seconds(kConnectSeconds); Clock::now() < end;) {
        const int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect_to(fd, server) == 0) return fd;
        close(fd);
        usleep(300'000);
    }
    fail("connect");
}

// What a peer answers to `bytes` over TCP is the same.
bool comes_back(int stream, const Bytes& bytes) {
    send_all(stream, bytes.data(), bytes.size());
    Bytes answer(bytes.size());
    for (std::size_t have = 0; have < answer.size();) {
        const ssize_t got = recv(stream, answer.data() + have, answer.size() - have, 0);
        if (got == 0) errno = ECONNRESET;
        check(got > 0, "recv over TCP");
        have += static_cast<std::size_t>(got);
    }
    return answer == bytes;
}

// The same over UDP; an answer that comes too late belongs to another datagram.
bool datagram_comes_back(int fd, const Bytes& bytes) {
    send(fd, bytes.data(), bytes.size(), 0);
    Bytes answer(65536);
    while (true) {
        const ssize_t got = recv(fd, answer.data(), answer.size(), 0);
        if (got < 0 && errno == ECONNREFUSED) continue;
        if (got < 0) return false;
        answer.resize(static_cast<std::size_t>(got));
        if (answer == bytes) return true;
        errno = EBADMSG;
        check(got > 0 && answer == content(static_cast<int>(got), answer[0]), "a datagram is damaged");
        answer.resize(65536);
    }
}

void run(const std::string& command) {
    const char* value = getenv("LD_PRELOAD");
    const std::string library = value != nullptr ? value : "";
    unsetenv("LD_PRELOAD");
    check(system(command.c_str()) == 0, command.c_str());
    if (!library.empty()) setenv("LD_PRELOAD", library.c_str(), 1);
}

int talk(const char* text, int each, const char* list, const char* command) {
    std::vector<int> sizes;
    for (const char* at = list; *at != '\0'; at += *at == ',') {
        char* end = nullptr;
        sizes.push_back(static_cast<int>(strtol(at, &end, 10)));
        at = end;
    }
    const sockaddr_in server = address_of(text);
    const int stream = connected(server), datagrams = socket(AF_INET, SOCK_DGRAM, 0), on = 1;
    setsockopt(stream, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    limit(stream, kSegmentSeconds);
    limit(datagrams, kAnswerSeconds);
    check(connect_to(datagrams, server) == 0, "connect a datagram socket");
    const long before = datagrams_of_the_kernel();
    int whole = 0, longer = 0;
    std::string lost;
    for (int number = 0; number < each; number++) {
        if (number == each / 2 && command != nullptr) run(command);
        for (const int size : sizes) {
            const Bytes bytes = content(size, number);
            whole += comes_back(stream, bytes) ? 1 : 0;
            if (size > kLongestDatagram) continue;
            longer += size > kLongestFrame ? 1 : 0;
            if (!datagram_comes_back(datagrams, bytes))
                lost += (lost.empty() ? "" : ", ") + std::to_string(size);
        }
    }
    printf("{\"tcp\": %d, \"of\": %zu, \"lost\": [%s], \"long\": %d, \"kernel\": %ld}\n", whole,
           sizes.size() * static_cast<std::size_t>(each), lost.c_str(), longer,
           datagrams_of_the_kernel() - before);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc == 3 && strcmp(argv[1], "server") == 0) return serve(argv[2]);
    if ((argc == 5 || argc == 6) && strcmp(argv[1], "client") == 0)
        return talk(argv[2], atoi(argv[3]), argv[4], argv[5]);
    fprintf(stderr, "usage: talk server ADDRESS[:PORT] | talk client ADDRESS[:PORT] EACH SIZES [COMMAND]\n");
    return 2;
}
