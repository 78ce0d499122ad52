// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/handshake/kernel_connections.h"

#include <algorithm>
#include <span>

#include "libvma/tcp/handshake/isn.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {
namespace {

constexpr Nsec kRemember = kSecond;
constexpr unsigned kAskPerSecond = 8;          // of each of the 256 places
constexpr std::size_t kMostKnown = 64u << 10;  // the kernel's own limits come first

}  // namespace

std::size_t KernelConnections::Hash::operator()(const Key& key) const noexcept {
    static_assert(sizeof(Key) == 12, "no padding that would be hashed");
    return static_cast<std::size_t>(keyed_hash(std::as_bytes(std::span(&key, 1))));
}

KernelConnections::Answer KernelConnections::has(const ring::RxBuffer& segment, Time now,
                                                 Sender sender) noexcept {
    const Key key{segment.src_addr, segment.dst_addr, segment.src_port, segment.dst_port};
    const net::Endpoints ends{{segment.dst_addr, segment.dst_port}, {segment.src_addr, segment.src_port}};
    lock_.lock();
    const auto at = known_.find(key);
    const bool known = at != known_.end();
    Answer answer = Answer::yes;
    // One that was the kernel's a moment ago is asked about whatever comes from strangers.
    if (!known && !may_ask(sender == Sender::proven ? proven_ : strangers_, Hash()(key), now)) {
        answer = Answer::too_many;
    } else if (!known || now >= at->second) {
        if (!kernel_.has(ends, segment.ring->attr().ifindex)) {
            answer = Answer::no;
            if (known) known_.erase(at);
        } else if (known) {
            at->second = now + kRemember;
        } else {
            remember(key, now);
        }
    }
    lock_.unlock();
    return answer;
}

bool KernelConnections::may_ask(Asking& asking, std::size_t hash, Time now) noexcept {
    Asked& place = asking[hash % asking.size()];
    const std::uint64_t second = now.time_since_epoch() / kSecond;
    if (second != place.second) place = {second, 0};
    return place.questions < kAskPerSecond && ++place.questions != 0;
}

// Without memory, or room, the kernel is asked again.
void KernelConnections::remember(const Key& key, Time now) noexcept {
    if (known_.size() >= sweep_at_) {
        std::erase_if(known_, [now](const auto& entry) { return entry.second <= now; });
        sweep_at_ = std::max(sweep_at_, std::min(2 * known_.size(), kMostKnown));
        if (known_.size() >= sweep_at_) return;
    }
    try {
        known_.emplace(key, now + kRemember);
    } catch (...) {
    }
}

}  // namespace vma::tcp
