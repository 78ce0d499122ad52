// SPDX-License-Identifier: BSD-2-Clause
// The table of strays.bpf.c in this process's memory: which connections are the library's. A tuple comes and
// goes by plain stores, without a system call.
//
// Locks: one of its own, a leaf. Any thread.
#pragma once

#include <array>
#include <cstdint>

#include "libvma/bpf/map_memory.h"
#include "libvma/ring/strays/strays.h"
#include "libvma/runtime/lock.h"
#include "libvma/verbs/device.h"

namespace vma::ring {

class StrayTuples {
  public:
    using Seeds = std::array<__u64, STRAYS_SEEDS>;

    // Maps the table, and draws the secret of its hash, which the program has to get. False: errno says why.
    // Once.
    bool map(int fd) noexcept;
    const Seeds& seeds() const noexcept { return seeds_; }

    // `spec` is a connection's, with its peer. One that is there twice has to go twice. False: both its
    // buckets are full.
    bool add(const verbs::FlowSpec& spec) noexcept;
    void remove(const verbs::FlowSpec& spec) noexcept;
    bool has(const verbs::FlowSpec& spec) const noexcept;

  private:
    std::array<stray_bucket*, 2> buckets_of(const verbs::FlowSpec& spec) const noexcept;

    mutable Lock lock_;
    Seeds seeds_{};
    bpf::MappedArray<std::array<stray_bucket, STRAYS_BUCKETS>> table_;
};

}  // namespace vma::ring
