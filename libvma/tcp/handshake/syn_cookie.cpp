// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/handshake/syn_cookie.h"

#include <array>
#include <atomic>
#include <cstring>

#include "libvma/tcp/handshake/isn.h"

namespace vma::tcp {
namespace {

// What is often seen: the default, IPv6's smallest and many tunnels, tunnels over Ethernet, Ethernet.
constexpr std::array<std::uint16_t, 4> kSizes{536, 1220, 1400, 1460};
constexpr unsigned kHashBits = 24, kSizeBits = 2, kPeriodBits = 6;
static_assert(kHashBits + kSizeBits + kPeriodBits == 32 && kSizes.size() == 1u << kSizeBits);
constexpr std::uint32_t kHashMask = (1u << kHashBits) - 1, kPeriodMask = (1u << kPeriodBits) - 1;

// Bits of a time stamp: four of window scale, of which 15 is none, one for SACK, and one for ECN.
constexpr unsigned kStampBits = 6;
constexpr std::uint32_t kStampMask = (1u << kStampBits) - 1, kNoScale = 15, kSackBit = 16, kEcnBit = 32;
constexpr std::uint32_t kStampAge =
    std::chrono::duration_cast<Msec>(2 * kCookieTime).count() + (1u << kStampBits);  // ms

std::atomic<Time> g_last_sent{};

struct CookieInput {
    std::uint32_t local_addr, remote_addr;
    std::uint16_t local_port, remote_port;
    std::uint32_t peer_isn, period, size;
};
static_assert(sizeof(CookieInput) == 24, "no padding that would be hashed");

std::uint64_t hash(const CookieInput& input) noexcept {
    return keyed_hash(std::as_bytes(std::span(&input, 1)));
}
CookieInput cookie_input_of(const net::Endpoints& ends, std::uint32_t peer_isn, std::uint64_t period,
                            std::uint32_t size) noexcept {
    return {ends.local.address.v4(),
            ends.remote.address.v4(),
            ends.local.port,
            ends.remote.port,
            peer_isn,
            static_cast<std::uint32_t>(period),
            size};
}
// Hides period and size, which would show in the upper bits of all cookies otherwise.
std::uint32_t mask_of(const net::Endpoints& ends, std::uint32_t peer_isn) noexcept {
    return static_cast<std::uint32_t>(hash(cookie_input_of(ends, 0, 0, ~0u))) + peer_isn;
}

}  // namespace

std::uint32_t make_cookie(const net::Endpoints& ends, std::uint32_t peer_isn, std::uint16_t mss,
                          Time now) noexcept {
    std::uint32_t size = kSizes.size() - 1;
    while (size != 0 && kSizes[size] > mss) size--;
    const std::uint64_t period = now.time_since_epoch() / kCookieTime;
    const auto proof =
        static_cast<std::uint32_t>(hash(cookie_input_of(ends, peer_isn, period, size))) & kHashMask;
    const auto head = static_cast<std::uint32_t>(period & kPeriodMask) << kSizeBits | size;
    return (head << kHashBits | proof) + mask_of(ends, peer_isn);
}

std::optional<std::uint16_t> read_cookie(const net::Endpoints& ends, std::uint32_t peer_isn,
                                         std::uint32_t cookie, Time now) noexcept {
    const std::uint32_t plain = cookie - mask_of(ends, peer_isn);
    const std::uint32_t size = plain >> kHashBits & ((1u << kSizeBits) - 1);
    const std::uint64_t period = now.time_since_epoch() / kCookieTime;
    const std::uint32_t age =
        (static_cast<std::uint32_t>(period) - (plain >> (kHashBits + kSizeBits))) & kPeriodMask;
    if (age > 1 || age > period) return std::nullopt;
    const auto proof =
        static_cast<std::uint32_t>(hash(cookie_input_of(ends, peer_isn, period - age, size))) & kHashMask;
    if (proof != (plain & kHashMask)) return std::nullopt;
    return kSizes[size];
}

std::uint32_t make_cookie_stamp(const SynOptions& said, Time now) noexcept {
    const std::uint32_t bits =
        (said.has_scale ? said.scale : kNoScale) | (said.sack ? kSackBit : 0) | (said.ecn ? kEcnBit : 0);
    const std::uint32_t at = milliseconds(now), stamp = (at & ~kStampMask) | bits;
    return stamp - (static_cast<std::int32_t>(stamp - at) > 0 ? 1u << kStampBits : 0);
}

bool read_cookie_stamp(std::uint32_t echo, Time now, SynOptions& said) noexcept {
    if (milliseconds(now) - echo > kStampAge) return false;
    said.has_scale = (echo & kNoScale) != kNoScale;
    said.scale = said.has_scale ? static_cast<std::uint8_t>(echo & kNoScale) : 0;
    said.sack = (echo & kSackBit) != 0;
    said.ecn = (echo & kEcnBit) != 0;
    return true;
}

void note_cookie_sent(Time now) noexcept { g_last_sent.store(now, std::memory_order_relaxed); }

bool cookies_expected(Time now) noexcept {
    const Time last = g_last_sent.load(std::memory_order_relaxed);
    return last != kNoTime && now - last <= 2 * kCookieTime;
}

}  // namespace vma::tcp
