// SPDX-License-Identifier: BSD-2-Clause
// Polls rings by the extra API (VMA_SOCKETXTREME=1). Each case is a function; the far side is
// "extra_poll peer", on the kernel.
#include "extra_poll.h"

#include <fcntl.h>
#include <sys/wait.h>

#include <atomic>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "extra_freeing.h"

namespace {

using namespace extra;

constexpr std::uint64_t kSlots = 0xfull << 6;

// A datagram that the ring brought; the first ones may come through the kernel.
void warm(int fd, Poller& poller) {
    request(fd, 10, 1);
    vma_completion_t c = poller.packet(fd);
    CHECK(bytes_of(c.packet) == made(10, 1) && give_back(c) == 0);
}

void udp_content() {
    CHECK((api->vma_extra_supported_mask & kSlots) == kSlots);
    const int fd = udp();
    Poller poller(ring_of(fd));
    warm(fd, poller);
    for (const std::size_t length : {std::size_t{1}, std::size_t{64}, std::size_t{1400}, std::size_t{1472}}) {
        request(fd, length, 77);
        vma_completion_t c = poller.packet(fd);
        CHECK(bytes_of(c.packet) == made(length, 77) && c.packet.num_bufs == 1);
        CHECK(c.src.sin_family == AF_INET && c.src.sin_port == htons(kUdpPort) &&
              c.src.sin_addr.s_addr == at(peer, 0).sin_addr.s_addr);
        CHECK(give_back(c) == 0);
    }
    request(fd, 0, 0);
    vma_completion_t empty = poller.packet(fd);
    CHECK(empty.packet.num_bufs == 1 && empty.packet.total_len == 0 && empty.packet.buff_lst->len == 0);
    CHECK(give_back(empty) == 0);
    // One completion at a time, in order.
    for (std::uint32_t i = 0; i < 20; i++) request(fd, 100 + i, i);
    usleep(100000);
    for (std::uint32_t i = 0; i < 20;) {
        vma_completion_t one;
        const int n = api->socketxtreme_poll(ring_of(fd), &one, 1, 0);
        CHECK(n >= 0);
        if (n == 0) continue;
        CHECK(bytes_of(one.packet) == made(100 + i, i) && give_back(one) == 0);
        i++;
    }
    // recv() gets what the program has not polled yet.
    request(fd, 300, 4);
    char bytes[400];
    CHECK(recv(fd, bytes, sizeof bytes, 0) == 300 && std::string(bytes, 300) == made(300, 4));
    // A fragmented datagram is the kernel's, and comes all the same.
    request(fd, 5000, 9);
    vma_completion_t big = poller.packet(fd);
    CHECK(bytes_of(big.packet) == made(5000, 9) && big.src.sin_port == htons(kUdpPort));
    CHECK(give_back(big) == 0);
    vma_completion_t none;
    CHECK(!poller.next(none, 50));
}

void errors() {
    const int fd = udp(), ring = ring_of(fd);
    Poller poller(ring);
    warm(fd, poller);
    vma_completion_t c{};
    CHECK_FAILS(api->socketxtreme_poll(ring, nullptr, 1, 0), EINVAL);
    CHECK_FAILS(api->socketxtreme_poll(ring, &c, 0, 0), EINVAL);
    for (const int wrong : {fd, -1, 0, 999}) CHECK_FAILS(api->socketxtreme_poll(wrong, &c, 1, 0), EBADFD);

    request(fd, 700, 3);
    usleep(50000);
    errno = 0;
    auto* const nowhere = reinterpret_cast<vma_completion_t*>(4096);
    int n = 0;
    while ((n = api->socketxtreme_poll(ring, nowhere, 4, 0)) == 0) {
    }
    CHECK(n < 0 && errno == EFAULT);
    c = poller.packet(fd);  // nothing is lost
    const vma_packet_desc_t packet = c.packet;
    CHECK(bytes_of(packet) == made(700, 3));

    CHECK_FAILS(api->socketxtreme_free_vma_packets(nullptr, 1), EINVAL);
    CHECK_FAILS(api->socketxtreme_free_vma_packets(&c.packet, -1), EINVAL);
    CHECK_FAILS(api->socketxtreme_free_vma_packets(reinterpret_cast<vma_packet_desc_t*>(8), 1), EFAULT);
    CHECK(api->socketxtreme_free_vma_packets(&c.packet, 0) == 0);
    vma_buff_t own_buffer{};
    auto* const real = packet.buff_lst;
    auto shifted = [real](long by) {
        return reinterpret_cast<vma_buff_t*>(reinterpret_cast<std::uintptr_t>(real) +
                                             static_cast<std::uintptr_t>(by));
    };
    for (vma_buff_t* wrong : {static_cast<vma_buff_t*>(nullptr), &own_buffer, shifted(1), shifted(64),
                              shifted(1 << 30), shifted(-(1l << 30)), reinterpret_cast<vma_buff_t*>(-1l)}) {
        CHECK_FAILS(api->socketxtreme_ref_vma_buff(wrong), EINVAL);
        CHECK_FAILS(api->socketxtreme_free_vma_buff(wrong), EINVAL);
        vma_packet_desc_t made_up{1, 1, wrong, {}};
        CHECK_FAILS(api->socketxtreme_free_vma_packets(&made_up, 1), EINVAL);
    }
    CHECK(bytes_of(packet) == made(700, 3));
    CHECK(api->socketxtreme_ref_vma_buff(real) == 2);
    CHECK(api->socketxtreme_ref_vma_buff(real) == 3);
    CHECK(api->socketxtreme_free_vma_packets(&c.packet, 1) == 0);
    CHECK(bytes_of(packet) == made(700, 3));
    CHECK(api->socketxtreme_free_vma_buff(real) == 1);
    CHECK(api->socketxtreme_free_vma_buff(real) == 0);
    CHECK_FAILS(api->socketxtreme_free_vma_buff(real), EINVAL);
    CHECK_FAILS(api->socketxtreme_ref_vma_buff(real), EINVAL);
    CHECK_FAILS(api->socketxtreme_free_vma_packets(&c.packet, 1), EINVAL);
    warm(fd, poller);
}

void options() {
    const int fd = udp(), plain = socket(AF_UNIX, SOCK_DGRAM, 0);
    Poller poller(ring_of(fd));
    warm(fd, poller);
    std::uint64_t data = 0;
    socklen_t length = sizeof data;
    CHECK(getsockopt(fd, SOL_SOCKET, SO_VMA_USER_DATA, &data, &length) == 0 && length == sizeof data &&
          data == static_cast<std::uint64_t>(fd));
    data = 0x1122334455667788;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_VMA_USER_DATA, &data, sizeof data) == 0);
    std::uint64_t now = 0;
    CHECK(getsockopt(fd, SOL_SOCKET, SO_VMA_USER_DATA, &now, &length) == 0 && now == data);
    request(fd, 10, 2);
    vma_completion_t c;
    CHECK(poller.next(c) && c.user_data == data && give_back(c) == 0);
    CHECK_FAILS(setsockopt(fd, SOL_SOCKET, SO_VMA_USER_DATA, &data, 4), EINVAL);
    CHECK_FAILS(setsockopt(fd, SOL_SOCKET, SO_VMA_USER_DATA, nullptr, 8), EFAULT);
    length = 4;
    CHECK_FAILS(getsockopt(fd, SOL_SOCKET, SO_VMA_USER_DATA, &data, &length), EINVAL);
    CHECK(setsockopt(plain, SOL_SOCKET, SO_VMA_USER_DATA, &data, sizeof data) < 0);

    // What is queued stays; from then on the kernel's socket receives, and the program hears of that.
    request(fd, 40, 5);
    usleep(100000);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_VMA_SHUTDOWN_RX, nullptr, 0) == 0);
    char bytes[100];
    CHECK(recv(fd, bytes, sizeof bytes, 0) == 40 && std::string(bytes, 40) == made(40, 5));
    CHECK(api->get_socket_rings_num(fd) == 0);
    request(fd, 50, 6);
    CHECK(recv(fd, bytes, sizeof bytes, 0) == 50 && std::string(bytes, 50) == made(50, 6));
    const int stream = tcp();
    CHECK_FAILS(setsockopt(stream, SOL_SOCKET, SO_VMA_SHUTDOWN_RX, nullptr, 0), EOPNOTSUPP);
}

