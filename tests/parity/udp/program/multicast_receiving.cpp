// SPDX-License-Identifier: BSD-2-Clause
// Who receives a datagram to a group: any source and chosen ones, sockets bound to the group, to all
// addresses and to one, connected ones, several on one group, and after a leave.
#include <net/if.h>

#include <string>

#include "tests/parity/harness/harness.h"

namespace parity {
namespace {

constexpr const char* kGroup = "239.1.2.3";
constexpr const char* kSecondGroup = "239.1.2.4";

int membership(int fd, int name, const char* group, const char* interface) {
    const ip_mreq r{ip4(group), ip4(interface)};
    return setsockopt(fd, IPPROTO_IP, name, &r, sizeof r);
}
int membership(int fd, int name, const char* group, const char* interface, const char* source) {
    ip_mreq_source r{};
    r.imr_multiaddr = ip4(group);
    r.imr_interface = ip4(interface);
    r.imr_sourceaddr = ip4(source);
    return setsockopt(fd, IPPROTO_IP, name, &r, sizeof r);
}
int join(int fd, const char* group = kGroup, const char* interface = kHere) {
    return membership(fd, IP_ADD_MEMBERSHIP, group, interface);
}
int leave(int fd, const char* group = kGroup, const char* interface = kHere) {
    return membership(fd, IP_DROP_MEMBERSHIP, group, interface);
}

// One of several sockets of a port.
int shared(const char* address, int option = SO_REUSEADDR) {
    int fd = udp();
    set(fd, SOL_SOCKET, option, 1);
    const sockaddr_in name = at(address, kPort);
    SHOW(address, bind(fd, raw(name), sizeof name));
    return fd;
}

// The agent's senders: "p" at its first address, "s" at its second one, "l" at the other link.
void peers() {
    peer_opens();
    ask(std::string("set p multicast_if ") + kThere);
    ask(std::string("open s ") + kThereSecond + " 6000");
    ask(std::string("set s multicast_if ") + kThereSecond);
    ask(std::string("open l ") + kThereLink2 + " 6000");
    ask(std::string("set l multicast_if ") + kThereLink2);
}

void from(const char* sender, int length, const char* group = kGroup) {
    ask(std::string("send ") + sender + " " + group + " " + std::to_string(kPort) + " " +
        std::to_string(length));
}

}  // namespace

PARITY_CASE(multicast, any_source, Traffic::offloaded) {
    peers();
    int fd = bound("0.0.0.0", kPort);
    set(fd, IPPROTO_IP, IP_PKTINFO, 1);
    set(fd, IPPROTO_IP, IP_RECVTTL, 1);
    from("p", 10);
    settle();  // where an adapter passes frames on, they take their time
    SHOW("join", join(fd));
    from("p", 11);
    from("s", 12);
    from("p", 13, kSecondGroup);
    settle();
    for (int i = 0; i < 3; i++) show_recv("datagram", fd, MSG_DONTWAIT);
    peer_sends(14);
    if (wait_in(fd)) show_recv("unicast", fd);
    SHOW("leave", leave(fd));
    from("p", 15);
    settle();
    SHOW("join again", join(fd));
    from("p", 16);
    settle();
    show_lengths("after", fd);
}

PARITY_CASE(multicast, bound_addresses, Traffic::offloaded) {
    peers();
    int any = shared("0.0.0.0"), group = shared(kGroup), other = shared(kSecondGroup),
        unicast = shared(kHere);
    for (int fd : {any, group, other, unicast}) SHOW("join", join(fd));
    from("p", 21);
    from("p", 22, kSecondGroup);
    settle();
    show_lengths("any", any);
    show_lengths("group", group);
    show_lengths("other", other);
    show_lengths("unicast", unicast);
    SHOW("join the second, too", join(any, kSecondGroup));
    from("p", 23, kSecondGroup);
    peer_sends(24);
    settle();
    show_lengths("any", any);
    show_lengths("group", group);
    show_lengths("other", other);
    show_lengths("unicast", unicast);
}

// A socket that joined nothing receives what another one joined, unless it says otherwise.
PARITY_CASE(multicast, without_a_membership, Traffic::offloaded) {
    peers();
    int member = shared("0.0.0.0"), free_rider = shared("0.0.0.0"), strict = shared("0.0.0.0");
    SHOW("all", set(strict, IPPROTO_IP, IP_MULTICAST_ALL, 0));
    from("p", 20);
    settle();
    SHOW("join", join(member));
    from("p", 21);
    settle();
    show_lengths("member", member);
    show_lengths("free rider", free_rider);
    show_lengths("strict", strict);
    SHOW("strict joins another", join(strict, kSecondGroup));
    from("p", 22);
    from("p", 23, kSecondGroup);
    settle();
    show_lengths("member", member);
    show_lengths("free rider", free_rider);
    show_lengths("strict", strict);
    SHOW("close", close(member));
    from("p", 24);
    from("p", 25, kSecondGroup);
    settle();
    show_lengths("free rider", free_rider);
    show_lengths("strict", strict);
}

PARITY_CASE(multicast, several_sockets, Traffic::offloaded) {
    peers();
    for (int option : {SO_REUSEADDR, SO_REUSEPORT}) {
        int a = shared("0.0.0.0", option), b = shared("0.0.0.0", option);
        SHOW("join", join(a));
        SHOW("join", join(b));
        from("p", 31);
        from("p", 32);
        settle();
        show_lengths("first", a);
        show_lengths("second", b);
        SHOW("leave", leave(a));
        from("p", 33);
        settle();
        show_lengths("first", a);
        show_lengths("second", b);
        SHOW("close", close(b));
        from("p", 34);
        settle();
        show_lengths("first", a);
        SHOW("close", close(a));
    }
}

PARITY_CASE(multicast, sources, Traffic::offloaded) {
    peers();
    int fd = bound("0.0.0.0", kPort);
    auto both = [&](const char* what) {
        from("p", 41);
        from("s", 42);
        settle();
        show_lengths(what, fd);
    };
    SHOW("include", membership(fd, IP_ADD_SOURCE_MEMBERSHIP, kGroup, kHere, kThere));
    both("the first");
    SHOW("include", membership(fd, IP_ADD_SOURCE_MEMBERSHIP, kGroup, kHere, kThereSecond));
    both("both");
    SHOW("exclude", membership(fd, IP_DROP_SOURCE_MEMBERSHIP, kGroup, kHere, kThere));
    both("the second");
    SHOW("the last", membership(fd, IP_DROP_SOURCE_MEMBERSHIP, kGroup, kHere, kThereSecond));
    both("none");
    SHOW("join", join(fd));
    SHOW("block", membership(fd, IP_BLOCK_SOURCE, kGroup, kHere, kThere));
    both("not the first");
    SHOW("unblock", membership(fd, IP_UNBLOCK_SOURCE, kGroup, kHere, kThere));
    both("all");
}

// The filter of one socket is not that of another, whatever the host takes in.
// The kernel turns an empty filter round before it says that there is no such source.
PARITY_CASE(multicast, refused_sources, Traffic::offloaded) {
    peers();
    for (int name : {IP_DROP_SOURCE_MEMBERSHIP, IP_UNBLOCK_SOURCE}) {
        int fd = bound("0.0.0.0", kPort);
        SHOW("join", join(fd));
        from("p", 10);
        settle();
        show_lengths("all", fd);
        SHOW("refused", membership(fd, name, kGroup, kHere, kThere));
        from("p", 11);
        settle();
        show_lengths("none, or all", fd);
        SHOW("another source", membership(fd, IP_ADD_SOURCE_MEMBERSHIP, kGroup, kHere, kThereSecond));
        SHOW("a source", membership(fd, IP_BLOCK_SOURCE, kGroup, kHere, kThereSecond));
        from("p", 12);
        from("s", 13);
        settle();
        show_lengths("by the filter", fd);
        SHOW("close", close(fd));
    }
}

PARITY_CASE(multicast, sources_apart, kernel_carries(4)) {  // as long as one has not joined
    peers();
    int first = shared("0.0.0.0"), second = shared("0.0.0.0"), all = shared("0.0.0.0");
    SHOW("first", membership(first, IP_ADD_SOURCE_MEMBERSHIP, kGroup, kHere, kThere));
    SHOW("second", membership(second, IP_ADD_SOURCE_MEMBERSHIP, kGroup, kHere, kThereSecond));
    for (int round = 0; round < 2; round++) {
        from("p", 51);
        from("s", 52);
        settle();
        show_lengths("first", first);
        show_lengths("second", second);
        show_lengths("all", all);
        if (round == 0) SHOW("join", join(all));
    }
}

PARITY_CASE(multicast, interfaces, Traffic::offloaded) {
    peers();
    int one = shared("0.0.0.0"), two = shared("0.0.0.0"), device = shared("0.0.0.0");
    SHOW("all", set(one, IPPROTO_IP, IP_MULTICAST_ALL, 0));
    SHOW("device", setsockopt(device, SOL_SOCKET, SO_BINDTODEVICE, "veth2", 5));
    SHOW("join on link 1", join(one, kGroup, kHere));
    SHOW("join on link 2", join(two, kGroup, kHereLink2));
    set(two, IPPROTO_IP, IP_PKTINFO, 1);
    from("p", 61);
    from("l", 62);
    settle();
    show_lengths("one", one);
    show_recv("two", two, MSG_DONTWAIT);
    show_recv("two", two, MSG_DONTWAIT);
    show_lengths("device", device);
    SHOW("leave on link 2", leave(two, kGroup, kHereLink2));
    from("p", 63);
    from("l", 64);
    settle();
    show_lengths("one", one);
    show_lengths("two", two);
    show_lengths("device", device);
}

// A connected socket takes its peer's only.
PARITY_CASE(multicast, connected, Traffic::offloaded) {
    peers();
    int fd = bound("0.0.0.0", kPort);
    const sockaddr_in first = at(kThere, kPeerPort);
    SHOW("join", join(fd));
    SHOW("connect", connect(fd, raw(first), sizeof first));
    show_name("name", fd);
    from("p", 71);
    from("s", 72);
    settle();
    show_lengths("to its address", fd);
    int group = shared(kGroup);
    SHOW("join", join(group));
    SHOW("connect", connect(group, raw(first), sizeof first));
    show_name("name", group);
    from("p", 73);
    from("s", 74);
    settle();
    show_lengths("to the group", group);
}

PARITY_CASE(multicast, fragments_and_empty, kernel_carries(2)) {
    peers();
    int fd = bound("0.0.0.0", kPort);
    SHOW("join", join(fd));
    for (int length : {0, 1472, 1473, 4000, 0}) {
        from("p", length);
        settle();                     // long ones and short ones may leave on two ways
        show_lengths("lengths", fd);  // and may come on two
    }
}

}  // namespace parity
