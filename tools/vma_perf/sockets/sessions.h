// SPDX-License-Identifier: BSD-2-Clause
// The transports udp and tcp: plain socket calls, so that they run on the kernel and under libvma unchanged.
//
// Each connection has a socket of its own on both sides. The server's are bound to the address under which
// the client reached its control connection, on ports the system chooses; the offer carries them.
#pragma once

#include "tools/vma_perf/transport.h"

namespace vma_perf::sockets {

inline constexpr std::size_t kMaxDatagram = 65507;         // what UDP over IPv4 can carry
inline constexpr std::size_t kMaxStreamMessage = 1 << 20;  // each connection has a buffer of twice this size

extern const TransportType kUdp, kTcp;

}  // namespace vma_perf::sockets
