// SPDX-License-Identifier: BSD-2-Clause
// Uses send buffers and registered memory of the extra API. Each case is a function; the far side is
// "extra_buffers peer", on the kernel, which sends everything back.
#include <sys/mman.h>
#include <sys/wait.h>

#include <thread>

#include "extra_api.h"
#include "include/mellanox/vma_extra.hpp"
#include "include/mellanox/vma_extra2.h"

namespace {

using namespace extra;
using Buffer = vma_send_buffer_t;

vma_api2_t* api2 = nullptr;

Buffer get(int fd, const sockaddr_in* to = nullptr) {
    Buffer one{};
    CHECK(api2->get_send_buffers(fd, &one, 1, to != nullptr ? raw(*to) : nullptr,
                                 to != nullptr ? sizeof *to : 0) == 0);
    CHECK(one.id != nullptr && one.data != nullptr && one.size >= 1472);
    return one;
}

int send_it(int fd, const Buffer& buffer, std::size_t length, int flags = 0,
            const sockaddr_in* to = nullptr) {
    return api2->send_zcopy(fd, buffer.id, length, flags, to != nullptr ? raw(*to) : nullptr,
                            to != nullptr ? sizeof *to : 0);
}

void fill(const Buffer& buffer, const std::string& content) {
    memcpy(buffer.data, content.data(), content.size());
}

// Sent from where it lies? Then the header of UDP stands in front of it.
bool in_place(const Buffer& buffer, std::size_t length) {
    const auto* const front = static_cast<const std::uint8_t*>(buffer.data) - 8;
    return (front[2] << 8 | front[3]) == kUdpPort &&
           static_cast<std::size_t>(front[4] << 8 | front[5]) == length + 8;
}

int warm() {
    const int fd = udp();
    extra::warm(fd);
    return fd;
}

void datagrams() {
    const int fd = warm();
    const sockaddr_in to = at(peer, kUdpPort);
    for (const bool named : {false, true})
        for (const std::size_t length : {0u, 1u, 64u, 200u, 255u, 256u, 1400u, 1471u, 1472u}) {
            const Buffer buffer = get(fd, named ? &to : nullptr);
            const std::string content = made(length, static_cast<std::uint32_t>(length));
            fill(buffer, content);
            CHECK(send_it(fd, buffer, length, 0, named ? &to : nullptr) == static_cast<int>(length));
            CHECK(in_place(buffer, length));
            CHECK(receive(fd) == content);
            CHECK_FAILS(send_it(fd, buffer, length), ENOENT);
        }
    // In fragments, by the kernel; where a buffer has no room for so much it says so, and is kept.
    const Buffer big = get(fd);
    const std::string content = made(big.size, 7);
    fill(big, content);
    CHECK_FAILS(send_it(fd, big, big.size + 1), EMSGSIZE);
    CHECK_FAILS(send_it(fd, big, SIZE_MAX), EMSGSIZE);
    CHECK(send_it(fd, big, big.size) == static_cast<int>(big.size));
    CHECK(receive(fd) == content);
    // Unconnected, with and without a peer.
    const int other = socket(AF_INET, SOCK_DGRAM, 0);
    const sockaddr_in here = at(own, 0);
    CHECK(bind(other, raw(here), sizeof here) == 0);
    limit(other, 5000);
    Buffer one{};
    CHECK_FAILS(api2->get_send_buffers(other, &one, 1, nullptr, 0), EINVAL);
    one = get(other, &to);
    fill(one, "named");
    CHECK_FAILS(send_it(other, one, 5), EDESTADDRREQ);
    CHECK(send_it(other, one, 5, 0, &to) == 5);
    CHECK(receive(other) == "named");
    // Again and again: buffers come back by their completions.
    for (std::uint32_t round = 0; round < 2000; round++) {
        Buffer some[16];
        CHECK(api2->get_send_buffers(fd, some, 16, nullptr, 0) == 0);
        const std::size_t length = 100 + round % 1300;
        for (std::uint32_t i = 0; i < 16; i++) {
            fill(some[i], made(length + i, round + i));
            CHECK(send_it(fd, some[i], length + i) == static_cast<int>(length + i));
        }
        for (std::uint32_t i = 0; i < 16; i++) CHECK(receive(fd) == made(length + i, round + i));
    }
}

void mistakes() {
    const int fd = warm();
    Buffer one{};
    CHECK_FAILS(api2->get_send_buffers(fd, &one, 0, nullptr, 0), EINVAL);
    CHECK_FAILS(api2->get_send_buffers(fd, &one, VMA_SEND_BUFFERS_MOST + 1, nullptr, 0), EINVAL);
    CHECK_FAILS(api2->get_send_buffers(fd, nullptr, 1, nullptr, 0), EFAULT);
    CHECK_FAILS(api2->get_send_buffers(fd, &one, 1, reinterpret_cast<sockaddr*>(8), 16), EFAULT);
    CHECK_FAILS(api2->get_send_buffers(999, &one, 1, nullptr, 0), EINVAL);
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
    CHECK_FAILS(api2->get_send_buffers(pair[0], &one, 1, nullptr, 0), EINVAL);
    const sockaddr_in loopback = at("127.0.0.1", 9);
    CHECK_FAILS(api2->get_send_buffers(fd, &one, 1, raw(loopback), sizeof loopback), ENODATA);

    const Buffer good = get(fd);
    fill(good, "abc");
    const auto id = reinterpret_cast<std::uintptr_t>(good.id);
    for (const std::uintptr_t wrong :
         {std::uintptr_t{0}, std::uintptr_t{1}, id + 1, id ^ std::uintptr_t{1} << 40,
          id ^ std::uintptr_t{1} << 55, id ^ std::uintptr_t{1} << 20, id ^ std::uintptr_t{1} << 60,
          ~std::uintptr_t{0}, reinterpret_cast<std::uintptr_t>(good.data),
          reinterpret_cast<std::uintptr_t>(&one)}) {
        CHECK_FAILS(api2->free_send_buffer(reinterpret_cast<void*>(wrong)), ENOENT);
        CHECK_FAILS(api2->send_zcopy(fd, reinterpret_cast<void*>(wrong), 3, 0, nullptr, 0), ENOENT);
    }
    // It is no packet, and packets are no send buffers.
    CHECK_FAILS(give_back(fd, good.id), ENOENT);
    request(fd, 100, 2);
    Packet packet;
    CHECK(packet.receive(fd) == 100 && packet.held());
    CHECK_FAILS(api2->free_send_buffer(packet.first().packet_id), ENOENT);
    CHECK(packet.content() == made(100, 2) && packet.give_back(fd) == 0);
    // After an error it is still the program's.
    CHECK_FAILS(send_it(fd, good, 3, MSG_ZEROCOPY), EINVAL);
    CHECK_FAILS(send_it(fd, good, 3, VMA_SND_FLAGS_DUMMY), EINVAL);
    CHECK_FAILS(send_it(fd, good, 3, MSG_OOB), EOPNOTSUPP);
    CHECK_FAILS(api2->send_zcopy(fd, good.id, 3, 0, reinterpret_cast<sockaddr*>(8), 16), EFAULT);
    CHECK_FAILS(send_it(999, good, 3), EBADF);
    CHECK_FAILS(send_it(-1, good, 3), EBADF);
    int files[2];
    CHECK(pipe(files) == 0);
    CHECK_FAILS(send_it(files[1], good, 3), ENOTSOCK);
    CHECK(send_it(fd, good, 3) == 3 && receive(fd) == "abc");
    CHECK_FAILS(api2->free_send_buffer(good.id), ENOENT);
    // A socket of the kernel's: a copy.
    const Buffer local = get(fd);
    fill(local, "local");
    CHECK(send_it(pair[0], local, 5) == 5 && receive(pair[1]) == "local");
    CHECK_FAILS(send_it(pair[0], local, 5), ENOENT);
    const Buffer unused = get(fd);
    CHECK(api2->free_send_buffer(unused.id) == 0);
    CHECK_FAILS(api2->free_send_buffer(unused.id), ENOENT);
    // What was given back is not what is kept anew.
    const Buffer anew = get(fd);
    CHECK(anew.id != unused.id);
    CHECK_FAILS(api2->free_send_buffer(unused.id), ENOENT);
    fill(anew, "anew");
    CHECK(send_it(fd, anew, 4) == 4 && receive(fd) == "anew");
}

// They outlive their socket, and any thread sends them on any other.
void lifetime() {
    const int fd = warm();
    Buffer some[8];
    CHECK(api2->get_send_buffers(fd, some, 8, nullptr, 0) == 0);
    for (std::uint32_t i = 0; i < 8; i++) fill(some[i], made(500 + i, i));
    close(fd);
    CHECK_FAILS(send_it(fd, some[0], 500), EBADF);
    const int next = warm();
    std::thread([&] {
        for (std::size_t i = 0; i < 4; i++) {
            CHECK(send_it(next, some[i], 500 + i) == static_cast<int>(500 + i));
            CHECK(receive(next) == made(500 + i, static_cast<std::uint32_t>(i)));
        }
        CHECK(api2->free_send_buffer(some[4].id) == 0);
    }).join();
    CHECK_FAILS(api2->free_send_buffer(some[4].id), ENOENT);
    // A child has none of them, and does no harm to its parent's.
    const pid_t child = fork();
    if (child == 0) {
        const bool none = api2->free_send_buffer(some[5].id) < 0 && errno == ENOENT &&
                          send_it(next, some[5], 505) < 0 && errno == ENOENT;
        _exit(none ? 0 : 1);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(send_it(next, some[5], 505) == 505 && receive(next) == made(505, 5));
    // Of two threads that send the same one, one does.
    for (int round = 0; round < 200; round++) {
        const Buffer both = get(next);
        fill(both, "once");
        int other = 0;
        std::thread rival([&] { other = send_it(next, both, 4); });
        const int here = send_it(next, both, 4);
        rival.join();
        CHECK((here == 4) != (other == 4));
        CHECK(receive(next) == "once");
    }
    CHECK(recv(next, some[0].data, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
    // The object gives back what was not sent.
    for (int i = 0; i < 20000; i++) CHECK(vma_extra::SendBuffer(api2, next));
    vma_extra::SendBuffer object(api2, next), moved(std::move(object));
    CHECK(moved && !object && moved.data().size() >= 1472);
    memcpy(moved.data().data(), "object", 6);
    CHECK(moved.send(next, 6) == 6 && !moved && receive(next) == "object");
    CHECK(!vma_extra::SendBuffer(api2, 999));
}

// A program that never sends what it gets has a quarter of the buffers, and other sockets go on.
void quota() {
    const int fd = warm(), other = warm();
    std::vector<Buffer> kept;
    for (Buffer some[16]; api2->get_send_buffers(fd, some, 16, nullptr, 0) == 0;)
        kept.insert(kept.end(), some, some + 16);
    CHECK(errno == ENOBUFS);
    CHECK(kept.size() >= 16 && kept.size() < 20000);
    Buffer one{};
    while (api2->get_send_buffers(other, &one, 1, nullptr, 0) == 0) kept.push_back(one);
    CHECK(errno == ENOBUFS);
    for (std::uint32_t i = 0; i < 2000; i++) {
        request(other, 1200, i);
        CHECK(receive(other) == made(1200, i));
    }
    // All of them at once, as one burst; what it has sent it may get anew.
    for (std::size_t i = 0; i < kept.size(); i++) {
        fill(kept[i], "kept");
        const int n = send_it(fd, kept[i], 4, MSG_DONTWAIT);
        if (n < 0) CHECK(errno == EAGAIN && api2->free_send_buffer(kept[i].id) == 0);
    }
    kept.assign(16, {});
    CHECK(api2->get_send_buffers(other, kept.data(), 16, nullptr, 0) == 0);
    for (const Buffer& b : kept) CHECK(api2->free_send_buffer(b.id) == 0);
    const int last = warm();
    request(last, 1000, 3);
    CHECK(receive(last) == made(1000, 3));
}

// A stream copies; what it takes only in part stays the program's.
void stream() {
    const int fd = tcp();
    std::string sent, back;
    for (std::uint32_t i = 0; i < 300; i++) {
        const Buffer buffer = get(fd);
        const std::string content = made(i * 7 % 1460, i);
        fill(buffer, content);
        CHECK(send_it(fd, buffer, content.size()) == static_cast<int>(content.size()));
        CHECK_FAILS(api2->free_send_buffer(buffer.id), ENOENT);
        sent += content;
    }
    back.resize(sent.size());
    CHECK(recv(fd, back.data(), back.size(), MSG_WAITALL) == static_cast<ssize_t>(back.size()));
    CHECK(back == sent);
    // Without waiting, until nothing fits.
    const Buffer buffer = get(fd);
    fill(buffer, made(1400, 1));
    int n = 0;
    for (;;) {
        const Buffer next = get(fd);
        fill(next, made(1400, 1));
        n = send_it(fd, next, 1400, MSG_DONTWAIT);
        if (n == 1400) continue;
        CHECK(n >= 0 || errno == EAGAIN);
        CHECK(api2->free_send_buffer(next.id) == 0);
        break;
    }
    close(fd);
    CHECK(api2->free_send_buffer(buffer.id) == 0);
    const Buffer late = get(tcp());
    CHECK_FAILS(send_it(socket(AF_INET, SOCK_STREAM, 0), late, 100, MSG_NOSIGNAL), EPIPE);
    CHECK(api2->free_send_buffer(late.id) == 0);
}

// The first ring's packets lie in memory of the program, both ways.
void memory() {
    std::size_t length = 1;
    char byte = 0;
    CHECK_FAILS(api2->register_memory(nullptr, nullptr), EFAULT);
    CHECK_FAILS(api2->register_memory(&byte, &length), ENOSPC);
    CHECK(length > 1 << 20);
    CHECK_FAILS(api2->register_memory(nullptr, &length), EFAULT);
    void* const mine = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mine != MAP_FAILED);
    CHECK(api2->register_memory(mine, &length) == 0);
    CHECK_FAILS(api2->register_memory(mine, &length), EBUSY);
    const int fd = warm();
    CHECK_FAILS(api2->register_memory(mine, &length), EBUSY);
    const auto inside = [&](const void* p) { return p >= mine && p < static_cast<char*>(mine) + length; };
    for (std::uint32_t i = 0; i < 100; i++) {
        const Buffer buffer = get(fd);
        CHECK(inside(buffer.data));
        fill(buffer, made(1000, i));
        CHECK(send_it(fd, buffer, 1000) == 1000 && in_place(buffer, 1000));
        Packet packet;
        CHECK(packet.receive(fd) == 1000 && packet.held() && packet.content() == made(1000, i));
        CHECK(inside(packet.first().iov[0].iov_base) && packet.give_back(fd) == 0);
    }
}

}  // namespace

int main(int argc, char** argv) {
    api2 = vma_get_api2();
    return extra::run(argc, argv,
                      {{"datagrams", datagrams},
                       {"mistakes", mistakes},
                       {"lifetime", lifetime},
                       {"quota", quota},
                       {"stream", stream},
                       {"memory", memory}});
}
