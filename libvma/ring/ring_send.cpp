// SPDX-License-Identifier: BSD-2-Clause
// The send side of a ring: headers and payload become a frame in a registered buffer, and buffers come back
// with completions.
#include <algorithm>
#include <cstring>

#include "libvma/net/checksum.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/ring/ring.h"
#include "libvma/ring/tcp_headers.h"
#include "libvma/ring/tx_flusher.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/log.h"

namespace vma::ring {

std::uint32_t Ring::max_udp_payload() const noexcept {
    const verbs::DeviceAttr& attr = device_->attr();
    std::uint32_t room = tx_room_ * std::min(kMaxPieces, attr.max_send_sge);
    return std::min(attr.mtu, room - 14) - 28;
}

bool Ring::reap_tx() noexcept {
    ibv_wc wc[16];
    bool any = false;
    for (;;) {
        int n = ibv_poll_cq(send_cq_, 16, wc);
        if (n <= 0) break;
        any = true;
        for (int i = 0; i < n; i++) {
            if (__builtin_expect(wc[i].status == IBV_WC_SUCCESS, 1)) continue;
            if (wc[i].status != IBV_WC_WR_FLUSH_ERR) bump(tx_counters_.tx_error);
            bump(tx_counters_.tx_lost);
            note_error();
        }
        // wr_id is the running number of the request's last chunk: everything before it is done as well.
        std::uint64_t upto = wc[n - 1].wr_id;
        while (tx_reaped_ < upto) {
            const std::uint32_t chunk = tx_outstanding_[tx_reaped_++ & (tx_outstanding_.size() - 1)];
            if (chunk != kNoChunk) tx_free_.push_back(chunk);
        }
        if (n < 16) break;
    }
    return any;
}

// Are there `pieces` buffers, and a place in the queue for a request without one? Waits a little. With
// tx_lock_ held.
bool Ring::tx_room(std::uint32_t pieces) noexcept {
    auto enough = [&] {
        return tx_free_.size() >= pieces && tx_posted_ - tx_reaped_ + pieces <= tx_outstanding_.size();
    };
    // Completions exist only for what the kernel has seen, so what is held back goes first.
    for (int i = 0; !enough() && i < 16; i++)
        if (!reap_tx()) device_->flush(qp_);
    if (enough()) return true;
    bump(tx_counters_.tx_no_buffer);
    return false;
}

// The queue was full, perhaps: what is done makes room. False: the request's places in the queue are free
// again.
[[gnu::cold]] bool Ring::post_again(ibv_send_wr& wr, std::uint32_t pieces, int error) noexcept {
    ibv_send_wr* bad = nullptr;
    for (int i = 0; error == ENOMEM && i < 16; i++) {
        reap_tx();
        device_->flush(qp_);
        error = ibv_post_send(qp_, &wr, &bad);
    }
    if (error == 0) return true;
    for (std::uint32_t p = 0; p < pieces; p++) {
        const std::uint32_t chunk = tx_outstanding_[--tx_posted_ & (tx_outstanding_.size() - 1)];
        if (chunk != kNoChunk) tx_free_.push_back(chunk);
    }
    bump(tx_counters_.tx_no_buffer);
    return false;
}

template <class Finish>
int Ring::send_frame(const std::uint8_t* headers, std::size_t header_length, const iovec* iov,
                     std::size_t count, std::size_t length, Finish&& finish) noexcept {
    const std::uint32_t room = tx_room_;
    const std::size_t frame_length = header_length + length;
    const std::uint32_t pieces =
        frame_length <= room ? 1 : static_cast<std::uint32_t>((frame_length + room - 1) / room);

    if (!lock_tx()) return EBUSY;
    TxHold hold(*this);

    bool as_inline = false, full = false;
    if (tx_extras_) {
        if (tso_.segments != 0) end_tso();
        as_inline = frame_length <= max_inline_;
        full = tx_posted_ - tx_reaped_ + pieces > tx_outstanding_.size();
    }
    if (__builtin_expect(tx_free_.size() < pieces || full, 0) && !tx_room(pieces)) return ENOBUFS;

    const std::uint32_t chunk_size = device_->attr().chunk_size, headroom = chunk_size - room;
    ibv_sge sge[kMaxPieces];
    std::size_t left = length, at = 0, which = 0;  // position in the iovecs
    const bool offload = length >= offload_from_;
    std::uint64_t sum = 0;
    std::uint8_t* first = nullptr;
    bool odd = false;
    for (std::uint32_t p = 0; p < pieces; p++) {
        const std::uint32_t chunk = tx_free_.back();
        if (!as_inline) tx_free_.pop_back();
        tx_outstanding_[tx_posted_++ & (tx_outstanding_.size() - 1)] = as_inline ? kNoChunk : chunk;
        std::uint8_t* frame = tx_base_ + std::size_t{chunk} * chunk_size + headroom;
        std::uint8_t* out = frame;
        std::size_t space = room;
        if (p == 0) {
            first = frame;
            std::memcpy(out, headers, header_length);
            out += header_length;
            space -= header_length;
        }
        std::uint8_t* piece_start = out;
        while (space != 0 && left != 0 && which < count) {
            if (at == iov[which].iov_len) {
                which++;
                at = 0;
                continue;
            }
            std::size_t n = std::min({space, left, iov[which].iov_len - at});
            std::memcpy(out, static_cast<const std::uint8_t*>(iov[which].iov_base) + at, n);
            out += n;
            space -= n;
            left -= n;
            at += n;
        }
        if (!offload) {
            // A piece that starts at an odd position contributes byte-swapped (RFC 1071, section 2B).
            std::size_t n = static_cast<std::size_t>(out - piece_start);
            std::uint16_t part = net::checksum_fold(net::checksum_add(piece_start, n, 0));
            sum += odd ? static_cast<std::uint16_t>(part << 8 | part >> 8) : part;
            odd ^= (n & 1) != 0;
        }
        sge[p] = {reinterpret_cast<std::uintptr_t>(frame), static_cast<std::uint32_t>(out - frame),
                  mr_->lkey};
    }
    finish(first, sum, offload);

    ibv_send_wr wr{};
    wr.sg_list = sge;
    wr.num_sge = static_cast<int>(pieces);
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = offload ? static_cast<unsigned>(IBV_SEND_IP_CSUM) : 0u;
    if (as_inline) wr.send_flags |= IBV_SEND_INLINE;
    if (const int error = post_tx(wr, pieces); error != 0) return error;
    bump(tx_counters_.tx_frames);
    bump(tx_counters_.tx_bytes, frame_length);
    if (__builtin_expect(log::enabled(log::Level::finer), 0))
        log_frame("sends", {first, header_length}, frame_length, net::Drop::none);
    if (device_->attr().lazy_tx) {
        in_burst_.store(true, std::memory_order_relaxed);
        if (device_->tx_held(qp_) == 1) TxFlusher::instance().held();
    }
    if (tx_posted_ - tx_reaped_ >= 2 * signal_every_) {
        reap_tx();
        hold.attend();
    }
    return 0;
}

int Ring::send_udp(const std::uint8_t* headers, const iovec* iov, std::size_t count,
                   std::size_t length) noexcept {
    return send_frame(
        headers, net::kUdpHeaders, iov, count, length,
        [&](std::uint8_t* frame, std::uint64_t sum, bool offload) {
            net::finish_udp_headers(frame, static_cast<std::uint16_t>(length));
            auto* ip = reinterpret_cast<const net::Ipv4Header*>(frame + sizeof(net::EthernetHeader));
            auto* udp = reinterpret_cast<net::UdpHeader*>(frame + sizeof(net::EthernetHeader) +
                                                          sizeof(net::Ipv4Header));
            const std::uint32_t udp_length = static_cast<std::uint32_t>(length) + sizeof(net::UdpHeader);
            std::uint64_t pseudo = net::pseudo_header_sum(ip->src, ip->dst, IPPROTO_UDP, udp_length);
            if (offload) {
                udp->checksum = net::checksum_fold(pseudo);
                return;
            }
            sum = net::checksum_add(udp, sizeof *udp, sum + pseudo);
            std::uint16_t folded = static_cast<std::uint16_t>(~net::checksum_fold(sum));
            udp->checksum = folded == 0 ? 0xffff : folded;  // 0 would mean "none" (RFC 768)
        });
}

int Ring::send_tcp(const std::uint8_t* headers, std::size_t header_length, const iovec* iov,
                   std::size_t count, std::size_t length) noexcept {
    if (gathering_.load(std::memory_order_relaxed) != 0 && max_tso_ != 0)
        if (int error = 0; gather_segment(headers, header_length, iov, count, length, error)) return error;
    return send_frame(headers, header_length, iov, count, length,
                      [&](std::uint8_t* frame, std::uint64_t sum, bool offload) {
                          finish_tcp_headers(frame, header_length, length, sum, offload);
                      });
}

void Ring::hold(HeldSender* sender) noexcept {
    HeldSender* head = held_.load(std::memory_order_relaxed);
    do {
        if (head == nullptr) held_since_.store(clock::ticks(), std::memory_order_relaxed);
        sender->next_held_ = head;
    } while (
        !held_.compare_exchange_weak(head, sender, std::memory_order_release, std::memory_order_relaxed));
    in_burst_.store(true, std::memory_order_relaxed);
    if (head == nullptr) TxFlusher::instance().held();
}

void Ring::send_all_held() noexcept {
    HeldSender* list = held_.exchange(nullptr, std::memory_order_acquire);
    while (list != nullptr) {
        HeldSender* next = list->next_held_;
        list->send_held();
        list = next;
    }
}

// False: there is nothing to gather.
bool Ring::gather(int change) noexcept {
    if ((!device_->attr().lazy_tx && max_tso_ == 0) || tx_lock_.owned_by_me()) return false;
    tx_lock_.lock();
    TxHold hold(*this);
    const int now = gathering_.load(std::memory_order_relaxed) + change;
    gathering_.store(now, std::memory_order_relaxed);
    if (now == (change > 0 ? 1 : 0)) {
        if (tso_.segments != 0) end_tso();
        device_->gather(qp_, change > 0);
    }
    hold.attend();
    return true;
}

void Ring::flush_slow() noexcept {
    if (tx_lock_.owned_by_me()) return;  // a signal handler inside send_udp()
    if (held_.load(std::memory_order_relaxed) != nullptr) send_all_held();
    tx_lock_.lock();
    in_burst_.store(false, std::memory_order_relaxed);
    device_->flush(qp_);
    tx_lock_.unlock();
}

void Ring::ending(bool on) noexcept {
    if (device_->attr().level_events || tx_lock_.owned_by_me())
        return;  // software has it as soon as it is flushed
    tx_lock_.lock();
    signal_every_ = on ? 1 : signal_every();
    tx_lock_.unlock();
}

void Ring::drain() noexcept {
    if (device_->attr().level_events || failed() || tx_lock_.owned_by_me()) return;
    constexpr std::uint64_t kLongestNs = 20'000'000;
    constexpr timespec kPause{0, 50'000};
    tx_lock_.lock();
    TxHold hold(*this);
    // Frames that did not ask for a completion get one behind them. Where there is no such request they have
    // the whole time: more than an adapter needs.
    if (unsignalled_ != 0 && device_->mark(qp_, tx_posted_)) unsignalled_ = 0;
    const std::uint64_t from = clock::monotonic_ns();
    for (;;) {
        reap_tx();
        if (tx_posted_ == tx_reaped_ || clock::monotonic_ns() - from >= kLongestNs) break;
        os::raw_syscall(SYS_nanosleep, &kPause, nullptr);
    }
}

std::uint64_t Ring::flush_older(std::uint64_t now, std::uint64_t age) noexcept {
    if (held_.load(std::memory_order_relaxed) != nullptr) {
        const std::uint64_t oldest = held_since_.load(std::memory_order_relaxed);
        if (now < oldest + age) return oldest + age;
        send_all_held();
        flush_slow();
        return now + age;
    }
    if (device_->tx_held(qp_) == 0) return 0;
    std::uint64_t since = device_->tx_held_since(qp_);
    if (now < since + age) return since + age;
    if (tx_lock_.try_lock()) {  // a sender holds it otherwise, and decides itself
        device_->flush(qp_);
        tx_lock_.unlock();
        return now + age;  // a burst is going on: look again
    }
    return now + age / 8;
}

}  // namespace vma::ring
