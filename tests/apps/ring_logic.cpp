// SPDX-License-Identifier: BSD-2-Clause
// Threads with sockets of their own, for tests of the rings' allocation. Every socket sees each message come
// back once and in order, or the program says what was wrong and fails.
//
//   ring_logic serve PORT                         echoes UDP and TCP until its input ends
//   ring_logic talk PEER PORT THREADS SOCKETS MESSAGES
//                                                 each thread: so many UDP sockets and a TCP connection
//   ring_logic move PEER PORT THREADS SOCKETS ROUNDS
//                                                 so many UDP sockets and TCP connections; in each round
//                                                 another thread has each of them, in the midst of traffic
//   ring_logic many PEER PORT SOCKETS             so many UDP sockets at a time, one message each
//   ring_logic shared PEER PORT                   two threads with one port (SO_REUSEPORT), and a forked
//   child
// After its work `talk`, `move` and `many` say "done" and wait for a line of input, so that a test can look.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <latch>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr int kWindow = 16;       // messages of a socket under way
constexpr int kPatience = 20000;  // ms without any progress
std::atomic<int> g_failures{0};

void complain(const char* what, long got = 0, long wanted = 0) {
    std::fprintf(stderr, "ring_logic: %s: %ld, not %ld (errno %d)\n", what, got, wanted, errno);
    g_failures++;
}

sockaddr_in name(const char* address, int port) {
    sockaddr_in n{};
    n.sin_family = AF_INET;
    n.sin_port = htons(static_cast<std::uint16_t>(port));
    inet_pton(AF_INET, address, &n.sin_addr);
    return n;
}

int connected(int type, const sockaddr_in& peer) {
    const int fd = socket(AF_INET, type, 0);
    const int on = 1;
    if (type == SOCK_STREAM) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&peer), sizeof peer) != 0) complain("connect", fd);
    return fd;
}

struct Message {
    std::uint32_t socket, number;
    char filling[56];
};

// One socket's numbers: how many are sent and how many have come back.
struct Talk {
    int fd = -1;
    bool stream = false;
    std::uint32_t sent = 0, got = 0;
    std::size_t part = 0;  // bytes of a message of the stream
    Message incoming{};
};

bool send_more(Talk& t, std::uint32_t id, std::uint32_t messages) {
    while (t.sent < messages && t.sent - t.got < kWindow) {
        Message m{id, t.sent, {}};
        std::memset(m.filling, static_cast<int>(t.sent), sizeof m.filling);
        if (send(t.fd, &m, sizeof m, 0) != sizeof m) return complain("send", t.sent), false;
        t.sent++;
    }
    return true;
}

bool take(Talk& t, std::uint32_t id) {
    for (;;) {
        char* at = reinterpret_cast<char*>(&t.incoming) + t.part;
        const ssize_t n = recv(t.fd, at, sizeof t.incoming - t.part, MSG_DONTWAIT);
        if (n < 0) return errno == EAGAIN ? true : (complain("recv", n), false);
        if (n == 0) return complain("end of stream"), false;
        t.part += static_cast<std::size_t>(n);
        if (!t.stream && t.part != sizeof t.incoming) return complain("length", n, sizeof t.incoming), false;
        if (t.part != sizeof t.incoming) continue;
        t.part = 0;
        if (t.incoming.socket != id) return complain("another socket's", t.incoming.socket, id), false;
        if (t.incoming.number != t.got) return complain("out of order", t.incoming.number, t.got), false;
        if (t.incoming.filling[55] != static_cast<char>(t.got)) return complain("content"), false;
        t.got++;
    }
}

// `all`: threads that have their sockets. One that comes late would get the ring of one that is done.
void talk(unsigned thread, const sockaddr_in& peer, unsigned sockets, std::uint32_t messages,
          std::latch& all) {
    std::vector<Talk> talks(sockets + 1);
    std::vector<pollfd> polls;
    for (unsigned i = 0; i <= sockets; i++) {
        talks[i].stream = i == sockets;
        talks[i].fd = connected(talks[i].stream ? SOCK_STREAM : SOCK_DGRAM, peer);
        polls.push_back({talks[i].fd, POLLIN, 0});
    }
    all.arrive_and_wait();
    for (bool busy = true; busy && g_failures == 0;) {
        busy = false;
        for (unsigned i = 0; i <= sockets; i++) {
            const std::uint32_t id = thread << 16 | i;
            if (!take(talks[i], id) || !send_more(talks[i], id, messages)) return;
            busy |= talks[i].got < messages;
        }
        // Every other thread polls without sleeping.
        const int limit = thread % 2 == 0 ? kPatience : 0;
        if (busy && poll(polls.data(), polls.size(), limit) == 0 && limit != 0) {
            for (const Talk& t : talks) complain(t.stream ? "TCP stands" : "UDP stands", t.got, messages);
            return;
        }
    }
    for (const Talk& t : talks) close(t.fd);
}

