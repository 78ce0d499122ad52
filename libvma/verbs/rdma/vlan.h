// SPDX-License-Identifier: BSD-2-Clause
// A VLAN on a device: its users see untagged frames, the wire tagged ones.
//
// A layer of facades over a QP and its receive CQ, which may be facades themselves. The functions in its
// ibv_context insert the 802.1Q tag into sent frames, in place in their buffer. They take the tag out of
// received frames. Either way they move twelve bytes of Ethernet addresses. The priority bits of a sent tag
// follow from the TOS byte, by the map of the VLAN's interface.
//
// Sending uses kTag bytes in front of a frame. A received frame begins kTag bytes into its buffer, which
// needs room for as many bytes more than the frame.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "libvma/net/vlan_priorities.h"

namespace vma::verbs::rdma {

class VlanLayer {
  public:
    static constexpr std::uint32_t kTag = 4;              // bytes of a tag
    static constexpr std::uint32_t kLongestHeader = 128;  // bytes of wr.tso.hdr, untagged

    // `id`: 1 to 4094.
    explicit VlanLayer(std::uint16_t id, const net::VlanPriorities& priorities = {}) noexcept;
    VlanLayer(const VlanLayer&) = delete;
    VlanLayer& operator=(const VlanLayer&) = delete;

    // The facades, one of each. They live as long as this object, and the objects below must live longer. The
    // caller serialises calls on them, sending and receiving apart.
    ibv_cq* wrap_recv_cq(ibv_cq* below) noexcept;
    ibv_qp* wrap_qp(ibv_qp* below, std::uint32_t max_recv_wr);
    // The QP was reset: no receive is posted.
    void reset() noexcept { head_ = tail_ = 0; }

  private:
    static VlanLayer& layer_of(ibv_context* context) noexcept {
        return *static_cast<VlanLayer*>(context->abi_compat);
    }
    static int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad);
    static int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad);
    static int poll_recv(ibv_cq* cq, int count, ibv_wc* wc);
    static int arm(ibv_cq* cq, int solicited_only);

    void write_tag(std::uint8_t* frame, std::size_t length) const noexcept;
    void insert(ibv_send_wr& wr, std::uint8_t* tso_header) noexcept;
    void undo(ibv_send_wr& wr, void* tso_header, bool sent) noexcept;
    void remove(std::uint8_t* buffer, std::uint32_t room, ibv_wc& wc) const noexcept;

    struct Buffer {
        std::uint64_t address;
        std::uint32_t length;
    };
    std::uint8_t tag_[kTag];
    net::VlanPriorities priorities_;
    bool prioritises_;  // priorities_.any()
    ibv_context context_{};
    ibv_cq recv_cq_{};
    ibv_qp qp_{};
    ibv_cq* cq_below_ = nullptr;
    ibv_qp* qp_below_ = nullptr;
    std::vector<Buffer> posted_;         // receives complete in the order in which they were posted
    std::uint32_t head_ = 0, tail_ = 0;  // running; a power of two wraps them
};

}  // namespace vma::verbs::rdma
