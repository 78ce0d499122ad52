// SPDX-License-Identifier: BSD-2-Clause
// What a parity case is written with. A case makes socket calls on host a, has the agent on host b answer,
// and prints what happened: return values, errno names, flags, contents. The transcript must not depend on
// anything but the behaviour of the calls, so that a run on the kernel and a run on the library can be
// compared line by line.
#pragma once

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/apps/payload.h"

namespace parity {

// Addresses of the two hosts, as tests/support/hosts/two_hosts.h gives them out. Link 2 is a second
// wire.
inline constexpr const char* kHere = "198.18.1.1";
inline constexpr const char* kHereSecond = "198.18.1.101";
inline constexpr const char* kThere = "198.18.1.2";
inline constexpr const char* kThereSecond = "198.18.1.102";
inline constexpr const char* kHereLink2 = "198.18.2.1";
inline constexpr const char* kThereLink2 = "198.18.2.2";
inline constexpr int kPort = 5000;        // ours
inline constexpr int kPeerPort = 6000;    // the agent's
inline constexpr int kSettlePort = 4999;  // of settle(), on both sides

// What of a case the kernel may carry when the library serves it.
struct Traffic {
    // Datagrams, and segments of TCP, that the kernel of the namespace sends and delivers; at most. Of a case
    // with two programs it is the limit of each side.
    long kernel_limit;
    bool server_is_killed = false;  // so only the client is tried with the library

    static const Traffic offloaded;  // nothing
};
inline constexpr Traffic Traffic::offloaded{0};
// For fragments, the loopback, multicast and whatever else is the kernel's: as many as the case has of them.
// A TCP case has room for acknowledgements besides, whose number depends on time.
constexpr Traffic kernel_carries(long packets) { return {packets}; }

struct Case {
    const char* theme;
    const char* name;
    Traffic traffic;
    void (*run)();
};
std::vector<Case>& cases();
// The report of what the kernel carried (descriptor 101, see tests/parity/compare/kernel_report.h):
// `counter` tells it, and the program says "begin" when its case begins, and "end" when that or a program it
// executed has ended.
void count_kernel_packets_with(long (*counter)());
void report_kernel_packets(const char* when);
struct Registration {
    explicit Registration(const Case& c) { cases().push_back(c); }
};

#define PARITY_CASE(theme, name, traffic)                                                                    \
    static void theme##_##name();                                                                            \
    static const ::parity::Registration register_##theme##_##name({#theme, #name, traffic, theme##_##name}); \
    static void theme##_##name()

// ---- the transcript ----
// One line, written at once (forked children and signal handlers print too).
[[gnu::format(printf, 1, 2)]] void say(const char* format, ...);
// "what = 5" or "what = -1 EAGAIN"; returns the value. A successful call must leave errno alone: set it to a
// mark first with SHOW(), which reports when it moved.
long show(const char* what, long result, int error, int error_before);
#define SHOW(what, call)                               \
    ({                                                 \
        errno = ERANGE;                                \
        long result_ = static_cast<long>(call);        \
        int error_ = errno;                            \
        ::parity::show(what, result_, error_, ERANGE); \
    })
// "198.18.1.1:5000"; ephemeral ports are printed as such.
std::string text(const sockaddr_in& address);
std::string text(const void* address, socklen_t length);
void show_name(const char* what, int fd);  // getsockname
void show_peer(const char* what, int fd);  // getpeername

// Ends the program at once, without destructors, and with its case in order.
[[noreturn]] void end_at_once();

// ---- sockets ----
sockaddr_in at(const char* address, int port);
in_addr ip4(const char* address);
inline const sockaddr* raw(const sockaddr_in& a) { return reinterpret_cast<const sockaddr*>(&a); }
inline sockaddr* raw(sockaddr_in& a) { return reinterpret_cast<sockaddr*>(&a); }
int udp(int flags = 0);
int bound(const char* address, int port, int flags = 0);  // ends the case when it cannot
int connected(const char* address, int port, int local_port = 0);
int set(int fd, int level, int name, int value);  // setsockopt of an int
int get(int fd, int level, int name);             // its value, -1 when it cannot

// ---- receiving ----
// Waits until `fd` is readable (by poll); prints and returns false after `msec`.
bool wait_in(int fd, int msec = 3000);
// Returns when all that both hosts have sent each other so far has arrived, errors of ICMP included: a
// datagram of its own goes to the agent and back behind it. No socket of the case has been looked at.
void settle();
// recvmsg with room for everything; prints length, hash, sender, flags and control messages.
long show_recv(const char* what, int fd, int flags = 0, size_t room = 70000, size_t control = 512);
// The lengths of all datagrams that are there, and the error that ends them.
void show_lengths(const char* what, int fd);
// The control messages of a message, without volatile values.
std::string control_text(const msghdr& m);
std::string flags_text(int flags);
std::string digest(const void* data, long length);  // "len=5 hash=..."

// ---- the agent on the other host ----
std::string ask(const std::string& command);  // and wait for the answer
void tell(const std::string& command);        // ask(), printing "peer: <answer>"
void post(const std::string& command);        // collect with answer()
std::string answer();
// The usual agent socket "p": bound to kThere:kPeerPort.
void peer_opens(const char* options = "");
// The agent sends datagrams from "p" to kHere:kPort.
void peer_sends(int length, int count = 1, int seed = 1, const char* to = kHere, int port = kPort);

inline long ok(long r) { return r; }

}  // namespace parity
