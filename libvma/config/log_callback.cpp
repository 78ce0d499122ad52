// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/config/log_callback.h"

#include <charconv>
#include <cstdint>

#include "libvma/os/proc_file.h"

namespace vma::config {
namespace {

constexpr std::size_t kMaxText = 16 << 20;  // of /proc/self/environ or /proc/self/maps

// Was the process started with this variable and value?
bool inherited(std::string_view text) {
    const std::string environment = os::read_proc_file("/proc/self/environ", kMaxText);
    std::string entry = "VMA_LOG_CB_FUNC_PTR=";
    entry.append(text).push_back('\0');
    for (std::size_t at = 0; (at = environment.find(entry, at)) != std::string::npos; at++)
        if (at == 0 || environment[at - 1] == '\0') return true;
    return false;
}

// Takes the hexadecimal digits at the beginning of `text` away.
std::uint64_t hexadecimal(std::string_view& text) noexcept {
    std::uint64_t value = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    return error == std::errc() ? value : 0;
}

// Is the address in executable memory? A line of /proc/self/maps is "low-high rwxp ...".
bool executable(std::uint64_t address) {
    const std::string map = os::read_proc_file("/proc/self/maps", kMaxText);
    std::string_view rest = map;
    while (!rest.empty()) {
        std::string_view line = rest.substr(0, rest.find('\n'));
        rest.remove_prefix(std::min(line.size() + 1, rest.size()));
        const std::uint64_t low = hexadecimal(line);
        if (!line.starts_with('-')) continue;
        line.remove_prefix(1);
        const std::uint64_t high = hexadecimal(line);
        if (address >= low && address < high) return line.size() > 3 && line[3] == 'x';
    }
    return false;
}

}  // namespace

log::Callback log_callback(std::string_view text, std::string& refused) {
    std::string_view digits = text;
    std::uint64_t address = 0;
    if (digits.starts_with("0x")) {
        digits.remove_prefix(2);
        address = hexadecimal(digits);
    }
    if (address == 0 || !digits.empty())
        refused = "it is not an address as %p writes it";
    else if (inherited(text))
        refused = "the process was started with it; a program sets it itself, before its first socket";
    else if (!executable(address))
        refused = "there is no code at that address";
    else
        return reinterpret_cast<log::Callback>(address);
    return nullptr;
}

}  // namespace vma::config
