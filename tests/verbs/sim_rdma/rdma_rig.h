// SPDX-License-Identifier: BSD-2-Clause
// An RdmaDevice on a simulated adapter with what a ring would make of it: memory, queues, posted receives.
#pragma once

#include <gmock/gmock.h>
#include <sys/mman.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "libvma/verbs/rdma/rdma_device.h"
#include "tests/support/mlx5_sim/sim.h"
#include "tests/support/wire/udp_frames.h"

namespace rdma_rig {

using udp_frames::Bytes;
using vma::verbs::FlowSpec;
using vma::verbs::MacAddress;
using vma::verbs::rdma::RdmaConfig;
using vma::verbs::rdma::RdmaDevice;

inline constexpr char kA[] = "mlx5_0", kB[] = "mlx5_1";
inline constexpr MacAddress kMacA = {2, 0, 0, 0, 0, 1}, kMacB = {2, 0, 0, 0, 0, 2};
inline constexpr char kIpA[] = "198.18.0.1", kIpB[] = "198.18.0.2";

// Waits for the internal thread.
bool eventually(auto&& true_at_last) {
    for (int i = 0; i < 5000; i++) {
        if (true_at_last()) return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
}

// Without what a wire puts behind short frames.
inline Bytes without_padding(Bytes frame) {
    const std::size_t tag = udp_frames::get16(frame, 12) == 0x8100 ? 4 : 0;
    frame.resize(std::min(frame.size(), tag + 14 + udp_frames::get16(frame, tag + 16)));
    return frame;
}

// From A to B.
inline Bytes udp(const std::string& payload, std::uint16_t dst_port = 2000, std::uint16_t src_port = 1000) {
    return udp_frames::make({.src_mac = kMacA,
                             .dst_mac = kMacB,
                             .src = kIpA,
                             .dst = kIpB,
                             .src_port = src_port,
                             .dst_port = dst_port,
                             .payload = payload});
}
inline FlowSpec three_tuple(std::uint16_t port = 2000) {
    return {IPPROTO_UDP, inet_addr(kIpB), htons(port), 0, 0};
}
inline FlowSpec five_tuple(std::uint16_t port = 2000, std::uint16_t src_port = 1000) {
    return {IPPROTO_UDP, inet_addr(kIpB), htons(port), inet_addr(kIpA), htons(src_port)};
}

inline RdmaConfig config_of(const std::string& device, bool direct) {
    RdmaConfig config;
    config.port = {device, 1};
    config.netdev = device == kA ? "sim0" : "sim1";
    config.ifindex = device == kA ? 1 : 2;
    config.mac = device == kA ? kMacA : kMacB;
    config.rx_entries = config.tx_entries = 64;
    config.mlx5_direct = direct;
    config.direct.rx_prefetch = 256;
    return config;
}

class Rig {
  public:
    explicit Rig(const RdmaConfig& config, unsigned post = 32) {
        auto opened = RdmaDevice::open(config);
        if (!opened) throw std::runtime_error(opened.error().what);
        device = std::move(*opened);
        const auto& attr = device->attr();
        chunk = attr.chunk_size;
        length = 128 * std::size_t{chunk};
        memory = static_cast<std::uint8_t*>(
            mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        mr = device->reg_mr(memory, length).value();
        channel = device->create_comp_channel().value();
        recv_cq = device->create_cq(static_cast<int>(attr.max_recv_wr), channel).value();
        send_cq = device->create_cq(static_cast<int>(attr.max_send_wr), nullptr).value();
        ibv_qp_init_attr init{};
        init.recv_cq = recv_cq;
        init.send_cq = send_cq;
        init.qp_type = IBV_QPT_RAW_PACKET;
        init.cap = {attr.max_send_wr, attr.max_recv_wr, attr.max_send_sge, 1, 0};
        auto made = device->create_qp(init);
        if (!made) throw std::runtime_error(made.error().what);
        qp = *made;
        for (unsigned i = 0; i < post; i++) post_receive(i);
    }
    ~Rig() {
        for (auto* flow : flows) device->destroy_flow(flow);
        device.reset();
        if (memory != nullptr) munmap(memory, length);
    }

    std::uint8_t* buffer(unsigned index) { return memory + std::size_t{index} * chunk; }
    void post_receive(unsigned index) {
        ibv_sge sge{reinterpret_cast<std::uintptr_t>(buffer(index)), chunk, mr->lkey};
        ibv_recv_wr wr{}, *bad = nullptr;
        wr.wr_id = index;
        wr.sg_list = &sge;
        wr.num_sge = 1;
        EXPECT_EQ(ibv_post_recv(qp, &wr, &bad), 0);
    }
    vma::verbs::Flow* rule(const FlowSpec& spec, std::uint32_t tag = 0) {
        auto made = device->create_flow(qp, spec, tag);
        EXPECT_TRUE(made) << (made ? "" : made.error().what);
        if (!made) return nullptr;
        flows.push_back(*made);
        return *made;
    }
    void drop(vma::verbs::Flow* flow) {
        std::erase(flows, flow);
        device->destroy_flow(flow);
    }
    // Posts a frame from one of the buffers for sending, which follow those for receiving.
    int post(const Bytes& frame, unsigned flags = IBV_SEND_SIGNALED) {
        std::uint8_t* at = buffer(64 + next_send % 64) + device->attr().tx_headroom;
        std::memcpy(at, frame.data(), frame.size());
        ibv_sge sge{reinterpret_cast<std::uintptr_t>(at), static_cast<std::uint32_t>(frame.size()), mr->lkey};
        ibv_send_wr wr{}, *bad = nullptr;
        wr.wr_id = ++next_send;
        wr.sg_list = &sge;
        wr.num_sge = 1;
        wr.opcode = IBV_WR_SEND;
        wr.send_flags = flags;
        const int error = ibv_post_send(qp, &wr, &bad);
        if (flags & IBV_SEND_INLINE) std::memset(at, 0xee, frame.size());  // it was copied
        return error;
    }
    void send(const Bytes& frame, unsigned flags = IBV_SEND_SIGNALED) {
        ASSERT_EQ(post(frame, flags), 0);
        ASSERT_TRUE(mlx5_sim::settle());
    }
    std::vector<ibv_wc> poll(ibv_cq* cq) {
        std::vector<ibv_wc> all;
        ibv_wc wc[16];
        for (int n; (n = ibv_poll_cq(cq, 16, wc)) > 0;) all.insert(all.end(), wc, wc + n);
        return all;
    }
    // Frames that have arrived. Their buffers are posted again.
    std::vector<Bytes> receive() {
        std::vector<Bytes> frames;
        for (const ibv_wc& wc : poll(recv_cq)) {
            last = wc;
            if (wc.status == IBV_WC_SUCCESS) {
                const std::uint8_t* at = buffer(static_cast<unsigned>(wc.wr_id)) + device->attr().rx_offset;
                frames.push_back(without_padding({at, at + wc.byte_len}));
                post_receive(static_cast<unsigned>(wc.wr_id));
            }
        }
        return frames;
    }

    std::unique_ptr<RdmaDevice> device;
    std::uint8_t* memory = nullptr;
    std::size_t length = 0;
    std::uint32_t chunk = 0;
    ibv_mr* mr = nullptr;
    ibv_comp_channel* channel = nullptr;
    ibv_cq *recv_cq = nullptr, *send_cq = nullptr;
    ibv_qp* qp = nullptr;
    std::vector<vma::verbs::Flow*> flows;
    std::uint64_t next_send = 0;
    ibv_wc last{};
};

// By plain verbs (false) and with direct queues (true); A and B joined by a cable.
class RdmaPaths : public testing::TestWithParam<bool> {
  protected:
    void SetUp() override { mlx5_sim::join(kA, kB); }
    void TearDown() override {
        for (const char* device : {kA, kB}) {
            EXPECT_THAT(mlx5_sim::nic(device).take_violations(), testing::IsEmpty()) << device;
            mlx5_sim::nic(device).set_faults({});
            mlx5_sim::set_clock(device, {});
        }
        EXPECT_EQ(mlx5_sim::open_contexts(), 0u);
    }
    RdmaConfig config(const char* device) const { return config_of(device, GetParam()); }
};

inline std::string path_name(const testing::TestParamInfo<bool>& info) {
    return info.param ? "Direct" : "Plain";
}

}  // namespace rdma_rig
