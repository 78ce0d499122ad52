// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/ring/strays/stray_tuples.h"

#include <sys/random.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <span>

#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/clock.h"

namespace vma::ring {
namespace {

bool in_use(const stray_tuple& t) noexcept { return t.users != 0; }

bool same(const stray_tuple& t, const verbs::FlowSpec& s) noexcept {
    return in_use(t) && t.src_addr == s.src_addr && t.dst_addr == s.dst_addr && t.src_port == s.src_port &&
           t.dst_port == s.dst_port;
}

stray_tuple* find(std::span<stray_bucket* const> buckets, const verbs::FlowSpec& spec) noexcept {
    for (stray_bucket* bucket : buckets)
        for (stray_tuple& t : bucket->tuples)
            if (same(t, spec)) return &t;
    return nullptr;
}

void set_users(stray_tuple& t, __u32 users) noexcept {
    std::atomic_ref(t.users).store(users, std::memory_order_release);
}

}  // namespace

bool StrayTuples::map(int fd) noexcept {
    // Without the secret a peer can fill two buckets, and nothing worse.
    if (os::raw_syscall(SYS_getrandom, seeds_.data(), sizeof seeds_, GRND_NONBLOCK) != sizeof seeds_)
        for (__u64& seed : seeds_) seed += clock::monotonic_ns() * 0x9e3779b97f4a7c15;
    return table_.map(fd);
}

std::array<stray_bucket*, 2> StrayTuples::buckets_of(const verbs::FlowSpec& s) const noexcept {
    const __u64 hash = strays_hash(seeds_.data(), s.src_addr, s.dst_addr, s.src_port, s.dst_port);
    return {&(*table_)[strays_first(hash)], &(*table_)[strays_second(hash)]};
}

bool StrayTuples::has(const verbs::FlowSpec& spec) const noexcept {
    const auto buckets = buckets_of(spec);
    const std::lock_guard guard(lock_);
    return find(buckets, spec) != nullptr;
}

bool StrayTuples::add(const verbs::FlowSpec& spec) noexcept {
    const auto buckets = buckets_of(spec);
    const std::lock_guard guard(lock_);
    if (stray_tuple* there = find(buckets, spec); there != nullptr) {
        set_users(*there, there->users + 1);
        return true;
    }
    stray_tuple* free = nullptr;
    std::ptrdiff_t room = 0;
    for (stray_bucket* bucket : buckets) {
        const std::ptrdiff_t here = std::ranges::count_if(bucket->tuples, [](auto& t) { return !in_use(t); });
        if (here <= room) continue;
        room = here;
        free = std::ranges::find_if_not(bucket->tuples, in_use);
    }
    if (free == nullptr) return false;
    // The program may compare meanwhile: it reads `users` first.
    std::atomic_ref(free->src_addr).store(spec.src_addr, std::memory_order_relaxed);
    std::atomic_ref(free->dst_addr).store(spec.dst_addr, std::memory_order_relaxed);
    std::atomic_ref(free->src_port).store(spec.src_port, std::memory_order_relaxed);
    std::atomic_ref(free->dst_port).store(spec.dst_port, std::memory_order_relaxed);
    set_users(*free, 1);
    return true;
}

void StrayTuples::remove(const verbs::FlowSpec& spec) noexcept {
    const auto buckets = buckets_of(spec);
    const std::lock_guard guard(lock_);
    if (stray_tuple* there = find(buckets, spec); there != nullptr) set_users(*there, there->users - 1);
}

}  // namespace vma::ring
