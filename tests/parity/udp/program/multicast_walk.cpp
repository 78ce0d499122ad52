// SPDX-License-Identifier: BSD-2-Clause
// Random walks: joins, leaves, source filters, names, options and sends of three receivers and three senders
// in each of one or two processes, over two interfaces and three groups. The other host sends, too. Each
// datagram comes to the same sockets, on this host and on the other, once.
//
// A walk is a row of rounds: some changes, then some datagrams, then what has come. By hand it may be as long
// as one likes:
//
//   PARITY_WALK_SEED=7 PARITY_WALK_STEPS=10000 PARITY_SECONDS=3000 parity_test --gtest_filter='*walk*'
#include <net/if.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/parity/harness/harness.h"

namespace parity {
namespace {

constexpr const char* kGroups[] = {"239.1.2.3", "239.1.2.4", "239.129.2.3"};
constexpr const char* kInterfaces[] = {kHere, kHereLink2};
constexpr int kGroupPort = 6002;
// In this time a process has noticed what another one on its host joined, opened or closed
// (docs/multicast.md).
constexpr int kWindowMs = 500;

unsigned number_of(const char* variable, unsigned otherwise) {
    const char* text = getenv(variable);
    return text != nullptr ? static_cast<unsigned>(atol(text)) : otherwise;
}

// One or two processes that draw the same numbers. One acts, and the other one waits for it.
class Processes {
  public:
    explicit Processes(unsigned count) : count_(count) {
        if (count_ == 1) return;
        int pair[2];
        ok(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair));
        child_ = fork();
        me_ = child_ == 0 ? 1 : 0;
        other_ = pair[me_];
        close(pair[1 - me_]);
    }
    unsigned count() const { return count_; }
    bool first() const { return me_ == 0; }
    template <class F>
    void act(unsigned who, F&& f) {
        if (who == me_) f();
        meet();
    }
    // The second process ends here.
    void end() {
        if (count_ == 1) return;
        if (!first()) _exit(0);
        int status = 0;
        waitpid(child_, &status, 0);
        say("the second process: %x", static_cast<unsigned>(status));
    }

  private:
    void meet() const {
        char byte = 0;
        if (count_ == 1 || (::send(other_, &byte, 1, MSG_NOSIGNAL) == 1 && recv(other_, &byte, 1, 0) == 1))
            return;
        say("the other process is gone");
        _exit(1);
    }

    unsigned count_, me_ = 0;
    pid_t child_ = 0;
    int other_ = -1;
};

class Walk {
  public:
    Walk(unsigned seed, unsigned processes) : random_(seed), processes_(processes) {
        processes_.act(0, [] {
            ask("open g 0.0.0.0 6002");
            for (const char* group : kGroups)
                for (const char* interface : {kThere, kThereLink2})
                    ask(std::string("join g ") + group + " " + interface);
            ask("set g rcvbuf 1000000");
            int port = kPeerPort;
            for (const auto& [id, address] : kPeers) {
                ask(std::string("open ") + id + " " + address + " " + std::to_string(port));
                port += 10;
                ask(std::string("set ") + id + " multicast_if " + address);
                ask(std::string("set ") + id + " multicast_loop 0");
            }
        });
        for (unsigned who = 0; who < processes; who++)
            processes_.act(who, [&] {
                int port = kPort + static_cast<int>(10 * who);
                for (int& fd : senders_) {
                    fd = bound(port % 10 == 0 ? kHere : "0.0.0.0", port);
                    port++;
                }
                for (unsigned i = 0; i < 3; i++) open_receiver(i, i == 2 ? kGroups[0] : "0.0.0.0");
            });
    }
    // Returns the number of its steps.
    unsigned round() {
        const unsigned changes = 1 + below(15), datagrams = 1 + below(15);
        for (unsigned i = 0; i < changes; i++) change();
        if (processes_.count() > 1) wait_for_the_window();
        for (unsigned i = 0; i < datagrams; i++) below(2) == 0 ? peer_sends_one() : send_one();
        processes_.act(0, [] { settle(); });
        for (unsigned who = 0; who < processes_.count(); who++) processes_.act(who, [this] { show(); });
        processes_.act(0, [] {
            // Without the order: what changes its way between ring and kernel may overtake
            // (docs/differences.md).
            const std::string all = ask("drain g 0");
            say("there %s", all.substr(0, all.find(" disordered=")).c_str());
        });
        return changes + datagrams;
    }
    void end() { processes_.end(); }

