// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/send/send_queue.h"

#include <errno.h>

#include <algorithm>
#include <cstring>

#include "libvma/tcp/connection.h"
#include "libvma/tcp/sequence.h"
#include "libvma/tcp/tcb_inline.h"

namespace vma::tcp {
namespace {

constexpr std::uint32_t kMaxSegments = 60'000;  // lwIP counts them in 16 bits
constexpr std::uint32_t kSmallBlock = 448;      // room of a segment for a lone short write

// Copies to segments what the iovecs of one write hold.
class IovReader {
  public:
    explicit IovReader(const iovec* iov) noexcept : iov_(iov) {}
    void copy(std::uint8_t* out, std::size_t length) noexcept {
        for (std::size_t put = 0; put < length;) {
            while (at_ == iov_->iov_len) iov_++, at_ = 0;
            const std::size_t piece = std::min(length - put, iov_->iov_len - at_);
            std::memcpy(out + put, static_cast<const std::uint8_t*>(iov_->iov_base) + at_, piece);
            put += piece;
            at_ += piece;
        }
    }

  private:
    const iovec* iov_;
    std::size_t at_ = 0;
};

}  // namespace

void SendQueue::adopt_syn_ack() noexcept {
    unacked_last_ = tcb_.pcb->unsent();
    tcb_.pcb->set_unacked(unacked_last_);
    tcb_.pcb->set_unsent(nullptr);
}

// Puts an empty segment with room for `size` bytes at the end.
bool SendQueue::add_segment(std::uint32_t size) noexcept {
    lwip::Pcb* const pcb = tcb_.pcb;
    if (pcb->segments() >= kMaxSegments) return false;
    auto* seg = lwip::Segment::make(size, pcb->queue_end(), tcb_.ends.local.port, tcb_.ends.remote.port);
    if (seg == nullptr) return false;
    add(seg, size);
    return true;
}

// The same with a long segment, for at most `longest` bytes of whole frames.
bool SendQueue::add_long_segment(bool large, std::uint32_t longest) noexcept {
    lwip::Pcb* const pcb = tcb_.pcb;
    if (pcb->segments() >= kMaxSegments) return false;
    const std::uint32_t mss = tcb_.shown.mss();
    std::uint32_t room = std::min(longest, large ? lwip::SendBlock::kLarge : lwip::SendBlock::kSmall);
    room -= room % mss;
    if (room < 2 * mss) return false;
    lwip::SendBlock* block = lwip::SendBlock::make(large);
    if (block == nullptr) return false;
    auto* seg = lwip::Segment::make_long(block, block->data(), pcb->queue_end(), tcb_.ends.local.port,
                                         tcb_.ends.remote.port);
    block->unref();
    if (seg == nullptr) return false;
    add(seg, room);
    return true;
}

void SendQueue::add(lwip::Segment* seg, std::uint32_t room) noexcept {
    lwip::Pcb* const pcb = tcb_.pcb;
    if (pcb->unsent() == nullptr) {
        pcb->set_unsent(seg);
    } else {
        lwip::Segment* last = tail_;
        if (last == nullptr)
            for (last = pcb->unsent(); last->next() != nullptr; last = last->next()) {
            }
        last->set_next(seg);
    }
    pcb->count_segment();
    tail_ = seg;
    tail_room_ = room;
}

std::size_t SendQueue::append(const iovec* iov, std::size_t length, bool whole,
                              std::uint32_t longest) noexcept {
    const std::uint32_t mss = tcb_.shown.mss();
    IovReader reader(iov);
    std::size_t done = 0;
    while (done < length) {
        std::uint32_t room = 0;
        if (tail_ != nullptr && tail_->is_long())
            room = tail_room_;
        else if (tail_ != nullptr && tail_->size() < mss)
            room = std::min(tail_room_, mss - tail_->size());
        if (room == 0 && longest != 0 && (length >= kVeryLongWrite || length - done >= kLongWrite) &&
            add_long_segment(length >= kVeryLongWrite, longest))
            room = tail_room_;
        if (room == 0) {
            room = whole || length - done > kSmallBlock ? mss : std::min(kSmallBlock, mss);
            if (!add_segment(room)) break;
        }
        const std::size_t n = std::min<std::size_t>(room, length - done);
        const auto bytes = static_cast<std::uint32_t>(n);
        reader.copy(tail_->data() + tail_->size(), n);
        tail_->grow(bytes);
        tail_room_ -= bytes;
        tcb_.pcb->set_queue_end(tcb_.pcb->queue_end() + bytes);
        done += n;
    }
    data_end_ = tcb_.pcb->queue_end();
    return done;
}

bool SendQueue::split(lwip::Segment* seg, std::uint32_t length) noexcept {
    lwip::Pcb* const pcb = tcb_.pcb;
    const bool sent = seq_before(seg->seq(), pcb->snd_nxt());
    lwip::Segment* rest = seg->split(length);
    if (rest == nullptr) return false;
    pcb->count_segment();
    if (tail_ == seg) {
        tail_ = rest;
        if (!rest->is_long()) tail_room_ = 0;  // the block of a long one goes on behind it
    }
    if (unacked_last_ == seg) unacked_last_ = rest;
    if (sent) tcb_.recovery.split_sent(seg, rest);
    return true;
}

bool SendQueue::tail_takes_more() const noexcept {
    return tail_ != nullptr && tail_->is_long() && tail_room_ >= tcb_.shown.mss();
}

bool SendQueue::cut_from(lwip::Segment* segment, std::uint32_t mss) noexcept {
    for (; segment != nullptr; segment = segment->next())
        if (segment->size() > mss && !split(segment, mss)) return false;
    first_long_ = nullptr;
    return true;
}

void SendQueue::cut_sent() noexcept {
    if (first_long_ != nullptr) cut_from(first_long_, tcb_.shown.mss());
}

void SendQueue::resegment() noexcept {
    const std::uint32_t mss = tcb_.shown.mss();
    if (!cut_from(tcb_.pcb->unacked(), mss)) return;
    if (tcb_.pcb->unacked() != nullptr) tcb_.recovery.all_lost();
}

}  // namespace vma::tcp