// Held packets stay as they are, whatever becomes of the socket; any thread frees them in any order.
void lifetime() {
    const int fd = udp();
    const int ring = ring_of(fd);
    Poller poller(ring);
    warm(fd, poller);
    std::vector<vma_completion_t> kept;
    for (std::uint32_t i = 0; i < 40; i++) {
        request(fd, 500 + i, i);
        kept.push_back(poller.packet(fd));
    }
    request(fd, 100, 1);
    usleep(50000);
    close(fd);  // with a datagram that nobody has polled
    vma_completion_t none;
    CHECK(!poller.next(none, 50));
    const int next = udp();
    Poller again(ring_of(next));
    warm(next, again);
    for (std::uint32_t i = 0; i < kept.size(); i++) CHECK(bytes_of(kept[i].packet) == made(500 + i, i));
    std::thread([&] {
        for (std::size_t i = kept.size() - 1; i >= 20; i--) CHECK(give_back(kept[i]) == 0);
    }).join();
    vma_packet_desc_t rest[20];
    for (std::size_t i = 0; i < 20; i++) rest[i] = kept[(i * 7) % 20].packet;
    CHECK(api->socketxtreme_free_vma_packets(rest, 20) == 0);
    for (auto& c : kept) CHECK_FAILS(give_back(c), EINVAL);
}

