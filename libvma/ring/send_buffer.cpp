// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/ring/send_buffer.h"

#include "libvma/ring/packet_regions.h"
#include "libvma/ring/ring.h"

namespace vma::ring {

std::uint64_t SendBuffer::place() const noexcept {
    PacketMemory& memory = ring->memory_;
    return PacketRegions::place_of(memory.number(),
                                   static_cast<std::uint64_t>(this - memory.send_buffers().data()),
                                   PacketRegions::kSends);
}

SendBuffer* SendBuffer::at(std::uint64_t place) noexcept { return PacketRegions::send_buffer(place); }

}  // namespace vma::ring
