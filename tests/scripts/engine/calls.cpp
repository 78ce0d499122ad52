// SPDX-License-Identifier: BSD-2-Clause
// See calls.h.
#include "calls.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <stdexcept>

namespace scripts {

using namespace testing_support;

Program::Program(const TwoHosts& hosts, bool with_library, std::size_t scripts) {
    RunOptions options{.preload = with_library};
    // Scripts wait more than they work: nothing is gained by spinning, and processors are few.
    if (with_library) options.env = {"VMA_SELECT_POLL=0", "VMA_RX_POLL=0", "VMA_TRACELEVEL=info"};
    std::vector<Fd> theirs;
    std::vector<std::string> argv = {app("script_calls")};
    for (std::size_t i = 0; i < scripts; i++) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
            throw std::runtime_error("socketpair failed");
        ends_.emplace_back(pair[0]);
        theirs.emplace_back(pair[1]);
        // It keeps its number, which is nobody else's.
        options.fds.emplace_back(pair[1], pair[1]);
        argv.push_back(std::to_string(pair[1]));
    }
    process_ = hosts.run(Host::b, argv, options);
    if (!process_.wait_for_out("ready")) throw std::runtime_error("the program does not start: " + log());
}

std::string Program::ask(std::size_t who, const std::string& call) {
    const int fd = ends_[who].get();
    if (send(fd, call.data(), call.size(), MSG_NOSIGNAL) < 0) return "no answer: the program is gone";
    pollfd p{fd, POLLIN, 0};
    if (poll(&p, 1, 20000 * patience()) <= 0) return "no answer: the program hangs";
    char text[512];
    const ssize_t n = recv(fd, text, sizeof text, 0);
    return n <= 0 ? "no answer: the program is gone" : std::string(text, static_cast<std::size_t>(n));
}

long Program::end() {
    ends_.clear();
    const Exit end = process_.wait();
    const auto at = end.out.find("kernel ");
    return end.ok() && at != end.out.npos ? atol(end.out.c_str() + at + 7) : -1;
}

bool as_wanted(const std::string& want, const std::string& answer) {
    const auto space = want.find(' ');
    const std::string how = want.substr(0, space), value = want.substr(space + 1);
    if (how == "=") return value == "any" || value == answer;
    if (how == "!=") return value != answer;
    char* end = nullptr;
    const long long got = strtoll(answer.c_str(), &end, 10), wanted = atoll(value.c_str());
    if (answer.empty() || *end != '\0') return false;
    return how == ">=" ? got >= wanted : got <= wanted;
}

}  // namespace scripts
