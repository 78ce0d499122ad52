// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/verbs/rdma/vlan.h"

#include <errno.h>

#include <bit>
#include <cstring>

namespace vma::verbs::rdma {
namespace {

constexpr std::size_t kAddresses = 12;  // destination and source: the tag comes behind them (IEEE 802.1Q)
constexpr std::uint8_t kTpid[2] = {0x81, 0x00};  // tag protocol identifier
constexpr std::uint8_t kIpv4[2] = {0x08, 0x00};
constexpr std::size_t kType = kAddresses, kTos = kAddresses + 3;  // in an untagged frame
constexpr std::size_t kBatch = 16;                                // requests tagged at a time

template <class T>
T* pointer(std::uint64_t address) noexcept {
    return reinterpret_cast<T*>(static_cast<std::uintptr_t>(address));
}

}  // namespace

VlanLayer::VlanLayer(std::uint16_t id, const net::VlanPriorities& priorities) noexcept
    : tag_{kTpid[0], kTpid[1], static_cast<std::uint8_t>(id >> 8), static_cast<std::uint8_t>(id)},
      priorities_(priorities),
      prioritises_(priorities.any()) {
    context_.abi_compat = this;
    context_.cmd_fd = context_.async_fd = -1;
    context_.ops.post_send = &VlanLayer::post_send;
    context_.ops.post_recv = &VlanLayer::post_recv;
    context_.ops.poll_cq = &VlanLayer::poll_recv;
    context_.ops.req_notify_cq = &VlanLayer::arm;
}

ibv_cq* VlanLayer::wrap_recv_cq(ibv_cq* below) noexcept {
    cq_below_ = below;
    recv_cq_.context = &context_;
    recv_cq_.channel = below->channel;
    recv_cq_.cq_context = below->cq_context;
    recv_cq_.cqe = below->cqe;
    return &recv_cq_;
}

ibv_qp* VlanLayer::wrap_qp(ibv_qp* below, std::uint32_t max_recv_wr) {
    posted_.resize(std::bit_ceil(max_recv_wr == 0 ? 1 : max_recv_wr));
    qp_below_ = below;
    qp_.context = &context_;
    qp_.pd = below->pd;
    qp_.send_cq = below->send_cq;
    qp_.recv_cq = &recv_cq_;
    qp_.qp_num = below->qp_num;
    qp_.qp_type = below->qp_type;
    qp_.state = below->state;
    return &qp_;
}

// ---- send ----

// Writes the tag into its place in the frame, of which `length` bytes lie here, the tag counted.
void VlanLayer::write_tag(std::uint8_t* frame, std::size_t length) const noexcept {
    std::memcpy(frame + kAddresses, tag_, kTag);
    if (!prioritises_ || length <= kTos + kTag) return;
    if (std::memcmp(frame + kType + kTag, kIpv4, sizeof kIpv4) != 0) return;
    frame[kAddresses + 2] |= static_cast<std::uint8_t>(priorities_.pcp(frame[kTos + kTag]) << 5);
}

void VlanLayer::insert(ibv_send_wr& wr, std::uint8_t* tso_header) noexcept {
    if (wr.opcode == IBV_WR_TSO) {
        const auto* header = static_cast<const std::uint8_t*>(wr.tso.hdr);
        std::memcpy(tso_header, header, kAddresses);
        std::memcpy(tso_header + kAddresses + kTag, header + kAddresses, wr.tso.hdr_sz - kAddresses);
        wr.tso.hdr = tso_header;
        wr.tso.hdr_sz = static_cast<std::uint16_t>(wr.tso.hdr_sz + kTag);
        write_tag(tso_header, wr.tso.hdr_sz);
        return;
    }
    ibv_sge& first = wr.sg_list[0];
    first.addr -= kTag;
    first.length += kTag;
    auto* frame = pointer<std::uint8_t>(first.addr);
    std::memmove(frame, frame + kTag, kAddresses);
    write_tag(frame, first.length);
}

// Restores the request, which is the caller's: the caller may post a refused request again.
void VlanLayer::undo(ibv_send_wr& wr, void* tso_header, bool sent) noexcept {
    if (wr.opcode == IBV_WR_TSO) {
        wr.tso.hdr = tso_header;
        wr.tso.hdr_sz = static_cast<std::uint16_t>(wr.tso.hdr_sz - kTag);
        return;
    }
    ibv_sge& first = wr.sg_list[0];
    auto* frame = pointer<std::uint8_t>(first.addr);
    first.addr += kTag;
    first.length -= kTag;
    if (!sent) std::memmove(frame + kTag, frame, kAddresses);
}

int VlanLayer::post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
    VlanLayer& layer = layer_of(qp->context);
    while (wr != nullptr) {
        std::uint8_t headers[kBatch][kLongestHeader + kTag];
        void* original[kBatch] = {};
        std::size_t n = 0;
        int error = 0;
        ibv_send_wr *first = wr, *last = nullptr;
        for (; wr != nullptr && n < kBatch; wr = wr->next) {
            if (wr->opcode == IBV_WR_TSO) {
                if (wr->tso.hdr_sz < kAddresses || wr->tso.hdr_sz > kLongestHeader) error = EINVAL;
                original[n] = wr->tso.hdr;
            } else if (wr->num_sge < 1 || wr->sg_list[0].length < kAddresses) {
                error = EINVAL;
            }
            if (error != 0) break;
            layer.insert(*wr, headers[n++]);
            last = wr;
        }
        ibv_send_wr* refused = nullptr;
        int below = 0;
        if (last != nullptr) {
            ibv_send_wr* const rest = last->next;
            last->next = nullptr;
            below = layer.qp_below_->context->ops.post_send(layer.qp_below_, first, &refused);
            last->next = rest;
        }
        bool sent = true;
        std::size_t i = 0;
        for (ibv_send_wr* w = first; i < n; w = w->next, i++) {
            sent = sent && !(below != 0 && w == refused);
            layer.undo(*w, original[i], sent);
        }
        if (below != 0) {
            *bad = refused;
            return below;
        }
        if (error != 0) {
            *bad = wr;
            return error;
        }
    }
    return 0;
}

