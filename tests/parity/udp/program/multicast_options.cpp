// SPDX-License-Identifier: BSD-2-Clause
// What the multicast options accept, refuse and answer: every form of a join, source filters, and the options
// of sending.
#include <net/if.h>

#include <cstddef>
#include <string>

#include "tests/parity/harness/harness.h"

namespace parity {
namespace {

constexpr const char* kGroup = "239.1.2.3";
constexpr const char* kSecondGroup = "239.1.2.4";
constexpr const char* kNowhere = "203.0.113.9";

int index_of(const char* name) { return static_cast<int>(if_nametoindex(name)); }

template <class T>
int option(int fd, int name, const T& value, std::size_t length = sizeof(T)) {
    return setsockopt(fd, IPPROTO_IP, name, &value, static_cast<socklen_t>(length));
}

ip_mreqn by_index(const char* group, int index, const char* address = "0.0.0.0") {
    return {ip4(group), ip4(address), index};
}
ip_mreq by_address(const char* group, const char* address) { return {ip4(group), ip4(address)}; }
ip_mreq_source with_source(const char* group, const char* interface, const char* source) {
    ip_mreq_source r{};
    r.imr_multiaddr = ip4(group);
    r.imr_interface = ip4(interface);
    r.imr_sourceaddr = ip4(source);
    return r;
}
group_req request(const char* group, int index, int family = AF_INET) {
    group_req r{};
    r.gr_interface = static_cast<uint32_t>(index);
    const sockaddr_in name = at(group, 0);
    memcpy(&r.gr_group, &name, sizeof name);
    r.gr_group.ss_family = static_cast<sa_family_t>(family);
    return r;
}
group_source_req request(const char* group, const char* source, int index, int family = AF_INET,
                         int source_family = AF_INET) {
    group_source_req r{};
    r.gsr_interface = static_cast<uint32_t>(index);
    sockaddr_in name = at(group, 0);
    memcpy(&r.gsr_group, &name, sizeof name);
    r.gsr_group.ss_family = static_cast<sa_family_t>(family);
    name = at(source, 0);
    memcpy(&r.gsr_source, &name, sizeof name);
    r.gsr_source.ss_family = static_cast<sa_family_t>(source_family);
    return r;
}

// Every length a program may give, and what comes back.
void show_get(int fd, const char* what, int name) {
    for (socklen_t length : {0u, 1u, 2u, 3u, 4u, 8u, 12u}) {
        unsigned char value[16];
        memset(value, 0xee, sizeof value);
        socklen_t got = length;
        const int r = getsockopt(fd, IPPROTO_IP, name, value, &got);
        std::string bytes;
        for (unsigned char b : value) {
            char text[4];
            snprintf(text, sizeof text, "%02x", b);
            bytes += text;
        }
        say("%s of %u: %d %s length %u value %s", what, length, r, r < 0 ? strerrorname_np(errno) : "", got,
            bytes.c_str());
    }
}

}  // namespace

PARITY_CASE(multicast, join_arguments, kernel_carries(20)) {
    int fd = bound("0.0.0.0", kPort);
    const ip_mreqn n = by_index(kGroup, index_of("veth1"));
    for (std::size_t length : {0, 4, 7}) SHOW("short", option(fd, IP_ADD_MEMBERSHIP, n, length));
    SHOW("null", setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, nullptr, sizeof n));
    SHOW("unicast", option(fd, IP_ADD_MEMBERSHIP, by_address(kThere, kHere)));
    SHOW("no such interface", option(fd, IP_ADD_MEMBERSHIP, by_address(kGroup, kNowhere)));
    SHOW("no such index", option(fd, IP_ADD_MEMBERSHIP, by_index(kGroup, 9999)));
    SHOW("no route", option(fd, IP_ADD_MEMBERSHIP, by_address(kGroup, "0.0.0.0")));
    SHOW("drop before", option(fd, IP_DROP_MEMBERSHIP, by_address(kGroup, kHere)));
    SHOW("drop of nothing", option(fd, IP_DROP_MEMBERSHIP, by_address(kGroup, "0.0.0.0")));
    SHOW("drop nowhere", option(fd, IP_DROP_MEMBERSHIP, by_address(kGroup, kNowhere)));
    SHOW("by address", option(fd, IP_ADD_MEMBERSHIP, by_address(kGroup, kHere)));
    SHOW("again", option(fd, IP_ADD_MEMBERSHIP, by_address(kGroup, kHere)));
    SHOW("again by index", option(fd, IP_ADD_MEMBERSHIP, n));
    SHOW("again by the second address", option(fd, IP_ADD_MEMBERSHIP, by_address(kGroup, kHereSecond)));
    SHOW("on the other link", option(fd, IP_ADD_MEMBERSHIP, by_address(kGroup, kHereLink2)));
    SHOW("other group", option(fd, IP_ADD_MEMBERSHIP, by_address(kSecondGroup, kHere)));
    // The index beats the address.
    SHOW("index and address", option(fd, IP_DROP_MEMBERSHIP, by_index(kGroup, index_of("veth2"), kHere)));
    SHOW("the same again", option(fd, IP_DROP_MEMBERSHIP, by_address(kGroup, kHereLink2)));
    SHOW("drop by index", option(fd, IP_DROP_MEMBERSHIP, n));
    SHOW("drop twice", option(fd, IP_DROP_MEMBERSHIP, n));
    // Without an interface the first membership of the group goes.
    SHOW("drop by group", option(fd, IP_DROP_MEMBERSHIP, by_address(kSecondGroup, "0.0.0.0")));
    SHOW("drop by group twice", option(fd, IP_DROP_MEMBERSHIP, by_address(kSecondGroup, "0.0.0.0")));
    // A socket of TCP has none of this.
    int stream = socket(AF_INET, SOCK_STREAM, 0);
    SHOW("tcp", option(stream, IP_ADD_MEMBERSHIP, by_address(kGroup, kHere)));
    SHOW("tcp ttl", set(stream, IPPROTO_IP, IP_MULTICAST_TTL, 4));
    SHOW("tcp loop", set(stream, IPPROTO_IP, IP_MULTICAST_LOOP, 0));
    SHOW("tcp interface", option(stream, IP_MULTICAST_IF, ip4(kHere)));
}

