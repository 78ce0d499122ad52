// SPDX-License-Identifier: BSD-2-Clause
// What tests/bench/instructions counts: frames sent and received over the simulated adapter, by libmlx5 or by
// our own data path, in the pattern in which a ring does it. Counted are the measured_ functions below and
// what they call; the adapter, which runs in the same process, is stepped between them.
//
//   mlx5_instructions direct|plain send|copy|receive|ring-send|ring-receive BYTES PACKETS
// prints the number of packets that were counted. The first three are calls of verbs; ring-send is
// Ring::send_udp(), ring-receive Ring::poll() with delivery to a sink, over the rdma device.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "libvma/net/frame.h"
#include "libvma/ring/ring.h"
#include "libvma/verbs/rdma/rdma_device.h"
#include "tests/support/mlx5_sim/sim.h"
#include "tests/support/mlx5_sim/sysfs.h"
#include "tests/verbs/sim_mlx5/direct_rig.h"

namespace {

using mlx5_sim::test::Side;

constexpr unsigned kSignalEvery = 32;  // a ring asks for a completion once in so many sends
constexpr unsigned kPollBatch = 16;    // VMA_CQ_POLL_BATCH_MAX
constexpr unsigned kPostBatch = 64;    // VMA_RX_WRE_BATCHING

[[noreturn]] void die(const char* what) {
    std::fprintf(stderr, "mlx5_instructions: %s\n", what);
    std::exit(1);
}

}  // namespace

// Names for --toggle-collect.
extern "C" {
[[gnu::noinline]] int measured_send(ibv_qp* qp, ibv_send_wr* wr) {
    int error = 0;
    ibv_send_wr* bad;
    for (unsigned i = 0; i < kSignalEvery; i++) error |= ibv_post_send(qp, wr + i, &bad);
    return error;
}
[[gnu::noinline]] int measured_reap(ibv_cq* cq, ibv_wc* wc) { return ibv_poll_cq(cq, kPollBatch, wc); }
// Until nothing is left, as Ring::poll() does.
[[gnu::noinline]] int measured_receive(ibv_cq* cq, ibv_wc* wc) {
    int n = 0, taken;
    do {
        taken = ibv_poll_cq(cq, kPollBatch, wc);
        n += taken;
    } while (taken == kPollBatch);
    return n;
}
[[gnu::noinline]] int measured_post(ibv_qp* qp, ibv_recv_wr* wr) {
    ibv_recv_wr* bad;
    return ibv_post_recv(qp, wr, &bad);
}
[[gnu::noinline]] int measured_ring_send(vma::ring::Ring* ring, const std::uint8_t* headers,
                                         const iovec* iov) {
    int error = 0;
    for (unsigned i = 0; i < kSignalEvery; i++) error |= ring->send_udp(headers, iov, 1, iov->iov_len);
    return error;
}
[[gnu::noinline]] unsigned measured_ring_poll(vma::ring::Ring* ring) { return ring->poll(); }
}

