// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/verbs/xdp/steer_rules.h"

#include <sys/random.h>

#include <atomic>

#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/clock.h"

namespace vma::verbs::xdp {
namespace {

// An entry that a thread has taken, and whose key is not there yet.
constexpr __u64 kTaken = __u64{1} << 32;

std::atomic_ref<__u64> word(__u64& w) noexcept { return std::atomic_ref(w); }

}  // namespace

struct SteerRules::Place {
    steer_bucket& bucket;
    steer_key key;
    __u64 tag;  // the upper half of a mark
};

bool SteerRules::map(int fd) noexcept {
    // Without the secret a peer can make rules cost system calls, and nothing worse.
    if (os::raw_syscall(SYS_getrandom, seeds_.data(), sizeof seeds_, GRND_NONBLOCK) != sizeof seeds_)
        for (__u64& seed : seeds_) seed += clock::monotonic_ns() * 0x9e3779b97f4a7c15;
    return table_.map(fd);
}

SteerRules::Place SteerRules::place_of(const FlowSpec& spec) const noexcept {
    const bool five = spec.is_five_tuple();
    const steer_key key = steer_key_of(five ? STEER_FIVE : STEER_THREE, five ? spec.src_addr : 0,
                                       spec.dst_addr, five ? spec.src_port : 0, spec.dst_port, spec.protocol);
    const __u64 hash = steer_hash(seeds_.data(), key);
    return {(*table_)[steer_bucket_of(hash)], key, steer_tag_of(hash) << 32};
}

bool SteerRules::add(const FlowSpec& spec, std::uint32_t slot) noexcept {
    const Place at = place_of(spec);
    for (int i = 0; i < STEER_WAYS; i++) {
        const auto mark = word(at.bucket.mark[i]);
        __u64 free = 0;
        if (mark.load(std::memory_order_relaxed) != 0 || !mark.compare_exchange_strong(free, kTaken))
            continue;
        word(at.bucket.addresses[i]).store(at.key.addresses, std::memory_order_relaxed);
        word(at.bucket.ports[i]).store(at.key.ports, std::memory_order_relaxed);
        mark.store(at.tag | (slot + 1), std::memory_order_release);
        return true;
    }
    return false;
}

bool SteerRules::set(const FlowSpec& spec, std::uint32_t slot_plus_1) noexcept {
    const Place at = place_of(spec);
    for (int i = 0; i < STEER_WAYS; i++) {
        const auto mark = word(at.bucket.mark[i]);
        const __u64 now = mark.load(std::memory_order_acquire);
        if (static_cast<std::uint32_t>(now) == 0 || (now & ~__u64{0xffffffff}) != at.tag ||
            word(at.bucket.addresses[i]).load(std::memory_order_relaxed) != at.key.addresses ||
            word(at.bucket.ports[i]).load(std::memory_order_relaxed) != at.key.ports)
            continue;
        mark.store(slot_plus_1 == 0 ? 0 : at.tag | slot_plus_1, std::memory_order_release);
        return true;
    }
    return false;
}

}  // namespace vma::verbs::xdp
