// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "tools/common/clock.h"
#include "tools/vma_perf/child.h"
#include "tools/vma_perf/status.h"

namespace vma_perf {
namespace {

using namespace std::chrono_literals;

constexpr const char* kDevice[] = {"veth0", "veth1"};
const std::atomic<bool> kNeverStop{false};

}  // namespace

void Arena::make_host(Host& host) const {
    tools::Pipe ready = tools::make_pipe();
    if (!ready.read) fail_errno("pipe");
    const pid_t parent = getpid();
    host.holder = fork();
    if (host.holder < 0) fail_errno("fork");
    if (host.holder == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);
        const int error = unshare(CLONE_NEWNET) == 0 ? 0 : errno;
        if (write(ready.write.get(), &error, sizeof error) != sizeof error || error != 0) _exit(1);
        while (true) pause();
    }
    ready.write.reset();
    int error = 0;
    if (read(ready.read.get(), &error, sizeof error) != sizeof error)
        throw Failure(kFailed, "no network namespace: the child died");
    if (error != 0)
        throw Failure(kUnsupported,
                      fmt::format("no network namespace, which race needs root for: {}", strerror(error)));
    host.netns = tools::Fd(open(fmt::format("/proc/{}/ns/net", host.holder).c_str(), O_RDONLY | O_CLOEXEC));
    if (!host.netns) fail_errno("the network namespace");
}

Arena::Arena() {
    try {
        for (Host& host : hosts_) make_host(host);
        ip(client, {"link", "add", kDevice[client], "type", "veth", "peer", "name", kDevice[server], "netns",
                    std::to_string(hosts_[server].holder)});
        for (const Side side : {client, server}) {
            ip(side, {"addr", "add", fmt::format("{}/24", address(side)), "dev", kDevice[side]});
            ip(side, {"link", "set", "lo", "up"});
            ip(side, {"link", "set", kDevice[side], "up"});
            ip(side, {"route", "add", "224.0.0.0/4", "dev", kDevice[side]});
        }
    } catch (...) {
        end_holders();
        throw;
    }
}

void Arena::end_holders() noexcept {
    for (Host& host : hosts_) {
        if (host.holder <= 0) continue;
        kill(host.holder, SIGKILL);
        waitpid(host.holder, nullptr, 0);
        host.holder = -1;
    }
}

std::string Arena::ip_output(Side side, std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "ip");
    Child child({.arguments = arguments, .netns = netns(side)});
    const int status = child.wait(kNeverStop);
    if (status == 127) throw Failure(kUnsupported, "race needs the program ip (package iproute2)");
    if (status != 0) throw Failure(kFailed, fmt::format("{}: {}", fmt::join(arguments, " "), child.err()));
    return child.out();
}

void Arena::ip(Side side, std::vector<std::string> arguments) const { ip_output(side, std::move(arguments)); }

std::uint64_t Arena::kernel_packets(Side side, bool tcp) const {
    // Two lines for each protocol: names, then values.
    std::ifstream file(fmt::format("/proc/{}/net/snmp", hosts_[side].holder));
    const std::string wanted = tcp ? "Tcp:" : "Udp:";
    std::vector<std::string> names;
    std::uint64_t sum = 0;
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        std::string word;
        if (!(words >> word) || word != wanted) continue;
        if (names.empty()) {
            while (words >> word) names.push_back(word);
            continue;
        }
        for (const std::string& name : names) {
            words >> word;
            if (name == (tcp ? "InSegs" : "InDatagrams") || name == (tcp ? "OutSegs" : "OutDatagrams"))
                sum += std::stoull(word);
        }
    }
    return sum;
}

void Arena::wait_until_free() const {
    const auto deadline = tools::Clock::now() + 3s;
    for (const Side side : {client, server})
        while (ip_output(side, {"link", "show", "dev", kDevice[side]}).find(" xdp") != std::string::npos &&
               tools::Clock::now() < deadline)
            std::this_thread::sleep_for(20ms);
}

}  // namespace vma_perf
