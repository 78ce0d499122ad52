// SPDX-License-Identifier: BSD-2-Clause
// The program of packet scripts: script_calls DESCRIPTOR... has a socket at each descriptor, by which a
// script asks for socket calls, a line each, and gets the answer: a value, or errno's name. All sockets of
// the program are non-blocking and in one epoll set: who waits is the script. Content sent is determined by
// its place in the stream; content received must be so.
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>
// After <netinet/in.h>: the kernel's names.
#include <linux/sockios.h>

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "names.h"
#include "tests/support/attacker/segment.h"

namespace {

constexpr const char* kAddress = "198.18.1.2";
constexpr int kPeerPort = 5000;

struct Socket {
    int fd = -1;
    std::size_t received = 0, sent = 0;
};
struct Script {
    int control = -1, port = 0;
    std::string peer;
    std::map<std::string, Socket> sockets;
};

int g_epoll;

sockaddr_in at(const std::string& address, int port) {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = inet_addr(address.c_str());
    a.sin_port = htons(static_cast<in_port_t>(port));
    return a;
}
const sockaddr* raw(const sockaddr_in& a) { return reinterpret_cast<const sockaddr*>(&a); }

std::string shown(long result) { return result < 0 ? strerrorname_np(errno) : std::to_string(result); }

void watch(int fd) {
    epoll_event e{EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, {.fd = fd}};
    epoll_ctl(g_epoll, EPOLL_CTL_ADD, fd, &e);
}

std::string listening(Script& script, int fd, std::istream& words) {
    int backlog = 16, one = 1;
    words >> backlog;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    const sockaddr_in a = at(kAddress, script.port);
    if (bind(fd, raw(a), sizeof a) != 0) return shown(-1);
    return shown(listen(fd, backlog));
}

std::string accepted(Script& script, int fd, std::istream& words) {
    std::string name;
    words >> name;
    sockaddr_in from{};
    socklen_t length = sizeof from;
    const int connection = accept4(fd, reinterpret_cast<sockaddr*>(&from), &length, SOCK_NONBLOCK);
    if (connection < 0) return shown(-1);
    script.sockets[name] = {connection};
    watch(connection);
    // Which endpoint of the peer it is.
    return std::to_string(ntohs(from.sin_port) - kPeerPort);
}

int flags_of(std::istream& words) {
    int flags = 0;
    for (std::string word; words >> word;)
        for (const auto& flag : names::kMessageFlags)
            if (word == flag.name) flags |= flag.value;
    return flags;
}

std::string sent(Socket& s, std::istream& words) {
    std::size_t length = 0;
    words >> length;
    std::string bytes(length, '\0');
    for (std::size_t i = 0; i < length; i++) bytes[i] = attacker::stream_byte(s.sent + i, 9);
    const ssize_t n = send(s.fd, bytes.data(), length, flags_of(words) | MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) s.sent += static_cast<std::size_t>(n);
    return shown(n);
}

std::string received(Socket& s, std::istream& words) {
    std::size_t length = 0;
    words >> length;
    std::string bytes(length, '\0');
    const int flags = flags_of(words);
    const ssize_t n = recv(s.fd, bytes.data(), length, flags | MSG_DONTWAIT);
    if (n <= 0 || (flags & MSG_TRUNC) != 0) return shown(n);
    if ((flags & MSG_OOB) != 0) return shown(n);
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); i++)
        if (bytes[i] != attacker::stream_byte(s.received + i, 7)) return shown(n) + " with other content";
    if ((flags & MSG_PEEK) == 0) s.received += static_cast<std::size_t>(n);
    return shown(n);
}

std::string option(Socket& s, std::istream& words, bool set) {
    std::string name;
    int value = 0;
    words >> name >> value;
    if (name == "SO_LINGER" && set) {
        const linger l{value >= 0, value};
        return shown(setsockopt(s.fd, SOL_SOCKET, SO_LINGER, &l, sizeof l));
    }
    for (const auto& o : names::kOptions) {
        if (name != o.name) continue;
        socklen_t length = sizeof value;
        if (set) return shown(setsockopt(s.fd, o.level, o.option, &value, sizeof value));
        if (getsockopt(s.fd, o.level, o.option, &value, &length) != 0) return shown(-1);
        return std::to_string(value);
    }
    return "no such option";
}

std::string info(Socket& s, std::istream& words) {
    std::string name;
    words >> name;
    tcp_info i{};
    socklen_t length = sizeof i;
    if (getsockopt(s.fd, IPPROTO_TCP, TCP_INFO, &i, &length) != 0) return shown(-1);
    if (name == "state") return names::kStates[i.tcpi_state % 12];
    if (name == "wscale") return std::to_string(i.tcpi_snd_wscale) + ":" + std::to_string(i.tcpi_rcv_wscale);
    for (const auto& field : names::kFields) {
        if (name != field.name) continue;
        unsigned long long value = 0;
        memcpy(&value, reinterpret_cast<const char*>(&i) + field.offset, field.size);
        return std::to_string(value);
    }
    return "no such field";
}

