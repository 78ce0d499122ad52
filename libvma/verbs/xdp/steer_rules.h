// SPDX-License-Identifier: BSD-2-Clause
// The XDP program's table of rules in this process's memory (struct steer_bucket in steer.h). A rule comes,
// goes and moves by plain stores, without a system call and without a lock.
#pragma once

#include <linux/types.h>

#include <array>
#include <cstdint>

#include "libvma/bpf/map_memory.h"
#include "libvma/verbs/device.h"
#include "libvma/verbs/xdp/steer.h"

namespace vma::verbs::xdp {

using vma::bpf::MappedArray;

class SteerRules {
  public:
    using Seeds = std::array<__u64, STEER_SEEDS>;

    // Maps the table and draws the secret of its hash, which the program has to get before a rule comes.
    bool map(int fd) noexcept;
    const Seeds& seeds() const noexcept { return seeds_; }

    // Any thread; but only one at a time has to do with a rule. False: the bucket is full, or there is no
    // such rule.
    bool add(const FlowSpec& spec, std::uint32_t slot) noexcept;
    bool move(const FlowSpec& spec, std::uint32_t slot) noexcept { return set(spec, slot + 1); }
    bool remove(const FlowSpec& spec) noexcept { return set(spec, 0); }

  private:
    struct Place;
    Place place_of(const FlowSpec& spec) const noexcept;
    bool set(const FlowSpec& spec, std::uint32_t slot_plus_1) noexcept;

    Seeds seeds_{};
    MappedArray<std::array<steer_bucket, STEER_BUCKETS>> table_;
};

}  // namespace vma::verbs::xdp
