// SPDX-License-Identifier: BSD-2-Clause
// Echo server and client on Boost.Asio, the way many C++ programs use TCP: blocking calls with a thread for
// each connection, or one io_context (an epoll reactor, non-blocking sockets, an eventfd to wake it) run by
// several threads. The client knows every byte that must come back; both ends close in turn, and a byte or an
// end out of place is an error. The server ends by SIGTERM or SIGINT.
//
//   app_asio_echo server sync|async ADDRESS PORT THREADS
//   app_asio_echo client sync|async ADDRESS PORT THREADS CONNECTIONS MESSAGES
//
// THREADS run the io_context; the synchronous programs ignore it, they have one for each connection.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include <array>
#include <atomic>
#include <boost/asio/buffer.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/write.hpp>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "payload.h"

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Bytes = std::vector<std::uint8_t>;

// From one byte to many segments, and sizes next to the usual MSS.
constexpr std::array<std::size_t, 7> kSizes{64, 1, 1447, 1448, 1449, 5000, 40000};

Bytes message(std::uint32_t connection, std::uint32_t number) {
    return payload::make(kSizes[(connection + number) % kSizes.size()], connection << 16 | number);
}

void run_threads(unsigned count, asio::io_context& context) {
    std::vector<std::jthread> threads;
    for (unsigned i = 1; i < count; i++) threads.emplace_back([&context] { context.run(); });
    context.run();
}

// ---- Server ----

std::atomic<unsigned long> g_connections, g_bytes;

class EchoSession : public std::enable_shared_from_this<EchoSession> {
  public:
    explicit EchoSession(tcp::socket socket) : socket_(std::move(socket)) {}

    void receive() {
        socket_.async_read_some(asio::buffer(buffer_),
                                [self = shared_from_this()](error_code error, std::size_t count) {
                                    if (!error) self->send(count);
                                });
    }

  private:
    void send(std::size_t count) {
        g_bytes += count;
        asio::async_write(socket_, asio::buffer(buffer_, count),
                          [self = shared_from_this()](error_code error, std::size_t) {
                              if (!error) self->receive();
                          });
    }

    tcp::socket socket_;
    std::array<std::uint8_t, 8192> buffer_;
};

void echo_blocking(tcp::socket socket) {
    std::array<std::uint8_t, 8192> buffer;
    error_code error;
    for (;;) {
        std::size_t count = socket.read_some(asio::buffer(buffer), error);
        if (error) return;
        g_bytes += count;
        asio::write(socket, asio::buffer(buffer, count), error);
        if (error) return;
    }
}

void accept_next(tcp::acceptor& acceptor, bool sync) {
    acceptor.async_accept([&acceptor, sync](error_code error, tcp::socket socket) {
        if (error) return;
        g_connections++;
        if (sync) {
            socket.non_blocking(false);
            std::thread(echo_blocking, std::move(socket)).detach();
        } else {
            std::make_shared<EchoSession>(std::move(socket))->receive();
        }
        accept_next(acceptor, sync);
    });
}

int serve(bool sync, const tcp::endpoint& at, unsigned threads) {
    asio::io_context context;
    asio::signal_set signals(context, SIGINT, SIGTERM);
    signals.async_wait([&context](error_code, int) { context.stop(); });
    tcp::acceptor acceptor(context, at);
    accept_next(acceptor, sync);
    puts("listening");
    fflush(stdout);
    run_threads(sync ? 1 : threads, context);
    printf("served %lu connections, %lu bytes\n", g_connections.load(), g_bytes.load());
    return 0;
}

// ---- Client ----

std::atomic<unsigned> g_good, g_bad;

void complain(std::uint32_t connection, const std::string& what) {
    g_bad++;
    fprintf(stderr, "connection %u: %s\n", connection, what.c_str());
}

