// SPDX-License-Identifier: BSD-2-Clause
// Sums of structures of counters.
#pragma once

#include <cstddef>

namespace tools {

// Adds the listed members of `from` to those of `to`.
template <class T, class Number, std::size_t N>
void add_members(T& to, const T& from, Number T::*const (&members)[N]) noexcept {
    for (const auto member : members) to.*member += from.*member;
}

}  // namespace tools
