// SPDX-License-Identifier: BSD-2-Clause
// Send buffers that the program fills: the frames on the wire are those of send_udp(), and what it keeps is
// bounded and never lost.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "libvma/api/packet_table.h"
#include "libvma/ring/packet_regions.h"
#include "ring_hosts.h"

namespace vma::ring {
namespace {

using namespace ring_hosts;

int send_lent(Host& from, const Host& to, SendBuffer& buffer, const std::string& payload) {
    std::memcpy(buffer.payload(), payload.data(), payload.size());
    return from.ring->send_lent_udp(from.headers(to, 1000, 2000).data(), buffer, payload.size());
}
SendBuffer& lend(Host& host) {
    SendBuffer* one = nullptr;
    if (host.ring->lend_send_buffers(&one, 1) != 0) throw std::runtime_error("no send buffer");
    return *one;
}

void compare_frames(const WireConfig& config) {
    Wire wire(7);
    Host a(wire, kA, config), b(wire, kB, config);
    std::vector<Frame> frames;
    wire.set_hook([&](const WireDevice&, std::vector<Frame>& sent) {
        frames.insert(frames.end(), sent.begin(), sent.end());
    });
    unsigned seed = 0;
    for (const std::size_t length : {0u, 1u, 2u, 100u, 255u, 256u, 257u, 1471u, 1472u})
        for (int round = 0; round < 100; round++) {
            const std::string payload = pattern(length, seed++);
            ASSERT_EQ(a.send(b, 2000, payload), 0);
            ASSERT_EQ(send_lent(a, b, lend(a), payload), 0);
            a.ring->flush();
            ASSERT_EQ(frames.size(), 2u);
            EXPECT_TRUE(frames[0] == frames[1]) << length;
            frames.clear();
        }
    a.expect_no_leak();
}

TEST(LentBuffers, FramesAreThoseOfACopy) { compare_frames({}); }
TEST(LentBuffers, FramesAreThoseOfACopyWithChecksumOffload) {
    compare_frames({.tx_checksum = TxChecksum::complete});
}
TEST(LentBuffers, FramesAreThoseOfACopyInline) { compare_frames({.max_inline = 300}); }
TEST(LentBuffers, FramesAreThoseOfACopyOnALazyDevice) {
    compare_frames({.tx_checksum = TxChecksum::partial, .lazy_tx = LazyTx::fake_clock});
}

TEST(LentBuffers, AreAQuarterAtMost) {
    Wire wire(7);
    Host a(wire, kA, {.max_send_wr = 128}), b(wire, kB);
    Sink sink;
    b.attach(2000, sink);
    SendBuffer* kept[33];
    ASSERT_EQ(a.ring->lend_send_buffers(kept, 33), ENOBUFS);
    ASSERT_EQ(a.ring->lend_send_buffers(kept, 32), 0);
    EXPECT_EQ(std::set<SendBuffer*>(kept, kept + 32).size(), 32u);
    EXPECT_EQ(a.ring->lend_send_buffers(kept, 1), ENOBUFS);
    for (int i = 0; i < 1000; i++) {
        ASSERT_EQ(a.send(b, 2000, "others"), 0);
        b.poll();
    }
    EXPECT_EQ(sink.payloads.size(), 1000u);
    // One that is sent makes room for another one, though its completion has not come.
    a.device->hold_completions(true);
    for (int i = 0; i < 16; i++) {
        ASSERT_EQ(send_lent(a, b, *kept[i], "kept"), 0);
        kept[i] = &lend(a);
    }
    EXPECT_EQ(a.ring->lend_send_buffers(kept, 1), ENOBUFS);
    a.device->hold_completions(false);
    for (SendBuffer* one : std::span(kept, 32)) EXPECT_EQ(a.ring->end_loan(*one), 0);
    ASSERT_EQ(a.ring->lend_send_buffers(kept, 32), 0);
    for (SendBuffer* one : std::span(kept, 32)) EXPECT_EQ(a.ring->end_loan(*one), 0);
    a.expect_no_leak();
}

// Refused just when a completion would be asked for, among other times.
TEST(LentBuffers, AfterARefusalTheyAreTheProgramsStill) {
    for (const std::uint32_t max_inline : {0u, 200u}) {
        Wire wire(7);
        Host a(wire, kA, {.max_send_wr = 64, .max_inline = max_inline}), b(wire, kB);
        Sink sink;
        b.attach(2000, sink);
        for (int i = 0; i < 2000; i++) {
            SendBuffer& one = lend(a);
            const std::string payload = pattern(i % 3 == 0 ? 1000 : 10, static_cast<unsigned>(i));
            if (i % 16 == 15 || i % 7 == 3) {
                a.device->refuse_sends(true);
                ASSERT_EQ(send_lent(a, b, one, payload), ENOBUFS);
                a.device->refuse_sends(false);
                EXPECT_EQ(std::memcmp(one.payload(), payload.data(), payload.size()), 0);
            }
            ASSERT_EQ(send_lent(a, b, one, payload), 0);
            b.poll();
            ASSERT_TRUE(sink.payloads.back() == payload);
        }
        EXPECT_EQ(sink.payloads.size(), 2000u);
        a.expect_no_leak();
    }
}

// By its id each is claimed once, whatever the caller passes.
TEST(LentBuffers, IdsAreGoodOnce) {
    Wire wire(7);
    Host a(wire, kA);
    auto& table = api::PacketTable::instance();
    SendBuffer& one = lend(a);
    EXPECT_TRUE(PacketRegions::hold(one.frame, one.room));
    void* const id = table.lend(one);
    ASSERT_NE(id, nullptr);
    std::uint32_t tenure = 0;
    for (unsigned bit = 0; bit < 64; bit++) {
        void* const other = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(id) ^ 1ull << bit);
        EXPECT_EQ(table.claim(other, tenure), nullptr) << bit;
    }
    ASSERT_EQ(table.claim(id, tenure), &one);
    std::uint32_t again = 0;
    EXPECT_EQ(table.claim(id, again), nullptr);
    one.tenure.resume(tenure);
    ASSERT_EQ(table.claim(id, tenure), &one);
    EXPECT_NE(table.lend(one), id);
    EXPECT_EQ(table.claim(id, again), nullptr);
    EXPECT_EQ(a.ring->end_loan(one), 0);
    a.expect_no_leak();
}

}  // namespace
}  // namespace vma::ring
