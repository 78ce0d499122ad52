// SPDX-License-Identifier: BSD-2-Clause
// See two_hosts.h.
#include "two_hosts.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <stdexcept>
#include <thread>

#include "device.h"
#include "on_host.h"

namespace testing_support {
namespace {

const std::string kPrefix = "vmatest-";

// `ip` for each line, in one process; `options` come first. Throws on failure.
void run_ip_batch(std::vector<std::string> options, const std::vector<std::string>& lines,
                  bool go_on = false) {
    Fd file(memfd_create("commands", MFD_CLOEXEC));
    std::string text;
    for (const auto& line : lines) text += line + "\n";
    if (write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
        throw std::runtime_error("no memory for commands");
    std::vector<std::string> argv = {"ip"};
    if (go_on) argv.push_back("-force");
    argv.insert(argv.end(), options.begin(), options.end());
    argv.insert(argv.end(),
                {"-batch", "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file.get())});
    bool ok;
    tool(argv, go_on ? &ok : nullptr);
}

void remove_leftovers() {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator("/run/netns", error)) {
        std::string name = entry.path().filename();
        if (!name.starts_with(kPrefix)) continue;
        pid_t owner = atoi(name.c_str() + kPrefix.size());
        if (owner > 0 && kill(owner, 0) != 0 && errno == ESRCH) {
            bool ok;
            tool({"ip", "netns", "del", name}, &ok);
            remove_adapters(name);
        }
    }
}

// Of the interface of a link; every test has namespaces of its own.
std::string mac(Host host, int link) {
    return std::string("02:00:5e:10:0") + std::to_string(link) + (host == Host::a ? ":01" : ":02");
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
    run_ip_batch({}, {"netns add " + a_, "netns add " + b_});
    for (Host host : {Host::a, Host::b}) {
        // Port unreachable messages are otherwise limited to one a second for each destination.
        std::vector<std::string> settings = {"net.ipv4.icmp_ratelimit=0"};
        // Neighbour discovery and multicast listener reports would only be noise on the wire.
        if (!wire.ipv6) settings.push_back("net.ipv6.conf.default.disable_ipv6=1");
        sysctl(host, settings);
    }
    std::vector<std::string> lines[2];
    std::vector<std::pair<std::string, std::string>> interfaces[2];
    for (int link = 1; link <= wire.links; link++) {
        const std::string dev = interface(link), count = std::to_string(wire.queues),
                          queues = " numrxqueues " + count + " numtxqueues " + count;
        lines[0].push_back("link add " + dev + " address " + mac(Host::a, link) + queues +
                           " type veth peer name " + dev + " address " + mac(Host::b, link) + queues +
                           " netns " + b_);
    }
    for (Host host : {Host::a, Host::b}) {
        auto& mine = lines[host == Host::b];
        mine.push_back("link set lo up");
        for (int link = 1; link <= wire.links; link++) {
            const std::string dev = interface(link), add = "address add dev " + dev + " ";
            mine.push_back(add + address(host, link) + "/24 broadcast +");
            if (wire.second_address) mine.push_back(add + second_address(host, link) + "/24 broadcast +");
            if (wire.ipv6)
                mine.push_back(add + "2001:2:0:" + std::to_string(link) +
                               (host == Host::a ? "::1/64" : "::2/64") + " nodad");
            mine.push_back("link set " + dev + " mtu " + std::to_string(wire.mtu) + " up");
            interfaces[host == Host::b].emplace_back(dev, mac(host, link));
            const Host other = host == Host::a ? Host::b : Host::a;
            if (wire.known_neighbours)
                for (const auto& peer : {address(other, link), second_address(other, link)})
                    mine.push_back("neigh add " + peer + " lladdr " + mac(other, link) + " dev " + dev +
                                   " nud permanent");
        }
        ip_batch(host, mine);
        make_adapters(netns(host), interfaces[host == Host::b]);
    }
    for (Host host : {Host::a, Host::b}) wait_up(host, wire.links);
}

// The kernel drops what an interface sends until its own worker has seen that there is a carrier. The worker
// may take a second; who asks for the carrier does its work at once (Linux 6.8).
void TwoHosts::wait_up(Host host, int links) const {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    const On there(*this, host);
    const Fd asks(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    for (;;) {
        for (int link = 1; link <= links; link++) {
            ethtool_value carrier{.cmd = ETHTOOL_GLINK, .data = 0};
            ifreq request{};
            interface(link).copy(request.ifr_name, IFNAMSIZ - 1);
            request.ifr_data = reinterpret_cast<char*>(&carrier);
            ioctl(asks.get(), SIOCETHTOOL, &request);
        }
        const std::string all = tool({"ip", "-n", netns(host), "-o", "link", "show", "up"});
        int up = 0;
        for (std::size_t at = 0; (at = all.find(" state UP ", at)) != all.npos; at++) up++;
        if (up >= links) return;
        if (std::chrono::steady_clock::now() > limit)
            throw std::runtime_error("an interface has no carrier: " + all);
        std::this_thread::sleep_for(milliseconds(10));
    }
}

TwoHosts::~TwoHosts() {
    if (a_.empty()) return;
    run_ip_batch({}, {"netns del " + a_, "netns del " + b_}, true);
    for (Host host : {Host::a, Host::b}) remove_adapters(netns(host));
}

std::string TwoHosts::ip(Host host, std::vector<std::string> args) const {
    args.insert(args.begin(), {"ip", "-n", netns(host)});
    return tool(std::move(args));
}

void TwoHosts::ip_batch(Host host, const std::vector<std::string>& lines) const {
    run_ip_batch({"-n", netns(host)}, lines);
}

void TwoHosts::sysctl(Host host, const std::vector<std::string>& settings) const {
    // /proc/sys/net is that of the process's namespace.
    Process writer = run(host, [&] {
        for (const auto& setting : settings) {
            const auto equals = setting.find('=');
            std::string path = "/proc/sys/" + setting.substr(0, equals), value = setting.substr(equals + 1);
            std::replace(path.begin(), path.end(), '.', '/');
            Fd file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
            if (!file || write(file.get(), value.data(), value.size()) < 0) {
                dprintf(2, "%s: %s\n", setting.c_str(), strerror(errno));
                return 1;
            }
        }
        return 0;
    });
    if (const Exit end = writer.wait(); !end.ok()) throw std::runtime_error("cannot set " + end.err);
}

bool TwoHosts::offloaded(Host host, int link) const {
    if (shows_offloading(ip(host, {"-d", "link", "show"}), interface(link))) return true;
    const On there(*this, host);
    return has_tcx_program(interface(link));
}

bool TwoHosts::wait_offloaded(Host host, bool wanted, int link, milliseconds limit) const {
    auto end = std::chrono::steady_clock::now() + limit * patience();
    while (offloaded(host, link) != wanted) {
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