// A holder that never frees loses its own datagrams, and no others.
void starving() {
    const int fd = udp(), other = udp();
    CHECK(ring_of(fd) == ring_of(other));
    Poller poller(ring_of(fd));
    warm(fd, poller);
    warm(other, poller);
    std::vector<vma_completion_t> kept;
    vma_completion_t c;
    for (std::uint32_t i = 0; i < 2000; i++) {
        request(fd, 1000, i);
        if (!poller.next(c, 200)) break;
        CHECK(c.user_data == static_cast<std::uint64_t>(fd) && bytes_of(c.packet) == made(1000, i));
        kept.push_back(c);
    }
    printf("held %zu\n", kept.size());
    CHECK(kept.size() > 100 && kept.size() < 1000);  // SO_RCVBUF is 212992, and a datagram costs 1256
    for (std::uint32_t i = 0; i < 200; i++) {
        request(other, 1200, i);
        vma_completion_t there = poller.packet(other);
        CHECK(bytes_of(there.packet) == made(1200, i) && give_back(there) == 0);
    }
    for (auto& held : kept) CHECK(give_back(held) == 0);
    while (poller.next(c, 100)) CHECK(give_back(c) == 0);
    warm(fd, poller);
}

// As sockperf's client: connect() that does not wait, then a loop until there is room.
int connected(Poller*& poller) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    const sockaddr_in there = at(peer, kTcpPort);
    CHECK_FAILS(connect(fd, raw(there), sizeof there), EINPROGRESS);
    poller = new Poller(ring_of(fd));
    poller->event(static_cast<std::uint64_t>(fd), EPOLLOUT);
    return fd;
}

