// SPDX-License-Identifier: BSD-2-Clause
// See tcp_harness.h.
#include "tcp_harness.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/select.h>
#include <time.h>

#include <atomic>

namespace parity::tcp {
namespace {

constexpr int kMeeting = 100;  // socket pair between the two programs
constexpr int kPatience = 40000;
constexpr int kFirstEphemeral = 32768;

bool g_server, g_left;
int g_base;
std::atomic<int> g_streams;
volatile sig_atomic_t g_sigpipes;

[[noreturn]] void give_up(const char* why) {
    say("%s", why);
    _exit(3);
}

// The bytes of a stream from `at` on, until the next multiple of 256; their count.
const uint8_t* stream_bytes(size_t at, size_t& count) {
    count = 256 - at % 256;
    return payload::Ramp<13>::from(at * 13 + (at >> 8) * 7 + (at >> 16));
}

long milliseconds() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1'000'000;
}

}  // namespace

bool server() { return g_server; }
bool client() { return !g_server; }
bool left() { return g_left; }
void begin(bool is_server, int base_port) {
    g_server = g_left = is_server;
    g_base = base_port;
}
void swap_sides() { g_left = !g_left; }

long exchange(long value) {
    // What was sent is to have arrived when the other side goes on. A simulated adapter is a thread that has
    // to get a processor first.
    static const char* const settle = getenv("TEST_SETTLE_USEC");
    if (settle != nullptr) usleep(static_cast<useconds_t>(atoi(settle)));
    if (send(kMeeting, &value, sizeof value, MSG_NOSIGNAL) != sizeof value) give_up("the other side is gone");
    pollfd p{kMeeting, POLLIN, 0};
    long end = milliseconds() + kPatience;
    int r;
    do r = poll(&p, 1, static_cast<int>(std::max(0L, end - milliseconds())));
    while (r < 0 && errno == EINTR);
    if (r <= 0) give_up("the other side does not come");
    if (recv(kMeeting, &value, sizeof value, 0) != sizeof value) give_up("the other side is gone");
    return value;
}
void sync() { exchange(0); }

int port(int offset) { return g_base + offset; }
const char* here() { return g_server ? kHere : kThere; }
const char* there() { return g_server ? kThere : kHere; }
const char* far_unreachable() { return g_server ? "198.19.1.1" : "198.19.11.1"; }
const char* far_prohibited() { return g_server ? "198.19.2.1" : "198.19.12.1"; }
const char* far_silent() { return g_server ? "198.19.3.1" : "198.19.13.1"; }

std::string address_text(const void* address, socklen_t length) {
    if (length == 0) return "none";
    if (length < sizeof(sockaddr_in)) return "short " + std::to_string(length);
    sockaddr_in a;
    memcpy(&a, address, sizeof a);
    if (a.sin_family != AF_INET) return "family " + std::to_string(a.sin_family);
    char name[INET_ADDRSTRLEN];
    std::string text = inet_ntop(AF_INET, &a.sin_addr, name, sizeof name);
    int number = ntohs(a.sin_port);
    if (number >= g_base && number < g_base + kPortsPerCase)
        text += ":base+" + std::to_string(number - g_base);
    else
        text += number < kFirstEphemeral ? ":" + std::to_string(number) : ":ephemeral";
    for (unsigned char byte : a.sin_zero)
        if (byte != 0) return text + " with dirty padding";
    return text + (length == sizeof a ? "" : " length " + std::to_string(length));
}

void show_name(const char* what, int fd) {
    sockaddr_in a;
    memset(&a, 0xee, sizeof a);
    socklen_t length = sizeof a;
    if (getsockname(fd, raw(a), &length) != 0)
        say("%s: getsockname %s", what, strerrorname_np(errno));
    else
        say("%s: name %s", what, address_text(&a, length).c_str());
}

