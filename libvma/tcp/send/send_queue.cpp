// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/send/send_queue.h"

#include <errno.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "libvma/tcp/connection.h"
#include "libvma/tcp/recovery/segments.h"
#include "libvma/tcp/send/segment.h"
#include "libvma/tcp/sequence.h"
#include "libvma/tcp/tcb_inline.h"

namespace vma::tcp {
namespace {

constexpr std::uint32_t kMaxSegments = 60'000;  // lwIP counts pbufs in 16 bits
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
    tcb_.pcb->unacked = unacked_last_ = std::exchange(tcb_.pcb->unsent, nullptr);
}

tcp_seg* SendQueue::new_segment(std::uint32_t room) noexcept {
    pbuf* p = pbuf_alloc(PBUF_RAW, static_cast<u16_t>(sizeof(net::TcpHeader) + room), PBUF_RAM);
    if (p == nullptr) return nullptr;
    auto* seg = static_cast<tcp_seg*>(memp_malloc(MEMP_TCP_SEG));
    if (seg == nullptr) {
        pbuf_free(p);
        return nullptr;
    }
    seg->next = nullptr;
    seg->p = p;
    seg->len = 0;
    seg->flags = 0;
    seg->tcphdr = static_cast<tcp_hdr*>(p->payload);
    p->len = p->tot_len = sizeof(net::TcpHeader);
    seg->tcphdr->src = tcb_.ends.local_port;
    seg->tcphdr->dest = tcb_.ends.remote_port;
    TCPH_HDRLEN_FLAGS_SET(seg->tcphdr, 5, TCP_ACK);
    seg->tcphdr->urgp = 0;
    return seg;
}

// Puts an empty segment with room for `size` bytes at the end.
bool SendQueue::add_segment(std::uint32_t size) noexcept {
    tcp_pcb* const pcb = tcb_.pcb;
    if (pcb->snd_queuelen >= kMaxSegments) return false;
    tcp_seg* seg = new_segment(size);
    if (seg == nullptr) return false;
    seg->tcphdr->seqno = htonl(pcb->snd_lbb);
    if (pcb->unsent == nullptr) {
        pcb->unsent = seg;
    } else {
        tcp_seg* last = tail_;
        if (last == nullptr)
            for (last = pcb->unsent; last->next != nullptr; last = last->next) {
            }
        last->next = seg;
    }
    pcb->snd_queuelen++;
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
            tail_ != nullptr && tail_->len < mss ? std::min(tail_room_, mss - tail_->len) : 0;
        if (room == 0) {
            room = whole || length - done > kSmallBlock ? mss : std::min(kSmallBlock, mss);
            if (!add_segment(room)) break;
        }
        const std::size_t n = std::min<std::size_t>(room, length - done);
        reader.copy(data_of(tail_) + tail_->len, n);
        tail_->len = static_cast<u16_t>(tail_->len + n);
        tail_->p->len = tail_->p->tot_len = static_cast<u16_t>(tail_->p->len + n);
        tail_room_ -= static_cast<std::uint32_t>(n);
        tcb_.pcb->snd_lbb += static_cast<std::uint32_t>(n);
        done += n;
    }
    data_end_ = tcb_.pcb->snd_lbb;
    return done;
}

bool SendQueue::split(tcp_seg* seg, std::uint32_t length) noexcept {
    tcp_pcb* const pcb = tcb_.pcb;
    const bool sent = seq_before(seq_of(seg), pcb->snd_nxt);
    tcp_seg* rest = new_segment(seg->len - length);
    if (rest == nullptr) return false;
    rest->len = static_cast<u16_t>(seg->len - length);
    rest->p->len = rest->p->tot_len = static_cast<u16_t>(sizeof(net::TcpHeader) + rest->len);
    std::memcpy(data_of(rest), data_of(seg) + length, rest->len);
    rest->tcphdr->seqno = htonl(seq_of(seg) + length);
    rest->flags = seg->flags;
    SegmentAccess::set_sent_us(rest, SegmentAccess::sent_us(seg));
    if (TCPH_FLAGS(seg->tcphdr) & TCP_FIN) {
        TCPH_SET_FLAG(rest->tcphdr, TCP_FIN);
        TCPH_FLAGS_SET(seg->tcphdr, TCPH_FLAGS(seg->tcphdr) & ~TCP_FIN);
    }
    seg->len = static_cast<u16_t>(length);
    seg->p->len = seg->p->tot_len = static_cast<u16_t>(sizeof(net::TcpHeader) + length);
    rest->next = seg->next;
    seg->next = rest;
    pcb->snd_queuelen++;
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
    for (tcp_seg* list : {tcb_.pcb->unacked, tcb_.pcb->unsent})
        for (tcp_seg* seg = list; seg != nullptr; seg = seg->next)
            if (seg->len > mss && !split(seg, mss)) return;
    if (tcb_.pcb->unacked != nullptr) tcb_.recovery.all_lost();
}

}  // namespace vma::tcp
