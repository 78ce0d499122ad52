// SPDX-License-Identifier: BSD-2-Clause
// Joins and leaves groups as fast as it goes, beside a socket that stays in one group and receives.
//
//   group_churn GROUP INTERFACE_ADDRESS PORT JOINS
//
// Says "ready" once it is a member of GROUP, and begins with the first datagram. When all is joined and left,
// and nothing has come for a while, it says what came (of that, how much meanwhile), and by how much its heap
// has grown. Then it waits to be killed.
#include <arpa/inet.h>
#include <malloc.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "payload.h"

namespace {

constexpr unsigned kHeld = 8;      // memberships at a time
constexpr unsigned kGroups = 100;  // that come and go
constexpr int kIdle = 700;         // ms

int bound(int port) {
    const int fd = socket(AF_INET, SOCK_DGRAM, 0), on = 1, off = 0;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(fd, IPPROTO_IP, IP_MULTICAST_ALL, &off, sizeof off);
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_port = htons(static_cast<uint16_t>(port));
    if (bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0) {
        perror("bind");
        exit(1);
    }
    return fd;
}

in_addr group(unsigned number) {
    return {htonl(0xef090000u + number % kGroups)};  // 239.9.0.x
}

// Of the heap alone: buffers of devices are touched as traffic reaches them.
long memory_kb() {
    const struct mallinfo2 heap = mallinfo2();
    return static_cast<long>((heap.uordblks + heap.hblkhd) / 1024);
}

struct Received {
    std::atomic<bool> done{false};  // the other thread joins and leaves no more
    std::atomic<long> count{0};
    long distinct = 0;
    std::vector<bool> seen = std::vector<bool>(1u << 16);

    void run(int fd) {
        uint8_t bytes[2000];
        for (pollfd p{fd, POLLIN, 0}; poll(&p, 1, kIdle) > 0 || !done;) {
            const ssize_t n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
            if (n < 0) continue;
            count++;
            const uint32_t seed = payload::seed_of(bytes, static_cast<size_t>(n));
            if (!payload::intact(bytes, static_cast<size_t>(n)) || seed >= seen.size()) continue;
            distinct += !seen[seed];
            seen[seed] = true;
        }
    }
};

}  // namespace

int main(int argc, char** argv) {
    if (argc != 5) return 2;
    in_addr interface {};
    ip_mreq stay{};
    inet_pton(AF_INET, argv[1], &stay.imr_multiaddr);
    inet_pton(AF_INET, argv[2], &interface);
    stay.imr_interface = interface;
    const int port = atoi(argv[3]);
    const auto joins = static_cast<unsigned>(atoi(argv[4]));
    const int stays = bound(port), changes = bound(port);
    if (setsockopt(stays, IPPROTO_IP, IP_ADD_MEMBERSHIP, &stay, sizeof stay) != 0) return 1;
    printf("ready\n");
    fflush(stdout);
    Received received;
    std::thread receiver([&] { received.run(stays); });
    while (received.count == 0) usleep(100);
    long errors = 0, memory = 0;
    auto change = [&](int how, unsigned number) {
        const ip_mreq request{group(number), interface};
        if (setsockopt(changes, IPPROTO_IP, how, &request, sizeof request) != 0) errors++;
    };
    for (unsigned i = 0; i < joins + kHeld; i++) {
        if (i >= kHeld) change(IP_DROP_MEMBERSHIP, i - kHeld);
        if (i < joins) change(IP_ADD_MEMBERSHIP, i);
        if (i == joins / 5) memory = memory_kb();
    }
    const long grown = memory_kb() - memory, meanwhile = received.count;
    received.done = true;
    receiver.join();
    printf("done errors=%ld received=%ld meanwhile=%ld distinct=%ld grown_kb=%ld\n", errors,
           received.count.load(), meanwhile, received.distinct, grown);
    fflush(stdout);
    pause();
}
