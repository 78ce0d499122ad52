// SPDX-License-Identifier: BSD-2-Clause
// The XDP program's table of rules in this process's memory (struct steer_bucket in steer.h). A rule comes,
// goes and moves by plain stores, without a system call and without a lock.
#pragma once

#include <linux/types.h>
#include <sys/mman.h>

#include <array>
#include <cstdint>
#include <memory>

#include "libvma/verbs/device.h"
#include "libvma/verbs/xdp/steer.h"

namespace vma::verbs::xdp {

// The memory of a map with BPF_F_MMAPABLE. A forked child has it no more.
template <class T>
class MappedArray {
  public:
    bool map(int fd) noexcept {
        void* memory = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (memory == MAP_FAILED) return false;
        madvise(memory, sizeof(T), MADV_DONTFORK);
        memory_.reset(static_cast<T*>(memory));
        return true;
    }
    T& operator*() const noexcept { return *memory_; }

  private:
    struct Unmap {
        void operator()(T* memory) const noexcept { munmap(memory, sizeof(T)); }
    };
    std::unique_ptr<T, Unmap> memory_;
};

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
