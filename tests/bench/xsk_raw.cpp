// SPDX-License-Identifier: BSD-2-Clause
// The limit beside which the library is measured: AF_XDP with nothing on top of it.
//
// Two processes, one in each of two network namespaces, exchange valid UDP frames over one XSK each: no
// sockets, no routes, no copies that the kernel does not make itself. What this program reaches is what a
// library over the same mechanism can come near to but not pass, on this machine, in this minute. So it uses
// what the library uses (generic or native XDP, copy mode, a multi-buffer program, one kick for a batch of
// frames) and shares no code with it: a mistake in the library must not lower its own limit. Plain system
// calls, for the same reason and to need no packages.
//
//   xsk_raw latency NETNS:DEV NETNS:DEV   ping-pong, both sides spinning: half of the round trip,
//   microseconds xsk_raw rate    NETNS:DEV NETNS:DEV   one way: frames per second that the second process
//   received
#include <arpa/inet.h>
#include <fcntl.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "xsk_socket.h"

namespace {

using namespace bench;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr std::size_t kHeaders = sizeof(ether_header) + sizeof(iphdr) + sizeof(udphdr);
constexpr auto kLost = 20ms;  // a ping that came back by then will not come any more

// What the two processes tell each other; a shared anonymous mapping, zero at first.
struct Side {
    std::atomic<bool> ready;
    std::array<std::uint8_t, ETH_ALEN> mac;
    in_addr_t address;
};
struct Shared {
    std::array<Side, 2> sides;
    std::atomic<bool> stop;
    std::atomic<bool> failed;
    std::atomic<std::uint64_t> received;
    std::atomic<std::int64_t> received_ns;  // from the first to the last frame
    std::array<char, 200> error;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

struct Options {
    bool latency = false;
    std::array<std::string, 2> netns;
    std::array<std::string, 2> device;
    double seconds = 1;
    unsigned payload = 0;
    unsigned batch = 32;
    bool native = false;
    std::array<int, 2> cpu = {-1, -1};  // of each side; -1: any
};

// ---- Frames ----

std::uint32_t sum(const void* data, std::size_t length, std::uint32_t start = 0) {
    const auto* bytes = static_cast<const std::uint8_t*>(data);
    for (std::size_t i = 0; i < length; ++i) start += i % 2 ? bytes[i] : bytes[i] << 8;
    return start;
}

std::uint16_t folded(std::uint32_t value) {
    while (value >> 16) value = (value & 0xffff) + (value >> 16);
    return htons(static_cast<std::uint16_t>(~value));
}

// A complete frame whose payload is zero; the number in the payload's first eight bytes comes later
// (set_number).
std::vector<std::uint8_t> make_frame(const Side& from, const Side& to, unsigned payload) {
    std::vector<std::uint8_t> frame(kHeaders + payload);
    ether_header ethernet{};
    std::copy(to.mac.begin(), to.mac.end(), ethernet.ether_dhost);
    std::copy(from.mac.begin(), from.mac.end(), ethernet.ether_shost);
    ethernet.ether_type = htons(ETHERTYPE_IP);
    iphdr ip{};
    ip.version = 4;
    ip.ihl = 5;
    ip.tot_len = htons(static_cast<std::uint16_t>(frame.size() - sizeof ethernet));
    ip.frag_off = htons(IP_DF);
    ip.ttl = 64;
    ip.protocol = IPPROTO_UDP;
    ip.saddr = from.address;
    ip.daddr = to.address;
    udphdr udp{};
    udp.uh_sport = udp.uh_dport = htons(kPort);
    udp.uh_ulen = htons(static_cast<std::uint16_t>(sizeof udp + payload));
    std::uint8_t* const network = frame.data() + sizeof ethernet;
    std::uint8_t* const transport = network + sizeof ip;
    memcpy(frame.data(), &ethernet, sizeof ethernet);
    memcpy(network, &ip, sizeof ip);
    memcpy(transport, &udp, sizeof udp);
    const std::uint16_t ip_sum = folded(sum(network, sizeof ip));
    memcpy(network + offsetof(iphdr, check), &ip_sum, sizeof ip_sum);
    // The payload is zero so far, and set_number() adds all ones, which is zero too in this arithmetic.
    const std::uint32_t addresses = sum(network + offsetof(iphdr, saddr), 2 * sizeof(in_addr_t));
    const std::uint16_t udp_sum =
        folded(sum(transport, sizeof udp, addresses + IPPROTO_UDP + ntohs(udp.uh_ulen)));
    memcpy(transport + offsetof(udphdr, uh_sum), &udp_sum, sizeof udp_sum);
    return frame;
}

// The number is followed by its complement, so the checksum is the same for every number.
void set_number(std::uint8_t* frame, std::uint32_t number) {
    const std::array<std::uint32_t, 2> value{number, ~number};
    memcpy(frame + kHeaders, value.data(), sizeof value);
}

std::uint32_t number_of(const std::uint8_t* frame) {
    std::uint32_t number;
    memcpy(&number, frame + kHeaders, sizeof number);
    return number;
}

// ---- The two processes ----

void enter_namespace(const std::string& name) {
    const std::string path = "/run/netns/" + name;
    const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (fd.get() < 0) fail(path);
    if (setns(fd.get(), CLONE_NEWNET) < 0) fail("setns " + name);
}

void read_addresses(const std::string& device, Side& side) {
    const Fd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq request{};
    device.copy(request.ifr_name, IFNAMSIZ - 1);
    if (ioctl(fd.get(), SIOCGIFHWADDR, &request) < 0) fail("hardware address of " + device);
    memcpy(side.mac.data(), request.ifr_hwaddr.sa_data, side.mac.size());
    if (ioctl(fd.get(), SIOCGIFADDR, &request) < 0) fail("IPv4 address of " + device);
    sockaddr_in address;
    memcpy(&address, &request.ifr_addr, sizeof address);
    side.address = address.sin_addr.s_addr;
}

// Opens this side's socket and waits for the other's.
std::unique_ptr<Xsk> join(const Options& options, Shared& shared, int self) {
    enter_namespace(options.netns[self]);
    read_addresses(options.device[self], shared.sides[self]);
    auto xsk = std::make_unique<Xsk>(options.device[self], options.native);
    shared.sides[self].ready = true;
    while (!shared.sides[1 - self].ready) {
        if (shared.failed) throw std::runtime_error(shared.error.data());
        std::this_thread::sleep_for(1ms);
    }
    return xsk;
}

void echo(Xsk& xsk, Shared& shared, const std::vector<std::uint8_t>& reply) {
    while (!shared.stop.load(std::memory_order_relaxed)) {
        const std::uint32_t count = xsk.received();
        if (count == 0) continue;
        for (std::uint32_t i = 0; i < count; ++i) {
            std::uint8_t* out = xsk.next_send_chunk();
            if (out == nullptr) break;
            memcpy(out, reply.data(), reply.size());
            set_number(out, number_of(xsk.chunk(xsk.frame(i).addr)));
            xsk.queue(static_cast<std::uint32_t>(reply.size()));
        }
        xsk.kick();
        xsk.recycle(count);
    }
}

void sink(Xsk& xsk, Shared& shared) {
    std::uint64_t total = 0;
    std::uint32_t seen = 0;  // so that the frame's bytes are really read, as any receiver would
    Clock::time_point first, last;
    while (!shared.stop.load(std::memory_order_relaxed)) {
        const std::uint32_t count = xsk.received();
        if (count == 0) continue;
        for (std::uint32_t i = 0; i < count; ++i)
            seen = std::max(seen, number_of(xsk.chunk(xsk.frame(i).addr)));
        xsk.recycle(count);
        last = Clock::now();
        if (total == 0) first = last;
        total += count;
    }
    if (seen + std::uint64_t{1} < total) throw std::runtime_error("more frames were received than sent");
    shared.received_ns = std::chrono::nanoseconds(last - first).count();
    shared.received = total;
}

struct LatencyResult {
    std::vector<std::uint32_t> half_ns;  // sorted
    std::uint64_t lost = 0;
};

LatencyResult ping(Xsk& xsk, const std::vector<std::uint8_t>& frame, double seconds) {
    LatencyResult result;
    result.half_ns.reserve(static_cast<std::size_t>(seconds * 1e6));
    const auto start = Clock::now();
    const auto warm = start + 100ms;
    const auto end =
        warm + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    for (std::uint32_t number = 0;; ++number) {
        const auto sent = Clock::now();
        if (sent >= end) break;
        std::uint8_t* out = xsk.next_send_chunk();
        if (out == nullptr) {  // cannot be: one frame is under way at a time
            throw std::runtime_error("transmit completions are missing");
        }
        memcpy(out, frame.data(), frame.size());
        set_number(out, number);
        xsk.queue(static_cast<std::uint32_t>(frame.size()));
        xsk.kick();
        for (bool answered = false; !answered;) {
            const std::uint32_t count = xsk.received();
            if (count == 0) {
                if (Clock::now() - sent < kLost) continue;
                ++result.lost;
                break;
            }
            const auto now = Clock::now();
            for (std::uint32_t i = 0; i < count && !answered; ++i) {
                answered = number_of(xsk.chunk(xsk.frame(i).addr)) == number;
            }
            if (answered && sent >= warm) {
                result.half_ns.push_back(
                    static_cast<std::uint32_t>(std::chrono::nanoseconds(now - sent).count() / 2));
            }
            xsk.recycle(count);
        }
    }
    std::ranges::sort(result.half_ns);
    return result;
}

struct RateResult {
    std::uint64_t sent = 0;
    double seconds = 0;
};

RateResult blast(Xsk& xsk, const std::vector<std::uint8_t>& frame, const Options& options) {
    RateResult result;
    const auto start = Clock::now();
    const auto end =
        start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.seconds));
    auto now = start;
    for (std::uint32_t number = 0; now < end; now = Clock::now()) {
        for (unsigned i = 0; i < options.batch; ++i) {
            std::uint8_t* out = xsk.next_send_chunk();
            if (out == nullptr) break;
            memcpy(out, frame.data(), frame.size());
            set_number(out, number++);
            xsk.queue(static_cast<std::uint32_t>(frame.size()));
            ++result.sent;
        }
        xsk.kick();
    }
    result.seconds = std::chrono::duration<double>(now - start).count();
    for (int i = 0; i < 100; ++i) xsk.kick();  // whatever the kernel has not taken yet
    return result;
}

