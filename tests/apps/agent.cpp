// SPDX-License-Identifier: BSD-2-Clause
// A host's hands: a program that opens UDP sockets (and some of TCP) and sends and receives as it is told
// over a control socket, one text command in, one text answer out. The tests use it as the far side, and as a
// long-living program on the library. It uses only plain calls, so that it behaves the same with and without
// the library.
//
//   open ID ADDR PORT [reuseport|reuseaddr|broadcast|gro]...   -> ok PORT
//   unbound ID                                                  -> ok
//   connect ID ADDR PORT | close ID | reset                     -> ok
//   set ID (ttl|tos|rcvbuf|sndbuf|sndtimeo|pmtu) VALUE          -> ok              (sndtimeo in ms)
//   set ID multicast_(if|ttl|loop|all) VALUE                    -> ok              (if: an address)
//   join ID GROUP INTERFACE_ADDRESS                             -> ok
//   leave ID GROUP INTERFACE_ADDRESS                            -> ok
//   listen_to ID GROUP INTERFACE_ADDRESS SOURCE                 -> ok              (one source of the group)
//   send ID ADDR PORT LENGTH [COUNT [SEED [GAP_USEC]]]          -> sent N [error NAME]
//   fan FIRST_PORT SOURCES PER_SOURCE ADDR PORT LENGTH          -> sent N          (seeds 0, 1, 2...)
//   gso ID ADDR PORT LENGTH SEGMENT                             -> sent BYTES
//   recv ID MSEC                                                -> len= hash= from= ttl= tos= | timeout |
//   error NAME drain ID IDLE_MSEC [MAX]                                    -> count= distinct= disordered=
//   bad= echo ID COUNT MSEC                                          -> echoed N ping ID ADDR PORT LENGTH
//   COUNT MSEC                         -> answered N cycles COUNT PORT -> ok usage -> fds= rss_kb= udp -> in=
//   out=        (the kernel's UDP counters) sleep MSEC                                                  -> ok
//   listen ID ADDR PORT [BACKLOG [reuseport]]                   -> ok PORT
//   accept ID NEW_ID MSEC                                       -> ok | timeout
//   dial ID ADDR PORT [OWN_ADDR OWN_PORT]                       -> ok              (a TCP connection)
//   talk ID LENGTH COUNT | answer ID LENGTH COUNT               -> talked N | answered N
//   tcp                                                         -> in= out=        (the kernel's TCP
//   segments)
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "payload.h"

namespace {

using Words = std::istringstream;
std::map<std::string, int> sockets;

std::string error() { return std::string("error ") + strerrorname_np(errno); }

sockaddr_in at(const std::string& address, int port) {
    sockaddr_in sa{};
    sa.sin_family = AF_INET;
    sa.sin_port = htons(static_cast<uint16_t>(port));
    inet_pton(AF_INET, address.c_str(), &sa.sin_addr);
    return sa;
}
sockaddr_in read_address(Words& in) {
    std::string address;
    int port = 0;
    in >> address >> port;
    return at(address, port);
}
const sockaddr* raw(const sockaddr_in& sa) { return reinterpret_cast<const sockaddr*>(&sa); }

std::string number(const char* key, long value) { return std::string(key) + "=" + std::to_string(value); }

int socket_of(Words& in) {
    std::string id;
    in >> id;
    auto it = sockets.find(id);
    return it == sockets.end() ? -1 : it->second;
}

bool readable(int fd, int msec) {
    pollfd p{fd, POLLIN, 0};
    return poll(&p, 1, msec) > 0;
}

std::string open_socket(Words& in) {
    std::string id, option;
    in >> id;
    sockaddr_in sa = read_address(in);
    int fd = socket(AF_INET, SOCK_DGRAM, 0), on = 1;
    while (in >> option) {
        if (option == "reuseport") setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
        if (option == "reuseaddr") setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (option == "broadcast") setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &on, sizeof on);
        if (option == "gro") setsockopt(fd, IPPROTO_UDP, 104 /* UDP_GRO */, &on, sizeof on);
    }
    socklen_t length = sizeof sa;
    if (fd < 0 || bind(fd, raw(sa), sizeof sa) != 0 ||
        getsockname(fd, reinterpret_cast<sockaddr*>(&sa), &length) != 0) {
        std::string text = error();
        close(fd);
        return text;
    }
    if (auto it = sockets.find(id); it != sockets.end()) close(it->second);
    sockets[id] = fd;
    return "ok " + std::to_string(ntohs(sa.sin_port));
}

