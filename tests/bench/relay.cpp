// SPDX-License-Identifier: BSD-2-Clause
// A wire with faults: carries Ethernet frames between two interfaces of its namespace, and delays, loses,
// doubles, overtakes and marks them. Stands in for netem, which not every kernel has, and does more: which
// frames it spoils is a list, the same for every run with the same seed.
//
//   relay DEVICE DEVICE [--delay US] [--rate MBIT] [--queue FRAMES] [--seed N] [--from 0|1|2]
//         [--drop P] [--duplicate P] [--reorder P] [--late US] [--mark P] [--drop-numbers N,N...]
//
// The list counts the TCP segments with data of each connection and direction, from 0; connections count from
// 0 by their first segment, whatever their ports. P is the part of them, 0 to 1. So the kernel's 500th
// segment shares the fate of the library's, though it may be another byte. Segments without data, ARP and all
// else are only delayed. --from: only what comes from the first device (0) or the second (1) suffers; 2, the
// usual, both. --drop-numbers: these, of each connection. --reorder: the frame comes --late microseconds
// later than its time, and those behind it overtake it. --mark: congestion experienced, where the sender says
// that its transport knows ECN. --rate and --queue: a link of this rate with room for so many waiting frames;
// it drops what does not fit.
//
// Prints "ready", and at SIGTERM or SIGINT a line of JSON with what it did. Frames are no longer than the
// interfaces' MTU: switch off segmentation, checksums by the device and merging at the ends.
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>

#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <queue>

#include "tcp_tool.h"

namespace {

using namespace bench;
using Duration = Clock::duration;

constexpr std::size_t kLongestFrame = 9216, kBatch = 64;
constexpr int kBuffer = 64 << 20;  // bytes that wait in a packet socket

struct Settings {
    Duration delay{}, late{};
    double bits_per_second = 0;  // 0: no limit
    std::size_t queue = 0;
    std::uint64_t seed = 1;
    unsigned from = 2;
    double drop = 0, duplicate = 0, reorder = 0, mark = 0;
    std::vector<std::uint64_t> drop_numbers;  // in order
};

// ---- which frames ----

enum class Fault : std::uint64_t { drop = 1, duplicate, reorder, mark };

// A segment with data: of which connection, and the how-manieth in its direction.
struct Place {
    std::uint64_t connection = 0, number = 0;
};

// The list: whether a fault befalls a place. Depends on nothing else, so it is the same for all runs.
bool befalls(const Settings& s, Fault fault, unsigned direction, Place at, double part) {
    if (part <= 0) return false;
    std::uint64_t x = s.seed;
    for (std::uint64_t word :
         {static_cast<std::uint64_t>(fault) << 1 | direction, at.connection, at.number}) {
        x += word + 0x9e3779b97f4a7c15;  // SplitMix64
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
        x = (x ^ x >> 27) * 0x94d049bb133111eb;
        x ^= x >> 31;
    }
    return static_cast<double>(x >> 11) * 0x1p-53 < part;
}

// ---- frames ----

using Frame = std::vector<std::uint8_t>;

// The fields of an IPv4 frame with TCP; nothing for any other.
struct TcpFrame {
    std::uint8_t* ip;
    std::uint64_t from, to;  // address and port
    std::size_t data;        // bytes
};

std::uint32_t big(const std::uint8_t* at, unsigned bytes) {
    std::uint32_t value = 0;
    for (unsigned i = 0; i < bytes; i++) value = value << 8 | at[i];
    return value;
}

std::optional<TcpFrame> read_tcp(Frame& frame) {
    if (frame.size() < 54 || big(&frame[12], 2) != ETH_P_IP) return std::nullopt;
    std::uint8_t* const ip = &frame[14];
    const std::size_t header = (ip[0] & 15u) * 4, total = big(ip + 2, 2);
    if (ip[0] >> 4 != 4 || header < 20 || ip[9] != IPPROTO_TCP || (big(ip + 6, 2) & 0x1fff) != 0 ||
        total > frame.size() - 14 || total < header + 20)
        return std::nullopt;
    const std::uint8_t* const tcp = ip + header;
    const std::size_t both = header + (tcp[12] >> 4) * 4u;
    if (both > total) return std::nullopt;
    const auto end = [&](const std::uint8_t* address, const std::uint8_t* port) {
        return std::uint64_t{big(address, 4)} << 16 | big(port, 2);
    };
    return TcpFrame{ip, end(ip + 12, tcp), end(ip + 16, tcp + 2), total - both};
}

// Sets the bits of ECN (RFC 3168) to "congestion experienced". False: the transport does not know ECN.
bool mark_congestion(std::uint8_t* ip) {
    if ((ip[1] & 3) == 0) return false;
    const std::uint32_t before = big(ip, 2);
    ip[1] |= 3;
    const std::uint32_t sum = (~big(ip + 10, 2) & 0xffff) + (~before & 0xffff) + big(ip, 2);  // RFC 1624
    const std::uint32_t folded = (sum & 0xffff) + (sum >> 16);
    const std::uint32_t checksum = ~(folded + (folded >> 16)) & 0xffff;
    ip[10] = static_cast<std::uint8_t>(checksum >> 8);
    ip[11] = static_cast<std::uint8_t>(checksum);
    return true;
}

// ---- the two ends ----

class End {
  public:
    explicit End(const char* device) : fd_(socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
        if (fd_.get() < 0) fail("packet socket");
        const int on = 1, bytes = kBuffer;
        setsockopt(fd_.get(), SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on);
        setsockopt(fd_.get(), SOL_PACKET, PACKET_QDISC_BYPASS, &on, sizeof on);
        setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes);
        setsockopt(fd_.get(), SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes);
        sockaddr_ll at{};
        at.sll_family = AF_PACKET;
        at.sll_protocol = htons(ETH_P_ALL);
        at.sll_ifindex = static_cast<int>(if_nametoindex(device));
        if (at.sll_ifindex == 0 || bind(fd_.get(), reinterpret_cast<sockaddr*>(&at), sizeof at) != 0)
            fail(device);
        for (std::size_t i = 0; i < kBatch; i++) {
            pieces_[i] = {buffers_[i].data(), kLongestFrame};
            messages_[i].msg_hdr.msg_iov = &pieces_[i];
            messages_[i].msg_hdr.msg_iovlen = 1;
        }
    }
    int fd() const { return fd_.get(); }

