// SPDX-License-Identifier: BSD-2-Clause
// ICMP errors for TCP connections that the kernel does not know of.
//
// A router's "fragmentation needed" and "unreachable" come to the kernel, as all ICMP does, and it drops
// those that quote a segment of ours because it has no such connection. So a raw ICMP socket gets a copy,
// read by the internal thread, and the connection of the quoted addresses and ports is told
// (Connection::icmp_error, which checks the quoted sequence number). IcmpGate asks first whether there is
// such a flow, without a lock.
#pragma once

namespace vma::sockets {

class Stack;

namespace icmp {

// Starts listening, once in a process; without CAP_NET_RAW it logs that path MTU discovery is off. Any
// thread.
void start(Stack& stack) noexcept;

}  // namespace icmp
}  // namespace vma::sockets
