// SPDX-License-Identifier: BSD-2-Clause
// What the programs that use the extra API share: checks, sockets towards the peer, and the peer itself.
#pragma once

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "include/mellanox/vma_extra.h"
#include "payload.h"

#define CHECK(condition)                                                                              \
    do {                                                                                              \
        if (!(condition)) {                                                                           \
            printf("%s:%d: %s (errno %s)\n", __FILE__, __LINE__, #condition, strerrorname_np(errno)); \
            fflush(stdout);                                                                           \
            _exit(1);                                                                                 \
        }                                                                                             \
    } while (0)
#define CHECK_FAILS(call, error) \
    do {                         \
        errno = 0;               \
        CHECK((call) < 0);       \
        CHECK(errno == (error)); \
    } while (0)

namespace extra {

inline vma_api_t* api = nullptr;
inline std::string own, peer;
inline long wanted = 0;  // by the command line: how much a case is to do; 0: as it likes
constexpr int kUdpPort = 6000, kTcpPort = 6001;

inline sockaddr_in at(const std::string& address, int port) {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_port = htons(static_cast<uint16_t>(port));
    inet_pton(AF_INET, address.c_str(), &name.sin_addr);
    return name;
}
inline const sockaddr* raw(const sockaddr_in& name) { return reinterpret_cast<const sockaddr*>(&name); }

inline void limit(int fd, int msec) {
    const timeval time{msec / 1000, msec % 1000 * 1000};
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
}

// A socket bound to this host, port 0: any, and connected to the peer.
inline int udp(int port = 0) {
    const int fd = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(fd >= 0);
    const sockaddr_in here = at(own, port), there = at(peer, kUdpPort);
    CHECK(bind(fd, raw(here), sizeof here) == 0);
    CHECK(connect(fd, raw(there), sizeof there) == 0);
    limit(fd, 5000);
    return fd;
}
inline int tcp() {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in there = at(peer, kTcpPort);
    CHECK(fd >= 0 && connect(fd, raw(there), sizeof there) == 0);
    limit(fd, 5000);
    return fd;
}

// The peer sends each datagram, and each byte of a stream, back.
inline void request(int fd, std::size_t length, std::uint32_t seed) {
    const auto bytes = payload::make(length, seed);
    CHECK(send(fd, bytes.data(), length, 0) == static_cast<ssize_t>(length));
}

// One zero-copy receive.
struct Packet {
    alignas(16) char buffer[8 + 16 + 64 * 16];
    int flags = 0;
    int bytes = -1;
    sockaddr_in from{};

    vma_packets_t* list() { return reinterpret_cast<vma_packets_t*>(buffer); }
    vma_packet_t& first() { return list()->pkts[0]; }
    int receive(int fd, int how = 0, std::size_t room = sizeof buffer) {
        flags = how;
        socklen_t length = sizeof from;
        return bytes =
                   api->recvfrom_zcopy(fd, buffer, room, &flags, reinterpret_cast<sockaddr*>(&from), &length);
    }
    bool held() const { return (flags & MSG_VMA_ZCOPY) != 0; }
    std::string content() {
        std::string all;
        iovec* const pieces = first().iov;
        for (std::size_t i = 0; i < first().sz_iov; i++)
            all.append(static_cast<char*>(pieces[i].iov_base), pieces[i].iov_len);
        return all;
    }
    int give_back(int fd) { return api->free_packets(fd, &first(), 1); }
};

// The packet with this id, as programs make it up.
inline int give_back(int fd, void* id) {
    vma_packet_t packet{};
    packet.packet_id = id;
    packet.sz_iov = 12345;
    return api->free_packets(fd, &packet, 1);
}

inline bool intact(const std::string& bytes) {
    return payload::intact(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
}
inline std::string made(std::size_t length, std::uint32_t seed) {
    const auto bytes = payload::make(length, seed);
    return std::string(bytes.begin(), bytes.end());
}

// The first datagrams may come through the kernel; then they are the library's.
inline Packet offloaded(int fd, std::size_t length = 100, std::uint32_t seed = 1) {
    for (int i = 0; i < 50; i++) {
        request(fd, length, seed);
        Packet packet;
        CHECK(packet.receive(fd) >= 0);
        if (packet.held()) return packet;
    }
    CHECK(!"never offloaded");
    return {};
}

// The neighbour is known, and the socket is the library's. A machine where others make interfaces may take
// seconds for that.
inline void warm(int fd) {
    const time_t end = time(nullptr) + 60;
    Packet packet;
    do {
        CHECK(time(nullptr) < end);
        request(fd, 10, 1);
        CHECK(packet.receive(fd) == 10);
    } while (!packet.held());
    CHECK(packet.give_back(fd) == 0);
}

// By recv(), whatever its length.
inline std::string receive(int fd, int flags = 0) {
    std::string bytes(65536, 0);
    const ssize_t n = recv(fd, bytes.data(), bytes.size(), flags);
    CHECK(n >= 0);
    bytes.resize(static_cast<std::size_t>(n));
    return bytes;
}

// Sends everything back until it is killed.
[[noreturn]] inline void serve() {
    const int datagrams = socket(AF_INET, SOCK_DGRAM, 0), listener = socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in here = at(own, kUdpPort), there = at(own, kTcpPort);
    const int big = 4 << 20;
    CHECK(setsockopt(datagrams, SOL_SOCKET, SO_RCVBUFFORCE, &big, sizeof big) == 0);
    CHECK(bind(datagrams, raw(here), sizeof here) == 0);
    CHECK(bind(listener, raw(there), sizeof there) == 0 && listen(listener, 64) == 0);
    printf("ready\n");
    fflush(stdout);
    std::vector<pollfd> fds{{datagrams, POLLIN, 0}, {listener, POLLIN, 0}};
    std::map<int, std::string> owed;
    for (;;) {
        poll(fds.data(), fds.size(), -1);
        char bytes[65536];
        if ((fds[0].revents & POLLIN) != 0) {
            sockaddr_in from;
            socklen_t length = sizeof from;
            const ssize_t n =
                recvfrom(datagrams, bytes, sizeof bytes, 0, reinterpret_cast<sockaddr*>(&from), &length);
            if (n >= 0) sendto(datagrams, bytes, static_cast<std::size_t>(n), 0, raw(from), length);
        }
        for (std::size_t i = 2; i < fds.size(); i++) {
            if (fds[i].revents == 0) continue;
            std::string& back = owed[fds[i].fd];
            const ssize_t n = (fds[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0
                                  ? recv(fds[i].fd, bytes, sizeof bytes, MSG_DONTWAIT)
                                  : -2;
            if (n > 0) back.append(bytes, static_cast<std::size_t>(n));
            const ssize_t sent = send(fds[i].fd, back.data(), back.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
            if (sent > 0) back.erase(0, static_cast<std::size_t>(sent));
            fds[i].events =
                static_cast<short>((back.size() < 1 << 20 ? POLLIN : 0) | (back.empty() ? 0 : POLLOUT));
            if (n == 0 && back.empty()) {
                close(fds[i].fd);
                owed.erase(fds[i].fd);
                fds.erase(fds.begin() + static_cast<long>(i--));
            }
        }
        if ((fds[1].revents & POLLIN) != 0) fds.push_back({accept(listener, nullptr, nullptr), POLLIN, 0});
    }
}

// program peer OWN | program CASE OWN PEER [HOW MUCH]
inline int run(int argc, char** argv, const std::map<std::string, std::function<void()>>& cases) {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    if (argc < 3) return 2;
    own = argv[2];
    if (strcmp(argv[1], "peer") == 0) serve();
    if (argc < 4 || !cases.contains(argv[1])) return 2;
    peer = argv[3];
    if (argc > 4) wanted = atol(argv[4]);
    api = vma_get_api();
    CHECK(api != nullptr);
    cases.at(argv[1])();
    printf("done\n");
    return 0;
}

}  // namespace extra
