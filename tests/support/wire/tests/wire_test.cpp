// SPDX-License-Identifier: BSD-2-Clause
// The test wire itself: what other tests are going to trust. End points are driven by plain verbs calls here.
#include "tests/support/wire/wire.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/wire/udp_frames.h"
#include "tests/support/wire/wire_device.h"

namespace vma::verbs::wire {
namespace {

using namespace udp_frames;

// An end point with its verbs objects and memory: chunks from 0 on for receiving, the upper half for sending.
struct Station {
    explicit Station(Wire& wire, WireConfig config = {}, std::uint32_t receives = 16) : config(config) {
        device = wire.connect(config);
        chunks = 2 * std::max(config.max_recv_wr, config.max_send_wr);
        length = std::size_t{chunks} * config.chunk_size;
        memory = static_cast<std::uint8_t*>(
            mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        mr = device->reg_mr(memory, length).value();
        channel = device->create_comp_channel().value();
        recv_cq = device->create_cq(static_cast<int>(config.max_recv_wr), channel).value();
        send_cq = device->create_cq(static_cast<int>(config.max_send_wr), nullptr).value();
        ibv_qp_init_attr init{};
        init.recv_cq = recv_cq;
        init.send_cq = send_cq;
        qp = device->create_qp(init).value();
        for (std::uint32_t i = 0; i < receives; i++) EXPECT_EQ(post_receive(i), 0);
    }
    ~Station() {
        device.reset();
        munmap(memory, length);
    }
    std::uint8_t* chunk(std::uint32_t i) const { return memory + std::size_t{i} * config.chunk_size; }
    std::uint8_t* send_area(std::uint32_t i) const { return chunk(chunks / 2 + i) + config.tx_headroom; }

    int post_receive(std::uint32_t i) {
        ibv_sge sge{reinterpret_cast<std::uintptr_t>(chunk(i)), config.chunk_size, mr->lkey};
        ibv_recv_wr wr{}, *bad = nullptr;
        wr.wr_id = i;
        wr.sg_list = &sge;
        wr.num_sge = 1;
        return ibv_post_recv(qp, &wr, &bad);
    }
    // Sends from send chunk `i` on, in pieces of at most `piece` bytes.
    int send(const Bytes& frame, std::uint32_t i = 0, unsigned flags = IBV_SEND_SIGNALED,
             std::size_t piece = 1u << 20) {
        std::vector<ibv_sge> sges;
        for (std::size_t at = 0; at < frame.size(); at += piece) {
            const std::size_t n = std::min(piece, frame.size() - at);
            std::uint8_t* to = send_area(i + static_cast<std::uint32_t>(sges.size()));
            std::memcpy(to, frame.data() + at, n);
            sges.push_back({reinterpret_cast<std::uintptr_t>(to), static_cast<std::uint32_t>(n), mr->lkey});
        }
        ibv_send_wr wr{}, *bad = nullptr;
        wr.wr_id = i;
        wr.sg_list = sges.data();
        wr.num_sge = static_cast<int>(sges.size());
        wr.opcode = IBV_WR_SEND;
        wr.send_flags = flags;
        const int error = ibv_post_send(qp, &wr, &bad);
        EXPECT_EQ(error != 0, bad == &wr);
        return error;
    }
    std::vector<std::uint64_t> sent() {
        std::vector<std::uint64_t> ids;
        ibv_wc wc;
        while (ibv_poll_cq(send_cq, 1, &wc) == 1) ids.push_back(wc.wr_id);
        return ids;
    }
    // Frames of the receive CQ put together again; their buffers are not posted again.
    std::vector<Bytes> received() {
        std::vector<Bytes> frames;
        Bytes frame;
        ibv_wc wc;
        while (ibv_poll_cq(recv_cq, 1, &wc) == 1) {
            EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
            const std::uint8_t* from = chunk(static_cast<std::uint32_t>(wc.wr_id)) + config.rx_offset;
            frame.insert(frame.end(), from, from + wc.byte_len);
            if (wc.wc_flags & kWcMore) continue;
            frames.push_back(std::move(frame));
            frame.clear();
        }
        EXPECT_TRUE(frame.empty()) << "an unfinished frame";
        return frames;
    }
    bool readable() const {
        pollfd p{channel->fd, POLLIN, 0};
        return ::poll(&p, 1, 0) == 1;
    }
    Flow* rule(const char* dst, std::uint16_t dst_port, const char* src = nullptr,
               std::uint16_t src_port = 0) {
        FlowSpec spec{IPPROTO_UDP, inet_addr(dst), htons(dst_port), src ? inet_addr(src) : 0,
                      htons(src_port)};
        return device->create_flow(qp, spec).value();
    }

    WireConfig config;
    std::unique_ptr<WireDevice> device;
    std::uint8_t* memory;
    std::size_t length;
    std::uint32_t chunks;
    ibv_mr* mr;
    ibv_comp_channel* channel;
    ibv_cq *recv_cq, *send_cq;
    ibv_qp* qp;
};

Bytes numbered(std::uint32_t number, std::size_t length = 100) {
    Bytes frame(length);
    std::memcpy(&frame[60], &number, 4);
    return frame;
}
std::uint32_t number_of(const Bytes& frame) {
    std::uint32_t number;
    std::memcpy(&number, &frame[60], 4);
    return number;
}
std::vector<std::uint32_t> numbers(const std::vector<Bytes>& frames) {
    std::vector<std::uint32_t> result;
    for (auto& frame : frames) result.push_back(number_of(frame));
    return result;
}
std::vector<std::uint32_t> counting(std::uint32_t n) {
    std::vector<std::uint32_t> result;
    for (std::uint32_t i = 0; i < n; i++) result.push_back(i);
    return result;
}

Udp datagram(const WireDevice& to, std::string payload) {
    Udp u;
    u.dst_mac = to.attr().mac;
    u.src_mac = {2, 9, 9, 9, 9, 9};
    u.payload = std::move(payload);
    return u;
}

TEST(Wire, FarEndGetsEverythingAtOnce) {
    Wire wire;
    auto a = wire.connect({}), b = wire.connect({});
    for (std::uint32_t i = 0; i < 10; i++) a->kernel_send(numbered(i));
    EXPECT_EQ(numbers(b->take_kernel_frames()), counting(10));
    EXPECT_EQ(a->kernel_frames(), 0u);
    EXPECT_EQ(b->kernel_frames(), 10u);
    EXPECT_EQ(wire.counters(*a).delivered, 10u);
    EXPECT_EQ(wire.now(), 0u);
    EXPECT_FALSE(wire.next_due());
}

TEST(Wire, AddressesAreDifferentAndKept) {
    Wire wire;
    auto a = wire.connect({}), b = wire.connect({}), c = wire.connect({.mac = {2, 1, 2, 3, 4, 5}});
    EXPECT_NE(a->attr().mac, b->attr().mac);
    EXPECT_EQ(c->attr().mac, (MacAddress{2, 1, 2, 3, 4, 5}));
}

TEST(Wire, SeveralEndPointsAreSwitchedByAddress) {
    Wire wire;
    auto a = wire.connect({}), b = wire.connect({}), c = wire.connect({});
    auto send = [&](MacAddress to) {
        Bytes frame(60);
        std::copy(to.begin(), to.end(), frame.begin());
        a->kernel_send(frame);
        return std::pair{b->take_kernel_frames().size(), c->take_kernel_frames().size()};
    };
    EXPECT_EQ(send(b->attr().mac), std::pair(1ul, 0ul));
    EXPECT_EQ(send(c->attr().mac), std::pair(0ul, 1ul));
    EXPECT_EQ(send({0xff, 0xff, 0xff, 0xff, 0xff, 0xff}), std::pair(1ul, 1ul));
    EXPECT_EQ(send({1, 0, 0x5e, 1, 2, 3}), std::pair(1ul, 1ul));
    EXPECT_EQ(send({2, 7, 7, 7, 7, 7}), std::pair(1ul, 1ul)) << "unknown stations are flooded";
    EXPECT_EQ(a->kernel_frames(), 0u);
    c.reset();
    a->kernel_send(Bytes(60));
    EXPECT_EQ(b->take_kernel_frames().size(), 1u);
}

TEST(Wire, DelayPassesOnlyWithTheClock) {
    Wire wire;
    auto a = wire.connect({}), b = wire.connect({});
    wire.set_faults(*a, {.delay_ns = 1000});
    a->kernel_send(numbered(0));
    wire.advance(400);
    a->kernel_send(numbered(1));
    EXPECT_EQ(wire.next_due(), 1000u);
    wire.advance(599);
    EXPECT_EQ(b->kernel_frames(), 0u);
    wire.advance(1);
    EXPECT_EQ(numbers(b->take_kernel_frames()), std::vector<std::uint32_t>{0});
    EXPECT_EQ(wire.run_until_idle(), 400u);
    EXPECT_EQ(wire.now(), 1400u);
    EXPECT_EQ(numbers(b->take_kernel_frames()), std::vector<std::uint32_t>{1});
    b->kernel_send(numbered(2));
    EXPECT_EQ(a->kernel_frames(), 1u) << "the other direction has no delay";
}

TEST(Wire, EqualDelaysKeepTheOrder) {
    Wire wire;
    auto a = wire.connect({}), b = wire.connect({});
    wire.set_faults(*a, {.delay_ns = 50});
    for (std::uint32_t i = 0; i < 100; i++) a->kernel_send(numbered(i));
    wire.run_until_idle();
    EXPECT_EQ(numbers(b->take_kernel_frames()), counting(100));
}

// The numbers that arrive, in order, of 1000 frames with `faults`.
std::vector<std::uint32_t> arrivals(std::uint64_t seed, const Faults& faults, bool traffic_back = false) {
    Wire wire(seed);
    auto a = wire.connect({}), b = wire.connect({});
    wire.set_faults(*a, faults);
    wire.set_faults(*b, {.loss = 0.5});
    for (std::uint32_t i = 0; i < 1000; i++) {
        a->kernel_send(numbered(i));
        if (traffic_back) b->kernel_send(numbered(i));
        wire.advance(100);
    }
    wire.run_until_idle();
    return numbers(b->take_kernel_frames());
}

TEST(Wire, SameSeedSameFaults) {
    const Faults faults{
        .loss = 0.1, .duplicate = 0.1, .corrupt = 0, .reorder = 0.1, .delay_ns = 500, .jitter_ns = 300};
    const auto first = arrivals(7, faults);
    EXPECT_EQ(arrivals(7, faults), first);
    EXPECT_EQ(arrivals(7, faults, true), first) << "traffic the other way changes nothing";
    EXPECT_NE(arrivals(8, faults), first);
}

TEST(Wire, LossLoses) {
    const auto got = arrivals(1, {.loss = 0.3});
    EXPECT_GT(got.size(), 600u);
    EXPECT_LT(got.size(), 800u);
    EXPECT_TRUE(std::ranges::is_sorted(got));
    EXPECT_EQ(arrivals(1, {.loss = 1}).size(), 0u);
}

TEST(Wire, DuplicatesComeTwice) {
    std::map<std::uint32_t, int> count;
    for (std::uint32_t n : arrivals(1, {.duplicate = 0.25})) count[n]++;
    EXPECT_EQ(count.size(), 1000u);
    const auto twice = std::ranges::count_if(count, [](auto& c) { return c.second == 2; });
    EXPECT_GT(twice, 150);
    EXPECT_LT(twice, 350);
    EXPECT_TRUE(std::ranges::all_of(count, [](auto& c) { return c.second <= 2; }));
}

TEST(Wire, ReorderingOvertakesAndLosesNothing) {
    for (const Faults& faults : {Faults{.reorder = 0.1, .reorder_ns = 1000}, Faults{.jitter_ns = 1000}}) {
        auto got = arrivals(1, faults);
        EXPECT_FALSE(std::ranges::is_sorted(got));
        std::ranges::sort(got);
        EXPECT_EQ(got, counting(1000));
    }
}

TEST(Wire, CorruptionFlipsAsManyBitsAsAsked) {
    Wire wire(3);
    auto a = wire.connect({}), b = wire.connect({});
    const Bytes original = numbered(5);
    wire.set_faults(*a, {.corrupt = 1});
    std::set<std::size_t> places;
    for (int i = 0; i < 500; i++) {
        a->kernel_send(original);
        const Bytes frame = b->take_kernel_frames().at(0);
        ASSERT_EQ(frame.size(), original.size());
        int flipped = 0;
        for (std::size_t at = 0; at < frame.size(); at++)
            if (frame[at] != original[at]) {
                flipped += std::popcount(static_cast<unsigned>(frame[at] ^ original[at]));
                places.insert(at);
            }
        ASSERT_EQ(flipped, 1);
    }
    EXPECT_GT(places.size(), 90u) << "everywhere in the frame";
    EXPECT_EQ(wire.counters(*a).corrupted, 500u);

    wire.set_faults(
        *a, {.corrupt = 1, .corrupt_by = [](Frame& f, Random& random) { f.resize(random.below(10)); }});
    a->kernel_send(original);
    EXPECT_LT(b->take_kernel_frames().at(0).size(), 10u);
}

TEST(Wire, HookDropsAltersAndAdds) {
    Wire wire;
    auto a = wire.connect({}), b = wire.connect({});
    wire.set_hook([&](const WireDevice& from, std::vector<Frame>& frames) {
        if (&from != a.get()) return;
        switch (number_of(frames[0])) {
            case 1:
                frames.clear();
                break;
            case 2:
                frames.push_back(frames[0]);
                break;
            case 3:
                frames[0] = numbered(33);
                break;
            case 4:
                frames.insert(frames.begin(), numbered(static_cast<std::uint32_t>(100 + wire.now())));
                break;
        }
    });
    for (std::uint32_t i = 0; i < 6; i++) a->kernel_send(numbered(i));
    EXPECT_EQ(numbers(b->take_kernel_frames()), (std::vector<std::uint32_t>{0, 2, 2, 33, 100, 4, 5}));
    EXPECT_EQ(wire.counters(*a).hooked_away, 1u);
    b->kernel_send(numbered(1));
    EXPECT_EQ(a->kernel_frames(), 1u);
}

TEST(Wire, EndPointMayLeaveWhileFramesAreUnderWay) {
    Wire wire;
    auto a = wire.connect({}), b = wire.connect({}), c = wire.connect({});
    wire.set_faults(*a, {.delay_ns = 100});
    a->kernel_send(numbered(0));  // to b and c
    b.reset();
    wire.advance(50);
    a.reset();
    wire.run_until_idle();
    EXPECT_EQ(c->kernel_frames(), 1u);
}

TEST(WireDevice, RulesSteer) {
    Wire wire;
    auto peer = wire.connect({});
    Station s(wire);
    Flow* three = s.rule("198.18.0.2", 2000);
    Flow* five = s.rule("198.18.0.2", 3000, "198.18.0.1", 1000);
    EXPECT_EQ(s.device->create_flow(s.qp, three->spec).error().code, EEXIST);
    EXPECT_EQ(s.device->rules(), 2u);
    auto arrives = [&](auto change) {  // in the ring
        Udp u = datagram(*s.device, "x");
        change(u);
        peer->kernel_send(make(u));
        const std::size_t ring = s.received().size(), kernel = s.device->take_kernel_frames().size();
        EXPECT_EQ(ring + kernel, 1u);
        return ring == 1;
    };
    EXPECT_TRUE(arrives([](Udp&) {}));
    EXPECT_TRUE(arrives([](Udp& u) { u.src = "198.18.0.77", u.src_port = 7; }));
    EXPECT_FALSE(arrives([](Udp& u) { u.dst_port = 2001; }));
    EXPECT_FALSE(arrives([](Udp& u) { u.dst = "198.18.0.3"; }));
    EXPECT_TRUE(arrives([](Udp& u) { u.dst_port = 3000; }));
    EXPECT_FALSE(arrives([](Udp& u) { u.dst_port = 3000, u.src_port = 1001; }));
    EXPECT_FALSE(arrives([](Udp& u) { u.dst_port = 3000, u.src = "198.18.0.9"; }));
    EXPECT_FALSE(arrives([](Udp& u) { u.dst_mac = {2, 3, 3, 3, 3, 3}; })) << "another station's";
    s.device->destroy_flow(three);
    EXPECT_FALSE(arrives([](Udp&) {}));
    s.device->destroy_flow(five);
    EXPECT_FALSE(arrives([](Udp& u) { u.dst_port = 3000; }));
}

TEST(WireDevice, KernelKeepsWhatTheXdpProgramLeavesToIt) {
    Wire wire;
    auto peer = wire.connect({});
    Station s(wire);
    s.rule("198.18.0.2", 2000);
    const Bytes good = make(datagram(*s.device, pattern(100)));
    auto stays = [&](auto change) {
        Bytes frame = good;
        change(frame);
        peer->kernel_send(frame);
        EXPECT_TRUE(s.received().empty());
        auto kernel = s.device->take_kernel_frames();
        return kernel.size() == 1 && kernel[0] == frame;
    };
    EXPECT_TRUE(stays([](Bytes& f) { put16(f, kIp + 6, 0x2000); })) << "first fragment";
    EXPECT_TRUE(stays([](Bytes& f) { put16(f, kIp + 6, 0x0001); })) << "later fragment";
    EXPECT_TRUE(stays([](Bytes& f) { f[kIp] = 0x46; })) << "IP options";
    EXPECT_TRUE(stays([](Bytes& f) { put16(f, 12, 0x86dd); }));
    EXPECT_TRUE(stays([](Bytes& f) { f[kIp + 9] = 1; })) << "ICMP";
    EXPECT_TRUE(stays([](Bytes& f) { f.resize(20); }));
    EXPECT_TRUE(stays([](Bytes& f) { f.resize(1515); })) << "a super-frame";
    EXPECT_TRUE(stays([](Bytes& f) { f.clear(); }));
    s.device->receive_unsteered(good);
    EXPECT_EQ(s.received().size(), 1u);
}

TEST(WireDevice, LongFramesSpreadOverBuffers) {
    const std::size_t room = 2048 - 256;
    for (std::size_t length : {room - 1, room, room + 1, 2 * room, 2 * room + 1, std::size_t{9014}}) {
        Wire wire;
        auto peer = wire.connect({});
        Station s(wire, {.mtu = 9000, .chunk_size = 2048, .rx_offset = 256});
        s.rule("198.18.0.2", 2000);
        const Bytes frame = make(datagram(*s.device, pattern(length - kPayload)));
        const std::uint32_t wanted = static_cast<std::uint32_t>((length + room - 1) / room);
        peer->kernel_send(frame);
        EXPECT_EQ(s.device->receives_filled(), wanted) << length;
        EXPECT_EQ(s.device->receives_posted(), 16 - wanted) << length;
        EXPECT_EQ(s.received(), std::vector<Bytes>{frame}) << length;
        for (std::uint32_t i = 0; i < wanted; i++) EXPECT_EQ(s.post_receive(i), 0);
        EXPECT_EQ(s.device->violations(), 0u);
    }
}

TEST(WireDevice, WithoutBuffersFramesAreDroppedWholeAndCounted) {
    Wire wire;
    auto peer = wire.connect({});
    Station s(wire, {.mtu = 9000}, 3);
    s.rule("198.18.0.2", 2000);
    const Bytes small = make(datagram(*s.device, "small")), large = make(datagram(*s.device, pattern(4000)));
    peer->kernel_send(small);
    peer->kernel_send(large);  // needs three
    EXPECT_EQ(s.device->rx_device_drops(), 1u);
    peer->kernel_send(small);
    peer->kernel_send(small);
    peer->kernel_send(small);
    EXPECT_EQ(s.device->rx_device_drops(), 2u);
    EXPECT_EQ(s.received(), (std::vector<Bytes>{small, small, small}));
    EXPECT_EQ(s.post_receive(0), 0);
    peer->kernel_send(small);
    EXPECT_EQ(s.received().size(), 1u);
    EXPECT_EQ(s.device->kernel_frames(), 0u);
}

TEST(WireDevice, ChannelIsReadableWhileCompletionsWait) {
    Wire wire;
    auto peer = wire.connect({});
    Station s(wire);
    s.rule("198.18.0.2", 2000);
    EXPECT_EQ(ibv_req_notify_cq(s.recv_cq, 0), 0);
    EXPECT_FALSE(s.readable());
    const Bytes frame = make(datagram(*s.device, "x"));
    peer->kernel_send(frame);
    peer->kernel_send(frame);
    EXPECT_TRUE(s.readable());
    ibv_wc wc;
    EXPECT_EQ(ibv_poll_cq(s.recv_cq, 1, &wc), 1);
    EXPECT_TRUE(s.readable()) << "one is still there";
    EXPECT_EQ(ibv_poll_cq(s.recv_cq, 1, &wc), 1);
    EXPECT_FALSE(s.readable());
    EXPECT_EQ(ibv_poll_cq(s.recv_cq, 1, &wc), 0);
    peer->kernel_send(frame);
    EXPECT_TRUE(s.readable());
}

TEST(WireDevice, ReceiveQueueHasItsSizeAndItsRules) {
    Wire wire;
    Station s(wire, {.max_send_wr = 16, .max_recv_wr = 4}, 4);
    EXPECT_EQ(s.post_receive(4), ENOMEM);
    EXPECT_EQ(s.device->violations(), 0u);
    s.device->receive_unsteered(Bytes(14));
    EXPECT_EQ(s.post_receive(4), ENOMEM) << "a filled buffer that nobody polled takes its place";
    EXPECT_EQ(s.received().size(), 1u);
    EXPECT_EQ(s.post_receive(1), EINVAL) << "is in the queue";
    EXPECT_EQ(s.device->violations(), 1u);
    EXPECT_EQ(s.post_receive(s.chunks), EINVAL) << "outside";
    EXPECT_EQ(s.device->violations(), 2u);
    EXPECT_EQ(s.post_receive(0), 0);
    EXPECT_EQ(s.chunk(0)[100], 0xdb) << "posted memory belongs to the device";
}

TEST(WireDevice, SignalledRequestsCompleteInOrder) {
    Wire wire;
    auto peer = wire.connect({});
    Station s(wire, {.max_send_wr = 64});
    for (std::uint32_t i = 0; i < 40; i++)
        EXPECT_EQ(s.send(numbered(i), i, i % 8 == 7 ? unsigned{IBV_SEND_SIGNALED} : 0u), 0);
    EXPECT_EQ(s.sent(), (std::vector<std::uint64_t>{7, 15, 23, 31, 39}));
    EXPECT_TRUE(s.sent().empty());
    EXPECT_EQ(numbers(peer->take_kernel_frames()), counting(40));
}

TEST(WireDevice, FramesLeaveWhileCompletionsAreHeld) {
    Wire wire;
    auto peer = wire.connect({});
    Station s(wire, {.max_send_wr = 16});
    s.device->hold_completions(true);
    for (std::uint32_t i = 0; i < 16; i++) EXPECT_EQ(s.send(numbered(i), i), 0);
    EXPECT_EQ(peer->kernel_frames(), 16u);
    EXPECT_TRUE(s.sent().empty());
    EXPECT_EQ(s.send(numbered(16), 16), ENOMEM) << "the queue is full";
    EXPECT_EQ(s.device->violations(), 0u);
    s.device->hold_completions(false);
    EXPECT_EQ(s.sent().size(), 16u);
    EXPECT_EQ(s.send(numbered(16), 16), 0);
    s.device->refuse_sends(true);
    EXPECT_EQ(s.send(numbered(17), 17), ENOMEM);
    s.device->refuse_sends(false);
    EXPECT_EQ(s.send(numbered(17), 17), 0);
    EXPECT_EQ(peer->kernel_frames(), 18u);
}

TEST(WireDevice, WrongSendRequestsAreRefused) {
    Wire wire;
    auto peer = wire.connect({});
    Station s(wire, {.max_send_sge = 3, .max_send_wr = 16});
    s.device->hold_completions(true);
    EXPECT_EQ(s.send(numbered(0), 0), 0);
    EXPECT_EQ(s.send(numbered(0), 0), EINVAL) << "its buffer is still the device's";
    EXPECT_EQ(s.send(Bytes(400), 1, 0, 100), EINVAL) << "four pieces";
    EXPECT_EQ(s.send(Bytes(300), 1, 0, 100), 0) << "three pieces";
    EXPECT_EQ(s.send({}, 5), EINVAL) << "no pieces";
    auto post = [&](std::uint8_t* from, std::uint32_t length) {
        ibv_sge sge{reinterpret_cast<std::uintptr_t>(from), length, s.mr->lkey};
        ibv_send_wr wr{}, *bad = nullptr;
        wr.sg_list = &sge;
        wr.num_sge = 1;
        return ibv_post_send(s.qp, &wr, &bad);
    };
    EXPECT_EQ(post(s.memory + s.length, 60), EINVAL) << "outside";
    EXPECT_EQ(post(s.send_area(6), s.config.chunk_size), EINVAL) << "into the next chunk";
    EXPECT_EQ(post(s.send_area(6) - 1, 60), EINVAL) << "no headroom";
    EXPECT_EQ(s.device->violations(), 6u);
    EXPECT_EQ(peer->kernel_frames(), 2u);
}

TEST(WireDevice, FramesBeyondTheMtuVanishButComplete) {
    Wire wire;
    auto peer = wire.connect({});
    Station s(wire);
    EXPECT_EQ(s.send(Bytes(1514), 0), 0);
    EXPECT_EQ(s.send(Bytes(1515), 1), 0);
    EXPECT_EQ(s.send(Bytes(13), 2), 0);
    EXPECT_EQ(s.sent().size(), 3u);
    EXPECT_EQ(peer->kernel_frames(), 1u);
    EXPECT_EQ(s.device->tx_invalid(), 2u);
    s.device->link_changed(s.device->attr().mac, 1501);
    EXPECT_EQ(s.send(Bytes(1515), 1), 0);
    EXPECT_EQ(peer->kernel_frames(), 2u);
}

TEST(WireDevice, ChecksumOffload) {
    for (TxChecksum mode : {TxChecksum::none, TxChecksum::complete, TxChecksum::partial}) {
        Wire wire;
        auto peer = wire.connect({});
        Station s(wire, {.tx_checksum = mode});
        EXPECT_EQ(s.device->attr().tx_checksum, mode != TxChecksum::none);
        for (std::size_t length : {0u, 1u, 100u, 101u, 1472u}) {
            const Bytes right = make(datagram(*peer, pattern(length)));
            Bytes frame = right;
            put16(frame, kUdp + 6, pseudo_sum(frame));
            EXPECT_EQ(s.send(frame, 0, IBV_SEND_SIGNALED | IBV_SEND_IP_CSUM, 777), 0);
            s.sent();
            EXPECT_EQ(peer->take_kernel_frames().at(0), mode == TxChecksum::complete ? right : frame)
                << length;
            EXPECT_EQ(s.send(frame, 0), 0);  // not asked for
            s.sent();
            EXPECT_EQ(peer->take_kernel_frames().at(0), frame);
        }
    }
}

TEST(WireDevice, ChecksumThatWouldBeZeroIsSentAsOnes) {
    Wire wire;
    auto peer = wire.connect({});
    Station s(wire, {.tx_checksum = TxChecksum::complete});
    Bytes frame = make(datagram(*peer, std::string(2, '\0')));
    // Payload that makes the sum of everything all ones: its own complement then is 0.
    put16(frame, kPayload, get16(frame, kUdp + 6));
    put16(frame, kUdp + 6, pseudo_sum(frame));
    EXPECT_EQ(s.send(frame, 0, IBV_SEND_IP_CSUM), 0);
    EXPECT_EQ(get16(peer->take_kernel_frames().at(0), kUdp + 6), 0xffffu);
}

TEST(WireDevice, LazySendingByTheFakeClock) {
    Wire wire;
    auto peer = wire.connect({});
    Station s(wire, {.max_send_wr = 64, .lazy_tx = LazyTx::fake_clock});
    EXPECT_TRUE(s.device->attr().lazy_tx);
    EXPECT_EQ(s.send(numbered(0), 0), 0);
    EXPECT_EQ(peer->kernel_frames(), 1u) << "the first leaves at once";
    wire.advance(1000);
    EXPECT_EQ(s.send(numbered(1), 1), 0);
    EXPECT_EQ(s.device->held(), 1u);
    EXPECT_EQ(s.device->tx_held(s.qp), 0u) << "real threads have no business with it";
    EXPECT_EQ(wire.next_due(), 1000 + LazyKick::kHoldLimitNs);
    wire.advance(LazyKick::kHoldLimitNs - 1);
    EXPECT_EQ(peer->kernel_frames(), 1u);
    wire.advance(1);
    EXPECT_EQ(peer->kernel_frames(), 2u) << "nobody made a call";
    EXPECT_EQ(s.device->held(), 0u);

    s.send(numbered(2), 2);
    EXPECT_EQ(peer->kernel_frames(), 3u) << "the flush ended the burst";
    s.send(numbered(3), 3);
    s.send(numbered(4), 4);
    EXPECT_EQ(s.device->held(), 2u);
    s.device->flush(s.qp);
    EXPECT_EQ(peer->kernel_frames(), 5u);

    s.send(numbered(5), 5);
    for (std::uint32_t i = 6; i < 6 + LazyKick::kMaxHeld - 1; i++) s.send(numbered(i), i);
    EXPECT_EQ(peer->kernel_frames(), 6u);
    s.send(numbered(37), 37);
    EXPECT_EQ(peer->kernel_frames(), 38u) << "a full batch";
    s.send(numbered(38), 38);
    EXPECT_EQ(wire.run_until_idle(), LazyKick::kHoldLimitNs);
    EXPECT_EQ(numbers(peer->take_kernel_frames()), counting(39));
    EXPECT_EQ(s.sent().size(), 39u);
}

TEST(WireDevice, FullQueueSendsWhatIsHeld) {
    Wire wire;
    auto peer = wire.connect({});
    Station s(wire, {.max_send_wr = 4, .lazy_tx = LazyTx::fake_clock});
    for (std::uint32_t i = 0; i < 4; i++) EXPECT_EQ(s.send(numbered(i), i), 0);
    EXPECT_EQ(peer->kernel_frames(), 1u);
    EXPECT_EQ(s.send(numbered(4), 4), ENOMEM);
    EXPECT_EQ(peer->kernel_frames(), 4u);
    EXPECT_EQ(s.sent().size(), 4u);
    EXPECT_EQ(s.send(numbered(4), 4), 0);
}

TEST(WireDevice, HeldFramesAreReadWhenTheyLeave) {
    Wire wire;
    auto peer = wire.connect({});
    Station s(wire, {.lazy_tx = LazyTx::fake_clock});
    s.send(numbered(0), 0);
    s.send(numbered(1), 1);
    s.send_area(1)[60] = 99;
    s.device->flush(s.qp);
    EXPECT_EQ(numbers(peer->take_kernel_frames()), (std::vector<std::uint32_t>{0, 99}));
}

TEST(SendSlots, OrderOfPostingWhateverTheOrderOfPieces) {
    SendSlots slots;
    slots.resize(4);
    ibv_wc wc[8];
    auto add = [&](std::uint64_t id, int pieces, bool signalled) {
        ibv_send_wr wr{};
        wr.wr_id = id;
        wr.num_sge = pieces;
        wr.send_flags = signalled ? IBV_SEND_SIGNALED : 0;
        const std::uint32_t slot = slots.next();
        slots.add(wr);
        return slot;
    };
    for (std::uint64_t round = 0; round < 10; round++) {  // around the ring several times
        const std::uint32_t a = add(round * 10 + 1, 2, true), b = add(round * 10 + 2, 1, false),
                            c = add(round * 10 + 3, 1, true);
        EXPECT_FALSE(slots.full());
        slots.piece_done(c);
        slots.piece_done(a);
        EXPECT_EQ(slots.poll(8, wc, 7), 0);
        slots.piece_done(b);
        EXPECT_EQ(slots.poll(8, wc, 7), 0);
        slots.piece_done(a);
        EXPECT_EQ(slots.poll(1, wc, 7), 1);
        EXPECT_EQ(wc[0].wr_id, round * 10 + 1);
        EXPECT_EQ(wc[0].qp_num, 7u);
        EXPECT_EQ(wc[0].opcode, IBV_WC_SEND);
        EXPECT_EQ(slots.poll(8, wc, 7), 1);
        EXPECT_EQ(wc[0].wr_id, round * 10 + 3);
    }
    for (int i = 0; i < 4; i++) add(1, 1, false);
    EXPECT_TRUE(slots.full());
    for (std::uint32_t i = 0; i < 4; i++) slots.piece_done(i);
    EXPECT_EQ(slots.poll(8, wc, 7), 0);
    EXPECT_FALSE(slots.full()) << "unsignalled ones make room silently";
}

}  // namespace
}  // namespace vma::verbs::wire
