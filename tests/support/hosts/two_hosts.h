// SPDX-License-Identifier: BSD-2-Clause
// Two hosts on one wire: two network namespaces joined by veth pairs, the ground all integration tests stand
// on.
//
// Addresses are the same in every test, because namespaces keep them apart: link n (from 1) has 198.18.n.1/24
// on host a and 198.18.n.2/24 on host b, second addresses end in .101 and .102. The interfaces are called
// veth<n> on both sides. Names of namespaces contain the test's pid; leftovers of tests that were killed are
// removed at the next start.
#pragma once

#include <string>
#include <vector>

#include "process.h"

namespace testing_support {

enum class Host { a, b };

struct Wire {
    int links = 1;
    bool second_address = false;
    bool ipv6 = false;  // adds 2001:2:0:n::1/64 and ::2
    int queues = 1;     // receive and transmit queues of each veth
    int mtu = 1500;
    // The hosts know each other's link addresses for good: no packet has to wait for one, or goes through the
    // kernel to confirm it.
    bool known_neighbours = false;
};

class TwoHosts {
  public:
    // Throws std::runtime_error with a plain reason, first of all "needs root".
    explicit TwoHosts(const Wire& wire = {});
    ~TwoHosts();
    TwoHosts(const TwoHosts&) = delete;
    TwoHosts& operator=(const TwoHosts&) = delete;

    const std::string& netns(Host host) const { return host == Host::a ? a_ : b_; }
    static std::string address(Host host, int link = 1);
    static std::string second_address(Host host, int link = 1);
    static std::string interface(int link = 1);

    // `ip -n <namespace> ...`; throws on failure.
    std::string ip(Host host, std::vector<std::string> args) const;
    // Many of them, a line each, by one process.
    void ip_batch(Host host, const std::vector<std::string>& lines) const;
    // Settings as sysctl -w has them: "net.ipv4.ip_forward=1". Throws on failure.
    void sysctl(Host host, const std::vector<std::string>& settings) const;
    // Does the library in some process use the host's interface now, seen from outside: an XDP program, or
    // the simulator's tap?
    bool offloaded(Host host, int link = 1) const;
    // Waits until offloaded() is `wanted`.
    bool wait_offloaded(Host host, bool wanted, int link = 1, milliseconds limit = milliseconds(3000)) const;

    Process run(Host host, std::vector<std::string> argv, RunOptions options = {}) const;
    Process run(Host host, std::function<int()> body, RunOptions options = {}) const;

  private:
    void wait_up(Host host, int links) const;

    std::string a_, b_;
};

}  // namespace testing_support
