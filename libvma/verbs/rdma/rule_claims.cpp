// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/verbs/rdma/rule_claims.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "libvma/os/calls.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/runtime.h"

namespace vma::verbs::rdma {
namespace {

constexpr std::uint64_t kPlaces = std::uint64_t{1} << 62;  // offsets in a file
constexpr std::size_t kMostWaited = 256;  // claims to look at; the others come when one of these is free
constexpr clock::Msec kTick{10};
constexpr unsigned kLongest = 100;  // ticks between two looks

struct flock place_of(std::uint64_t claim, short type) noexcept {
    struct flock lock {};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = static_cast<off_t>(claim % kPlaces);
    lock.l_len = 1;
    return lock;
}

int call(int fd, int command, struct flock& lock) noexcept {
    return os::fcntl(fd, command, reinterpret_cast<unsigned long>(&lock));
}

}  // namespace

RuleClaims::~RuleClaims() {
    const std::lock_guard hold(waiting_->lock);
    waiting_->closed = true;
}

void RuleClaims::on_freed(std::function<void()> freed) {
    const std::lock_guard hold(waiting_->lock);
    waiting_->freed = std::move(freed);
}

bool RuleClaims::claim(std::uint64_t claim) noexcept {
    if (claim == 0) return true;
    const ErrnoKept kept;
    struct flock lock = place_of(claim, F_WRLCK);
    if (call(fd_, F_OFD_SETLK, lock) == 0) return true;
    if (errno != EAGAIN && errno != EACCES) {
        log::once(log::Level::debug, "rules are not kept to one process: {}", strerror(errno));
        return true;
    }
    try {
        if (!wait_for(claim)) return false;
        runtime::every(kTick, [waiting = waiting_, &fd = fd_, next = 1u, wait = 1u]() mutable {
            if (--next != 0) return true;
            next = wait = std::min(wait * 2, kLongest);
            return look(*waiting, fd);
        });
    } catch (...) {
        const std::lock_guard hold(waiting_->lock);
        waiting_->looking = false;
        log::once(log::Level::warn, "a rule of another process is not waited for: out of memory");
    }
    return false;
}

// True: nobody looks yet. May throw std::bad_alloc.
bool RuleClaims::wait_for(std::uint64_t claim) {
    const std::lock_guard hold(waiting_->lock);
    auto& claims = waiting_->claims;
    if (claims.size() < kMostWaited && std::ranges::find(claims, claim) == claims.end())
        claims.push_back(claim);
    return !std::exchange(waiting_->looking, true);
}

// False: nothing is waited for any more.
bool RuleClaims::look(Waiting& waiting, const int& fd) {
    const ErrnoKept kept;
    std::function<void()> freed;
    {
        const std::lock_guard hold(waiting.lock);
        const auto is_free = [&](std::uint64_t claim) {
            struct flock lock = place_of(claim, F_WRLCK);
            return call(fd, F_OFD_GETLK, lock) != 0 || lock.l_type == F_UNLCK;
        };
        if (!waiting.closed && std::ranges::none_of(waiting.claims, is_free)) return true;
        waiting.looking = false;
        waiting.claims.clear();  // those that are still taken are claimed again
        if (!waiting.closed) freed = waiting.freed;
    }
    if (freed) freed();
    return false;
}

void RuleClaims::release(std::uint64_t claim) noexcept {
    if (claim == 0) return;
    const ErrnoKept kept;
    struct flock lock = place_of(claim, F_UNLCK);
    call(fd_, F_OFD_SETLK, lock);
}

}  // namespace vma::verbs::rdma
