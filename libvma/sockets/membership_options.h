// SPDX-License-Identifier: BSD-2-Clause
// The socket options that change of which multicast groups a socket is a member, and from which sources: each
// once. All are of level IPPROTO_IP; see ip(7).
#pragma once

namespace vma::sockets {

struct MembershipOption {
    enum class Change { join, leave, filter };
    // How the argument begins, which names the group and the interface.
    enum class Form {
        mreq,       // ip_mreq or ip_mreqn, by the length
        addresses,  // ip_mreq_source, ip_msfilter: two addresses
        index,      // group_req, group_source_req, group_filter
    };
    int name;
    Change change;
    Form form;
    bool one_source;  // adds or removes one source
};

// Null: the option is about something else.
const MembershipOption* find_membership_option(int name) noexcept;

// VMA_WAIT_AFTER_JOIN_MSEC: a switch takes its time to send what was joined. Not in a region: the program's
// handlers run meanwhile, and may jump out.
void wait_after_join() noexcept;

}  // namespace vma::sockets
