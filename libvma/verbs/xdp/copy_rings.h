// SPDX-License-Identifier: BSD-2-Clause
// Receiving by copy: the tcx program puts the frames into the process's memory itself (vma_steer_copy in
// steer.bpf.c). No AF_XDP socket receives, and no generic XDP program copies the frame before.
//
// All memory that the program writes is that of BPF maps, which this process has mapped: the chunks, a ring
// of posted chunks, and a ring of received frames for each slot. The rings are laid out as an XSK's, so
// XskRing reads and writes them. A slot's reader that wants to sleep arms its ring. The next frame then makes
// the slot's descriptor readable: it is a BPF ring buffer, which user space may poll.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "libvma/bpf/map_memory.h"
#include "libvma/runtime/error.h"
#include "libvma/runtime/internal_fd.h"
#include "libvma/verbs/xdp/steer.h"
#include "libvma/verbs/xdp/steer_load.h"
#include "libvma/verbs/xdp/xsk.h"

namespace vma::verbs::xdp {

using vma::bpf::MapMemory;

class CopyRings {
  public:
    // Maps the rings that the program has. Closes the descriptors.
    static Result<std::unique_ptr<CopyRings>> make(CopyMaps maps);

    // Puts the program's memory in place of what is mapped at [memory, memory + length): page aligned, and
    // `length` a multiple of STEER_CHUNK. Its content is lost.
    Result<void> back(void* memory, std::size_t length);
    // `fill` becomes the ring of posted chunks.
    void use_posted(XskRing<std::uint64_t>& fill) noexcept;
    // `rx` becomes the ring of a slot: `size` entries from `first` on, a power of two. Frames arrive from now
    // on.
    Result<void> open(unsigned slot, XskRing<xdp_desc>& rx, std::uint32_t first, std::uint32_t size);
    // Frames of the slot go to the kernel from now on.
    void close(unsigned slot) noexcept;

    // Readable after arm() and a frame, until consume().
    InternalFd& descriptor(unsigned slot) noexcept { return wakes_[slot].fd; }
    // One event for a frame that comes after the call. The caller looks at the ring after it.
    void arm(unsigned slot) noexcept;
    void consume(unsigned slot) noexcept;
    // Frames that found no room.
    std::uint64_t dropped(unsigned slot) const noexcept;

  private:
    // The kernel's BPF ring buffer: positions in pages of their own.
    struct Wake {
        InternalFd fd;
        MapMemory consumer, producer;
    };
    explicit CopyRings(CopyMaps maps) noexcept;
    steer_ring& ring(unsigned number) const noexcept { return rings_.as<steer_ring>()[number]; }

    CopySizes sizes_;
    InternalFd memory_map_, wakes_map_;
    MapMemory rings_, posted_, received_;
    std::array<Wake, STEER_MAX_SLOTS> wakes_;
};

}  // namespace vma::verbs::xdp