void tcp_stream() {
    Poller* poller = nullptr;
    const int fd = connected(poller);
    for (const std::size_t length : {std::size_t{1}, std::size_t{1000}, std::size_t{60000}}) {
        request(fd, length, 8);
        CHECK(poller->stream(fd, length) == made(length, 8));
    }
    // A plain recv() part way through: the next packet goes on at the very byte.
    request(fd, 1000, 2);
    char bytes[333];
    std::size_t got = 0;
    while (got < sizeof bytes) {
        const ssize_t n = recv(fd, bytes + got, sizeof bytes - got, 0);
        if (n > 0) got += static_cast<std::size_t>(n);
    }
    CHECK(std::string(bytes, 333) + poller->stream(fd, 667) == made(1000, 2));
    // Kept while more comes; each buffer of a chain by itself, in another order, by another thread.
    std::vector<vma_packet_desc_t> kept;
    request(fd, 50000, 3);
    CHECK(poller->stream(fd, 50000, &kept) == made(50000, 3));
    std::vector<vma_buff_t*> buffers;
    for (auto& packet : kept)
        for (vma_buff_t* b = packet.buff_lst; b != nullptr; b = b->next) buffers.push_back(b);
    std::shuffle(buffers.begin(), buffers.end(), std::mt19937(1));
    std::thread([&] {
        for (vma_buff_t* b : buffers) CHECK(api->socketxtreme_free_vma_buff(b) == 0);
    }).join();
    for (auto& packet : kept) CHECK_FAILS(api->socketxtreme_free_vma_packets(&packet, 1), EINVAL);
    // One buffer of a packet is kept longer.
    request(fd, 20000, 4);
    usleep(100000);
    kept.clear();
    CHECK(poller->stream(fd, 20000, &kept) == made(20000, 4));
    vma_buff_t* const first = kept[0].buff_lst;
    const std::string content(static_cast<char*>(first->payload), first->len);
    CHECK(api->socketxtreme_ref_vma_buff(first) == 2);
    CHECK(api->socketxtreme_free_vma_packets(kept.data(), static_cast<int>(kept.size())) == 0);
    request(fd, 30000, 5);
    CHECK(poller->stream(fd, 30000) == made(30000, 5));
    CHECK(content == std::string(static_cast<char*>(first->payload), first->len));
    CHECK(content == made(20000, 4).substr(0, content.size()));
    CHECK(api->socketxtreme_free_vma_buff(first) == 0);
    // The end: data first.
    request(fd, 500, 6);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    CHECK(poller->stream(fd, 500) == made(500, 6));
    poller->event(static_cast<std::uint64_t>(fd), EPOLLRDHUP | EPOLLIN);
    CHECK(recv(fd, bytes, sizeof bytes, 0) == 0);
    close(fd);
    vma_completion_t none;
    CHECK(!poller->next(none, 50));
}

void tcp_refused() {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    const sockaddr_in there = at(peer, 9);  // nobody listens there
    CHECK_FAILS(connect(fd, raw(there), sizeof there), EINPROGRESS);
    Poller poller(ring_of(fd));
    vma_completion_t c;
    CHECK(poller.next(c) && c.user_data == static_cast<std::uint64_t>(fd));
    CHECK((c.events & (EPOLLERR | EPOLLHUP)) == (EPOLLERR | EPOLLHUP));
    int error = 0;
    socklen_t length = sizeof error;
    CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == ECONNREFUSED);
    CHECK(!poller.next(c, 50));
}

// What is kept closes the window; giving it back opens it, and the rest comes.
void tcp_window() {
    Poller* poller = nullptr;
    const int fd = connected(poller);
    fcntl(fd, F_SETFL, 0);
    const std::string sent = made(1 << 19, 6);
    std::thread writer([&] {
        for (std::size_t at = 0; at < sent.size();) {
            const ssize_t n = send(fd, sent.data() + at, sent.size() - at, 0);
            CHECK(n > 0);
            at += static_cast<std::size_t>(n);
        }
    });
    std::string got;
    std::vector<vma_packet_desc_t> kept;
    while (got.size() < sent.size()) {
        vma_completion_t c;
        if (!poller->next(c, 100)) {
            CHECK(!kept.empty());
            CHECK(api->socketxtreme_free_vma_packets(kept.data(), static_cast<int>(kept.size())) == 0);
            kept.clear();
            continue;
        }
        if ((c.events & VMA_SOCKETXTREME_PACKET) == 0) continue;
        got += bytes_of(c.packet);
        kept.push_back(c.packet);
    }
    writer.join();
    CHECK(got == sent);
}

