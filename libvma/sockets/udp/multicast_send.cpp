// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/udp/multicast_send.h"

#include <cstring>

#include "libvma/os/calls.h"
#include "libvma/sockets/stack.h"
#include "libvma/sockets/udp/destination.h"
#include "libvma/sockets/user_memory.h"

namespace vma::sockets {
namespace {

int option_of(int fd, int name, int otherwise) noexcept {
    int value = otherwise;
    socklen_t size = sizeof value;
    return os::getsockopt(fd, IPPROTO_IP, name, &value, &size) == 0 ? value : otherwise;
}

}  // namespace

void MulticastOptions::learn(Stack& stack, int fd, int name, const void* value, socklen_t length) noexcept {
    switch (name) {
        case IP_MULTICAST_TTL:
            ttl = static_cast<std::uint8_t>(option_of(fd, name, 1));
            break;
        case IP_MULTICAST_LOOP:
            loops = option_of(fd, name, 1) != 0;
            break;
        case IP_MULTICAST_IF:
            learn_interface(stack, value, length);
            break;
        default:
            break;
    }
}

// The forms of ip(7): in_addr, ip_mreq, ip_mreqn, told apart by their length. The kernel looks an address up
// when the option is set, and keeps the interface; getsockopt() tells the address alone.
void MulticastOptions::learn_interface(Stack& stack, const void* value, socklen_t length) noexcept {
    ip_mreqn request{};
    if (length >= sizeof request)
        std::memcpy(&request, value, sizeof request);
    else if (length >= sizeof(ip_mreq))
        std::memcpy(&request, value, sizeof(ip_mreq));
    else
        std::memcpy(&request.imr_address, value, sizeof request.imr_address);
    ifindex = request.imr_ifindex;
    address = request.imr_address.s_addr;
    known = true;
    if (ifindex != 0 || address == 0) return;
    // Of several interfaces with the address, the kernel names the same one as the source of a route to a
    // group: that needs no routing table.
    net::RouteQuery query;
    query.dst = htonl(INADDR_ALLHOSTS_GROUP);
    query.src = address;
    known = false;
    try {
        if (auto route = stack.view().route(query); route && route->ifindex != 0) {
            ifindex = route->ifindex;
            known = true;
        }
    } catch (...) {
        // no memory: the kernel sends
    }
}

bool PacketInfo::read(const msghdr& message) noexcept {
    cmsghdr header;
    in_pktinfo value;
    constexpr std::size_t kLength = CMSG_LEN(sizeof value);
    // No room for a second one.
    if (message.msg_controllen < kLength || message.msg_controllen > CMSG_SPACE(sizeof value) ||
        !UserMemory::readable(message.msg_control, kLength))
        return false;
    std::memcpy(&header, message.msg_control, sizeof header);
    std::memcpy(&value, static_cast<const char*>(message.msg_control) + CMSG_LEN(0), sizeof value);
    if (header.cmsg_level != IPPROTO_IP || header.cmsg_type != IP_PKTINFO || header.cmsg_len != kLength)
        return false;
    ifindex = value.ipi_ifindex;
    src = value.ipi_spec_dst.s_addr;
    given = true;
    return true;
}

GroupPath group_path(const SendAttributes& from) noexcept {
    GroupPath p{from.src_addr, from.path};
    if (p.path.oif == 0) p.path.oif = from.multicast.ifindex;
    if (p.src == 0) p.src = from.multicast.address;
    p.path.ttl = from.multicast.ttl;
    return p;
}

std::string_view kernel_sends_group(const net::Route& route, bool loops, bool members) noexcept {
    if (route.kind != net::Route::Kind::multicast) return "there is no route of multicast";
    if (route.gateway != 0) return "the route to the group has a gateway";
    if (loops && (members || route.copied_here)) return "this host is a member, and gets a copy";
    return {};
}

}  // namespace vma::sockets
