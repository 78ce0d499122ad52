// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/sockets/connect.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>

#include "tools/vma_perf/sockets/address.h"
#include "tools/vma_perf/status.h"

namespace vma_perf {
namespace {

constexpr int kLookMs = 50;  // how often `stop` is looked at

[[noreturn]] void unreachable(const sockaddr_in& address, const char* why) {
    throw Failure(kUnreachable, fmt::format("{} port {}: {}", ip_text(address), port_of(address), why));
}

}  // namespace

bool wait_for(int fd, short events, Clock::time_point deadline, const std::atomic<bool>* stop) {
    while (true) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
        pollfd wait{fd, events, 0};
        const int ready = poll(&wait, 1, static_cast<int>(std::clamp<long>(left, 0, kLookMs)));
        if (ready > 0) return true;
        if (ready < 0 && errno != EINTR) fail_errno("poll");
        if (left <= 0 || (stop != nullptr && stop->load())) return false;
    }
}

tools::Fd listen_on(const sockaddr_in& address, int backlog) {
    tools::Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fd) fail_errno("socket");
    const int on = 1;
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    bind_to(fd.get(), address);
    if (listen(fd.get(), backlog) != 0) fail_errno("listen");
    return fd;
}

tools::Fd connect_to(const sockaddr_in& address, Clock::time_point deadline, const std::atomic<bool>* stop,
                     void (*prepare)(int fd, const void* context), const void* context) {
    tools::Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) fail_errno("socket");
    if (prepare != nullptr) prepare(fd.get(), context);
    if (connect(fd.get(), as_sockaddr(address), sizeof address) != 0) {
        if (errno != EINPROGRESS) unreachable(address, strerror(errno));
        if (!wait_for(fd.get(), POLLOUT, deadline, stop)) unreachable(address, "no answer in time");
        int error = 0;
        socklen_t length = sizeof error;
        if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) fail_errno("SO_ERROR");
        if (error != 0) unreachable(address, strerror(error));
    }
    if (fcntl(fd.get(), F_SETFL, fcntl(fd.get(), F_GETFL) & ~O_NONBLOCK) != 0) fail_errno("O_NONBLOCK");
    return fd;
}

tools::Fd accept_one(int listener, Clock::time_point deadline, const std::atomic<bool>* stop) {
    if (!wait_for(listener, POLLIN, deadline, stop)) return {};
    tools::Fd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    // A client may give up in between: no error.
    if (!fd && errno != EAGAIN && errno != ECONNABORTED && errno != EINTR) fail_errno("accept");
    return fd;
}

}  // namespace vma_perf
