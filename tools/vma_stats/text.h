// SPDX-License-Identifier: BSD-2-Clause
// Texts of the file and numbers, for people. A text from a file may contain any bytes; the functions here
// return printable ASCII.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "libvma/stats/layout.h"

namespace vma_stats {

// Bytes that are not printable ASCII become \xNN, and a backslash becomes two, so that every terminal and
// reader takes the text.
std::string escaped(std::string_view raw);

// A text field: up to its terminating zero, or all of it.
template <std::size_t N>
std::string text(const char (&field)[N]) {
    const std::string_view whole(field, N);
    return escaped(whole.substr(0, whole.find('\0')));
}

// "198.18.0.1:5000", "[2001:db8::1]:80", "*:0" when there is none.
std::string endpoint(const vma::stats::Address& address);
// Without the port.
std::string host(const vma::stats::Address& address);

std::string protocol(const vma::stats::SocketBlock& socket);  // "UDP", "TCP", or the numbers
std::string_view tcp_state(std::uint32_t state);              // as netstat has them; empty for 0
std::string_view path(std::uint8_t value);                    // "offloaded", "kernel", "undecided", "closed"
std::string_view reason(std::uint16_t value);                 // reason_text()
std::string_view mux_name(std::uint32_t kind);                // "select", "poll", "epoll"

// numerator / denominator in per cent; 0 when there is nothing.
double percent(std::uint64_t part, std::uint64_t rest);

// 1234567 -> "1.2M", in at most five characters where the number allows.
std::string short_number(double value);

}  // namespace vma_stats