// Keeps this process on one processor; -1: wherever the scheduler puts it.
void pin(int cpu) {
    if (cpu < 0) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<unsigned>(cpu), &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) fail("sched_setaffinity");
}

// The second side, a process of its own. Its errors reach the first side through `shared`.
[[noreturn]] void run_second(const Options& options, Shared& shared) {
    try {
        pin(options.cpu[1]);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        const auto xsk = join(options, shared, 1);
        if (options.latency) {
            echo(*xsk, shared, make_frame(shared.sides[1], shared.sides[0], options.payload));
        } else {
            sink(*xsk, shared);
        }
        _exit(0);
    } catch (const std::exception& error) {
        snprintf(shared.error.data(), shared.error.size(), "%s: %s", options.netns[1].c_str(), error.what());
        shared.failed = true;
        _exit(1);
    }
}

void run_first(const Options& options, Shared& shared, pid_t second) {
    pin(options.cpu[0]);
    const auto xsk = join(options, shared, 0);
    const auto frame = make_frame(shared.sides[0], shared.sides[1], options.payload);
    LatencyResult latency;
    RateResult rate;
    if (options.latency) {
        latency = ping(*xsk, frame, options.seconds);
    } else {
        rate = blast(*xsk, frame, options);
        std::this_thread::sleep_for(20ms);  // the receiver empties its ring
    }
    shared.stop = true;
    int status = 0;
    waitpid(second, &status, 0);
    if (shared.failed) throw std::runtime_error(shared.error.data());
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) throw std::runtime_error("the second process failed");

    if (options.latency) {
        if (latency.half_ns.empty()) throw std::runtime_error("no ping was answered");
        const auto percentile = [&](double p) {
            return latency.half_ns[static_cast<std::size_t>(
                       p * static_cast<double>(latency.half_ns.size() - 1))] /
                   1e3;
        };
        printf(
            "{\"payload\": %u, \"round_trips\": %zu, \"lost\": %llu, \"half_rtt_us\": {\"p50\": %.3f, "
            "\"p99\": %.3f}}\n",
            options.payload, latency.half_ns.size(), static_cast<unsigned long long>(latency.lost),
            percentile(0.5), percentile(0.99));
        return;
    }
    const std::uint64_t received = shared.received;
    if (received < 2) throw std::runtime_error("nothing was received");
    printf(
        "{\"payload\": %u, \"batch\": %u, \"sent\": %llu, \"sent_per_second\": %.0f, \"received\": %llu, "
        "\"received_per_second\": %.0f}\n",
        options.payload, options.batch, static_cast<unsigned long long>(rate.sent),
        static_cast<double>(rate.sent) / rate.seconds, static_cast<unsigned long long>(received),
        static_cast<double>(received - 1) * 1e9 / static_cast<double>(shared.received_ns));
}

