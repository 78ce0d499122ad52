// SPDX-License-Identifier: BSD-2-Clause
// Two programs as users have them, which make no socket call on their data path but send():
//   groups OWN        receives 64 multicast groups on 64 sockets, and counts
//   echo OWN          a TCP echo server: accepts and receives by polling its listener's ring
// and their far sides, on the kernel:
//   feed OWN OTHER    sends to the groups
//   clients OWN OTHER 20 connections that send at once, and check what comes back
#include <sys/resource.h>

#include <algorithm>
#include <thread>

#include "extra_poll.h"

namespace {

using namespace extra;

constexpr int kGroups = 64, kEach = 100, kGroupPort = 6100;
constexpr int kEchoPort = 6101, kClients = 20;
constexpr std::size_t kStream = 200000;

std::string group(int i) { return "239.7.7." + std::to_string(i + 1); }

// The user data of a socket point to what the program knows of it.
struct Feed {
    int number;
    int count;
};

void groups() {
    std::vector<Feed> feeds;
    for (int i = 0; i < kGroups; i++) feeds.push_back({i, 0});
    int ring = -1;
    for (Feed& feed : feeds) {
        const int fd = socket(AF_INET, SOCK_DGRAM, 0), on = 1;
        const sockaddr_in here = at(group(feed.number), kGroupPort);
        CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
        CHECK(bind(fd, raw(here), sizeof here) == 0);
        ip_mreq join{here.sin_addr, at(own, 0).sin_addr};
        CHECK(setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &join, sizeof join) == 0);
        void* const data = &feed;
        CHECK(setsockopt(fd, SOL_SOCKET, SO_VMA_USER_DATA, &data, sizeof data) == 0);
        const int one = ring_of(fd);
        CHECK(ring == -1 || ring == one);
        ring = one;
    }
    printf("ready\n");
    Poller poller(ring);
    int left = kGroups * kEach;
    while (left != 0) {
        vma_completion_t c;
        CHECK(poller.next(c, 20000));
        CHECK(c.events == VMA_SOCKETXTREME_PACKET);
        auto* const feed = reinterpret_cast<Feed*>(c.user_data);
        CHECK(feed >= feeds.data() && feed < feeds.data() + feeds.size());
        const std::string content = bytes_of(c.packet);
        CHECK(content == group(feed->number) + " " + std::to_string(feed->count));
        CHECK(c.src.sin_addr.s_addr == at(peer, 0).sin_addr.s_addr);
        CHECK(give_back(c) == 0);
        feed->count++;
        left--;
    }
    for (const Feed& feed : feeds) CHECK(feed.count == kEach);
}

void feed() {
    const int fd = socket(AF_INET, SOCK_DGRAM, 0);
    const in_addr here = at(own, 0).sin_addr;
    CHECK(setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &here, sizeof here) == 0);
    for (int n = 0; n < kEach; n++) {
        for (int i = 0; i < kGroups; i++) {
            const std::string text = group(i) + " " + std::to_string(n);
            const sockaddr_in to = at(group(i), kGroupPort);
            CHECK(sendto(fd, text.data(), text.size(), 0, raw(to), sizeof to) ==
                  static_cast<ssize_t>(text.size()));
        }
        usleep(2000);
    }
}

// Of a connection: what has to be sent back yet.
struct Connection {
    std::string owed;
    bool ended = false;
};

void send_owed(int fd, Connection& c) {
    while (!c.owed.empty()) {
        const ssize_t n = send(fd, c.owed.data(), c.owed.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0) {
            CHECK(errno == EAGAIN);
            return;
        }
        c.owed.erase(0, static_cast<std::size_t>(n));
    }
}

// `few`: at first there are numbers for two connections; the others wait.
void serve(bool few) {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in here = at(own, kEchoPort);
    CHECK(bind(listener, raw(here), sizeof here) == 0 && listen(listener, 64) == 0);
    Poller poller(ring_of(listener));
    rlimit numbers{};
    CHECK(getrlimit(RLIMIT_NOFILE, &numbers) == 0);
    const rlimit lack{static_cast<rlim_t>(listener) + 3, numbers.rlim_max};
    if (few) CHECK(setrlimit(RLIMIT_NOFILE, &lack) == 0);
    std::jthread later([&] {
        usleep(300000);
        CHECK(setrlimit(RLIMIT_NOFILE, &numbers) == 0);
    });
    printf("ready\n");
    std::map<std::uint64_t, Connection> connections;
    int served = 0;
    while (served < kClients) {
        vma_completion_t c;
        CHECK(poller.next(c, 20000));
        if ((c.events & VMA_SOCKETXTREME_NEW_CONNECTION_ACCEPTED) != 0) {
            CHECK(c.listen_fd == listener && !connections.contains(c.user_data));
            CHECK(c.src.sin_addr.s_addr == at(peer, 0).sin_addr.s_addr && c.src.sin_port != 0);
            sockaddr_in name{};
            socklen_t length = sizeof name;
            CHECK(getpeername(static_cast<int>(c.user_data), reinterpret_cast<sockaddr*>(&name), &length) ==
                      0 &&
                  name.sin_port == c.src.sin_port);
            connections[c.user_data];
            continue;
        }
        CHECK(connections.contains(c.user_data));  // nothing of a connection before the connection
        Connection& one = connections[c.user_data];
        const int fd = static_cast<int>(c.user_data);
        if ((c.events & VMA_SOCKETXTREME_PACKET) != 0) {
            CHECK(!one.ended);
            one.owed += bytes_of(c.packet);
            CHECK(give_back(c) == 0);
        }
        one.ended |= (c.events & EPOLLRDHUP) != 0;
        send_owed(fd, one);
        if (one.ended && one.owed.empty()) {
            connections.erase(c.user_data);
            close(fd);
            served++;
        }
    }
}

void clients() {
    std::vector<std::thread> all;
    for (std::uint32_t i = 0; i < kClients; i++)
        all.emplace_back([i] {
            const int fd = socket(AF_INET, SOCK_STREAM, 0);
            const sockaddr_in there = at(peer, kEchoPort);
            CHECK(connect(fd, raw(there), sizeof there) == 0);
            limit(fd, 20000);
            const std::string sent = made(kStream, i);
            std::thread writer([&] {
                for (std::size_t at = 0; at < sent.size();) {
                    const ssize_t n =
                        send(fd, sent.data() + at, std::min<std::size_t>(7000, sent.size() - at), 0);
                    CHECK(n > 0);
                    at += static_cast<std::size_t>(n);
                }
                CHECK(shutdown(fd, SHUT_WR) == 0);
            });
            std::string got(kStream, '\0');
            CHECK(recv(fd, got.data(), got.size(), MSG_WAITALL) == static_cast<ssize_t>(kStream));
            writer.join();
            CHECK(got == sent && recv(fd, got.data(), 1, 0) == 0);
            close(fd);
        });
    for (std::thread& one : all) one.join();
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 4) return 2;
    setvbuf(stdout, nullptr, _IOLBF, 0);
    own = argv[2];
    peer = argv[3];
    const std::map<std::string, void (*)()> cases{{"groups", groups},
                                                  {"echo", [] { serve(false); }},
                                                  {"echo_few", [] { serve(true); }},
                                                  {"feed", feed},
                                                  {"clients", clients}};
    if (!cases.contains(argv[1])) return 2;
    api = vma_get_api();
    CHECK(api != nullptr || cases.at(argv[1]) == feed || cases.at(argv[1]) == clients);
    cases.at(argv[1])();
    printf("done\n");
}