// ---- receive ----

int VlanLayer::post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
    VlanLayer& layer = layer_of(qp->context);
    const std::uint32_t mask = static_cast<std::uint32_t>(layer.posted_.size()) - 1;
    ibv_recv_wr* refused = nullptr;
    const int error = layer.qp_below_->context->ops.post_recv(layer.qp_below_, wr, &refused);
    for (; wr != nullptr && !(error != 0 && wr == refused); wr = wr->next)
        layer.posted_[layer.head_++ & mask] = {wr->sg_list[0].addr, wr->sg_list[0].length};
    if (error != 0) *bad = refused;
    return error;
}

// Afterwards the frame begins kTag bytes into the buffer.
void VlanLayer::remove(std::uint8_t* buffer, std::uint32_t room, ibv_wc& wc) const noexcept {
    const std::uint32_t length = wc.byte_len;
    if (length >= kAddresses + kTag + 2 && std::memcmp(buffer + kAddresses, kTpid, sizeof kTpid) == 0) {
        std::memmove(buffer + kTag, buffer, kAddresses);
        wc.byte_len = length - kTag;
    } else if (length + kTag <= room) {  // the device has removed the tag already
        std::memmove(buffer + kTag, buffer, length);
    } else {
        wc.byte_len = 0;  // no frame for these rules: length 0 keeps the ring from taking it for one
    }
}

int VlanLayer::poll_recv(ibv_cq* cq, int count, ibv_wc* wc) {
    VlanLayer& layer = layer_of(cq->context);
    const std::uint32_t mask = static_cast<std::uint32_t>(layer.posted_.size()) - 1;
    const int n = layer.cq_below_->context->ops.poll_cq(layer.cq_below_, count, wc);
    for (int i = 0; i < n && layer.tail_ != layer.head_; i++) {
        const Buffer& buffer = layer.posted_[layer.tail_++ & mask];
        if (wc[i].status == IBV_WC_SUCCESS)
            layer.remove(pointer<std::uint8_t>(buffer.address), buffer.length, wc[i]);
    }
    return n;
}

int VlanLayer::arm(ibv_cq* cq, int solicited_only) {
    VlanLayer& layer = layer_of(cq->context);
    return layer.cq_below_->context->ops.req_notify_cq(layer.cq_below_, solicited_only);
}

}  // namespace vma::verbs::rdma
