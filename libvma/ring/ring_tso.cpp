// SPDX-License-Identifier: BSD-2-Clause
// TCP segments that become one request (IBV_WR_TSO), where the device cuts them apart again.
//
// TCP goes on sending segment by segment. While a sender gathers, a segment is not posted but kept, its
// payload behind that of the segment before, and the next one either continues it, or has it sent first. So
// what is on the wire is what TCP made, segment for segment. One segment follows another if they are of the
// same connection, its sequence number is the next one, the one before was full, and neither time stamps, nor
// windows, nor acknowledgements have changed. PSH and FIN end the request, since the device leaves them to
// the last segment.
#include <algorithm>
#include <cstring>

#include "libvma/net/checksum.h"
#include "libvma/ring/ring.h"
#include "libvma/ring/tcp_headers.h"
#include "libvma/runtime/log.h"

namespace vma::ring {
namespace {

constexpr std::size_t kIpAt = sizeof(net::EthernetHeader), kTcpAt = kIpAt + sizeof(net::Ipv4Header);
constexpr std::uint8_t kFin = 0x01, kPsh = 0x08;
constexpr std::uint32_t kMaxIpPacket = 65535;

const net::TcpHeader& tcp_of(const std::uint8_t* headers) noexcept {
    return *reinterpret_cast<const net::TcpHeader*>(headers + kTcpAt);
}

}  // namespace

bool Ring::continues_tso(const std::uint8_t* headers, std::size_t header_length,
                         std::size_t length) const noexcept {
    if (tso_.complete || header_length != tso_.header_length || length > tso_.mss) return false;
    if (tso_.payload + length > max_tso_ || tso_.payload + length + header_length - kIpAt > kMaxIpPacket)
        return false;
    const std::size_t more = length > tso_.space ? (length - tso_.space + tx_room_ - 1) / tx_room_ : 0;
    if (tso_.pieces + more > tso_.sge.size() || more > tx_free_.size()) return false;
    if (tx_posted_ - tx_reaped_ + more > tx_outstanding_.size()) return false;
    const net::TcpHeader &before = tcp_of(tso_.headers), &now = tcp_of(headers);
    return ntohl(now.seq) == tso_.next_seq && ((before.flags ^ now.flags) & ~(kFin | kPsh)) == 0 &&
           before.ack == now.ack && before.window == now.window && before.data_offset == now.data_offset &&
           before.urgent == now.urgent && before.src_port == now.src_port &&
           before.dst_port == now.dst_port &&
           std::memcmp(tso_.headers, headers, kTcpAt) == 0 &&  // IP's length and sums are filled in later
           std::memcmp(tso_.headers + kTcpAt + sizeof now, headers + kTcpAt + sizeof now,
                       header_length - kTcpAt - sizeof now) == 0;
}

// Copies payload behind what is there. There are buffers enough.
void Ring::add_to_tso(const iovec* iov, std::size_t count, std::size_t length) noexcept {
    const std::uint32_t chunk_size = device_->attr().chunk_size, headroom = chunk_size - tx_room_;
    for (std::size_t i = 0, left = length; i < count && left != 0; i++) {
        const auto* from = static_cast<const std::uint8_t*>(iov[i].iov_base);
        for (std::size_t of = std::min(iov[i].iov_len, left); of != 0;) {
            if (tso_.space == 0) {
                const std::uint32_t chunk = tx_free_.back();
                tx_free_.pop_back();
                tx_outstanding_[tx_posted_++ & (tx_outstanding_.size() - 1)] = chunk;
                const std::uint8_t* at = tx_base_ + std::size_t{chunk} * chunk_size + headroom;
                tso_.sge[tso_.pieces++] = {reinterpret_cast<std::uintptr_t>(at), 0, mr_->lkey};
                tso_.space = tx_room_;
            }
            ibv_sge& last = tso_.sge[tso_.pieces - 1];
            const auto n = static_cast<std::uint32_t>(std::min<std::size_t>(of, tso_.space));
            std::memcpy(reinterpret_cast<std::uint8_t*>(last.addr) + last.length, from, n);
            last.length += n;
            tso_.space -= n;
            from += n;
            of -= n;
            left -= n;
        }
    }
}

// True: the segment was kept, or `error` says why not. False: it is to be sent as it is.
bool Ring::gather_segment(const std::uint8_t* headers, std::size_t header_length, const iovec* iov,
                          std::size_t count, std::size_t length, int& error) noexcept {
    if (length == 0 || header_length + length > tx_room_ * std::min<std::size_t>(kMaxPieces, tso_.sge.size()))
        return false;
    if (!lock_tx()) {
        error = EBUSY;
        return true;
    }
    TxHold hold(*this);
    if (tso_.segments == 0 || !continues_tso(headers, header_length, length)) {
        if (tso_.segments != 0) end_tso();
        if (gathering_.load(std::memory_order_relaxed) == 0)
            return false;  // another thread's gathering ended
        const auto pieces = static_cast<std::uint32_t>((header_length + length + tx_room_ - 1) / tx_room_);
        if (!tx_room(pieces)) {
            error = ENOBUFS;
            return true;
        }
        tso_.mss = static_cast<std::uint32_t>(length);
        tso_.payload = tso_.pieces = tso_.space = 0;
        tso_.header_length = static_cast<std::uint32_t>(header_length);
        tso_.complete = false;
        const iovec head{const_cast<std::uint8_t*>(headers), header_length};
        add_to_tso(&head, 1, header_length);
        tso_.headers = reinterpret_cast<std::uint8_t*>(tso_.sge[0].addr);
    }
    add_to_tso(iov, count, length);
    tso_.segments++;
    tso_.payload += static_cast<std::uint32_t>(length);
    const net::TcpHeader& h = tcp_of(headers);
    tso_.next_seq = ntohl(h.seq) + static_cast<std::uint32_t>(length);
    tso_.last_flags = h.flags;
    tso_.complete = length < tso_.mss || (h.flags & (kFin | kPsh)) != 0;
    hold.attend();
    return true;
}

// Posts what was kept. If the queue stays full it is lost, and TCP will find out. With tx_lock_ held.
void Ring::end_tso() noexcept {
    const std::uint32_t segments = tso_.segments;
    tso_.segments = 0;
    const std::size_t one = segments == 1 ? tso_.payload : tso_.mss;
    finish_tcp_headers(tso_.headers, tso_.header_length, one, 0, true);
    ibv_send_wr wr{};
    wr.sg_list = tso_.sge.data();
    wr.num_sge = static_cast<int>(tso_.pieces);
    wr.send_flags = IBV_SEND_IP_CSUM;
    const std::uint32_t frame_length = tso_.header_length + tso_.payload;
    if (segments > 1) {
        auto* h = reinterpret_cast<net::TcpHeader*>(tso_.headers + kTcpAt);
        h->flags = tso_.last_flags;
        wr.opcode = IBV_WR_TSO;
        wr.tso.hdr = tso_.headers;
        wr.tso.hdr_sz = static_cast<std::uint16_t>(tso_.header_length);
        wr.tso.mss = static_cast<std::uint16_t>(tso_.mss);
        tso_.sge[0].addr += tso_.header_length;
        tso_.sge[0].length -= tso_.header_length;
    } else {
        wr.opcode = IBV_WR_SEND;
        if (frame_length <= max_inline_) {  // one buffer, free at once
            std::uint32_t& chunk = tx_outstanding_[(tx_posted_ - 1) & (tx_outstanding_.size() - 1)];
            tx_free_.push_back(chunk);
            chunk = kNoChunk;
            wr.send_flags |= IBV_SEND_INLINE;
        }
    }
    if (post_tx(wr, tso_.pieces) != 0) {
        bump(tx_counters_.tx_lost, segments);
        return;
    }
    if (__builtin_expect(log::enabled(log::Level::finer), 0))
        log_frame("sends", {tso_.headers, tso_.header_length}, frame_length, net::Drop::none);
    bump(tx_counters_.tx_frames, segments);
    bump(tx_counters_.tx_bytes, tso_.payload + std::uint64_t{segments} * tso_.header_length);
    if (tx_posted_ - tx_reaped_ >= 2 * signal_every_) reap_tx();
}

}  // namespace vma::ring
