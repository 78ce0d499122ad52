// SPDX-License-Identifier: BSD-2-Clause
// File names from the environment may hold one %d that stands for the process id (VMA_LOG_FILE,
// VMA_CONFIG_FILE, ...).
#pragma once

#include <cstddef>
#include <string_view>

namespace vma {

// Writes `text` to `out` (`room` bytes, NUL included) with its first %d replaced by `pid`. False when it does
// not fit. Async-signal-safe, so a forked child can use it.
inline bool expand_pid(std::string_view text, long pid, char* out, std::size_t room) noexcept {
    std::size_t n = 0;
    auto put = [&](char c) noexcept {
        if (n + 1 >= room) return false;
        out[n++] = c;
        return true;
    };
    bool replaced = false;
    for (std::size_t i = 0; i < text.size(); i++) {
        if (!replaced && text[i] == '%' && i + 1 < text.size() && text[i + 1] == 'd') {
            replaced = true;
            i++;
            char digits[20];
            int count = 0;
            do digits[count++] = static_cast<char>('0' + pid % 10);
            while ((pid /= 10) != 0);
            while (count > 0)
                if (!put(digits[--count])) return false;
        } else if (!put(text[i])) {
            return false;
        }
    }
    if (room == 0) return false;
    out[n] = '\0';
    return true;
}

}  // namespace vma
