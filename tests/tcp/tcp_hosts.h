// SPDX-License-Identifier: BSD-2-Clause
// Two hosts with TCP on the test wire, a fake clock, and nobody else: what happens depends on the seed alone.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "libvma/ring/ring.h"
#include "libvma/ring/tx_flusher.h"
#include "libvma/runtime/clock.h"
#include "libvma/tcp/connection.h"
#include "libvma/tcp/handshake/isn.h"
#include "libvma/tcp/handshake/listener.h"
#include "libvma/tcp/lwip/glue.h"
#include "libvma/tcp/timers/background.h"
#include "libvma/tcp/timers/time.h"
#include "tests/support/wire/wire.h"
#include "tests/support/wire/wire_device.h"

namespace vma::tcp::test {

inline constexpr std::uint64_t kUs = 1'000, kMs = 1'000 * kUs, kSec = 1'000 * kMs;  // in nanoseconds
inline constexpr std::uint16_t kMine = 1000, kTheirs = 2000;                        // ports

// The clock of all hosts of a test. Starts late enough that no deadline is 0, and goes on from one World to
// the next: the process has one timer wheel, for which time never goes back.
inline verbs::wire::Wire* g_wire = nullptr;
inline Time g_epoch{kSecond};
inline Time wire_clock() { return g_epoch + Nsec(g_wire != nullptr ? g_wire->now() : 0); }

class Host final : public PathSource {
  public:
    Host(verbs::wire::Wire& wire, const char* address, verbs::wire::WireConfig config = {},
         clock::Usec idle = {})
        : address(inet_addr(address)) {
        auto made = wire.connect(config);
        device = made.get();
        auto created = ring::Ring::create(std::move(made), {.idle = idle, .huge_pages = false});
        if (!created) throw std::runtime_error(created.error().what);
        ring = std::move(*created);
        // The flusher thread goes by the machine's clock.
        if (config.lazy_tx == verbs::wire::LazyTx::fake_clock) ring::TxFlusher::instance().remove(ring.get());
        mtu = config.mtu;
    }
    int find(const net::Endpoints&, const net::PathOptions&, Path& out) noexcept override {
        finds++;
        out.ring = ring.get();
        out.src_mac = device->attr().mac;
        out.dst_mac = peer->device->attr().mac;
        out.mtu = mtu;
        out.ecn = ecn;
        out.generation = generation_;
        return -error;
    }
    std::uint32_t generation() const noexcept override { return generation_; }
    void changed() { generation_++; }

    const in_addr_t address;
    verbs::wire::WireDevice* device;
    std::unique_ptr<ring::Ring> ring;
    Host* peer = nullptr;
    std::uint32_t mtu = 1500;
    bool ecn = false;  // the route's feature
    int error = 0;
    std::atomic<unsigned> finds{0};  // look-ups of a path

  private:
    std::uint32_t generation_ = 1;
};

// Hosts a (client) and b (server), and the time.
class World {
  public:
    static constexpr in_port_t kPort = 80;

