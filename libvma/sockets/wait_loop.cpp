// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/wait_loop.h"

#include <time.h>

#include <algorithm>

#include "libvma/os/calls.h"

namespace vma::sockets {
namespace {

constexpr clock::Nsec kSlice{1'000'000};  // sleep of a thread that no other thread is sure to wake

}  // namespace

Waiter* Sleep::enter() noexcept {
    Waiter* waiter = Waiter::mine();
    if (waiter != nullptr) waiter->clear();
    return waiter;
}

RingWatch Sleep::watch() noexcept {
    ring::Ring* list[FlowRules::kMaxRings];
    const unsigned count = std::min(socket_.rings(list, FlowRules::kMaxRings), FlowRules::kMaxRings);
    return RingWatch(sure_to_wake_ ? waiter_ : nullptr, list, count);
}

Sleep::Sleep(Socket& socket, int fd) noexcept
    : socket_(socket),
      fd_(fd),
      waiter_(enter()),
      sure_to_wake_(waiter_ != nullptr && socket.add_waiter(waiter_)),
      watch_(watch()) {}

Sleep::~Sleep() {
    if (waiter_ != nullptr) socket_.remove_waiter(waiter_);
}

void Sleep::arm() noexcept {
    count_ = 0;
    if (fd_ >= 0) fds_[count_++] = {fd_, POLLIN, 0};
    if (waiter_ != nullptr) fds_[count_++] = {waiter_->fd(), POLLIN, 0};
    count_ += watch_.arm(fds_ + count_);
}

int Sleep::run(clock::Time deadline, const sigset_t* mask) {
    const int saved = errno;
    socket_.flush();  // after the last look, which may have answered frames
    const bool timed = deadline != clock::Time{};
    timespec limit{}, *timeout = nullptr;
    if (timed || !sure_to_wake_) {
        const clock::Time now = clock::monotonic();
        clock::Nsec left = !timed           ? clock::Nsec::max()
                           : deadline > now ? deadline - now
                                            : clock::Nsec::zero();
        if (!sure_to_wake_) left = std::min(left, kSlice);
        limit = clock::to_timespec(left);
        timeout = &limit;
    }
    spinners::sleeps();
    const int r = os::ppoll(fds_, count_, timeout, mask);
    const int error = errno;
    spinners::leave();
    errno = saved;
    woken_ = r > 0;
    if (woken_) watch_.woken();
    if (r < 0 && error != EINTR) return -error;
    // The library does not count handlers that came past its sigaction(); the first signal adopts them.
    if (r < 0 && runtime::signals::adopt_new()) return -EINTR;
    if (r == 0 && timed && clock::monotonic() >= deadline) {
        socket_.progress();
        return -EAGAIN;
    }
    return 0;
}

bool Sleep::goes_on() noexcept {
    if (!woken_ || waiter_ == nullptr || fd_events() != 0) return false;
    return watch_.sleeps_on(fds_[fd_ >= 0 ? 1 : 0].revents);
}

}  // namespace vma::sockets