PARITY_CASE(multicast, too_many_groups, kernel_carries(20)) {
    int fd = bound("0.0.0.0", kPort), other = udp();
    int joined = 0;
    for (int i = 1; i <= 40; i++) {
        const std::string group = "239.1.3." + std::to_string(i);
        if (option(fd, IP_ADD_MEMBERSHIP, by_address(group.c_str(), kHere)) == 0) joined++;
    }
    say("joined %d", joined);
    SHOW("one more", option(fd, IP_ADD_MEMBERSHIP, by_address(kGroup, kHere)));
    SHOW("another socket", option(other, IP_ADD_MEMBERSHIP, by_address(kGroup, kHere)));
    SHOW("leave", option(fd, IP_DROP_MEMBERSHIP, by_address("239.1.3.7", kHere)));
    SHOW("room again", option(fd, IP_ADD_MEMBERSHIP, by_address(kGroup, kHere)));
}

PARITY_CASE(multicast, source_arguments, kernel_carries(20)) {
    int fd = bound("0.0.0.0", kPort);
    const ip_mreq_source s = with_source(kGroup, kHere, kThere), t = with_source(kGroup, kHere, kThereSecond);
    SHOW("short", option(fd, IP_ADD_SOURCE_MEMBERSHIP, s, 8));
    SHOW("long", setsockopt(fd, IPPROTO_IP, IP_ADD_SOURCE_MEMBERSHIP, std::string(16, 0).data(), 16));
    SHOW("unicast", option(fd, IP_ADD_SOURCE_MEMBERSHIP, with_source(kThere, kHere, kThere)));
    SHOW("nowhere", option(fd, IP_ADD_SOURCE_MEMBERSHIP, with_source(kGroup, kNowhere, kThere)));
    SHOW("block before a join", option(fd, IP_BLOCK_SOURCE, s));
    SHOW("unblock before a join", option(fd, IP_UNBLOCK_SOURCE, s));
    SHOW("drop before", option(fd, IP_DROP_SOURCE_MEMBERSHIP, s));
    SHOW("add", option(fd, IP_ADD_SOURCE_MEMBERSHIP, s));
    SHOW("add again", option(fd, IP_ADD_SOURCE_MEMBERSHIP, s));
    SHOW("second", option(fd, IP_ADD_SOURCE_MEMBERSHIP, t));
    SHOW("block in include mode", option(fd, IP_BLOCK_SOURCE, s));
    SHOW("join over it", option(fd, IP_ADD_MEMBERSHIP, by_address(kGroup, kHere)));
    SHOW("drop an absent one", option(fd, IP_DROP_SOURCE_MEMBERSHIP, with_source(kGroup, kHere, kNowhere)));
    SHOW("drop", option(fd, IP_DROP_SOURCE_MEMBERSHIP, s));
    SHOW("drop the last", option(fd, IP_DROP_SOURCE_MEMBERSHIP, t));
    SHOW("gone", option(fd, IP_DROP_MEMBERSHIP, by_address(kGroup, kHere)));
    SHOW("join", option(fd, IP_ADD_MEMBERSHIP, by_address(kGroup, kHere)));
    SHOW("unblock what is not blocked", option(fd, IP_UNBLOCK_SOURCE, s));
    SHOW("block", option(fd, IP_BLOCK_SOURCE, s));
    SHOW("block again", option(fd, IP_BLOCK_SOURCE, s));
    SHOW("add in exclude mode", option(fd, IP_ADD_SOURCE_MEMBERSHIP, t));
    SHOW("unblock", option(fd, IP_UNBLOCK_SOURCE, s));
    SHOW("add to an empty exclude", option(fd, IP_ADD_SOURCE_MEMBERSHIP, t));
    SHOW("leave", option(fd, IP_DROP_MEMBERSHIP, by_address(kGroup, kHere)));
    int added = 0;
    for (int i = 1; i <= 20; i++) {
        const std::string source = "203.0.113." + std::to_string(i);
        if (option(fd, IP_ADD_SOURCE_MEMBERSHIP, with_source(kGroup, kHere, source.c_str())) == 0) added++;
    }
    say("sources %d", added);
    SHOW("one more", option(fd, IP_ADD_SOURCE_MEMBERSHIP, s));
}

