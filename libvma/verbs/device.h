// SPDX-License-Identifier: BSD-2-Clause
// A verbs device: the control plane behind one narrow interface, the data plane behind libibverbs' own inline
// calls.
//
// Control plane (this class): open, memory registration, completion channel, CQ, QP, flow rules. Every
// implementation fills an ibv_context whose ops table carries its post_send, post_recv, poll_cq and
// req_notify_cq, so the ring calls ibv_post_send() and friends and cannot tell a NIC from software.
// Implementations:
//   rdma/  an RDMA device of the kernel, through libibverbs: RAW_PACKET QP, ibv_post_send(), ibv_poll_cq()
//   mlx5/  the data plane of rdma/ on ConnectX adapters: own work requests and completions in the adapter's
//   queues xdp/   a software RDMA device on any Linux netdev, over AF_XDP
// Some things are more than plain RAW_PACKET verbs; attr() says which of them a device has:
//   kWcMore       a frame may span several receive buffers; all completions but the last carry this flag
//   flush()       a device may hold back frames of a burst to share a doorbell (lazy transmission)
//   headroom      a device may need bytes in front of a frame in a transmit buffer
//   flow tag, arrival time   of a received frame stand in fields of ibv_wc that RAW_PACKET does not use (see
//   below)
#pragma once

#include <infiniband/verbs.h>
#include <netinet/in.h>

#include <array>
#include <atomic>
#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "libvma/runtime/error.h"
#include "libvma/verbs/sources.h"

namespace vma::verbs {

using MacAddress = std::array<std::uint8_t, 6>;

// Flags in ibv_wc::wc_flags beside verbs' own (IBV_WC_IP_CSUM_OK: the device found IP's and UDP's or TCP's
// checksum right).
inline constexpr unsigned kWcMore = 1u << 30;  // the frame continues in the next completion of the same QP
inline constexpr unsigned kWcTimestamp = 1u << 29;  // arrival_ns() is meaningful
inline constexpr unsigned kWcFlowTag = 1u << 28;    // flow_tag() is meaningful

// When the device received the frame: nanoseconds, in the clock that VMA_HW_TS_CONVERSION chose. Kept in
// imm_data and src_qp.
inline std::uint64_t arrival_ns(const ibv_wc& wc) noexcept {
    return std::uint64_t{wc.imm_data} << 32 | wc.src_qp;
}
inline void set_arrival_ns(ibv_wc& wc, std::uint64_t ns) noexcept {
    wc.imm_data = static_cast<std::uint32_t>(ns >> 32);
    wc.src_qp = static_cast<std::uint32_t>(ns);
    wc.wc_flags |= kWcTimestamp;
}
// The tag of the flow rule that matched. Kept in vendor_err, which says something of failed requests only.
inline std::uint32_t flow_tag(const ibv_wc& wc) noexcept { return wc.vendor_err; }
inline void set_flow_tag(ibv_wc& wc, std::uint32_t tag) noexcept {
    wc.vendor_err = tag;
    wc.wc_flags |= kWcFlowTag;
}

// What a flow rule matches; addresses and ports in network byte order. A rule with a source is a 5-tuple
// rule, one whose source address and port are both 0 is a 3-tuple rule. A 5-tuple match wins over a 3-tuple
// match.
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
    std::string name;  // as in logs: "xdp:veth0 (skb)"
    int ifindex = 0;
    MacAddress mac{};       // when the device was opened
    std::uint32_t mtu = 0;  // bytes of an IP packet
    std::uint32_t chunk_size =
        0;  // bytes of one buffer that may be posted or sent, a power of two; buffers are aligned to it
    std::uint32_t rx_offset = 0;    // where a received frame, or its continuation, begins in a posted buffer
    std::uint32_t tx_headroom = 0;  // bytes that must lie in front of a frame in its first transmit buffer
    std::uint32_t max_send_sge = 1;
    std::uint32_t max_send_wr = 0;
    std::uint32_t max_recv_wr = 0;
    std::uint32_t recv_wr_hint = 0;  // receives worth posting as long as little arrives; 0: max_recv_wr
    bool partial_sums = false;       // frames may come from this host (virtual interfaces): with the
                                     // pseudo-header's sum in place of a full one
    bool tx_checksum = false;  // IBV_SEND_IP_CSUM: the device completes UDP and TCP sums (the field holds the
                               // pseudo-header sum)
    bool rx_checksum = false;  // IBV_WC_IP_CSUM_OK is set where it is true
    bool lazy_tx = false;      // flush() matters
    std::uint32_t max_inline =
        0;  // frames up to this length may be posted with IBV_SEND_INLINE: their buffers are free at once
    std::uint32_t max_tso =
        0;  // payload bytes of one IBV_WR_TSO request, 0: no TSO. wr.tso.hdr is copied when posted
    std::uint32_t flow_tags = 0;    // largest tag that create_flow() takes, 0: none
    bool arrival_times = false;     // kWcTimestamp is set
    bool arrival_realtime = false;  // and the times are CLOCK_REALTIME's
    bool moderation = false;        // moderate() works
    // The channel is readable while completions wait. False, as verbs have it: there is one event for each
    // ibv_req_notify_cq(), for a completion after it, and the channel is readable until consume_events().
    bool level_events = false;
    // Frames arrive that no rule of ours wants in all their parts (other peers of a port, fragments, IP
    // options, connections that moved to the kernel): whoever finds one gives it to the kernel. False: the
    // device leaves all of these to the kernel.
    bool coarse_steering = false;
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

