// SPDX-License-Identifier: BSD-2-Clause
// Two hosts for tests of the ring: each a ring on a device of the test wire, and sinks in place of sockets.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "libvma/ring/ring.h"
#include "tests/support/wire/udp_frames.h"
#include "tests/support/wire/wire_device.h"

namespace vma::ring::ring_hosts {

using namespace udp_frames;
using net::Drop;
using verbs::FlowSpec;
using verbs::wire::Frame;
using verbs::wire::LazyTx;
using verbs::wire::TxChecksum;
using verbs::wire::Wire;
using verbs::wire::WireConfig;
using verbs::wire::WireDevice;

// A socket's stand-in: reads at once and releases, or holds, or refuses.
class Sink final : public FrameSink {
  public:
    enum Mode { read, hold, refuse };
    explicit Sink(Mode mode = read) : mode(mode) {}
    ~Sink() override { release_all(); }

    bool deliver(RxBuffer* buffer) noexcept override {
        if (mode == refuse) return false;
        payloads.push_back(read_payload(*buffer));
        peers.insert({buffer->src_addr, ntohs(buffer->src_port)});
        last = *buffer;
        if (mode == hold)
            held.push_back(buffer);
        else
            buffer->release();
        return true;
    }
    static std::string read_payload(const RxBuffer& buffer) {
        std::string text(buffer.payload_length, '\0');
        iovec iov{text.data(), text.size()};
        EXPECT_EQ(buffer.copy_to(&iov, 1), text.size());
        return text;
    }
    void release_all() {
        for (RxBuffer* b : held) b->release();
        held.clear();
    }

    Mode mode;
    std::vector<std::string> payloads;
    std::set<std::pair<in_addr_t, int>> peers;
    std::vector<RxBuffer*> held;
    RxBuffer last;
};

struct Host {
    Host(Wire& wire, const char* address, WireConfig config = {},
         RingConfig ring_config = {.huge_pages = false})
        : address(address) {
        auto made = wire.connect(config);
        device = made.get();
        auto created = Ring::create(std::move(made), ring_config);
        if (!created) throw std::runtime_error(created.error().what);
        ring = std::move(*created);
    }
    ~Host() { close(); }
    void close() {
        if (ring == nullptr) return;
        EXPECT_EQ(device->violations(), 0u);
        ring.reset();
    }

    FlowSpec flow(std::uint16_t port, const char* peer = nullptr, std::uint16_t peer_port = 0) const {
        return {IPPROTO_UDP, inet_addr(address), htons(port), peer ? inet_addr(peer) : 0, htons(peer_port)};
    }
    void attach(std::uint16_t port, FrameSink& sink, Share share = Share::latest) {
        EXPECT_TRUE(ring->attach(flow(port), &sink, share));
    }
    // Takes everything that waits.
    void poll() {
        for (int idle = 0; idle < 2;) idle = ring->poll() == 0 ? idle + 1 : 0;
    }
    std::array<std::uint8_t, net::kUdpHeaders> headers(const Host& to, std::uint16_t src_port,
                                                       std::uint16_t dst_port) const {
        std::array<std::uint8_t, net::kUdpHeaders> out;
        net::build_udp_headers({.src_mac = device->attr().mac,
                                .dst_mac = to.device->attr().mac,
                                .src_addr = inet_addr(address),
                                .dst_addr = inet_addr(to.address),
                                .src_port = htons(src_port),
                                .dst_port = htons(dst_port),
                                .tos = 0x10,
                                .ttl = 33},
                               0, out.data());
        return out;
    }
    int send(const Host& to, std::uint16_t dst_port, const std::string& payload,
             std::uint16_t src_port = 1000) {
        iovec iov{const_cast<char*>(payload.data()), payload.size()};
        return ring->send_udp(headers(to, src_port, dst_port).data(), &iov, 1, payload.size());
    }
    std::uint64_t bad(Drop drop) { return ring->counters().rx_bad[static_cast<std::size_t>(drop)]; }
    // Every buffer is posted, free, or held by somebody we know of; and all send buffers came back, but for
    // the last ones whose completion was not asked for.
    void expect_no_leak(std::size_t held = 0) {
        const BufferCounts c = ring->buffer_counts();
        EXPECT_EQ(c.rx_posted + c.rx_free + held, c.rx_total);
        EXPECT_EQ(c.rx_posted, device->receives_posted() + device->receives_filled());
        EXPECT_GE(c.tx_free + 15 + 16, c.tx_total);
    }

    const char* address;
    WireDevice* device;
    std::unique_ptr<Ring> ring;
};

inline constexpr const char *kA = "198.18.0.1", *kB = "198.18.0.2";

}  // namespace vma::ring::ring_hosts
