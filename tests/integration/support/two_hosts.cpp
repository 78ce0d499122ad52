// SPDX-License-Identifier: BSD-2-Clause
// See two_hosts.h.
#include "support/two_hosts.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <stdexcept>
#include <thread>

namespace testing_support {
namespace {

const std::string kPrefix = "vmatest-";

void remove_leftovers() {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator("/run/netns", error)) {
        std::string name = entry.path().filename();
        if (!name.starts_with(kPrefix)) continue;
        pid_t owner = atoi(name.c_str() + kPrefix.size());
        if (owner > 0 && kill(owner, 0) != 0 && errno == ESRCH) {
            bool ok;
            tool({"ip", "netns", "del", name}, &ok);
        }
    }
}

}  // namespace

std::string TwoHosts::address(Host host, int link) {
    return "198.18." + std::to_string(link) + (host == Host::a ? ".1" : ".2");
}
std::string TwoHosts::second_address(Host host, int link) {
    return "198.18." + std::to_string(link) + (host == Host::a ? ".101" : ".102");
}
std::string TwoHosts::interface(int link) { return "veth" + std::to_string(link); }

TwoHosts::TwoHosts(const Wire& wire) {
    if (geteuid() != 0)
        throw std::runtime_error("needs root: the test makes network namespaces and XDP programs");
    static int serial = 0;
    remove_leftovers();
    std::string base = kPrefix + std::to_string(getpid()) + "-" + std::to_string(serial++);
    a_ = base + "a";
    b_ = base + "b";
    for (Host host : {Host::a, Host::b}) {
        tool({"ip", "netns", "add", netns(host)});
        ip(host, {"link", "set", "lo", "up"});
        // Port unreachable messages are otherwise limited to one a second for each destination.
        tool({"ip", "netns", "exec", netns(host), "sysctl", "-qw", "net.ipv4.icmp_ratelimit=0"});
        // Neighbour discovery and multicast listener reports would only be noise on the wire.
        if (!wire.ipv6)
            tool({"ip", "netns", "exec", netns(host), "sysctl", "-qw",
                  "net.ipv6.conf.default.disable_ipv6=1"});
    }
    for (int link = 1; link <= wire.links; link++) {
        std::string queues = std::to_string(wire.queues), dev = interface(link),
                    mtu = std::to_string(wire.mtu);
        ip(Host::a, {"link", "add", dev, "numrxqueues", queues, "numtxqueues", queues, "type", "veth", "peer",
                     "name", dev, "numrxqueues", queues, "numtxqueues", queues, "netns", b_});
        for (Host host : {Host::a, Host::b}) {
            ip(host, {"address", "add", address(host, link) + "/24", "broadcast", "+", "dev", dev});
            if (wire.second_address)
                ip(host,
                   {"address", "add", second_address(host, link) + "/24", "broadcast", "+", "dev", dev});
            if (wire.ipv6)
                ip(host, {"address", "add",
                          "2001:2:0:" + std::to_string(link) + (host == Host::a ? "::1/64" : "::2/64"),
                          "nodad", "dev", dev});
            ip(host, {"link", "set", dev, "mtu", mtu, "up"});
        }
    }
}

TwoHosts::~TwoHosts() {
    bool ok;
    for (Host host : {Host::a, Host::b})
        if (!netns(host).empty()) tool({"ip", "netns", "del", netns(host)}, &ok);
}

std::string TwoHosts::ip(Host host, std::vector<std::string> args) const {
    args.insert(args.begin(), {"ip", "-n", netns(host)});
    return tool(std::move(args));
}

bool TwoHosts::has_xdp(Host host, int link) const {
    return ip(host, {"-d", "link", "show", "dev", interface(link)}).find("prog/xdp") != std::string::npos;
}

bool TwoHosts::wait_xdp(Host host, bool wanted, int link, milliseconds limit) const {
    auto end = std::chrono::steady_clock::now() + limit * patience();
    while (has_xdp(host, link) != wanted) {
        if (std::chrono::steady_clock::now() > end) return false;
        std::this_thread::sleep_for(milliseconds(5));
    }
    return true;
}

Process TwoHosts::run(Host host, std::vector<std::string> argv, RunOptions options) const {
    options.netns = netns(host);
    return Process::run(std::move(argv), options);
}
Process TwoHosts::run(Host host, std::function<int()> body, RunOptions options) const {
    options.netns = netns(host);
    return Process::run(std::move(body), options);
}

}  // namespace testing_support
