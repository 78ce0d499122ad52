// SPDX-License-Identifier: BSD-2-Clause
// Control messages with received datagrams.
#include <linux/net_tstamp.h>

#include "tests/parity/harness/harness.h"

namespace parity {
namespace {

void one(int fd, const char* what, int length = 25, size_t room = 512) {
    peer_sends(length);
    if (wait_in(fd)) show_recv(what, fd, 0, 70000, room);
}

// The kernel turns stamping on in the background, on a busy machine after seconds: receives until a datagram
// has a stamp.
bool until_stamped(int fd) {
    for (int i = 0; i < 1000; i++) {
        if (i > 20) usleep(10'000);
        peer_sends(25);
        char body[100], control[200];
        iovec iov{body, sizeof body};
        msghdr m{};
        m.msg_iov = &iov;
        m.msg_iovlen = 1;
        m.msg_control = control;
        m.msg_controllen = sizeof control;
        if (!wait_in(fd) || recvmsg(fd, &m, 0) < 0) return false;
        if (control_text(m).find("TIMESTAMPING recent") != std::string::npos) return true;
    }
    return false;
}

int listening(const char* address = "0.0.0.0") {
    peer_opens();
    return bound(address, kPort);
}

}  // namespace

PARITY_CASE(control, pktinfo, kernel_carries(1)) {
    int fd = listening();
    SHOW("on", set(fd, IPPROTO_IP, IP_PKTINFO, 1));
    say("value %d", get(fd, IPPROTO_IP, IP_PKTINFO));
    one(fd, "recv");
    one(fd, "fragmented", 3000);
    peer_sends(25, 1, 1, kHereSecond);
    if (wait_in(fd)) show_recv("second address", fd);
    SHOW("off", set(fd, IPPROTO_IP, IP_PKTINFO, 0));
    one(fd, "off");
    int specific = bound(kHere, kPort + 1);
    set(specific, IPPROTO_IP, IP_PKTINFO, 1);
    peer_sends(26, 1, 1, kHere, kPort + 1);
    if (wait_in(specific)) show_recv("bound to an address", specific);
}

PARITY_CASE(control, ttl_and_tos, kernel_carries(1)) {
    int fd = listening(kHere);
    SHOW("ttl on", set(fd, IPPROTO_IP, IP_RECVTTL, 1));
    say("value %d", get(fd, IPPROTO_IP, IP_RECVTTL));
    one(fd, "ttl");
    ask("set p ttl 7");
    one(fd, "ttl 7");
    SHOW("tos on", set(fd, IPPROTO_IP, IP_RECVTOS, 1));
    one(fd, "both");
    ask("set p tos 40");
    one(fd, "tos 40");
    one(fd, "fragmented", 3000);
    set(fd, IPPROTO_IP, IP_PKTINFO, 1);
    one(fd, "three");
    set(fd, IPPROTO_IP, IP_RECVTTL, 0);
    one(fd, "two");
}

PARITY_CASE(control, timestamps, kernel_carries(1)) {
    int fd = listening(kHere);
    SHOW("timestamp", set(fd, SOL_SOCKET, SO_TIMESTAMP, 1));
    one(fd, "timestamp");
    one(fd, "fragmented", 3000);
    SHOW("timestampns", set(fd, SOL_SOCKET, SO_TIMESTAMPNS, 1));
    one(fd, "timestampns");
    say("timestamp=%d timestampns=%d", get(fd, SOL_SOCKET, SO_TIMESTAMP),
        get(fd, SOL_SOCKET, SO_TIMESTAMPNS));
    SHOW("off", set(fd, SOL_SOCKET, SO_TIMESTAMPNS, 0));
    one(fd, "off");
    SHOW("timestamping",
         set(fd, SOL_SOCKET, SO_TIMESTAMPING, SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE));
    say("stamped: %d", until_stamped(fd));
    one(fd, "timestamping");
    set(fd, IPPROTO_IP, IP_PKTINFO, 1);
    one(fd, "with pktinfo");
    SHOW("off", set(fd, SOL_SOCKET, SO_TIMESTAMPING, 0));
    one(fd, "pktinfo only");
}

PARITY_CASE(control, original_destination, Traffic::offloaded) {
    int fd = listening();
    SHOW("on", set(fd, IPPROTO_IP, IP_RECVORIGDSTADDR, 1));
    one(fd, "recv");
    peer_sends(25, 1, 1, kHereSecond);
    if (wait_in(fd)) show_recv("second address", fd);
}

PARITY_CASE(control, overflow_counter, Traffic::offloaded) {
    int fd = listening(kHere);
    SHOW("on", set(fd, SOL_SOCKET, SO_RXQ_OVFL, 1));
    say("value %d", get(fd, SOL_SOCKET, SO_RXQ_OVFL));
    one(fd, "no loss");
}

// What the queue had no room for is counted with the next datagram that finds some.
PARITY_CASE(control, overflow_counter_counts, Traffic::offloaded) {
    int fd = listening(kHere);
    set(fd, SOL_SOCKET, SO_RXQ_OVFL, 1);
    SHOW("small buffer", set(fd, SOL_SOCKET, SO_RCVBUF, 4096));
    constexpr int kSent = 300;
    peer_sends(1400, kSent);
    settle();
    auto receive = [&](uint32_t& dropped) {
        char body[2000], control[100];
        iovec iov{body, sizeof body};
        msghdr m{};
        m.msg_iov = &iov;
        m.msg_iovlen = 1;
        m.msg_control = control;
        m.msg_controllen = sizeof control;
        if (recvmsg(fd, &m, MSG_DONTWAIT) < 0) return false;
        for (cmsghdr* c = CMSG_FIRSTHDR(&m); c != nullptr; c = CMSG_NXTHDR(&m, c))
            if (c->cmsg_type == SO_RXQ_OVFL) memcpy(&dropped, CMSG_DATA(c), sizeof dropped);
        return true;
    };
    int got = 0;
    uint32_t dropped = 0;
    while (receive(dropped)) got++;
    say("some lost %d", got < kSent);
    peer_sends(20);
    if (!wait_in(fd) || !receive(dropped)) return;
    say("all losses are counted: %d", static_cast<int>(dropped) == kSent - got);
    peer_sends(20);
    if (wait_in(fd) && receive(dropped)) say("no more since: %d", static_cast<int>(dropped) == kSent - got);
}

PARITY_CASE(control, small_buffers, Traffic::offloaded) {
    int fd = listening();
    set(fd, IPPROTO_IP, IP_PKTINFO, 1);
    for (size_t room : {size_t{0}, size_t{1}, size_t{8}, size_t{16}, size_t{20}, size_t{27}, size_t{28},
                        size_t{32}, size_t{40}})
        one(fd, ("room " + std::to_string(room)).c_str(), 25, room);
    set(fd, IPPROTO_IP, IP_RECVTTL, 1);
    for (size_t room : {size_t{28}, size_t{32}, size_t{40}, size_t{52}, size_t{56}})
        one(fd, ("two, room " + std::to_string(room)).c_str(), 25, room);
}

PARITY_CASE(control, several_messages, Traffic::offloaded) {
    int fd = listening();
    set(fd, IPPROTO_IP, IP_PKTINFO, 1);
    peer_sends(30, 2);
    peer_sends(30, 1, 9, kHereSecond);
    settle();
    mmsghdr m[3]{};
    iovec iov[3];
    static char bodies[3][64], control[3][128];
    for (int i = 0; i < 3; i++) {
        iov[i] = {bodies[i], 64};
        m[i].msg_hdr.msg_iov = &iov[i];
        m[i].msg_hdr.msg_iovlen = 1;
        m[i].msg_hdr.msg_control = control[i];
        m[i].msg_hdr.msg_controllen = sizeof control[i];
    }
    SHOW("recvmmsg", recvmmsg(fd, m, 3, MSG_DONTWAIT, nullptr));
    for (auto& one : m) say("%u:%s", one.msg_len, control_text(one.msg_hdr).c_str());
}

// Options that come after the datagram: the kernel answers by the state at receive time for some, at arrival
// for others.
PARITY_CASE(control, option_after_arrival, Traffic::offloaded) {
    int fd = listening();
    peer_sends(25, 3);
    settle();
    set(fd, IPPROTO_IP, IP_RECVTTL, 1);
    show_recv("ttl", fd, MSG_DONTWAIT);
    set(fd, SOL_SOCKET, SO_TIMESTAMP, 1);
    show_recv("timestamp", fd, MSG_DONTWAIT);
    set(fd, IPPROTO_IP, IP_RECVTOS, 1);
    show_recv("tos", fd, MSG_DONTWAIT);
}

}  // namespace parity
