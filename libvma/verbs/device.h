// SPDX-License-Identifier: BSD-2-Clause
// A verbs device: the control plane behind one narrow interface, the data plane behind libibverbs' own inline
// calls.
//
// Control plane (this class): open, memory registration, completion channel, CQ, QP, flow rules. Every
// implementation fills an ibv_context whose ops table carries its post_send, post_recv, poll_cq and
// req_notify_cq. So the ring calls ibv_post_send() and friends and cannot tell a NIC from software.
// Implementations:
//   rdma/  an RDMA device of the kernel, through libibverbs: RAW_PACKET QP, ibv_post_send(), ibv_poll_cq()
//   mlx5/  the data plane of rdma/ on ConnectX adapters: writes requests into the adapter's queues itself
//   xdp/   a software RDMA device on any Linux netdev, over AF_XDP
// Some features go beyond plain RAW_PACKET verbs; attr() tells which of them a device has:
//   kWcMore    a frame may span several receive buffers; all completions but the last carry this flag
//   flush()    a device may hold back frames of a burst to share a doorbell (lazy transmission)
//   headroom   a device may need bytes in front of a frame in a transmit buffer
//   flow tag, arrival time   of a received frame: in fields of ibv_wc that RAW_PACKET does not use (see
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
#include <span>
#include <string>
#include <utility>

#include "libvma/net/address.h"
#include "libvma/net/sources.h"
#include "libvma/runtime/error.h"

namespace vma::verbs {

using MacAddress = std::array<std::uint8_t, 6>;

// Flags in ibv_wc::wc_flags beside verbs' own. (IBV_WC_IP_CSUM_OK: the device found the checksums of IP and
// of UDP or TCP right.)
inline constexpr unsigned kWcMore = 1u << 30;  // the frame continues in the next completion of the same QP
inline constexpr unsigned kWcTimestamp = 1u << 29;  // arrival_ns() is meaningful
inline constexpr unsigned kWcFlowTag = 1u << 28;    // flow_tag() is meaningful

// When the device received the frame: nanoseconds, in the clock that VMA_HW_TS_CONVERSION chose. Stored in
// imm_data and src_qp.
inline std::uint64_t arrival_ns(const ibv_wc& wc) noexcept {
    return std::uint64_t{wc.imm_data} << 32 | wc.src_qp;
}
inline void set_arrival_ns(ibv_wc& wc, std::uint64_t ns) noexcept {
    wc.imm_data = static_cast<std::uint32_t>(ns >> 32);
    wc.src_qp = static_cast<std::uint32_t>(ns);
    wc.wc_flags |= kWcTimestamp;
}
// The tag of the flow rule that matched. Stored in vendor_err, which has a meaning for failed requests only.
inline std::uint32_t flow_tag(const ibv_wc& wc) noexcept { return wc.vendor_err; }
inline void set_flow_tag(ibv_wc& wc, std::uint32_t tag) noexcept {
    wc.vendor_err = tag;
    wc.wc_flags |= kWcFlowTag;
}

// The frames that a flow rule matches; addresses and ports in network byte order. A rule with a source is a
// 5-tuple rule; with source address and port both 0 it is a 3-tuple rule. A 5-tuple match wins over a 3-tuple
// match.
struct FlowSpec {
    std::uint8_t protocol = IPPROTO_UDP;
    in_addr_t dst_addr = 0;
    in_port_t dst_port = 0;
    in_addr_t src_addr = 0;
    in_port_t src_port = 0;

