// SPDX-License-Identifier: BSD-2-Clause
// A packet script as text, and as steps. docs/testing.md tells how one is written; in short:
//
//   == name
//   # what it shows
//   listen l                                 a call of the program; "= 0" stands for what it returns
//   < S 0 win 65535 mss 1000 sackOK TS wscale 7       the peer sends
//   > S. 0 ack 1 mss sackOK TS wscale                 the peer expects the next segment
//   nothing 0.2                              nothing comes for 0.2 s
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace scripts {

// A number of the script, with what is asked of it.
struct Bound {
    enum class How { any, equal, least, most } how = How::any;
    std::uint32_t value = 0;
    bool holds(std::uint64_t v) const {
        return how == How::any || (how == How::equal && v == value) || (how == How::least && v >= value) ||
               (how == How::most && v <= value);
    }
};

// What stands in an option "TS": a value of the peer's own clock, and what it echoes.
struct Stamp {
    std::optional<std::uint32_t> value;  // in the script's numbers, which begin at 1
    std::string echo;                    // empty: the latest heard; a number; "zero", "first", "orig:SEQ"
};

// A segment, in numbers relative to the first of each side. What a side sends, or what is expected.
struct Pattern {
    std::uint8_t flags = 0;
    std::uint32_t seq = 0, length = 0;
    std::optional<std::uint32_t> ack;
    Bound window;
    std::uint16_t urgent = 0;
    std::uint8_t ecn = 0;  // of the IP header
    std::optional<Bound> mss, scale;
    bool sack_allowed = false, bad_checksum = false;
    bool no_stamp = false;
    std::optional<Stamp> stamp;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> sacks;
    std::string raw;  // further options, bytes
};

struct Step {
    enum class Kind { call, send, expect, icmp, nothing, sleep, renumber } kind = Kind::call;
    int line = 0;
    std::string text;                   // as it stands in the script
    int endpoint = 1;                   // of the peer
    Pattern pattern;                    // send, expect
    double least = 0;                   // expect: seconds since the segment before; nothing, sleep: seconds
    double most = 0;                    // expect: 0 is "as long as it takes"
    bool again = false;                 // expect: it may come again before the next one
    std::string call;                   // to the program; icmp: its kind
    std::string want;                   // what the call returns, with a comparison in front
    std::uint32_t number = 0, seq = 0;  // icmp: MTU and what it quotes; renumber: by how much
};

struct Script {
    std::string theme, name, why;
    std::vector<std::string> sysctls;  // of the program's host
    std::string differs;               // why the library is known not to pass; empty: it passes
    long kernel_segments = 0;          // the kernel may carry with the library
    std::uint32_t first = 0x30000000;  // the peer's first sequence number
    std::vector<Step> steps;
    std::string id() const { return theme + "_" + name; }
};

// The scripts of a file, whose name is their theme. Throws std::runtime_error with the line at fault.
std::vector<Script> read_scripts(const std::string& path);
// Those of all files *.script of the directory.
std::vector<Script> all_scripts(const std::string& directory);

// The letters of a segment's flags.
std::string flag_letters(std::uint8_t flags);

}  // namespace scripts
