// SPDX-License-Identifier: BSD-2-Clause
// What epoll_wait costs with one watched connection and with many (10,000), of which one is active: calls
// that find it readable, calls that find nothing, and round trips on it.
//
//   watch_many server ADDRESS PORT                                          until SIGTERM
//   watch_many client ADDRESS PORT [--connections N] [--calls N]            one line of JSON
#include <thread>

#include "tcp_tool.h"

namespace {

using namespace bench;

Fd open_one(const sockaddr_in& server) {
    Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (fd.get() < 0) fail("socket");
    if (connect(fd.get(), plain(server), sizeof server) != 0) fail("connect");
    no_delay(fd.get());
    return fd;
}

struct Costs {
    double ready_ns, empty_ns;
    std::string trip_us;
};

// Nanoseconds of a call, the median of some runs.
double cost(int epoll, int expected, unsigned calls) {
    constexpr int kRuns = 9;
    std::array<double, kRuns> runs;
    for (double& run : runs) {
        const auto start = Clock::now();
        for (unsigned i = 0; i < calls; i++) {
            epoll_event event;
            if (epoll_wait(epoll, &event, 1, 0) != expected)
                throw std::runtime_error("epoll_wait found something else");
        }
        run = std::chrono::duration<double, std::nano>(Clock::now() - start).count() / calls;
    }
    std::ranges::sort(runs);
    return runs[kRuns / 2];
}

Costs measure(const std::vector<Fd>& connections, unsigned calls) {
    const Fd epoll(epoll_create1(EPOLL_CLOEXEC));
    for (const Fd& fd : connections) watch(epoll.get(), fd.get(), EPOLLIN);
    const int active = connections[connections.size() / 2].get();
    Message message{};
    std::vector<std::uint32_t> times;
    for (unsigned i = 0; i < calls / 10; i++) {
        const auto start = Clock::now();
        transmit(active, message);
        epoll_event event;
        if (epoll_wait(epoll.get(), &event, 1, 1000) != 1) throw std::runtime_error("no answer");
        if (!receive(active, message)) throw std::runtime_error("the server closed a connection");
        times.push_back(static_cast<std::uint32_t>(std::chrono::nanoseconds(Clock::now() - start).count()));
    }
    Costs costs{};
    costs.trip_us = percentiles(times);
    costs.empty_ns = cost(epoll.get(), 0, calls);
    transmit(active, message);
    epoll_event event;
    if (epoll_wait(epoll.get(), &event, 1, 1000) != 1) throw std::runtime_error("no answer");
    costs.ready_ns = cost(epoll.get(), 1, calls);
    receive(active, message);
    return costs;
}

int run(int argc, char** argv) {
    const std::string_view role = argc >= 4 ? argv[1] : "";
    if (role == "server" && argc == 4) {
        allow_descriptors(1000);
        printf("served %llu\n", static_cast<unsigned long long>(
                                    serve(address_of(argv[2], argv[3]), [](Message&) { return true; })));
        return 0;
    }
    const auto count = static_cast<unsigned>(option(argc, argv, 4, "--connections", 10'000));
    const auto calls = static_cast<unsigned>(option(argc, argv, 4, "--calls", 20'000));
    if (role != "client" || argc % 2 != 0 || count < 1 || count > 60'000 || calls < 10 ||
        calls > 10'000'000) {
        fputs(
            "usage: watch_many server ADDRESS PORT\n"
            "       watch_many client ADDRESS PORT [--connections N] [--calls N]\n",
            stderr);
        return 2;
    }
    const sockaddr_in server = address_of(argv[2], argv[3]);
    allow_descriptors(count);
    std::vector<Fd> connections;
    connections.push_back(open_one(server));
    const Costs one = measure(connections, calls);
    while (connections.size() < count) connections.push_back(open_one(server));
    std::this_thread::sleep_for(
        std::chrono::milliseconds(300));  // the server has them all, delayed acknowledgements are over
    const Costs many = measure(connections, calls);
    printf(
        "{\"connections\": %u, \"one_ready_ns\": %.0f, \"many_ready_ns\": %.0f, \"one_empty_ns\": %.0f, "
        "\"many_empty_ns\": %.0f, \"one_trip_us\": %s, \"many_trip_us\": %s}\n",
        count, one.ready_ns, many.ready_ns, one.empty_ns, many.empty_ns, one.trip_us.c_str(),
        many.trip_us.c_str());
    return 0;
}

}  // namespace

int main(int argc, char** argv) { return bench::run_tool("watch_many", run, argc, argv); }
