// SPDX-License-Identifier: BSD-2-Clause
// HTTP clients on Boost.Beast and on plain Boost.Asio, blocking and asynchronous. Every answer is known: /N
// is N bytes of a pattern that both ends know.
//
//   app_beast_http server ADDRESS PORT                            Beast, asynchronous, two threads; ends by
//   SIGTERM app_beast_http sync|async|asio ADDRESS PORT REQUESTS          prints "verified REQUESTS"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include <atomic>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/streambuf.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using beast::error_code;

constexpr unsigned kVersion = 11;
constexpr std::chrono::seconds kPatience{10};
std::atomic<int> g_verified, g_failed;

std::string body_of(std::size_t length) {
    std::string body(length, ' ');
    for (std::size_t i = 0; i < length; i++) body[i] = static_cast<char>('a' + (i * 7 + length) % 26);
    return body;
}
std::size_t length_of(int request) {
    static constexpr std::size_t kLengths[] = {1, 100, 1448, 9000, 100'000, 0, 1'000'000, 5000};
    return kLengths[request % 8];
}
std::string target_of(int request) { return "/" + std::to_string(length_of(request)); }
void verify(int request, const std::string& body) {
    (body == body_of(length_of(request)) ? g_verified : g_failed)++;
}
void fail(const char* what, const error_code& e) {
    fprintf(stderr, "%s: %s\n", what, e.message().c_str());
    g_failed++;
}

// ---- server ----

class Session : public std::enable_shared_from_this<Session> {
  public:
    explicit Session(tcp::socket socket) : stream_(std::move(socket)) {}
    void read() {
        request_ = {};
        stream_.expires_after(kPatience);
        http::async_read(stream_, buffer_, request_, [self = shared_from_this()](error_code e, std::size_t) {
            if (e == http::error::end_of_stream) self->end();
            if (!e) self->answer();
        });
    }

  private:
    void answer() {
        auto length = static_cast<std::size_t>(atol(std::string(request_.target()).c_str() + 1));
        response_ = http::response<http::string_body>(http::status::ok, request_.version());
        response_.keep_alive(request_.keep_alive());
        response_.body() = body_of(length);
        response_.prepare_payload();
        http::async_write(stream_, response_, [self = shared_from_this()](error_code e, std::size_t) {
            if (e) return;
            if (self->response_.keep_alive())
                self->read();
            else
                self->end();
        });
    }
    void end() {
        error_code ignored;
        stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    }

    beast::tcp_stream stream_;
    beast::flat_buffer buffer_;
    http::request<http::string_body> request_;
    http::response<http::string_body> response_;
};

void serve(const tcp::endpoint& where) {
    asio::io_context context;
    tcp::acceptor acceptor(context, where);
    asio::signal_set end(context, SIGTERM);
    end.async_wait([&](error_code, int) { context.stop(); });
    std::function<void()> accept = [&] {
        acceptor.async_accept(asio::make_strand(context), [&](error_code e, tcp::socket socket) {
            if (!e) std::make_shared<Session>(std::move(socket))->read();
            accept();
        });
    };
    accept();
    std::jthread second([&] { context.run(); });
    context.run();
}

// ---- clients ----

http::request<http::empty_body> request_for(int number, bool keep) {
    http::request<http::empty_body> request(http::verb::get, target_of(number), kVersion);
    request.set(http::field::host, "test");
    request.keep_alive(keep);
    return request;
}

// Every tenth request has a connection of its own.
void sync_client(const tcp::endpoint& where, int requests) {
    asio::io_context context;
    beast::tcp_stream stream(context);
    bool connected = false;
    for (int i = 0; i < requests; i++) {
        if (!connected) stream.connect(where);
        bool keep = i % 10 != 9;
        http::write(stream, request_for(i, keep));
        beast::flat_buffer buffer;
        http::response_parser<http::string_body> parser;
        parser.body_limit(10'000'000);
        http::read(stream, buffer, parser);
        verify(i, parser.get().body());
        connected = keep;
        if (!keep) stream.close();
    }
}

class AsyncClient : public std::enable_shared_from_this<AsyncClient> {
  public:
    AsyncClient(asio::io_context& context, int first, int count)
        : stream_(asio::make_strand(context)), next_(first), last_(first + count) {}
    void run(const tcp::endpoint& where) {
        stream_.expires_after(kPatience);
        stream_.async_connect(where, [self = shared_from_this()](error_code e) {
            if (e) return fail("connect", e);
            self->ask();
        });
    }

  private:
    void ask() {
        if (next_ == last_) return;
        request_ = request_for(next_, true);
        stream_.expires_after(kPatience);
        http::async_write(stream_, request_, [self = shared_from_this()](error_code e, std::size_t) {
            if (e) return fail("write", e);
            self->read();
        });
    }
    void read() {
        parser_.emplace();
        parser_->body_limit(10'000'000);
        http::async_read(stream_, buffer_, *parser_, [self = shared_from_this()](error_code e, std::size_t) {
            if (e) return fail("read", e);
            verify(self->next_++, self->parser_->get().body());
            self->ask();
        });
    }

    beast::tcp_stream stream_;
    beast::flat_buffer buffer_;
    http::request<http::empty_body> request_;
    std::optional<http::response_parser<http::string_body>> parser_;
    int next_, last_;
};

void async_client(const tcp::endpoint& where, int requests) {
    constexpr int kConnections = 8;
    asio::io_context context;
    for (int i = 0; i < kConnections; i++) {
        int first = requests * i / kConnections, end = requests * (i + 1) / kConnections;
        std::make_shared<AsyncClient>(context, first, end - first)->run(where);
    }
    std::jthread second([&] { context.run(); });
    context.run();
}

// Asio's own example of an HTTP client: read_until, then the rest until the end of the connection.
void asio_client(const tcp::endpoint& where, int requests) {
    asio::io_context context;
    for (int i = 0; i < requests; i++) {
        tcp::socket socket(context);
        socket.connect(where);
        std::string text = "GET " + target_of(i) + " HTTP/1.0\r\nHost: test\r\nConnection: close\r\n\r\n",
                    answer;
        asio::async_write(socket, asio::buffer(text), [&](error_code e, std::size_t) {
            if (e) return fail("write", e);
            asio::async_read_until(socket, asio::dynamic_buffer(answer), "\r\n\r\n",
                                   [&](error_code e2, std::size_t header) {
                                       if (e2) return fail("header", e2);
                                       asio::async_read(socket, asio::dynamic_buffer(answer),
                                                        [&, header](error_code e3, std::size_t) {
                                                            if (e3 != asio::error::eof)
                                                                return fail("body", e3);
                                                            verify(i, answer.substr(header));
                                                        });
                                   });
        });
        context.restart();
        context.run();
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: %s server ADDRESS PORT | sync|async|asio ADDRESS PORT REQUESTS\n", argv[0]);
        return 2;
    }
    try {
        const std::string what = argv[1];
        const tcp::endpoint where(asio::ip::make_address(argv[2]),
                                  static_cast<unsigned short>(atoi(argv[3])));
        const int requests = argc > 4 ? atoi(argv[4]) : 0;
        if (what == "server") serve(where);
        if (what == "sync") sync_client(where, requests);
        if (what == "async") async_client(where, requests);
        if (what == "asio") asio_client(where, requests);
        if (what != "server") printf("verified %d, failed %d\n", g_verified.load(), g_failed.load());
    } catch (const std::exception& e) {
        fprintf(stderr, "%s\n", e.what());
        return 1;
    }
    return g_failed == 0 ? 0 : 1;
}
