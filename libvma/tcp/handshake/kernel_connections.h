// SPDX-License-Identifier: BSD-2-Clause
// Connections that the kernel has behind a port of ours: those that were moved, and all others where the
// device leaves their segments to the library (attr().coarse_steering).
//
// Asking costs two system calls. So a yes is remembered for a second: should the connection have ended
// meanwhile, the kernel knows what to answer. The kernel is asked about strangers' segments some thousand
// times a second at most. Any thread may ask.
#pragma once

#include <array>
#include <cstdint>

#include "libvma/net/kernel_tcp.h"
#include "libvma/ring/ring.h"
#include "libvma/runtime/lock.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {

class KernelConnections {
  public:
    enum class Answer { no, yes, too_many };
    // Whether `segment` belongs to such a connection; too_many: the kernel was not asked.
    Answer has(const ring::RxBuffer& segment, Time now) noexcept;

  private:
    struct Entry {
        net::Endpoints ends{};
        Time until;
        std::uint64_t second = 0;  // in which asked questions were asked
        unsigned asked = 0;
    };
    std::array<Entry, 256> known_{};
    Lock lock_;  // several rings have the listener's port
    net::KernelTcp kernel_;
};

}  // namespace vma::tcp