// The sockets change hands while messages are under way. The last round waits for all of them.
void move(const sockaddr_in& peer, unsigned threads, unsigned sockets, unsigned rounds) {
    constexpr std::uint32_t kEachRound = 150;  // messages of a socket, each with a send and a receive
    std::vector<Talk> talks(2 * sockets);
    for (std::size_t i = 0; i < talks.size(); i++) {
        talks[i].stream = i % 2 != 0;
        talks[i].fd = connected(talks[i].stream ? SOCK_STREAM : SOCK_DGRAM, peer);
    }
    std::barrier all(static_cast<std::ptrdiff_t>(threads));
    auto work = [&](unsigned thread) {
        for (unsigned round = 0; round < rounds; round++) {
            const std::uint32_t sent = kEachRound * (round + 1);
            const auto now = [] { return std::chrono::steady_clock::now(); };
            auto last = now();
            for (bool busy = true; busy && g_failures == 0;) {
                busy = false;
                std::uint32_t before = 0, after = 0;
                for (unsigned i = thread; i < talks.size(); i += threads) {
                    const std::uint32_t id = (i + round) % static_cast<unsigned>(talks.size());
                    Talk& t = talks[id];
                    before += t.got + t.sent;
                    if (!take(t, id) || !send_more(t, id, sent)) break;
                    after += t.got + t.sent;
                    busy |= t.sent < sent || (round + 1 == rounds && t.got < sent);
                }
                if (before != after) last = now();
                if (now() - last > std::chrono::milliseconds(kPatience)) complain("stands", after);
            }
            all.arrive_and_wait();
        }
    };
    std::vector<std::thread> running;
    for (unsigned i = 0; i < threads; i++) running.emplace_back(work, i);
    for (std::thread& t : running) t.join();
    for (std::size_t i = 0; i < talks.size() && g_failures == 0; i++)
        if (char c; recv(talks[i].fd, &c, 1, MSG_DONTWAIT) >= 0) complain("twice", static_cast<long>(i));
}

void wait_for_line() {
    std::puts("done");
    std::fflush(stdout);
    char c;
    while (read(0, &c, 1) == 1 && c != '\n') {
    }
}

// ---- the peer ----