// Sockets that the library does not serve are as ever, and what only the kernel has of others comes, too.
void ordinary() {
    const int fd = socket(AF_INET, SOCK_DGRAM, 0), neighbour = socket(AF_INET, SOCK_DGRAM, 0);
    const sockaddr_in here = at(own, 5005);
    CHECK(bind(fd, raw(here), sizeof here) == 0);
    Poller poller(ring_of(fd));
    CHECK(sendto(neighbour, "local", 5, 0, raw(here), sizeof here) == 5);
    vma_completion_t c = poller.packet(fd);
    CHECK(bytes_of(c.packet) == "local" && c.src.sin_addr.s_addr == at(own, 0).sin_addr.s_addr);
    CHECK(give_back(c) == 0);

    // A listener hears of a connection from this host; accept() makes it, and it is a plain one.
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0),
              client = socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in port = at(own, 7002);
    CHECK(bind(listener, raw(port), sizeof port) == 0 && listen(listener, 5) == 0);
    CHECK(connect(client, raw(port), sizeof port) == 0);
    poller.event(static_cast<std::uint64_t>(listener), EPOLLIN);
    const int child = accept(listener, nullptr, nullptr);
    CHECK(child >= 0);
    CHECK(send(client, "hello", 5, 0) == 5);
    char bytes[10];
    CHECK(recv(child, bytes, sizeof bytes, 0) == 5);

    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0 && send(pair[0], "plain", 5, 0) == 5);
    CHECK(recv(pair[1], bytes, sizeof bytes, 0) == 5);
    CHECK(!poller.next(c, 50));
    // An error of a connected socket.
    const int refused = socket(AF_INET, SOCK_DGRAM, 0);
    const sockaddr_in nobody = at(peer, 9);
    CHECK(bind(refused, raw(at(own, 5006)), sizeof nobody) == 0);
    CHECK(connect(refused, raw(nobody), sizeof nobody) == 0 && send(refused, "x", 1, 0) == 1);
    poller.event(static_cast<std::uint64_t>(refused), EPOLLERR);
}

// A connection that the kernel takes over: the program hears of it, and receives by calls.
void moved() {
    Poller* poller = nullptr;
    const int fd = connected(poller);
    request(fd, 100, 1);
    CHECK(poller->stream(fd, 100) == made(100, 1));
    request(fd, 3000, 2);
    usleep(100000);
    CHECK(fcntl(fd, F_SETFL, O_NONBLOCK | O_ASYNC) == 0);  // signals are the kernel's business
    CHECK(api->get_socket_rings_num(fd) == 0);
    std::string got;
    auto receive = [&](std::size_t until) {
        while (got.size() < until) {
            poller->event(static_cast<std::uint64_t>(fd), EPOLLIN);
            char bytes[4096];
            for (ssize_t n; (n = recv(fd, bytes, sizeof bytes, 0)) > 0;)
                got.append(bytes, static_cast<std::size_t>(n));
            CHECK(errno == EAGAIN);
        }
    };
    receive(3000);
    CHECK(got == made(3000, 2));
    got.clear();
    request(fd, 500, 3);
    receive(500);
    CHECK(got == made(500, 3));
    CHECK(shutdown(fd, SHUT_WR) == 0);
    poller->event(static_cast<std::uint64_t>(fd), EPOLLRDHUP);
}

