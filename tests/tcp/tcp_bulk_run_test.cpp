// SPDX-License-Identifier: BSD-2-Clause
// Which connections the kernel should have because they move so much: BulkRun, and who asks it.
#include <gtest/gtest.h>

#include <string>

#include "libvma/tcp/bulk_run.h"
#include "tcp_wiretap.h"

namespace vma::tcp::test {
namespace {

enum class Kernel { moves_nothing, sends, receives };

verbs::wire::WireConfig wire_config(Kernel kernel) {
    return {.max_recv_wr = 8192,
            .tx_checksum = verbs::wire::TxChecksum::complete,
            .lazy_tx = verbs::wire::LazyTx::fake_clock,
            .max_tso = 65495,
            .tso_copies = true,
            .super_frames = true,
            .kernel_moves_bulk = kernel == Kernel::sends,
            .kernel_receives_bulk = kernel == Kernel::receives};
}

TEST(BulkRun, IsLongAfterSixtyFourMegabytes) {
    BulkRun run;
    const Time start{kSecond};
    for (unsigned i = 0; i < 63; i++) ASSERT_FALSE(run.add(1 << 20, start + i * Msec(5)));
    EXPECT_TRUE(run.add(1 << 20, start + 64 * Msec(5)));
}

TEST(BulkRun, EndsWithAPauseOrASlowPeriod) {
    BulkRun paused, slow;
    const Time start{kSecond};
    for (unsigned i = 0; i < 200; i++) {
        // 20 MiB, and a pause; 8 KiB a millisecond.
        ASSERT_FALSE(paused.add(20 << 20, start + i * Msec(200)));
        ASSERT_FALSE(slow.add(8 << 10, start + i * Msec(1)));
    }
    // A run that began in a pause's end counts from there.
    for (unsigned i = 0; i < 63; i++) ASSERT_FALSE(slow.add(1 << 20, start + Msec(1000) + i * Msec(1)));
    EXPECT_TRUE(slow.add(1 << 20, start + Msec(1070)));
}

TEST(BulkRun, ThoseTogetherShareTheBytes) {
    BulkRun run, one_of_many;
    const Time start{kSecond};
    for (unsigned i = 0; i < 15; i++) ASSERT_FALSE(run.add(1 << 20, start + i * Msec(5), 4));
    EXPECT_TRUE(run.add(1 << 20, start + 16 * Msec(5), 4));
    for (unsigned i = 0; i < 7; i++) ASSERT_FALSE(one_of_many.add(1 << 20, start + i * Msec(5), 1000));
    EXPECT_TRUE(one_of_many.add(1 << 20, start + 8 * Msec(5), 1000));
}

struct Pair {
    explicit Pair(Kernel kernel = Kernel::sends) : w(1, wire_config(kernel)) { w.pair(c, s); }
    // Moves `megabytes` more in writes of `write` bytes; `pause` ns pass behind each megabyte.
    void move(unsigned megabytes, std::size_t write, std::uint64_t pause) {
        const std::string data(write, 'b');
        std::string sink(1 << 20, '\0');
        for (unsigned i = 0; i < megabytes; i++) {
            for (std::size_t sent = 0; sent < 1 << 20;) {
                const ssize_t n = send(c, data);
                if (n > 0) sent += static_cast<std::size_t>(n);
                w.poll();
                iovec to{sink.data(), sink.size()};
                while (s->receive(&to, 1, sink.size(), 0) > 0) {
                }
                w.poll();
            }
            w.pass(pause);
        }
    }

    World w;
    Connection *c = nullptr, *s = nullptr;
};

TEST(TcpBulkRun, ASenderOfLongWritesIsSeen) {
    Pair t;
    t.move(60, 131'072, 5 * kMs);
    EXPECT_FALSE(t.c->bulk_seen());
    t.move(8, 131'072, 5 * kMs);
    EXPECT_TRUE(t.c->bulk_seen());
    EXPECT_FALSE(t.s->bulk_seen()) << "with this device what is received does not count";
    t.c->keep_bulk();
    t.move(8, 131'072, 5 * kMs);
    EXPECT_FALSE(t.c->bulk_seen()) << "it cannot be moved, and is not asked again";
}

TEST(TcpBulkRun, OthersAreNot) {
    {
        Pair shorter;
        shorter.move(80, 16'384, kMs);
        EXPECT_FALSE(shorter.c->bulk_seen());
    }
    {
        Pair slow;
        slow.move(80, 131'072, 20 * kMs);
        EXPECT_FALSE(slow.c->bulk_seen());
    }
    Pair elsewhere(Kernel::moves_nothing);
    elsewhere.move(80, 131'072, kMs);
    EXPECT_FALSE(elsewhere.c->bulk_seen()) << "the device copies nothing more than the kernel";
    EXPECT_FALSE(elsewhere.s->bulk_seen());
}

TEST(TcpBulkRun, AReceiverOfLongFramesIsSeen) {
    Pair t(Kernel::receives);
    t.move(60, 131'072, 5 * kMs);
    EXPECT_FALSE(t.s->bulk_seen());
    t.move(16, 131'072, 5 * kMs);
    EXPECT_TRUE(t.s->bulk_seen());
    EXPECT_FALSE(t.c->bulk_seen()) << "with this device what is sent does not count";
}

// Those of a sender of short writes, which the library receives faster than the kernel.
TEST(TcpBulkRun, AReceiverOfShorterFramesIsNot) {
    Pair t(Kernel::receives);
    t.move(120, 16'384, kMs);
    EXPECT_FALSE(t.s->bulk_seen());
}

}  // namespace
}  // namespace vma::tcp::test