int serve(int port) {
    const int udp = socket(AF_INET, SOCK_DGRAM, 0), tcp = socket(AF_INET, SOCK_STREAM, 0);
    const int on = 1, room = 16 << 20;
    setsockopt(tcp, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(udp, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
    const sockaddr_in own = name("0.0.0.0", port);
    if (bind(udp, reinterpret_cast<const sockaddr*>(&own), sizeof own) != 0 ||
        bind(tcp, reinterpret_cast<const sockaddr*>(&own), sizeof own) != 0 || listen(tcp, 1024) != 0)
        return complain("bind", port), 1;
    std::puts("serving");
    std::fflush(stdout);
    std::vector<pollfd> polls{{0, POLLIN, 0}, {udp, POLLIN, 0}, {tcp, POLLIN, 0}};
    char buffer[65536];
    for (;;) {
        if (poll(polls.data(), polls.size(), -1) < 0) return 1;
        if (polls[0].revents != 0) return 0;
        sockaddr_in peer{};
        socklen_t length = sizeof peer;
        for (ssize_t n; (n = recvfrom(udp, buffer, sizeof buffer, MSG_DONTWAIT,
                                      reinterpret_cast<sockaddr*>(&peer), &length)) >= 0;)
            sendto(udp, buffer, static_cast<std::size_t>(n), 0, reinterpret_cast<sockaddr*>(&peer), length);
        for (std::size_t i = 3; i < polls.size(); i++) {
            if (polls[i].revents == 0) continue;
            const ssize_t n = recv(polls[i].fd, buffer, sizeof buffer, MSG_DONTWAIT);
            if (n > 0) {
                send(polls[i].fd, buffer, static_cast<std::size_t>(n), MSG_NOSIGNAL);
            } else if (n == 0 || errno != EAGAIN) {
                close(polls[i].fd);
                polls.erase(polls.begin() + static_cast<std::ptrdiff_t>(i--));
            }
        }
        if (polls[2].revents != 0) {
            const int fd = accept(tcp, nullptr, nullptr);
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            polls.push_back({fd, POLLIN, 0});
        }
    }
}

// ---- what is tested ----

int many(const sockaddr_in& peer, unsigned sockets) {
    rlimit files{sockets + 200, sockets + 200};
    setrlimit(RLIMIT_NOFILE, &files);
    std::vector<int> fds;
    for (unsigned i = 0; i < sockets; i++) fds.push_back(connected(SOCK_DGRAM, peer));
    for (unsigned i = 0; i < sockets && g_failures == 0; i++) {
        std::uint32_t number = i, back = ~0u;
        if (send(fds[i], &number, sizeof number, 0) != sizeof number) complain("send", i);
        pollfd p{fds[i], POLLIN, 0};
        if (poll(&p, 1, kPatience) != 1 || recv(fds[i], &back, sizeof back, 0) != sizeof back || back != i)
            complain("answer", back, i);
    }
    wait_for_line();
    for (const int fd : fds) close(fd);
    return g_failures != 0;
}

bool echoes(int fd, std::uint32_t number) {
    std::uint32_t back = ~number;
    pollfd p{fd, POLLIN, 0};
    return send(fd, &number, sizeof number, 0) == sizeof number && poll(&p, 1, kPatience) == 1 &&
           recv(fd, &back, sizeof back, 0) == sizeof back && back == number;
}

// Two sockets of one port, in two threads: each answer reaches one of them. A child has sockets of its own.
int shared(const sockaddr_in& peer) {
    int fds[2];
    std::thread threads[2];
    for (int i = 0; i < 2; i++) {
        threads[i] = std::thread([&, i] {
            const int on = 1;
            fds[i] = socket(AF_INET, SOCK_DGRAM, 0);
            setsockopt(fds[i], SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
            const sockaddr_in own = name("198.18.1.1", 7007);
            if (bind(fds[i], reinterpret_cast<const sockaddr*>(&own), sizeof own) != 0) complain("bind", i);
        });
        threads[i].join();
    }
    for (std::uint32_t i = 0; i < 100; i++) {
        std::uint32_t back = ~i;
        sendto(fds[i % 2], &i, sizeof i, 0, reinterpret_cast<const sockaddr*>(&peer), sizeof peer);
        pollfd p[2]{{fds[0], POLLIN, 0}, {fds[1], POLLIN, 0}};
        if (poll(p, 2, kPatience) < 1) complain("ready sockets", i);
        if (recv(p[0].revents != 0 ? fds[0] : fds[1], &back, sizeof back, MSG_DONTWAIT) < 0 || back != i)
            complain("answer", back, static_cast<long>(i));
        if (i == 50) close(std::exchange(fds[0], dup(fds[1])));  // the one that has the rule
    }
    const pid_t child = fork();
    if (child == 0) _exit(echoes(connected(SOCK_DGRAM, peer), 4711) ? 0 : 1);
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) complain("child", status);
    if (!echoes(connected(SOCK_DGRAM, peer), 42)) complain("after fork");
    return g_failures != 0;
}

}  // namespace

int main(int argc, char** argv) {
    const std::string what = argc > 2 ? argv[1] : "";
    if (what == "serve") return serve(std::atoi(argv[2]));
    if (argc < 4) return 2;
    const sockaddr_in peer = name(argv[2], std::atoi(argv[3]));
    if (what == "shared") return shared(peer);
    if (what == "many" && argc == 5) return many(peer, static_cast<unsigned>(std::atoi(argv[4])));
    if (what == "move" && argc == 7) {
        auto number = [&](int i) { return static_cast<unsigned>(std::atoi(argv[i])); };
        move(peer, number(4), number(5), number(6));
        wait_for_line();
        return g_failures != 0;
    }
    if (what != "talk" || argc != 7) return 2;
    std::vector<std::thread> threads;
    std::latch all(std::atoi(argv[4]));
    for (int i = 0; i < std::atoi(argv[4]); i++)
        threads.emplace_back(talk, i, peer, std::atoi(argv[5]), std::atoi(argv[6]), std::ref(all));
    for (std::thread& t : threads) t.join();
    wait_for_line();
    return g_failures != 0;
}
