// SPDX-License-Identifier: BSD-2-Clause
// Random walks: joins, leaves, options and sends of three sockets over two interfaces and three groups. Each
// datagram comes to the same sockets, on this host and on the other, once.
#include <net/if.h>

#include <random>
#include <string>

#include "tests/parity/harness/harness.h"

namespace parity {
namespace {

constexpr const char* kGroups[] = {"239.1.2.3", "239.1.2.4", "239.129.2.3"};
constexpr const char* kInterfaces[] = {kHere, kHereLink2};
constexpr int kGroupPort = 6002;

class Walk {
  public:
    explicit Walk(unsigned seed) : random_(seed) {
        ask("open g 0.0.0.0 6002");
        for (const char* group : kGroups)
            for (const char* interface : {kThere, kThereLink2})
                ask(std::string("join g ") + group + " " + interface);
        ask("set g rcvbuf 1000000");
        int port = kPort;
        for (int& fd : senders_) {
            fd = bound(port == kPort ? kHere : "0.0.0.0", port);
            port++;
        }
        for (int& fd : receivers_) {
            fd = udp();
            set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
            const sockaddr_in name = at(&fd == &receivers_[2] ? kGroups[0] : "0.0.0.0", kGroupPort);
            ok(bind(fd, raw(name), sizeof name));
        }
    }
    void step() {
        switch (below(8)) {
            case 0:
            case 1:
                return membership(one_of(receivers_), below(2) == 0 ? IP_ADD_MEMBERSHIP : IP_DROP_MEMBERSHIP);
            case 2:
                return source(one_of(receivers_));
            case 3:
                return choose(one_of(senders_));
            default:
                return send(one_of(senders_));
        }
    }
    // What has come since the last time, by the lengths.
    void show() {
        settle();
        char buffer[2000];
        for (const int fd : receivers_) {
            std::string lengths;
            ssize_t n;
            while ((n = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT)) >= 0)
                lengths += " " + std::to_string(n);
            say("here%s", lengths.c_str());
        }
    }
    // Without the order: what changes its way between ring and kernel may overtake (docs/differences.md).
    void show_there() const {
        const std::string all = ask("drain g 200");
        say("there %s", all.substr(0, all.find(" disordered=")).c_str());
    }

  private:
    unsigned below(unsigned limit) { return static_cast<unsigned>(random_() % limit); }
    template <class T, size_t N>
    T one_of(T (&values)[N]) {
        return values[below(N)];
    }

    void membership(int fd, int name) {
        const ip_mreq r{ip4(one_of(kGroups)), ip4(one_of(kInterfaces))};
        show_result("membership", setsockopt(fd, IPPROTO_IP, name, &r, sizeof r));
    }
    void source(int fd) {
        const int names[] = {IP_ADD_SOURCE_MEMBERSHIP, IP_DROP_SOURCE_MEMBERSHIP, IP_BLOCK_SOURCE,
                             IP_UNBLOCK_SOURCE};
        const char* sources[] = {kHere, kHereSecond, kHereLink2};
        ip_mreq_source r{};
        r.imr_multiaddr = ip4(one_of(kGroups));
        r.imr_interface = ip4(one_of(kInterfaces));
        r.imr_sourceaddr = ip4(one_of(sources));
        show_result("source", setsockopt(fd, IPPROTO_IP, one_of(names), &r, sizeof r));
    }
    void choose(int fd) {
        const int ttls[] = {0, 1, 1, 7, 32};
        const char* addresses[] = {kHere, kHereSecond, kHereLink2, "0.0.0.0"};
        const char* devices[] = {"veth1", "veth2"};
        switch (below(4)) {
            case 0:
                return show_result("ttl", set(fd, IPPROTO_IP, IP_MULTICAST_TTL, one_of(ttls)));
            case 1:
                return show_result("loop",
                                   set(fd, IPPROTO_IP, IP_MULTICAST_LOOP, static_cast<int>(below(2))));
            case 2: {
                const in_addr a = ip4(one_of(addresses));
                return show_result("interface", setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &a, sizeof a));
            }
            default: {
                const ip_mreqn r{{}, {}, static_cast<int>(if_nametoindex(one_of(devices)))};
                return show_result("index", setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &r, sizeof r));
            }
        }
    }
    void send(int fd) {
        const sockaddr_in to = at(one_of(kGroups), kGroupPort);
        sent_++;
        const auto data = payload::make(20 + sent_ % 1400, sent_);
        show_result("send", sendto(fd, data.data(), data.size(), 0, raw(to), sizeof to));
        // A datagram through the kernel does not overtake one of the ring, or the other way round.
        settle();
    }
    static void show_result(const char* what, long result) {
        say("%s %ld %s", what, result, result < 0 ? strerrorname_np(errno) : "");
    }

    std::minstd_rand random_;
    int senders_[3], receivers_[3];
    uint32_t sent_ = 0;
};

void walk(unsigned seed) {
    Walk w(seed);
    for (int i = 0; i < 400; i++) {
        w.step();
        if (i % 20 == 19) w.show();
    }
    w.show_there();
}

}  // namespace

PARITY_CASE(multicast_walk, first, kernel_carries(400)) { walk(1); }
PARITY_CASE(multicast_walk, second, kernel_carries(400)) { walk(2); }
PARITY_CASE(multicast_walk, third, kernel_carries(400)) { walk(3); }

}  // namespace parity
