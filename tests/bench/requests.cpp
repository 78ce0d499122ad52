// SPDX-License-Identifier: BSD-2-Clause
// The time of requests over lasting connections: the client sends 64 bytes and gets an answer of some
// kilobytes, on several connections at once, one request under way on each. One thread on each side.
//
//   requests server ADDRESS PORT                                                      until SIGTERM
//   requests client ADDRESS PORT [--count N] [--bytes B] [--at-once N]                one line of JSON
#include <memory>
#include <unordered_map>

#include "tcp_tool.h"

namespace {

using namespace bench;

constexpr std::uint32_t kMostBytes = 1 << 20;

// The answer's bytes say which request they belong to.
std::uint8_t byte_of(std::uint64_t number, std::size_t at) {
    return static_cast<std::uint8_t>(number * 7 + at % 251);
}

std::uint64_t word(const Message& message, std::size_t at) {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < 8; i++) value = value << 8 | message[at + i];
    return value;
}
void set_word(Message& message, std::size_t at, std::uint64_t value) {
    for (std::size_t i = 8; i-- > 0; value >>= 8) message[at + i] = static_cast<std::uint8_t>(value);
}

class Server {
  public:
    std::uint64_t run(const sockaddr_in& at) {
        stop_on_signals();
        const Fd listener = listen_on(at);
        watch(epoll_.get(), listener.get(), EPOLLIN);
        std::array<epoll_event, 64> events;
        while (g_stop == 0) {
            const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 200);
            for (int i = 0; i < count; i++) {
                const int fd = events[static_cast<std::size_t>(i)].data.fd;
                if (fd == listener.get())
                    accept_all(fd);
                else if (!advance(*open_.at(fd)))
                    open_.erase(fd);
            }
        }
        return served_;
    }

  private:
    struct Peer {
        Fd fd;
        Message request;
        std::size_t have = 0;                // of the request
        std::vector<std::uint8_t> answer{};  // what is left of it begins at `sent`
        std::size_t sent = 0;
    };

    void accept_all(int listener) {
        int next;
        while ((next = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
            no_delay(next);
            watch(epoll_.get(), next, EPOLLIN);
            open_[next] = std::make_unique<Peer>(Peer{Fd(next), {}});
        }
    }

    // False: the connection is over.
    bool advance(Peer& p) {
        for (;;) {
            while (p.sent < p.answer.size()) {
                const ssize_t count =
                    send(p.fd.get(), &p.answer[p.sent], p.answer.size() - p.sent, MSG_NOSIGNAL);
                if (count < 0 && errno == EAGAIN) {
                    watch(epoll_.get(), p.fd.get(), EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
                    return true;
                }
                if (count <= 0) return false;
                p.sent += static_cast<std::size_t>(count);
                if (p.sent == p.answer.size()) watch(epoll_.get(), p.fd.get(), EPOLLIN, EPOLL_CTL_MOD);
            }
            const ssize_t count = recv(p.fd.get(), &p.request[p.have], kMessage - p.have, 0);
            if (count < 0 && errno == EAGAIN) return true;
            if (count <= 0) return false;
            p.have += static_cast<std::size_t>(count);
            if (p.have < kMessage) continue;
            p.have = p.sent = 0;
            const std::uint64_t number = word(p.request, 0);
            p.answer.resize(std::min<std::uint64_t>(word(p.request, 8), kMostBytes));
            for (std::size_t i = 0; i < p.answer.size(); i++) p.answer[i] = byte_of(number, i);
            served_++;
        }
    }

    Fd epoll_{epoll_create1(EPOLL_CLOEXEC)};
    std::unordered_map<int, std::unique_ptr<Peer>> open_;
    std::uint64_t served_ = 0;
};

class Client {
  public:
    Client(std::uint64_t count, std::uint32_t bytes) : count_(count), bytes_(bytes), buffer_(bytes) {}

    void run(const sockaddr_in& server, unsigned at_once) {
        for (unsigned i = 0; i < at_once; i++) {
            Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
            if (connect(fd.get(), plain(server), sizeof server) != 0) fail("connect");
            no_delay(fd.get());
            watch(epoll_.get(), fd.get(), EPOLLIN);
            const int number = fd.get();
            open_[number].fd = std::move(fd);
        }
        for (auto& [_, asked] : open_) ask(asked);
        std::array<epoll_event, 64> events;
        while (times_.size() < count_) {
            const int count =
                epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 10'000);
            if (count == 0) throw std::runtime_error("no answer for ten seconds");
            for (int i = 0; i < count; i++) take(open_.at(events[static_cast<std::size_t>(i)].data.fd));
        }
    }
    std::vector<std::uint32_t>& times() { return times_; }

  private:
    struct Asked {
        Fd fd;
        std::uint64_t number = 0;
        std::size_t have = 0;  // bytes of the answer
        Clock::time_point at;
    };

    void ask(Asked& a) {
        if (next_ == count_) return;
        Message message{};
        a.number = next_++;
        a.have = 0;
        set_word(message, 0, a.number);
        set_word(message, 8, bytes_);
        a.at = Clock::now();
        transmit(a.fd.get(), message);
    }

    void take(Asked& a) {
        const ssize_t count = recv(a.fd.get(), buffer_.data(), bytes_ - a.have, MSG_DONTWAIT);
        if (count < 0 && errno == EAGAIN) return;
        if (count <= 0) fail("an answer");
        for (std::size_t i = 0; i < static_cast<std::size_t>(count); i++)
            if (buffer_[i] != byte_of(a.number, a.have + i)) throw std::runtime_error("a wrong answer");
        a.have += static_cast<std::size_t>(count);
        if (a.have < bytes_) return;
        times_.push_back(static_cast<std::uint32_t>(
            std::min<std::int64_t>(std::chrono::nanoseconds(Clock::now() - a.at).count(), UINT32_MAX)));
        ask(a);
    }

    const std::uint64_t count_;
    const std::uint32_t bytes_;
    std::vector<std::uint8_t> buffer_;
    Fd epoll_{epoll_create1(EPOLL_CLOEXEC)};
    std::unordered_map<int, Asked> open_;
    std::vector<std::uint32_t> times_;
    std::uint64_t next_ = 0;
};

int run(int argc, char** argv) {
    const std::string_view role = argc >= 4 ? argv[1] : "";
    if (role == "server" && argc == 4) {
        printf("served %llu\n", static_cast<unsigned long long>(Server().run(address_of(argv[2], argv[3]))));
        return 0;
    }
    const double count = option(argc, argv, 4, "--count", 10'000);
    const double bytes = option(argc, argv, 4, "--bytes", 10'240);
    const auto at_once = static_cast<unsigned>(option(argc, argv, 4, "--at-once", 16));
    if (role != "client" || argc % 2 != 0 || count < at_once || bytes < 1 || bytes > kMostBytes ||
        at_once < 1 || at_once > 1000) {
        fputs(
            "usage: requests server ADDRESS PORT\n       requests client ADDRESS PORT [--count N] [--bytes "
            "B] "
            "[--at-once N]\n",
            stderr);
        return 2;
    }
    Client client(static_cast<std::uint64_t>(count), static_cast<std::uint32_t>(bytes));
    client.run(address_of(argv[2], argv[3]), at_once);
    printf("{\"requests\": %zu, \"us\": %s}\n", client.times().size(), percentiles(client.times()).c_str());
    return 0;
}

}  // namespace

int main(int argc, char** argv) { return bench::run_tool("requests", run, argc, argv); }
