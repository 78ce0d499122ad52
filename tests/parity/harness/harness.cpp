// SPDX-License-Identifier: BSD-2-Clause
// See harness.h.
#include "harness.h"

#include <linux/errqueue.h>
#include <linux/net_tstamp.h>
#include <net/if.h>
#include <netinet/udp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

#include <cmath>

namespace parity {

namespace {
constexpr int kControl = 100;
constexpr int kReport = 101;
constexpr int kFirstEphemeral = 32768;
}  // namespace

std::vector<Case>& cases() {
    static std::vector<Case> all;
    return all;
}

namespace {
long (*g_kernel_packets)();
}
void count_kernel_packets_with(long (*counter)()) { g_kernel_packets = counter; }
void report_kernel_packets(const char* when) {
    if (dprintf(kReport, "%s %ld\n", when, g_kernel_packets()) < 0) say("no report of kernel packets");
}

void end_at_once() {
    report_kernel_packets("end");
    say("end");
    _exit(0);
}

void say(const char* format, ...) {
    char line[2048];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line - 1, format, args);
    va_end(args);
    if (n > static_cast<int>(sizeof line) - 2) n = sizeof line - 2;
    line[n] = '\n';
    if (write(1, line, static_cast<size_t>(n) + 1) < 0) _exit(3);
}

long show(const char* what, long result, int error, int error_before) {
    if (result < 0)
        say("%s = %ld %s", what, result, strerrorname_np(error));
    else if (error != error_before)
        say("%s = %ld, but errno became %s", what, result, strerrorname_np(error));
    else
        say("%s = %ld", what, result);
    errno = error;
    return result;
}

std::string text(const sockaddr_in& a) {
    char address[INET_ADDRSTRLEN];
    inet_ntop(AF_INET, &a.sin_addr, address, sizeof address);
    int port = ntohs(a.sin_port);
    return std::string(address) + ":" + (port < kFirstEphemeral ? std::to_string(port) : "ephemeral");
}

std::string text(const void* address, socklen_t length) {
    if (length == 0) return "none";
    if (length < sizeof(sockaddr_in)) return "short " + std::to_string(length);
    sockaddr_in a;
    memcpy(&a, address, sizeof a);
    if (a.sin_family != AF_INET) return "family " + std::to_string(a.sin_family);
    for (unsigned char byte : a.sin_zero)
        if (byte != 0) return text(a) + " with dirty padding";
    return text(a) + (length == sizeof a ? "" : " length " + std::to_string(length));
}

void show_name(const char* what, int fd) {
    sockaddr_in a;
    memset(&a, 0xee, sizeof a);
    socklen_t length = sizeof a;
    if (getsockname(fd, raw(a), &length) != 0)
        say("%s: getsockname %s", what, strerrorname_np(errno));
    else
        say("%s: name %s", what, text(&a, length).c_str());
}

void show_peer(const char* what, int fd) {
    sockaddr_in a;
    memset(&a, 0xee, sizeof a);
    socklen_t length = sizeof a;
    if (getpeername(fd, raw(a), &length) != 0)
        say("%s: getpeername %s", what, strerrorname_np(errno));
    else
        say("%s: peer %s", what, text(&a, length).c_str());
}

sockaddr_in at(const char* address, int port) {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = htons(static_cast<uint16_t>(port));
    inet_pton(AF_INET, address, &a.sin_addr);
    return a;
}

in_addr ip4(const char* address) { return at(address, 0).sin_addr; }

int udp(int flags) {
    int fd = socket(AF_INET, SOCK_DGRAM | flags, 0);
    if (fd < 0) {
        say("socket failed: %s", strerrorname_np(errno));
        _exit(1);
    }
    return fd;
}

int bound(const char* address, int port, int flags) {
    int fd = udp(flags);
    sockaddr_in a = at(address, port);
    if (bind(fd, raw(a), sizeof a) != 0) {
        say("bind to %s failed: %s", text(a).c_str(), strerrorname_np(errno));
        _exit(1);
    }
    return fd;
}

int connected(const char* address, int port, int local_port) {
    int fd = local_port == 0 ? udp() : bound(kHere, local_port);
    sockaddr_in a = at(address, port);
    if (connect(fd, raw(a), sizeof a) != 0) {
        say("connect to %s failed: %s", text(a).c_str(), strerrorname_np(errno));
        _exit(1);
    }
    return fd;
}

