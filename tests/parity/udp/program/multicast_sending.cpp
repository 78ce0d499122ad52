// SPDX-License-Identifier: BSD-2-Clause
// Datagrams to a group: by which interface, from which address, with which TTL, and which receivers on this
// host get a copy.
#include <net/if.h>

#include <string>

#include "tests/parity/harness/harness.h"

namespace parity {
namespace {

constexpr const char* kGroup = "239.1.2.3";
constexpr const char* kSecondGroup = "239.1.2.4";
constexpr int kGroupPort = 6002;

int membership(int fd, int name, const char* group, const char* interface) {
    const ip_mreq r{ip4(group), ip4(interface)};
    return setsockopt(fd, IPPROTO_IP, name, &r, sizeof r);
}
int egress(int fd, const char* address) {
    const in_addr a = ip4(address);
    return setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &a, sizeof a);
}
int egress(int fd, const char* interface, const char* address) {
    const ip_mreqn r{ip4("0.0.0.0"), ip4(address), static_cast<int>(if_nametoindex(interface))};
    return setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &r, sizeof r);
}

// The agent's receivers: "g" takes what comes by link 1, "h" by link 2.
void members() {
    ask("open g 0.0.0.0 6002 reuseaddr");
    say("g: %s", ask(std::string("join g ") + kGroup + " " + kThere).c_str());
    ask(std::string("open h ") + kGroup + " 6002 reuseaddr");
    say("h: %s", ask(std::string("join h ") + kGroup + " " + kThereLink2).c_str());
    for (const char* who : {"g", "h"}) ask(std::string("set ") + who + " multicast_all 0");
}
void arrives(int count = 1) {
    for (int i = 0; i < count; i++) tell("recv g 1500");
}

long to_group(int fd, const void* data, size_t length, const char* group = kGroup, int port = kGroupPort) {
    const sockaddr_in to = at(group, port);
    return sendto(fd, data, length, 0, raw(to), sizeof to);
}

const char kText[] = "0123456789abcdefghijklmnopqrstuvwxyz";

}  // namespace

PARITY_CASE(multicast_send, time_to_live, Traffic::offloaded) {
    members();
    int fd = bound("0.0.0.0", kPort);
    SHOW("interface", egress(fd, kHere));
    SHOW("IP_TTL", set(fd, IPPROTO_IP, IP_TTL, 77));
    SHOW("send", to_group(fd, kText, 5));
    arrives();
    for (int ttl : {4, 255, 1, -1, 32}) {
        SHOW("ttl", set(fd, IPPROTO_IP, IP_MULTICAST_TTL, ttl));
        SHOW("send", to_group(fd, kText, 6));
        SHOW("send", to_group(fd, kText, 7));
        arrives(2);
    }
    SHOW("tos", set(fd, IPPROTO_IP, IP_TOS, 0xb8));
    SHOW("send", to_group(fd, kText, 8));
    arrives();
}

PARITY_CASE(multicast_send, source_and_interface, Traffic::offloaded) {
    members();
    int fd = bound("0.0.0.0", kPort);
    SHOW("no route", to_group(fd, kText, 1));
    auto send = [&](int from, const char* what) {
        for (int i = 0; i < 2; i++) {
            SHOW(what, to_group(from, kText, 4));
            tell("recv g 100");
            tell("recv h 100");
        }
    };
    SHOW("address", egress(fd, kHere));
    send(fd, "the first address");
    SHOW("address", egress(fd, kHereSecond));
    send(fd, "the second address");
    SHOW("address", egress(fd, kHereLink2));
    send(fd, "the other link");
    SHOW("index", egress(fd, "veth1", "0.0.0.0"));
    send(fd, "the index");
    SHOW("index and address", egress(fd, "veth2", kHereLink2));
    send(fd, "the index and its address");
    SHOW("index and another's address", egress(fd, "veth2", kHereSecond));
    send(fd, "the index and another's address");
    SHOW("cleared", egress(fd, "0.0.0.0"));
    SHOW("no route", to_group(fd, kText, 1));

    // A bound address chooses the interface, unless the option does.
    int first = bound(kHereSecond, kPort + 1), second = bound(kHereLink2, kPort + 2);
    send(first, "bound to the second address");
    send(second, "bound to the other link");
    SHOW("address", egress(first, kHereLink2));
    send(first, "bound here, sent there");
    SHOW("address", egress(first, kHere));
    send(first, "bound to the second, by the first");

    int device = bound("0.0.0.0", kPort + 3);
    SHOW("device", setsockopt(device, SOL_SOCKET, SO_BINDTODEVICE, "veth2", 5));
    send(device, "by the device");
    SHOW("address", egress(device, kHereLink2));
    send(device, "by the device and its address");
    // The device came later than the option.
    int both = bound("0.0.0.0", kPort + 4);
    SHOW("address", egress(both, kHereSecond));
    SHOW("device", setsockopt(both, SOL_SOCKET, SO_BINDTODEVICE, "veth2", 5));
    send(both, "the device beats the option");
}

