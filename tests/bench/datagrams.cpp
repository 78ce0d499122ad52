// SPDX-License-Identifier: BSD-2-Clause
// Datagrams per second with sendmmsg(2): many in one call. One thread on each side.
//
//   datagrams server ADDRESS PORT                                          counts until SIGTERM or SIGINT
//   datagrams client ADDRESS PORT [--seconds S] [--batch N] [--size BYTES] one line of JSON
#include <string.h>
#include <sys/uio.h>

#include "tcp_tool.h"

namespace {

using namespace bench;

constexpr unsigned kMostInACall = 1024;  // UIO_MAXIOV

void serve_datagrams(const sockaddr_in& at) {
    stop_on_signals();
    Fd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (bind(fd.get(), plain(at), sizeof at) != 0) fail("bind");
    std::uint64_t count = 0;
    std::array<std::uint8_t, 65536> datagram;
    while (g_stop == 0) {
        if (recv(fd.get(), datagram.data(), datagram.size(), 0) >= 0)
            count++;
        else if (errno != EINTR)
            fail("recv");
    }
    printf("received %llu\n", static_cast<unsigned long long>(count));
}

void send_datagrams(const sockaddr_in& to, double seconds, unsigned batch, std::size_t size) {
    Fd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (connect(fd.get(), plain(to), sizeof to) != 0) fail("connect");
    std::vector<std::uint8_t> payload(size, 'x');
    std::vector<iovec> pieces(batch, iovec{payload.data(), payload.size()});
    std::vector<mmsghdr> messages(batch);
    for (unsigned i = 0; i < batch; i++) {
        messages[i].msg_hdr.msg_iov = &pieces[i];
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    const auto start = Clock::now();
    const auto end =
        start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    std::uint64_t sent = 0;
    for (auto now = start; now < end; now = Clock::now()) {
        const int count = sendmmsg(fd.get(), messages.data(), batch, 0);
        if (count < 0) {
            if (errno == EINTR || errno == ENOBUFS) continue;
            fail("sendmmsg");
        }
        sent += static_cast<unsigned>(count);
    }
    const double took = std::chrono::duration<double>(Clock::now() - start).count();
    printf("{\"sent\": %llu, \"seconds\": %.6f}\n", static_cast<unsigned long long>(sent), took);
}

int run(int argc, char** argv) {
    const std::string_view what = argc > 3 ? argv[1] : "";
    if (what == "server") {
        serve_datagrams(address_of(argv[2], argv[3]));
        return 0;
    }
    if (what == "client") {
        const double batch = option(argc, argv, 4, "--batch", 32),
                     size = option(argc, argv, 4, "--size", 100);
        if (batch < 1 || batch > kMostInACall || size < 0 || size > 65507)
            throw std::runtime_error("--batch is 1 to 1024, --size 0 to 65507");
        send_datagrams(address_of(argv[2], argv[3]), option(argc, argv, 4, "--seconds", 1),
                       static_cast<unsigned>(batch), static_cast<std::size_t>(size));
        return 0;
    }
    throw std::runtime_error("usage: datagrams server|client ADDRESS PORT [options]");
}

}  // namespace

int main(int argc, char** argv) { return bench::run_tool("datagrams", run, argc, argv); }
