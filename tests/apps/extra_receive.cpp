// SPDX-License-Identifier: BSD-2-Clause
// Uses recvfrom_zcopy and free_packets of the extra API. Each case is a function; the far side is
// "extra_receive peer", on the kernel.
#include <sys/wait.h>

#include <random>
#include <thread>

#include "extra_api.h"
#include "extra_freeing.h"

namespace {

using namespace extra;

void udp_content() {
    const int fd = udp();
    Packet first = offloaded(fd);
    CHECK(first.give_back(fd) == 0);
    for (const std::size_t length : {std::size_t{1}, std::size_t{64}, std::size_t{1400}, std::size_t{1472}}) {
        request(fd, length, 77);
        Packet packet;
        CHECK(packet.receive(fd) == static_cast<int>(length));
        CHECK(packet.flags == MSG_VMA_ZCOPY);  // exactly
        CHECK(packet.list()->n_packet_num == 1 && packet.first().sz_iov == 1);
        CHECK(packet.content() == made(length, 77));
        CHECK(packet.from.sin_port == htons(kUdpPort) &&
              packet.from.sin_addr.s_addr == at(peer, 0).sin_addr.s_addr);
        CHECK(packet.give_back(fd) == 0);
    }
    // An empty datagram has a packet, and no piece.
    request(fd, 0, 0);
    Packet empty;
    CHECK(empty.receive(fd) == 0 && empty.held() && empty.first().sz_iov == 0);
    CHECK(empty.give_back(fd) == 0);
    // Room for the packet, but not for its piece.
    request(fd, 200, 3);
    Packet cut;
    CHECK(cut.receive(fd, 0, 24) == 0);
    CHECK((cut.flags & MSG_TRUNC) != 0 && cut.held() && cut.first().sz_iov == 0);
    CHECK(cut.give_back(fd) == 0);
    // recv() goes on as always.
    request(fd, 300, 4);
    char bytes[400];
    CHECK(recv(fd, bytes, sizeof bytes, 0) == 300 && std::string(bytes, 300) == made(300, 4));
}

void udp_errors() {
    const int fd = udp();
    Packet packet = offloaded(fd);
    Packet other;
    CHECK_FAILS(other.receive(fd, 0, 23), ENOBUFS);
    CHECK_FAILS(other.receive(fd, MSG_PEEK), EINVAL);
    CHECK_FAILS(other.receive(fd, MSG_DONTWAIT), EAGAIN);
    CHECK_FAILS(api->recvfrom_zcopy(fd, other.buffer, sizeof other.buffer, nullptr, nullptr, nullptr),
                EFAULT);
    int flags = 0;
    CHECK_FAILS(api->recvfrom_zcopy(fd, nullptr, 100, &flags, nullptr, nullptr), EFAULT);
    CHECK_FAILS(other.receive(999), EBADF);
    limit(fd, 50);
    CHECK_FAILS(other.receive(fd), EAGAIN);

    CHECK_FAILS(api->free_packets(fd, nullptr, 1), EINVAL);
    CHECK(api->free_packets(fd, &packet.first(), 0) == 0);
    const int another = udp(), plain = socket(AF_UNIX, SOCK_DGRAM, 0);
    void* const id = packet.first().packet_id;
    CHECK_FAILS(give_back(another, id), ENOENT);  // of another socket, which is still open
    CHECK_FAILS(give_back(plain, id), EINVAL);
    CHECK_FAILS(give_back(999, id), EINVAL);
    CHECK(packet.content() == made(100, 1));  // no damage
    CHECK(give_back(fd, id) == 0);
    CHECK_FAILS(give_back(fd, id), ENOENT);  // twice
    for (void* foreign :
         {static_cast<void*>(&flags), static_cast<void*>(nullptr), reinterpret_cast<void*>(-1),
          reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(id) + 1),
          reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(id) ^ 1ull << 40)})
        CHECK_FAILS(give_back(fd, foreign), ENOENT);

    // Not offloaded: a plain receive.
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0 && send(pair[0], "plain", 5, 0) == 5);
    flags = 0;
    CHECK(api->recvfrom_zcopy(pair[1], other.buffer, sizeof other.buffer, &flags, nullptr, nullptr) == 5);
    CHECK(flags == 0 && memcmp(other.buffer, "plain", 5) == 0);
}

