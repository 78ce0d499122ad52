// SPDX-License-Identifier: BSD-2-Clause
// Short connections per second: the client opens, sends a request, gets the reply, the server closes, the
// client sees the end and closes. One process on each side, one thread in each. The client keeps several such
// exchanges under way, as the clients of a busy server do, so that the rate is what counts and not one round
// trip.
//
//   conn_rate server ADDRESS PORT                                     until SIGTERM
//   conn_rate client ADDRESS PORT [--seconds S] [--at-once N]         one line of JSON
#include <unordered_map>

#include "tcp_tool.h"

namespace {

using namespace bench;

Message request(std::uint64_t number) {
    Message message;
    for (std::size_t i = 0; i < message.size(); i++) message[i] = static_cast<std::uint8_t>(number * 7 + i);
    return message;
}

// The reply depends on the request, so an old one is not taken for it.
void answer(Message& message) {
    for (std::uint8_t& byte : message) byte ^= 0xff;
}

class Client {
  public:
    Client(const sockaddr_in& server, unsigned at_once)
        : server_(server), at_once_(at_once), epoll_(epoll_create1(EPOLL_CLOEXEC)) {}

    // Connections completed in `seconds`. Those under way at the end do not count.
    std::uint64_t run(double seconds, double& took) {
        const auto start = Clock::now();
        const auto end =
            start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
        for (unsigned i = 0; i < at_once_; i++) open_one();
        std::array<epoll_event, 64> events;
        auto last = start;
        for (auto now = start; now < end; now = Clock::now()) {
            const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 1000);
            if (count > 0) last = Clock::now();
            if (Clock::now() - last > std::chrono::seconds(3))
                throw std::runtime_error("no connection gets on");
            for (int i = 0; i < count; i++) advance(events[static_cast<std::size_t>(i)].data.fd);
        }
        took = std::chrono::duration<double>(Clock::now() - start).count();
        return done_;
    }

  private:
    struct Exchange {
        Fd fd;
        std::uint64_t number;
        enum { connecting, waiting, closing } state = connecting;
    };

    void open_one() {
        Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
        if (fd.get() < 0) fail("socket");
        if (connect(fd.get(), plain(server_), sizeof server_) != 0 && errno != EINPROGRESS) fail("connect");
        const int number = fd.get();
        watch(epoll_.get(), number, EPOLLOUT);
        open_[number] = {std::move(fd), next_++, Exchange::connecting};
    }

    void advance(int fd) {
        Exchange& exchange = open_.at(fd);
        if (exchange.state == Exchange::connecting) {
            int error = 0;
            socklen_t length = sizeof error;
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
            if (error != 0) {
                errno = error;
                fail("connect");
            }
            transmit(fd, request(exchange.number));
            watch(epoll_.get(), fd, EPOLLIN, EPOLL_CTL_MOD);
            exchange.state = Exchange::waiting;
            return;
        }
        Message message;
        if (exchange.state == Exchange::waiting) {
            const ssize_t count = recv(fd, message.data(), message.size(), 0);
            if (count < 0 && errno == EAGAIN) return;
            Message expected = request(exchange.number);
            answer(expected);
            if (count != static_cast<ssize_t>(kMessage) || message != expected) {
                if (count >= 0) errno = EBADMSG;
                fail("reply");
            }
            exchange.state = Exchange::closing;
        }
        const ssize_t count =
            recv(fd, message.data(), message.size(), 0);  // the end may have come with the reply
        if (count < 0 && errno == EAGAIN) return;
        if (count != 0) {
            if (count > 0) errno = EBADMSG;
            fail("end of the connection");
        }
        open_.erase(fd);
        done_++;
        open_one();
    }

    const sockaddr_in server_;
    const unsigned at_once_;
    Fd epoll_;
    std::unordered_map<int, Exchange> open_;
    std::uint64_t next_ = 0, done_ = 0;
};

int run(int argc, char** argv) {
    const std::string_view role = argc >= 4 ? argv[1] : "";
    if (role == "server" && argc == 4) {
        printf("served %llu\n",
               static_cast<unsigned long long>(serve(address_of(argv[2], argv[3]), [](Message& message) {
                   answer(message);
                   return false;
               })));
        return 0;
    }
    const double seconds = option(argc, argv, 4, "--seconds", 1);
    const auto at_once = static_cast<unsigned>(option(argc, argv, 4, "--at-once", 16));
    if (role != "client" || argc % 2 != 0 || seconds <= 0 || at_once < 1 || at_once > 1000) {
        fputs(
            "usage: conn_rate server ADDRESS PORT\n       conn_rate client ADDRESS PORT [--seconds S] "
            "[--at-once N]\n",
            stderr);
        return 2;
    }
    double took = 0;
    const std::uint64_t done = Client(address_of(argv[2], argv[3]), at_once).run(seconds, took);
    printf("{\"connections\": %llu, \"per_second\": %.0f}\n", static_cast<unsigned long long>(done),
           static_cast<double>(done) / took);
    return 0;
}

}  // namespace

int main(int argc, char** argv) { return bench::run_tool("conn_rate", run, argc, argv); }
