// SPDX-License-Identifier: BSD-2-Clause
// XDP programs on an interface, as rtnetlink tells of them. Control path; each call has a socket of its own.
#pragma once

#include <linux/netlink.h>

#include <cstdint>
#include <string>

namespace vma::net {

// The id of an XDP program that is attached to the interface; 0: there is none, or the kernel does not say.
std::uint32_t xdp_program(int ifindex);
// Of an RTM_NEWLINK message; 0 also for another interface.
std::uint32_t decode_xdp_program(nlmsghdr* message, int ifindex) noexcept;

// What the kernel has against `program` in the interface's driver, in its own words (extended
// acknowledgement); empty: nothing. For a program that was refused by errno alone; one that is taken after
// all is detached again.
std::string xdp_refusal(int ifindex, int program);
// The words of an NLMSG_ERROR message.
std::string decode_refusal(nlmsghdr* message);

}  // namespace vma::net
