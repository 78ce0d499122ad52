// SPDX-License-Identifier: BSD-2-Clause
// Two network namespaces joined by a veth pair. They have no names, so they end with the last process in
// them, even if this program is killed.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tools/common/fd.h"

namespace vma_perf {

class Arena {
  public:
    // Throws Failure: kUnsupported where namespaces cannot be made.
    Arena();
    ~Arena() { end_holders(); }
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;

    enum Side : int { client = 0, server = 1 };
    int netns(Side side) const noexcept { return hosts_[side].netns.get(); }
    static const char* address(Side side) noexcept { return side == client ? "198.18.77.1" : "198.18.77.2"; }
    // Datagrams and TCP segments that the kernel has received and sent there so far.
    std::uint64_t kernel_packets(Side side, bool tcp) const;
    // Waits until no XDP program is attached: the kernel removes a process's program a moment after the
    // process. Gives up after three seconds.
    void wait_until_free() const;

  private:
    struct Host {
        pid_t holder = -1;  // a process that sleeps in the namespace
        tools::Fd netns;
    };
    void make_host(Host& host) const;
    void end_holders() noexcept;
    void ip(Side side, std::vector<std::string> arguments) const;
    std::string ip_output(Side side, std::vector<std::string> arguments) const;

    std::array<Host, 2> hosts_;
};

}  // namespace vma_perf