PARITY_CASE(multicast_send, bound_to_the_group, kernel_carries(1)) {
    members();
    int fd = bound(kGroup, kGroupPort);
    SHOW("no route", to_group(fd, kText, 1));
    SHOW("interface", egress(fd, kHere));
    SHOW("send", to_group(fd, kText, 4));
    SHOW("send", to_group(fd, kText, 5));
    arrives(2);
    show_name("name", fd);
    const sockaddr_in group = at(kGroup, kGroupPort);
    SHOW("connect", connect(fd, raw(group), sizeof group));
    show_name("name", fd);
    SHOW("interface", egress(fd, kHereSecond));
    SHOW("send", send(fd, kText, 6, 0));
    arrives();
}

PARITY_CASE(multicast_send, connected, Traffic::offloaded) {
    members();
    const sockaddr_in group = at(kGroup, kGroupPort), other = at(kSecondGroup, kGroupPort);
    int fd = bound("0.0.0.0", kPort);
    SHOW("no route", connect(fd, raw(group), sizeof group));
    SHOW("interface", egress(fd, kHereSecond));
    SHOW("connect", connect(fd, raw(group), sizeof group));
    show_name("name", fd);
    show_peer("peer", fd);
    for (int i = 0; i < 3; i++) {
        SHOW("send", send(fd, kText, 5, 0));
        arrives();
    }
    // The connection keeps its source; the interface follows the option.
    SHOW("interface", egress(fd, kHereLink2));
    SHOW("send", send(fd, kText, 6, 0));
    tell("recv g 200");
    tell("recv h 200");
    SHOW("ttl", set(fd, IPPROTO_IP, IP_MULTICAST_TTL, 9));
    SHOW("write", write(fd, kText, 7));
    tell("recv h 200");
    SHOW("elsewhere", sendto(fd, kText, 8, 0, raw(other), sizeof other));
    // Not connected any more.
    sockaddr none{};
    none.sa_family = AF_UNSPEC;
    SHOW("dissolve", connect(fd, &none, sizeof none));
    SHOW("send", send(fd, kText, 5, 0));
    SHOW("to the group", to_group(fd, kText, 9));
    tell("recv h 200");
}

PARITY_CASE(multicast_send, unbound, kernel_carries(1)) {
    members();
    int fd = udp();
    SHOW("interface", egress(fd, kHere));
    for (int i = 0; i < 3; i++) {
        SHOW("send", to_group(fd, kText, 5));
        arrives();
    }
    show_name("name", fd);
}

// A member that gets its port by its first datagram has the answers past the kernel, but perhaps for the
// first.
PARITY_CASE(multicast_send, unbound_member, kernel_carries(2)) {
    members();
    int fd = udp();
    SHOW("interface", egress(fd, kHere));
    SHOW("join", membership(fd, IP_ADD_MEMBERSHIP, kSecondGroup, kHere));
    for (int i = 0; i < 3; i++) {
        post("echo g 1 3000");
        SHOW("send", to_group(fd, kText, 5));
        if (wait_in(fd)) show_recv("answer", fd, MSG_DONTWAIT);
        answer();
    }
}

// Copies for members on this host, and the frame on the wire.
PARITY_CASE(multicast_send, copies_here, kernel_carries(15)) {
    members();
    int fd = bound(kHere, kPort), receiver = bound("0.0.0.0", kGroupPort);
    set(receiver, IPPROTO_IP, IP_RECVTTL, 1);
    set(receiver, IPPROTO_IP, IP_PKTINFO, 1);
    for (int member : {0, 1, 0}) {
        if (member == 1) SHOW("join", membership(receiver, IP_ADD_MEMBERSHIP, kGroup, kHere));
        for (int loop : {1, 0}) {
            SHOW("loop", set(fd, IPPROTO_IP, IP_MULTICAST_LOOP, loop));
            for (int ttl : {0, 1, 32}) {
                SHOW("ttl", set(fd, IPPROTO_IP, IP_MULTICAST_TTL, ttl));
                SHOW("send", to_group(fd, kText, static_cast<size_t>(1 + ttl)));
                tell("recv g 100");
                settle();
                show_recv("own", receiver, MSG_DONTWAIT);
                show_lengths("more", receiver);
            }
        }
        if (member == 1) SHOW("leave", membership(receiver, IP_DROP_MEMBERSHIP, kGroup, kHere));
    }
}

