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
    tail_room_ = size;
    return true;
}

std::size_t SendQueue::append(const iovec* iov, std::size_t length, bool whole) noexcept {
    const std::uint32_t mss = tcb_.shown.mss();
    IovReader reader(iov);
    std::size_t done = 0;
    while (done < length) {
        std::uint32_t room =
            tail_ != nullptr && tail_->size() < mss ? std::min(tail_room_, mss - tail_->size()) : 0;
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
        tail_room_ = 0;
    }
    if (unacked_last_ == seg) unacked_last_ = rest;
    if (sent) tcb_.recovery.split_sent(seg, rest);
    return true;
}

void SendQueue::resegment() noexcept {
    const std::uint32_t mss = tcb_.shown.mss();
    for (lwip::Segment* list : {tcb_.pcb->unacked(), tcb_.pcb->unsent()})
        for (lwip::Segment* seg = list; seg != nullptr; seg = seg->next())
            if (seg->size() > mss && !split(seg, mss)) return;
    if (tcb_.pcb->unacked() != nullptr) tcb_.recovery.all_lost();
}

}  // namespace vma::tcp
