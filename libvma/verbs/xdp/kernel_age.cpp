// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/verbs/xdp/kernel_age.h"

#include <sys/utsname.h>

#include <charconv>

namespace vma::verbs::xdp {
bool generic_rx_is_locked(std::string_view release) noexcept {
    unsigned major = 0, minor = 0;
    const char* const end = release.data() + release.size();
    const auto first = std::from_chars(release.data(), end, major);
    if (first.ec != std::errc() || first.ptr == end || *first.ptr != '.') return false;
    if (std::from_chars(first.ptr + 1, end, minor).ec != std::errc()) return false;
    return major > 6 || (major == 6 && minor >= 15);
}

bool generic_rx_is_locked() noexcept {
    utsname name{};
    return uname(&name) == 0 && generic_rx_is_locked(name.release);
}

}  // namespace vma::verbs::xdp
