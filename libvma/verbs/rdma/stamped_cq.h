// SPDX-License-Identifier: BSD-2-Clause
// A receive CQ whose completions carry values without a field in ibv_poll_cq(): the time of arrival and the
// flow tag.
//
// An extended CQ gives both only by a call for each field of each completion. That costs some dozen
// instructions more for each frame than ibv_poll_cq(). So StampedCq reads them while a socket wants arrival
// times (Device::arrival_times_wanted()), and polls the CQ the plain way at all other times.
#pragma once

#include <infiniband/verbs.h>

#include "libvma/verbs/rdma/hw_clock.h"

namespace vma::verbs::rdma {

class StampedCq {
  public:
    // The flags to create the extended CQ with.
    static constexpr std::uint64_t kTimes = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
    static constexpr std::uint64_t kTags = IBV_WC_EX_WITH_FLOW_TAG;

    // `below` was made with kTimes, and with kTags if `tags`. The clock must outlive this object.
    StampedCq(ibv_cq_ex* below, const HwClock& clock, bool tags) noexcept;
    StampedCq(const StampedCq&) = delete;
    StampedCq& operator=(const StampedCq&) = delete;

    // Lives as long as this object.
    ibv_cq* facade() noexcept { return &cq_; }

  private:
    static int poll(ibv_cq* cq, int count, ibv_wc* wc);
    static int arm(ibv_cq* cq, int solicited_only);
    void read(ibv_wc& wc) noexcept;

    ibv_cq_ex* below_;
    const HwClock& clock_;
    const bool tags_;
    ibv_context context_{};
    ibv_cq cq_{};
};

}  // namespace vma::verbs::rdma
