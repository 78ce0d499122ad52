// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/runtime/cpus.h"

#include <charconv>
#include <cstdint>

namespace vma {
namespace {

// Takes the number at the beginning of `text` away.
bool number(std::string_view& text, unsigned& value) noexcept {
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || value >= CPU_SETSIZE) return false;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    return true;
}

bool mask(std::string_view text, cpu_set_t& cpus) noexcept {
    unsigned cpu = 0;
    for (auto at = text.rbegin(); at != text.rend(); ++at, cpu += 4) {
        unsigned digit = 0;
        auto [end, error] = std::from_chars(&*at, &*at + 1, digit, 16);
        if (error != std::errc{} || end != &*at + 1) return false;
        for (unsigned bit = 0; bit < 4; bit++) {
            if ((digit >> bit & 1) == 0) continue;
            if (cpu + bit >= CPU_SETSIZE) return false;
            CPU_SET(cpu + bit, &cpus);
        }
    }
    return CPU_COUNT(&cpus) != 0;
}

}  // namespace

bool parse_cpus(std::string_view text, cpu_set_t& cpus) noexcept {
    CPU_ZERO(&cpus);
    if (text.starts_with("0x") || text.starts_with("0X")) return mask(text.substr(2), cpus);
    for (;;) {
        unsigned first, last;
        if (!number(text, first)) return false;
        last = first;
        if (text.starts_with('-')) {
            text.remove_prefix(1);
            if (!number(text, last) || last < first) return false;
        }
        for (; first <= last; first++) CPU_SET(first, &cpus);
        if (text.empty()) return true;
        if (!text.starts_with(',')) return false;
        text.remove_prefix(1);
    }
}

}  // namespace vma
