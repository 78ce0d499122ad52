// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/recorder.h"

#include "tools/common/sums.h"

namespace vma_perf {
namespace {

constexpr std::uint64_t Counters::*kAll[] = {
    &Counters::sent, &Counters::received,   &Counters::bytes_sent, &Counters::bytes_received, &Counters::lost,
    &Counters::late, &Counters::duplicates, &Counters::reordered,  &Counters::corrupt};

}  // namespace

Counters& Counters::operator+=(const Counters& other) noexcept {
    tools::add_members(*this, other, kAll);
    return *this;
}

Counters Recorder::counters() const noexcept {
    Counters copy;
    for (const auto field : kAll) copy.*field = vma::stats::load(counters_.*field);
    return copy;
}

}  // namespace vma_perf
