// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/ring/live_flows.h"

#include <netinet/in.h>
#include <sys/auxv.h>

#include <array>
#include <atomic>
#include <cstring>

#include "libvma/runtime/fork_renewal.h"

namespace vma::ring::live_flows {
namespace {

constexpr std::size_t kPlaces = 16384;

constinit std::array<std::atomic<std::uint32_t>, kPlaces> g_rules{};

bool noted(const verbs::FlowSpec& spec) noexcept {
    return spec.protocol == IPPROTO_TCP && spec.is_five_tuple();
}

std::atomic<std::uint32_t>& place_of(const verbs::FlowSpec& spec) noexcept {
    return g_rules[hash_of(spec) % kPlaces];
}

// The child's rules are none.
void forget_rules() noexcept {
    for (auto& rules : g_rules) rules.store(0, std::memory_order_relaxed);
}
VMA_RENEW_IN_CHILD(forget_rules);

}  // namespace

std::uint64_t hash_of(const verbs::FlowSpec& spec) noexcept {
    // The kernel's random bytes for this process; without them no stranger's flood is kept off.
    std::array<std::uint64_t, 2> key{0x9e3779b97f4a7c15u, 0xbf58476d1ce4e5b9u};
    if (const void* random = reinterpret_cast<const void*>(getauxval(AT_RANDOM)); random != nullptr)
        std::memcpy(key.data(), random, sizeof key);
    const auto mix = [](std::uint64_t a, std::uint64_t b) {
        const unsigned __int128 product = static_cast<unsigned __int128>(a) * (b | 1);
        return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
    };
    const std::uint64_t addresses = std::uint64_t{spec.dst_addr} << 32 | spec.src_addr;
    const std::uint64_t ports = std::uint64_t{spec.dst_port} << 16 | spec.src_port;
    return mix(mix(addresses ^ key[0], key[1]) ^ ports, key[0] ^ 0x94d049bb133111ebu);
}

void add(const verbs::FlowSpec& spec) noexcept {
    if (noted(spec)) place_of(spec).fetch_add(1, std::memory_order_relaxed);
}

void remove(const verbs::FlowSpec& spec) noexcept {
    if (noted(spec)) place_of(spec).fetch_sub(1, std::memory_order_relaxed);
}

bool maybe(const verbs::FlowSpec& spec) noexcept {
    return noted(spec) && place_of(spec).load(std::memory_order_relaxed) != 0;
}

}  // namespace vma::ring::live_flows
