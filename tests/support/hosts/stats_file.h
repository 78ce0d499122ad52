// SPDX-License-Identifier: BSD-2-Clause
// Reads a process's statistics file the way any tool would: by its header, with nothing but layout.h.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "libvma/stats/control.h"
#include "libvma/stats/layout.h"
#include "two_hosts.h"

namespace testing_support {

class StatsFile {
  public:
    explicit StatsFile(pid_t pid, std::string directory = vma::stats::kDefaultDirectory)
        : path_(directory + "/" + vma::stats::kFilePrefix + std::to_string(pid)) {}

    const std::string& path() const { return path_; }
    bool exists() const;
    // Takes a copy of the file; false when there is none or it is no statistics file.
    bool read();
    const vma::stats::Header& header() const;
    // Blocks of a section. Of kinds with a state: those in use, unless `all`.
    std::vector<vma::stats::SocketBlock> sockets() const;
    std::vector<vma::stats::RingBlock> rings() const;
    std::vector<vma::stats::MuxBlock> muxes() const;
    std::vector<vma::stats::GroupBlock> groups() const;
    std::vector<vma::stats::TotalsBlock> totals() const;
    // The socket with this local port and type, in use.
    std::optional<vma::stats::SocketBlock> socket(int type, int local_port) const;

  private:
    template <class Block>
    std::vector<Block> blocks(vma::stats::Section kind) const;
    std::string path_;
    std::vector<std::byte> bytes_;
};

// Sends a command to the process whose file this is, from its network namespace. The answer's error and text;
// error -1: none came.
vma::stats::Answer command(const TwoHosts& hosts, Host host, const StatsFile& file, vma::stats::Command what,
                           int value = 0, int level = 0);
// Has the process refresh its file, then reads it.
bool refresh(const TwoHosts& hosts, Host host, StatsFile& file);

}  // namespace testing_support
