// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/sockets/waiter.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "tools/vma_perf/status.h"
#include "tools/vma_perf/transport.h"

namespace vma_perf::sockets {
namespace {

constexpr int kTickMs = static_cast<int>(kTick.count());
constexpr int kEvents = 64;  // that one epoll_wait() reports

}  // namespace

void prepare_for(int fd, Wait wait) {
    if (wait == Wait::blocking) {
        const timeval limit{0, std::chrono::microseconds(kTick).count()};
        if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0) fail_errno("SO_RCVTIMEO");
        if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0) fail_errno("SO_SNDTIMEO");
    } else if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) != 0) {
        fail_errno("O_NONBLOCK");
    }
}

Waiter::Waiter(Wait wait, std::vector<int> descriptors) : wait_(wait), descriptors_(std::move(descriptors)) {
    all_.resize(descriptors_.size());
    std::iota(all_.begin(), all_.end(), 0u);
    ready_.reserve(descriptors_.size());
    switch (wait_) {
        case Wait::blocking:
            if (descriptors_.size() > 1)
                throw Failure(
                    kUsage,
                    "--wait blocking: a thread can block on one connection only; as many --threads as "
                    "--connections, or another --wait");
            break;
        case Wait::nonblocking:
            break;
        case Wait::select:
            FD_ZERO(&set_);
            for (const int fd : descriptors_) {
                if (fd >= FD_SETSIZE)
                    throw Failure(kUsage, "--wait select: too many connections for select()");
                FD_SET(fd, &set_);
                highest_ = std::max(highest_, fd);
            }
            break;
        case Wait::poll:
            for (const int fd : descriptors_) poll_.push_back({fd, POLLIN, 0});
            break;
        case Wait::epoll:
            epoll_ = tools::Fd(epoll_create1(EPOLL_CLOEXEC));
            if (!epoll_) fail_errno("epoll_create1");
            for (unsigned i = 0; i < descriptors_.size(); ++i) {
                epoll_event event{EPOLLIN, {.u32 = i}};
                if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptors_[i], &event) != 0)
                    fail_errno("epoll_ctl");
            }
            break;
    }
}

std::span<const unsigned> Waiter::ready(bool may_wait) {
    const int timeout = may_wait ? kTickMs : 0;
    switch (wait_) {
        case Wait::blocking:
        case Wait::nonblocking:
            return all_;
        case Wait::select:
            return by_select(timeout);
        case Wait::poll:
            return by_poll(timeout);
        case Wait::epoll:
            return by_epoll(timeout);
    }
    return {};
}

int Waiter::receive_flags(bool may_wait) const noexcept {
    return wait_ == Wait::blocking && may_wait ? 0 : MSG_DONTWAIT;
}

void Waiter::wait_writable(unsigned number) const {
    if (wait_ == Wait::nonblocking) return;
    pollfd wait{descriptors_[number], POLLOUT, 0};
    poll(&wait, 1, kTickMs);
}

std::span<const unsigned> Waiter::by_select(int timeout_ms) {
    fd_set readable = set_;
    timeval limit{0, timeout_ms * 1000};
    ready_.clear();
    const int count = select(highest_ + 1, &readable, nullptr, nullptr, &limit);
    if (count < 0 && errno != EINTR) fail_errno("select");
    if (count <= 0) return {};
    for (const unsigned i : all_)
        if (FD_ISSET(descriptors_[i], &readable)) ready_.push_back(i);
    return ready_;
}

std::span<const unsigned> Waiter::by_poll(int timeout_ms) {
    ready_.clear();
    const int count = poll(poll_.data(), poll_.size(), timeout_ms);
    if (count < 0 && errno != EINTR) fail_errno("poll");
    if (count <= 0) return {};
    for (const unsigned i : all_)
        if (poll_[i].revents != 0) ready_.push_back(i);
    return ready_;
}

std::span<const unsigned> Waiter::by_epoll(int timeout_ms) {
    epoll_event events[kEvents];
    ready_.clear();
    const int count = epoll_wait(epoll_.get(), events, kEvents, timeout_ms);
    if (count < 0 && errno != EINTR) fail_errno("epoll_wait");
    for (int i = 0; i < count; ++i) ready_.push_back(events[i].data.u32);
    return ready_;
}

}  // namespace vma_perf::sockets
