// SPDX-License-Identifier: BSD-2-Clause
// Whose a buffer is, the library's or the program's (the extra API), and since when. Each time that the
// program has it is a tenure of its own, with an odd number. So what was given back is told from what was
// kept anew. Any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace vma::ring {

class Tenure {
  public:
    // The number of the tenure that begins. The buffer is the caller's.
    std::uint32_t begin() noexcept {
        resume(number_ + 1);
        return number_;
    }
    std::uint32_t now() const noexcept {
        return std::atomic_ref(const_cast<std::uint32_t&>(number_)).load(std::memory_order_acquire);
    }
    bool is(std::uint32_t number) const noexcept { return (number & 1) != 0 && now() == number; }
    // The buffer is the caller's; false: another thread was first.
    bool end(std::uint32_t number) noexcept {
        return std::atomic_ref(number_).compare_exchange_strong(number, number + 1,
                                                                std::memory_order_acq_rel);
    }
    // The caller, who ended it, gives the buffer back to the program: as if it had not ended.
    void resume(std::uint32_t number) noexcept {
        std::atomic_ref(number_).store(number, std::memory_order_release);
    }

  private:
    std::uint32_t number_ = 0;  // no std::atomic: descriptors are copied while the library has them
};

}  // namespace vma::ring