// Two threads poll one ring: each datagram comes once, to one of them.
void threads() {
    std::vector<int> fds;
    for (int i = 0; i < 4; i++) fds.push_back(udp());
    const int ring = ring_of(fds[0]);
    Poller poller(ring);
    for (const int fd : fds) warm(fd, poller);
    constexpr std::uint32_t kCount = 4000;
    std::atomic<std::uint32_t> got{0};
    std::mutex lock;
    std::set<std::pair<std::uint64_t, std::string>> seen;
    std::vector<std::thread> all;
    for (int t = 0; t < 2; t++)
        all.emplace_back([&] {
            while (got < kCount) {
                vma_completion_t some[8];
                const int n = api->socketxtreme_poll(ring, some, 8, 0);
                CHECK(n >= 0);
                for (int i = 0; i < n; i++) {
                    CHECK(some[i].events == VMA_SOCKETXTREME_PACKET);
                    const std::lock_guard guard(lock);
                    CHECK(seen.emplace(some[i].user_data, bytes_of(some[i].packet)).second);
                    CHECK(give_back(some[i]) == 0);
                    got++;
                }
            }
        });
    for (std::uint32_t i = 0; i < kCount; i++) {
        request(fds[i % 4], 8 + i % 1000, i);
        while (i > got + 200) usleep(10);
    }
    for (std::thread& one : all) one.join();
    for (std::uint32_t i = 0; i < kCount; i++)
        CHECK(seen.contains({static_cast<std::uint64_t>(fds[i % 4]), made(8 + i % 1000, i)}));
}

// Sockets come and go while another thread polls.
void churn() {
    const int fd = udp(), ring = ring_of(fd);
    std::atomic<bool> over{false};
    std::atomic<long> packets{0};
    std::thread poller([&] {
        while (!over) {
            vma_completion_t some[16];
            const int n = api->socketxtreme_poll(ring, some, 16, 0);
            CHECK(n >= 0);
            for (int i = 0; i < n; i++) {
                if ((some[i].events & VMA_SOCKETXTREME_PACKET) == 0) continue;
                const std::string content = bytes_of(some[i].packet);
                CHECK(content.size() != 100 || intact(content));  // else of a stream
                CHECK(give_back(some[i]) == 0);
                packets++;
            }
        }
    });
    for (std::uint32_t round = 0; round < 300; round++) {
        const int datagrams = udp(), stream = round % 4 == 0 ? tcp() : -1;
        for (std::uint32_t i = 0; i < 5; i++) {
            request(datagrams, 100, i);
            if (stream >= 0) request(stream, 16, i);
        }
        if (round % 3 == 0) usleep(500);
        close(datagrams);
        if (stream >= 0) close(stream);
    }
    over = true;
    poller.join();
    CHECK(packets > 0);
    Poller again(ring);
    warm(fd, again);
}

