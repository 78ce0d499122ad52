// SPDX-License-Identifier: BSD-2-Clause
// A verbs device: the control plane behind one narrow interface, the data plane behind libibverbs' own inline calls.
//
// Control plane (this class): open, memory registration, completion channel, CQ, QP, flow rules. Every implementation
// fills an ibv_context whose ops table carries its post_send, post_recv, poll_cq and req_notify_cq, so the ring calls
// ibv_post_send() and friends and cannot tell a NIC from software. Implementations:
//   xdp/   a software RDMA device on any Linux netdev, over AF_XDP
//   wire/  the same, over an in-process wire with faults and a fake clock, for tests
// Three things are more than plain RAW_PACKET verbs, and hardware simply never uses them:
//   kWcMore       a frame may span several receive buffers; all completions but the last carry this flag
//   flush()       a device may hold back frames of a burst to share a doorbell (lazy transmission)
//   headroom      a device may need bytes in front of a frame in a transmit buffer
#pragma once

#include <infiniband/verbs.h>
#include <netinet/in.h>

#include <array>
#include <compare>
#include <cstdint>
#include <memory>
#include <string>

#include "libvma/runtime/error.h"

namespace vma::verbs {

using MacAddress = std::array<std::uint8_t, 6>;

// Flag in ibv_wc::wc_flags: the frame continues in the next completion of the same QP.
inline constexpr unsigned kWcMore = 1u << 30;

// What a flow rule matches; addresses and ports in network byte order. A rule with a source is a 5-tuple rule, one
// whose source address and port are both 0 is a 3-tuple rule. A 5-tuple match wins over a 3-tuple match.
struct FlowSpec {
    std::uint8_t protocol = IPPROTO_UDP;
    in_addr_t dst_addr = 0;
    in_port_t dst_port = 0;
    in_addr_t src_addr = 0;
    in_port_t src_port = 0;

    bool is_five_tuple() const noexcept { return src_addr != 0 || src_port != 0; }
    friend auto operator<=>(const FlowSpec&, const FlowSpec&) = default;
};

struct DeviceAttr {
    std::string name;             // as in logs: "xdp:veth0 (skb)"
    int ifindex = 0;
    MacAddress mac{};             // when the device was opened
    std::uint32_t mtu = 0;        // bytes of an IP packet
    std::uint32_t chunk_size = 0; // bytes of one buffer that may be posted or sent, a power of two; buffers are aligned to it
    std::uint32_t rx_offset = 0;  // where a received frame, or its continuation, begins in a posted buffer
    std::uint32_t tx_headroom = 0;// bytes that must lie in front of a frame in its first transmit buffer
    std::uint32_t max_send_sge = 1;
    std::uint32_t max_send_wr = 0;
    std::uint32_t max_recv_wr = 0;
    std::uint32_t recv_wr_hint = 0;   // receives worth posting as long as little arrives; 0: max_recv_wr
    bool tx_checksum = false;     // IBV_SEND_IP_CSUM: the device completes UDP and TCP sums (the field holds the pseudo-header sum)
    bool lazy_tx = false;         // flush() matters
};

// A rule handle, made by create_flow and given back to destroy_flow of the same device.
struct Flow {
    FlowSpec spec;
};

class Device {
  public:
    virtual ~Device() = default;
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    const DeviceAttr& attr() const noexcept { return attr_; }
    ibv_context* context() noexcept { return &context_; }

    // One memory region a device, registered before any QP exists. `length` is a multiple of chunk_size, `addr` is
    // aligned to the page size. The memory stays the caller's and must outlive the device.
    virtual Result<ibv_mr*> reg_mr(void* addr, std::size_t length) = 0;
    // Completion channel: channel->fd polls readable when a CQ that asked for a notification has a completion.
    virtual Result<ibv_comp_channel*> create_comp_channel() = 0;
    virtual Result<ibv_cq*> create_cq(int entries, ibv_comp_channel* channel) = 0;
    // A RAW_PACKET QP, ready to send and receive. Receives start to arrive with the first flow rule.
    virtual Result<ibv_qp*> create_qp(const ibv_qp_init_attr& init) = 0;
    virtual Result<Flow*> create_flow(ibv_qp* qp, const FlowSpec& spec) = 0;
    virtual void destroy_flow(Flow* flow) noexcept = 0;

    // Sends everything posted and not yet handed over. Same locking as ibv_post_send (the caller serialises).
    virtual void flush(ibv_qp*) noexcept {}
    // While `on`, posted frames wait for one another (at most LazyKick::kMaxHeld); switching it off sends them. For callers that know
    // that more follows at once. Same locking as ibv_post_send.
    virtual void gather(ibv_qp*, bool /*on*/) noexcept {}
    // Frames posted and held back; cheap, may be called without the lock.
    virtual unsigned tx_held(const ibv_qp*) const noexcept { return 0; }
    // clock::ticks() when the oldest held frame was posted; meaningful while tx_held() is not 0.
    virtual std::uint64_t tx_held_since(const ibv_qp*) const noexcept { return 0; }
    // After a notification was seen on the channel: consume it (ibv_get_cq_event and ibv_ack_cq_events of hardware).
    virtual void consume_events(ibv_comp_channel*) noexcept {}
    // The link changed: MTU or MAC. Called from the internal thread.
    virtual void link_changed(const MacAddress&, std::uint32_t /*mtu*/) noexcept {}
    // Frames the device itself dropped on receive since it was opened (no buffer posted, ring full, invalid).
    virtual std::uint64_t rx_device_drops() noexcept { return 0; }

  protected:
    Device() = default;
    DeviceAttr attr_;
    ibv_context context_{};
};

}  // namespace vma::verbs