std::string set(Words& in) {
    int fd = socket_of(in), r = -1;
    std::string what, text;
    in >> what >> text;
    int value = atoi(text.c_str());
    if (what == "ttl") r = setsockopt(fd, IPPROTO_IP, IP_TTL, &value, sizeof value);
    if (what == "tos") r = setsockopt(fd, IPPROTO_IP, IP_TOS, &value, sizeof value);
    if (what == "rcvbuf") r = setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &value, sizeof value);
    if (what == "sndbuf") r = setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &value, sizeof value);
    if (what == "sndtimeo") {
        const timeval limit{value / 1000, value % 1000 * 1000};
        r = setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    }
    if (what == "pmtu") r = setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &value, sizeof value);
    if (what == "multicast_ttl") r = setsockopt(fd, IPPROTO_IP, IP_MULTICAST_TTL, &value, sizeof value);
    if (what == "multicast_loop") r = setsockopt(fd, IPPROTO_IP, IP_MULTICAST_LOOP, &value, sizeof value);
    if (what == "multicast_all") r = setsockopt(fd, IPPROTO_IP, IP_MULTICAST_ALL, &value, sizeof value);
    if (what == "multicast_if") {
        in_addr address = at(text, 0).sin_addr;
        r = setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &address, sizeof address);
    }
    return r == 0 ? "ok" : error();
}

std::string join(Words& in, int how = IP_ADD_MEMBERSHIP) {
    int fd = socket_of(in);
    std::string group, interface;
    in >> group >> interface;
    ip_mreq request{at(group, 0).sin_addr, at(interface, 0).sin_addr};
    return setsockopt(fd, IPPROTO_IP, how, &request, sizeof request) == 0 ? "ok" : error();
}

std::string listen_to(Words& in) {
    int fd = socket_of(in);
    std::string group, interface, source;
    in >> group >> interface >> source;
    ip_mreq_source request{};
    request.imr_multiaddr = at(group, 0).sin_addr;
    request.imr_interface = at(interface, 0).sin_addr;
    request.imr_sourceaddr = at(source, 0).sin_addr;
    return setsockopt(fd, IPPROTO_IP, IP_ADD_SOURCE_MEMBERSHIP, &request, sizeof request) == 0 ? "ok"
                                                                                               : error();
}

std::string send_datagrams(Words& in) {
    int fd = socket_of(in);
    sockaddr_in to = read_address(in);
    long length = 0, count = 1, seed = 0, gap = 0;
    in >> length;
    if (!(in >> count)) count = 1;
    if (!(in >> seed)) seed = 0;
    if (!(in >> gap)) gap = 0;
    long sent = 0;
    std::string failure;
    for (long i = 0; i < count; i++) {
        auto data = payload::make(static_cast<size_t>(length), static_cast<uint32_t>(seed + i));
        if (sendto(fd, data.data(), data.size(), 0, raw(to), sizeof to) == length)
            sent++;
        else
            failure = " " + error();
        if (gap > 0) usleep(static_cast<useconds_t>(gap));
    }
    return "sent " + std::to_string(sent) + failure;
}

std::string fan(Words& in) {
    int first = 0, sources = 0, each = 0;
    in >> first >> sources >> each;
    sockaddr_in to = read_address(in);
    long length = 0, sent = 0;
    in >> length;
    for (int s = 0; s < sources; s++) {
        int fd = socket(AF_INET, SOCK_DGRAM, 0);
        sockaddr_in sa = at("0.0.0.0", first + s);
        if (bind(fd, raw(sa), sizeof sa) != 0) return error();
        for (int i = 0; i < each; i++) {
            auto data = payload::make(static_cast<size_t>(length), static_cast<uint32_t>(s * each + i));
            sent += sendto(fd, data.data(), data.size(), 0, raw(to), sizeof to) == length;
        }
        close(fd);
    }
    return "sent " + std::to_string(sent);
}

