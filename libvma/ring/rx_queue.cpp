// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/ring/rx_queue.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>

#include "libvma/ring/ring.h"
#include "libvma/runtime/log.h"

namespace vma::ring {
namespace {

constexpr std::uint32_t kSlack = 64;                           // receives beyond what the sockets expect
constexpr std::uint32_t kBusyStreams = 16, kStreamBurst = 64;  // connections that count; frames of each

// A copy's block: its descriptor, then the frame with its headers, since give_back() sends the whole.
std::size_t copy_size(const RxBuffer& frame) noexcept {
    const std::size_t bytes = std::size_t{frame.payload_offset} + frame.payload_length;
    return sizeof(RxBuffer) + (bytes + alignof(RxBuffer) - 1) / alignof(RxBuffer) * alignof(RxBuffer);
}

}  // namespace

void RxQueue::open(Ring& ring, ibv_qp* qp, PacketMemory& memory, std::uint32_t max_depth, std::uint32_t hint,
                   std::uint32_t reserve, const RingConfig& config) {
    posting_.qp = qp;
    buffers_ = memory.rx_buffers();
    posting_.base = reinterpret_cast<std::uintptr_t>(memory.rx_base());
    posting_.chunk_size = memory.chunk_size();
    posting_.lkey = memory.lkey();
    max_copied_ = config.max_copied;
    max_depth_ = max_depth;
    depth_ = hint != 0 ? std::min(hint, max_depth_) : max_depth_;
    // A batch may not exceed what can be missing from the queue before that counts as a shortage.
    post_batch_ = std::clamp(config.post_batch, 1u, std::max(low_water(), 1u));
    posting_.requests.resize(post_batch_);
    posting_.pieces.resize(post_batch_);
    for (RxBuffer& b : buffers_) b.ring = &ring;
    free_.reserve(total());
    for (std::uint32_t i = total(); i-- > 0;) free_.push_back(i);
    // Together, sockets with unread datagrams leave half of the buffers to all others, and one alone most of
    // that half, too.
    const std::uint32_t own = total() - std::min(reserve, total());
    plenty_ = total() - own / 2;
    scarce_ = total() - own / 4 * 3;
    hold_limit_ = own / 8;
    post_free(true);
}

void RxQueue::take_returned() noexcept {
    if (returned_.load(std::memory_order_relaxed) == nullptr) return;
    RxBuffer* list = returned_.exchange(nullptr, std::memory_order_acquire);
    std::uint32_t loans = 0;
    while (list != nullptr) {
        RxBuffer* next = list->next;
        loans += list->lent;
        list->lent = false;
        free_one(list);
        list = next;
    }
    if (loans != 0) end_loan(loans);
}

bool RxQueue::still_short(std::uint32_t held) noexcept {
    take_returned();
    return held >= hold_limit_ || at_hand() < plenty_;
}

bool RxQueue::lend(std::uint32_t chunks) noexcept {
    const std::uint32_t before = lent_.fetch_add(chunks, std::memory_order_relaxed);
    if (__builtin_expect(before + chunks <= total() / kLentShare, 1)) return true;
    end_loan(chunks);
    log::once(log::Level::warn,
              "the program keeps packets of the extra API in a quarter of the buffers of {}: it gets copies "
              "until it gives packets back",
              buffers_[0].ring->attr().name);
    return false;
}

RxBuffer* RxQueue::copy_of(const RxBuffer& frame) noexcept {
    return copied_bytes() + copy_size(frame) > max_copied_ ? nullptr : make_copy(frame);
}

RxBuffer* RxQueue::make_copy(const RxBuffer& frame) noexcept {
    const std::size_t size = copy_size(frame);
    void* block = std::aligned_alloc(alignof(RxBuffer), size);
    if (block == nullptr) return nullptr;
    copied_bytes_.fetch_add(size, std::memory_order_relaxed);
    auto* copy = new (block) RxBuffer(frame);
    copy->kind = RxBuffer::Kind::copy;
    copy->next = copy->more = nullptr;
    copy->frame = static_cast<std::uint8_t*>(block) + sizeof(RxBuffer);
    copy->length = frame.payload_offset + frame.payload_length;
    std::memcpy(copy->frame, frame.frame, frame.payload_offset);
    iovec to{copy->frame + frame.payload_offset, frame.payload_length};
    frame.copy_to(&to, 1);
    return copy;
}

RxBuffer* RxQueue::swap_for_copy(RxBuffer* frame, std::uint64_t queued, std::uint32_t sinks,
                                 RxCounters& counters) noexcept {
    const std::size_t size = copy_size(*frame);
    if (copied_bytes() + size > max_copied_ && queued + size > max_copied_ / std::max(sinks, 1u))
        return nullptr;
    RxBuffer* copy = make_copy(*frame);
    if (copy == nullptr) return nullptr;
    if (frame->kind == RxBuffer::Kind::share)
        shares_.release(frame);
    else
        recycle(frame);
    counters.rx_copied++;
    return copy;
}

void RxQueue::free_copy(RxBuffer* copy) noexcept {
    static_assert(std::is_trivially_destructible_v<RxBuffer>);
    copied_bytes_.fetch_sub(copy_size(*copy), std::memory_order_relaxed);
    std::free(copy);
}

void RxQueue::refill(bool all) noexcept {
    take_returned();
    post_free(all);
}

// Looks at the numbers of the buffers only: their descriptors left the caches long ago.
void RxQueue::post_free(bool all) noexcept {
    if (__builtin_expect(suspended_, 0)) return;
    while (!free_.empty() && posted_ < depth_) {
        const auto left = static_cast<std::uint32_t>(free_.size());
        std::uint32_t wanted = std::min({post_batch_, depth_ - posted_, left});
        if (!all && wanted < post_batch_) break;
        for (std::uint32_t i = 0; i < wanted; i++) {
            const std::uint32_t index = free_[left - 1 - i];
            posting_.pieces[i] = {posting_.base + std::uintptr_t{index} * posting_.chunk_size,
                                  posting_.chunk_size, posting_.lkey};
            posting_.requests[i].wr_id = index;
            posting_.requests[i].sg_list = &posting_.pieces[i];
            posting_.requests[i].num_sge = 1;
            posting_.requests[i].next = i + 1 < wanted ? &posting_.requests[i + 1] : nullptr;
        }
        free_.resize(left - wanted);
        posted_ += wanted;
        ibv_recv_wr* bad = nullptr;
        if (ibv_post_recv(posting_.qp, posting_.requests.data(), &bad) != 0) {
            for (; bad != nullptr; bad = bad->next) {  // the queue is full: keep the rest
                free_.push_back(static_cast<std::uint32_t>(bad->wr_id));
                posted_--;
            }
            break;
        }
    }
}

// When polls keep finding full batches, the polling thread has fallen behind by a good part of the queue.
// Then the queue gets deeper for good.
void RxQueue::grow_if_behind(std::uint32_t batch) noexcept {
    full_batches_++;
    // In bulk a window of data at once is no sign of that.
    const std::uint32_t behind = bulk_posted_ != 0 ? depth_ : depth_ / 4;
    if (full_batches_ * std::size_t{batch} < behind || depth_ >= max_depth_) return;
    full_batches_ = 0;
    depth_ = std::min(depth_ * 4, max_depth_);
    refill(true);
}

void RxQueue::expect(std::int64_t delta) noexcept {
    expected_ = std::max<std::int64_t>(0, expected_ + delta);
    deepen();
}

void RxQueue::expect_stream(bool more) noexcept {
    streams_ += more ? 1 : -1u;
    if (more && streams_ <= kBusyStreams) deepen();
}

void RxQueue::post_for_others(std::uint32_t receives) noexcept {
    expected_ += receives;
    depth_ = std::min(depth_ + receives, max_depth_);
    refill(true);
}

void RxQueue::deepen() noexcept {
    const std::int64_t streams = std::min(streams_, kBusyStreams) * kStreamBurst + bulk_posted_;
    const std::int64_t all = expected_ + streams + kSlack;
    const auto wanted = static_cast<std::uint32_t>(std::min<std::int64_t>(max_depth_, all));
    if (wanted <= depth_) return;
    depth_ = wanted;
    refill(true);
}

void RxQueue::count(BufferCounts& out) noexcept {
    take_returned();
    out.rx_total = total();
    out.rx_posted = posted_;
    out.rx_free = static_cast<std::uint32_t>(free_.size());
}

void RxQueue::reclaim() noexcept {
    take_returned();
    const std::size_t known = free_.size();
    for (std::size_t i = 0; i < known; i++) buffers_[free_[i]].length = 1;
    for (RxBuffer& b : buffers_)
        if (b.length == 0) free_.push_back(static_cast<std::uint32_t>(&b - buffers_.data()));
    for (std::size_t i = 0; i < known; i++) buffers_[free_[i]].length = 0;
    posted_ = 0;
}

void RxQueue::resume() noexcept {
    suspended_ = false;
    post_free(true);
}

}  // namespace vma::ring
