// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/handshake/half_open.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <span>

#include "libvma/ring/ring.h"
#include "libvma/tcp/handshake/isn.h"
#include "libvma/tcp/lwip/memory.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {
namespace {

constexpr std::size_t kFirstBuckets = 256;
constexpr Nsec kLongestWait = 120 * kSecond;

bool same(const net::Endpoints& a, const net::Endpoints& b) noexcept {
    return a.remote.address.v4() == b.remote.address.v4() && a.remote.port == b.remote.port &&
           a.local.address.v4() == b.local.address.v4() && a.local.port == b.local.port;
}

}  // namespace

struct HalfOpenTable::Block {
    static constexpr std::size_t kEntries = (lwip::kLargestBlock - sizeof(void*)) / sizeof(HalfOpen);
    Block* next = nullptr;
    HalfOpen entries[kEntries];
};

HalfOpenTable::~HalfOpenTable() {
    while (Block* b = blocks_) {
        blocks_ = b->next;
        b->~Block();
        lwip::deallocate(b, sizeof(Block));
    }
    if (buckets_ != nullptr) lwip::deallocate(buckets_, buckets_count_ * sizeof *buckets_);
}

std::uint32_t HalfOpenTable::hash_of(const net::Endpoints& ends) noexcept {
    struct {
        std::uint32_t local_addr, remote_addr;
        std::uint16_t local_port, remote_port;
    } const input{ends.local.address.v4(), ends.remote.address.v4(), ends.local.port, ends.remote.port};
    static_assert(sizeof input == 12, "no padding that would be hashed");
    return static_cast<std::uint32_t>(keyed_hash(std::as_bytes(std::span(&input, 1))));
}

HalfOpen* HalfOpenTable::find(const net::Endpoints& ends) const noexcept {
    if (size_ == 0) return nullptr;
    const std::uint32_t hash = hash_of(ends);
    for (HalfOpen* e = buckets_[hash & (buckets_count_ - 1)]; e != nullptr; e = e->chain_)
        if (e->hash_ == hash && same(e->handshake.ends, ends)) return e;
    return nullptr;
}

// Room for one more, and buckets for twice as many when there are more entries than buckets.
bool HalfOpenTable::grow() noexcept {
    if (buckets_ != nullptr && size_ < buckets_count_) return true;
    const std::size_t count = buckets_ == nullptr ? kFirstBuckets : 2 * buckets_count_;
    auto* fresh = static_cast<HalfOpen**>(lwip::allocate(count * sizeof(HalfOpen*)));
    if (fresh == nullptr) return buckets_ != nullptr;  // longer chains, then
    std::fill_n(fresh, count, nullptr);
    for (std::size_t i = 0; i < buckets_count_; i++) {
        while (HalfOpen* e = buckets_[i]) {
            buckets_[i] = e->chain_;
            HalfOpen*& bucket = fresh[e->hash_ & (count - 1)];
            e->chain_ = bucket;
            bucket = e;
        }
    }
    if (buckets_ != nullptr) lwip::deallocate(buckets_, buckets_count_ * sizeof *buckets_);
    buckets_ = fresh;
    buckets_count_ = count;
    return true;
}

HalfOpen* HalfOpenTable::take() noexcept {
    if (free_ == nullptr) {
        void* memory = lwip::allocate(sizeof(Block));
        if (memory == nullptr) return nullptr;
        Block* block = new (memory) Block;
        block->next = blocks_;
        blocks_ = block;
        for (HalfOpen& e : block->entries) {
            e.chain_ = free_;
            free_ = &e;
        }
    }
    HalfOpen* e = free_;
    free_ = e->chain_;
    return new (e) HalfOpen;
}

HalfOpen* HalfOpenTable::add(const net::Endpoints& ends) noexcept {
    if (!grow()) return nullptr;
    HalfOpen* e = take();
    if (e == nullptr) return nullptr;
    e->handshake.ends = ends;
    e->hash_ = hash_of(ends);
    HalfOpen*& bucket = buckets_[e->hash_ & (buckets_count_ - 1)];
    e->chain_ = bucket;
    bucket = e;
    size_++;
    return e;
}

void HalfOpenTable::leave_queue(HalfOpen& e) noexcept {
    if (!e.queued_) return;
    Queue& q = queues_[e.queue_];
    (e.prev_ != nullptr ? e.prev_->next_ : q.first) = e.next_;
    (e.next_ != nullptr ? e.next_->prev_ : q.last) = e.prev_;
    e.next_ = e.prev_ = nullptr;
    e.queued_ = false;
    q.count--;
}

void HalfOpenTable::want_strays(HalfOpen& entry, ring::Ring& ring) noexcept {
    ring.strays().want(verbs::FlowSpec::of_tcp(entry.handshake.ends));
    entry.strays_by = &ring;
}

void HalfOpenTable::remove(HalfOpen& entry) noexcept {
    if (entry.strays_by != nullptr)
        entry.strays_by->strays().drop(verbs::FlowSpec::of_tcp(entry.handshake.ends));
    leave_queue(entry);
    HalfOpen** at = &buckets_[entry.hash_ & (buckets_count_ - 1)];
    while (*at != &entry) at = &(*at)->chain_;
    *at = entry.chain_;
    if (entry.opening) opening_--;
    size_--;
    entry.chain_ = free_;
    free_ = &entry;
}

void HalfOpenTable::wait(HalfOpen& e, Time now) noexcept {
    leave_queue(e);
    e.queue_ = static_cast<std::uint8_t>(std::min<unsigned>(e.timeouts, kQueues - 1));
    e.due_ = now + std::min(kSecond * (1u << e.queue_), kLongestWait);
    Queue& q = queues_[e.queue_];
    e.prev_ = q.last;
    (q.last != nullptr ? q.last->next_ : q.first) = &e;
    q.last = &e;
    e.queued_ = true;
    q.count++;
}

void HalfOpenTable::open(HalfOpen& e) noexcept {
    leave_queue(e);
    if (!e.opening) opening_++;
    e.opening = true;
}

void HalfOpenTable::close(HalfOpen& e, Time now) noexcept {
    if (e.opening) opening_--;
    e.opening = false;
    wait(e, now);
}

HalfOpen* HalfOpenTable::due(Time now) const noexcept {
    for (const Queue& q : queues_)
        if (q.first != nullptr && q.first->due_ <= now) return q.first;
    return nullptr;
}

Time HalfOpenTable::next_due() const noexcept {
    Time next;
    for (const Queue& q : queues_)
        if (q.first != nullptr && (next == kNoTime || q.first->due_ < next)) next = q.first->due_;
    return next;
}

}  // namespace vma::tcp