    // `idle`: of the rings (RingConfig::idle), in the machine's time. 0: an ACK that can wait leaves when a
    // poll finds nothing.
    explicit World(std::uint64_t seed = 1, verbs::wire::WireConfig config = {}, clock::Usec idle = {})
        : wire(seed) {
        g_wire = &wire;
        set_clock(&wire_clock);
        set_sources(&sequence, &offset);
        lwip::abort_on_assertion(true);
        Background::instance().drive_by_hand();
        a = std::make_unique<Host>(wire, "198.18.0.1", config, idle);
        b = std::make_unique<Host>(wire, "198.18.0.2", config, idle);
        a->peer = b.get();
        b->peer = a.get();
        options.receive_window = 1 << 20;
        options.nodelay = true;
    }
    ~World() {
        close_all();
        // Whatever is still open ends by its timers.
        for (int i = 0; i < 400 && Connection::count() != 0; i++) pass(1'000'000'000);
        EXPECT_EQ(Connection::count(), 0u);
        EXPECT_EQ(a->device->violations(), 0u);
        EXPECT_EQ(b->device->violations(), 0u);
        a.reset();
        b.reset();
        set_clock(nullptr);
        set_sources(nullptr, nullptr);
        g_epoch += Nsec(wire.now()) + kSecond;
        g_wire = nullptr;
    }

    void listen(unsigned backlog = 16) {
        listener = Listener::create(*b, htons(kPort), options, backlog);
        ASSERT_TRUE(
            b->ring->attach({IPPROTO_TCP, b->address, htons(kPort), 0, 0}, listener, ring::Share::latest));
    }
    Connection* connect(in_port_t port = 1000) {
        Connection* c =
            Connection::create(*a, {{a->address, htons(port)}, {b->address, htons(kPort)}}, options);
        EXPECT_EQ(c->connect(), 0);
        opened.push_back(c);
        return c;
    }
    Connection* accept() {
        Connection* c = listener->accept();
        if (c != nullptr) opened.push_back(c);
        return c;
    }
    // Both rings, until there is nothing at this moment. Returns frames handled.
    unsigned poll() {
        unsigned all = 0;
        for (int idle = 0; idle < 2;) {
            const unsigned n = a->ring->poll() + b->ring->poll();
            a->ring->flush();
            b->ring->flush();
            idle = n == 0 ? idle + 1 : 0;
            all += n;
        }
        return all;
    }
    // What is due now: frames and timers. Returns how many there were.
    std::size_t settle() {
        std::size_t all = 0, n;
        do {
            n = poll() + Background::instance().wheel().expire(wire_clock());
            all += n;
        } while (n != 0);
        return all;
    }
    // Time goes on to when something happens by itself, at most to `end`.
    void go_on(std::uint64_t end) {
        std::uint64_t next = end;
        const Time timer = Background::instance().wheel().next_deadline();
        if (timer != TimerWheel::kNever)
            next = std::min(next, timer > g_epoch ? (timer - g_epoch).count() : 0);
        if (auto due = wire.next_due()) next = std::min(next, *due);
        if (next > wire.now()) wire.advance(next - wire.now());
    }
    // Time passes: frames arrive and timers fire at their moments.
    void pass(std::uint64_t ns) {
        const std::uint64_t end = wire.now() + ns;
        settle();
        while (wire.now() < end) {
            go_on(end);
            settle();
        }
    }
    // Passes time until `done()` or for `limit` ns. Returns done(), which is asked whenever something has
    // happened.
    template <class F>
    bool until(F&& done, std::uint64_t limit = 300'000'000'000) {
        const std::uint64_t end = wire.now() + limit;
        while (!done()) {
            if (settle() != 0) continue;
            if (wire.now() >= end) return false;
            go_on(end);
        }
        return true;
    }
    void pair(Connection*& client, Connection*& server) {
        if (listener == nullptr) listen();
        client = connect(next_port++);
        server = nullptr;
        ASSERT_TRUE(until([&] { return (server = accept()) != nullptr; }));
        ASSERT_TRUE(until([&] { return client->state() == State::established; }));
    }
    void close(Connection* c, bool reset = false) {
        std::erase(opened, c);
        c->close(reset);
        c->unref();
    }
    void close_all() {
        while (!opened.empty()) close(opened.back(), true);
        if (listener != nullptr) {
            b->ring->detach({IPPROTO_TCP, b->address, htons(kPort), 0, 0}, listener);
            listener->close();
            listener->unref();
            listener = nullptr;
        }
    }

    // Initial sequence numbers and timestamps of all: what they begin with.
    static std::uint32_t sequence(const net::Endpoints& ends, Time now) {
        return first_sequence + (ntohs(ends.local.port) == kPort ? 0x40000000u : 0) +
               static_cast<std::uint32_t>(now.time_since_epoch() / Nsec(4000));
    }
    static std::uint32_t offset(const net::Endpoints&) { return first_timestamp; }
    static inline std::uint32_t first_sequence = 1000, first_timestamp = 0;

    verbs::wire::Wire wire;
    std::unique_ptr<Host> a, b;
    Options options;
    Listener* listener = nullptr;
    std::vector<Connection*> opened;
    in_port_t next_port = 1000;
};

inline ssize_t send(Connection* c, const std::string& text, unsigned flags = 0) {
    iovec iov{const_cast<char*>(text.data()), text.size()};
    return c->send(&iov, 1, text.size(), flags);
}
inline std::string receive(Connection* c, std::size_t most = 1 << 20) {
    std::string text(most, '\0');
    iovec iov{text.data(), most};
    const ssize_t n = c->receive(&iov, 1, most, 0);
    text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    return text;
}
inline ssize_t receive_result(Connection* c) {
    char byte;
    iovec iov{&byte, 1};
    return c->receive(&iov, 1, 1, 0);
}

}  // namespace vma::tcp::test