namespace {

unsigned long send(Side& side, bool copy, std::uint32_t bytes, unsigned long packets) {
    ibv_sge sge[kSignalEvery];
    ibv_send_wr wr[kSignalEvery] = {};
    for (unsigned i = 0; i < kSignalEvery; i++) {
        sge[i] = side.sge(i, 0, bytes);
        wr[i].wr_id = i;
        wr[i].sg_list = &sge[i];
        wr[i].num_sge = 1;
        wr[i].opcode = IBV_WR_SEND;
        wr[i].send_flags = copy ? IBV_SEND_INLINE : IBV_SEND_IP_CSUM;
    }
    wr[kSignalEvery - 1].send_flags |= IBV_SEND_SIGNALED;
    ibv_wc wc[kPollBatch];
    unsigned long counted = 0;
    for (; counted < packets; counted += kSignalEvery) {
        if (measured_send(side.qp, wr) != 0) die("a send was refused");
        mlx5_sim::settle();
        if (measured_reap(side.send_cq, wc) != 1 || wc[0].status != IBV_WC_SUCCESS)
            die("no completion of a send");
    }
    return counted;
}

unsigned long receive(Side& side, std::uint32_t bytes, unsigned long packets) {
    ibv_sge sge[kPostBatch];
    ibv_recv_wr wr[kPostBatch];
    for (unsigned i = 0; i < kPostBatch; i++) {
        sge[i] = side.sge(i, 0, Side::kSlot);
        wr[i] = {i, i + 1 < kPostBatch ? &wr[i + 1] : nullptr, &sge[i], 1};
    }
    std::vector<std::uint8_t> frame(side.slot(0), side.slot(0) + bytes);
    side.take_all();
    ibv_wc wc[kPollBatch];
    unsigned long counted = 0;
    for (; counted < packets; counted += kPostBatch) {
        if (measured_post(side.qp, wr) != 0) die("a receive was refused");
        for (unsigned i = 0; i < kPostBatch; i++)
            if (!mlx5_sim::nic("mlx5_0").receive(frame)) die("a frame was not steered");
        mlx5_sim::settle();
        if (measured_receive(side.recv_cq, wc) != kPostBatch || wc[0].byte_len != bytes)
            die("frames are missing");
    }
    return counted;
}

// A UDP frame of that length, from 198.18.0.2 to 198.18.0.1, port 7.
void write_frame(std::uint8_t* frame, std::uint32_t bytes) {
    const std::uint8_t head[] = {2, 0,  0,  0, 0, 1,   2,  0, 0, 0,   0,  2, 8, 0,    0x45, 0, 0, 0, 0, 0, 0,
                                 0, 64, 17, 0, 0, 198, 18, 0, 2, 198, 18, 0, 1, 0x30, 0x39, 0, 7, 0, 0, 0, 0};
    std::memset(frame, 0, bytes);
    std::memcpy(frame, head, sizeof head);
    frame[16] = static_cast<std::uint8_t>((bytes - 14) >> 8);
    frame[17] = static_cast<std::uint8_t>(bytes - 14);
    frame[38] = static_cast<std::uint8_t>((bytes - 34) >> 8);
    frame[39] = static_cast<std::uint8_t>(bytes - 34);
    std::uint32_t sum = 0;
    for (int i = 14; i < 34; i += 2) sum += static_cast<std::uint32_t>(frame[i] << 8 | frame[i + 1]);
    sum = ~(sum + (sum >> 16));
    frame[24] = static_cast<std::uint8_t>(sum >> 8);
    frame[25] = static_cast<std::uint8_t>(sum);
}

struct Sink final : vma::ring::FrameSink {
    bool deliver(vma::ring::RxBuffer* buffer) noexcept override {
        frames++;
        buffer->release();
        return true;
    }
    unsigned long frames = 0;
};

unsigned long over_ring(bool direct, bool sends, std::uint32_t bytes, unsigned long packets) {
    vma::verbs::rdma::RdmaConfig config;
    config.port = {"mlx5_0", 1};
    config.netdev = "sim0";
    config.ifindex = 1;
    config.mac = {2, 0, 0, 0, 0, 1};
    config.rx_entries = config.tx_entries = 256;
    config.mlx5_direct = direct;
    config.direct.rx_prefetch = 256;
    auto device = vma::verbs::rdma::RdmaDevice::open(config);
    if (!device) die(device.error().what.c_str());
    auto ring = vma::ring::Ring::create(std::move(*device), {.huge_pages = false});
    if (!ring) die(ring.error().what.c_str());
    mlx5_sim::nic("mlx5_0").on_transmit([](mlx5_sim::Frame) {});
    std::vector<std::uint8_t> frame(bytes);
    write_frame(frame.data(), bytes);
    Sink sink;
    in_addr_t address;
    std::memcpy(&address, &frame[30], sizeof address);
    const vma::verbs::FlowSpec flow{IPPROTO_UDP, address, htons(7), 0, 0};
    if (!(*ring)->attach(flow, &sink, vma::ring::Share::latest)) die("no rule for the ring");
    unsigned long counted = 0;
    for (; counted < packets; counted += sends ? kSignalEvery : kPostBatch) {
        if (sends) {
            const iovec payload{frame.data() + vma::net::kUdpHeaders, bytes - vma::net::kUdpHeaders};
            if (measured_ring_send(ring->get(), frame.data(), &payload) != 0) die("a send was refused");
        } else {
            for (unsigned i = 0; i < kPostBatch; i++)
                if (!mlx5_sim::nic("mlx5_0").receive(frame)) die("a frame was not steered");
            mlx5_sim::settle();
            if (measured_ring_poll(ring->get()) != kPostBatch) die("frames are missing");
        }
        mlx5_sim::settle();
    }
    if (!sends && sink.frames != counted) die("frames were not delivered");
    (*ring)->detach(flow, &sink);
    return counted;
}

// Below a ring.
unsigned long over_verbs(bool direct, const std::string& what, std::uint32_t bytes, unsigned long packets) {
    mlx5_sim::test::SideOptions options;
    options.direct = direct;
    options.sends = options.receives = 256;
    options.config = {.rx_checksum = true, .flow_tags = true, .rx_prefetch = 256};
    Side side("mlx5_0", options);
    mlx5_sim::nic("mlx5_0").on_transmit([](mlx5_sim::Frame) {});
    for (unsigned i = 0; i < kPostBatch; i++) write_frame(side.slot(i), bytes);
    if (what == "receive") return receive(side, bytes, packets);
    if (what == "send" || what == "copy") return send(side, what == "copy", bytes, packets);
    die("bad arguments");
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 5)
        die("usage: mlx5_instructions direct|plain send|copy|receive|ring-send|ring-receive BYTES PACKETS");
    const std::string path = argv[1], what = argv[2];
    const auto bytes = static_cast<std::uint32_t>(std::strtoul(argv[3], nullptr, 10));
    const unsigned long packets = std::strtoul(argv[4], nullptr, 10);
    if ((path != "direct" && path != "plain") || bytes < 60 || bytes > 1514 || packets == 0)
        die("bad arguments");

    static char directory[] = "/tmp/mlx5_instructions_XXXXXX";
    if (mkdtemp(directory) == nullptr) die("no temporary directory");
    std::atexit([] { std::filesystem::remove_all(directory); });  // die() ends that way, too
    const mlx5_sim::SysfsDevice devices[] = {{"sim0", {2, 0, 0, 0, 0, 1}}};
    if (!mlx5_sim::write_sysfs(directory, devices)) die("cannot write the sysfs tree");
    setenv("SYSFS_PATH", directory, 1);
    const bool ring = what.starts_with("ring-"), direct = path == "direct";
    if (ring && what != "ring-send" && what != "ring-receive") die("bad arguments");
    const unsigned long counted = ring ? over_ring(direct, what == "ring-send", bytes, packets)
                                       : over_verbs(direct, what, bytes, packets);
    for (const std::string& violation : mlx5_sim::nic("mlx5_0").take_violations()) die(violation.c_str());
    std::printf("%lu\n", counted);
    return 0;
}