// One message under way at a time.
void converse_blocking(const tcp::endpoint& server, std::uint32_t connection, std::uint32_t messages) {
    try {
        asio::io_context context;
        tcp::socket socket(context);
        socket.connect(server);
        socket.set_option(tcp::no_delay(connection % 2 == 0));
        for (std::uint32_t i = 0; i < messages; i++) {
            Bytes out = message(connection, i), in(out.size());
            asio::write(socket, asio::buffer(out));
            asio::read(socket, asio::buffer(in));
            if (in != out) throw std::runtime_error("message " + std::to_string(i) + " came back changed");
        }
        socket.shutdown(tcp::socket::shutdown_send);
        std::uint8_t more;
        error_code error;
        socket.read_some(asio::buffer(&more, 1), error);
        if (error != asio::error::eof) throw std::runtime_error("no end of stream: " + error.message());
        g_good++;
    } catch (const std::exception& e) {
        complain(connection, e.what());
    }
}

// Sends all messages without waiting for their echoes, which arrive meanwhile. Both chains touch different
// members.
class Conversation : public std::enable_shared_from_this<Conversation> {
  public:
    Conversation(asio::io_context& context, std::uint32_t connection, std::uint32_t messages)
        : socket_(context), connection_(connection), messages_(messages) {}

    void start(const tcp::endpoint& server) {
        socket_.async_connect(server, [self = shared_from_this()](error_code error) {
            if (error) return complain(self->connection_, "connect: " + error.message());
            self->receive();
            self->send();
        });
    }

  private:
    void send() {
        if (sent_ == messages_) {
            error_code error;
            socket_.shutdown(tcp::socket::shutdown_send, error);
            if (error) complain(connection_, "shutdown: " + error.message());
            return;
        }
        out_ = message(connection_, sent_++);
        asio::async_write(socket_, asio::buffer(out_),
                          [self = shared_from_this()](error_code error, std::size_t) {
                              if (error) return complain(self->connection_, "write: " + error.message());
                              self->send();
                          });
    }

    void receive() {
        if (received_ == messages_) {
            in_.resize(1);
            socket_.async_read_some(
                asio::buffer(in_), [self = shared_from_this()](error_code error, std::size_t) {
                    if (error != asio::error::eof)
                        return complain(self->connection_, "no end of stream: " + error.message());
                    g_good++;
                });
            return;
        }
        expected_ = message(connection_, received_++);
        in_.resize(expected_.size());
        asio::async_read(socket_, asio::buffer(in_),
                         [self = shared_from_this()](error_code error, std::size_t) {
                             if (error) return complain(self->connection_, "read: " + error.message());
                             if (self->in_ != self->expected_)
                                 return complain(self->connection_, "a message came back changed");
                             self->receive();
                         });
    }

    tcp::socket socket_;
    const std::uint32_t connection_, messages_;
    std::uint32_t sent_ = 0, received_ = 0;
    Bytes out_, in_, expected_;
};

int converse(bool sync, const tcp::endpoint& server, unsigned threads, std::uint32_t connections,
             std::uint32_t messages) {
    if (sync) {
        std::vector<std::jthread> all;
        for (std::uint32_t i = 0; i < connections; i++)
            all.emplace_back(converse_blocking, server, i, messages);
    } else {
        asio::io_context context;
        for (std::uint32_t i = 0; i < connections; i++)
            std::make_shared<Conversation>(context, i, messages)->start(server);
        run_threads(threads, context);
    }
    printf("verified %u connections, %u failed\n", g_good.load(), g_bad.load());
    return g_good == connections && g_bad == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    const std::vector<std::string_view> words(argv, argv + argc);
    const bool server = argc == 6 && words[1] == "server";
    const bool client = argc == 8 && words[1] == "client";
    if ((!server && !client) || (words[2] != "sync" && words[2] != "async")) {
        fputs(
            "usage: app_asio_echo server sync|async ADDRESS PORT THREADS\n"
            "       app_asio_echo client sync|async ADDRESS PORT THREADS CONNECTIONS MESSAGES\n",
            stderr);
        return 2;
    }
    try {
        const bool sync = words[2] == "sync";
        const tcp::endpoint endpoint(asio::ip::make_address(argv[3]),
                                     static_cast<std::uint16_t>(atoi(argv[4])));
        const auto threads = static_cast<unsigned>(atoi(argv[5]));
        if (server) return serve(sync, endpoint, threads);
        return converse(sync, endpoint, threads, static_cast<std::uint32_t>(atoi(argv[6])),
                        static_cast<std::uint32_t>(atoi(argv[7])));
    } catch (const std::exception& e) {
        fprintf(stderr, "app_asio_echo: %s\n", e.what());
        return 1;
    }
}
