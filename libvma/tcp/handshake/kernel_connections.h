// SPDX-License-Identifier: BSD-2-Clause
// Connections that the kernel has behind a port of ours: those that were moved, and all others where the
// device leaves their segments to the library (attr().coarse_steering).
//
// Asking costs two system calls. So a yes is remembered for a second: should the connection have ended
// meanwhile, the kernel knows what to answer. The kernel is asked about strangers' segments some thousand
// times a second at most, and about each connection that it had before once a second. Who has answered a
// cookie is no stranger: its questions are counted apart, and a flood does not use them up. Any thread may
// ask.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "libvma/net/kernel_tcp.h"
#include "libvma/ring/ring.h"
#include "libvma/runtime/lock.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {

class KernelConnections {
  public:
    enum class Answer { no, yes, too_many };
    enum class Sender { stranger, proven };  // proven: it has heard from this listener under its address
    // Whether `segment` belongs to such a connection; too_many: the kernel was not asked.
    Answer has(const ring::RxBuffer& segment, Time now, Sender sender = Sender::stranger) noexcept;

  private:
    struct Key {
        in_addr_t remote, local;
        in_port_t remote_port, local_port;
        friend bool operator==(const Key&, const Key&) = default;
    };
    struct Hash {  // keyed: a stranger does not choose whose questions its segments use up
        std::size_t operator()(const Key& key) const noexcept;
    };
    struct Asked {
        std::uint64_t second = 0;
        unsigned questions = 0;  // in it
    };
    using Asking = std::array<Asked, 256>;
    static bool may_ask(Asking& asking, std::size_t hash, Time now) noexcept;
    void remember(const Key& key, Time now) noexcept;

    std::unordered_map<Key, Time, Hash> known_;  // until when: connections that the kernel had
    std::size_t sweep_at_ = 256;                 // entries, at which those that are over go
    Asking strangers_{}, proven_{};              // questions about their segments
    Lock lock_;                                  // several rings have the listener's port
    net::KernelTcp kernel_;
};

}  // namespace vma::tcp
