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

#include "libvma/verbs/xdp/descriptors.h"
#include "libvma/verbs/xdp/holder.h"
#include "libvma/verbs/xdp/steer.h"
#include "libvma/verbs/xdp/steering.h"
#include "libvma/verbs/xdp/xdp_sender.h"
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
    // The netdev has no queues of hardware, and its peer is in this machine's kernel (veth).
    bool inside = false;
    unsigned rings = 1;  // devices on the netdev, this one and further(); there may be fewer
    // How long an ending process may take to release the netdev.
    std::uint64_t patience_ns = 1'000'000'000;
};

class XdpDevice final : public XdpSender {
  public:
    // Attaches the program. reg_mr() and create_qp() make the sockets. EBUSY, from each of them: another
    // process holds the netdev, or did not release it within patience_ns. The device does not wait for a
    // living holder.
    static Result<std::unique_ptr<XdpDevice>> open(XdpConfig config);
    ~XdpDevice() override;

    Result<void> back(void* memory, std::size_t length) override {
        return copies_ != nullptr ? copies_->back(memory, length) : Result<void>();
    }
    Result<ibv_mr*> reg_mr(void* addr, std::size_t length) override;
    Result<ibv_qp*> create_qp(const ibv_qp_init_attr& init) override;
    Result<Flow*> create_flow(ibv_qp* qp, const FlowSpec& spec, std::uint32_t tag = 0) override;
    void destroy_flow(Flow* flow) noexcept override;
    Result<Flow*> take_flow(ibv_qp* qp, Device& from, Flow* flow, std::uint32_t tag) override;
    void link_changed(const MacAddress& mac, std::uint32_t mtu) noexcept override;
    void on_rule_freed(std::function<void()> call) override { on_freed_ = std::move(call); }
    // Takes the program off the netdev. One that was gone may have come back: tells that it can be opened
    // again.
    void give_up_flows() noexcept override;
    Result<void> set_sources(const net::SourceFilter& sources) override {
        return steering_.set_sources(sources);
    }
    Result<std::unique_ptr<Device>> further() override;
    bool has_new_queues() noexcept override;
    std::uint32_t follow_queues() noexcept override;

    // ---- for further devices ----
    SharedPool* pool() noexcept { return pool_; }
    Steering& steering() noexcept { return steering_; }
    CopyRings* copies() noexcept { return copies_; }
    const std::string& netdev() const noexcept { return config_.name; }
    std::size_t queues() const noexcept { return queues_.size(); }
    Xsk& queue(std::size_t number) noexcept { return *queues_[number]; }
    // Entries of the ring of received frames that devices before number `slot` have.
    std::uint32_t receives_before(unsigned slot) const noexcept {
        return rx_per_queue_ + (slot - 1) * pool_->receives();
    }
    bool scatters() const noexcept { return scatter_; }
    bool inside() const noexcept { return config_.inside; }
    bool may_grow() const noexcept { return found_.allocated > 1; }

  private:
    // What open() learned of the netdev.
    struct Found {
        std::string refusal;            // why the driver has no native XDP
        unsigned queues = 0;            // receive queues in use
        unsigned allocated = 0;         // that may come into use
        bool may_avoid_copies = false;  // true also where the kernel does not tell
        bool driver_sums = false;       // when it avoids copies
    };
    XdpDevice(XdpConfig config, Found found, Steering steering, std::unique_ptr<CopyRings> copies);

    static int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad);
    static int poll_cq(ibv_cq* cq, int count, ibv_wc* wc) {
        auto& d = device_of<XdpDevice>(cq->context);
        return cq == &d.recv_cq_ ? d.poll_recv(count, wc) : d.poll_send(count, wc);
    }

    struct Plan;
    void share(const Plan& plan);
    std::string details() const;
    Result<void> open_queue(unsigned q, const std::vector<std::uint16_t>& ways);
    Mode mode() const noexcept { return config_.modes.front(); }
    int post(ibv_recv_wr* wr, ibv_recv_wr** bad) noexcept;
    Xsk* emptiest_queue() noexcept;
    void feed(Xsk& queue) noexcept;
    int poll_recv(int count, ibv_wc* wc) noexcept;
    void wake_drivers() noexcept;

    XdpConfig config_;
    Found found_;
    std::unique_ptr<CopyRings> rings_;  // copies_
    Steering steering_;
    std::function<void()> on_freed_;
    InternalFd name_;                // announces that this process holds the netdev
    std::uint64_t deadline_ns_ = 0;  // of the opening, CLOCK_MONOTONIC
    std::uint32_t rx_per_queue_ = 0, fill_per_queue_ = 0;
    unsigned next_poll_ = 0;
    Receives receives_;
    std::uint8_t* received_ = nullptr;    // the memory; sends are in its end (memory_)
    std::unique_ptr<SharedPool> shared_;  // pool_
    unsigned opened_ = 1;                 // devices on it
    bool zero_copy_ = false;
};

}  // namespace vma::verbs::xdp
