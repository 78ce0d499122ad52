// SPDX-License-Identifier: BSD-2-Clause
// What has arrived out of sequence, and what of it the SACK option tells the peer.
//
// Kept in place of lwIP's list of segments, which is linear, and in which each segment keeps its memory
// however little of it is still wanted. Here are runs: stretches without a gap, in a sorted array. All bytes
// are copied into blocks, so a run of single bytes costs little more than one of full segments, and nothing
// here keeps a buffer of the ring.
//
// The peer decides what arrives, so all is bounded: bytes by the receive window, runs by kMaxRuns, and the
// memory beyond the bytes by five eighths of the window. Where that is not enough, what is last gives way to
// what comes before it, and the peer sends it again (RFC 2018 section 8 allows that). Finding a place is a
// binary search, and each byte is copied once.
//
// Not locked: it belongs to its connection.
#pragma once

#include <cstddef>
#include <cstdint>

#include "libvma/tcp/lwip/types.h"
#include "libvma/tcp/recovery/sack.h"

namespace vma::tcp {

class Reassembly {
  public:
    static constexpr std::size_t kMaxRuns = 170;  // as many as fit into the largest block of the pool
    static constexpr std::size_t kMaxBlocks = 4;  // that a SACK option has room for

    Reassembly() = default;
    ~Reassembly() { clear(); }
    Reassembly(const Reassembly&) = delete;
    Reassembly& operator=(const Reassembly&) = delete;

    // Copies what is new of the `length` bytes at `chain`, whose first has the number `seq`. `window`: the
    // receive window's full size. False: not all of it could be kept.
    bool keep(std::uint32_t seq, const lwip::Piece* chain, std::uint32_t length,
              std::uint32_t window) noexcept;
    // The data from `next` on, as far as it has no gap: a chain of `bytes` bytes that is the caller's from
    // now on, or null. What lies before `next` is forgotten; the first stretch of that is `twice`.
    lwip::Piece* take(std::uint32_t next, std::uint32_t& bytes, SackBlock& twice) noexcept;
    // The peer's FIN has the number `seq`. It is reported like a byte.
    void keep_fin(std::uint32_t seq) noexcept;
    bool has_fin() const noexcept { return fin_; }
    void drop_fin() noexcept { fin_ = false; }
    std::uint32_t fin_at() const noexcept { return fin_at_; }
    void clear() noexcept;

    bool empty() const noexcept { return count_ == 0 && !fin_; }
    std::size_t runs() const noexcept { return count_; }
    std::size_t bytes() const noexcept { return bytes_; }
    std::size_t held() const noexcept { return held_; }  // bytes of memory
    // The blocks for a SACK option, the one that changed last first (RFC 2018 section 4). Returns how many.
    std::size_t blocks(SackBlock* out, std::size_t most) const noexcept;
    // What of [left, right) is known already: the first stretch of it, or an empty block.
    SackBlock known(std::uint32_t left, std::uint32_t right) noexcept;
    // Runs and pieces looked at, ever; for tests.
    std::uint64_t steps() const noexcept { return steps_; }

  private:
    struct Run {
        std::uint32_t left, right;
        lwip::Piece* first;
        lwip::Piece* last;
    };
    struct Reader;

    std::size_t find(std::uint32_t seq) noexcept;
    bool insert(std::size_t at, std::uint32_t seq, std::uint32_t window) noexcept;
    void erase(std::size_t at, std::size_t how_many) noexcept;
    bool fill(Run& run, Reader& from, std::uint32_t bytes, std::uint32_t window) noexcept;
    std::uint32_t reported_end(const Run& run) const noexcept {
        return run.right + (fin_ && run.right == fin_at_ ? 1 : 0);
    }
    void report(SackBlock block) noexcept;
    void release() noexcept;
    bool drop_last(std::uint32_t behind) noexcept;
    bool fits(std::size_t more_memory, std::size_t more_bytes, std::uint32_t window) const noexcept;

    Run* runs_ = nullptr;  // by sequence number; neither overlapping nor touching
    std::size_t count_ = 0, capacity_ = 0, array_bytes_ = 0;
    std::size_t bytes_ = 0, held_ = 0;
    std::uint64_t steps_ = 0;
    std::uint32_t fin_at_ = 0;  // if fin_
    bool fin_ = false;
    SackBlock recent_[kMaxBlocks];
    std::size_t recent_count_ = 0;
};

}  // namespace vma::tcp
