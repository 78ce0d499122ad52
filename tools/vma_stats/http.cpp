// SPDX-License-Identifier: BSD-2-Clause
// See http.h.
#include "tools/vma_stats/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <string_view>
#include <vector>

#include "tools/common/clock.h"
#include "tools/vma_stats/formats.h"

namespace vma_stats {
namespace {

using tools::Clock;
constexpr std::size_t kMaxRequest = 8192;
constexpr std::size_t kMaxClients = 32;
constexpr std::chrono::seconds kPatience{5};
constexpr int kTick = 200;  // milliseconds

struct Where {
    std::string address = "127.0.0.1", port;
};

bool split(const std::string& text, Where& where) {
    const std::size_t colon = text.rfind(':');
    where.port = colon == text.npos ? text : text.substr(colon + 1);
    if (colon != text.npos && colon != 0) {
        where.address = text.substr(0, colon);
        if (where.address.front() == '[' && where.address.back() == ']')
            where.address = where.address.substr(1, where.address.size() - 2);
        else if (where.address.find(':') != where.address.npos)
            return false;  // an IPv6 address wants brackets
    }
    if (where.port.empty() || where.port.size() > 5 ||
        where.port.find_first_not_of("0123456789") != where.port.npos)
        return false;
    if (std::stoi(where.port) > 65535) return false;
    in6_addr parsed{};
    return inet_pton(AF_INET, where.address.c_str(), &parsed) == 1 ||
           inet_pton(AF_INET6, where.address.c_str(), &parsed) == 1;
}

std::string bound_address(int fd) {
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    char host[64] = "?", port[16] = "?";
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0)
        getnameinfo(reinterpret_cast<sockaddr*>(&address), length, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV);
    return address.ss_family == AF_INET6 ? fmt::format("[{}]:{}", host, port)
                                         : fmt::format("{}:{}", host, port);
}

struct Client {
    tools::Fd socket;
    Clock::time_point deadline;
    std::string request, answer;
    std::size_t sent = 0;
    bool done = false;

    void serve(const std::function<std::string()>& metrics) {
        if (answer.empty()) receive(metrics);
        if (!answer.empty()) transmit();
    }

  private:
    void receive(const std::function<std::string()>& metrics) {
        char block[2048];
        const ssize_t n = recv(socket.get(), block, sizeof block, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (n <= 0) {
            done = true;
            return;
        }
        request.append(block, static_cast<std::size_t>(n));
        if (request.find("\r\n\r\n") != request.npos || request.find("\n\n") != request.npos)
            answer = http_answer(request, metrics);
        else if (request.size() > kMaxRequest)
            answer =
                "HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: "
                "close\r\n\r\n";
    }
    void transmit() {
        const ssize_t n =
            send(socket.get(), answer.data() + sent, answer.size() - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (n > 0) sent += static_cast<std::size_t>(n);
        done = n < 0 || sent == answer.size();
    }
};

std::string reply(std::string_view status, std::string_view type, const std::string& body, bool with_body,
                  std::string_view more = "") {
    return fmt::format(
        "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n{}\r\n{}", status,
        type, body.size(), more, with_body ? body : "");
}

}  // namespace

bool HttpServer::valid(const std::string& where) {
    Where parts;
    return split(where, parts);
}

std::expected<HttpServer, std::string> HttpServer::listen(const std::string& where) {
    Where parts;
    if (!split(where, parts))
        return std::unexpected(fmt::format("{}: expected PORT, ADDRESS:PORT or [IPv6 ADDRESS]:PORT", where));
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
    if (const int error = getaddrinfo(parts.address.c_str(), parts.port.c_str(), &hints, &found); error != 0)
        return std::unexpected(fmt::format("{}: {}", where, gai_strerror(error)));
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, freeaddrinfo);
    HttpServer server;
    server.socket_ = tools::Fd(socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1;
    setsockopt(server.socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (!server.socket_ || bind(server.socket_.get(), list->ai_addr, list->ai_addrlen) != 0 ||
        ::listen(server.socket_.get(), 16) != 0)
        return std::unexpected(fmt::format("cannot listen on {}: {}", where, strerrordesc_np(errno)));
    server.address_ = bound_address(server.socket_.get());
    return server;
}

void HttpServer::run(const std::function<std::string()>& metrics, const std::function<bool()>& stop) const {
    std::vector<Client> clients;
    std::vector<pollfd> waits;
    while (!stop()) {
        waits.clear();
        for (const Client& client : clients)
            waits.push_back(
                {client.socket.get(), static_cast<short>(client.answer.empty() ? POLLIN : POLLOUT), 0});
        // With all places taken, others wait in the kernel's queue.
        if (clients.size() < kMaxClients) waits.push_back({socket_.get(), POLLIN, 0});
        poll(waits.data(), waits.size(), kTick);  // signals are looked at with `stop`
        const auto now = Clock::now();
        for (std::size_t i = 0; i < clients.size(); i++) {
            if (waits[i].revents != 0) clients[i].serve(metrics);
            if (now > clients[i].deadline) clients[i].done = true;
        }
        const bool arrived = waits.size() > clients.size() && waits.back().revents != 0;
        std::erase_if(clients, [](const Client& client) { return client.done; });
        if (!arrived) continue;
        tools::Fd socket(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (socket) clients.push_back({.socket = std::move(socket), .deadline = now + kPatience});
    }
}

std::string http_answer(const std::string& request, const std::function<std::string()>& metrics) {
    constexpr std::string_view kText = "text/plain; charset=utf-8";
    const std::string line = request.substr(0, request.find_first_of("\r\n"));
    const std::size_t first = line.find(' '), second = line.find(' ', first + 1);
    if (first == line.npos || second == line.npos || !line.substr(second + 1).starts_with("HTTP/1."))
        return reply("400 Bad Request", kText, "this is a port for HTTP\n", true);
    const std::string method = line.substr(0, first);
    std::string target = line.substr(first + 1, second - first - 1);
    target = target.substr(0, target.find('?'));
    const bool head = method == "HEAD";
    if (!head && method != "GET")
        return reply("405 Method Not Allowed", kText, "only GET and HEAD\n", true, "Allow: GET, HEAD\r\n");
    if (target == "/metrics") return reply("200 OK", kPrometheusType, metrics(), !head);
    if (target == "/") return reply("200 OK", kText, "vma_stats: the statistics are at /metrics\n", !head);
    return reply("404 Not Found", kText, "the statistics are at /metrics\n", !head);
}

}  // namespace vma_stats
