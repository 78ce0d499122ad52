// SPDX-License-Identifier: BSD-2-Clause
// What many connections cost a process. The client opens one connection and measures round trips on it; opens
// all the others (10,000), has each echo once, and lets them rest; then measures round trips on one of them
// again. Beside that it reports how much the resident memory of both processes has grown for each connection,
// the programs' own state included, which is next to nothing: a descriptor in an array. The kernel's memory
// is not in it.
//
//   many_connections server ADDRESS PORT                                         until SIGTERM
//   many_connections client ADDRESS PORT [--connections N] [--pings N]           one line of JSON
#include <string.h>

#include <thread>

#include "tcp_tool.h"

namespace {

using namespace bench;

constexpr std::uint8_t kEcho = 'e', kMemory = 'm';  // first byte of a request

std::uint64_t resident() {
    FILE* file = fopen("/proc/self/statm", "re");
    unsigned long long total = 0, pages = 0;
    if (file == nullptr || fscanf(file, "%llu %llu", &total, &pages) != 2)
        throw std::runtime_error("no /proc/self/statm");
    fclose(file);
    return pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

bool serve_one(Message& message) {
    if (message[0] == kMemory) {
        const std::uint64_t bytes = resident();
        memcpy(message.data() + 8, &bytes, sizeof bytes);
    }
    return true;
}

Message echo_request(std::uint32_t number) {
    Message message{};
    for (std::size_t i = 0; i < message.size(); i++) message[i] = static_cast<std::uint8_t>(number + i * 3);
    message[0] = kEcho;
    memcpy(message.data() + 1, &number, sizeof number);
    return message;
}

void expect_echo(int fd, const Message& sent) {
    Message received;
    if (!receive(fd, received)) throw std::runtime_error("the server closed a connection");
    if (received != sent) throw std::runtime_error("an echo came back changed");
}

std::uint64_t resident_of_server(int fd) {
    Message message{};
    message[0] = kMemory;
    transmit(fd, message);
    if (!receive(fd, message)) throw std::runtime_error("the server closed a connection");
    std::uint64_t bytes;
    memcpy(&bytes, message.data() + 8, sizeof bytes);
    return bytes;
}

Fd open_one(const sockaddr_in& server) {
    Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (fd.get() < 0) fail("socket");
    if (connect(fd.get(), plain(server), sizeof server) != 0) fail("connect");
    no_delay(fd.get());
    return fd;
}

std::string round_trips(int fd, unsigned count) {
    std::vector<std::uint32_t> times;
    times.reserve(count);
    const unsigned warm = count / 5;
    for (unsigned i = 0; i < warm + count; i++) {
        const Message message = echo_request(i);
        const auto start = Clock::now();
        transmit(fd, message);
        expect_echo(fd, message);
        if (i >= warm)
            times.push_back(
                static_cast<std::uint32_t>(std::chrono::nanoseconds(Clock::now() - start).count()));
    }
    return percentiles(times);
}

void converse(const sockaddr_in& server, unsigned count, unsigned pings) {
    allow_descriptors(count);
    std::vector<Fd> connections;
    connections.reserve(count + 1);
    connections.push_back(open_one(server));
    const std::string alone = round_trips(connections[0].get(), pings);
    const std::uint64_t client_before = resident(), server_before = resident_of_server(connections[0].get());

    const auto start = Clock::now();
    for (unsigned i = 0; i < count; i++) connections.push_back(open_one(server));
    const double opening = std::chrono::duration<double>(Clock::now() - start).count();
    // Each echoes once; some at a time, so that the server has something to do while it answers.
    constexpr std::size_t kTogether = 100;
    for (std::size_t first = 1; first < connections.size(); first += kTogether) {
        const std::size_t last = std::min(first + kTogether, connections.size());
        for (std::size_t i = first; i < last; i++)
            transmit(connections[i].get(), echo_request(static_cast<std::uint32_t>(i)));
        for (std::size_t i = first; i < last; i++)
            expect_echo(connections[i].get(), echo_request(static_cast<std::uint32_t>(i)));
    }
    std::this_thread::sleep_for(
        std::chrono::milliseconds(200));  // delayed acknowledgements are over: all are idle

    const std::uint64_t client_after = resident(), server_after = resident_of_server(connections[0].get());
    const std::string among = round_trips(connections[connections.size() / 2].get(), pings);
    auto each = [count](std::uint64_t before, std::uint64_t after) {
        return (static_cast<double>(after) - static_cast<double>(before)) / count;
    };
    printf(
        "{\"connections\": %u, \"opened_per_second\": %.0f, \"alone_us\": %s, \"among_us\": %s, "
        "\"client_bytes_each\": %.0f, \"server_bytes_each\": %.0f}\n",
        count, count / opening, alone.c_str(), among.c_str(), each(client_before, client_after),
        each(server_before, server_after));
}

int run(int argc, char** argv) {
    const std::string_view role = argc >= 4 ? argv[1] : "";
    if (role == "server" && argc == 4) {
        allow_descriptors(1000);
        printf("served %llu\n",
               static_cast<unsigned long long>(serve(address_of(argv[2], argv[3]), serve_one)));
        return 0;
    }
    const auto count = static_cast<unsigned>(option(argc, argv, 4, "--connections", 10'000));
    const auto pings = static_cast<unsigned>(option(argc, argv, 4, "--pings", 10'000));
    if (role != "client" || argc % 2 != 0 || count < 1 || count > 60'000 || pings < 1 || pings > 10'000'000) {
        fputs(
            "usage: many_connections server ADDRESS PORT\n"
            "       many_connections client ADDRESS PORT [--connections N] [--pings N]\n",
            stderr);
        return 2;
    }
    converse(address_of(argv[2], argv[3]), count, pings);
    return 0;
}

}  // namespace

int main(int argc, char** argv) { return bench::run_tool("many_connections", run, argc, argv); }
