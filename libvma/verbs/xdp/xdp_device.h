// SPDX-License-Identifier: BSD-2-Clause
// A software RDMA device on any Linux netdev, over AF_XDP.
//
//   PD + MR             the umem
//   posted receive      an entry of a fill ring (the wr_id is remembered for each chunk)
//   receive CQ          the RX rings of all queues: a flow may arrive on any
//   send request        TX descriptors, one for each SGE, with checksum metadata for IBV_SEND_IP_CSUM
//   send CQ             the completion ring; only signalled requests appear, in order
//   completion channel  the XSK itself, or an epoll set of several queues' XSKs
//   flow rule           an entry of the XDP program's map; frames without a rule stay with the kernel
//
// One QP and one CQ each way. The caller serialises calls on the send side, and calls on the receive side;
// the two sides may run in parallel.
#pragma once

#include <memory>
#include <vector>

#include "libvma/verbs/lazy_kick.h"
#include "libvma/verbs/send_slots.h"
#include "libvma/verbs/software_device.h"
#include "libvma/verbs/xdp/descriptors.h"
#include "libvma/verbs/xdp/holder.h"
#include "libvma/verbs/xdp/steer.h"
#include "libvma/verbs/xdp/steering.h"
#include "libvma/verbs/xdp/super_frames.h"
#include "libvma/verbs/xdp/xsk.h"

namespace vma::verbs::xdp {

struct XdpConfig {
    std::string name;  // netdev
    int ifindex = 0;
    MacAddress mac{};
    std::uint32_t mtu = 1500;
    unsigned queues = 1;              // receive queues of the netdev
    std::vector<Mode> modes;          // to try, in order
    std::uint32_t rx_entries = 8192;  // in all queues together; rounded down to powers of two
    std::uint32_t tx_entries = 2048;
    bool zero_copy = true;     // try it first in drv mode
    bool partial_sums = true;  // DeviceAttr::partial_sums
    // How long an ending process may take to release the netdev.
    std::uint64_t patience_ns = 1'000'000'000;
};

class XdpDevice final : public SoftwareDevice {
  public:
    // Attaches the program. reg_mr() and create_qp() make the sockets. EBUSY, from each of them: another
    // process holds the netdev, or did not release it within patience_ns. The device does not wait for a
    // living holder.
    static Result<std::unique_ptr<XdpDevice>> open(XdpConfig config);
    ~XdpDevice() override;

    Result<ibv_mr*> reg_mr(void* addr, std::size_t length) override;
    Result<ibv_comp_channel*> create_comp_channel() override;
    Result<ibv_qp*> create_qp(const ibv_qp_init_attr& init) override;
    Result<Flow*> create_flow(ibv_qp* qp, const FlowSpec& spec, std::uint32_t tag = 0) override;
    void destroy_flow(Flow* flow) noexcept override;
    void flush(ibv_qp* qp) noexcept override;
    void gather(ibv_qp*, bool on) noexcept override;
    unsigned tx_held(const ibv_qp*) const noexcept override { return held_.load(std::memory_order_relaxed); }
    std::uint64_t tx_held_since(const ibv_qp*) const noexcept override {
        return held_since_.load(std::memory_order_relaxed);
    }
    void link_changed(const MacAddress& mac, std::uint32_t mtu) noexcept override;
    Result<void> set_sources(const net::SourceFilter& sources) override {
        return steering_.set_sources(sources);
    }
    std::uint64_t rx_device_drops() noexcept override;

  private:
    XdpDevice(XdpConfig config, Steering steering);

    static int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad);
    static int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad);
    static int poll_cq(ibv_cq* cq, int count, ibv_wc* wc);
    static int req_notify_cq(ibv_cq* cq, int solicited_only);

    int send_one(const ibv_send_wr& wr) noexcept;
    int send_super(const ibv_send_wr& wr) noexcept;
    void submit_and_kick() noexcept;
    void reap() noexcept;
    Xsk* emptiest_queue() noexcept;
    int poll_recv(int count, ibv_wc* wc) noexcept;
    void wake_drivers() noexcept;
    int poll_send(int count, ibv_wc* wc) noexcept;

    XdpConfig config_;
    Steering steering_;
    InternalFd name_;                // announces that this process holds the netdev
    std::uint64_t deadline_ns_ = 0;  // of the opening, CLOCK_MONOTONIC
    InternalFd epoll_;               // channel of several queues

    std::uint8_t* memory_ = nullptr;
    std::uint32_t rx_per_queue_ = 0;
    std::vector<std::unique_ptr<Xsk>> queues_;
    unsigned next_poll_ = 0;
    Receives receives_;

    SuperFrames super_;
    SendSlots slots_;
    ChunksAway sent_;      // numbers: places in slots_
    bool scatter_ = true;  // a frame may have several descriptors
    bool zero_copy_ = false;
    bool stuck_ = false;             // unsent descriptors after an error that waiting does not clear
    bool backlog_ = false;           // the kernel left submitted descriptors in the TX ring
    std::uint32_t unsubmitted_ = 0;  // TX descriptors written and not yet visible to the kernel
    LazyKick lazy_;
    std::atomic<unsigned> held_{0};
    std::atomic<std::uint64_t> held_since_{0};
};

}  // namespace vma::verbs::xdp