// What only the kernel's socket has: from this host itself.
void udp_kernel() {
    const int fd = socket(AF_INET, SOCK_DGRAM, 0), neighbour = socket(AF_INET, SOCK_DGRAM, 0);
    const sockaddr_in here = at(own, 5005);
    CHECK(bind(fd, raw(here), sizeof here) == 0);
    limit(fd, 5000);
    CHECK(sendto(neighbour, "local", 5, 0, raw(here), sizeof here) == 5);
    Packet packet;
    CHECK_FAILS(packet.receive(fd, MSG_VMA_ZCOPY_FORCE), EIO);
    CHECK_FAILS(packet.receive(fd, MSG_VMA_ZCOPY_FORCE), EIO);  // and it stays there
    CHECK(packet.receive(fd, MSG_VMA_ZCOPY) == 5 && packet.flags == 0);
    CHECK(memcmp(packet.buffer, "local", 5) == 0);
}

// Held packets stay as they are, whatever becomes of the socket, and any thread frees them in any order.
void udp_lifetime() {
    const int fd = udp();
    std::vector<Packet> packets(32);
    offloaded(fd).give_back(fd);
    for (std::uint32_t i = 0; i < packets.size(); i++) {
        request(fd, 500 + i, i);
        CHECK(packets[i].receive(fd) == static_cast<int>(500 + i) && packets[i].held());
    }
    const int copy = dup(fd);
    close(fd);
    CHECK(packets[0].give_back(copy) == 0);
    close(copy);
    const int next = udp();  // with the same number, as a rule
    offloaded(next).give_back(next);
    for (std::uint32_t i = 1; i < packets.size(); i++) CHECK(packets[i].content() == made(500 + i, i));
    std::thread([&] {
        for (std::size_t i = packets.size() - 1; i > 16; i--) CHECK(packets[i].give_back(copy) == 0);
    }).join();
    for (std::size_t i = 1; i <= 16; i++) CHECK(packets[i].give_back(next) == 0);
    CHECK_FAILS(packets[5].give_back(next), ENOENT);
}

// A holder that never frees loses its own datagrams, and no others.
void udp_starving() {
    const int fd = udp(), other = udp();
    offloaded(other).give_back(other);
    offloaded(fd);
    limit(fd, 200);
    std::vector<void*> ids;
    for (std::uint32_t i = 0; i < 20000; i++) {
        request(fd, 1000, i);
        Packet packet;
        if (packet.receive(fd) < 0) break;
        CHECK(packet.content() == made(1000, i));
        ids.push_back(packet.first().packet_id);
    }
    printf("held %zu\n", ids.size());
    CHECK(ids.size() > 100 && ids.size() < 1000);  // SO_RCVBUF is 212992, and a datagram costs 1256
    for (std::uint32_t i = 0; i < 200; i++) {
        request(other, 1200, i);
        Packet packet;
        CHECK(packet.receive(other) == 1200 && packet.held() && packet.give_back(other) == 0);
    }
    for (void* id : ids) CHECK(give_back(fd, id) == 0);
    limit(fd, 5000);
    offloaded(fd, 700, 5).give_back(fd);
}

// Many sockets together keep more than a quarter of the ring's buffers: the rest are copies.
void udp_share() {
    std::vector<int> fds;
    std::vector<std::pair<int, void*>> ids;
    for (int s = 0; s < 16; s++) {
        const int fd = udp();
        fds.push_back(fd);
        offloaded(fd, 1000, 9).give_back(fd);
        for (std::uint32_t i = 0; i < 150; i++) {
            request(fd, 1000, i);
            Packet packet;
            CHECK(packet.receive(fd) == 1000 && packet.held() && packet.content() == made(1000, i));
            ids.emplace_back(fd, packet.first().packet_id);
        }
    }
    std::shuffle(ids.begin(), ids.end(), std::mt19937(1));
    for (auto& [fd, id] : ids) CHECK(give_back(fd, id) == 0);
}

