// SPDX-License-Identifier: BSD-2-Clause
// A send queue's bursts: frames that wait for one another, and long segments.
#include <array>
#include <cstring>

#include "libvma/ring/frame_log.h"
#include "libvma/ring/tcp_headers.h"
#include "libvma/ring/tx_flusher.h"
#include "libvma/ring/tx_queue.h"
#include "libvma/runtime/log.h"
#include "libvma/stats/counter.h"

namespace vma::ring {

// The frames that waited for one another leave, or wait for the next call's. With lock_ held.
void TxQueue::gather_ended() noexcept {
    device_->gather(qp_, false);
    if (lazy_ && device_->tx_held(qp_) != 0) TxFlusher::instance().held();
}

int TxQueue::send_long_tcp(const std::uint8_t* headers, std::size_t header_length, const iovec& payload,
                           std::uint32_t mss) noexcept {
    alignas(8) std::array<std::uint8_t, 14 + 20 + 60> head;
    if (!tso_.in_place() || !tso_.available() || header_length > head.size()) return EINVAL;
    const auto length = static_cast<std::uint32_t>(payload.iov_len);
    std::memcpy(head.data(), headers, header_length);
    finish_tcp_headers(head.data(), header_length, length, 0, true);
    ibv_sge piece{reinterpret_cast<std::uintptr_t>(payload.iov_base), length, 0};
    ibv_send_wr wr{};
    wr.sg_list = &piece;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_TSO;
    wr.send_flags = IBV_SEND_IP_CSUM;
    wr.tso.hdr = head.data();
    wr.tso.hdr_sz = static_cast<std::uint16_t>(header_length);
    wr.tso.mss = static_cast<std::uint16_t>(mss);
    if (!lock()) return EBUSY;
    Hold hold(*this);
    if (tso_.waiting()) send_gathered();
    if (post_in_place(wr) != 0) {
        stats::add(counters_.tx_no_buffer, 1);
        return ENOBUFS;
    }
    if (__builtin_expect(log::enabled(log::Level::finer), 0))
        log_frame(device_->attr().name, "sends", {head.data(), header_length}, header_length + length,
                  net::Drop::none);
    const std::uint32_t segments = (length + mss - 1) / mss;
    stats::add(counters_.tx_frames, segments);
    stats::add(counters_.tx_bytes, length + std::uint64_t{segments} * header_length);
    hold.attend();
    return 0;
}

// Posts a request that takes no place in the queue. While the device has no room, it gets a little time.
int TxQueue::post_in_place(ibv_send_wr& wr) noexcept {
    int error = ENOMEM;
    for (int i = 0; i < 16 && error == ENOMEM; i++) {
        ibv_send_wr* bad = nullptr;
        error = ibv_post_send(qp_, &wr, &bad);
    }
    return error;
}

bool TxQueue::gather(int change, bool keeps) noexcept {
    if ((!lazy_ && !(keeps && tso_.available())) || lock_.owned_by_me()) return false;
    lock_.lock();
    Hold hold(*this);
    const int now = gathering_.load(std::memory_order_relaxed) + change;
    gathering_.store(now, std::memory_order_relaxed);
    const std::uint32_t me = thread_number();
    if (keeps && change > 0 && gatherer_.load(std::memory_order_relaxed) == 0)
        gatherer_.store(me, std::memory_order_relaxed);
    else if (keeps && change < 0 && gatherer_.load(std::memory_order_relaxed) == me) {
        if (tso_.waiting()) send_gathered();
        gatherer_.store(0, std::memory_order_relaxed);
    }
    if (now == (change > 0 ? 1 : 0)) {
        if (tso_.waiting()) send_gathered();
        change > 0 ? device_->gather(qp_, true) : gather_ended();
    }
    hold.attend();
    return true;
}

void TxQueue::hold(HeldSender* sender) noexcept {
    const bool first = held_.add(sender);
    in_burst_.store(true, std::memory_order_relaxed);
    if (first) TxFlusher::instance().held();
}

void TxQueue::kick_with_lock() noexcept {
    lock_.lock();
    device_->kick_again(qp_);
    lock_.unlock();
}

void TxQueue::flush_now() noexcept {
    if (lock_.owned_by_me()) return;  // a signal handler inside send_udp()
    if (!held_.empty()) held_.send_all();
    lock();
    in_burst_.store(false, std::memory_order_relaxed);
    device_->flush(qp_);
    lock_.unlock();
}

}  // namespace vma::ring
