// SPDX-License-Identifier: BSD-2-Clause
// Many threads on few connections, with the real clock: writers, readers, somebody who polls the rings,
// somebody who drives the timers, and somebody who asks and changes things. What is tested is that every byte
// arrives once; the thread sanitizer looks for the rest.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "libvma/runtime/lock.h"
#include "tests/tcp/tcp_wiretap.h"

namespace vma::tcp::test {
namespace {

// The wheel's time never goes back, so the real clock continues the wire's.
std::chrono::steady_clock::time_point g_start;
Time g_base;
Time real_clock() { return g_base + std::chrono::nanoseconds(std::chrono::steady_clock::now() - g_start); }

#if defined(__SANITIZE_THREAD__)
constexpr std::size_t kBytes = 300'000;
#else
constexpr std::size_t kBytes = 500'000;
#endif

// With each way of locking (VMA_THREAD_MODE). In mode `single` the thread that runs the test is the favoured
// one, and all the others come by the slow way.
class TcpThreads : public ::testing::TestWithParam<LockMode> {
  protected:
    void SetUp() override { Lock::set_mode(GetParam()); }
    void TearDown() override { Lock::set_mode(LockMode::spin); }
};
std::string mode_name(const ::testing::TestParamInfo<LockMode>& info) {
    constexpr const char* kNames[] = {"single", "spin", "mutex", "yield"};
    return kNames[static_cast<int>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(Modes, TcpThreads,
                         ::testing::Values(LockMode::single, LockMode::spin, LockMode::mutex,
                                           LockMode::yield),
                         mode_name);

TEST_P(TcpThreads, EveryByteOnce) {
    World w(9);
    w.options.receive_window = 128 << 10;
    constexpr std::size_t kConnections = 2, kWriters = 2;
    std::array<Connection*, kConnections> client{}, server{};
    for (std::size_t i = 0; i < kConnections; i++) ASSERT_NO_FATAL_FAILURE(w.pair(client[i], server[i]));
    verbs::wire::Faults faults;
    faults.loss = 0.005;
    faults.duplicate = 0.01;
    w.wire.set_faults(*w.a->device, faults);
    w.wire.set_faults(*w.b->device, faults);
    g_base = wire_clock();
    g_start = std::chrono::steady_clock::now();
    set_clock(&real_clock);

    // Count of each writer's bytes, by direction and connection.
    std::array<std::array<std::atomic<std::size_t>, 256>, 2 * kConnections> got{};
    std::atomic<bool> stop{false};
    std::atomic<unsigned> strange{0};
    std::vector<std::thread> helpers, writers, readers;
    helpers.emplace_back([&] {
        while (!stop) w.a->ring->poll(), w.b->ring->poll(), w.a->ring->flush(), w.b->ring->flush();
    });
    helpers.emplace_back([&] {
        while (!stop) {
            Background::instance().wheel().expire(Clock::now());
            std::this_thread::sleep_for(std::chrono::microseconds(500));
        }
    });
    helpers.emplace_back([&] {
        while (!stop) {
            for (auto* side : {&client, &server})
                for (Connection* c : *side) {
                    Info info;
                    c->info(info);
                    (void)c->counters();
                    (void)c->events();
                    (void)c->send_space();
                    c->change([](Options& o) { o.cork = !o.cork; });
                    c->quick_ack(true);
                }
            std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
    });
    for (std::size_t i = 0; i < 2 * kConnections; i++) {
        Connection* from = i < kConnections ? client[i] : server[i - kConnections];
        Connection* to = i < kConnections ? server[i] : client[i - kConnections];
        for (std::size_t n = 0; n < kWriters; n++) {
            writers.emplace_back([&, from, n] {
                std::string block(1 + 1000 * n + 37, static_cast<char>('a' + n));
                for (std::size_t sent = 0; sent < kBytes;) {
                    iovec iov{block.data(), std::min(block.size(), kBytes - sent)};
                    const ssize_t done = from->send(&iov, 1, iov.iov_len, 0);
                    if (done > 0) {
                        sent += static_cast<std::size_t>(done);
                    } else if (done == -EAGAIN) {
                        std::this_thread::yield();
                    } else {
                        strange++;
                        return;
                    }
                }
            });
            readers.emplace_back([&, to, i] {
                std::string block(8192, '\0');
                for (;;) {
                    iovec iov{block.data(), block.size()};
                    const ssize_t done = to->receive(&iov, 1, block.size(), 0);
                    if (done == 0) return;
                    if (done > 0) {
                        for (ssize_t k = 0; k < done; k++)
                            got[i][static_cast<std::uint8_t>(block[static_cast<std::size_t>(k)])]++;
                    } else if (done == -EAGAIN) {
                        w.a->ring->poll();
                        w.b->ring->poll();
                        std::this_thread::yield();
                    } else {
                        strange++;
                        return;
                    }
                }
            });
        }
    }
    for (auto& t : writers) t.join();
    for (auto* side : {&client, &server})
        for (Connection* c : *side) EXPECT_EQ(c->shutdown(SHUT_WR), 0);
    for (auto& t : readers) t.join();
    stop = true;
    for (auto& t : helpers) t.join();
    w.wire.advance((real_clock() - g_base).count());
    set_clock(&wire_clock);
    w.wire.set_faults(*w.a->device, {});
    w.wire.set_faults(*w.b->device, {});
    EXPECT_EQ(strange.load(), 0u);
    for (auto& direction : got)
        for (std::size_t b = 0; b < 256; b++) {
            EXPECT_EQ(direction[b].load(), b >= 'a' && b < 'a' + kWriters ? kBytes : 0) << b;
        }
}

// Connections come and go on all threads at once.
TEST_P(TcpThreads, OpenAndClose) {
    World w(11);
    w.options.linger2 = std::chrono::seconds(1);
    w.listen(64);
    g_base = wire_clock();
    g_start = std::chrono::steady_clock::now();
    set_clock(&real_clock);
    std::atomic<bool> stop{false};
    std::atomic<unsigned> echoed{0};
#if defined(__SANITIZE_THREAD__)
    constexpr unsigned kRounds = 60;
#else
    constexpr unsigned kRounds = 100;
#endif
    std::vector<std::thread> helpers, clients;
    helpers.emplace_back([&] {
        while (!stop) w.a->ring->poll(), w.b->ring->poll(), w.a->ring->flush(), w.b->ring->flush();
    });
    helpers.emplace_back([&] {
        while (!stop) {
            Background::instance().wheel().expire(Clock::now());
            std::this_thread::sleep_for(std::chrono::microseconds(500));
        }
    });
    for (int n = 0; n < 2; n++)
        helpers.emplace_back([&] {
            while (!stop) {
                Connection* s = w.listener->accept();
                if (s == nullptr) {
                    std::this_thread::yield();
                    continue;
                }
                std::string text;
                while (!stop && text.size() < 4) text += receive(s, 64);
                (void)send(s, text);
                s->close(false);
                s->unref();
            }
        });
    for (unsigned n = 0; n < 2; n++)
        clients.emplace_back([&, n] {
            for (unsigned i = 0; i < kRounds; i++) {
                const auto port = static_cast<in_port_t>(10'000 + 2 * i + n);
                Connection* c = Connection::create(
                    *w.a, {{w.a->address, htons(port)}, {w.b->address, htons(World::kPort)}}, w.options);
                if (c->connect() == 0) {
                    while (c->state() == State::syn_sent) std::this_thread::yield();
                    if (send(c, "echo") == 4) {
                        std::string back;
                        for (;;) {
                            char bytes[16];
                            iovec iov{bytes, sizeof bytes};
                            const ssize_t done = c->receive(&iov, 1, sizeof bytes, 0);
                            if (done > 0) back.append(bytes, static_cast<std::size_t>(done));
                            if (done == 0 || (done < 0 && done != -EAGAIN)) break;
                            if (done < 0) std::this_thread::yield();
                        }
                        echoed += back == "echo";
                    }
                }
                c->close(i % 3 == 0);
                c->unref();
            }
        });
    for (auto& t : clients) t.join();
    stop = true;
    for (auto& t : helpers) t.join();
    w.wire.advance((real_clock() - g_base).count());
    set_clock(&wire_clock);
    EXPECT_EQ(echoed.load(), 2 * kRounds);
}

}  // namespace
}  // namespace vma::tcp::test