[[noreturn]] void usage() {
    fputs(
        "usage: xsk_raw latency|rate NETNS:DEV NETNS:DEV [--seconds S] [--payload BYTES] [--batch FRAMES] "
        "[--mode skb|drv] [--cpus A,B]\n"
        "Devices joined by a wire, up, with IPv4 addresses. Prints one line of JSON. Defaults: 1 second; 64 "
        "bytes for\n"
        "latency and 100 for rate; 32 frames for each kick; generic XDP (skb).\n",
        stderr);
    exit(2);
}

Options parse(int argc, char** argv) {
    Options options;
    if (argc < 4) usage();
    const std::string_view command = argv[1];
    if (command != "latency" && command != "rate") usage();
    options.latency = command == "latency";
    options.payload = options.latency ? 64 : 100;
    for (int i = 0; i < 2; ++i) {
        const std::string place = argv[2 + i];
        const auto colon = place.find(':');
        if (colon == std::string::npos) usage();
        options.netns[i] = place.substr(0, colon);
        options.device[i] = place.substr(colon + 1);
    }
    for (int i = 4; i < argc; i += 2) {
        if (i + 1 == argc) usage();
        const std::string_view name = argv[i];
        const std::string_view value = argv[i + 1];
        if (name == "--seconds")
            options.seconds = atof(argv[i + 1]);
        else if (name == "--payload")
            options.payload = static_cast<unsigned>(atoi(argv[i + 1]));
        else if (name == "--batch")
            options.batch = static_cast<unsigned>(atoi(argv[i + 1]));
        else if (name == "--cpus") {
            char rest = 0;
            if (sscanf(argv[i + 1], "%d,%d%c", &options.cpu[0], &options.cpu[1], &rest) != 2 ||
                options.cpu[0] < 0 || options.cpu[1] < 0 ||
                std::max(options.cpu[0], options.cpu[1]) >= CPU_SETSIZE)
                usage();
        } else if (name == "--mode" && (value == "skb" || value == "drv"))
            options.native = value == "drv";
        else
            usage();
    }
    // Eight bytes of number; a frame of the usual MTU fits a chunk. A kick takes no more than 32 frames.
    if (options.payload < 8 || options.payload > 1472 || options.batch < 1 || options.batch > 32 ||
        options.seconds <= 0 || options.seconds > 3600)
        usage();
    return options;
}

}  // namespace

int main(int argc, char** argv) {
    const Options options = parse(argc, argv);
    try {
        const Mapping memory(sizeof(Shared), MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        Shared& shared = *new (memory.data()) Shared{};
        const pid_t second = fork();
        if (second < 0) fail("fork");
        if (second == 0) run_second(options, shared);
        try {
            run_first(options, shared, second);
        } catch (...) {
            kill(second, SIGKILL);
            waitpid(second, nullptr, 0);
            throw;
        }
        return 0;
    } catch (const std::exception& error) {
        fprintf(stderr, "xsk_raw: %s\n", error.what());
        return 1;
    }
}