int set(int fd, int level, int name, int value) { return setsockopt(fd, level, name, &value, sizeof value); }

int get(int fd, int level, int name) {
    int value = 0;
    socklen_t length = sizeof value;
    return getsockopt(fd, level, name, &value, &length) == 0 ? value : -1;
}

bool wait_in(int fd, int msec) {
    pollfd p{fd, POLLIN, 0};
    int r;
    do r = poll(&p, 1, msec);
    while (r < 0 && errno == EINTR);
    if (r > 0) return true;
    say("nothing to receive");
    return false;
}

void settle() {
    const std::string id = "settle", where = " " + id + " ";
    const int fd = bound(kHere, kSettlePort);
    const sockaddr_in there = at(kThere, kSettlePort);
    post("open" + where + kThere + " " + std::to_string(kSettlePort));
    const std::string opened = answer();
    post("echo" + where + "1 3000");
    char byte = 0;
    if (!opened.starts_with("ok") || sendto(fd, &byte, 1, 0, raw(there), sizeof there) != 1 || !wait_in(fd) ||
        recv(fd, &byte, 1, MSG_DONTWAIT) != 1)
        say("cannot settle: %s", opened.c_str());
    answer();
    ask("close" + where);
    close(fd);
}

std::string flags_text(int flags) {
    std::string s;
    auto flag = [&](int bit, const char* name) {
        if (flags & bit) s += s.empty() ? name : std::string("|") + name;
        flags &= ~bit;
    };
    flag(MSG_TRUNC, "TRUNC");
    flag(MSG_CTRUNC, "CTRUNC");
    flag(MSG_ERRQUEUE, "ERRQUEUE");
    flag(MSG_OOB, "OOB");
    flag(MSG_EOR, "EOR");
    flag(MSG_CMSG_CLOEXEC, "CLOEXEC");
    if (flags != 0) s += "|" + std::to_string(flags);
    return s.empty() ? "0" : s;
}

std::string digest(const void* data, long length) {
    char s[64];
    snprintf(s, sizeof s, "len=%ld hash=%08x", length,
             payload::hash(static_cast<const uint8_t*>(data), length > 0 ? static_cast<size_t>(length) : 0));
    return s;
}

namespace {

// Is the stamp within a minute of now?
const char* age(long seconds) {
    return seconds == 0 ? "zero" : labs(time(nullptr) - seconds) < 60 ? "recent" : "wrong";
}

std::string address_text(in_addr a) {
    char s[INET_ADDRSTRLEN];
    return inet_ntop(AF_INET, &a, s, sizeof s);
}

std::string one_control(const cmsghdr* c) {
    auto data = [&](auto& out) { memcpy(&out, CMSG_DATA(c), sizeof out); };
    size_t length = c->cmsg_len - CMSG_LEN(0);
    if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_TIMESTAMP) {
        timeval t;
        data(t);
        return std::string("TIMESTAMP ") + age(t.tv_sec);
    }
    if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_TIMESTAMPNS) {
        timespec t;
        data(t);
        return std::string("TIMESTAMPNS ") + age(t.tv_sec);
    }
    if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_TIMESTAMPING) {
        timespec t[3];
        data(t);
        return std::string("TIMESTAMPING ") + age(t[0].tv_sec) + " " + age(t[1].tv_sec) + " " +
               age(t[2].tv_sec);
    }
    if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_RXQ_OVFL) {
        uint32_t n;
        data(n);
        return n > 0 ? "RXQ_OVFL some" : "RXQ_OVFL 0";
    }
    if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO) {
        in_pktinfo info;
        data(info);
        char name[IF_NAMESIZE] = "?";
        if_indextoname(static_cast<unsigned>(info.ipi_ifindex), name);
        return std::string("PKTINFO ") + name + " spec_dst=" + address_text(info.ipi_spec_dst) +
               " addr=" + address_text(info.ipi_addr);
    }
    if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TTL) {
        int v;
        data(v);
        return "TTL " + std::to_string(v);
    }
    if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) return "TOS " + std::to_string(*CMSG_DATA(c));
    if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_ORIGDSTADDR) {
        return "ORIGDSTADDR " + text(CMSG_DATA(c), static_cast<socklen_t>(length));
    }
    if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_RECVERR) {
        sock_extended_err e;
        data(e);
        sockaddr_in offender;
        memcpy(&offender, CMSG_DATA(c) + sizeof e, sizeof offender);
        return std::string("RECVERR ") + strerrorname_np(static_cast<int>(e.ee_errno)) +
               " origin=" + std::to_string(e.ee_origin) + " type=" + std::to_string(e.ee_type) +
               " code=" + std::to_string(e.ee_code) + " from=" + address_text(offender.sin_addr);
    }
    if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == 104 /* UDP_GRO */) {
        int v;
        data(v);
        return "GRO " + std::to_string(v);
    }
    return std::to_string(c->cmsg_level) + "/" + std::to_string(c->cmsg_type) + " length " +
           std::to_string(length);
}

}  // namespace

