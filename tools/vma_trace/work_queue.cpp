// SPDX-License-Identifier: BSD-2-Clause
// See work_queue.h.
#include "tools/vma_trace/work_queue.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <mutex>
#include <new>

#include "tools/common/sums.h"

namespace vma_trace {
namespace {

constexpr std::uint64_t Totals::*kCounters[] = {&Totals::posted,   &Totals::completed, &Totals::completions,
                                                &Totals::bytes,    &Totals::errors,    &Totals::unmatched,
                                                &Totals::forgotten};

}  // namespace

void Totals::merge(const Totals& other) noexcept {
    tools::add_members(*this, other, kCounters);
    if (other.began != 0 && (began == 0 || other.began < began)) began = other.began;
    ended = std::max(ended, other.ended);
    latency.merge(other.latency);
    gap.merge(other.gap);
    hardware_gap.merge(other.hardware_gap);
}

WorkQueue::Ptr WorkQueue::create(Side side, std::size_t outstanding, std::size_t records) noexcept {
    constexpr std::size_t kMost = std::size_t{1} << 24;
    const std::size_t requests = std::bit_ceil(std::clamp<std::size_t>(outstanding, 2, kMost));
    const std::size_t kept = records == 0 ? 0 : std::bit_ceil(std::min(records, kMost));
    const std::size_t first = (sizeof(WorkQueue) + 63) / 64 * 64;
    const std::size_t second = first + requests * sizeof(Request);
    const std::size_t length = second + kept * sizeof(Record);
    // The pages that are never needed are never there.
    void* memory =
        mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    auto* queue = new (memory) WorkQueue;
    queue->side_ = side;
    queue->mapped_ = length;
    queue->requests_ = reinterpret_cast<Request*>(static_cast<char*>(memory) + first);
    queue->request_mask_ = requests - 1;
    if (kept != 0) {
        queue->records_ = reinterpret_cast<Record*>(static_cast<char*>(memory) + second);
        queue->record_mask_ = kept - 1;
    }
    return Ptr(queue);
}

void WorkQueue::Deleter::operator()(WorkQueue* queue) const noexcept {
    const std::size_t length = queue->mapped_;
    queue->~WorkQueue();
    munmap(queue, length);
}

void WorkQueue::prepare(std::uint64_t wr_id, std::uint32_t bytes, std::uint8_t opcode,
                        bool signalled) noexcept {
    prepared_++;
    const std::uint64_t at = tail_.load(std::memory_order_relaxed) + prepared_kept_;
    if (at - head_.load(std::memory_order_acquire) > request_mask_) make_room();
    last_kept_ = at - head_.load(std::memory_order_acquire) <= request_mask_;
    if (!last_kept_) {
        add_shared(totals_.forgotten, 1);
        return;
    }
    slot(at) = {wr_id, 0, bytes, opcode, signalled, false};
    prepared_kept_++;
}

void WorkQueue::make_room() noexcept {
    const std::lock_guard lock(complete_lock_);
    const std::uint64_t head = head_.load(std::memory_order_relaxed);
    const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
    const std::uint64_t from = std::min(tail, head + (request_mask_ + 1) / 2);
    for (std::uint64_t i = head; i < from; i++)
        if (!slot(i).done) add_shared(totals_.forgotten, 1);
    head_.store(from, std::memory_order_release);
}

void WorkQueue::publish(std::uint64_t now) noexcept {
    const std::uint64_t tail = tail_.load(std::memory_order_relaxed);
    for (std::size_t i = 0; i < prepared_kept_; i++) slot(tail + i).posted = now;
    if (totals_.began == 0) store(totals_.began, now);
    add(totals_.posted, prepared_);
    tail_.store(tail + prepared_kept_, std::memory_order_release);
    published_ = prepared_;
    published_kept_ = prepared_kept_;
    discard();
}

void WorkQueue::retract(std::size_t kept) noexcept {
    if (kept >= published_) return;
    store(totals_.posted, load(totals_.posted) - (published_ - kept));
    if (kept < published_kept_) {
        const std::lock_guard lock(complete_lock_);
        const std::uint64_t tail = tail_.load(std::memory_order_relaxed) - (published_kept_ - kept);
        tail_.store(std::max(tail, head_.load(std::memory_order_relaxed)), std::memory_order_release);
        published_kept_ = kept;
    }
    published_ = kept;
}

std::uint64_t WorkQueue::find(const Completion& completion, std::uint64_t head, std::uint64_t tail) noexcept {
    if (side_ == Side::send && completion.status == IBV_WC_SUCCESS) {
        // In all but odd cases the first signalled request is the one.
        for (std::uint64_t i = head; i < tail; i++) {
            const Request& request = slot(i);
            if (request.signalled && request.wr_id == completion.wr_id) return i;
        }
    }
    for (std::uint64_t i = head; i < tail; i++) {
        const Request& request = slot(i);
        if (!request.done && request.wr_id == completion.wr_id) return i;
    }
    return kNone;
}

bool WorkQueue::complete(const Completion& completion, std::uint64_t now, bool count_unmatched) noexcept {
    const std::lock_guard lock(complete_lock_);
    std::uint64_t head = head_.load(std::memory_order_relaxed);
    const std::uint64_t tail = tail_.load(std::memory_order_acquire);
    const std::uint64_t at = find(completion, head, tail);
    if (at == kNone && !count_unmatched) return false;

    const bool good = completion.status == IBV_WC_SUCCESS;
    const std::uint64_t gap = gap_until(now);
    const std::uint64_t by_device = completion.has_hardware_time ? hardware_gap(completion.hardware_time) : 0;
    if (!good) add(totals_.errors, 1);
    if (at == kNone) {
        add(totals_.unmatched, 1);
        return false;
    }
    add(totals_.completions, 1);
    if (side_ == Side::send) {
        // Those before it, without a completion of their own, are done as well, and well.
        for (; head != at; head++) finish(slot(head), now, 0, 0, slot(head).bytes, IBV_WC_SUCCESS, false);
        finish(slot(at), now, gap, by_device, good ? slot(at).bytes : 0, completion.status, true);
        head = at + 1;
    } else {
        finish(slot(at), now, gap, by_device, good ? completion.bytes : 0, completion.status, true);
        slot(at).done = true;
        head = after_done(head);
    }
    head_.store(head, std::memory_order_release);
    return true;
}

std::uint64_t WorkQueue::hardware_gap(std::uint64_t time) noexcept {
    const std::uint64_t gap = time - last_hardware_time_;
    const bool known = have_hardware_time_;
    if (known) totals_.hardware_gap.put(gap);
    last_hardware_time_ = time;
    have_hardware_time_ = true;
    return known ? gap : 0;
}

std::uint64_t WorkQueue::after_done(std::uint64_t head) noexcept {
    const std::uint64_t tail = tail_.load(std::memory_order_acquire);
    while (head != tail && slot(head).done) head++;
    return head;
}

void WorkQueue::forget_outstanding() noexcept {
    const std::lock_guard lock(complete_lock_);
    const std::uint64_t tail = tail_.load(std::memory_order_acquire);
    for (std::uint64_t i = head_.load(std::memory_order_relaxed); i < tail; i++)
        if (!slot(i).done) add_shared(totals_.forgotten, 1);
    head_.store(tail, std::memory_order_release);
}

std::size_t WorkQueue::outstanding() const noexcept {
    const std::uint64_t tail = tail_.load(std::memory_order_acquire);
    std::size_t n = 0;
    for (std::uint64_t i = head_.load(std::memory_order_relaxed); i < tail; i++)
        if (!requests_[i & request_mask_].done) n++;
    return n;
}

}  // namespace vma_trace