// A child has nothing of what its parent keeps, and goes on by itself.
void forked() {
    const int fd = udp(), ring = ring_of(fd);
    Poller poller(ring);
    warm(fd, poller);
    request(fd, 300, 5);
    vma_completion_t c = poller.packet(fd);
    const pid_t child = fork();
    if (child == 0) {
        vma_completion_t none;
        CHECK_FAILS(api->socketxtreme_poll(ring, &none, 1, 0), EBADFD);
        CHECK_FAILS(give_back(c), EINVAL);
        CHECK_FAILS(api->socketxtreme_ref_vma_buff(c.packet.buff_lst), EINVAL);
        CHECK_FAILS(api->socketxtreme_free_vma_buff(c.packet.buff_lst), EINVAL);
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(bytes_of(c.packet) == made(300, 5) && give_back(c) == 0);
    warm(fd, poller);
}

// A callback judges before the poll has the packet.
void callback() {
    const int fd = udp();
    Poller poller(ring_of(fd));
    warm(fd, poller);
    static int calls = 0;
    auto judge = [](int, size_t, iovec*, vma_info_t* info, void*) {
        calls++;
        return info->payload_sz == 13 ? VMA_PACKET_DROP : VMA_PACKET_RECV;
    };
    CHECK(api->register_recv_callback(fd, judge, nullptr) == 0);
    request(fd, 13, 1);
    request(fd, 14, 2);
    vma_completion_t c = poller.packet(fd);
    CHECK(calls == 2 && bytes_of(c.packet) == made(14, 2) && give_back(c) == 0);
    CHECK(api->register_recv_callback(fd, nullptr, nullptr) == 0);
    warm(fd, poller);
}

// One thread polls and keeps, two others free in random order, with references of their own.
void stress() {
    const int fd = udp();
    Poller poller(ring_of(fd));
    warm(fd, poller);
    const int stream = tcp();
    FreedByTwo<vma_packet_desc_t> packets(20, SIZE_MAX, [](vma_packet_desc_t& packet) {
        CHECK(api->socketxtreme_ref_vma_buff(packet.buff_lst) == 2);
        CHECK(api->socketxtreme_free_vma_packets(&packet, 1) == 0);
        CHECK(api->socketxtreme_free_vma_buff(packet.buff_lst) == 0);
    });
    receive_in_turn(fd, stream, [&](int from, const std::string& content) -> std::size_t {
        vma_completion_t c;
        CHECK(poller.next(c));
        if ((c.events & VMA_SOCKETXTREME_PACKET) == 0) return 0;
        CHECK(c.user_data == static_cast<std::uint64_t>(from));
        if (from == fd) CHECK(bytes_of(c.packet) == content);
        packets.keep(c.packet);
        return c.packet.total_len;
    });
    packets.finish();
}

// Without VMA_SOCKETXTREME.
void off() {
    CHECK((api->vma_extra_supported_mask & kSlots) == 0);
    const int fd = udp(), ring = ring_of(fd);
    vma_completion_t c;
    vma_buff_t buffer{};
    vma_packet_desc_t packet{};
    std::uint64_t data = 1;
    CHECK_FAILS(api->socketxtreme_poll(ring, &c, 1, 0), EOPNOTSUPP);
    CHECK_FAILS(api->socketxtreme_free_vma_packets(&packet, 1), EOPNOTSUPP);
    CHECK_FAILS(api->socketxtreme_ref_vma_buff(&buffer), EOPNOTSUPP);
    CHECK_FAILS(api->socketxtreme_free_vma_buff(&buffer), EOPNOTSUPP);
    CHECK_FAILS(setsockopt(fd, SOL_SOCKET, SO_VMA_USER_DATA, &data, sizeof data), EOPNOTSUPP);
    CHECK_FAILS(setsockopt(fd, SOL_SOCKET, SO_VMA_USER_DATA, &data, 4), EINVAL);
}

// For vma_stats: keeps three of five packets.
void shown() {
    const int fd = udp();
    Poller poller(ring_of(fd));
    for (std::uint32_t i = 0; i < 5; i++) {
        request(fd, 100, i);
        vma_completion_t c = poller.packet(fd);
        if (i < 2) CHECK(give_back(c) == 0);
    }
    printf("look now\n");
    fflush(stdout);
    pause();
}

}  // namespace

int main(int argc, char** argv) {
    return extra::run(argc, argv,
                      {{"udp_content", udp_content},
                       {"errors", errors},
                       {"options", options},
                       {"lifetime", lifetime},
                       {"starving", starving},
                       {"tcp_stream", tcp_stream},
                       {"tcp_refused", tcp_refused},
                       {"tcp_window", tcp_window},
                       {"ordinary", ordinary},
                       {"moved", moved},
                       {"threads", threads},
                       {"churn", churn},
                       {"forked", forked},
                       {"callback", callback},
                       {"stress", stress},
                       {"off", off},
                       {"shown", shown}});
}
