// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/steered_socket.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/time.h>

#include <algorithm>
#include <new>

#include "libvma/os/calls.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/no_cancel.h"
#include "libvma/sockets/extreme.h"
#include "libvma/sockets/fd_table.h"
#include "libvma/sockets/handover/shared_sockets.h"
#include "libvma/sockets/user_memory.h"

namespace vma::sockets {

SteeredSocket::SteeredSocket(Stack& stack, int type) noexcept
    : stack_(stack),
      born_(sharing::generation()),
      nonblock_((type & SOCK_NONBLOCK) != 0),
      place_(stack.rings().lanes()) {}

SteeredSocket::~SteeredSocket() = default;

// With the control lock held, and given back here.
bool SteeredSocket::move_now() noexcept {
    const ErrnoKept kept;
    const unsigned lane = place_.candidate();
    std::string why;
    bool moved = false;
    try {
        moved = lane == place_.lane() || move_to(lane, why);
    } catch (...) {
        why = "out of memory";
    }
    if (moved) {
        if (lane != place_.lane()) socket_counters_.moved_ring();
        place_.settle(lane);
    } else {
        place_.refuse(lane);
        log::once(log::Level::info, "a socket stays on its ring although another thread uses it: {}", why);
    }
    stack_.bury_dead();
    stack_.control().unlock();
    return moved;
}

void SteeredSocket::move_ring() noexcept {
    if (closed() || shared() || interrupted_library_code()) return;
    const runtime::NoCancel whole;
    if (stack_.control().try_lock()) move_now();
}

int SteeredSocket::choose_lane(const OwnRing& own) noexcept {
    if (interrupted_library_code() || stack_.control().owned_by_me()) return -EBUSY;
    const runtime::NoCancel whole;
    stack_.control().lock();
    try {
        place_.choose(own);
    } catch (...) {
        stack_.control().unlock();
        return -ENOMEM;
    }
    if (place_.taken()) return move_now() ? 0 : -EBUSY;
    stack_.control().unlock();
    return 0;
}

void SteeredSocket::join_extreme(int fd, bool accepted) noexcept {
    if (__builtin_expect(!ExtremeMember::wanted(), 1)) return;
    extreme_.reset(new (std::nothrow) ExtremeMember(*this, fd, accepted));
    if (extreme_ == nullptr) return;
    (void)watchers_.add(extreme_.get());
    extreme_->wake(0);
}

void SteeredSocket::leave_extreme() noexcept {
    if (extreme_ != nullptr) extreme_->closing();
}

bool SteeredSocket::shared() const noexcept { return sharing::shared_since(born_); }

void SteeredSocket::leave_if_shared(int fd) noexcept {
    if (!carries_state() || !shared()) return;
    leave_to_kernel(fd, leave::open_elsewhere);
    sharing::complete_sets();
}

InternalFd SteeredSocket::copy_shadow(int fd) noexcept {
    if (watchers_.in_kernel_sets()) {
        const ErrnoKept kept;
        g_fds.for_each_set(
            [fd](int set, const FdObject*) { os::epoll_ctl(set, EPOLL_CTL_DEL, fd, nullptr); });
    }
    return InternalFd::copy_of(fd);
}

unsigned SteeredSocket::arm(int* fds, unsigned room) noexcept {
    ring::Ring* list[FlowRules::kMaxRings];
    const unsigned count = std::min({rings(list, FlowRules::kMaxRings), FlowRules::kMaxRings, room});
    for (unsigned i = 0; i < count; i++) {
        list[i]->arm();
        fds[i] = list[i]->channel_fd();
    }
    return count;
}

// F_SETOWN alone asks for SIGURG, which comes from the kernel: urgent data makes the connection its own.
int SteeredSocket::fcntl(int fd, int cmd, unsigned long arg) {
    if (cmd == F_SETFL && (arg & O_ASYNC) != 0) leave_to_kernel(fd, leave::signal_driven);
    const int r = os::fcntl(fd, cmd, arg);
    if (cmd == F_SETFL && r == 0) nonblock_.store((arg & O_NONBLOCK) != 0, std::memory_order_release);
    return r;
}

int SteeredSocket::ioctl(int fd, unsigned long request, void* arg) {
    if (request == FIOASYNC && UserMemory::readable(arg, sizeof(int)) && *static_cast<int*>(arg) != 0)
        leave_to_kernel(fd, leave::signal_driven_ioctl);
    const int r = os::ioctl(fd, request, arg);
    if (request == FIONBIO && r == 0)
        nonblock_.store(*static_cast<int*>(arg) != 0, std::memory_order_release);
    return r;
}

int SteeredSocket::int_option(int fd, int level, int name, int otherwise) noexcept {
    int value = otherwise;
    socklen_t len = sizeof value;
    return os::getsockopt(fd, level, name, &value, &len) == 0 ? value : otherwise;
}

clock::Nsec SteeredSocket::timeout_option(int fd, int name) noexcept {
    timeval t{};
    socklen_t len = sizeof t;
    os::getsockopt(fd, SOL_SOCKET, name, &t, &len);
    return clock::from_timespec({t.tv_sec, t.tv_usec * 1000});
}

}  // namespace vma::sockets
