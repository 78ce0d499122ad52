// SPDX-License-Identifier: BSD-2-Clause
// The kernel is the reference, for TCP: each case of tests/apps/tcp_parity is a pair of programs, a server on
// host a and a client on host b. They run without the library, then with it on one side, the other, and both;
// the transcripts must be equal. Cases marked as offloaded must moreover have moved segments past the
// kernel, seen in the kernel's TCP counters of the side in question; otherwise falling back for everything
// would pass.
#include <gtest/gtest.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <sstream>

#include "support/two_hosts.h"

namespace {

using namespace testing_support;

struct CaseName {
    std::string theme, name;
    bool offloaded, server_is_killed;
};
void PrintTo(const CaseName& c, std::ostream* out) { *out << c.theme << "." << c.name; }

std::vector<CaseName> list_cases() {
    std::istringstream list(tool({app("tcp_parity"), "--list"}));
    std::vector<CaseName> cases;
    std::string theme, name, traffic;
    while (list >> theme >> name >> traffic) cases.push_back({theme, name, traffic != "kernel", traffic == "killed"});
    std::sort(cases.begin(), cases.end(), [](const CaseName& a, const CaseName& b) {
        return std::tie(a.theme, a.name) < std::tie(b.theme, b.name);
    });
    return cases;
}

struct Side {
    Exit exit;
    long kernel_segments = -1;
};
struct Outcome {
    Side server, client;
};

constexpr int kFirstPort = 10000, kLastPort = 32000, kPortsPerCase = 20;

class TcpParity : public testing::TestWithParam<CaseName> {
  protected:
    static void SetUpTestSuite() {
        try {
            hosts_ = std::make_unique<TwoHosts>(Wire{.links = 2, .second_address = true});
            for (Host host : {Host::a, Host::b}) prepare(host);
        } catch (const std::exception& e) {
            why_ = e.what();
            hosts_.reset();
        }
    }
    static void TearDownTestSuite() { hosts_.reset(); }
    void SetUp() override { ASSERT_TRUE(hosts_) << why_; }

    // The destinations that cannot be reached, see tests/apps/tcp_parity/tcp_harness.h.
    static void prepare(Host host) {
        auto sysctl = [&](const std::string& setting) {
            tool({"ip", "netns", "exec", hosts_->netns(host), "sysctl", "-qw", setting});
        };
        auto route = [&](std::vector<std::string> what) {
            what.insert(what.begin(), {"route", "add"});
            hosts_->ip(host, what);
        };
        // A neighbour that does not answer is given up in 50 ms, not in 3 s.
        for (const char* link : {"veth1", "veth2"}) {
            sysctl(std::string("net.ipv4.neigh.") + link + ".mcast_solicit=1");
            sysctl(std::string("net.ipv4.neigh.") + link + ".retrans_time_ms=50");
        }
        // Limits on the rate of ACKs would let one case change the next.
        sysctl("net.ipv4.tcp_challenge_ack_limit=2147483647");
        sysctl("net.ipv4.tcp_invalid_ratelimit=0");
        sysctl("net.ipv4.tcp_fastopen=3");
        sysctl("net.ipv4.ip_forward=1");
        bool a = host == Host::a;
        std::string gateway = TwoHosts::address(a ? Host::b : Host::a);
        int mine = a ? 0 : 10, theirs = a ? 10 : 0;
        auto network = [](int n) { return "198.19." + std::to_string(n) + ".0/24"; };
        for (int n = 1; n <= 3; n++) route({network(mine + n), "via", gateway});
        route({network(theirs + 1), "via", "198.18.2.99"});  // where nobody is
        route({"prohibit", network(theirs + 2)});
        route({"blackhole", network(theirs + 3)});
        route({"unreachable", network(21)});
        route({"prohibit", network(22)});
        route({"blackhole", network(23)});
    }

