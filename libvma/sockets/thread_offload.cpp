// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/thread_offload.h"

#include <errno.h>

#include <array>
#include <atomic>
#include <mutex>
#include <new>

#include "libvma/config/params.h"
#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/lock.h"

namespace vma::sockets::thread_offload {
namespace {

// A program has few such threads, and tells them while it starts.
constexpr unsigned kMost = 1024;
struct Choice {
    pthread_t thread;
    bool on;
};
struct Choices {
    Lock lock;
    std::atomic<unsigned> count{0};
    std::array<Choice, kMost> list{};
};
constinit Choices g_choices;

// The child's one thread keeps its choice: pthread_self() is the same there.
void renew() noexcept { new (&g_choices.lock) Lock; }
VMA_RENEW_IN_CHILD(renew);

}  // namespace

int set(pthread_t thread, bool on) noexcept {
    const std::lock_guard guard(g_choices.lock);
    const unsigned count = g_choices.count.load(std::memory_order_relaxed);
    for (unsigned i = 0; i < count; i++)
        if (pthread_equal(g_choices.list[i].thread, thread) != 0) {
            g_choices.list[i].on = on;
            return 0;
        }
    if (count == kMost) return -ENOSPC;
    g_choices.list[count] = {thread, on};
    g_choices.count.store(count + 1, std::memory_order_release);
    return 0;
}

bool wanted() noexcept {
    if (g_choices.count.load(std::memory_order_acquire) != 0 && !g_choices.lock.owned_by_me()) {
        const std::lock_guard guard(g_choices.lock);
        for (unsigned i = 0; i < g_choices.count.load(std::memory_order_relaxed); i++)
            if (pthread_equal(g_choices.list[i].thread, pthread_self()) != 0) return g_choices.list[i].on;
    }
    return config::get().offloaded_sockets != 0;
}

}  // namespace vma::sockets::thread_offload
