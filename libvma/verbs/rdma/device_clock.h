// SPDX-License-Identifier: BSD-2-Clause
// The HwClock of an open device, kept right by the internal thread as long as the device is open.
#pragma once

#include <memory>

#include "libvma/verbs/mlx5/direct.h"
#include "libvma/verbs/rdma/hw_clock.h"
#include "libvma/verbs/rdma/library.h"

namespace vma::verbs::rdma {

class DeviceClock final : public mlx5::Clock {
  public:
    // `attr` as HwClock wants it; `mlx5`: the table of libmlx5 if the device is one of its, else null.
    DeviceClock(ibv_context* context, const HwClock::Attr& attr, const Mlx5* mlx5);
    // No look at the device afterwards. In a forked child release() instead.
    ~DeviceClock() override;

    std::uint64_t to_ns(std::uint64_t ticks) noexcept override;
    const HwClock& clock() const noexcept;
    bool usable() const noexcept { return clock().conversion() != Conversion::none; }
    // Reads the clocks now; the internal thread does so about once a second.
    void synchronise() noexcept;

  private:
    struct Shared;  // with the internal thread, which may be in the midst of a look
    std::shared_ptr<Shared> shared_;
};

}  // namespace vma::verbs::rdma
