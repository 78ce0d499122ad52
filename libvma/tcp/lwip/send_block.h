// SPDX-License-Identifier: BSD-2-Clause
// Large blocks for data that is to be sent, which several segments of one connection may share.
//
// A super-frame is sent from one stretch of memory: that costs the kernel half as much as the same bytes in
// as many pieces as there are frames. A segment that is cut shares its block with what is cut off, so cutting
// copies nothing. The data begins at a multiple of 64, as the kernel's copying likes it.
//
// What was once taken from the system stays with the process for later blocks, as in memory.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vma::tcp::lwip {

class SendBlock {
  public:
    static constexpr std::uint32_t kHeader = 64;
    static constexpr std::uint32_t kSmall = (16u << 10) - kHeader, kLarge = (64u << 10) - kHeader;

    // A block with room for kLarge or kSmall bytes, with one reference, which is the caller's. Null without
    // memory; errno stays as it was. Any thread, and signal handlers.
    static SendBlock* make(bool large) noexcept;

    // References are counted without a lock: they all belong to one connection, whose lock the caller has.
    void ref() noexcept { refs_++; }
    void unref() noexcept {
        if (--refs_ == 0) free();
    }
    std::uint8_t* data() noexcept { return reinterpret_cast<std::uint8_t*>(this) + kHeader; }

  private:
    friend struct SendBlockPool;

    void free() noexcept;

    SendBlock* next_;  // of the free ones
    std::uint32_t refs_;
    bool large_;
};

}  // namespace vma::tcp::lwip