std::string asked(Socket& s, std::istream& words) {
    std::string name;
    words >> name;
    int value = 0;
    const unsigned long request = name == "SIOCOUTQ"      ? SIOCOUTQ
                                  : name == "SIOCOUTQNSD" ? SIOCOUTQNSD
                                  : name == "SIOCATMARK"  ? SIOCATMARK
                                                          : SIOCINQ;
    return ioctl(s.fd, request, &value) != 0 ? shown(-1) : std::to_string(value);
}

std::string events(Socket& s) {
    pollfd p{s.fd, POLLIN | POLLOUT | POLLPRI | POLLRDHUP, 0};
    if (poll(&p, 1, 0) < 0) return shown(-1);
    std::string text;
    for (const auto& event : names::kEvents)
        if ((p.revents & event.value) != 0) text += (text.empty() ? "" : "|") + std::string(event.name);
    return text.empty() ? "none" : text;
}

std::string named(Socket& s, bool peer) {
    sockaddr_in a{};
    socklen_t length = sizeof a;
    const auto where = reinterpret_cast<sockaddr*>(&a);
    return shown(peer ? getpeername(s.fd, where, &length) : getsockname(s.fd, where, &length));
}

// An abort: no script leaves anything to later ones.
void drop(Script& script) {
    for (auto& [name, s] : script.sockets) {
        const linger l{1, 0};
        if (s.fd < 0) continue;
        setsockopt(s.fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
        close(s.fd);
    }
    script.sockets.clear();
}

std::string call(Script& script, const std::string& line) {
    std::istringstream words(line);
    std::string verb, name;
    words >> verb >> name;
    if (verb == "begin") {
        script.peer = name;
        words >> script.port;
        return "0";
    }
    if (verb == "end") {
        drop(script);
        return "0";
    }
    Socket& s = script.sockets[name];
    if (s.fd < 0 && (verb == "listen" || verb == "socket" || verb == "connect")) {
        s.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (s.fd < 0) return shown(-1);
        watch(s.fd);
        // A namespace may have none but what the host allows everybody.
        setsockopt(s.fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
    }
    if (verb == "socket") return "0";
    if (s.fd < 0) return "no such socket";
    if (verb == "listen") return listening(script, s.fd, words);
    if (verb == "accept") return accepted(script, s.fd, words);
    if (verb == "bind") {
        const sockaddr_in a = at(kAddress, script.port);
        return shown(bind(s.fd, raw(a), sizeof a));
    }
    if (verb == "connect") {
        int endpoint = 1;
        words >> endpoint;
        const sockaddr_in a = at(script.peer, kPeerPort + endpoint);
        return shown(connect(s.fd, raw(a), sizeof a));
    }
    if (verb == "send") return sent(s, words);
    if (verb == "recv") return received(s, words);
    if (verb == "set") return option(s, words, true);
    if (verb == "get") return option(s, words, false);
    if (verb == "info") return info(s, words);
    if (verb == "ioctl") return asked(s, words);
    if (verb == "poll") return events(s);
    if (verb == "name") return named(s, false);
    if (verb == "peer") return named(s, true);
    if (verb == "error") {
        int error = 0;
        socklen_t length = sizeof error;
        if (getsockopt(s.fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return shown(-1);
        return error == 0 ? "0" : strerrorname_np(error);
    }
    if (verb == "shutdown") {
        std::string how;
        words >> how;
        return shown(shutdown(s.fd, how == "RD" ? SHUT_RD : how == "WR" ? SHUT_WR : SHUT_RDWR));
    }
    if (verb == "close") {
        const int result = close(s.fd);
        script.sockets.erase(name);
        return shown(result);
    }
    return "no such call";
}

// Segments of TCP that the kernel of this host has received and sent.
long kernel_segments() {
    FILE* f = fopen("/proc/net/snmp", "r");
    if (f == nullptr) return 0;
    char line[1024];
    long sum = 0, in = 0, out = 0;
    while (fgets(line, sizeof line, f) != nullptr)
        if (sscanf(line, "Tcp: %*d %*d %*d %*d %*d %*d %*d %*d %*d %ld %ld", &in, &out) == 2) sum = in + out;
    fclose(f);
    return sum;
}

}  // namespace

int main(int argc, char** argv) {
    std::map<int, Script> scripts;
    g_epoll = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 1; i < argc; i++) {
        const int fd = atoi(argv[i]);
        scripts[fd].control = fd;
        epoll_event e{EPOLLIN, {.fd = fd}};
        epoll_ctl(g_epoll, EPOLL_CTL_ADD, fd, &e);
    }
    const long before = kernel_segments();
    puts("ready");
    fflush(stdout);
    while (!scripts.empty()) {
        epoll_event events[64];
        const int n = epoll_wait(g_epoll, events, 64, -1);
        for (int i = 0; i < n; i++) {
            const auto found = scripts.find(events[i].data.fd);
            if (found == scripts.end()) continue;
            char line[512];
            const ssize_t length = recv(found->first, line, sizeof line, MSG_DONTWAIT);
            if (length <= 0) {
                close(found->first);
                scripts.erase(found);
                continue;
            }
            const std::string answer =
                call(found->second, std::string(line, static_cast<std::size_t>(length)));
            if (send(found->first, answer.data(), answer.size(), MSG_NOSIGNAL) < 0) continue;
        }
    }
    printf("kernel %ld\n", kernel_segments() - before);
    return 0;
}
