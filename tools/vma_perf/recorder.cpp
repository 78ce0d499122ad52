// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/recorder.h"

namespace vma_perf {
namespace {

constexpr std::uint64_t Counters::*kAll[] = {
    &Counters::sent, &Counters::received,   &Counters::bytes_sent, &Counters::bytes_received, &Counters::lost,
    &Counters::late, &Counters::duplicates, &Counters::reordered,  &Counters::corrupt};

}  // namespace

Counters& Counters::operator+=(const Counters& other) noexcept {
    for (const auto field : kAll) this->*field += other.*field;
    return *this;
}

Counters& Counters::operator-=(const Counters& other) noexcept {
    for (const auto field : kAll) this->*field -= other.*field;
    return *this;
}

Counters Recorder::counters() const noexcept {
    const auto get = [](const std::atomic<std::uint64_t>& counter) {
        return counter.load(std::memory_order_relaxed);
    };
    return {get(sent_), get(received_),   get(bytes_sent_), get(bytes_received_), get(lost_),
            get(late_), get(duplicates_), get(reordered_),  get(corrupt_)};
}

}  // namespace vma_perf
