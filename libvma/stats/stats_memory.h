// SPDX-License-Identifier: BSD-2-Clause
// The memory of the statistics: the file of layout.h, mapped, or private memory without a file. Code that
// counts does not see the difference.
//
// Life: start() runs when the program makes the first socket that may be offloaded. At exit and before exec
// the library marks the file as ended and removes it. A forked child must not write into its parent's file.
// So the child hook puts private pages at the same addresses, and the parent's old objects stay harmless. The
// child's own stack starts a segment of its own.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "libvma/stats/layout.h"

namespace vma::stats {

inline constexpr unsigned kMaxSockets = 1024, kRingBlocks = 64, kPoolBlocks = 2 * kRingBlocks;

struct Settings {
    unsigned sockets = 100;  // blocks, at most kMaxSockets
    std::string directory;   // one %d means the process id; empty: no file
    std::vector<ParameterBlock> parameters;
};

class StatsMemory {
  public:
    // Null without memory. `why` becomes the reason for a missing file, or empty if there is a file or
    // `settings` wants none.
    static std::unique_ptr<StatsMemory> create(const Settings& settings, std::string& why) noexcept;
    ~StatsMemory();
    StatsMemory(const StatsMemory&) = delete;
    StatsMemory& operator=(const StatsMemory&) = delete;

    Header& header() noexcept { return *reinterpret_cast<Header*>(base_); }
    SocketBlock& socket(unsigned i) noexcept { return block<SocketBlock>(Section::sockets, i); }
    RingBlock& ring(unsigned i) noexcept { return block<RingBlock>(Section::rings, i); }
    PoolBlock& pool(unsigned i) noexcept { return block<PoolBlock>(Section::pools, i); }
    MuxBlock& mux(unsigned i) noexcept { return block<MuxBlock>(Section::muxes, i); }
    GroupBlock& group(unsigned i) noexcept { return block<GroupBlock>(Section::groups, i); }
    ParameterBlock& parameter(unsigned i) noexcept { return block<ParameterBlock>(Section::parameters, i); }
    TotalsBlock& totals(unsigned i) noexcept { return block<TotalsBlock>(Section::totals, i); }
    unsigned sockets() const noexcept { return sockets_; }

    // Takes a free socket block: zeroed but for `state` and `sequence`, with an id of its own. Null if no
    // block is free, or if fewer than `spare` would be left. Lock-free. The caller fills in the description
    // and sets the state.
    SocketBlock* take_socket(unsigned spare = 0) noexcept;
    void give_socket(SocketBlock* block) noexcept;
    unsigned index_of(const SocketBlock* block) noexcept;

    bool is_file() const noexcept { return !name_.empty(); }
    std::string path() const { return directory_ + "/" + name_; }
    // Marks the file as ended and removes it; the memory stays. Idempotent.
    void end() noexcept;
    // Makes the file again, after an exec that failed.
    void resume() noexcept;
    // Removes files of killed processes from the directory. Any thread.
    void sweep() const noexcept;
    // In a forked child: makes the memory private and empty. Async-signal-safe.
    void forget_in_child() noexcept;

  private:
    StatsMemory() = default;
    template <class Block>
    Block& block(Section section, unsigned i) noexcept {
        const auto s = static_cast<unsigned>(section);
        return *reinterpret_cast<Block*>(base_ + offsets_[s] + std::size_t{i} * strides_[s]);
    }
    void lay_out(const Settings& settings);
    void fill(void* at, const Settings& settings) noexcept;

    std::byte* base_ = nullptr;
    std::size_t size_ = 0;
    unsigned sockets_ = 0;
    std::array<std::size_t, kMaxSections> offsets_{}, strides_{};
    std::array<unsigned, kMaxSections> counts_{};
    std::string directory_, name_;
    bool ended_ = false;
    StatsMemory* older_ = nullptr;  // in a forked child: the parent's segment, out of use
    friend void forget_segment_in_child() noexcept;
    std::array<std::atomic<std::uint64_t>, kMaxSockets / 64> used_{};  // a bit for each socket block
    std::atomic<unsigned> in_use_{0};
    std::atomic<unsigned> next_{0};  // where the search begins: blocks are reused late
    std::atomic<std::uint64_t> id_{0};
};

// When a process started: field 22 of /proc/<pid>/stat, 0 if unknown.
std::uint64_t start_ticks_of(long pid);

// In a forked child.
void forget_segment_in_child() noexcept;

// The process's segment, null before start().
StatsMemory* current() noexcept;
// Makes the segment according to VMA_STATS_*. Once; callers serialise. After a failure the program goes on
// without statistics.
void start() noexcept;
// Marks the file as ended and removes it, because the process ends or becomes another program. resume(): the
// exec failed.
void end() noexcept;
void resume() noexcept;
// Calls remove_stale_files() for the process's directory, if the process has a file there. Any thread.
void sweep() noexcept;

}  // namespace vma::stats
