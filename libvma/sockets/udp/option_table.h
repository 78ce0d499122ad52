// SPDX-License-Identifier: BSD-2-Clause
// Every option a UDP/IPv4 socket can have, and what it means to the library. An option that is not here, and
// so not known to be without effect, leaves the socket to the kernel: nothing is silently accepted.
#pragma once

namespace vma::sockets {

enum class UdpEffect {
    none,        // the shadow's business alone
    send,        // read the send attributes again
    route,       // and the rules
    group,       // how datagrams to a group are sent
    receive,     // read what to report
    queue,       // queue limit
    groups,      // memberships of groups
    errors,      // errors come without a connection
    timeout,     // SO_RCVTIMEO
    kernel_tx,   // while its value is not 0, the kernel sends
    kernel_all,  // leave the socket to the kernel
};

struct UdpOptionRow {
    int level, name;  // name 0: any of membership_options.h
    UdpEffect effect;
    unsigned bit;  // of ReceiveControl::Wish or SendPath::KernelSends
};

// Null: not in the table.
const UdpOptionRow* find_udp_option(int level, int name) noexcept;

}  // namespace vma::sockets
