// SPDX-License-Identifier: BSD-2-Clause
// The port for Prometheus: answers, and clients that behave badly.
#include "tools/vma_stats/http.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <atomic>
#include <thread>

namespace {

using namespace vma_stats;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

std::string metrics() { return "vma_processes 1\n"; }
std::string answer(const std::string& request) { return http_answer(request, metrics); }

TEST(StatsHttp, Answers) {
    const std::string got = answer("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_THAT(got,
                StartsWith("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                           "Content-Length: 16\r\n"));
    EXPECT_THAT(got, EndsWith("\r\n\r\nvma_processes 1\n"));
    EXPECT_THAT(answer("GET /metrics?x=1 HTTP/1.0\n\n"), StartsWith("HTTP/1.1 200"));
    EXPECT_THAT(answer("HEAD /metrics HTTP/1.1\r\n\r\n"), EndsWith("\r\n\r\n"));
    EXPECT_THAT(answer("GET / HTTP/1.1\r\n\r\n"), HasSubstr("/metrics"));
    EXPECT_THAT(answer("GET /etc/passwd HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404"));
    EXPECT_THAT(answer("POST /metrics HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 405"));
    for (const char* bad :
         {"", "GET", "GET /metrics", "GET  HTTP", "\r\n\r\n", "GET /metrics SPDY/3\r\n\r\n"})
        EXPECT_THAT(answer(bad), StartsWith("HTTP/1.1 400")) << bad;
}

TEST(StatsHttp, Addresses) {
    for (const char* good : {"9100", ":9100", "0.0.0.0:1", "127.0.0.1:65535", "[::1]:9100", "0"})
        EXPECT_TRUE(HttpServer::valid(good)) << good;
    for (const char* bad : {"", "x", "127.0.0.1", "127.0.0.1:", "::1:80", "[::1]", "1.2.3:4", "localhost:80",
                            "127.0.0.1:65536", "127.0.0.1:-1", "[]:80", "1:2:3"})
        EXPECT_FALSE(HttpServer::valid(bad)) << bad;
    const auto other = HttpServer::listen("192.0.2.77:0");
    ASSERT_FALSE(other);
    EXPECT_THAT(other.error(), HasSubstr("cannot listen on 192.0.2.77:0"));
}

class StatsHttpServer : public testing::Test {
  protected:
    void SetUp() override {
        auto made = HttpServer::listen("0");
        ASSERT_TRUE(made) << made.error();
        ASSERT_THAT(made->address(), StartsWith("127.0.0.1:"));
        port = static_cast<std::uint16_t>(std::stoi(made->address().substr(made->address().find(':') + 1)));
        server = std::thread([this, s = std::make_shared<HttpServer>(std::move(*made))] {
            s->run(metrics, [this] { return stop.load(); });
        });
    }
    void TearDown() override {
        stop = true;
        server.join();
    }
    tools::Fd connected() {
        tools::Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(port);
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
        const timeval limit{10, 0};
        setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        return fd;
    }
    static std::string all(const tools::Fd& fd) {
        std::string out;
        char block[4096];
        for (ssize_t n; (n = recv(fd.get(), block, sizeof block, 0)) > 0;)
            out.append(block, static_cast<std::size_t>(n));
        return out;
    }
    static void put(const tools::Fd& fd, const std::string& text) {
        send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL);
    }

    std::atomic<bool> stop = false;
    std::uint16_t port = 0;
    std::thread server;
};

TEST_F(StatsHttpServer, ServesInPiecesAndBesideSilentClients) {
    std::vector<tools::Fd> silent;
    for (int i = 0; i < 5; i++) silent.push_back(connected());
    const tools::Fd client = connected();
    for (const char c : std::string("GET /metrics HTTP/1.1\r\nHost: localhost\r\n"))
        put(client, std::string(1, c));
    put(client, "\r\n");
    EXPECT_THAT(all(client), EndsWith("vma_processes 1\n"));
}

TEST_F(StatsHttpServer, EndlessRequestsAreCutOff) {
    const tools::Fd client = connected();
    put(client, "GET /metrics HTTP/1.1\r\n" + std::string(20000, 'x'));
    const std::string got = all(client);
    EXPECT_TRUE(got.empty() || got.starts_with("HTTP/1.1 431")) << got;
    const tools::Fd next = connected();
    put(next, "GET /metrics HTTP/1.1\r\n\r\n");
    EXPECT_THAT(all(next), EndsWith("vma_processes 1\n"));
}

TEST_F(StatsHttpServer, SilentClientsAreCutOff) {
    const tools::Fd client = connected();
    put(client, "GET /met");
    EXPECT_EQ(all(client), "");  // the connection ends, after five seconds
}

}  // namespace