    static FlowSpec of_tcp(const net::Endpoints& e) noexcept {
        return {IPPROTO_TCP, e.local.address.v4(), e.local.port, e.remote.address.v4(), e.remote.port};
    }
    bool is_five_tuple() const noexcept { return src_addr != 0 || src_port != 0; }
    friend auto operator<=>(const FlowSpec&, const FlowSpec&) = default;
};

struct DeviceAttr {
    std::string name;  // as in logs: "xdp:veth0 (skb)"
    // What the device is and does, in words for the log and the statistics; empty: the name says it.
    std::string details;
    int ifindex = 0;
    MacAddress mac{};       // the MAC at the opening of the device
    std::uint32_t mtu = 0;  // bytes of an IP packet
    // Bytes of one buffer for posting or sending: a power of two, to which buffers are aligned.
    std::uint32_t chunk_size = 0;
    std::uint32_t rx_offset = 0;    // where a received frame, or its continuation, begins in a posted buffer
    std::uint32_t tx_headroom = 0;  // bytes that must lie in front of a frame in its first transmit buffer
    std::uint32_t max_send_sge = 1;
    std::uint32_t max_send_wr = 0;
    std::uint32_t max_recv_wr = 0;
    // Chunks of the registered memory that further() devices use: receives of max_recv_wr that are posted for
    // them (RxQueue::post_for_others), and send chunks beyond the ring's own, at the end.
    std::uint32_t further_recv = 0, further_send = 0;
    std::uint32_t borrowed_recv = 0;  // of a further() device: receives that the first one posts for it
    std::uint32_t recv_wr_hint = 0;   // receives worth posting while few frames arrive; 0: max_recv_wr
    // Frames from this host (virtual interfaces) may carry the pseudo-header's sum in place of a full one.
    bool partial_sums = false;
    // IBV_SEND_IP_CSUM: the device completes UDP and TCP sums (the field holds the pseudo-header sum).
    bool tx_checksum = false;
    // The Ethernet type of super-frames of UDP datagrams, 0: there are none. In such a frame, which is an
    // IPv4 frame otherwise, the UDP checksum field says how many bytes of payload the datagrams have, but for
    // the last one (host's byte order).
    std::uint16_t datagrams_type = 0;
    bool rx_checksum = false;  // the device sets IBV_WC_IP_CSUM_OK on good frames
    bool lazy_tx = false;      // the device may hold frames back until flush()
    // What is sent leaves by the interface's own send queue: where that stands, the kernel's frames do, too.
    bool kernel_sends = false;
    // Frames up to this length may be posted with IBV_SEND_INLINE: their buffers are free at once.
    std::uint32_t max_inline = 0;
    // Payload bytes of one IBV_WR_TSO request, 0: no TSO. Posting copies wr.tso.hdr.
    std::uint32_t max_tso = 0;
    std::uint32_t max_tso_sge = 0;  // pieces of payload in such a request
    // Such a request takes its payload from anywhere and copies it, takes no place in the send queue, and has
    // no completion. Its headers have the lengths and the pseudo-header's sum of the whole.
    bool tso_copies = false;
    // The kernel moves long runs of data faster: it passes them on whole, and this device copies them.
    bool kernel_moves_bulk = false;
    // Also what is received: the kernel's frames do not suffer from this device's program.
    bool kernel_receives_bulk = false;
    std::uint32_t flow_tags = 0;    // largest tag for create_flow(), 0: none
    bool arrival_times = false;     // the device sets kWcTimestamp
    bool arrival_realtime = false;  // the times are CLOCK_REALTIME's
    bool moderation = false;        // moderate() works
    // True: the channel is readable while completions wait. False, as in verbs: each ibv_req_notify_cq()
    // gives one event, for a completion after it, and the channel is readable until consume_events().
    bool level_events = false;
    // True: some frames arrive that match a rule but no socket: other peers of a port, fragments, IP options,
    // handed-over connections. The ring gives such frames to the kernel. False: the device leaves all of
    // these to the kernel.
    bool coarse_steering = false;
};

// A rule handle, made by create_flow and returned to destroy_flow of the same device.
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

    // Registers the device's one memory region, before any QP exists. `length` is a multiple of chunk_size,
    // `addr` is aligned to the page size. The memory stays the caller's and must outlive the device.
    virtual Result<ibv_mr*> reg_mr(void* addr, std::size_t length) = 0;
    // Puts the device's own memory in place of the caller's mapping, whose content is lost, where the device
    // needs that. Before reg_mr() of the same region. Errors: those of bpf(2) and mmap(2).
    virtual Result<void> back(void* memory, std::size_t length) {
        (void)memory, (void)length;
        return {};
    }
    // Where the ring's send chunks are; empty: behind the receive chunks that it registers.
    virtual std::span<std::uint8_t> send_memory() noexcept { return {}; }
    // Makes the completion channel: channel->fd polls readable when a CQ that asked for a notification has a
    // completion.
    virtual Result<ibv_comp_channel*> create_comp_channel() = 0;
    virtual Result<ibv_cq*> create_cq(int entries, ibv_comp_channel* channel) = 0;
    // A RAW_PACKET QP, ready to send and receive. Receives start to arrive with the first flow rule.
    virtual Result<ibv_qp*> create_qp(const ibv_qp_init_attr& init) = 0;
    // Completions of frames that matched this rule and no other carry `tag` (up to attr().flow_tags, 0:
    // none).
    virtual Result<Flow*> create_flow(ibv_qp* qp, const FlowSpec& spec, std::uint32_t tag = 0) = 0;
    virtual void destroy_flow(Flow* flow) noexcept = 0;
    // Makes the rule `flow` of `from`, a device of the same interface, a rule of `qp`: from one frame on they
    // come here. No frame goes to both, or to the kernel. `flow` is gone then, and the result is its
    // successor. Errors, after which all is as before: EOPNOTSUPP, EBUSY where others share the rule, those
    // of create_flow(). May throw std::bad_alloc.
    virtual Result<Flow*> take_flow(ibv_qp* qp, Device& from, Flow* flow, std::uint32_t tag) {
        (void)qp, (void)from, (void)flow, (void)tag;
        return fail(EOPNOTSUPP, attr_.name + " cannot move rules");
    }

    // A device with a QP of its own that shares this one's registered memory and rules, and must go before
    // it. Null: the interface is opened once more instead. Errors: there cannot be another one.
    virtual Result<std::unique_ptr<Device>> further() { return std::unique_ptr<Device>(); }