std::string control_text(const msghdr& m) {
    std::string s;
    for (cmsghdr* c = CMSG_FIRSTHDR(&m); c != nullptr; c = CMSG_NXTHDR(const_cast<msghdr*>(&m), c)) {
        s += " [" + one_control(c);
        size_t room = m.msg_controllen -
                      static_cast<size_t>(reinterpret_cast<char*>(c) - static_cast<char*>(m.msg_control));
        s += c->cmsg_len > room ? " cut]" : "]";
    }
    return s;
}

void show_lengths(const char* what, int fd) {
    std::string lengths;
    char buffer[4000];
    ssize_t n;
    while ((n = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT)) >= 0) lengths += " " + std::to_string(n);
    say("%s:%s %s", what, lengths.c_str(), strerrorname_np(errno));
}

long show_recv(const char* what, int fd, int flags, size_t room, size_t control_room) {
    std::vector<uint8_t> buffer(room + 1, 0xaa);
    std::vector<char> control(control_room +
                              64);  // a message that is cut short reads as zeros beyond the end
    sockaddr_in from;
    memset(&from, 0xee, sizeof from);
    iovec iov{buffer.data(), room};
    msghdr m{};
    m.msg_name = &from;
    m.msg_namelen = sizeof from;
    m.msg_iov = &iov;
    m.msg_iovlen = 1;
    m.msg_control = control_room > 0 ? control.data() : nullptr;
    m.msg_controllen = control_room;
    m.msg_flags = 0x5a5a;
    long n = recvmsg(fd, &m, flags);
    if (n < 0) {
        int error = errno;
        say("%s = -1 %s", what, strerrorname_np(error));
        errno = error;
        return n;
    }
    long stored = n < static_cast<long>(room) ? n : static_cast<long>(room);
    say("%s = %ld %s from=%s flags=%s controllen=%zu%s%s", what, n, digest(buffer.data(), stored).c_str(),
        text(&from, m.msg_namelen).c_str(), flags_text(m.msg_flags).c_str(),
        static_cast<size_t>(m.msg_controllen), control_text(m).c_str(),
        buffer[room] == 0xaa ? "" : " OVERRUN");
    return n;
}

void post(const std::string& command) {
    if (send(kControl, command.data(), command.size(), MSG_NOSIGNAL) < 0) {
        say("the agent is gone");
        _exit(3);
    }
}

std::string answer() {
    char reply[512];
    ssize_t n;
    do n = recv(kControl, reply, sizeof reply, 0);
    while (n < 0 && errno == EINTR);
    if (n <= 0) {
        say("the agent is gone");
        _exit(3);
    }
    return std::string(reply, static_cast<size_t>(n));
}

std::string ask(const std::string& command) {
    post(command);
    return answer();
}

void tell(const std::string& command) { say("peer: %s", ask(command).c_str()); }

void peer_opens(const char* options) {
    std::string reply =
        ask(std::string("open p ") + kThere + " " + std::to_string(kPeerPort) + " " + options);
    if (reply != "ok " + std::to_string(kPeerPort)) say("peer cannot open: %s", reply.c_str());
}

void peer_sends(int length, int count, int seed, const char* to, int port) {
    std::string reply =
        ask(std::string("send p ") + to + " " + std::to_string(port) + " " + std::to_string(length) + " " +
            std::to_string(count) + " " + std::to_string(seed));
    if (reply != "sent " + std::to_string(count)) say("peer cannot send: %s", reply.c_str());
}

}  // namespace parity