// ---- TCP ----

// Receives by zero copy until `bytes` are there.
std::string collect(int fd, std::size_t bytes, std::vector<void*>* keep = nullptr) {
    std::string all;
    while (all.size() < bytes) {
        Packet packet;
        const int n = packet.receive(fd);
        CHECK(n > 0 && packet.held() && packet.list()->n_packet_num == 1);
        const std::string content = packet.content();
        CHECK(content.size() == static_cast<std::size_t>(n));
        for (std::size_t i = 0; i < packet.first().sz_iov; i++) CHECK(packet.first().iov[i].iov_len != 0);
        all += content;
        if (keep != nullptr)
            keep->push_back(packet.first().packet_id);
        else
            CHECK(packet.give_back(fd) == 0);
    }
    return all;
}

void tcp_content() {
    const int fd = tcp();
    for (const std::size_t length : {std::size_t{1}, std::size_t{1000}, std::size_t{60000}}) {
        request(fd, length, 8);
        CHECK(collect(fd, length) == made(length, 8));
    }
    Packet packet;
    request(fd, 10, 1);
    CHECK_FAILS(packet.receive(fd, 0, 39), ENOBUFS);
    CHECK_FAILS(packet.receive(fd, MSG_PEEK), EINVAL);
    CHECK(packet.receive(fd, 0, 40) == 10 && packet.flags == MSG_VMA_ZCOPY && packet.first().sz_iov == 1);
    CHECK(packet.give_back(fd) == 0);
    CHECK_FAILS(packet.give_back(fd), ENOENT);
    CHECK_FAILS(packet.receive(fd, MSG_DONTWAIT), EAGAIN);
    // A plain recv() part way through: zero copy goes on at the very byte.
    request(fd, 1000, 2);
    char bytes[333];
    CHECK(recv(fd, bytes, sizeof bytes, MSG_WAITALL) == 333);
    CHECK(std::string(bytes, 333) + collect(fd, 667) == made(1000, 2));
    // Kept while more comes, and after the end.
    std::vector<void*> kept;
    request(fd, 30000, 3);
    CHECK(collect(fd, 30000, &kept) == made(30000, 3));
    request(fd, 500, 4);
    Packet last;
    CHECK(last.receive(fd) > 0 && last.held());
    CHECK(shutdown(fd, SHUT_WR) == 0);
    CHECK(packet.receive(fd) == 0 && !packet.held() && packet.list()->n_packet_num == 0);
    close(fd);
    CHECK(last.content() == made(500, 4));
    CHECK(last.give_back(fd) == 0);
    std::thread([&] {
        for (void* id : kept) CHECK(give_back(fd, id) == 0);
    }).join();
}

// What is kept closes the window, and giving it back opens it.
void tcp_window() {
    const int fd = socket(AF_INET, SOCK_STREAM, 0), small = 65536;
    const sockaddr_in there = at(peer, kTcpPort);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small) == 0);
    CHECK(connect(fd, raw(there), sizeof there) == 0);
    limit(fd, 100);
    const std::string sent = made(1 << 19, 6);
    std::thread writer([&] {
        for (std::size_t at = 0; at < sent.size();) {
            const ssize_t n = send(fd, sent.data() + at, sent.size() - at, 0);
            CHECK(n > 0);
            at += static_cast<std::size_t>(n);
        }
    });
    std::string got;
    std::vector<void*> kept;
    while (got.size() < sent.size()) {
        Packet packet;
        const int n = packet.receive(fd);
        if (n < 0) {
            CHECK(errno == EAGAIN && !kept.empty());
            for (void* id : kept) CHECK(give_back(fd, id) == 0);
            kept.clear();
            continue;
        }
        CHECK(n > 0);
        got += packet.content();
        kept.push_back(packet.first().packet_id);
        if (got.size() > sent.size() / 4) {  // enough of the waiting
            for (void* id : kept) CHECK(give_back(fd, id) == 0);
            kept.clear();
        }
    }
    writer.join();
    CHECK(got == sent);
}