    // Sends all held-back frames. Same locking as ibv_post_send (the caller serialises).
    virtual void flush(ibv_qp*) noexcept {}
    // From now on ibv_post_send() may leave the kick of a lone frame to its caller.
    void leave_kicks() noexcept { leaves_kicks_ = true; }
    // True: it has done so, and the caller calls kick() as soon as it has let go of the lock that serialises
    // ibv_post_send(). Same locking.
    bool take_kick() noexcept { return std::exchange(kick_left_, false); }
    // Any thread, no lock. False: it failed, and the caller calls kick_again() with the lock.
    virtual bool kick(ibv_qp*) noexcept { return true; }
    virtual void kick_again(ibv_qp*) noexcept {}
    // While `on`, posted frames wait for one another (at most LazyKick::kMaxHeld). Switching it off sends
    // them, or holds them back as lazy transmission does where a burst goes on. For callers that post more
    // frames at once. Same locking as ibv_post_send.
    virtual void gather(ibv_qp*, bool /*on*/) noexcept {}
    // Posts a request that sends no frame: its completion (with `wr_id`) tells that all earlier requests have
    // left. False: the device has no such request, or no room. Same locking as ibv_post_send.
    virtual bool mark(ibv_qp*, std::uint64_t /*wr_id*/) noexcept { return false; }
    // The number of held-back frames; cheap, callable without the lock.
    virtual unsigned tx_held(const ibv_qp*) const noexcept { return 0; }
    // clock::ticks() at the posting of the oldest held frame; meaningful while tx_held() is not 0.
    virtual std::uint64_t tx_held_since(const ibv_qp*) const noexcept { return 0; }
    // Consumes a notification that the caller has seen on the channel (ibv_get_cq_event and ibv_ack_cq_events
    // of hardware).
    virtual void consume_events(ibv_comp_channel*) noexcept {}
    // Holds back notifications of `cq` until `count` completions exist or the first is `period_usec` old; 0,
    // 0: at once.
    virtual void moderate(ibv_cq*, std::uint16_t /*count*/, std::uint16_t /*period_usec*/) noexcept {}
    // A completion with an error status may have stopped one side of the QP only. This puts the whole QP into
    // the error state, so that all outstanding requests complete as flushed (IBV_WC_WR_FLUSH_ERR).
    virtual void stop(ibv_qp*) noexcept {}
    // Brings a stopped QP back to work. The caller polls both CQs until they are empty before; requests
    // without a completion by then never complete. It posts receives anew afterwards, and holds the locks of
    // both sides. False: the device is lost, see failed().
    virtual bool recover(ibv_qp*) noexcept { return true; }
    // Has the QP stopped, as far as the device tells? Such a QP may have no completion that says so.
    // Serialised with recover().
    virtual bool stopped(ibv_qp*) noexcept { return false; }
    // `call` is made when an asynchronous event says that the QP failed. Internal thread, no lock held.
    virtual void on_qp_failure(std::function<void()> /*call*/) {}
    // The device died or was taken away (asynchronous event), and no call works any more. Any thread. The
    // internal thread calls on_failure()'s function once.
    virtual bool failed() const noexcept { return false; }
    virtual void on_failure(std::function<void()>) {}
    // create_flow() answers EBUSY for a rule that another process has. The internal thread calls this
    // function, with no lock held, when such a rule may be free.
    virtual void on_rule_freed(std::function<void()> /*call*/) {}
    // Removes the flow rules of a failed device, so that the kernel gets the frames that still arrive. Call
    // it when the kernel knows the device's sockets: the kernel resets connections that it does not know.
    virtual void give_up_flows() noexcept {}
    // The link's MTU or MAC changed. The internal thread calls this.
    virtual void link_changed(const MacAddress&, std::uint32_t /*mtu*/) noexcept {}
    // Sets the sources from which 3-tuple rules take frames, where the device's rules can tell (not where
    // coarse_steering). May throw std::bad_alloc.
    virtual Result<void> set_sources(const net::SourceFilter&) { return {}; }
    // Has the interface receive queues that this device takes no frames from? Once a second or so, one thread
    // at a time.
    virtual bool has_new_queues() noexcept { return false; }
    // Takes frames from these, too, as soon as there are receives: returns how many it wants. As
    // has_new_queues(), and serialised with the receive side. attr().details tells afterwards.
    virtual std::uint32_t follow_queues() noexcept { return 0; }
    // Counts one reader of arrival_ns() more or less. Without a reader, a device may leave the time out of
    // completions.
    static void want_arrival_times(bool on) noexcept {
        arrival_times_wanted_.fetch_add(on ? 1 : -1, std::memory_order_relaxed);
    }
    static bool arrival_times_wanted() noexcept {
        return arrival_times_wanted_.load(std::memory_order_relaxed) > 0;
    }
    // Frames that the device itself dropped on receive since it was opened (no buffer posted, ring full,
    // invalid).
    virtual std::uint64_t rx_device_drops() noexcept { return 0; }
    // How often a thread found a lock taken that this device shares with further() ones. Any thread.
    virtual std::uint64_t lock_waits() const noexcept { return 0; }

  protected:
    Device() = default;
    DeviceAttr attr_;
    ibv_context context_{};
    bool leaves_kicks_ = false;
    bool kick_left_ = false;

  private:
    static inline std::atomic<int> arrival_times_wanted_{0};
};

}  // namespace vma::verbs