    // Calls `each` with all frames that wait, as far as a batch goes.
    template <class F>
    void receive(F&& each) {
        const int count = recvmmsg(fd_.get(), messages_.data(), kBatch, MSG_TRUNC, nullptr);
        if (count < 0 && errno != EAGAIN && errno != EINTR && errno != ENETDOWN) fail("recvmmsg");
        for (int i = 0; i < count; i++) {
            const auto n = static_cast<std::size_t>(i);
            if (messages_[n].msg_len > kLongestFrame)
                throw std::runtime_error("a frame longer than the MTU: segmentation is not switched off");
            each(Frame(buffers_[n].data(), buffers_[n].data() + messages_[n].msg_len));
        }
    }
    void send(const Frame& frame) {
        while (::send(fd_.get(), frame.data(), frame.size(), 0) < 0) {
            if (errno == EINTR) continue;
            if (errno != EAGAIN && errno != ENOBUFS) fail("send");
            sched_yield();
        }
    }
    // Frames that came faster than they were taken: a run with such is worth nothing.
    std::uint64_t missed() const {
        tpacket_stats stats{};
        socklen_t length = sizeof stats;
        getsockopt(fd_.get(), SOL_PACKET, PACKET_STATISTICS, &stats, &length);
        return stats.tp_drops;
    }

  private:
    Fd fd_;
    std::array<std::array<std::uint8_t, kLongestFrame>, kBatch> buffers_;
    std::array<iovec, kBatch> pieces_;
    std::array<mmsghdr, kBatch> messages_{};
};

// ---- between them ----

class Relay {
  public:
    Relay(const Settings& settings, const char* first, const char* second)
        : s_(settings), ends_{End(first), End(second)} {}