PARITY_CASE(multicast, group_requests, kernel_carries(20)) {
    int fd = bound("0.0.0.0", kPort);
    const int one = index_of("veth1");
    const group_req g = request(kGroup, one);
    SHOW("short", option(fd, MCAST_JOIN_GROUP, g, sizeof g - 1));
    SHOW("wrong family", option(fd, MCAST_JOIN_GROUP, request(kGroup, one, AF_INET6)));
    SHOW("unicast", option(fd, MCAST_JOIN_GROUP, request(kThere, one)));
    SHOW("no such index", option(fd, MCAST_JOIN_GROUP, request(kGroup, 9999)));
    SHOW("no route", option(fd, MCAST_JOIN_GROUP, request(kGroup, 0)));
    SHOW("leave before", option(fd, MCAST_LEAVE_GROUP, g));
    SHOW("join", option(fd, MCAST_JOIN_GROUP, g));
    SHOW("join again", option(fd, MCAST_JOIN_GROUP, g));
    SHOW("join the other way", option(fd, IP_ADD_MEMBERSHIP, by_address(kGroup, kHere)));
    SHOW("leave with the wrong family", option(fd, MCAST_LEAVE_GROUP, request(kGroup, one, AF_INET6)));
    SHOW("leave", option(fd, MCAST_LEAVE_GROUP, g));
    SHOW("leave again", option(fd, MCAST_LEAVE_GROUP, g));

    const group_source_req s = request(kGroup, kThere, one);
    SHOW("source, short", option(fd, MCAST_JOIN_SOURCE_GROUP, s, sizeof s - 1));
    SHOW("source, wrong family", option(fd, MCAST_JOIN_SOURCE_GROUP, request(kGroup, kThere, one, AF_INET6)));
    SHOW("source, its family",
         option(fd, MCAST_JOIN_SOURCE_GROUP, request(kGroup, kThere, one, AF_INET, AF_INET6)));
    SHOW("block before", option(fd, MCAST_BLOCK_SOURCE, s));
    SHOW("source", option(fd, MCAST_JOIN_SOURCE_GROUP, s));
    SHOW("source again", option(fd, MCAST_JOIN_SOURCE_GROUP, s));
    SHOW("block", option(fd, MCAST_BLOCK_SOURCE, s));
    SHOW("leave source", option(fd, MCAST_LEAVE_SOURCE_GROUP, s));
    SHOW("leave source again", option(fd, MCAST_LEAVE_SOURCE_GROUP, s));
    SHOW("join", option(fd, MCAST_JOIN_GROUP, g));
    SHOW("block", option(fd, MCAST_BLOCK_SOURCE, s));
    SHOW("block again", option(fd, MCAST_BLOCK_SOURCE, s));
    SHOW("unblock", option(fd, MCAST_UNBLOCK_SOURCE, s));
    SHOW("unblock again", option(fd, MCAST_UNBLOCK_SOURCE, s));
    SHOW("leave", option(fd, MCAST_LEAVE_GROUP, g));
}

