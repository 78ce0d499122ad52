// SPDX-License-Identifier: BSD-2-Clause
// Converts the adapter's clock to nanoseconds: a program's meaning of a received frame's time stamp.
//
// The adapter counts cycles of its own crystal, which no clock discipline sets. VMA_HW_TS_CONVERSION chooses
// the conversion:
//   none    no time stamps
//   raw     cycles divided by the nominal frequency: right intervals, arbitrary beginning
//   best    as system where the clock can be read, else as raw
//   system  CLOCK_REALTIME: about once a second both clocks are read together, for a point and the frequency
//   ptp     the adapter's own PTP clock, which the kernel keeps for ptp4l (a page that mlx5 shares); else
//   system
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

// Both clocks at the same moment, with an error of half of `width_ns`.
struct ClockPair {
    std::uint64_t ticks = 0, ns = 0, width_ns = 0;
};

class HwClock {
  public:
    struct Attr {
        Conversion conversion = Conversion::none;
        std::uint64_t khz = 0;                       // nominal (ibv_device_attr_ex::hca_core_clock)
        std::uint64_t mask = 0;                      // of a time stamp's bits (completion_timestamp_mask)
        std::uint64_t ptp_mask = ~std::uint64_t{0};  // of the bits that the PTP clock's line counts with
    };
    // The calls that read the clocks. An empty function, or one without an answer, means that the device
    // lacks the clock.
    struct Source {
        std::function<std::optional<ClockPair>()> pair;  // device and CLOCK_REALTIME
        std::function<std::optional<ClockLine>()> ptp;   // the kernel's line for the adapter's PTP clock
    };

    // The conversion in use: the one asked for, or its replacement; none without any usable clock.
    HwClock(const Attr& attr, Source source);
    Conversion conversion() const noexcept { return attr_.conversion; }

    // Nanoseconds of a time stamp, which may be some seconds old. Any thread, without a lock.
    std::uint64_t to_ns(std::uint64_t ticks) const noexcept;
    // Reads the clocks anew. Call it about once a second, on one thread at a time. Does nothing for
    // conversions none and raw.
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
