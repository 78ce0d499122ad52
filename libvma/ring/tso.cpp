// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/ring/tso.h"

#include <algorithm>
#include <cstring>

#include "libvma/net/checksum.h"
#include "libvma/ring/tcp_headers.h"

namespace vma::ring {
namespace {

constexpr std::size_t kIpAt = sizeof(net::EthernetHeader), kTcpAt = kIpAt + sizeof(net::Ipv4Header);
constexpr std::uint8_t kFin = 0x01, kPsh = 0x08;
constexpr std::uint32_t kMaxIpPacket = 65535;

const net::TcpHeader& tcp_of(const std::uint8_t* headers) noexcept {
    return *reinterpret_cast<const net::TcpHeader*>(headers + kTcpAt);
}

}  // namespace

bool Tso::continues(const TxBuffers& buffers, const std::uint8_t* headers, std::size_t header_length,
                    std::size_t count, std::size_t length) const noexcept {
    if (complete_ || header_length != header_length_ || length > mss_) return false;
    if (payload_ + length > max_payload_ || payload_ + length + header_length - kIpAt > kMaxIpPacket)
        return false;
    if (in_place_) {
        if (pieces_ + count > sge_.size()) return false;
    } else {
        const std::size_t more =
            length > space_ ? (length - space_ + buffers.room() - 1) / buffers.room() : 0;
        if (pieces_ + more > sge_.size() || more > buffers.free() || buffers.full(more)) return false;
    }
    const net::TcpHeader &before = tcp_of(headers_), &now = tcp_of(headers);
    return ntohl(now.seq) == next_seq_ && ((before.flags ^ now.flags) & ~(kFin | kPsh)) == 0 &&
           before.ack == now.ack && before.window == now.window && before.data_offset == now.data_offset &&
           before.urgent == now.urgent && before.src_port == now.src_port &&
           before.dst_port == now.dst_port &&
           std::memcmp(headers_, headers, kTcpAt) == 0 &&  // IP's length and sums are filled in later
           std::memcmp(headers_ + kTcpAt + sizeof now, headers + kTcpAt + sizeof now,
                       header_length - kTcpAt - sizeof now) == 0;
}

// Copies payload behind what is there. There are buffers enough.
void Tso::copy(TxBuffers& buffers, const iovec* iov, std::size_t count, std::size_t length) noexcept {
    for (std::size_t i = 0, left = length; i < count && left != 0; i++) {
        const auto* from = static_cast<const std::uint8_t*>(iov[i].iov_base);
        for (std::size_t of = std::min(iov[i].iov_len, left); of != 0;) {
            if (space_ == 0) {
                sge_[pieces_++] = {reinterpret_cast<std::uintptr_t>(buffers.take()), 0, buffers.lkey()};
                space_ = buffers.room();
            }
            ibv_sge& last = sge_[pieces_ - 1];
            const auto n = static_cast<std::uint32_t>(std::min<std::size_t>(of, space_));
            std::memcpy(reinterpret_cast<std::uint8_t*>(last.addr) + last.length, from, n);
            last.length += n;
            space_ -= n;
            from += n;
            of -= n;
            left -= n;
        }
    }
}

// Notes where payload lies. There are pieces enough.
void Tso::refer(const iovec* iov, std::size_t count, std::size_t length) noexcept {
    for (std::size_t i = 0; i < count && length != 0; i++) {
        const auto n = static_cast<std::uint32_t>(std::min(iov[i].iov_len, length));
        if (n == 0) continue;
        sge_[pieces_++] = {reinterpret_cast<std::uintptr_t>(iov[i].iov_base), n, 0};
        length -= n;
    }
}

void Tso::begin(TxBuffers& buffers, const std::uint8_t* headers, std::size_t header_length,
                std::size_t length) noexcept {
    mss_ = static_cast<std::uint32_t>(length);
    payload_ = pieces_ = space_ = 0;
    header_length_ = static_cast<std::uint32_t>(header_length);
    complete_ = false;
    if (in_place_) {
        headers_ = own_headers_.data();
        std::memcpy(headers_, headers, header_length);
        return;
    }
    const iovec head{const_cast<std::uint8_t*>(headers), header_length};
    copy(buffers, &head, 1, header_length);
    headers_ = reinterpret_cast<std::uint8_t*>(sge_[0].addr);
}

void Tso::add(TxBuffers& buffers, const std::uint8_t* headers, const iovec* iov, std::size_t count,
              std::size_t length) noexcept {
    if (in_place_)
        refer(iov, count, length);
    else
        copy(buffers, iov, count, length);
    segments_++;
    payload_ += static_cast<std::uint32_t>(length);
    const net::TcpHeader& h = tcp_of(headers);
    next_seq_ = ntohl(h.seq) + static_cast<std::uint32_t>(length);
    last_flags_ = h.flags;
    complete_ = length < mss_ || (h.flags & (kFin | kPsh)) != 0;
}

Tso::Request Tso::finish(TxBuffers& buffers, std::uint32_t max_inline, ibv_send_wr& wr) noexcept {
    const Request request{segments_, pieces_, header_length_, payload_, headers_};
    segments_ = 0;
    // An adapter writes lengths and sums of each frame. Software gets the headers of the whole.
    finish_tcp_headers(headers_, header_length_, request.segments == 1 || in_place_ ? payload_ : mss_, 0,
                       true);
    wr.sg_list = sge_.data();
    wr.num_sge = static_cast<int>(pieces_);
    wr.send_flags = IBV_SEND_IP_CSUM;
    if (request.segments > 1) {
        reinterpret_cast<net::TcpHeader*>(headers_ + kTcpAt)->flags = last_flags_;
        wr.opcode = IBV_WR_TSO;
        wr.tso.hdr = headers_;
        wr.tso.hdr_sz = static_cast<std::uint16_t>(header_length_);
        wr.tso.mss = static_cast<std::uint16_t>(mss_);
        if (!in_place_) {
            sge_[0].addr += header_length_;
            sge_[0].length -= header_length_;
        }
        return request;
    }
    wr.opcode = IBV_WR_SEND;
    if (header_length_ + payload_ <= max_inline) {  // one buffer, free at once
        buffers.free_last();
        wr.send_flags |= IBV_SEND_INLINE;
    }
    return request;
}

Tso::Lone Tso::take_lone(std::span<iovec> iov) noexcept {
    segments_ = 0;
    for (std::uint32_t i = 0; i < pieces_; i++)
        iov[i] = {reinterpret_cast<void*>(sge_[i].addr), sge_[i].length};
    return {headers_, header_length_, payload_, pieces_};
}

}  // namespace vma::ring
