// SPDX-License-Identifier: BSD-2-Clause
// The HwClock of an open device. The internal thread keeps it right as long as the device is open.
#pragma once

#include <memory>

#include "libvma/verbs/mlx5/direct.h"
#include "libvma/verbs/rdma/hw_clock.h"
#include "libvma/verbs/rdma/library.h"

namespace vma::verbs::rdma {

class DeviceClock final : public mlx5::Clock {
  public:
    // `attr` as for HwClock; `mlx5`: the table of libmlx5 for a libmlx5 device, else null.
    DeviceClock(ibv_context* context, const HwClock::Attr& attr, const Mlx5* mlx5);
    // Ends all reading of the device. A forked child calls release() on its pointer instead.
    ~DeviceClock() override;

    std::uint64_t to_ns(std::uint64_t ticks) noexcept override;
    const HwClock& clock() const noexcept;
    bool usable() const noexcept { return clock().conversion() != Conversion::none; }
    // Reads the clocks now; the internal thread calls this about once a second.
    void synchronise() noexcept;

  private:
    struct Shared;  // shared with the internal thread, which may be reading the clocks
    std::shared_ptr<Shared> shared_;
};

}  // namespace vma::verbs::rdma
