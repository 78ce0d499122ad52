// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/ring/lent_memory.h"

#include <sys/mman.h>

#include <algorithm>

#include "libvma/config/params.h"
#include "libvma/runtime/log.h"

namespace vma::ring {
namespace {

constexpr std::size_t kPage = 4096;

}  // namespace

constinit std::atomic<LentMemory::State> LentMemory::state_{State::none};
constinit std::span<std::uint8_t> LentMemory::memory_;

std::size_t LentMemory::wanted() noexcept {
    const config::Params& p = config::get();
    const auto receives = static_cast<std::size_t>(p.rx_wre), sends = static_cast<std::size_t>(p.tx_wre);
    // As many buffers again as are posted; a page for each, and one to begin at.
    const std::size_t kept = std::max(receives, std::min(2 * receives, static_cast<std::size_t>(p.rx_bufs)));
    return (kept + sends + 1) * kPage;
}

bool LentMemory::hand_over(std::span<std::uint8_t> memory) noexcept {
    State none = State::none;
    if (!state_.compare_exchange_strong(none, State::writing)) return false;
    memory_ = memory;
    state_.store(State::there, std::memory_order_release);
    return true;
}

std::uint8_t* LentMemory::take(std::size_t length) noexcept {
    if (state_.exchange(State::over, std::memory_order_acq_rel) != State::there) return nullptr;
    const auto start = reinterpret_cast<std::uintptr_t>(memory_.data());
    const std::size_t skipped = ((start + kPage - 1) & ~(kPage - 1)) - start;
    std::uint8_t* const base = memory_.data() + skipped;
    if (memory_.size() < skipped || memory_.size() - skipped < length) {
        log::print(log::Level::warn, "the program's memory for packets is too small: {} of {} KiB",
                   memory_.size() / 1024, length / 1024);
        return nullptr;
    }
    if (madvise(base, length, MADV_POPULATE_WRITE) != 0) {
        log::print(log::Level::warn, "the program's memory for packets cannot be written");
        return nullptr;
    }
    madvise(base, length, MADV_DONTFORK);
    return base;
}

}  // namespace vma::ring