void show_peer(const char* what, int fd) {
    sockaddr_in a;
    memset(&a, 0xee, sizeof a);
    socklen_t length = sizeof a;
    if (getpeername(fd, raw(a), &length) != 0)
        say("%s: getpeername %s", what, strerrorname_np(errno));
    else
        say("%s: peer %s", what, address_text(&a, length).c_str());
}

int own_port(int fd) {
    sockaddr_in a{};
    socklen_t length = sizeof a;
    return getsockname(fd, raw(a), &length) == 0 ? ntohs(a.sin_port) : -1;
}

int streams_made() { return g_streams; }
int stream(int flags) {
    g_streams++;
    int fd = socket(AF_INET, SOCK_STREAM | flags, 0);
    if (fd < 0) give_up("no socket");
    return fd;
}

int listening(int offset, const char* address, int backlog) {
    int fd = stream();
    set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    sockaddr_in a = at(address != nullptr ? address : here(), port(offset));
    if (bind(fd, raw(a), sizeof a) != 0 || listen(fd, backlog) != 0) {
        say("cannot listen: %s", strerrorname_np(errno));
        give_up("no listener");
    }
    return fd;
}

int accepted(int listener, int flags) {
    int fd = accept4(listener, nullptr, nullptr, flags);
    if (fd < 0) say("cannot accept: %s", strerrorname_np(errno));
    return fd;
}

int connecting(const char* address, int port_number) {
    int fd = stream();
    sockaddr_in a = at(address, port_number);
    if (connect(fd, raw(a), sizeof a) != 0) say("cannot connect: %s", strerrorname_np(errno));
    return fd;
}

int connection(const Prepare& prepare) {
    int fd = -1;
    if (server()) {
        int listener = stream();
        set(listener, SOL_SOCKET, SO_REUSEADDR, 1);
        if (prepare.listener) prepare.listener(listener);
        sockaddr_in a = at(here(), port(kConnectionPort));
        if (bind(listener, raw(a), sizeof a) != 0 || listen(listener, 16) != 0) {
            say("cannot listen: %s", strerrorname_np(errno));
            give_up("no listener");
        }
        sync();
        fd = accepted(listener);
        close(listener);
    } else {
        fd = stream();
        if (prepare.client) prepare.client(fd);
        sync();
        sockaddr_in a = at(there(), port(kConnectionPort));
        if (connect(fd, raw(a), sizeof a) != 0) say("cannot connect: %s", strerrorname_np(errno));
    }
    set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    sync();
    return fd;
}

void loopback_pair(int& a, int& b) {
    int listener = stream();
    sockaddr_in address = at("127.0.0.1", 0);
    socklen_t length = sizeof address;
    if (bind(listener, raw(address), sizeof address) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, raw(address), &length) != 0)
        give_up("no listener");
    a = connecting("127.0.0.1", ntohs(address.sin_port));
    b = accepted(listener);
    close(listener);
    set(a, IPPROTO_TCP, TCP_NODELAY, 1);
    set(b, IPPROTO_TCP, TCP_NODELAY, 1);
}

void nonblocking(int fd, bool on) {
    int flags = fcntl(fd, F_GETFL);
    fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK);
}

void set_linger(int fd, bool on, int seconds) {
    linger l{on, seconds};
    if (setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l) != 0) say("cannot linger");
}

void set_timeout(int fd, int name, int msec) {
    timeval t{msec / 1000, msec % 1000 * 1000};
    if (setsockopt(fd, SOL_SOCKET, name, &t, sizeof t) != 0) say("cannot set a time limit");
}

bool eventually(const char* what, const std::function<bool()>& condition) {
    long end = milliseconds() + 5000;
    for (int i = 0; !condition(); i++) {
        if (milliseconds() > end) {
            say("never: %s", what);
            return false;
        }
        if (i > 3) usleep(i < 50 ? 200 : 2000);
    }
    return true;
}

