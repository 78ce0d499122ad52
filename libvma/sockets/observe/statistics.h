// SPDX-License-Identifier: BSD-2-Clause
// What sockets, rings and groups show in the statistics file (libvma/stats): which socket has which block,
// and the copying of what is not counted there directly.
//
// Traffic is counted where it happens. Gauges (queues, windows, RTT), and the counters that a connection or a
// ring keeps under its own lock anyway, are copied by refresh(): once a second, when a reader asks for it
// (Command::refresh), and when a socket ends. So nobody pays for readers that are not there.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "libvma/net/address.h"
#include "libvma/net/view.h"
#include "libvma/ring/ring.h"
#include "libvma/stats/group_counters.h"
#include "libvma/stats/socket_counters.h"
#include "libvma/tcp/handshake/listener.h"

namespace vma::sockets {

class Socket;
class Stack;

// Why a flow is not offloaded, with texts of its own. `none`: it is.
struct Why {
    stats::Reason reason = stats::Reason::none;
    std::string detail, rule;

    stats::Decision decision(stats::Path path) const noexcept { return {path, reason, detail, rule}; }
};

namespace statistics {

// The file, with blocks for sockets. After the stack has started, in each process.
void start() noexcept;
// What else the internal thread does for it: commands, gauges once a second, files of processes that were
// killed. From the first use of a socket on, and from the first one that is the kernel's. May be called
// again.
void serve() noexcept;

// `socket` has a block (or has none, then nothing happens), from now until left(), which is to be called
// before the object ends.
void joined(Socket& socket) noexcept;
void left(Socket& socket) noexcept;

// Brings all blocks up to date. Not in signal handlers; waits for locks of rings and connections, one at a
// time.
void refresh() noexcept;
// All counters begin at 0 again.
void zero() noexcept;
// What is known of the socket that `fd` stands for (0: of all) goes to the log, at `level`. How many there
// were.
unsigned dump(int fd, int level) noexcept;
// A socket ends: its counters go to the log and to VMA_STATS_FILE. The same for all sockets, at the end of
// the process.
void report_if_active(const stats::SocketBlock& block) noexcept;
void report_all() noexcept;

// The number of a ring's block, -1: it has none.
int ring_number(const ring::Ring* ring) noexcept;

// `fd` as a number of `socket`: `fd` itself if it still is one, else another, or -1.
int number_of(const Socket& socket, int fd) noexcept;

// Fields of a description. Inside stats::Describe.
void put_address(stats::Address& out, const net::Endpoint& endpoint) noexcept;
void put_ring(stats::SocketBlock& block, ring::Ring* ring, net::KernelView& view) noexcept;
// `fd`: a number of the socket, -1: the program has closed it.
void put_number(stats::SocketBlock& block, int fd) noexcept;

// What an address that is no neighbour's or host's own means for offloading; none for ordinary ones.
stats::Reason reason_of_address(const net::Address& address) noexcept;
stats::Reason reason_of_route(const net::Route& route) noexcept;

// The counters of a connection or a listener (`owner`) when the process's counters were zeroed; zeros if they
// were not since it came to the block. In the internal thread, or when the socket ends.
struct TcpBase {
    tcp::Counters connection;
    tcp::Listener::Counters listener;
};
TcpBase base_of(const stats::SocketBlock* block, const void* owner) noexcept;
void set_base(const stats::SocketBlock* block, const void* owner, const TcpBase& base) noexcept;

struct GroupMembership {
    in_addr_t group;
    int ifindex;
    std::string_view interface;
    std::span<const in_addr_t> sources;  // those it listens to; none: any, or any but a few
    std::shared_ptr<const stats::GroupCounters> counters;
};
// The socket is a member of the group on the interface, as given; and it is no member any more.
void joined_group(Socket& socket, int fd, const GroupMembership& as) noexcept;
void left_group(const Socket& socket, in_addr_t group, int ifindex) noexcept;
// By which way datagrams to the group come to the socket; `why` the kernel serves it, or nothing.
void group_served(const Socket& socket, in_addr_t group, int ifindex, stats::Path path,
                  std::string_view why) noexcept;
// The kernel serves all groups of the socket from now on.
void groups_left(const Socket& socket, std::string_view why) noexcept;
// The socket ends.
void forget_groups(const Socket& socket) noexcept;
// Parts of refresh() and zero().
void refresh_groups() noexcept;
void zero_groups() noexcept;

}  // namespace statistics
}  // namespace vma::sockets
