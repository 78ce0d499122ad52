// SPDX-License-Identifier: BSD-2-Clause
// The report: as text for people, as a JSON object and as lines of CSV.
//
// Other threads may still post and poll, and a signal handler may write the report. So the functions allocate
// nothing and take no lock.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "tools/vma_trace/registry.h"

namespace vma_trace {

// Turns the times of the queues into nanoseconds.
struct TimeScale {
    std::uint64_t origin = 0;  // the time that reports call 0
    double ticks_per_ns = 1;
    double ns(std::uint64_t ticks) const noexcept { return static_cast<double>(ticks) / ticks_per_ns; }
    double since_origin(std::uint64_t ticks) const noexcept {
        return ticks < origin ? 0 : ns(ticks - origin);
    }
};

// Formatted text to a descriptor, through a buffer on the stack. What cannot be written is lost.
class Output {
  public:
    explicit Output(int fd) noexcept : fd_(fd) {}
    ~Output() { flush(); }
    Output(const Output&) = delete;
    Output& operator=(const Output&) = delete;

    // One call's text is at most kLine bytes; more is cut.
    template <class... Arguments>
    void print(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
        if (used_ + kLine > sizeof buffer_) flush();
        used_ += std::min(
            fmt::format_to_n(buffer_ + used_, kLine, format, std::forward<Arguments>(arguments)...).size,
            kLine);
    }
    void flush() noexcept;

  private:
    static constexpr std::size_t kLine = 1024;
    int fd_;
    std::size_t used_ = 0;
    char buffer_[4 * kLine];
};

// For people: a line for each queue that had requests, percentiles of latency and gaps, then `lines` requests
// of each.
void write_text(Registry& registry, const TimeScale& time, Output& out);
// {"queues": [{"device", "qp", "side", "posted", ..., "latency_us": {...}}, ...], ...}, see
// docs/vma_trace.md.
void write_json(Registry& registry, const TimeScale& time, Output& out);
// A heading, then every kept request.
void write_csv(Registry& registry, const TimeScale& time, Output& out);

}  // namespace vma_trace
