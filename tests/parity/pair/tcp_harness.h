// SPDX-License-Identifier: BSD-2-Clause
// What a TCP parity case is written with, on top of the UDP suite's harness (transcript, SHOW()).
//
// A case is one function that two programs run at the same time, the server on host a and the client on host
// b. Each does its own parts (at_server, at_client, or at_left and at_right where both assignments of the
// roles are tried) and they meet in sync() after each part, so a case reads from top to bottom as one story
// while every call is a real call of a real program. Both transcripts are compared with the kernel's.
//
// Nothing may depend on time: where a packet has to arrive first, wait for what the sockets show (await_*).
#pragma once

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <sys/ioctl.h>

#include <functional>

#include "tests/parity/harness/harness.h"

namespace parity::tcp {

// ---- the two sides ----
bool server();
bool client();
bool left();  // who acts first: the server, and in the second half of a TCP_PAIR_CASE the client
void begin(bool is_server, int base_port);
void swap_sides();
// Both programs get here; ends the program when the other one is gone.
void sync();
// sync() that carries a value to the other side and returns its value.
long exchange(long value);

template <class F>
void at_server(F&& f) {
    if (server()) f();
    sync();
}
template <class F>
void at_client(F&& f) {
    if (client()) f();
    sync();
}
template <class F>
void at_left(F&& f) {
    if (left()) f();
    sync();
}
template <class F>
void at_right(F&& f) {
    if (!left()) f();
    sync();
}

// A segment that comes when its connection is gone is the kernel's, and so is the answer.
inline constexpr Traffic kStragglers = kernel_carries(2);
// A case with fixed roles.
#define TCP_CASE(theme, name) PARITY_CASE(theme, name, ::parity::tcp::kStragglers)
// One of whose segments the kernel carries some: at most `limit` at each side.
#define TCP_KERNEL_CASE(theme, name, limit) PARITY_CASE(theme, name, ::parity::kernel_carries(limit))
// One whose server is killed. The kernel then ends a connection for it, but of one that lives in the
// program's own memory nobody is left to say goodbye (docs/troubleshooting.md); so the library is at the
// client only.
#define TCP_KILLED_CASE(theme, name) \
    PARITY_CASE(theme, name, (::parity::Traffic{::parity::tcp::kStragglers.kernel_limit, true}))
// One that runs twice: the server is left, then the client is.
#define TCP_PAIR_CASE(theme, name) TCP_PAIR_OF(theme, name, ::parity::tcp::kStragglers)
// The same for what the kernel has to serve: the connection is moved into it at once.
#define TCP_KERNEL_PAIR_CASE(theme, name, limit) TCP_PAIR_OF(theme, name, ::parity::kernel_carries(limit))
#define TCP_PAIR_OF(theme, name, traffic)                                 \
    static void pair_##theme##_##name();                                  \
    PARITY_CASE(theme, name, traffic) {                                   \
        ::parity::say(::parity::tcp::left() ? "-- acting" : "-- facing"); \
        pair_##theme##_##name();                                          \
        ::parity::tcp::sync();                                            \
        ::parity::tcp::swap_sides();                                      \
        ::parity::say(::parity::tcp::left() ? "-- acting" : "-- facing"); \
        pair_##theme##_##name();                                          \
    }                                                                     \
    static void pair_##theme##_##name()

// ---- addresses ----
// Ports are taken from a range that no earlier run has used, so nothing of it is in TIME_WAIT.
inline constexpr int kPortsPerCase = 20;
inline constexpr int kConnectionPort = 19;  // of connection()'s listener
int port(int offset = 0);
const char* here();   // this side's address on link 1
const char* there();  // the other side's
inline const char* server_address() { return kHere; }
inline const char* client_address() { return kThere; }
// Destinations the test has prepared, see tcp_parity_test.cpp. "far_" ones are behind the other host.
inline constexpr const char* kNoRoute = "198.19.99.1";
inline constexpr const char* kUnreachableRoute = "198.19.21.1";
inline constexpr const char* kProhibitRoute = "198.19.22.1";
inline constexpr const char* kBlackholeRoute = "198.19.23.1";
inline constexpr const char* kNoNeighbour = "198.18.1.99";
const char* far_unreachable();  // ICMP host unreachable comes back
const char* far_prohibited();   // ICMP administratively prohibited
const char* far_silent();       // nothing comes back
// "198.18.1.1:base+1", ephemeral ports as such.
std::string address_text(const void* address, socklen_t length);
void show_name(const char* what, int fd);
void show_peer(const char* what, int fd);
int own_port(int fd);  // getsockname's

// ---- sockets ----
int stream(int flags = 0);
int streams_made();  // by stream()
// A listening socket with SO_REUSEADDR; ends the program when it cannot.
int listening(int offset = 0, const char* address = nullptr, int backlog = 16);
int accepted(int listener, int flags = 0);
int connecting(const char* address, int port_number);  // blocking connect, complains when it fails
struct Prepare {
    std::function<void(int)> listener = nullptr, client = nullptr;
};
// Called by both: the server's accepted or the client's connected socket, Nagle off. The listener is closed.
int connection(const Prepare& prepare = {});
// The same without network between: both ends in this program, over the loopback interface.
void loopback_pair(int& a, int& b);
void nonblocking(int fd, bool on = true);
void set_linger(int fd, bool on, int seconds);
void set_timeout(int fd, int name, int msec);

// ---- states, as TCP_INFO has them (netinet/tcp.h, which linux/tcp.h excludes) ----
enum : int {
    TCP_ESTABLISHED = 1,
    TCP_SYN_SENT,
    TCP_SYN_RECV,
    TCP_FIN_WAIT1,
    TCP_FIN_WAIT2,
    TCP_TIME_WAIT,
    TCP_CLOSE,
    TCP_CLOSE_WAIT,
    TCP_LAST_ACK,
    TCP_LISTEN,
    TCP_CLOSING,
};

// ---- waiting ----
bool eventually(const char* what, const std::function<bool()>& condition);  // says "never: what" after 5 s
void await_events(int fd, int events);
void await_readable(int fd);
void await_bytes(int fd, int bytes);  // FIONREAD
void await_acked(int fd);             // nothing unacknowledged (SIOCOUTQ)
void await_state(int fd, int state);  // of TCP_INFO
int state(int fd);
const char* state_name(int state);

// ---- showing ----
std::string events_text(int events);
int events(int fd);
void show_events(const char* what, int fd);                   // of poll(), now
void show_events_with(const char* what, int fd, int wanted);  // all of them, once `wanted` are there
void show_select(const char* what, int fd);                   // the three sets, now
long show_read(const char* what, int fd, size_t room, int flags = 0);
void show_state(const char* what, int fd);
void show_error(const char* what, int fd);  // SO_ERROR
// The rest of the stream up to its end or error: amount and hash.
void show_rest(const char* what, int fd);
void put(int fd, const char* text);
std::vector<uint8_t> bytes(size_t length, uint32_t seed = 1);
void put_bytes(int fd, size_t length, uint32_t seed = 1);
// Writes without blocking until the socket takes no more; the number of bytes (stream of bytes(.., 7)).
size_t fill(int fd);
// Reads `length` bytes and says whether they are those of fill().
void drain(int fd, size_t length);
// SIGPIPE is counted from here on.
void count_sigpipe();
int sigpipes();

}  // namespace parity::tcp