std::string gso(Words& in) {
    int fd = socket_of(in);
    sockaddr_in to = read_address(in);
    size_t length = 0;
    int segment = 0;
    in >> length >> segment;
    auto data = payload::make(length, 0);
    setsockopt(fd, IPPROTO_UDP, 103 /* UDP_SEGMENT */, &segment, sizeof segment);
    ssize_t n = sendto(fd, data.data(), data.size(), 0, raw(to), sizeof to);
    segment = 0;
    std::string answer = n < 0 ? error() : "sent " + std::to_string(n);
    setsockopt(fd, IPPROTO_UDP, 103, &segment, sizeof segment);
    return answer;
}

std::string receive(Words& in) {
    int fd = socket_of(in), msec = 0, on = 1;
    in >> msec;
    setsockopt(fd, IPPROTO_IP, IP_RECVTTL, &on, sizeof on);
    setsockopt(fd, IPPROTO_IP, IP_RECVTOS, &on, sizeof on);
    if (!readable(fd, msec)) return "timeout";
    static uint8_t buffer[65536];
    char control[256];
    sockaddr_in from{};
    iovec iov{buffer, sizeof buffer};
    msghdr m{};
    m.msg_name = &from;
    m.msg_namelen = sizeof from;
    m.msg_iov = &iov;
    m.msg_iovlen = 1;
    m.msg_control = control;
    m.msg_controllen = sizeof control;
    ssize_t n = recvmsg(fd, &m, MSG_DONTWAIT);
    if (n < 0) return error();
    int ttl = -1, tos = -1;
    for (cmsghdr* c = CMSG_FIRSTHDR(&m); c != nullptr; c = CMSG_NXTHDR(&m, c)) {
        if (c->cmsg_level != IPPROTO_IP) continue;
        if (c->cmsg_type == IP_TTL) memcpy(&ttl, CMSG_DATA(c), sizeof ttl);
        if (c->cmsg_type == IP_TOS) tos = *CMSG_DATA(c);
    }
    char text[INET_ADDRSTRLEN], hash[16];
    inet_ntop(AF_INET, &from.sin_addr, text, sizeof text);
    snprintf(hash, sizeof hash, "%08x", payload::hash(buffer, static_cast<size_t>(n)));
    int port = ntohs(from.sin_port);
    return number("len", n) + " hash=" + hash + " from=" + text + ":" +
           (port < 32768 ? std::to_string(port) : "ephemeral") + " " + number("ttl", ttl) + " " +
           number("tos", tos);
}

std::string drain(Words& in) {
    int fd = socket_of(in), idle = 0;
    long most = 0;
    in >> idle;
    if (!(in >> most)) most = 1'000'000'000;
    long count = 0, disordered = 0, bad = 0;
    std::set<uint32_t> seen;
    uint32_t last = 0;
    static uint8_t buffer[65536];
    while (count < most && readable(fd, idle)) {
        ssize_t n = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
        if (n < 0) continue;
        uint32_t seed = payload::seed_of(buffer, static_cast<size_t>(n));
        if (count > 0 && seed < last) disordered++;
        bad += !payload::intact(buffer, static_cast<size_t>(n));
        last = seed;
        seen.insert(seed);
        count++;
    }
    return number("count", count) + " " + number("distinct", static_cast<long>(seen.size())) + " " +
           number("disordered", disordered) + " " + number("bad", bad);
}

std::string echo(Words& in) {
    int fd = socket_of(in), msec = 0;
    long count = 0, done = 0;
    in >> count >> msec;
    static uint8_t buffer[65536];
    while (done < count && readable(fd, msec)) {
        sockaddr_in from{};
        socklen_t length = sizeof from;
        ssize_t n =
            recvfrom(fd, buffer, sizeof buffer, MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&from), &length);
        if (n >= 0 && sendto(fd, buffer, static_cast<size_t>(n), 0, raw(from), length) == n) done++;
    }
    return "echoed " + std::to_string(done);
}