namespace {

int filter(int fd, const char* interface, uint32_t mode, std::initializer_list<const char*> sources,
           int missing = 0) {
    alignas(ip_msfilter) unsigned char memory[IP_MSFILTER_SIZE(16)] = {};
    ip_msfilter f{};
    f.imsf_multiaddr = ip4(kGroup);
    f.imsf_interface = ip4(interface);
    f.imsf_fmode = mode;
    f.imsf_numsrc = static_cast<uint32_t>(sources.size());
    memcpy(memory, &f, offsetof(ip_msfilter, imsf_slist));
    std::size_t length = offsetof(ip_msfilter, imsf_slist);
    for (const char* source : sources) {
        const in_addr a = ip4(source);
        memcpy(memory + length, &a, sizeof a);
        length += sizeof a;
    }
    return setsockopt(fd, IPPROTO_IP, IP_MSFILTER, memory,
                      static_cast<socklen_t>(length - static_cast<std::size_t>(missing)));
}

void show_filter(int fd, const char* interface, uint32_t room) {
    alignas(ip_msfilter) unsigned char memory[IP_MSFILTER_SIZE(16)] = {};
    ip_msfilter f{};
    f.imsf_multiaddr = ip4(kGroup);
    f.imsf_interface = ip4(interface);
    f.imsf_numsrc = room;
    memcpy(memory, &f, offsetof(ip_msfilter, imsf_slist));
    socklen_t length = static_cast<socklen_t>(IP_MSFILTER_SIZE(room));
    SHOW("filter", getsockopt(fd, IPPROTO_IP, IP_MSFILTER, memory, &length));
    memcpy(&f, memory, offsetof(ip_msfilter, imsf_slist));
    say("mode %u sources %u length %u", f.imsf_fmode, f.imsf_numsrc, length);
}

}  // namespace

PARITY_CASE(multicast, filter_arguments, kernel_carries(20)) {
    int fd = bound("0.0.0.0", kPort);
    SHOW("before a join", filter(fd, kHere, MCAST_INCLUDE, {kThere}));
    show_filter(fd, kHere, 4);
    SHOW("join", option(fd, IP_ADD_MEMBERSHIP, by_address(kGroup, kHere)));
    show_filter(fd, kHere, 4);
    SHOW("wrong mode", filter(fd, kHere, 7, {kThere}));
    SHOW("cut short", filter(fd, kHere, MCAST_INCLUDE, {kThere, kThereSecond}, 4));
    SHOW("nowhere", filter(fd, kNowhere, MCAST_INCLUDE, {kThere}));
    SHOW("include", filter(fd, kHere, MCAST_INCLUDE, {kThere, kThereSecond}));
    show_filter(fd, kHere, 4);
    show_filter(fd, kHere, 1);
    SHOW("exclude", filter(fd, kHere, MCAST_EXCLUDE, {kThere}));
    show_filter(fd, kHere, 4);
    SHOW("exclude nothing", filter(fd, kHere, MCAST_EXCLUDE, {}));
    show_filter(fd, kHere, 4);
    SHOW("too many",
         filter(fd, kHere, MCAST_EXCLUDE,
                {"203.0.113.1", "203.0.113.2", "203.0.113.3", "203.0.113.4", "203.0.113.5", "203.0.113.6",
                 "203.0.113.7", "203.0.113.8", "203.0.113.9", "203.0.113.10", "203.0.113.11"}));
    SHOW("include nothing", filter(fd, kHere, MCAST_INCLUDE, {}));
    SHOW("that was a leave", option(fd, IP_DROP_MEMBERSHIP, by_address(kGroup, kHere)));

    // The newer form.
    SHOW("join", option(fd, MCAST_JOIN_GROUP, request(kGroup, index_of("veth1"))));
    alignas(group_filter) unsigned char memory[GROUP_FILTER_SIZE(4)] = {};
    auto* f = reinterpret_cast<group_filter*>(memory);
    const group_source_req s = request(kGroup, kThere, index_of("veth1"));
    f->gf_interface = s.gsr_interface;
    f->gf_group = s.gsr_group;
    f->gf_fmode = MCAST_INCLUDE;
    f->gf_numsrc = 1;
    f->gf_slist[0] = s.gsr_source;
    SHOW("short", setsockopt(fd, IPPROTO_IP, MCAST_MSFILTER, memory, GROUP_FILTER_SIZE(0)));
    SHOW("set", setsockopt(fd, IPPROTO_IP, MCAST_MSFILTER, memory, GROUP_FILTER_SIZE(1)));
    f->gf_numsrc = 4;
    socklen_t length = GROUP_FILTER_SIZE(4);
    SHOW("get", getsockopt(fd, IPPROTO_IP, MCAST_MSFILTER, memory, &length));
    say("mode %u sources %u", f->gf_fmode, f->gf_numsrc);
    f->gf_fmode = MCAST_INCLUDE;
    f->gf_numsrc = 0;
    SHOW("leave", setsockopt(fd, IPPROTO_IP, MCAST_MSFILTER, memory, GROUP_FILTER_SIZE(0)));
    SHOW("left", option(fd, MCAST_LEAVE_GROUP, request(kGroup, index_of("veth1"))));
}

