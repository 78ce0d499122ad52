// SPDX-License-Identifier: BSD-2-Clause
// Uses sendmany of the extra API. Each case is a function; the far side is "extra_sending peer", on the
// kernel, which sends everything back.
#include <sys/wait.h>

#include <numeric>
#include <set>

#include "extra_api.h"
#include "include/mellanox/vma_extra2.h"

namespace {

using namespace extra;

int send_many(int fd, const std::vector<iovec>& pieces, int flags = 0, const sockaddr_in* to = nullptr) {
    return vma_get_api2()->sendmany(fd, pieces.data(), static_cast<unsigned>(pieces.size()), flags,
                                    to != nullptr ? raw(*to) : nullptr, to != nullptr ? sizeof *to : 0);
}

// Pieces of these lengths, each with content of its own.
struct Pieces {
    std::vector<std::string> content;
    std::vector<iovec> list;

    explicit Pieces(const std::vector<std::size_t>& lengths) {
        for (std::size_t i = 0; i < lengths.size(); i++)
            content.push_back(made(lengths[i], static_cast<std::uint32_t>(i)));
        for (std::string& one : content) list.push_back({one.data(), one.size()});
    }
    std::string joined() const { return std::accumulate(content.begin(), content.end(), std::string()); }
};

// Ordinary datagrams, empty ones, and some that only the kernel sends: each arrives whole.
void datagrams() {
    const int fd = udp();
    warm(fd);
    const sockaddr_in to = at(peer, kUdpPort);
    for (const bool named : {false, true}) {
        Pieces some({100, 0, 1472, 3000, 1, 20000, 64});
        CHECK(send_many(fd, some.list, 0, named ? &to : nullptr) == 7);
        // What the kernel sends may overtake, or be overtaken.
        std::multiset<std::string> sent(some.content.begin(), some.content.end());
        for (int i = 0; i < 7; i++) {
            const auto found = sent.find(receive(fd));
            CHECK(found != sent.end());
            sent.erase(found);
        }
    }
    // More than the locks are kept for, in order.
    Pieces many(std::vector<std::size_t>(200, 50));
    CHECK(send_many(fd, many.list) == 200);
    for (const std::string& one : many.content) CHECK(receive(fd) == one);
    // More than one call takes.
    CHECK(send_many(fd, std::vector<iovec>(2000, many.list[0]), MSG_DONTWAIT) <= 1024);
    // Until the answers have come, and the peer has room again.
    for (bool quiet = false; !quiet;) {
        usleep(100000);
        for (quiet = true; recv(fd, many.content[0].data(), 50, MSG_DONTWAIT) >= 0;) quiet = false;
    }
    // The first bad one ends it, and the next call tells why.
    Pieces bad(std::vector<std::size_t>(5, 30));
    bad.list[3] = {nullptr, 10};
    CHECK(send_many(fd, bad.list) == 3);
    for (int i = 0; i < 3; i++) CHECK(receive(fd) == bad.content[static_cast<std::size_t>(i)]);
    bad.list.erase(bad.list.begin(), bad.list.begin() + 3);
    CHECK_FAILS(send_many(fd, bad.list), EFAULT);
    bad.list[0] = {bad.content[0].data(), 70000};
    CHECK_FAILS(send_many(fd, bad.list), EMSGSIZE);
    // From packets that the program keeps.
    request(fd, 1400, 9);
    Packet kept;
    CHECK(kept.receive(fd) == 1400 && kept.held());
    CHECK(send_many(fd, std::vector<iovec>(4, kept.first().iov[0])) == 4);
    for (int i = 0; i < 4; i++) CHECK(receive(fd) == made(1400, 9));
    CHECK(kept.give_back(fd) == 0);
    CHECK(send_many(fd, {}) == 0);
}

// One gather: all bytes, in order, and whole buffers that do not fit.
void stream() {
    const int fd = tcp();
    std::vector<std::size_t> lengths;
    for (std::size_t i = 0; i < 300; i++) lengths.push_back(i * 7 % 1500);
    Pieces pieces(lengths);
    const std::string all = pieces.joined();
    CHECK(send_many(fd, pieces.list) == static_cast<int>(all.size()));
    std::string back(all.size(), 0);
    CHECK(recv(fd, back.data(), back.size(), MSG_WAITALL) == static_cast<ssize_t>(back.size()));
    CHECK(back == all);
    // Without waiting, until nothing fits: what was not sent can be sent by the byte.
    const std::string big = made(1 << 20, 3);
    std::size_t sent = 0;
    for (;;) {
        const std::vector<iovec> rest{{const_cast<char*>(big.data()) + sent, big.size() - sent}};
        if (rest[0].iov_len == 0) break;
        const int n = send_many(fd, rest, MSG_DONTWAIT);
        if (n < 0) {
            CHECK(errno == EAGAIN);
            usleep(100);
            continue;
        }
        sent += static_cast<std::size_t>(n);
    }
    back.assign(big.size(), 0);
    CHECK(recv(fd, back.data(), back.size(), MSG_WAITALL) == static_cast<ssize_t>(back.size()) &&
          back == big);
    Pieces bad({100, 100, 100});
    bad.list[0] = {nullptr, 10};
    CHECK_FAILS(send_many(fd, bad.list), EFAULT);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    CHECK_FAILS(send_many(fd, pieces.list, MSG_NOSIGNAL), EPIPE);
}

// What is not the library's, and what is not there.
void others() {
    vma_api2_t* const api2 = vma_get_api2();
    CHECK(api2 != nullptr && VMA_API2_HAS(api2, sendmany));
    Pieces pieces({100, 200, 300});
    CHECK_FAILS(send_many(999, pieces.list), EBADF);
    CHECK_FAILS(send_many(-1, pieces.list), EBADF);
    CHECK_FAILS(api2->sendmany(udp(), nullptr, 3, 0, nullptr, 0), EFAULT);
    CHECK_FAILS(api2->sendmany(udp(), pieces.list.data(), 3, 0, reinterpret_cast<sockaddr*>(8), 16), EFAULT);
    int files[2];
    CHECK(pipe(files) == 0);
    CHECK_FAILS(send_many(files[1], pieces.list), ENOTSOCK);
    for (const int type : {SOCK_DGRAM, SOCK_STREAM}) {
        int pair[2];
        CHECK(socketpair(AF_UNIX, type, 0, pair) == 0);
        CHECK(send_many(pair[0], pieces.list) == (type == SOCK_DGRAM ? 3 : 600));
        if (type == SOCK_DGRAM)
            for (const std::string& one : pieces.content) CHECK(receive(pair[1]) == one);
        else
            CHECK(receive(pair[1]) == pieces.joined());
    }
    const int unbound = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK_FAILS(send_many(unbound, pieces.list), EDESTADDRREQ);
    const int closed = udp();
    warm(closed);
    close(closed);
    CHECK_FAILS(send_many(closed, pieces.list), EBADF);
    CHECK_FAILS(send_many(socket(AF_INET, SOCK_STREAM, 0), pieces.list, MSG_NOSIGNAL), EPIPE);
    // A child's datagrams go by the kernel, and its parent gets the answers.
    const int fd = udp();
    warm(fd);
    const pid_t child = fork();
    if (child == 0) _exit(send_many(fd, pieces.list) == 3 ? 0 : 1);
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    for (const std::string& one : pieces.content) CHECK(receive(fd) == one);
}

}  // namespace

int main(int argc, char** argv) {
    return extra::run(argc, argv, {{"datagrams", datagrams}, {"stream", stream}, {"others", others}});
}
