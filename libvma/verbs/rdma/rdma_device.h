// SPDX-License-Identifier: BSD-2-Clause
// An RDMA device of the kernel with Ethernet ports: a RAW_PACKET QP of it, through libibverbs.
//
// Any provider with raw packet QPs will do. The ring gets facades in place of the real objects. They stack
// where the library does more than the provider:
//   mlx5::Direct   ConnectX: direct access to the queues, without the provider in the data path
//   StampedCq      time stamps and flow tags of completions, for other providers and without Direct
//   VlanLayer      the netdev is a VLAN on the device's port
// The adapter steers like a switch: this process gets the frames that a rule matches, the kernel gets all
// others.
//
// The device's descriptors (device, asynchronous events, completion channel) are internal ones
// (runtime/internal_fd.h). A forked child has closed them, and this class calls no verbs there.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "libvma/runtime/clock.h"
#include "libvma/runtime/internal_fd.h"
#include "libvma/verbs/device.h"
#include "libvma/verbs/mlx5/direct.h"
#include "libvma/verbs/rdma/device_clock.h"
#include "libvma/verbs/rdma/discovery.h"
#include "libvma/verbs/rdma/flow_table.h"
#include "libvma/verbs/rdma/library.h"
#include "libvma/verbs/rdma/stamped_cq.h"
#include "libvma/verbs/rdma/vlan.h"

namespace vma::verbs::rdma {

struct RdmaConfig {
    Port port;           // see discovery.h
    std::string netdev;  // the netdev that sockets use; of a VLAN, the VLAN's name
    int ifindex = 0;
    MacAddress mac{};
    std::uint32_t mtu = 1500;
    std::uint16_t vlan = 0;                               // its VLAN id, or 0
    net::VlanPriorities priorities;                       // of the VLAN's frames
    std::uint32_t rx_entries = 16000, tx_entries = 2048;  // VMA_RX_WRE, VMA_TX_WRE
    std::uint32_t max_inline = 204;                       // VMA_TX_MAX_INLINE
    RuleOptions rules;                      // open() fills in MAC and VLAN from the members above
    Conversion hw_ts = Conversion::system;  // VMA_HW_TS_CONVERSION
    bool partial_sums = false;              // DeviceAttr::partial_sums: the netdev is a virtual one
    bool fork = true;                       // VMA_FORK
    bool mlx5_direct = true;                // VMA_MLX5_DIRECT
    mlx5::Config direct;                    // the parameters' values; open() fills in the rest
};

class RdmaDevice final : public Device {
  public:
    // Opens the device. Errors tell the remedy. EBUSY in a vforked child.
    static Result<std::unique_ptr<RdmaDevice>> open(RdmaConfig config);
    // Does nothing in a forked child, because all objects are the parent's.
    ~RdmaDevice() override;

    Result<ibv_mr*> reg_mr(void* addr, std::size_t length) override;
    Result<ibv_comp_channel*> create_comp_channel() override;
    // The first CQ with a channel is the one for receiving.
    Result<ibv_cq*> create_cq(int entries, ibv_comp_channel* channel) override;
    // EOPNOTSUPP where mlx5::Direct does not read the device's form of queues; the device works without
    // Direct.
    Result<ibv_qp*> create_qp(const ibv_qp_init_attr& init) override;
    Result<Flow*> create_flow(ibv_qp* qp, const FlowSpec& spec, std::uint32_t tag = 0) override;
    void destroy_flow(Flow* flow) noexcept override;
    Result<Flow*> take_flow(ibv_qp* qp, Device& from, Flow* flow, std::uint32_t tag) override;
    bool mark(ibv_qp* qp, std::uint64_t wr_id) noexcept override;
    void consume_events(ibv_comp_channel* channel) noexcept override;
    void moderate(ibv_cq* cq, std::uint16_t count, std::uint16_t period_usec) noexcept override;
    void stop(ibv_qp* qp) noexcept override;
    bool recover(ibv_qp* qp) noexcept override;
    bool stopped(ibv_qp* qp) noexcept override;
    void on_qp_failure(std::function<void()> call) override;
    bool failed() const noexcept override { return failed_.load(std::memory_order_acquire); }
    void on_failure(std::function<void()> call) override;
    void give_up_flows() noexcept override;
    void on_rule_freed(std::function<void()> call) override { claims_->on_freed(std::move(call)); }
    void link_changed(const MacAddress& mac, std::uint32_t mtu) noexcept override;
    // Of the whole RDMA device: frames of all QPs and processes without a posted receive. 0 where sysfs does
    // not tell.
    std::uint64_t rx_device_drops() noexcept override;

    bool is_direct() const noexcept { return direct_ != nullptr; }

  private:
    struct Failure;
    RdmaDevice(RdmaConfig config, const Verbs& verbs, ibv_context* context);
    Result<void> start();
    Result<void> query();
    void open_direct();
    void watch_async_events();
    void async_event() noexcept;
    void fail_device(const std::string& why) noexcept;
    static void tell_failure(const std::shared_ptr<Failure>& failure);
    std::uint32_t buffer_for(std::uint32_t mtu) const noexcept;
    ibv_qp* make_qp(ibv_qp_init_attr_ex& init) noexcept;
    bool to_state(ibv_qp_state state) noexcept;
    int bring_up() noexcept;
    ibv_cq_ex* make_extended_cq(int entries, ibv_comp_channel* channel) noexcept;
    void hide(int& fd, InternalFd& hidden) noexcept;
    void destroy() noexcept;
    std::uint64_t drops_in_sysfs() const;

    RdmaConfig config_;
    const Verbs& verbs_;
    const int owner_;  // process that opened the device
    InternalFd cmd_fd_, async_fd_, channel_fd_;

    // Real objects of libibverbs.
    ibv_context* real_;
    ibv_pd* pd_ = nullptr;
    ibv_mr* mr_ = nullptr;
    ibv_comp_channel* channel_ = nullptr;
    ibv_cq *recv_cq_ = nullptr, *send_cq_ = nullptr;
    ibv_qp* qp_ = nullptr;

    std::unique_ptr<DeviceClock> clock_;
    std::unique_ptr<mlx5::Direct> direct_;
    std::unique_ptr<StampedCq> stamped_;
    std::unique_ptr<VlanLayer> vlan_;
    struct Facades {
        ibv_cq *recv = nullptr, *send = nullptr;  // below the VLAN
        ibv_qp* qp = nullptr;
    } facades_;

    std::unique_ptr<RuleClaims> claims_;
    std::unique_ptr<FlowTable> flows_;
    std::uint64_t largest_tso_ = 0;  // the device's limit, before the QP is made
    ibv_cq_moderation_caps moderation_{};
    std::uint64_t drops_before_ = 0;
    bool watching_ = false;
    std::atomic<bool> failed_{false};
    struct Failure {
        Lock lock;  // a leaf
        std::function<void()> call, qp_call;
        bool failed = false, told = false;
        clock::Time recovered_at;  // the QP, the last time; under the ring's receive lock
    };
    std::shared_ptr<Failure> failure_ = std::make_shared<Failure>();  // shared with the internal thread
};

}  // namespace vma::verbs::rdma