PARITY_CASE(multicast, interface_argument, kernel_carries(20)) {
    int fd = bound("0.0.0.0", kPort);
    show_get(fd, "at first", IP_MULTICAST_IF);
    SHOW("short", option(fd, IP_MULTICAST_IF, ip4(kHere), 3));
    SHOW("nothing", option(fd, IP_MULTICAST_IF, ip4(kHere), 0));
    SHOW("null", setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, nullptr, 4));
    SHOW("unknown address", option(fd, IP_MULTICAST_IF, ip4(kNowhere)));
    SHOW("unknown index", option(fd, IP_MULTICAST_IF, by_index("0.0.0.0", 9999)));
    SHOW("address", option(fd, IP_MULTICAST_IF, ip4(kHereLink2)));
    show_get(fd, "address", IP_MULTICAST_IF);
    SHOW("ip_mreq", option(fd, IP_MULTICAST_IF, by_address("0.0.0.0", kHereSecond)));
    show_get(fd, "ip_mreq", IP_MULTICAST_IF);
    SHOW("index alone", option(fd, IP_MULTICAST_IF, by_index("0.0.0.0", index_of("veth2"))));
    show_get(fd, "index alone", IP_MULTICAST_IF);
    SHOW("both", option(fd, IP_MULTICAST_IF, by_index("0.0.0.0", index_of("veth2"), kHere)));
    show_get(fd, "both", IP_MULTICAST_IF);
    SHOW("any", option(fd, IP_MULTICAST_IF, ip4("0.0.0.0")));
    show_get(fd, "any", IP_MULTICAST_IF);
    SHOW("device", setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "veth1", 5));
    SHOW("another device's address", option(fd, IP_MULTICAST_IF, ip4(kHereLink2)));
    SHOW("another device's index", option(fd, IP_MULTICAST_IF, by_index("0.0.0.0", index_of("veth2"))));
    SHOW("its address", option(fd, IP_MULTICAST_IF, ip4(kHereSecond)));
    SHOW("any", option(fd, IP_MULTICAST_IF, ip4("0.0.0.0")));
}

PARITY_CASE(multicast, sender_arguments, kernel_carries(20)) {
    int fd = bound("0.0.0.0", kPort);
    for (int name : {IP_MULTICAST_TTL, IP_MULTICAST_LOOP, IP_MULTICAST_ALL}) {
        const std::string what = name == IP_MULTICAST_TTL    ? "ttl"
                                 : name == IP_MULTICAST_LOOP ? "loop"
                                                             : "all";
        show_get(fd, (what + " at first").c_str(), name);
        for (int value : {0, 1, 2, 255, 256, -1, -2, 1}) {
            SHOW((what + " " + std::to_string(value)).c_str(), set(fd, IPPROTO_IP, name, value));
            say("now %d", get(fd, IPPROTO_IP, name));
        }
        for (unsigned char value : {0, 7, 255}) {
            SHOW((what + " of one byte").c_str(), option(fd, name, value));
            say("now %d", get(fd, IPPROTO_IP, name));
        }
        const int value = 0x0203;
        for (std::size_t length : {0, 2, 3, 8}) {
            long wide[2] = {value, value};
            SHOW((what + " of " + std::to_string(length)).c_str(), option(fd, name, wide, length));
            say("now %d", get(fd, IPPROTO_IP, name));
        }
        SHOW("null", setsockopt(fd, IPPROTO_IP, name, nullptr, 4));
    }
    // Other multicast of the same numbers is not IPv4's.
    SHOW("of IPv6", set(fd, IPPROTO_IPV6, 18 /* IPV6_MULTICAST_HOPS */, 4));
}

}  // namespace parity
