// SPDX-License-Identifier: BSD-2-Clause
#include "pair_parity.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "kernel_report.h"

namespace testing_support {
namespace {

constexpr int kFirstPort = 10000, kLastPort = 32000, kPortsPerCase = 20;

// The destinations that cannot be reached, see tests/parity/pair/tcp_harness.h.
void prepare(const TwoHosts& hosts, Host host) {
    std::vector<std::string> settings = {// Limits on the rate of ACKs would let one case change the next.
                                         "net.ipv4.tcp_challenge_ack_limit=2147483647",
                                         "net.ipv4.tcp_invalid_ratelimit=0", "net.ipv4.tcp_fastopen=3",
                                         "net.ipv4.ip_forward=1"};
    // A neighbour that does not answer is given up in 50 ms, not in 3 s.
    for (const char* link : {"veth1", "veth2"}) {
        settings.push_back(std::string("net.ipv4.neigh.") + link + ".mcast_solicit=1");
        settings.push_back(std::string("net.ipv4.neigh.") + link + ".retrans_time_ms=50");
    }
    hosts.sysctl(host, settings);
    bool a = host == Host::a;
    std::string gateway = TwoHosts::address(a ? Host::b : Host::a);
    int mine = a ? 0 : 10, theirs = a ? 10 : 0;
    auto network = [](int n) { return "198.19." + std::to_string(n) + ".0/24"; };
    std::vector<std::string> routes;
    for (int n = 1; n <= 3; n++) routes.push_back(network(mine + n) + " via " + gateway);
    routes.insert(routes.end(),
                  {network(theirs + 1) + " via 198.18.2.99",  // where nobody is
                   "prohibit " + network(theirs + 2), "blackhole " + network(theirs + 3),
                   "unreachable " + network(21), "prohibit " + network(22), "blackhole " + network(23)});
    for (auto& route : routes) route = "route add " + route;
    hosts.ip_batch(host, routes);
}

std::string difference(const std::string& kernel, const std::string& library) {
    std::istringstream k(kernel), l(library);
    std::string text, a, b, scenario;
    int shown = 0;
    for (int line = 1; shown < 12; line++) {
        bool more_k = static_cast<bool>(std::getline(k, a)), more_l = static_cast<bool>(std::getline(l, b));
        if (!more_k && !more_l) break;
        if (!more_k) a = "(nothing)";
        if (!more_l) b = "(nothing)";
        if (a == b) {
            if (a.starts_with("## ")) scenario = a + "\n";
            continue;
        }
        text += std::exchange(scenario, "") + "line " + std::to_string(line) + "\n  kernel:  " + a +
                "\n  library: " + b + "\n";
        shown++;
    }
    return "transcripts differ\n" + text;
}

void compare_side(const char* role, const PairSide& kernel, const PairSide& library, bool has_library,
                  const PairCase& what) {
    SCOPED_TRACE(role);
    // The test has killed it. A connection that it had, or was about to have, is refused or reset then.
    EXPECT_FALSE(library.exit.timed_out)
        << "the program is not at its end in time: the other side's last lines are of one that was killed";
    EXPECT_EQ(kernel.exit.code, library.exit.code);
    if (kernel.exit.out != library.exit.out) ADD_FAILURE() << difference(kernel.exit.out, library.exit.out);
    if (has_library) expect_offloaded(library.kernel_segments, what.kernel_limit);
    if (has_library && testing::Test::HasFailure()) {
        std::string log = library.exit.err;
        if (log.size() > 3000) log = log.substr(log.size() - 3000);
        if (!log.empty()) std::cout << "log of the library:\n" << log << "\n";
    }
}

}  // namespace

std::vector<PairCase> pair_cases(const std::string& program) {
    std::istringstream list(tool({app(program), "--list"}));
    std::vector<PairCase> cases;
    std::string theme, name, server;
    long limit = 0;
    while (list >> theme >> name >> limit >> server)
        cases.push_back({program, theme, name, limit, server == "killed"});
    std::sort(cases.begin(), cases.end(), [](const PairCase& a, const PairCase& b) {
        return std::tie(a.theme, a.name) < std::tie(b.theme, b.name);
    });
    return cases;
}

void PairParity::SetUpTestSuite() {
    try {
        hosts_ =
            std::make_unique<TwoHosts>(Wire{.links = 2, .second_address = true, .known_neighbours = true});
        for (Host host : {Host::a, Host::b}) prepare(*hosts_, host);
    } catch (const std::exception& e) {
        why_ = e.what();
        hosts_.reset();
    }
}
void PairParity::TearDownTestSuite() { hosts_.reset(); }

PairOutcome PairParity::run(bool library_at_server, bool library_at_client,
                            const std::vector<std::string>& environment) const {
    static int serial = 0;
    int port = kFirstPort + serial++ * kPortsPerCase % (kLastPort - kFirstPort);
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        throw std::runtime_error("socketpair failed");
    Fd ends[2] = {Fd(pair[0]), Fd(pair[1])};
    const KernelReport reports[2];
    auto start = [&](int i, Host host, bool library, const char* role) {
        RunOptions options{.preload = library,
                           .env = library ? environment : std::vector<std::string>{},
                           .fds = {{ends[i].get(), 100}, {reports[i].fd(), KernelReport::kNumber}}};
        Fd set, ends_of_pipe[2];
        if (inherited_set_) {
            int two[2];
            if (pipe2(two, O_CLOEXEC) != 0) throw std::runtime_error("pipe failed");
            ends_of_pipe[0] = Fd(two[0]);
            ends_of_pipe[1] = Fd(two[1]);
            set = Fd(epoll_create1(EPOLL_CLOEXEC));
            epoll_event event{EPOLLIN, {.u64 = 77}};
            epoll_ctl(set.get(), EPOLL_CTL_ADD, two[0], &event);
            // The set refers to the pipe's end as long as the child has it.
            options.fds.insert(options.fds.end(), {{set.get(), 102}, {two[1], 103}, {two[0], 104}});
        }
        return hosts_->run(
            host,
            {app(GetParam().program), GetParam().theme + "." + GetParam().name, role, std::to_string(port)},
            options);
    };
    Process server = start(0, Host::a, library_at_server, "server");
    Process client = start(1, Host::b, library_at_client, "client");
    ends[0].reset();
    ends[1].reset();
    PairOutcome o;
    o.server.exit = server.wait(limit_);
    o.client.exit = client.wait(limit_);
    PairSide* sides[2] = {&o.server, &o.client};
    for (int i = 0; i < 2; i++) sides[i]->kernel_segments = reports[i].packets();
    return o;
}

void PairParity::compare(const std::string& what, const PairOutcome& kernel, const PairOutcome& library,
                         bool at_server, bool at_client) {
    SCOPED_TRACE(what);
    compare_side("server", kernel.server, library.server, at_server, GetParam());
    compare_side("client", kernel.client, library.client, at_client, GetParam());
}

void PairParity::expect_same_as_kernel(bool each_side) {
    PairOutcome kernel = run(false, false);
    std::string both = "server:\n" + kernel.server.exit.out + kernel.server.exit.err + "client:\n" +
                       kernel.client.exit.out + kernel.client.exit.err;
    ASSERT_FALSE(kernel.server.exit.timed_out || kernel.client.exit.timed_out)
        << "the case hangs on the kernel\n"
        << both;
    ASSERT_EQ(kernel.server.exit.code, 0) << both;
    ASSERT_EQ(kernel.client.exit.code, 0) << both;
    if (getenv("PARITY_VERBOSE") != nullptr) std::cout << both;  // to see what a case does
    if (const char* times = getenv("PARITY_KERNEL_ONLY")) {      // for checking that a case is deterministic
        for (int i = 0; i < std::max(1, atoi(times)); i++)
            compare("the kernel again", kernel, run(false, false), false, false);
        return;
    }
    // A case that complains about its own ground would compare nothing.
    EXPECT_EQ(both.find("never: "), std::string::npos) << both;
    EXPECT_EQ(both.find("cannot "), std::string::npos) << both;
    // Sanitizers look for errors in the library, and they are slow: each side once is enough for them. So it
    // is for an adapter, which differs from AF_XDP below the ring only; the folders devices/ have it beside
    // the kernel.
    each_side = each_side && !sanitized() && !simulated();
    if (each_side && !GetParam().server_is_killed)
        compare("library at the server", kernel, run(true, false), true, false);
    if (each_side || GetParam().server_is_killed)
        compare("library at the client", kernel, run(false, true), false, true);
    if (GetParam().server_is_killed) return;
    for (const auto& environment : environments_) {
        std::string what = "library on both sides";
        for (const auto& setting : environment) what += " " + setting;
        PairOutcome library = run(true, true, environment);
        if (getenv("PARITY_VERBOSE") != nullptr)
            std::cout << "with the library, server:\n" << library.server.exit.out;
        compare(what, kernel, library, true, true);
    }
}

}  // namespace testing_support