std::string ping(Words& in) {
    int fd = socket_of(in);
    sockaddr_in to = read_address(in);
    long length = 0, count = 0, answered = 0;
    int msec = 0;
    in >> length >> count >> msec;
    for (long i = 0; i < count; i++) {
        auto data = payload::make(static_cast<size_t>(length), static_cast<uint32_t>(i));
        if (sendto(fd, data.data(), data.size(), 0, raw(to), sizeof to) != length) continue;
        // An answer to an earlier datagram, late because the network was changing, is passed over.
        while (readable(fd, msec)) {
            std::vector<uint8_t> back(data.size() + 1);
            ssize_t n = recv(fd, back.data(), back.size(), MSG_DONTWAIT);
            if (n != length) continue;
            back.pop_back();
            if (back == data) {
                answered++;
                break;
            }
        }
    }
    return "answered " + std::to_string(answered);
}

std::string cycles(Words& in) {
    long count = 0;
    int port = 0;
    in >> count >> port;
    sockaddr_in sa = at("0.0.0.0", port);
    for (long i = 0; i < count; i++) {
        int fd = socket(AF_INET, SOCK_DGRAM, 0);
        if (fd < 0 || bind(fd, raw(sa), sizeof sa) != 0) return error() + " after " + std::to_string(i);
        close(fd);
    }
    return "ok";
}

std::string usage() {
    long fds = 0, pages = 0, rss = 0;
    if (DIR* d = opendir("/proc/self/fd")) {
        while (readdir(d) != nullptr) fds++;
        closedir(d);
    }
    if (FILE* f = fopen("/proc/self/statm", "r")) {
        if (fscanf(f, "%ld %ld", &pages, &rss) != 2) rss = 0;
        fclose(f);
    }
    return number("fds", fds - 3) + " " + number("rss_kb", rss * 4);
}

// Opens and binds a TCP socket; -1 with errno.
int tcp_socket(const sockaddr_in& own, bool reuseport = false) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (reuseport) setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    if (bind(fd, raw(own), sizeof own) == 0) return fd;
    close(fd);
    return -1;
}

std::string keep(const std::string& id, int fd) {
    if (fd < 0) return error();
    if (auto it = sockets.find(id); it != sockets.end()) close(it->second);
    sockets[id] = fd;
    return "ok";
}

std::string listen_socket(Words& in) {
    std::string id;
    in >> id;
    sockaddr_in own = read_address(in);
    int backlog = 16;
    std::string option;
    if (int given = 0; in >> given) backlog = given;
    in >> option;
    const int fd = tcp_socket(own, option == "reuseport");
    if (fd >= 0 && listen(fd, backlog) != 0) return error();
    std::string answer = keep(id, fd);
    return answer == "ok" ? answer + " " + std::to_string(ntohs(own.sin_port)) : answer;
}

std::string accept_connection(Words& in) {
    int listener = socket_of(in), msec = 0;
    std::string id;
    in >> id >> msec;
    return readable(listener, msec) ? keep(id, accept(listener, nullptr, nullptr)) : "timeout";
}

std::string dial(Words& in) {
    std::string id, own;
    in >> id;
    const sockaddr_in to = read_address(in);
    int port = 0;
    const bool bound = static_cast<bool>(in >> own >> port);
    int fd = bound ? tcp_socket(at(own, port)) : socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, raw(to), sizeof to) != 0) return error();
    return keep(id, fd);
}

