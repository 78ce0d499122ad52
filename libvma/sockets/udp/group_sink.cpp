// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/udp/group_sink.h"

#include "libvma/stats/counter.h"

namespace vma::sockets {
namespace {

using Number = std::uint64_t stats::GroupCounters::*;

void count(const GroupSink::Entry& entry, Number what) noexcept {
    if (entry.counters == nullptr) return;
    stats::add(entry.counters->frames, 1);
    stats::add((*entry.counters).*what, 1);
}

bool deliver_to(const GroupSink::Entry& entry, ring::RxBuffer* mine) noexcept {
    const bool taken = entry.receiver->deliver_group(mine);
    count(entry, taken ? &stats::GroupCounters::delivered : &stats::GroupCounters::dropped);
    return taken;
}

// Gives the socket a descriptor of its own.
void share(const GroupSink::Entry& entry, ring::RxBuffer* frame) noexcept {
    ring::RxBuffer* mine = frame->ring->shares().share(frame);
    if (mine == nullptr)
        count(entry, &stats::GroupCounters::dropped);
    else if (!deliver_to(entry, mine))
        mine->release();
}

}  // namespace

bool GroupSink::deliver(ring::RxBuffer* b) noexcept {
    const Entry* first = nullptr;
    bool shared = false;
    for (const Entry& entry : entries_) {
        if (!entry.senders.include(b->src_addr, b->src_port)) {
            count(entry, &stats::GroupCounters::filtered);
            continue;
        }
        if (first == nullptr) {
            first = &entry;
            continue;
        }
        if (!shared) {
            shared = true;
            ring::RxShares::begin(b);
            share(*first, b);
        }
        share(entry, b);
    }
    if (shared) {
        ring::RxShares::end(b);
        return true;
    }
    return first != nullptr && deliver_to(*first, b);
}

}  // namespace vma::sockets