int events(int fd) {
    pollfd p{fd, POLLIN | POLLOUT | POLLPRI | POLLRDHUP | POLLRDNORM | POLLRDBAND | POLLWRNORM | POLLWRBAND,
             0};
    int r;
    do r = poll(&p, 1, 0);
    while (r < 0 && errno == EINTR);
    return r < 0 ? -1 : p.revents;
}

void await_events(int fd, int wanted) {
    eventually(events_text(wanted).c_str(), [&] { return (events(fd) & wanted) == wanted; });
}
void await_readable(int fd) { await_events(fd, POLLIN); }

void await_bytes(int fd, int count) {
    int queued = -1;
    if (!eventually("bytes",
                    [&] { return events(fd) >= 0 && ioctl(fd, FIONREAD, &queued) == 0 && queued >= count; }))
        say("only %d of %d", queued, count);
}

void await_acked(int fd) {
    eventually("acknowledged", [&] {
        int unacked = -1;
        return ioctl(fd, SIOCOUTQ, &unacked) != 0 || unacked == 0;
    });
}

int state(int fd) {
    tcp_info info{};
    socklen_t length = sizeof info;
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 ? info.tcpi_state : -1;
}

const char* state_name(int s) {
    static const char* const names[] = {"?",          "ESTABLISHED", "SYN_SENT",  "SYN_RECV",
                                        "FIN_WAIT1",  "FIN_WAIT2",   "TIME_WAIT", "CLOSE",
                                        "CLOSE_WAIT", "LAST_ACK",    "LISTEN",    "CLOSING"};
    return s > 0 && s <= 11 ? names[s] : "?";
}

void await_state(int fd, int wanted) {
    eventually(state_name(wanted), [&] { return state(fd) == wanted; });
}

std::string events_text(int bits) {
    static const struct {
        int bit;
        const char* name;
    } names[] = {{POLLIN, "IN"},   {POLLRDNORM, "RDNORM"}, {POLLPRI, "PRI"},       {POLLRDBAND, "RDBAND"},
                 {POLLOUT, "OUT"}, {POLLWRNORM, "WRNORM"}, {POLLWRBAND, "WRBAND"}, {POLLRDHUP, "RDHUP"},
                 {POLLHUP, "HUP"}, {POLLERR, "ERR"},       {POLLNVAL, "NVAL"}};
    std::string s;
    for (auto [bit, name] : names)
        if (bits & bit) s += s.empty() ? name : std::string("|") + name;
    return s.empty() ? "none" : s;
}

void show_events(const char* what, int fd) { say("%s: %s", what, events_text(events(fd)).c_str()); }
void show_events_with(const char* what, int fd, int wanted) {
    await_events(fd, wanted);
    show_events(what, fd);
}

void show_select(const char* what, int fd) {
    fd_set r, w, x;
    for (fd_set* set : {&r, &w, &x}) {
        FD_ZERO(set);
        FD_SET(fd, set);
    }
    timeval t{0, 0};
    int n = select(fd + 1, &r, &w, &x, &t);
    say("%s: select %d%s%s%s", what, n, FD_ISSET(fd, &r) ? " read" : "", FD_ISSET(fd, &w) ? " write" : "",
        FD_ISSET(fd, &x) ? " except" : "");
}

long show_read(const char* what, int fd, size_t room, int flags) {
    std::vector<uint8_t> buffer(room + 1, 0xaa);
    errno = ERANGE;
    long n = recv(fd, buffer.data(), room, flags);
    int error = errno;
    if (n < 0)
        say("%s = -1 %s", what, strerrorname_np(error));
    else if (n <= 40 && n <= static_cast<long>(room))
        say("%s = %ld \"%.*s\"%s%s", what, n, (flags & MSG_TRUNC) ? 0 : static_cast<int>(n),
            reinterpret_cast<char*>(buffer.data()), error == ERANGE ? "" : " errno changed",
            buffer[room] == 0xaa ? "" : " OVERRUN");
    else
        say("%s = %s%s", what, digest(buffer.data(), std::min(n, static_cast<long>(room))).c_str(),
            buffer[room] == 0xaa ? "" : " OVERRUN");
    errno = error;
    return n;
}

