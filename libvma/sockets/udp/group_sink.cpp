// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/udp/group_sink.h"

namespace vma::sockets {

bool GroupSink::deliver(ring::RxBuffer* b) noexcept {
    counters_.frames++;
    GroupReceiver* first = nullptr;
    bool shared = false;
    for (const Entry& entry : entries_) {
        if (!entry.takes(*b)) continue;
        if (first == nullptr) {
            first = entry.receiver;
            continue;
        }
        if (!shared) {
            shared = true;
            ring::RxShares::begin(b);
            give(*first, b);
        }
        give(*entry.receiver, b);
    }
    if (shared) {
        ring::RxShares::end(b);
        return true;
    }
    if (first == nullptr) {
        counters_.filtered++;
        return false;
    }
    if (first->deliver_group(b)) return true;
    counters_.dropped++;
    return false;
}

void GroupSink::give(GroupReceiver& to, ring::RxBuffer* frame) noexcept {
    ring::RxBuffer* mine = frame->ring->shares().share(frame);
    if (mine != nullptr && to.deliver_group(mine)) return;
    counters_.dropped++;
    if (mine != nullptr) mine->release();
}

}  // namespace vma::sockets