// Senders and receivers of one process, some of them the kernel's: each receiver has one copy of what either
// sender sends with IP_MULTICAST_LOOP, and of what comes from the other host.
PARITY_CASE(multicast_send, copies_between_sockets_of_both_ways, kernel_carries(140)) {
    members();
    peer_opens();
    ask(std::string("set p multicast_if ") + kThere);
    ask("set p multicast_loop 0");
    int senders[] = {bound(kHere, kPort), bound(kHere, kPort + 1)};
    SHOW("the kernel's", fcntl(senders[1], F_SETFL, O_ASYNC));
    int length = 1;
    for (bool second_is_the_kernels : {false, true}) {
        int receivers[3];  // two members, and one that receives what they joined
        for (int& fd : receivers) {
            fd = udp();
            set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
            const sockaddr_in name = at("0.0.0.0", kGroupPort);
            SHOW("bind", bind(fd, raw(name), sizeof name));
            set(fd, IPPROTO_IP, IP_RECVTTL, 1);
            set(fd, IPPROTO_IP, IP_PKTINFO, 1);
        }
        if (second_is_the_kernels) SHOW("the kernel's", fcntl(receivers[1], F_SETFL, O_ASYNC));
        for (int i : {0, 1})
            SHOW("join", membership(receivers[i], IP_ADD_MEMBERSHIP, kGroup, i == 0 ? kHere : kHereSecond));
        auto show = [&] {
            settle();
            for (int fd : receivers) {
                show_recv("receiver", fd, MSG_DONTWAIT);
                show_lengths("more", fd);
            }
        };
        for (int loop : {1, 0})
            for (int ttl : {0, 1})
                for (int fd : senders) {
                    SHOW("loop", set(fd, IPPROTO_IP, IP_MULTICAST_LOOP, loop));
                    SHOW("ttl", set(fd, IPPROTO_IP, IP_MULTICAST_TTL, ttl));
                    SHOW("send", to_group(fd, kText, static_cast<size_t>(length++ % 36)));
                    tell("recv g 100");
                    show();
                }
        peer_sends(40 + length, 1, 1, kGroup, kGroupPort);
        show();
        for (int fd : receivers) SHOW("close", close(fd));
    }
}

// A socket hears itself, and a membership of any socket counts at once.
PARITY_CASE(multicast_send, members_come_and_go, kernel_carries(24)) {
    members();
    int fd = bound("0.0.0.0", kGroupPort);
    SHOW("interface", egress(fd, kHere));
    size_t length = 1;
    auto send = [&](const char* what) {
        SHOW(what, to_group(fd, kText, length));
        SHOW(what, to_group(fd, kText, length + 1));
        arrives(2);
        settle();
        show_lengths(what, fd);
        length += 2;
    };
    send("no member");
    SHOW("join", membership(fd, IP_ADD_MEMBERSHIP, kGroup, kHere));
    send("itself");
    SHOW("leave", membership(fd, IP_DROP_MEMBERSHIP, kGroup, kHere));
    send("left");
    int other = udp();
    SHOW("another joins", membership(other, IP_ADD_MEMBERSHIP, kGroup, kHere));
    send("another's membership");
    SHOW("another leaves", close(other));
    send("closed");
    // On the other link, or of another group, does not count.
    SHOW("join there", membership(fd, IP_ADD_MEMBERSHIP, kGroup, kHereLink2));
    SHOW("join another", membership(fd, IP_ADD_MEMBERSHIP, kSecondGroup, kHere));
    send("elsewhere");
    // A source filter that excludes the sender.
    ip_mreq_source r{};
    r.imr_multiaddr = ip4(kGroup);
    r.imr_interface = ip4(kHere);
    r.imr_sourceaddr = ip4(kThere);
    SHOW("for another source", setsockopt(fd, IPPROTO_IP, IP_ADD_SOURCE_MEMBERSHIP, &r, sizeof r));
    send("not for this source");
    r.imr_sourceaddr = ip4(kHere);
    SHOW("for this source", setsockopt(fd, IPPROTO_IP, IP_ADD_SOURCE_MEMBERSHIP, &r, sizeof r));
    send("for this source");
}