// COUNT messages, each sent by the one side and sent back by the other.
std::string stream(Words& in, bool first) {
    int fd = socket_of(in);
    long length = 0, count = 0, done = 0;
    in >> length >> count;
    for (; done < count; done++) {
        auto data = payload::make(static_cast<size_t>(length), static_cast<uint32_t>(done));
        if (first && send(fd, data.data(), data.size(), MSG_NOSIGNAL) != length) break;
        std::vector<uint8_t> back(data.size());
        size_t got = 0;
        while (got < back.size() && readable(fd, 5000)) {
            const ssize_t n = recv(fd, back.data() + got, back.size() - got, 0);
            if (n <= 0) break;
            got += static_cast<size_t>(n);
        }
        if (got < back.size() || back != data) break;
        if (!first && send(fd, data.data(), data.size(), MSG_NOSIGNAL) != length) break;
    }
    return (first ? "talked " : "answered ") + std::to_string(done);
}

// The fields of the second line of /proc/net/snmp that begins with `name`: the first one has their names.
// What the library carries is not counted there.
std::vector<long> kernel_counters(const std::string& name) {
    std::vector<long> values;
    FILE* f = fopen("/proc/net/snmp", "r");
    if (f == nullptr) return values;
    char line[1024];
    bool names = true;
    while (fgets(line, sizeof line, f) != nullptr) {
        if (strncmp(line, name.c_str(), name.size()) != 0) continue;
        if (!std::exchange(names, false)) {
            Words in(line + name.size());
            for (long value; in >> value;) values.push_back(value);
            break;
        }
    }
    fclose(f);
    return values;
}

std::string counters(const std::string& name, size_t in, size_t out) {
    const std::vector<long> values = kernel_counters(name);
    return values.size() <= out || values.size() <= in
               ? "error"
               : number("in", values[in]) + " " + number("out", values[out]);
}

std::string run(const std::string& command) {
    Words in(command);
    std::string verb;
    in >> verb;
    if (verb == "open") return open_socket(in);
    if (verb == "set") return set(in);
    if (verb == "join") return join(in);
    if (verb == "leave") return join(in, IP_DROP_MEMBERSHIP);
    if (verb == "listen_to") return listen_to(in);
    if (verb == "send") return send_datagrams(in);
    if (verb == "fan") return fan(in);
    if (verb == "gso") return gso(in);
    if (verb == "recv") return receive(in);
    if (verb == "drain") return drain(in);
    if (verb == "echo") return echo(in);
    if (verb == "ping") return ping(in);
    if (verb == "cycles") return cycles(in);
    if (verb == "usage") return usage();
    if (verb == "udp") return counters("Udp:", 0, 3);   // InDatagrams, OutDatagrams
    if (verb == "tcp") return counters("Tcp:", 9, 10);  // InSegs, OutSegs
    if (verb == "listen") return listen_socket(in);
    if (verb == "accept") return accept_connection(in);
    if (verb == "dial") return dial(in);
    if (verb == "talk") return stream(in, true);
    if (verb == "answer") return stream(in, false);
    if (verb == "unbound") {
        std::string id;
        in >> id;
        return keep(id, socket(AF_INET, SOCK_DGRAM, 0));
    }
    if (verb == "connect") {
        int fd = socket_of(in);
        sockaddr_in to = read_address(in);
        return connect(fd, raw(to), sizeof to) == 0 ? "ok" : error();
    }
    if (verb == "close") {
        std::string id;
        in >> id;
        if (auto it = sockets.find(id); it != sockets.end()) {
            close(it->second);
            sockets.erase(it);
        }
        return "ok";
    }
    if (verb == "reset") {
        for (auto& [id, fd] : sockets) close(fd);
        sockets.clear();
        return "ok";
    }
    if (verb == "sleep") {
        int msec = 0;
        in >> msec;
        usleep(static_cast<useconds_t>(msec) * 1000);
        return "ok";
    }
    return "error unknown command " + verb;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s CONTROL_FD\n", argv[0]);
        return 2;
    }
    int control = atoi(argv[1]);
    char command[512];
    ssize_t n;
    while ((n = recv(control, command, sizeof command, 0)) > 0) {
        std::string answer = run(std::string(command, static_cast<size_t>(n)));
        if (send(control, answer.data(), answer.size(), MSG_NOSIGNAL) < 0) break;
    }
    return 0;
}
