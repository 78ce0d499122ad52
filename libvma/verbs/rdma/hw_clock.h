// SPDX-License-Identifier: BSD-2-Clause
// From the adapter's clock to nanoseconds: what the time stamp of a received frame means to a program.
//
// The adapter counts cycles of its own crystal, which nobody sets. VMA_HW_TS_CONVERSION says what becomes of
// them:
//   none    no time stamps
//   raw     cycles divided by the nominal frequency: right intervals, any beginning
//   best    as system where the clock can be read, else as raw
//   system  CLOCK_REALTIME: both clocks are read together about once a second, which gives a point and the
//   true frequency ptp     the adapter's own PTP clock, as the kernel keeps it for ptp4l (a page that mlx5
//   shares); where there is none, as system
//
// All but raw are a straight line through the last point, so a step of the system's clock shows within a
// second.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>

namespace vma::verbs::rdma {

enum class Conversion : int { none = 0, raw = 1, best = 2, system = 3, ptp = 4 };

// A straight line: `ns` at `ticks`, and from there `mult` / 2^32 nanoseconds a tick.
struct ClockLine {
    std::uint64_t ticks = 0, ns = 0, mult = 0;
    friend bool operator==(const ClockLine&, const ClockLine&) = default;
};

// Both clocks at the same moment, but for half of `width_ns`.
struct ClockPair {
    std::uint64_t ticks = 0, ns = 0, width_ns = 0;
};

class HwClock {
  public:
    struct Attr {
        Conversion conversion = Conversion::none;
        std::uint64_t khz = 0;   // nominal (ibv_device_attr_ex::hca_core_clock)
        std::uint64_t mask = 0;  // of the bits a time stamp has (completion_timestamp_mask)
        std::uint64_t ptp_mask = ~std::uint64_t{0};  // of those that the PTP clock's line counts with
    };
    // How the clocks are read. A function that is empty, or answers nothing, is a thing the device does not
    // have.
    struct Source {
        std::function<std::optional<ClockPair>()> pair;  // device and CLOCK_REALTIME
        std::function<std::optional<ClockLine>()> ptp;   // the kernel's line for the adapter's PTP clock
    };

    // What is really done: `conversion` as asked for, or what there is in its place; none where nothing is
    // left.
    HwClock(const Attr& attr, Source source);
    Conversion conversion() const noexcept { return attr_.conversion; }

    // Nanoseconds of a time stamp, also of one that is some seconds old. Any thread, without a lock.
    std::uint64_t to_ns(std::uint64_t ticks) const noexcept;
    // Reads the clocks anew. About once a second, one thread at a time; nothing happens in conversions none
    // and raw.
    void synchronise() noexcept;

  private:
    void set_line(const ClockLine& line) noexcept;
    void follow_system() noexcept;
    ClockLine line_now() const noexcept;

    Attr attr_;
    Source source_;
    std::uint64_t nominal_ = 0;  // mult at the nominal frequency
    std::optional<ClockPair> last_;
    // A sequence lock: odd while the line is being written.
    std::atomic<std::uint32_t> sequence_{0};
    std::atomic<std::uint64_t> ticks_{0}, ns_{0}, mult_{0};
};

}  // namespace vma::verbs::rdma