PARITY_CASE(multicast_send, packet_info, Traffic::offloaded) {
    members();
    int fd = bound("0.0.0.0", kPort);
    auto send = [&](const char* what, const char* interface, const char* source) {
        sockaddr_in to = at(kGroup, kGroupPort);
        iovec iov{const_cast<char*>(kText), 5};
        alignas(cmsghdr) char control[CMSG_SPACE(sizeof(in_pktinfo))] = {};
        msghdr m{};
        m.msg_name = &to;
        m.msg_namelen = sizeof to;
        m.msg_iov = &iov;
        m.msg_iovlen = 1;
        m.msg_control = control;
        m.msg_controllen = sizeof control;
        cmsghdr* c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = IPPROTO_IP;
        c->cmsg_type = IP_PKTINFO;
        c->cmsg_len = CMSG_LEN(sizeof(in_pktinfo));
        in_pktinfo info{};
        info.ipi_ifindex = *interface != 0 ? static_cast<int>(if_nametoindex(interface)) : 0;
        info.ipi_spec_dst = ip4(source);
        info.ipi_addr = ip4("192.0.2.1");  // of no meaning here
        memcpy(CMSG_DATA(c), &info, sizeof info);
        SHOW(what, sendmsg(fd, &m, 0));
        tell("recv g 200");
        tell("recv h 200");
    };
    send("nothing", "", "0.0.0.0");
    send("interface", "veth1", "0.0.0.0");
    send("the other interface", "veth2", "0.0.0.0");
    send("source", "", kHereSecond);
    send("both", "veth1", kHereSecond);
    send("a source that is not ours", "veth1", "203.0.113.9");
    SHOW("option", egress(fd, kHereSecond));
    send("nothing, option", "", "0.0.0.0");
    send("interface, option", "veth2", "0.0.0.0");
    send("source, option", "", kHere);
    SHOW("send", to_group(fd, kText, 6));
    arrives();
}

PARITY_CASE(multicast_send, many, kernel_carries(3)) {
    members();
    peer_opens();
    int fd = bound(kHere, kPort);
    sockaddr_in group = at(kGroup, kGroupPort), second = at(kSecondGroup, kGroupPort),
                peer = at(kThere, kPeerPort);
    say("g: %s", ask(std::string("join g ") + kSecondGroup + " " + kThere).c_str());
    iovec iov[6];
    mmsghdr many[6] = {};
    sockaddr_in* to[] = {&group, &second, &peer, &group, &second, &peer};
    for (size_t i = 0; i < 6; i++) {
        iov[i] = {const_cast<char*>(kText), i + 3};
        many[i].msg_hdr.msg_iov = &iov[i];
        many[i].msg_hdr.msg_iovlen = 1;
        many[i].msg_hdr.msg_name = to[i];
        many[i].msg_hdr.msg_namelen = sizeof *to[i];
    }
    SHOW("sendmmsg", sendmmsg(fd, many, 6, 0));
    arrives(4);
    for (int i = 0; i < 2; i++) tell("recv p 1500");
    for (int flag : {MSG_DONTROUTE, MSG_CONFIRM, MSG_DONTWAIT, MSG_NOSIGNAL}) {
        SHOW("flag", sendto(fd, kText, 9, flag, raw(group), sizeof group));
        arrives();
    }
    ask("set g multicast_all 1");
    SHOW("broadcast bit", set(fd, SOL_SOCKET, SO_BROADCAST, 1));
    SHOW("all hosts", to_group(fd, kText, 5, "224.0.0.1"));
    arrives();
    SHOW("port 0", to_group(fd, kText, 5, kGroup, 0));
    SHOW("reserved", to_group(fd, kText, 5, "240.0.0.1"));
}

PARITY_CASE(multicast_send, sizes, kernel_carries(9)) {
    members();
    int fd = bound(kHere, kPort);
    const auto data = payload::make(65000, 3);
    for (int discover : {IP_PMTUDISC_WANT, IP_PMTUDISC_DO, IP_PMTUDISC_DONT, IP_PMTUDISC_PROBE}) {
        SHOW("discover", set(fd, IPPROTO_IP, IP_MTU_DISCOVER, discover));
        for (size_t length : {0, 1, 1472, 1473, 4000, 65000})
            if (SHOW("send", to_group(fd, data.data(), length)) >= 0) arrives();
    }
    for (uint32_t i = 0; i < 10; i++) {
        const auto payload = payload::make(100, i);
        ok(to_group(fd, payload.data(), payload.size()));
    }
    tell("drain g 300");
}

}  // namespace parity
