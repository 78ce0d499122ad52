// SPDX-License-Identifier: BSD-2-Clause
// Statistics files made by hand, after libvma/stats/layout.h alone: what a library would write, and what it
// never would.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "libvma/stats/layout.h"

namespace stats_image {

namespace layout = vma::stats;

struct Image {
    layout::Header header{};
    std::vector<layout::SocketBlock> sockets;
    std::vector<layout::RingBlock> rings;
    std::vector<layout::PoolBlock> pools;
    std::vector<layout::MuxBlock> muxes;
    std::vector<layout::GroupBlock> groups;
    std::vector<layout::ParameterBlock> parameters;
    std::vector<layout::TotalsBlock> totals;
    // Bytes by which each block is longer than this version's, filled with 0xa5; negative: shorter.
    int longer = 0;

    // The file. Sizes, offsets and sections of the header are filled in; all else stays as it is.
    std::vector<std::byte> bytes() const;
};

// An empty image of a process that runs.
Image empty(pid_t pid, std::uint64_t start_ticks, const std::string& program = "program");

// One with traffic of all kinds, with numbers that differ from each other: sockets 14 (UDP, offloaded), 15
// (TCP listener), 16 (TCP, established), 17 (UDP, sends through the kernel by a rule), a ring, its pools,
// select() and an epoll set, two groups.
Image sample(pid_t pid, std::uint64_t start_ticks);

// Of a running process, as /proc has it.
std::uint64_t start_ticks(pid_t pid);

// Writes as the library does: under another name, then renamed. The path.
std::string write(const std::string& directory, const Image& image, unsigned mode = 0600);
// Writes over the file that is there.
void update(const std::string& directory, const Image& image);
void write_bytes(const std::string& path, const std::vector<std::byte>& bytes, unsigned mode = 0600);

layout::Address address(const char* text, std::uint16_t port);

template <std::size_t N>
void set_text(char (&field)[N], const std::string& text) {
    for (std::size_t i = 0; i < N; i++) field[i] = i < text.size() ? text[i] : '\0';
}

}  // namespace stats_image
