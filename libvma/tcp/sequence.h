// SPDX-License-Identifier: BSD-2-Clause
// Comparing sequence numbers (RFC 9293 section 3.4): they wrap, so only their distance means something.
#pragma once

#include <cstdint>

namespace vma::tcp {

// True when `a` comes before `b`. Right for numbers less than 2^31 apart, which RFC 7323's largest window is.
constexpr bool seq_before(std::uint32_t a, std::uint32_t b) noexcept {
    return static_cast<std::int32_t>(a - b) < 0;
}
constexpr bool seq_at_or_before(std::uint32_t a, std::uint32_t b) noexcept { return !seq_before(b, a); }
constexpr std::uint32_t seq_max(std::uint32_t a, std::uint32_t b) noexcept {
    return seq_before(a, b) ? b : a;
}
constexpr std::uint32_t seq_min(std::uint32_t a, std::uint32_t b) noexcept {
    return seq_before(a, b) ? a : b;
}

}  // namespace vma::tcp
