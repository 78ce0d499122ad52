// SPDX-License-Identifier: BSD-2-Clause
// A further AF_XDP device on a netdev that this process has opened (XdpDevice): XSKs of its own on the same
// queues, so that another thread sends and receives without the first one's locks.
//
// It shares umem and pools (SharedPool). What it receives is copied to the caller's memory, for which posted
// receives are plain memory; what it sends lies in its part of the umem (send_memory()).
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "libvma/verbs/xdp/xdp_device.h"
#include "libvma/verbs/xdp/xdp_sender.h"

namespace vma::verbs::xdp {

class XdpLane final : public XdpSender {
  public:
    // Number `slot` of the devices that share `first`, which outlives it.
    XdpLane(XdpDevice& first, unsigned slot);

    ~XdpLane() override;

    Result<ibv_mr*> reg_mr(void* addr, std::size_t length) override;
    std::span<std::uint8_t> send_memory() noexcept override;
    // EINVAL, and what bind(2) says.
    Result<ibv_qp*> create_qp(const ibv_qp_init_attr& init) override;
    Result<Flow*> create_flow(ibv_qp* qp, const FlowSpec& spec, std::uint32_t tag = 0) override;
    void destroy_flow(Flow* flow) noexcept override;
    Result<Flow*> take_flow(ibv_qp* qp, Device& from, Flow* flow, std::uint32_t tag) override;
    void link_changed(const MacAddress& mac, std::uint32_t mtu) noexcept override;
    bool has_new_queues() noexcept override { return followed_ < first_.queues() && !failed(); }
    std::uint32_t follow_queues() noexcept override;

  private:
    Result<void> open_queue();
    static int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad);
    static int poll_cq(ibv_cq* cq, int count, ibv_wc* wc);
    int poll_recv(int count, ibv_wc* wc) noexcept;
    bool take(const xdp_desc& from, ibv_wc& out) noexcept;
    void give_back(std::size_t queue) noexcept;

    struct Posted {
        std::uint8_t* to;
        std::uint64_t wr_id;
    };
    XdpDevice& first_;
    std::vector<Posted> posted_;                     // the last one was in use last
    std::vector<std::vector<std::uint64_t>> taken_;  // by queue: chunks to give back
    std::size_t next_poll_ = 0;
    std::size_t followed_ = 0;  // of the first device's queues: those beyond queues_ were refused
};

}  // namespace vma::verbs::xdp