    void run() {
        printf("ready\n");
        fflush(stdout);
        while (g_stop == 0) {
            wait();
            for (unsigned from : {0u, 1u})
                ends_[from].receive([&](Frame&& frame) { take(std::move(frame), from); });
            send_due();
        }
        report();
    }

  private:
    struct Waiting {
        Clock::time_point due;
        std::uint64_t order;
        unsigned to;
        Frame frame;
        bool operator<(const Waiting& other) const {  // the top of a heap is the greatest
            return due != other.due ? due > other.due : order > other.order;
        }
    };
    struct Direction {
        std::uint64_t frames = 0, data = 0, dropped = 0, duplicated = 0, reordered = 0, marked = 0,
                      unmarkable = 0, overflowed = 0;
        std::vector<Place> drops;
        std::map<std::uint64_t, std::uint64_t> numbers;  // connection -> its next segment with data
        std::queue<Clock::time_point> link;              // when each frame on the slow link has left it
    };

    void wait() {
        pollfd watched[2] = {{ends_[0].fd(), POLLIN, 0}, {ends_[1].fd(), POLLIN, 0}};
        Duration left = std::chrono::milliseconds(100);  // a signal may come just before
        if (!waiting_.empty()) left = std::clamp(waiting_.top().due - Clock::now(), Duration::zero(), left);
        const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
        const timespec time{ns / 1'000'000'000, ns % 1'000'000'000};
        if (ppoll(watched, 2, &time, nullptr) < 0 && errno != EINTR) fail("ppoll");
    }

    void take(Frame&& frame, unsigned from) {
        Direction& d = directions_[from];
        d.frames++;
        const Clock::time_point now = Clock::now();
        bool twice = false;
        Duration late{};
        if (const auto tcp = read_tcp(frame)) {
            const std::uint64_t connection = connection_of(*tcp, from);
            if (tcp->data != 0) {
                const Place at{connection, d.numbers[connection]++};
                d.data++;
                if (s_.from == 2 || s_.from == from) {
                    if (befalls(s_, Fault::drop, from, at, s_.drop) ||
                        std::ranges::binary_search(s_.drop_numbers, at.number)) {
                        d.dropped++;
                        d.drops.push_back(at);
                        return;
                    }
                    twice = befalls(s_, Fault::duplicate, from, at, s_.duplicate);
                    if (befalls(s_, Fault::reorder, from, at, s_.reorder)) late = s_.late;
                    if (befalls(s_, Fault::mark, from, at, s_.mark))
                        (mark_congestion(tcp->ip) ? d.marked : d.unmarkable)++;
                }
            }
        }
        const auto left = leave_link(d, now, frame.size());
        if (!left) return;
        if (late != Duration::zero()) d.reordered++;
        if (twice) d.duplicated++;
        if (twice) waiting_.push({*left + s_.delay + late, order_++, 1 - from, frame});
        waiting_.push({*left + s_.delay + late, order_++, 1 - from, std::move(frame)});
    }

    // When the frame has left the link; nothing: its queue is full.
    std::optional<Clock::time_point> leave_link(Direction& d, Clock::time_point now, std::size_t bytes) {
        if (s_.bits_per_second == 0) return now;
        while (!d.link.empty() && d.link.front() <= now) d.link.pop();
        if (s_.queue != 0 && d.link.size() > s_.queue) {
            d.overflowed++;
            return std::nullopt;
        }
        const std::chrono::duration<double> takes(static_cast<double>(bytes) * 8 / s_.bits_per_second);
        d.link.push((d.link.empty() ? now : d.link.back()) + std::chrono::duration_cast<Duration>(takes));
        return d.link.back();
    }

    // Counts connections by their first segment, whichever way that goes.
    std::uint64_t connection_of(const TcpFrame& tcp, unsigned from) {
        const auto ends = from == 0 ? std::pair(tcp.from, tcp.to) : std::pair(tcp.to, tcp.from);
        return connections_.try_emplace(ends, connections_.size()).first->second;
    }

    void send_due() {
        const Clock::time_point now = Clock::now();
        while (!waiting_.empty() && waiting_.top().due <= now) {
            ends_[waiting_.top().to].send(waiting_.top().frame);
            waiting_.pop();
        }
    }

