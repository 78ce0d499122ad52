// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/tcp/moved_call.h"

#include <errno.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>

#include "libvma/os/calls.h"
#include "libvma/runtime/region.h"
#include "libvma/runtime/signal_hold.h"

namespace vma::sockets {
namespace {

// poll() tells of data only when there is as much as the socket's low-water mark, and the call has some.
class LowWater {
  public:
    LowWater(int fd, std::size_t own, std::size_t target) noexcept
        : fd_(fd), own_(static_cast<int>(std::min<std::size_t>(own, INT32_MAX))) {
        if (own > target) set(static_cast<int>(target));
        lowered_ = own > target;
    }
    ~LowWater() {
        if (lowered_) set(own_);
    }
    LowWater(const LowWater&) = delete;
    LowWater& operator=(const LowWater&) = delete;

  private:
    void set(int value) const noexcept { os::setsockopt(fd_, SOL_SOCKET, SO_RCVLOWAT, &value, sizeof value); }

    const int fd_, own_;
    bool lowered_;
};

}  // namespace

// 0, or -EAGAIN at the deadline, or -errno.
int MovedCall::wait(short events) {
    pollfd p{fd_, events, 0};
    timespec limit{}, *timeout = nullptr;
    if (deadline_ != clock::Time{}) {
        limit =
            clock::to_timespec(std::max(clock::Nsec(deadline_ - clock::monotonic()), clock::Nsec::zero()));
        timeout = &limit;
    }
    const int n = runtime::poll_interruptibly(&p, 1, timeout);
    // A handler waits: the call is started anew after it, where the handler asks for that, and with a time
    // limit never (signal(7)).
    if (n < 0 && errno == EINTR && runtime::pending() && timeout == nullptr) return -runtime::kRestart;
    return n < 0 ? -errno : n == 0 ? -EAGAIN : 0;
}

bool MovedCall::at_mark() const noexcept {
    int mark = 0;
    return os::ioctl(fd_, SIOCATMARK, &mark) == 0 && mark != 0;
}

ssize_t MovedCall::receive(IovCursor& at, int flags, std::size_t target, std::size_t low_water, bool begun) {
    const int saved = errno;
    const LowWater lowered(fd_, low_water, target);
    std::size_t got = 0;
    ssize_t end = 0;
    while (got < target && at.left() != 0) {
        end = -EAGAIN;
        if ((begun || got != 0) && at_mark()) break;
        // What is there at the deadline is received, too.
        const int waited = wait(POLLIN | POLLPRI | POLLRDHUP);
        if (waited != 0 && waited != -EAGAIN) {
            end = waited;
            break;
        }
        if ((begun || got != 0) && at_mark()) break;
        const ssize_t n = at.move([&](msghdr& message, std::size_t) {
            return os::recvmsg(fd_, &message, (flags & ~MSG_WAITALL) | MSG_DONTWAIT);
        });
        if (n > 0) {
            got += static_cast<std::size_t>(n);
        } else {
            end = n < 0 ? -errno : 0;
            // The urgent byte is announced, and what is before it has not come.
            if (end == -EAGAIN && waited == 0) {
                const int later = wait(POLLIN | POLLRDHUP);
                if (later == 0) continue;
                end = later;
            }
            break;
        }
        if (waited != 0) break;
    }
    errno = saved;
    return got != 0 ? static_cast<ssize_t>(got) : end;
}

ssize_t MovedCall::send(IovCursor& at, int flags) {
    const int saved = errno;
    std::size_t sent = 0;
    int error = 0;
    while (at.left() != 0 && error == 0) {
        error = wait(POLLOUT);
        if (error != 0 && error != -EAGAIN) break;
        const ssize_t n = at.move([&](msghdr& message, std::size_t bytes) {
            const int more = bytes < at.left() ? MSG_MORE : 0;
            return os::sendmsg(fd_, &message, flags | more | MSG_NOSIGNAL | MSG_DONTWAIT);
        });
        if (n >= 0)
            sent += static_cast<std::size_t>(n);
        else if (errno != EAGAIN || error != 0)
            error = -errno;
    }
    errno = saved;
    return sent != 0 || error == 0 ? static_cast<ssize_t>(sent) : error;
}

}  // namespace vma::sockets
