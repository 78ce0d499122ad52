// SPDX-License-Identifier: BSD-2-Clause
// See agent.h.
#include "agent.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <stdexcept>

namespace testing_support {

namespace {
constexpr int kControlNumber = 100;  // far from the numbers the program's own sockets get
}

Agent::Agent(const TwoHosts& hosts, Host host, RunOptions options, std::vector<std::string> launcher) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        throw std::runtime_error("socketpair failed");
    control_ = Fd(pair[0]);
    Fd theirs(pair[1]);
    options.fds.emplace_back(theirs.get(), kControlNumber);
    launcher.push_back(app("agent"));
    launcher.push_back(std::to_string(kControlNumber));
    process_ = hosts.run(host, launcher, options);
}

void Agent::post(const std::string& command) {
    send(control_.get(), command.data(), command.size(), MSG_NOSIGNAL);
}

std::string Agent::answer(milliseconds limit) {
    pollfd p{control_.get(), POLLIN, 0};
    char text[512];
    ssize_t n = 0;
    if (poll(&p, 1, static_cast<int>(limit.count()) * patience()) > 0)
        n = recv(control_.get(), text, sizeof text, 0);
    return n > 0 ? std::string(text, static_cast<std::size_t>(n)) : "no answer: " + process_.err();
}

std::string Agent::ask(const std::string& command, milliseconds limit) {
    post(command);
    return answer(limit);
}

long Agent::value(const std::string& answer, const std::string& key) {
    auto at = (" " + answer).find(" " + key + "=");
    return at == std::string::npos ? -1 : atol(answer.c_str() + at + key.size() + 1);
}

Exit Agent::finish() {
    control_.reset();
    return process_.wait();
}

}  // namespace testing_support
