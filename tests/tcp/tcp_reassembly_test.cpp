// SPDX-License-Identifier: BSD-2-Clause
// What arrives out of sequence, against a model that keeps single bytes.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "libvma/tcp/lwip/memory.h"
#include "libvma/tcp/lwip/piece.h"
#include "libvma/tcp/receive/reassembly.h"
#include "libvma/tcp/sequence.h"
#include "tests/support/wire/wire.h"

namespace vma::tcp {
namespace {

using lwip::Piece;

constexpr std::uint32_t kWindow = 1 << 16;

// Byte `seq` of a peer that always says the same.
std::uint8_t byte_of(std::uint32_t seq) { return static_cast<std::uint8_t>(seq * 2654435761u >> 24); }

// A chain of pieces of `each` bytes at most.
Piece* chain_of(std::uint32_t seq, std::uint32_t length, std::uint32_t each) {
    Piece* first = nullptr;
    Piece* last = nullptr;
    for (std::uint32_t at = 0; at < length;) {
        const std::uint32_t n = std::min(each, length - at);
        Piece* p = Piece::block(n);
        for (std::uint32_t i = 0; i < n; i++) {
            const std::uint8_t byte = byte_of(seq + at + i);
            p->append(&byte, 1);
        }
        if (last != nullptr)
            last->set_next(p);
        else
            first = p;
        last = p;
        at += n;
    }
    return first;
}
void free_chain(Piece* p) {
    while (p != nullptr) {
        Piece* next = p->next();
        p->free();
        p = next;
    }
}
bool keep(Reassembly& r, std::uint32_t seq, std::uint32_t length, std::uint32_t each = 5000,
          std::uint32_t window = kWindow) {
    Piece* p = chain_of(seq, length, each);
    const bool kept = r.keep(seq, p, length, window);
    free_chain(p);
    return kept;
}
// Takes from `next` on and checks each byte. Returns how many.
std::uint32_t take(Reassembly& r, std::uint32_t next) {
    std::uint32_t bytes = 0, seen = 0;
    SackBlock twice;
    Piece* p = r.take(next, bytes, twice);
    for (const Piece* q = p; q != nullptr; q = q->next())
        for (unsigned i = 0; i < q->size(); i++) {
            if (q->data()[i] != byte_of(next + seen)) ADD_FAILURE() << "byte " << seen;
            seen++;
        }
    EXPECT_EQ(seen, bytes);
    free_chain(p);
    return bytes;
}
std::vector<std::pair<std::uint32_t, std::uint32_t>> blocks_of(const Reassembly& r) {
    SackBlock b[4];
    std::vector<std::pair<std::uint32_t, std::uint32_t>> out;
    for (std::size_t i = 0, n = r.blocks(b, 4); i < n; i++) out.emplace_back(b[i].left, b[i].right);
    return out;
}
using Blocks = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

TEST(TcpReassembly, KnowsWhatCameTwice) {
    Reassembly r;
    const auto known = [&](std::uint32_t left, std::uint32_t right) {
        const SackBlock b = r.known(left, right);
        return std::pair(b.left, b.right);
    };
    using Block = std::pair<std::uint32_t, std::uint32_t>;
    EXPECT_EQ(known(100, 200), Block(0, 0));
    EXPECT_TRUE(keep(r, 100, 100));
    EXPECT_TRUE(keep(r, 300, 100));
    EXPECT_EQ(known(100, 200), Block(100, 200));
    EXPECT_EQ(known(150, 160), Block(150, 160));
    EXPECT_EQ(known(50, 150), Block(100, 150));
    EXPECT_EQ(known(150, 500), Block(150, 200)) << "the first stretch";
    EXPECT_EQ(known(200, 310), Block(300, 310)) << "what touches is no part of it";
    EXPECT_EQ(known(200, 300), Block(0, 0));
    EXPECT_EQ(known(400, 500), Block(0, 0));
}

TEST(TcpReassembly, AFinIsReportedLikeAByte) {
    Reassembly r;
    r.keep_fin(500);
    EXPECT_FALSE(r.empty());
    EXPECT_EQ(blocks_of(r), (Blocks{{500, 501}}));
    EXPECT_EQ(r.known(500, 501), (SackBlock{500, 501}));
    EXPECT_TRUE(keep(r, 100, 100));
    EXPECT_EQ(blocks_of(r), (Blocks{{100, 200}, {500, 501}}));
    EXPECT_TRUE(keep(r, 400, 100));
    EXPECT_EQ(blocks_of(r), (Blocks{{400, 501}, {100, 200}}));
    EXPECT_EQ(r.known(450, 501), (SackBlock{450, 501}));
    EXPECT_EQ(take(r, 100), 100u);
    EXPECT_EQ(blocks_of(r), (Blocks{{400, 501}}));
    EXPECT_EQ(take(r, 400), 100u);
    EXPECT_TRUE(r.has_fin());
    EXPECT_EQ(r.fin_at(), 500u);
    r.clear();
    EXPECT_TRUE(r.empty());
    EXPECT_TRUE(blocks_of(r).empty());
}

TEST(TcpReassembly, JoinsWhatTouches) {
    Reassembly r;
    EXPECT_TRUE(keep(r, 200, 100));
    EXPECT_TRUE(keep(r, 400, 100));
    EXPECT_EQ(r.runs(), 2u);
    EXPECT_EQ(blocks_of(r), (Blocks{{400, 500}, {200, 300}}));
    EXPECT_TRUE(keep(r, 300, 100));
    EXPECT_EQ(r.runs(), 1u);
    EXPECT_EQ(blocks_of(r), (Blocks{{200, 500}}));
    EXPECT_TRUE(keep(r, 100, 1000, 7));  // around it all
    EXPECT_EQ(r.bytes(), 1000u);
    EXPECT_EQ(r.runs(), 1u);
    EXPECT_TRUE(keep(r, 150, 100));  // nothing new
    EXPECT_EQ(r.bytes(), 1000u);
    EXPECT_EQ(take(r, 50), 0u);
    EXPECT_EQ(take(r, 130), 970u);
    EXPECT_TRUE(r.empty());
    EXPECT_EQ(r.held(), 0u);
    EXPECT_TRUE(blocks_of(r).empty());
}

TEST(TcpReassembly, LastChangedBlockComesFirst) {
    Reassembly r;
    for (std::uint32_t seq : {1000u, 2000u, 3000u, 4000u, 5000u}) EXPECT_TRUE(keep(r, seq, 10));
    EXPECT_EQ(blocks_of(r), (Blocks{{5000, 5010}, {4000, 4010}, {3000, 3010}, {2000, 2010}}));
    EXPECT_TRUE(keep(r, 3010, 10));
    EXPECT_EQ(blocks_of(r), (Blocks{{3000, 3020}, {5000, 5010}, {4000, 4010}, {2000, 2010}}));
    EXPECT_TRUE(keep(r, 1000, 5));  // a duplicate is reported, too (RFC 2018 section 4)
    EXPECT_EQ(blocks_of(r)[0], (std::pair{1000u, 1010u}));
    EXPECT_EQ(take(r, 1000), 10u);
    EXPECT_EQ(take(r, 2500), 0u);  // what lies before is forgotten
    EXPECT_EQ(blocks_of(r), (Blocks{{3000, 3020}, {5000, 5010}, {4000, 4010}}));
}

TEST(TcpReassembly, AgreesWithAModel) {
    verbs::wire::Random random(7);
    const std::int64_t before = static_cast<std::int64_t>(lwip::memory_use().used);
    for (std::uint32_t start : {1000u, 0xffff8000u, 0x7fff8000u}) {
        Reassembly r;
        std::map<std::uint32_t, bool> have;  // by distance from `start`
        std::uint32_t next = 0;              // what is expected
        for (int i = 0; i < 2000; i++) {
            const std::uint32_t at = next + 1 + static_cast<std::uint32_t>(random.below(30'000));
            const std::uint32_t most = random.below(20) == 0 ? 9000 : random.below(3) == 0 ? 3 : 1500;
            const std::uint32_t length = 1 + static_cast<std::uint32_t>(random.below(most));
            ASSERT_TRUE(keep(r, start + at, length, 1 + static_cast<std::uint32_t>(random.below(2000)),
                             16 * kWindow));
            for (std::uint32_t k = 0; k < length; k++) have[at + k] = true;
            ASSERT_EQ(r.bytes(), have.size());
            ASSERT_LE(r.held(), r.bytes() + kWindow / 8 * 5);
            ASSERT_EQ(r.held() == 0, r.empty());
            SackBlock b[4];
            for (std::size_t k = 0, n = r.blocks(b, 4); k < n; k++) {
                ASSERT_TRUE(have.contains(b[k].left - start));
                ASSERT_TRUE(have.contains(b[k].right - start - 1));
                ASSERT_FALSE(have.contains(b[k].right - start));
                ASSERT_TRUE(b[k].left - start == 0 || !have.contains(b[k].left - start - 1));
            }
            if (random.below(4) != 0) continue;
            next += 1 + static_cast<std::uint32_t>(random.below(8000));  // data in sequence
            std::uint32_t expected = 0;
            have.erase(have.begin(), have.lower_bound(next));
            while (have.contains(next + expected)) expected++;
            ASSERT_EQ(take(r, start + next), expected);
            next += expected;
            have.erase(have.begin(), have.lower_bound(next));
        }
    }
    EXPECT_EQ(static_cast<std::int64_t>(lwip::memory_use().used), before);
}

// Single bytes with holes between them, in every order: the memory is bounded, and so is the work for each.
TEST(TcpReassembly, HolesAreBounded) {
    for (std::uint32_t window : {4096u, 65536u, 2u << 20}) {
        for (bool forward : {true, false}) {
            std::uint32_t lowest = ~0u;
            Reassembly r;
            for (std::uint32_t i = 0; i < window / 2 && i < 20'000; i++) {
                const std::uint64_t steps = r.steps();
                const std::uint32_t seq = forward ? 1 + 2 * i : window - 2 * i;
                const bool kept = keep(r, seq, 1, 1, window);
                lowest = std::min(lowest, seq);
                ASSERT_TRUE(kept || forward) << "what is nearest to the gap is kept";
                ASSERT_LE(r.steps() - steps, 12u);
            }
            EXPECT_EQ(take(r, lowest), 1u);
            EXPECT_LE(r.runs(), Reassembly::kMaxRuns);
            EXPECT_GE(r.runs(), 15u);
            EXPECT_LE(r.held(), window / 8 * 5 + r.bytes());
        }
    }
}

// What the peer sends again from one byte further each time adds one byte each time.
TEST(TcpReassembly, OverlapsAddOnlyWhatIsNew) {
    Reassembly r;
    for (std::uint32_t i = 0; i < 60'000; i++) {
        const std::uint64_t steps = r.steps();
        ASSERT_TRUE(keep(r, 1 + i, 100, 100));
        ASSERT_LE(r.steps() - steps, 6u);
    }
    EXPECT_EQ(r.bytes(), 60'099u);
    EXPECT_LE(r.held(), 60'099u + 60'099u / 8);
}

}  // namespace
}  // namespace vma::tcp
