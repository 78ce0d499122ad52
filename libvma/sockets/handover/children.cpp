// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/handover/children.h"

#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <mutex>
#include <new>
#include <utility>

#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/internal_fd.h"
#include "libvma/runtime/lock.h"
#include "libvma/runtime/runtime.h"
#include "libvma/sockets/handover/question.h"
#include "libvma/sockets/handover/shared_sockets.h"

namespace vma::sockets::sharing {
namespace {

// Descriptors are not plenty. More children share the last channel, whose end is then not seen.
constexpr std::size_t kMaxChildren = 64;

struct Child {
    std::uint32_t generation = 0;
    InternalFd ours;
    InternalFd theirs;  // kept only by the last place, which many children share
};

struct Owner {
    Lock lock;
    std::array<Child, kMaxChildren> children;
};
// Made anew in a child, without destructors: its descriptors are closed already.
alignas(Owner) std::byte g_owner_memory[sizeof(Owner)];
Owner* g_owner = nullptr;
std::atomic<std::uint32_t> g_generation{0};
std::atomic<std::uint32_t> g_newest_alive{0};

void find_newest(Owner& owner) noexcept {
    std::uint32_t newest = 0;
    for (const Child& child : owner.children)
        if (child.ours) newest = std::max(newest, child.generation);
    g_newest_alive.store(newest, std::memory_order_release);
}

void watch(std::size_t place, int fd) {
    runtime::watch(fd, [place] {
        g_owner->lock.lock();
        const int now = g_owner->children[place].ours.get();
        g_owner->lock.unlock();
        if (serve(now)) return;
        runtime::unwatch_this();
        const std::lock_guard guard(g_owner->lock);
        g_owner->children[place].ours.reset();
        find_newest(*g_owner);
    });
}

}  // namespace

void children::renew() noexcept {
    g_owner = new (g_owner_memory) Owner;
    g_generation.store(0, std::memory_order_relaxed);
    g_newest_alive.store(0, std::memory_order_relaxed);
}

children::Channel children::open() noexcept {
    Channel c;
    Owner& owner = *g_owner;
    const std::lock_guard guard(owner.lock);
    while (c.place + 1 < kMaxChildren && owner.children[c.place].ours) c.place++;
    c.many = c.place + 1 == kMaxChildren;
    Child& child = owner.children[c.place];
    if (child.ours) {
        c.theirs = duplicate_high(child.theirs.get());
    } else {
        int ends[2];
        if (os::raw_syscall(SYS_socketpair, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0) {
            c.ours = duplicate_high(ends[0]);
            c.theirs = duplicate_high(ends[1]);
            close_raw(ends[0]);
            close_raw(ends[1]);
        }
        if (c.ours < 0 || c.theirs < 0) {
            close_raw(std::exchange(c.ours, -1));
            close_raw(std::exchange(c.theirs, -1));
        }
    }
    // The child is born with the next generation, and until it is known to be gone everything older is
    // shared.
    if (c.theirs >= 0) {
        child.generation = g_generation.fetch_add(1, std::memory_order_relaxed) + 1;
        g_newest_alive.store(child.generation, std::memory_order_release);
    }
    return c;
}

void children::keep(Channel& c) noexcept {
    Owner& owner = *g_owner;
    Child& child = owner.children[c.place];
    int watched = -1;
    owner.lock.lock();
    if (c.ours >= 0) {
        child.ours = InternalFd(c.ours);
        watched = child.ours.get();
        if (c.many) child.theirs = InternalFd(std::exchange(c.theirs, -1));
    }
    find_newest(owner);
    owner.lock.unlock();
    close_raw(c.theirs);
    if (watched < 0) return;
    try {
        watch(c.place, watched);
    } catch (const std::exception&) {
        const std::lock_guard guard(owner.lock);
        child.ours.reset();
        find_newest(owner);
    }
}

std::uint32_t generation() noexcept { return g_generation.load(std::memory_order_relaxed); }

bool shared_since(std::uint32_t born) noexcept {
    return g_newest_alive.load(std::memory_order_acquire) > born;
}

}  // namespace vma::sockets::sharing