void show_state(const char* what, int fd) { say("%s: state %s", what, state_name(state(fd))); }

void show_error(const char* what, int fd) {
    int error = -1;
    socklen_t length = sizeof error;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0)
        say("%s: SO_ERROR fails %s", what, strerrorname_np(errno));
    else
        say("%s: SO_ERROR %s", what, error == 0 ? "0" : strerrorname_np(error));
}

void show_rest(const char* what, int fd) {
    std::vector<uint8_t> all, block(65536);
    long n;
    while ((n = recv(fd, block.data(), block.size(), 0)) > 0)
        all.insert(all.end(), block.data(), block.data() + n);
    say("%s: %s then %s", what, digest(all.data(), static_cast<long>(all.size())).c_str(),
        n == 0 ? "end" : strerrorname_np(errno));
}

void put(int fd, const char* text) {
    long length = static_cast<long>(strlen(text));
    long n = send(fd, text, static_cast<size_t>(length), MSG_NOSIGNAL);
    if (n != length) say("send(\"%s\") = %ld %s", text, n, n < 0 ? strerrorname_np(errno) : "");
}

std::vector<uint8_t> bytes(size_t length, uint32_t seed) { return payload::make(length, seed); }

void put_bytes(int fd, size_t length, uint32_t seed) {
    auto data = bytes(length, seed);
    for (size_t done = 0; done < length;) {
        long n = send(fd, data.data() + done, length - done, MSG_NOSIGNAL);
        if (n <= 0) {
            say("send of %zu bytes ends at %zu: %s", length, done, strerrorname_np(errno));
            return;
        }
        done += static_cast<size_t>(n);
    }
}

size_t fill(int fd) {
    size_t total = 0;
    std::vector<uint8_t> block(16384);
    // The socket takes more while acknowledgements are under way: it is full when it stays full with nothing
    // in flight.
    for (int idle = 0, tries = 0; idle < 5 && tries < 100; tries++) {
        for (size_t i = 0, n; i < block.size(); i += n) {
            const uint8_t* row = stream_bytes(total + i, n);
            n = std::min(n, block.size() - i);
            std::memcpy(block.data() + i, row, n);
        }
        long n = send(fd, block.data(), block.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0) {
            total += static_cast<size_t>(n);
            idle = tries = 0;
            continue;
        }
        if (errno != EAGAIN) say("filling: %s", strerrorname_np(errno));
        int queued = 0, unsent = 0;
        ioctl(fd, SIOCOUTQ, &queued);
        ioctl(fd, SIOCOUTQNSD, &unsent);
        if (queued == unsent) idle++;
        usleep(5000);
    }
    return total;
}

void drain(int fd, size_t length) {
    std::vector<uint8_t> block(65536);
    size_t total = 0, wrong = 0;
    while (total < length) {
        long n = recv(fd, block.data(), std::min(block.size(), length - total), 0);
        if (n <= 0) {
            say("draining ends early: %s", n == 0 ? "end" : strerrorname_np(errno));
            return;
        }
        const size_t got = static_cast<size_t>(n);
        for (size_t i = 0, row; i < got; i += row) {
            const uint8_t* want = stream_bytes(total + i, row);
            row = std::min(row, got - i);
            wrong += std::memcmp(block.data() + i, want, row) != 0;
        }
        total += got;
    }
    say("drained%s", wrong == 0 ? "" : ", wrong bytes");
}

void count_sigpipe() {
    g_sigpipes = 0;
    struct sigaction action {};
    action.sa_handler = [](int) { g_sigpipes = g_sigpipes + 1; };
    sigaction(SIGPIPE, &action, nullptr);
}
int sigpipes() { return g_sigpipes; }

}  // namespace parity::tcp
