// SPDX-License-Identifier: BSD-2-Clause
// See text.h.
#include "tools/vma_stats/text.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>

namespace vma_stats {

namespace layout = vma::stats;

std::string escaped(std::string_view raw) {
    std::string out;
    out.reserve(raw.size());
    for (const char c : raw) {
        const auto byte = static_cast<unsigned char>(c);
        if (c == '\\')
            out += "\\\\";
        else if (byte >= 0x20 && byte < 0x7f)
            out += c;
        else
            out += fmt::format("\\x{:02x}", byte);
    }
    return out;
}

std::string host(const layout::Address& address) {
    char buffer[INET6_ADDRSTRLEN] = "*";
    if (address.family == AF_INET || address.family == AF_INET6)
        inet_ntop(address.family, address.bytes, buffer, sizeof buffer);
    return buffer;
}

std::string endpoint(const layout::Address& address) {
    if (address.family == AF_INET6) return fmt::format("[{}]:{}", host(address), address.port);
    return fmt::format("{}:{}", host(address), address.port);
}

std::string protocol(const layout::SocketBlock& socket) {
    // SOCK_NONBLOCK and SOCK_CLOEXEC are no part of the kind.
    const int type = socket.type & 0xf;
    const char* suffix = socket.family == AF_INET6 ? "6" : "";
    if (socket.family != AF_INET && socket.family != AF_INET6 && socket.family != 0)
        return fmt::format("family {} type {}", socket.family, type);
    if (type == SOCK_DGRAM) return fmt::format("UDP{}", suffix);
    if (type == SOCK_STREAM) return fmt::format("TCP{}", suffix);
    return fmt::format("type {}", type);
}

std::string_view tcp_state(std::uint32_t state) {
    static constexpr std::array<std::string_view, 13> kNames = {
        "",      "ESTABLISHED", "SYN_SENT", "SYN_RECV", "FIN_WAIT1", "FIN_WAIT2",   "TIME_WAIT",
        "CLOSE", "CLOSE_WAIT",  "LAST_ACK", "LISTEN",   "CLOSING",   "NEW_SYN_RECV"};
    return state < kNames.size() ? kNames[state] : "UNKNOWN";
}

std::string_view path(std::uint8_t value) {
    switch (static_cast<layout::Path>(value)) {
        case layout::Path::undecided:
            return "undecided";
        case layout::Path::offloaded:
            return "offloaded";
        case layout::Path::kernel:
            return "kernel";
        case layout::Path::closed:
            return "closed";
    }
    return "unknown";
}

std::string_view reason(std::uint16_t value) {
    return layout::reason_text(static_cast<layout::Reason>(value));
}

std::string_view mux_name(std::uint32_t kind) {
    switch (static_cast<layout::Mux>(kind)) {
        case layout::Mux::poll:
            return "poll";
        case layout::Mux::select:
            return "select";
        case layout::Mux::epoll:
            return "epoll";
    }
    return "wait";
}

double percent(std::uint64_t part, std::uint64_t rest) {
    const double whole = static_cast<double>(part) + static_cast<double>(rest);
    return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / whole;
}

std::string short_number(double value) {
    static constexpr char kUnits[] = {'k', 'M', 'G', 'T', 'P', 'E'};
    if (value < 0.05) return "0";
    if (value < 10) return fmt::format("{:.1f}", value);
    if (value < 9999.5) return fmt::format("{:.0f}", value);
    char unit = 0;
    for (const char next : kUnits) {
        value /= 1000;
        unit = next;
        if (value < 999.5) break;
    }
    return value < 99.95 ? fmt::format("{:.1f}{}", value, unit) : fmt::format("{:.0f}{}", value, unit);
}

}  // namespace vma_stats