  private:
    struct Peer {
        const char *id, *address;
    };
    static constexpr Peer kPeers[] = {{"p", kThere}, {"q", kThereSecond}, {"r", kThereLink2}};

    unsigned below(unsigned limit) { return static_cast<unsigned>(random_() % limit); }
    template <class T, size_t N>
    T one_of(const T (&values)[N]) {
        return values[below(N)];
    }
    unsigned someone() { return below(processes_.count()); }

    void open_receiver(unsigned which, const char* address) {
        const int fd = receivers_[which] = udp();
        set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
        const sockaddr_in name = at(address, kGroupPort);
        show_result(std::string("bind to ") + address, which, bind(fd, raw(name), sizeof name));
    }
    void change() {
        switch (below(10)) {
            case 0:
            case 1:
            case 2:
            case 3:
                return membership(below(3) != 0 ? IP_ADD_MEMBERSHIP : IP_DROP_MEMBERSHIP);
            case 4:
            case 5:
                return source();
            case 6:
                return rename();
            case 7:
                return listen();
            default:
                return choose();
        }
    }
    void membership(int name) {
        const char *group = one_of(kGroups), *interface = one_of(kInterfaces);
        const ip_mreq r{ip4(group), ip4(interface)};
        const unsigned who = someone(), which = below(3);
        processes_.act(who, [&] {
            show_result(
                std::string(name == IP_ADD_MEMBERSHIP ? "join " : "leave ") + group + " at " + interface,
                which, setsockopt(receivers_[which], IPPROTO_IP, name, &r, sizeof r));
        });
    }
    void source() {
        const int names[] = {IP_ADD_SOURCE_MEMBERSHIP, IP_DROP_SOURCE_MEMBERSHIP, IP_BLOCK_SOURCE,
                             IP_UNBLOCK_SOURCE};
        const char* sources[] = {kHere, kHereSecond, kHereLink2, kThere, kThereSecond, kThereLink2};
        ip_mreq_source r{};
        const char *group = one_of(kGroups), *interface = one_of(kInterfaces), *source = one_of(sources);
        r.imr_multiaddr = ip4(group);
        r.imr_interface = ip4(interface);
        r.imr_sourceaddr = ip4(source);
        const int name = one_of(names);
        const unsigned who = someone(), which = below(3);
        processes_.act(who, [&] {
            show_result(
                "option " + std::to_string(name) + " " + group + " at " + interface + " source " + source,
                which, setsockopt(receivers_[which], IPPROTO_IP, name, &r, sizeof r));
        });
    }
    // A receiver is closed, and another one has its place.
    void rename() {
        const char* names[] = {"0.0.0.0", "0.0.0.0", kGroups[0], kGroups[1], kHere};
        const char* name = one_of(names);
        const unsigned who = someone(), which = below(3);
        const bool connects = below(5) == 0;
        processes_.act(who, [&] {
            show_result("close", which, close(receivers_[which]));
            open_receiver(which, name);
            const sockaddr_in peer = at(kThere, kPeerPort);
            if (connects) show_result("connect", which, connect(receivers_[which], raw(peer), sizeof peer));
        });
    }
    // What else decides about a receiver.
    void listen() {
        const char* devices[] = {"veth1", "veth2", "", ""};
        const char* device = one_of(devices);
        const bool all = below(2) == 0, names_device = below(3) == 0;
        const unsigned who = someone(), which = below(3);
        processes_.act(who, [&] {
            const int fd = receivers_[which];
            if (names_device)
                show_result(std::string("device ") + device, which,
                            setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, device,
                                       static_cast<socklen_t>(strlen(device))));
            else
                show_result(all ? "all" : "not all", which, set(fd, IPPROTO_IP, IP_MULTICAST_ALL, all));
        });
    }
    // Of a sender.
    void choose() {
        const int ttls[] = {0, 1, 1, 7, 32};
        const char* addresses[] = {kHere, kHereSecond, kHereLink2, "0.0.0.0"};
        const char* devices[] = {"veth1", "veth2"};
        const unsigned what = below(4), loop = below(2), who = someone(), which = below(3);
        const int ttl = one_of(ttls);
        const in_addr address = ip4(one_of(addresses));
        const char* device = one_of(devices);
        processes_.act(who, [&] {
            const int fd = senders_[which];
            const ip_mreqn index{{}, {}, static_cast<int>(if_nametoindex(device))};
            if (what == 0)
                show_result("ttl " + std::to_string(ttl), which, set(fd, IPPROTO_IP, IP_MULTICAST_TTL, ttl));
            if (what == 1)
                show_result("loop " + std::to_string(loop), which,
                            set(fd, IPPROTO_IP, IP_MULTICAST_LOOP, static_cast<int>(loop)));
            if (what == 2)
                show_result("interface", which,
                            setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &address, sizeof address));
            if (what == 3)
                show_result(std::string("index of ") + device, which,
                            setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &index, sizeof index));
        });
    }
    void send_one() {
        const char* group = one_of(kGroups);
        const sockaddr_in to = at(group, kGroupPort);
        const unsigned who = someone(), which = below(3);
        sent_++;
        processes_.act(who, [&] {
            const auto data = payload::make(length(), sent_);
            show_result("send " + std::to_string(length()) + " to " + group, which,
                        sendto(senders_[which], data.data(), data.size(), 0, raw(to), sizeof to));
        });
    }
    void peer_sends_one() {
        const char *id = one_of(kPeers).id, *group = one_of(kGroups);
        sent_++;
        processes_.act(0, [&] {
            say("%s sends %zu to %s: %s", id, length(), group,
                ask(std::string("send ") + id + " " + group + " " + std::to_string(kGroupPort) + " " +
                    std::to_string(length()) + " 1 " + std::to_string(sent_))
                    .c_str());
        });
    }
    // Of datagram sent_: no other one of the round has it.
    size_t length() const { return 20 + sent_ % 1400; }

    // What has come since the last time, by the lengths. Two ways have no order between them.
    void show() const {
        char buffer[2000];
        for (size_t i = 0; i < 3; i++) {
            const int fd = receivers_[i];
            std::vector<ssize_t> lengths;
            for (ssize_t n; (n = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT)) >= 0;) lengths.push_back(n);
            std::sort(lengths.begin(), lengths.end());
            std::string text;
            for (const ssize_t n : lengths) text += " " + std::to_string(n);
            say("receiver %zu:%s", i, text.c_str());
        }
    }
    static void wait_for_the_window() {
        if (getenv("LD_PRELOAD") != nullptr) usleep(kWindowMs * 1000);
    }
    // Of a call for the receiver or sender `which`.
    static void show_result(const std::string& what, unsigned which, long result) {
        say("%s of %u: %ld %s", what.c_str(), which, result, result < 0 ? strerrorname_np(errno) : "");
    }

    std::minstd_rand random_;
    Processes processes_;
    int senders_[3], receivers_[3];
    uint32_t sent_ = 0;
};

void walk(unsigned seed, unsigned processes, unsigned steps) {
    Walk w(number_of("PARITY_WALK_SEED", seed), processes);
    steps = number_of("PARITY_WALK_STEPS", steps);
    for (unsigned done = 0; done < steps;) done += w.round();
    w.end();
}

// What the kernel may carry. Of one process it is what has copies here, and what comes to members that the
// library leaves to it. Two processes have nearly each datagram in common, and each of its copies counts.
Traffic one_process(unsigned steps) { return kernel_carries(number_of("PARITY_WALK_STEPS", steps) / 2); }
Traffic all(unsigned steps) { return kernel_carries(3L * number_of("PARITY_WALK_STEPS", steps)); }

}  // namespace

PARITY_CASE(multicast_walk, first, one_process(400)) { walk(1, 1, 400); }
PARITY_CASE(multicast_walk, second, one_process(400)) { walk(2, 1, 400); }
PARITY_CASE(multicast_walk, third, one_process(400)) { walk(3, 1, 400); }
PARITY_CASE(multicast_walk, two_processes, all(60)) { walk(4, 2, 60); }

}  // namespace parity
