// SPDX-License-Identifier: BSD-2-Clause
// One host with TCP, made once for all inputs, a wire to an attacker that is no TCP at all, and a fake clock.
//
// What a ring needs (memory, descriptors, buffers) takes a thousand times longer to make than a segment takes
// to handle, so inputs share it. After each input everything must be as before: no connection, no memory in
// use, all buffers back. That is checked, so an input cannot leave something to the next one, and a leak is a
// finding.
#pragma once

#include <optional>
#include <vector>

#include "libvma/ring/ring.h"
#include "libvma/tcp/connection.h"
#include "libvma/tcp/handshake/isn.h"
#include "libvma/tcp/handshake/listener.h"
#include "libvma/tcp/lwip/glue.h"
#include "libvma/tcp/lwip/memory.h"
#include "libvma/tcp/migrate/handover.h"
#include "libvma/tcp/timers/background.h"
#include "libvma/tcp/timers/time.h"
#include "tests/fuzz/input.h"
#include "tests/support/attacker/model.h"
#include "tests/support/wire/wire.h"
#include "tests/support/wire/wire_device.h"

namespace fuzz {

using namespace attacker;
using vma::net::Endpoints;
using vma::tcp::Background;
using vma::tcp::Connection;
using vma::tcp::KernelState;
using vma::tcp::Listener;
using vma::tcp::State;

inline constexpr std::uint64_t kMs = 1'000'000, kSecond = 1'000 * kMs;
inline constexpr std::uint32_t kMtu = 1500;

// Said when the fuzzer ends.
struct Count {
    std::uint64_t segments = 0;
    ~Count() {
        fprintf(stderr, "stat::segments_of_the_attacker: %llu\n", static_cast<unsigned long long>(segments));
    }
};
inline Count count;

class Host final : public vma::tcp::PathSource {
  public:
    static Host& instance() {
        static Host host;
        return host;
    }

    int find(const Endpoints&, const vma::net::PathOptions&, vma::tcp::Path& out) noexcept override {
        out.ring = ring_.get();
        out.src_mac = device_->attr().mac;
        out.dst_mac = attacker_->attr().mac;
        out.mtu = mtu;
        out.generation = generation_;
        return -error;
    }
    std::uint32_t generation() const noexcept override { return generation_; }
    void changed() { generation_++; }

    vma::tcp::Time now() const { return kEpoch + vma::tcp::Nsec(wire_.now()); }
    vma::ring::Ring& ring() { return *ring_; }

    // A frame of the attacker's. It is looked at with the next poll().
    void put(const Segment& s) {
        count.segments++;
        attacker_->kernel_send(build(s, attacker_->attr().mac, device_->attr().mac));
    }
    void poll() {
        for (int idle = 0; idle < 2;) {
            idle = ring_->poll() == 0 ? idle + 1 : 0;
            ring_->flush();
        }
    }
    // What the host has sent since the last call.
    std::vector<Frame> sent() { return attacker_->take_kernel_frames(); }
    void refuse_sends(bool on) { device_->refuse_sends(on); }

    void pass(std::uint64_t ns) {
        const std::uint64_t end = wire_.now() + ns;
        for (;;) {
            poll();
            if (Background::instance().wheel().expire(now()) != 0) continue;
            if (wire_.now() >= end) return;
            std::uint64_t next = end;
            const vma::tcp::Time timer = Background::instance().wheel().next_deadline();
            if (timer != vma::tcp::TimerWheel::kNever)
                next = std::min(next, timer > kEpoch ? (timer - kEpoch).count() : 0);
            if (next > wire_.now()) wire_.advance(next - wire_.now());
        }
    }

    void begin() {
        started_ = now();
        error = 0;
        mtu = kMtu;
        if (used_ == 0) (void)memory();
        used_ = memory();
    }
    // Everything was closed. Lets time pass until all of it has ended, and checks that nothing is left.
    void end() {
        refuse_sends(false);
        error = 0;
        changed();
        for (int i = 0; i < 400 && Connection::count() != 0; i++) pass(2 * kSecond);
        FUZZ_CHECK(Connection::count() == 0);
        poll();
        (void)sent();
        FUZZ_CHECK(device_->violations() == 0);
        FUZZ_CHECK(device_->tx_invalid() == 0);
        FUZZ_CHECK(device_->rules() == 0);
        FUZZ_CHECK(memory() <= used_);
        const vma::ring::BufferCounts buffers = ring_->buffer_counts();
        FUZZ_CHECK(buffers.rx_posted + buffers.rx_free == buffers.rx_total);
        FUZZ_CHECK(buffers.tx_total - buffers.tx_free < 33);  // one completion for up to 32 requests
    }
    static std::size_t memory() {
        vma::tcp::lwip::flush_thread_cache();
        return vma::tcp::lwip::memory_use().used;
    }

    const in_addr_t address = inet_addr("198.18.0.1"), attackers = inet_addr("198.18.0.2");
    int error = 0;
    std::uint32_t mtu = kMtu;

  private:
    static constexpr vma::tcp::Time kEpoch{vma::tcp::kSecond};

    static vma::verbs::wire::WireConfig small() {
        vma::verbs::wire::WireConfig config;
        config.max_send_wr = 64;
        config.max_recv_wr = 256;
        return config;
    }
    Host() {
        // Before anything looks at the clock.
        self_ = this;
        vma::tcp::set_clock([] { return self_->now(); });
        // The same numbers for each input, whatever the clock says by then.
        vma::tcp::set_sources(
            [](const Endpoints& ends, vma::tcp::Time) { return 0xffffe000u + ends.remote.port; },
            [](const Endpoints&) { return 5000u - vma::tcp::milliseconds(self_->started_); });
        vma::tcp::lwip::abort_on_assertion(true);
        Background::instance().drive_by_hand();
        auto device = wire_.connect(small());
        device_ = device.get();
        attacker_ = wire_.connect({});
        auto ring = vma::ring::Ring::create(std::move(device), {.idle = {}, .huge_pages = false});
        FUZZ_CHECK(ring.has_value());
        ring_ = std::move(*ring);
    }

    static inline Host* self_ = nullptr;
    vma::verbs::wire::Wire wire_;
    vma::verbs::wire::WireDevice* device_ = nullptr;
    std::unique_ptr<vma::verbs::wire::WireDevice> attacker_;
    std::unique_ptr<vma::ring::Ring> ring_;
    std::uint32_t generation_ = 1;
    vma::tcp::Time started_;
    std::size_t used_ = 0;
};

}  // namespace fuzz