    // One memory region a device, registered before any QP exists. `length` is a multiple of chunk_size,
    // `addr` is aligned to the page size. The memory stays the caller's and must outlive the device.
    virtual Result<ibv_mr*> reg_mr(void* addr, std::size_t length) = 0;
    // Completion channel: channel->fd polls readable when a CQ that asked for a notification has a
    // completion.
    virtual Result<ibv_comp_channel*> create_comp_channel() = 0;
    virtual Result<ibv_cq*> create_cq(int entries, ibv_comp_channel* channel) = 0;
    // A RAW_PACKET QP, ready to send and receive. Receives start to arrive with the first flow rule.
    virtual Result<ibv_qp*> create_qp(const ibv_qp_init_attr& init) = 0;
    // `tag` (up to attr().flow_tags, 0: none) comes back in the completions of frames that matched this rule
    // and no other.
    virtual Result<Flow*> create_flow(ibv_qp* qp, const FlowSpec& spec, std::uint32_t tag = 0) = 0;
    virtual void destroy_flow(Flow* flow) noexcept = 0;

    // Sends everything posted and not yet handed over. Same locking as ibv_post_send (the caller serialises).
    virtual void flush(ibv_qp*) noexcept {}
    // While `on`, posted frames wait for one another (at most LazyKick::kMaxHeld); switching it off sends
    // them. For callers that know that more follows at once. Same locking as ibv_post_send.
    virtual void gather(ibv_qp*, bool /*on*/) noexcept {}
    // Posts a request that sends nothing: its completion (with `wr_id`) tells that everything posted before
    // has left. False: there is no such request, or no room. Same locking as ibv_post_send.
    virtual bool mark(ibv_qp*, std::uint64_t /*wr_id*/) noexcept { return false; }
    // Frames posted and held back; cheap, may be called without the lock.
    virtual unsigned tx_held(const ibv_qp*) const noexcept { return 0; }
    // clock::ticks() when the oldest held frame was posted; meaningful while tx_held() is not 0.
    virtual std::uint64_t tx_held_since(const ibv_qp*) const noexcept { return 0; }
    // After a notification was seen on the channel: consume it (ibv_get_cq_event and ibv_ack_cq_events of
    // hardware).
    virtual void consume_events(ibv_comp_channel*) noexcept {}
    // Holds back notifications of `cq` until there are `count` completions or the first is `period_usec` old;
    // 0, 0: at once.
    virtual void moderate(ibv_cq*, std::uint16_t /*count*/, std::uint16_t /*period_usec*/) noexcept {}
    // After a completion with an error status, which may have stopped one side of the QP only: puts all of it
    // into the error state, so that requests that were posted and not yet completed come back as flushed
    // (IBV_WC_WR_FLUSH_ERR).
    virtual void stop(ibv_qp*) noexcept {}
    // Brings a stopped QP back to work. Poll both CQs until they are empty before; what did not come back by
    // then never will. Post receives anew afterwards. The caller holds the locks of both sides. False: the
    // device is lost, see failed().
    virtual bool recover(ibv_qp*) noexcept { return true; }
    // The device died or was taken away (asynchronous event); nothing works any more. Any thread.
    // on_failure() is called once, from the internal thread.
    virtual bool failed() const noexcept { return false; }
    virtual void on_failure(std::function<void()>) {}
    // Of a failed device: its flow rules go, so that what still arrives is the kernel's. To be called when
    // the kernel knows the sockets that were here: it would reset connections it does not know.
    virtual void give_up_flows() noexcept {}
    // The link changed: MTU or MAC. Called from the internal thread.
    virtual void link_changed(const MacAddress&, std::uint32_t /*mtu*/) noexcept {}
    // Which sources 3-tuple rules take frames from, where the device's rules can tell (not where steering is
    // coarse). May throw std::bad_alloc.
    virtual Result<void> set_sources(const Sources&) { return {}; }
    // One more, one fewer who looks at arrival_ns(). While nobody does, a device may leave it out of
    // completions.
    static void want_arrival_times(bool on) noexcept {
        arrival_times_wanted_.fetch_add(on ? 1 : -1, std::memory_order_relaxed);
    }
    static bool arrival_times_wanted() noexcept {
        return arrival_times_wanted_.load(std::memory_order_relaxed) > 0;
    }
    // Frames the device itself dropped on receive since it was opened (no buffer posted, ring full, invalid).
    virtual std::uint64_t rx_device_drops() noexcept { return 0; }

  protected:
    Device() = default;
    DeviceAttr attr_;
    ibv_context context_{};

  private:
    static inline std::atomic<int> arrival_times_wanted_{0};
};

}  // namespace vma::verbs