    static Outcome run(bool library_at_server, bool library_at_client) {
        static int serial = 0;
        int port = kFirstPort + serial++ * kPortsPerCase % (kLastPort - kFirstPort);
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
            throw std::runtime_error("socketpair failed");
        Fd ends[2] = {Fd(pair[0]), Fd(pair[1])};
        Fd reports[2] = {Fd(memfd_create("report", MFD_CLOEXEC)), Fd(memfd_create("report", MFD_CLOEXEC))};
        auto start = [&](int i, Host host, bool library, const char* role) {
            RunOptions options{.preload = library, .fds = {{ends[i].get(), 100}, {reports[i].get(), 101}}};
            return hosts_->run(
                host,
                {app("tcp_parity"), GetParam().theme + "." + GetParam().name, role, std::to_string(port)},
                options);
        };
        Process server = start(0, Host::a, library_at_server, "server");
        Process client = start(1, Host::b, library_at_client, "client");
        ends[0].reset();
        ends[1].reset();
        Outcome o;
        o.server.exit = server.wait(milliseconds(15000));
        o.client.exit = client.wait(milliseconds(2000));
        Side* sides[2] = {&o.server, &o.client};
        for (int i = 0; i < 2; i++) {
            char text[100] = {};
            if (pread(reports[i].get(), text, sizeof text - 1, 0) > 0)
                sscanf(text, "kernel-segments %ld", &sides[i]->kernel_segments);
        }
        return o;
    }

    static void compare(const char* what, const Outcome& kernel, const Outcome& library, bool at_server,
                        bool at_client) {
        SCOPED_TRACE(what);
        compare_side("server", kernel.server, library.server, at_server);
        compare_side("client", kernel.client, library.client, at_client);
    }

  private:
    static void compare_side(const char* role, const Side& kernel, const Side& library, bool has_library) {
        SCOPED_TRACE(role);
        EXPECT_FALSE(library.exit.timed_out) << "the program hangs";
        EXPECT_EQ(kernel.exit.code, library.exit.code);
        if (kernel.exit.out != library.exit.out)
            ADD_FAILURE() << difference(kernel.exit.out, library.exit.out);
        if (has_library && GetParam().offloaded && kernel.kernel_segments > 0) {
            EXPECT_LT(library.kernel_segments, kernel.kernel_segments) << "nothing was offloaded";
        }
        if (has_library && testing::Test::HasFailure()) {
            std::string log = library.exit.err;
            if (log.size() > 3000) log = log.substr(log.size() - 3000);
            if (!log.empty()) std::cout << "log of the library:\n" << log << "\n";
        }
    }

    static std::string difference(const std::string& kernel, const std::string& library) {
        std::istringstream k(kernel), l(library);
        std::string text, a, b;
        int shown = 0;
        for (int line = 1; shown < 12; line++) {
            bool more_k = static_cast<bool>(std::getline(k, a)),
                 more_l = static_cast<bool>(std::getline(l, b));
            if (!more_k && !more_l) break;
            if (!more_k) a = "(nothing)";
            if (!more_l) b = "(nothing)";
            if (a == b) continue;
            text += "line " + std::to_string(line) + "\n  kernel:  " + a + "\n  library: " + b + "\n";
            shown++;
        }
        return "transcripts differ\n" + text;
    }

    static inline std::unique_ptr<TwoHosts> hosts_;
    static inline std::string why_;
};

TEST_P(TcpParity, SameAsKernel) {
    if (*VMA_SANITIZERS != '\0' && GetParam().theme == "listen" && GetParam().name == "accept_bad_addresses")
        GTEST_SKIP() << "AddressSanitizer's accept() reads what the case says is not to be read";
    Outcome kernel = run(false, false);
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
    // Sanitizers look for errors in the library, and they are slow: each side once is enough for them.
    const bool each_side = *VMA_SANITIZERS == '\0';
    if (each_side && !GetParam().server_is_killed)
        compare("library at the server", kernel, run(true, false), true, false);
    if (each_side || GetParam().server_is_killed)
        compare("library at the client", kernel, run(false, true), false, true);
    if (!GetParam().server_is_killed) compare("library on both sides", kernel, run(true, true), true, true);
}

INSTANTIATE_TEST_SUITE_P(Tcp, TcpParity, testing::ValuesIn(list_cases()),
                         [](const auto& info) { return info.param.theme + "_" + info.param.name; });

}  // namespace