    void report() const {
        const auto number = [](std::uint64_t n) { return static_cast<unsigned long long>(n); };
        printf("{\"connections\": %zu, \"directions\": [", connections_.size());
        for (unsigned from : {0u, 1u}) {
            const Direction& d = directions_[from];
            printf(
                "%s{\"frames\": %llu, \"data\": %llu, \"dropped\": %llu, \"duplicated\": %llu, "
                "\"reordered\": %llu, \"marked\": %llu, \"unmarkable\": %llu, \"overflowed\": %llu, "
                "\"missed\": %llu, \"drops\": [",
                from == 0 ? "" : ", ", number(d.frames), number(d.data), number(d.dropped),
                number(d.duplicated), number(d.reordered), number(d.marked), number(d.unmarkable),
                number(d.overflowed), number(ends_[from].missed()));
            for (std::size_t i = 0; i < d.drops.size(); i++)
                printf("%s[%llu, %llu]", i == 0 ? "" : ", ", number(d.drops[i].connection),
                       number(d.drops[i].number));
            printf("]}");
        }
        printf("]}\n");
    }

    const Settings s_;
    End ends_[2];
    Direction directions_[2];
    std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> connections_;
    std::priority_queue<Waiting> waiting_;
    std::uint64_t order_ = 0;
};

// ---- the command line ----

std::vector<std::uint64_t> numbers_of(const char* text) {
    std::vector<std::uint64_t> result;
    for (const char* at = text; *at != '\0';) {
        char* end = nullptr;
        result.push_back(strtoull(at, &end, 10));
        if (end == at || (*end != ',' && *end != '\0'))
            throw std::runtime_error(std::string("no list: ") + text);
        at = *end == ',' ? end + 1 : end;
    }
    std::ranges::sort(result);
    return result;
}

// False: not a setting.
bool set(Settings& s, std::string_view name, const char* text) {
    if (name == "--drop-numbers") {
        s.drop_numbers = numbers_of(text);
        return true;
    }
    char* end = nullptr;
    const double value = strtod(text, &end);
    if (end == text || *end != '\0' || !std::isfinite(value) || value < 0) return false;
    const auto part = [&](double& what) {
        what = value;
        return value <= 1;
    };
    const auto time = std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::micro>(value));
    if (name == "--delay") return s.delay = time, value <= 1e7;
    if (name == "--late") return s.late = time, value <= 1e7;
    if (name == "--rate") return s.bits_per_second = value * 1e6, value <= 1e6;
    if (name == "--queue") return s.queue = static_cast<std::size_t>(value), value <= 1e6;
    if (name == "--seed") return s.seed = static_cast<std::uint64_t>(value), value <= 1e15;
    if (name == "--from") return s.from = static_cast<unsigned>(value), value <= 2;
    if (name == "--drop") return part(s.drop);
    if (name == "--duplicate") return part(s.duplicate);
    if (name == "--reorder") return part(s.reorder);
    if (name == "--mark") return part(s.mark);
    return false;
}

int run(int argc, char** argv) {
    Settings settings;
    bool good = argc >= 3 && argc % 2 == 1;
    for (int i = 3; good && i + 1 < argc; i += 2) good = set(settings, argv[i], argv[i + 1]);
    if (!good) {
        fputs(
            "usage: relay DEVICE DEVICE [--delay US] [--rate MBIT] [--queue FRAMES] [--seed N] "
            "[--from 0|1|2]\n             [--drop P] [--duplicate P] [--reorder P] [--late US] [--mark P] "
            "[--drop-numbers N,N...]\n",
            stderr);
        return 2;
    }
    stop_on_signals();
    // It stands for a wire, so it does not wait for programs: they would see their own load as delay.
    prctl(PR_SET_TIMERSLACK, 1);
    sched_param first{};
    first.sched_priority = 1;
    sched_setscheduler(0, SCHED_FIFO, &first);
    Relay(settings, argv[1], argv[2]).run();
    return 0;
}

}  // namespace

int main(int argc, char** argv) { return bench::run_tool("relay", run, argc, argv); }
