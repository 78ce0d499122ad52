// SPDX-License-Identifier: BSD-2-Clause
// The descriptor of a send buffer, for those that the program fills itself (the extra API). PacketMemory has
// one for each; the books of all send buffers are TxBuffers.
//
// A buffer that the program has belongs to no socket. So it outlives the socket that asked for it, and any
// thread may send it or give it back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "libvma/net/frame.h"
#include "libvma/ring/tenure.h"

namespace vma::ring {

class Ring;

struct SendBuffer {
    Ring* ring = nullptr;
    std::uint8_t* frame = nullptr;  // where its frame begins
    std::uint32_t room = 0;         // bytes of a frame
    Tenure tenure;

    // Where the program writes, and how much: the headers of UDP come in front.
    std::uint8_t* payload() const noexcept { return frame + net::kUdpHeaders; }
    std::size_t payload_room() const noexcept { return room - net::kUdpHeaders; }
    // A number by which it is found, as that of a received datagram (RxBuffer::place). kNowhere: it has none.
    std::uint64_t place() const noexcept;
    static SendBuffer* at(std::uint64_t place) noexcept;  // null: there is none
};

}  // namespace vma::ring
