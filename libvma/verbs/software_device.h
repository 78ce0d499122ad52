// SPDX-License-Identifier: BSD-2-Clause
// The verbs objects of a device made of software: one memory region, one channel, one CQ each way, one QP.
//
// No kernel object is behind these objects. So they are plain members, filled in so that libibverbs' inline
// calls find the device's own functions. An implementation adds the code that moves frames.
#pragma once

#include "libvma/verbs/device.h"

namespace vma::verbs {

class SoftwareDevice : public Device {
  public:
    ~SoftwareDevice() override;
    // The first CQ with a channel is the one for receiving.
    Result<ibv_cq*> create_cq(int entries, ibv_comp_channel* channel) override;

  protected:
    struct Calls {
        int (*post_send)(ibv_qp*, ibv_send_wr*, ibv_send_wr**);
        int (*post_recv)(ibv_qp*, ibv_recv_wr*, ibv_recv_wr**);
        int (*poll_cq)(ibv_cq*, int, ibv_wc*);
        int (*req_notify_cq)(ibv_cq*, int);
    };
    // Call once attr_.name is set.
    void set_calls(const Calls& calls) noexcept;
    // The device of an object that a call gets.
    template <class Derived>
    static Derived& device_of(ibv_context* context) noexcept {
        return *static_cast<Derived*>(static_cast<SoftwareDevice*>(context->abi_compat));
    }

    ibv_mr* fill_mr(void* addr, std::size_t length) noexcept;
    ibv_comp_channel* fill_channel(int fd) noexcept;
    ibv_qp* fill_qp(const ibv_qp_init_attr& init) noexcept;

    ibv_mr mr_{};
    ibv_comp_channel channel_{};
    ibv_cq recv_cq_{}, send_cq_{};
    ibv_qp qp_{};
    bool have_mr_ = false, have_recv_cq_ = false, have_qp_ = false;

  private:
    ibv_device verbs_device_{};
    ibv_pd pd_{};
};

}  // namespace vma::verbs
