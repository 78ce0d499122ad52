// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/handshake/kernel_connections.h"

#include "libvma/tcp/timers/time.h"

namespace vma::tcp {
namespace {

constexpr Nsec kRemember = kSecond;
constexpr unsigned kAskPerSecond = 8;  // of each of the 256 places

}  // namespace

KernelConnections::Answer KernelConnections::has(const ring::RxBuffer& segment, Time now) noexcept {
    const net::Endpoints ends{{segment.dst_addr, segment.dst_port}, {segment.src_addr, segment.src_port}};
    const std::uint64_t hash =
        (std::uint64_t{ends.remote.address.v4()} << 32 | std::uint64_t{ends.remote.port} << 16) ^
        ends.local.address.v4();
    Entry& entry = known_[hash * 0x9e3779b97f4a7c15u >> 56];
    lock_.lock();
    const bool same = entry.ends.remote.address.v4() == ends.remote.address.v4() &&
                      entry.ends.remote.port == ends.remote.port &&
                      entry.ends.local.address.v4() == ends.local.address.v4() && entry.until != kNoTime;
    if (same && now < entry.until) {
        lock_.unlock();
        return Answer::yes;
    }
    const std::uint64_t second = now.time_since_epoch() / kSecond;
    if (second != entry.second) entry.second = second, entry.asked = 0;
    // One that was the kernel's a moment ago is asked about whatever comes from strangers.
    const bool ask = same || entry.asked < kAskPerSecond;
    if (ask && !same) entry.asked++;
    bool found = false;
    if (ask) {
        found = kernel_.has(ends, segment.ring->attr().ifindex);
        if (found)
            entry.ends = ends, entry.until = now + kRemember;
        else if (same)
            entry.until = kNoTime;
    }
    lock_.unlock();
    return !ask ? Answer::too_many : found ? Answer::yes : Answer::no;
}

}  // namespace vma::tcp
