// SPDX-License-Identifier: BSD-2-Clause
// Commands to a running process: log level, zeroed counters, a dump of a socket to the log.
//
// An abstract unix socket (SOCK_SEQPACKET), whose name is in the statistics file. The process answers only
// peers whose effective user (SO_PEERCRED) is its own or root. A request is one message, a Request; the
// answer is one message, an Answer. The internal thread serves one request for each connection.
#pragma once

#include <cstdint>

namespace vma::stats {

// refresh: updates the numbers that the process otherwise copies into the file once a second: gauges, and the
// counters of TCP, rings, pools and muxes. A reader with the permission sends it before it reads.
enum class Command : std::uint32_t { log_level = 1, log_details = 2, zero = 3, dump_socket = 4, refresh = 5 };

inline constexpr std::uint32_t kControlMagic = 0x63616d76;  // "vmac"

struct Request {
    std::uint32_t magic;
    std::uint32_t version;  // stats::kVersion
    std::uint32_t command;  // Command
    std::int32_t value;     // level, or details; dump_socket: the descriptor, 0 for all
    std::int32_t level;     // dump_socket: log level of its lines
    std::uint32_t reserved;
};

struct Answer {
    std::uint32_t magic;
    std::int32_t error;  // 0, or an errno value
    char text[120];      // what was wrong, or what the process did
};

}  // namespace vma::stats