// A socket whose packets are lent stays with the library, however much it moves: the kernel lends nothing.
void tcp_bulk() {
    const int fd = tcp();
    const std::string block = made(131072, 9);
    constexpr std::size_t kBlocks = 640;  // 80 MiB
    std::thread writer([&] {
        for (std::size_t i = 0; i < kBlocks; i++)
            CHECK(send(fd, block.data(), block.size(), 0) == static_cast<ssize_t>(block.size()));
    });
    for (std::size_t got = 0; got < kBlocks * block.size();) {
        Packet packet;
        const int n = packet.receive(fd, MSG_VMA_ZCOPY_FORCE);
        CHECK(n > 0 && packet.held());
        const std::string content = packet.content();
        for (std::size_t i = 0; i < content.size();) {
            const std::size_t at = (got + i) % block.size(),
                              length = std::min(content.size() - i, block.size() - at);
            CHECK(content.compare(i, length, block, at, length) == 0);
            i += length;
        }
        got += content.size();
        CHECK(packet.give_back(fd) == 0);
    }
    writer.join();
}

// ---- both ----

// A child has nothing of what its parent keeps.
void forked() {
    const int fd = udp();
    Packet packet = offloaded(fd);
    const pid_t child = fork();
    if (child == 0) {
        errno = 0;
        const bool fails = packet.give_back(fd) < 0 && (errno == ENOENT || errno == EINVAL);
        _exit(fails && vma_get_api() == api ? 0 : 1);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(packet.give_back(fd) == 0);
}

// One thread receives and keeps, two others give back in random order.
void stress() {
    const int fd = udp(), stream = tcp();
    offloaded(fd).give_back(fd);
    using Id = std::pair<int, void*>;
    FreedByTwo<Id> ids(20, SIZE_MAX, [](Id& id) {
        CHECK(give_back(id.first, id.second) == 0);
        CHECK(give_back(id.first, id.second) < 0 && errno == ENOENT);
    });
    receive_in_turn(fd, stream, [&](int from, const std::string& content) {
        Packet packet;
        const int n = packet.receive(from);
        CHECK(n > 0 && packet.held());
        if (from == fd) CHECK(packet.content() == content);
        ids.keep({from, packet.first().packet_id});
        return static_cast<std::size_t>(n);
    });
    ids.finish();
    close(fd);
    close(stream);
}

// Many datagrams kept, and given back by two threads, each in an order of its own. Each is what was sent.
void random_order() {
    constexpr std::uint32_t kBurst = 32;
    constexpr std::size_t kKept = 96;  // of the 144 that the receive buffer has room for
    const int fd = udp();
    offloaded(fd).give_back(fd);
    limit(fd, 300);
    FreedByTwo<void*> ids(kKept / 2, kKept, [fd](void*& id) { CHECK(give_back(fd, id) == 0); });
    const long most = wanted != 0 ? wanted : 100000;
    long lost = 0;
    while (ids.held() < most) {
        const auto held = static_cast<std::size_t>(ids.held());
        for (std::uint32_t i = 0; i < kBurst; i++) request(fd, 16 + (held + i) % 1200, i);
        for (std::uint32_t i = 0; i < kBurst; i++) {
            Packet packet;
            const int n = packet.receive(fd);
            if (n < 0) {
                CHECK(errno == EAGAIN);
                lost += kBurst - i;
                break;
            }
            CHECK(packet.held() && n >= 16 && intact(packet.content()));
            ids.keep(packet.first().packet_id);
        }
    }
    const long held = ids.finish();
    CHECK(lost < held / 10);
    printf("%ld held, %ld lost\n", held, lost);
}

}  // namespace

int main(int argc, char** argv) {
    return extra::run(argc, argv,
                      {{"udp_content", udp_content},
                       {"udp_errors", udp_errors},
                       {"udp_kernel", udp_kernel},
                       {"udp_lifetime", udp_lifetime},
                       {"udp_starving", udp_starving},
                       {"udp_share", udp_share},
                       {"tcp_content", tcp_content},
                       {"tcp_window", tcp_window},
                       {"tcp_bulk", tcp_bulk},
                       {"forked", forked},
                       {"stress", stress},
                       {"random_order", random_order}});
}
