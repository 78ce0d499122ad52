// SPDX-License-Identifier: BSD-2-Clause
// The scoreboard: cases by hand, then thousands of random steps against a model that computes everything anew
// from the definitions, and the number of segments looked at for a large window with loss.
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "libvma/tcp/recovery/scoreboard.h"

namespace {

using vma::tcp::AckOutcome;
using vma::tcp::LossOutcome;
using vma::tcp::Rack;
using vma::tcp::RecoveryPhase;
using vma::tcp::SackBlock;
using vma::tcp::SackOutcome;
using vma::tcp::seq_at_or_before;
using vma::tcp::seq_before;
using vma::tcp::Usec;

struct Seg {
    Seg* next = nullptr;
    std::uint32_t seq = 0;
    std::uint32_t len = 0;
    std::uint8_t flags = 0x07;  // bits of somebody else's, which must stay
    std::uint32_t sent = 0;     // microseconds
};

long g_steps = 0;  // segments walked to

struct ListAccess {
    using Segment = Seg;
    static constexpr std::uint8_t kSacked = 0x20, kLost = 0x40, kRetransmitted = 0x80, kResent = 0x10;
    static Usec sent(const Seg* s) { return Usec(s->sent); }
    static Seg* next(const Seg* s) {
        g_steps++;
        return s->next;
    }
    static std::uint32_t seq(const Seg* s) { return s->seq; }
    static std::uint32_t len(const Seg* s) { return s->len; }
    static std::uint8_t flags(const Seg* s) { return s->flags; }
    static void set_flags(Seg* s, std::uint8_t flags) {
        EXPECT_EQ(flags & 0x0f, s->flags & 0x0f);
        s->flags = flags;
    }
};
using Board = vma::tcp::Scoreboard<ListAccess>;
constexpr std::uint8_t kSacked = ListAccess::kSacked, kLost = ListAccess::kLost,
                       kRetransmitted = ListAccess::kRetransmitted, kResent = ListAccess::kResent;
constexpr std::uint32_t kSackMss = 1000;

// A sender's list of unacknowledged segments.
struct Flight {
    explicit Flight(std::uint32_t first = 0xffffe000u, bool sack = true) : una(first), nxt(first) {
        board.init(sack, kSackMss, first);
    }
    ~Flight() {
        for (Seg* s : segments) delete s;
    }
    // Each microsecond a segment leaves.
    void send(int count, std::uint32_t len = kSackMss) {
        for (int i = 0; i < count; i++) {
            auto* s = new Seg{nullptr, nxt, len};
            s->sent = ++now;
            if (!segments.empty()) segments.back()->next = s;
            segments.push_back(s);
            nxt += len;
        }
    }
    Seg* head() { return segments.empty() ? nullptr : segments.front(); }
    std::uint32_t outstanding() { return segments.empty() ? 0 : nxt - head()->seq; }
    std::uint32_t pipe() { return board.pipe(outstanding()); }
    // The n-th segment's first sequence number, counted from the beginning of everything in flight.
    std::uint32_t at(int n) { return n < static_cast<int>(segments.size()) ? segments[n]->seq : nxt; }
    SackBlock block(int from, int to) { return {at(from), at(to)}; }
    auto delivered() {
        return [this](const Seg* s, std::uint8_t flags) {
            rack.delivered(Usec(s->sent), s->seq + s->len, (flags & kResent) != 0, Usec(now), min_rtt);
        };
    }
    AckOutcome ack(std::uint32_t to) {
        now++;
        Seg* next = nullptr;
        const AckOutcome out = board.on_cumulative_ack(head(), to, next, delivered());
        una = to;
        while (!segments.empty() && seq_at_or_before(segments.front()->seq + segments.front()->len, una)) {
            std::memset(static_cast<void*>(segments.front()), 0xee,
                        sizeof(Seg));  // nobody may look at it again
            delete segments.front();
            segments.pop_front();
        }
        EXPECT_EQ(next, head());
        return out;
    }
    SackOutcome sack(const std::vector<SackBlock>& blocks) {
        now++;
        return board.on_sack(head(), blocks, una, una, nxt, delivered());
    }
    // What RACK finds, with the kernel's window.
    LossOutcome find() {
        if (!rack.take_advanced()) return {};
        const Usec window =
            rack.window(min_rtt, Usec(1000), board.phase() != RecoveryPhase::open, board.sacked_segments());
        const LossOutcome out = board.find_lost(head(), rack, window, Usec(now));
        if (out.more) rack.look_again();
        return out;
    }
    std::uint32_t sack_and_find(const std::vector<SackBlock>& blocks) {
        sack(blocks);
        return find().lost;
    }
    void recover() {
        board.begin_undo(una, 0);
        board.enter_recovery(nxt);
    }
    void resend(Seg* s) {
        s->sent = ++now;
        board.on_retransmitted(s);
    }
    void rto(bool all = false) {
        board.on_rto(head(), nxt, rack, Usec(now), all);
        board.begin_undo(una, 0);
    }

    Rack rack;
    std::uint32_t now = 0xffffff00u;  // microseconds
    Usec min_rtt{1};
    Board board;
    std::deque<Seg*> segments;
    std::uint32_t una, nxt;
};

TEST(TcpSack, ThreeReportedSegmentsShowALoss) {
    Flight f;
    f.min_rtt = Usec(1000);
    f.send(10);
    EXPECT_EQ(f.pipe(), 10 * kSackMss);
    EXPECT_EQ(f.sack({f.block(1, 2)}).newly_sacked, kSackMss);
    EXPECT_NE(f.find().wait, Usec(0)) << "a quarter of a round trip later";
    EXPECT_EQ(f.sack_and_find({f.block(1, 3)}), 0u);
    EXPECT_EQ(f.pipe(), 8 * kSackMss) << "room for limited transmit";
    EXPECT_EQ(f.sack_and_find({f.block(1, 4)}), kSackMss) << "at once, while no reordering was seen";
    EXPECT_EQ(f.board.lost_segments(), 1u);
    EXPECT_EQ(f.pipe(), 6 * kSackMss);
    EXPECT_EQ(f.board.highest_sacked(f.una), f.at(4));
    f.recover();
    Seg* again = f.board.next_to_retransmit(f.head());
    ASSERT_EQ(again, f.head());
    f.resend(again);
    EXPECT_EQ(f.pipe(), 7 * kSackMss);
    EXPECT_EQ(f.board.retrans_bytes(), kSackMss);
    EXPECT_EQ(f.board.next_to_retransmit(f.head()), nullptr);
    const AckOutcome partial = f.ack(f.at(4));
    EXPECT_FALSE(partial.recovered);
    EXPECT_TRUE(partial.retransmitted);
    EXPECT_EQ(partial.bytes, 4 * kSackMss);
    EXPECT_EQ(partial.delivered, kSackMss);
    EXPECT_EQ(f.pipe(), 6 * kSackMss);
    const AckOutcome last = f.ack(f.nxt);
    EXPECT_TRUE(last.recovered);
    EXPECT_EQ(last.was, RecoveryPhase::recovery);
    EXPECT_TRUE(f.board.calm());
    EXPECT_EQ(f.board.sacked_bytes() + f.board.lost_bytes() + f.board.retrans_bytes(), 0u);
}

// The reordering window is over before three segments were reported.
TEST(TcpSack, TimeShowsALoss) {
    Flight f;
    f.min_rtt = Usec(1000);
    f.send(4);
    f.now += 1000;
    EXPECT_EQ(f.sack_and_find({f.block(3, 4)}), 0u);
    f.now += 300;
    f.rack.look_again();
    EXPECT_EQ(f.find().lost, 3 * kSackMss) << "all that was sent before";
}

TEST(TcpSack, ReorderingIsMeasuredAndMakesPatient) {
    Flight f;
    f.min_rtt = Usec(400);
    f.send(20);
    f.sack({f.block(9, 10)});
    SackOutcome out = f.sack({f.block(2, 3), f.block(9, 10)});
    EXPECT_EQ(out.reordered, 8 * kSackMss);
    f.rack.reordered(out.reordered, kSackMss);
    EXPECT_EQ(f.rack.reordering(), 8u);
    f.sack({f.block(10, 14)});
    EXPECT_EQ(f.find().lost, 0u) << "three are not enough any more";
    out = f.sack({f.block(1, 3), f.block(9, 14)});
    EXPECT_EQ(out.reordered, 13 * kSackMss);
    EXPECT_FALSE(out.original) << "beyond the recovery point";
    const AckOutcome acked = f.ack(f.at(4));
    EXPECT_EQ(acked.reordered, 14 * kSackMss);
}

TEST(TcpSack, OnlyWholeSegmentsAreSacked) {
    Flight f;
    f.send(5);
    EXPECT_EQ(f.sack({{f.at(1) + 1, f.at(3) - 1}}).newly_sacked, 0u);
    EXPECT_EQ(f.sack({{f.at(1) + 1, f.at(4) - 1}}).newly_sacked, kSackMss);
    EXPECT_EQ(f.sack({{f.at(1) + 1, f.at(4)}}).newly_sacked, kSackMss) << "grown by what completes a segment";
    EXPECT_EQ(f.sack({{f.at(1), f.at(4)}}).newly_sacked, kSackMss) << "to the left as well";
}

TEST(TcpSack, BlocksNoReceiverMaySendAreIgnored) {
    Flight f;
    f.send(6);
    f.ack(f.at(2));
    EXPECT_EQ(f.sack({{f.una + 5, f.nxt + 1}}).invalid, 1u) << "beyond what was sent";
    EXPECT_EQ(f.sack({{f.at(2), f.at(1)}}).invalid, 1u) << "turned around";
    EXPECT_EQ(f.sack({{f.at(2), f.at(2)}}).invalid, 1u) << "empty";
    EXPECT_EQ(f.sack({{f.una - 500, f.at(1)}}).invalid, 1u) << "across SND.UNA";
    EXPECT_EQ(f.sack({{f.una, f.at(1)}}).invalid, 1u) << "at SND.UNA";
    EXPECT_EQ(f.sack({{f.una + 0x80000000u, f.una + 0x80000001u}}).invalid, 1u);
    EXPECT_EQ(f.board.invalid_blocks(), 6u);
    EXPECT_EQ(f.board.sacked_bytes(), 0u);
    const std::vector<SackBlock> many(20, f.block(1, 2));
    EXPECT_EQ(f.sack(many).newly_sacked, kSackMss) << "more than fit into an option";
}

TEST(TcpSack, WithoutSackBlocksAreNothing) {
    Flight f(1, false);
    f.send(6);
    EXPECT_EQ(f.sack({f.block(1, 5)}).newly_sacked, 0u);
    EXPECT_EQ(f.board.sacked_bytes(), 0u);
}

TEST(TcpSack, DuplicatesAreRecognisedAndNotTakenForReports) {
    Flight f;
    f.send(10);
    f.ack(f.at(3));
    SackOutcome out = f.sack({{f.una - 2 * kSackMss, f.una - kSackMss}, f.block(2, 3)});
    EXPECT_EQ(out.dsacks, 1u);
    EXPECT_EQ(out.newly_sacked, kSackMss);
    out = f.sack({f.block(2, 3), f.block(2, 5)});
    EXPECT_EQ(out.dsacks, 1u) << "within the second block";
    EXPECT_EQ(out.newly_sacked, 2 * kSackMss);
    out = f.sack({f.block(2, 5), {f.una - 2 * kSackMss, f.una - kSackMss}});
    EXPECT_EQ(out.dsacks, 0u) << "only the first block reports duplicates";
    EXPECT_EQ(out.invalid, 1u);
    EXPECT_EQ(f.board.dsacks(), 2u);
}

TEST(TcpSack, AnOvertakenAckReportsNoDuplicates) {
    Flight f;
    f.send(10);
    const std::uint32_t old_ack = f.una;
    const SackBlock old_block = f.block(2, 4);
    f.ack(f.at(5));
    const std::vector<SackBlock> blocks{old_block};
    const SackOutcome out = f.board.on_sack(f.head(), blocks, old_ack, f.una, f.nxt, f.delivered());
    EXPECT_EQ(out.dsacks, 0u);
    EXPECT_EQ(out.invalid, 0u) << "late, not wrong";
    EXPECT_EQ(out.newly_sacked, 0u);
}

TEST(TcpSack, DuplicatesOfAllRetransmissionsMeanItWasSpurious) {
    Flight f;
    f.send(10);
    f.sack_and_find({f.block(2, 5)});
    f.recover();
    for (int i = 0; i < 2; i++) f.resend(f.board.next_to_retransmit(f.head()));
    EXPECT_EQ(f.board.next_to_retransmit(f.head()), nullptr);
    EXPECT_FALSE(f.board.all_retransmissions_needless());
    const std::uint32_t start = f.una;
    f.ack(f.at(6));
    f.sack({{start, start + kSackMss}});
    EXPECT_FALSE(f.board.all_retransmissions_needless());
    f.sack({{start + kSackMss, start + 2 * kSackMss}});
    EXPECT_TRUE(f.board.all_retransmissions_needless());
    f.board.undo(f.head());
    EXPECT_FALSE(f.board.all_retransmissions_needless());
    EXPECT_EQ(f.board.phase(), RecoveryPhase::open);
    EXPECT_EQ(f.pipe(), 4 * kSackMss);
}

TEST(TcpSack, ALostRetransmissionIsFound) {
    Flight f;
    f.send(10);
    f.sack_and_find({f.block(1, 4)});
    f.recover();
    f.resend(f.board.next_to_retransmit(f.head()));
    f.sack_and_find({f.block(1, 10)});
    EXPECT_EQ(f.board.next_to_retransmit(f.head()), nullptr) << "all of that had been sent before it";
    f.send(3);
    f.sack({f.block(1, 11)});
    const LossOutcome out = f.find();
    EXPECT_EQ(out.lost, kSackMss) << "one that was sent after it has arrived";
    EXPECT_TRUE(out.retransmission);
    EXPECT_EQ(f.board.next_to_retransmit(f.head()), f.head());
    EXPECT_EQ(f.pipe(), 2 * kSackMss);
}

// Retransmissions of which some are lost twice: each is found once a later one has arrived, whatever their
// order.
TEST(TcpSack, LostRetransmissionsAreFoundInAnyOrder) {
    Flight f;
    f.send(20);
    f.sack_and_find({f.block(10, 20)});
    f.recover();
    EXPECT_EQ(f.board.lost_segments(), 10u);
    for (int i = 0; i < 10; i++) f.resend(f.board.next_to_retransmit(f.head()));
    EXPECT_EQ(f.sack_and_find({f.block(2, 3)}), 2 * kSackMss);
    f.resend(f.segments[0]);
    f.resend(f.segments[1]);
    EXPECT_EQ(f.sack_and_find({f.block(5, 6)}), 2 * kSackMss) << "3 and 4; 0 and 1 are younger";
    EXPECT_EQ(f.sack_and_find({f.block(9, 20)}), 3 * kSackMss) << "6, 7, 8";
    EXPECT_EQ(f.sack_and_find({f.block(1, 2)}), kSackMss) << "and 0 for the second time";
    EXPECT_EQ(f.board.next_to_retransmit(f.head()), f.head());
}

TEST(TcpSack, TimeoutMarksWhatIsNotReported) {
    Flight f;
    f.send(6);
    f.sack_and_find({f.block(2, 3), f.block(4, 5)});
    f.now += 100;
    f.rto();
    EXPECT_EQ(f.board.phase(), RecoveryPhase::timeout);
    EXPECT_EQ(f.pipe(), 0u);
    EXPECT_EQ(f.board.lost_segments(), 4u);
    EXPECT_EQ(f.board.sacked_bytes(), 2 * kSackMss);
    for (const std::size_t i : {0u, 1u, 3u}) {
        Seg* s = f.board.next_to_retransmit(f.head());
        ASSERT_EQ(s, f.segments[i]);
        f.resend(s);
    }
    EXPECT_TRUE(f.ack(f.at(3)).retransmitted);
    EXPECT_EQ(f.board.phase(), RecoveryPhase::timeout);
    EXPECT_TRUE(f.ack(f.nxt).recovered);
    EXPECT_TRUE(f.board.calm());
}

TEST(TcpSack, TimeoutLeavesWhatWasJustSent) {
    Flight f;
    f.send(4);
    f.now += 500;
    f.sack({f.block(1, 2)});  // a round trip of 500 us
    f.send(2);
    f.now += 100;
    f.rto();
    EXPECT_EQ(f.board.lost_segments(), 3u);
    EXPECT_EQ(f.pipe(), 2 * kSackMss);
    f.rto(true);
    EXPECT_EQ(f.board.lost_segments(), 5u) << "the path cannot have carried any of it";
    EXPECT_EQ(f.pipe(), 0u);
}

TEST(TcpSack, RenegingIsSeenAndVoidsReportsAtTheTimeout) {
    Flight f;
    f.send(6);
    f.sack({f.block(1, 3)});
    EXPECT_TRUE(f.ack(f.at(1)).reneged);
    EXPECT_EQ(f.board.sacked_bytes(), 2 * kSackMss);
    f.now += 100;
    f.rto();
    EXPECT_EQ(f.board.sacked_bytes(), 0u);
    EXPECT_EQ(f.board.lost_segments(), 5u);
    EXPECT_EQ(f.board.next_to_retransmit(f.head()), f.head());
    EXPECT_EQ(f.sack({f.block(1, 2)}).newly_sacked, kSackMss) << "the same report again counts again";
}

TEST(TcpSack, SplitSegmentsKeepTheirMarks) {
    Flight f;
    f.send(6);
    f.sack_and_find({f.block(2, 5)});
    Seg* first = f.segments[0];
    auto* second = new Seg{first->next, first->seq + 400, 600};
    first->len = 400;
    first->next = second;
    f.segments.insert(f.segments.begin() + 1, second);
    f.board.on_split(first, second);
    EXPECT_EQ(f.board.lost_segments(), 3u);
    EXPECT_EQ(f.board.lost_bytes(), 2 * kSackMss);
    f.recover();
    f.resend(f.board.next_to_retransmit(f.head()));
    EXPECT_EQ(f.board.next_to_retransmit(f.head()), second);
    f.ack(f.nxt);
    EXPECT_EQ(f.board.lost_segments() + f.board.retrans_segments() + f.board.sacked_segments(), 0u);
}

TEST(TcpReno, ThirdDuplicateStartsARecoveryAndPartialAcksContinueIt) {
    Flight f(0xfffff000u, false);
    f.send(10);
    EXPECT_FALSE(f.board.on_duplicate_ack(f.head(), f.una, f.outstanding()));
    EXPECT_FALSE(f.board.on_duplicate_ack(f.head(), f.una, f.outstanding()));
    EXPECT_EQ(f.pipe(), 8 * kSackMss) << "limited transmit: one segment for each";
    f.send(2);
    EXPECT_TRUE(f.board.on_duplicate_ack(f.head(), f.una, f.outstanding()));
    f.recover();
    ASSERT_EQ(f.board.next_to_retransmit(f.head()), f.head());
    f.resend(f.head());
    EXPECT_EQ(f.pipe(), 12 * kSackMss - 3 * kSackMss - kSackMss + kSackMss);
    for (int i = 0; i < 20; i++) EXPECT_FALSE(f.board.on_duplicate_ack(f.head(), f.una, f.outstanding()));
    EXPECT_EQ(f.pipe(), kSackMss) << "no more can have arrived than was sent";
    const AckOutcome out = f.ack(f.at(4));  // the fifth is missing too
    EXPECT_FALSE(out.recovered);
    ASSERT_EQ(f.board.next_to_retransmit(f.head()), f.head());
    f.resend(f.head());
    EXPECT_EQ(f.board.next_to_retransmit(f.head()), nullptr);
    EXPECT_TRUE(f.ack(f.nxt).recovered);
    EXPECT_EQ(f.board.sacked_bytes(), 0u);
}

TEST(TcpReno, EchoesAfterARecoveryStartNoOther) {
    Flight f(1, false);
    f.send(10);
    f.rto();
    f.resend(f.head());
    for (int i = 0; i < 5; i++) EXPECT_FALSE(f.board.on_duplicate_ack(f.head(), f.una, f.outstanding()));
    EXPECT_TRUE(f.ack(f.nxt).recovered);
    f.send(10);
    for (int i = 0; i < 5; i++) EXPECT_FALSE(f.board.on_duplicate_ack(f.head(), f.una, f.outstanding()));
    f.ack(f.at(1));
    f.board.on_duplicate_ack(f.head(), f.una, f.outstanding());
    f.board.on_duplicate_ack(f.head(), f.una, f.outstanding());
    EXPECT_TRUE(f.board.on_duplicate_ack(f.head(), f.una, f.outstanding()));
}

// The definitions, computed anew over all segments each time.
struct Model {
    struct Entry {
        std::uint32_t seq, len, sent;
        bool sacked = false, lost = false, retrans = false, resent = false;
    };
    std::deque<Entry> entries;

    // What RACK says of all segments (RFC 8985 section 6.2 step 5).
    void find(const Rack& rack, Usec window, std::uint32_t now) {
        for (Entry& e : entries) {
            if (e.sacked || (e.lost && !e.retrans)) continue;
            if (!rack.overtaken(Usec(e.sent), e.seq + e.len) ||
                rack.remaining(Usec(e.sent), window, Usec(now)) > 0)
                continue;
            e.lost = true;
            e.retrans = false;
        }
    }
    std::uint32_t highest(std::uint32_t una) const {
        for (std::size_t i = entries.size(); i-- > 0;)
            if (entries[i].sacked) return entries[i].seq + entries[i].len;
        return una;
    }
};

// A receiver that stores what arrives and reports it as a kernel does, most recent block first.
struct Receiver {
    std::uint32_t next;
    std::vector<SackBlock> blocks;  // most recent first

    // Returns the D-SACK block if all of it was there already.
    std::vector<SackBlock> arrive(std::uint32_t seq, std::uint32_t len) {
        SackBlock fresh{seq, seq + len};
        std::vector<SackBlock> report;
        bool known = seq_at_or_before(fresh.right, next);
        for (const SackBlock& b : blocks)
            known |= seq_at_or_before(b.left, fresh.left) && seq_at_or_before(fresh.right, b.right);
        if (known) report.push_back(fresh);
        if (!known || seq_before(next, fresh.left)) {
            std::vector<SackBlock> kept;
            for (const SackBlock& b : blocks) {
                if (seq_before(b.right, fresh.left) || seq_before(fresh.right, b.left)) {
                    kept.push_back(b);
                } else {
                    if (seq_before(b.left, fresh.left)) fresh.left = b.left;
                    if (seq_before(fresh.right, b.right)) fresh.right = b.right;
                }
            }
            kept.insert(kept.begin(), fresh);
            blocks = kept;
        }
        std::erase_if(blocks, [&](const SackBlock& b) {
            if (!seq_at_or_before(b.left, next)) return false;
            if (seq_before(next, b.right)) next = b.right;
            return true;
        });
        for (const SackBlock& b : blocks)
            if (report.size() < 4) report.push_back(b);
        return report;
    }
};

TEST(TcpSack, AgreesWithTheDefinitionsOverRandomTransfers) {
    for (unsigned seed = 0; seed < 24; seed++) {
        std::mt19937 random(seed);
        Flight f(seed % 2 == 0 ? 0xfffffff0u - seed * 7000 : random());
        Model model;
        Receiver receiver{f.una, {}};
        struct Packet {
            std::uint32_t seq, len;
        };
        std::vector<Packet> network;
        struct Ack {
            std::uint32_t ack;
            std::vector<SackBlock> blocks;
        };
        std::vector<Ack> acks;
        const unsigned loss = random() % 30;
        const bool reorder_acks = seed % 3 == 0;
        std::uint64_t dsacks = 0;
        const auto check = [&](int step) {
            std::uint64_t sacked = 0, lost = 0, retrans = 0;
            std::size_t first_to_send = SIZE_MAX;
            ASSERT_EQ(model.entries.size(), f.segments.size());
            for (std::size_t i = 0; i < model.entries.size(); i++) {
                const Model::Entry& e = model.entries[i];
                const bool is_lost = e.lost;
                if (e.sacked) sacked += e.len;
                if (is_lost) lost += e.len;
                if (e.retrans) retrans += e.len;
                if (is_lost && !e.retrans && first_to_send == SIZE_MAX) first_to_send = i;
                const std::uint8_t flags = f.segments[i]->flags;
                ASSERT_EQ((flags & kSacked) != 0, e.sacked)
                    << "seed " << seed << " step " << step << " segment " << i;
                ASSERT_EQ((flags & kLost) != 0, is_lost)
                    << "seed " << seed << " step " << step << " segment " << i;
            }
            ASSERT_EQ(f.board.sacked_bytes(), sacked) << "seed " << seed << " step " << step;
            ASSERT_EQ(f.board.lost_bytes(), lost) << "seed " << seed << " step " << step;
            ASSERT_EQ(f.board.retrans_bytes(), retrans) << "seed " << seed << " step " << step;
            ASSERT_EQ(f.board.highest_sacked(f.una), model.highest(f.una));
            Seg* again = f.board.next_to_retransmit(f.head());
            ASSERT_EQ(again, first_to_send == SIZE_MAX ? nullptr : f.segments[first_to_send])
                << seed << " " << step;
        };
        const auto resend = [&](std::size_t i) {
            Seg* s = f.segments[i];
            f.resend(s);
            Model::Entry& e = model.entries[i];
            e.retrans = e.resent = true;
            e.sent = s->sent;
            network.push_back({s->seq, s->len});
        };
        for (int step = 0; step < 2000; step++) {
            switch (random() % 8) {
                case 0:
                case 1: {
                    if (f.segments.size() > 150) break;
                    for (unsigned n = random() % 12; n > 0; n--) {
                        const std::uint32_t len = random() % 4 == 0 ? 1 + random() % kSackMss : kSackMss;
                        network.push_back({f.nxt, len});
                        f.send(1, len);
                        model.entries.push_back({f.nxt - len, len, f.now});
                    }
                    break;
                }
                case 2:
                case 3:
                case 4: {  // packets arrive, or not
                    for (unsigned n = random() % 8; n > 0 && !network.empty(); n--) {
                        const std::size_t i = random() % 5 == 0 ? random() % network.size() : 0;
                        const Packet p = network[i];
                        if (random() % 20 != 0)
                            network.erase(network.begin() + static_cast<long>(i));  // else twice
                        if (random() % 100 < loss) continue;
                        auto report = receiver.arrive(p.seq, p.len);
                        acks.push_back({receiver.next, report});
                    }
                    break;
                }
                case 5:
                case 6: {
                    for (unsigned n = random() % 8; n > 0 && !acks.empty(); n--) {
                        const std::size_t i = reorder_acks && random() % 4 == 0 ? random() % acks.size() : 0;
                        Ack a = acks[i];
                        acks.erase(acks.begin() + static_cast<long>(i));
                        if (random() % 100 < loss) continue;
                        if (seq_before(f.una, a.ack)) {
                            std::uint64_t delivered = 0;
                            unsigned gone = 0;
                            while (!model.entries.empty() &&
                                   seq_at_or_before(model.entries[0].seq + model.entries[0].len, a.ack)) {
                                if (!model.entries[0].sacked) delivered += model.entries[0].len;
                                model.entries.pop_front();
                                gone++;
                            }
                            const RecoveryPhase before = f.board.phase();
                            const std::uint32_t point = f.board.recovery_point();
                            const AckOutcome out = f.ack(a.ack);
                            ASSERT_EQ(out.delivered, delivered);
                            ASSERT_EQ(out.segments, gone);
                            ASSERT_EQ(out.recovered,
                                      before != RecoveryPhase::open && !seq_before(a.ack, point));
                        }
                        // What the blocks say, by the definitions.
                        std::uint64_t newly = 0;
                        std::vector<SackBlock> b = a.blocks;
                        if (!b.empty() && (seq_at_or_before(b[0].right, a.ack) ||
                                           (b.size() > 1 && seq_at_or_before(b[1].left, b[0].left) &&
                                            seq_at_or_before(b[0].right, b[1].right)))) {
                            dsacks++;
                            b.erase(b.begin());
                        }
                        for (const SackBlock& block : b) {
                            if (!seq_before(f.una, block.left)) continue;
                            for (Model::Entry& e : model.entries)
                                if (!e.sacked && seq_at_or_before(block.left, e.seq) &&
                                    seq_at_or_before(e.seq + e.len, block.right)) {
                                    e.sacked = true;
                                    e.lost = e.retrans = false;
                                    newly += e.len;
                                }
                        }
                        const SackOutcome out =
                            f.board.on_sack(f.head(), a.blocks, a.ack, f.una, f.nxt, f.delivered());
                        ASSERT_EQ(out.newly_sacked, newly) << "seed " << seed << " step " << step;
                        ASSERT_EQ(out.invalid, 0u);
                        ASSERT_EQ(f.board.dsacks(), dsacks);
                        if (out.reordered != 0) f.rack.reordered(out.reordered, kSackMss);
                        if (f.rack.take_advanced()) {
                            const Usec window =
                                f.rack.window(f.min_rtt, Usec(1000), f.board.phase() != RecoveryPhase::open,
                                              f.board.sacked_segments());
                            const LossOutcome found =
                                f.board.find_lost(f.head(), f.rack, window, Usec(f.now));
                            ASSERT_FALSE(found.more);
                            model.find(f.rack, window, f.now);
                        }
                        check(step);
                    }
                    break;
                }
                default:
                    f.now += random() % 50;
                    if (random() % 60 == 0 && !f.segments.empty()) {
                        const bool all = random() % 2 == 0;
                        f.rto(all);
                        const bool reneged = model.entries[0].sacked;
                        for (Model::Entry& e : model.entries) {
                            if (reneged) e.sacked = false;
                            if (e.sacked) continue;
                            if (!reneged && !all && &e != &model.entries[0] &&
                                f.rack.remaining(Usec(e.sent), Usec(0), Usec(f.now)) > 0)
                                continue;
                            e.lost = true;
                            e.retrans = false;
                        }
                    }
            }
            if (f.board.phase() == RecoveryPhase::open && f.board.lost_segments() != 0 && random() % 2 == 0)
                f.recover();
            for (unsigned n = random() % 3; n > 0; n--) {
                Seg* s = f.board.next_to_retransmit(f.head());
                if (s == nullptr) break;
                for (std::size_t i = 0; i < f.segments.size(); i++)
                    if (f.segments[i] == s) {
                        ASSERT_FALSE(model.entries[i].sacked || model.entries[i].retrans);
                        resend(i);
                    }
            }
            if (random() % 4 == 0) network.resize(std::min<std::size_t>(network.size(), 400));
            check(step);
            if (HasFatalFailure()) return;
        }
    }
}

// 2,000 segments in flight, one in twenty lost, an ACK for each that arrives, then the retransmissions: how
// many segments are walked to grows with their number, not with its square.
TEST(TcpSack, ALargeWindowWithLossCostsAFewStepsForEachAck) {
    for (const bool lose_again : {false, true}) {
        Flight f;
        constexpr int kCount = 2000;
        Receiver receiver{f.una, {}};
        std::mt19937 random(3);
        f.send(kCount);
        std::vector<SackBlock> arriving;
        for (Seg* s : f.segments)
            if (s != f.head() && random() % 20 != 0) arriving.push_back({s->seq, s->seq + s->len});
        g_steps = 0;
        long acks = 0;
        const auto arrive = [&](const SackBlock& packet) {
            auto blocks = receiver.arrive(packet.left, packet.right - packet.left);
            if (blocks.size() > 3) blocks.resize(3);  // beside timestamps
            if (receiver.next != f.una) f.ack(receiver.next);
            f.board.on_sack(f.head(), blocks, receiver.next, f.una, f.nxt, f.delivered());
            f.find();
            acks++;
        };
        for (const SackBlock& packet : arriving) {
            arrive(packet);
            if (f.board.phase() == RecoveryPhase::open && f.board.lost_segments() != 0) f.recover();
        }
        // The first retransmission is lost again, so the others fill holes far behind SND.UNA.
        bool first = true;
        while (Seg* s = f.board.next_to_retransmit(f.head())) {
            const SackBlock packet{s->seq, s->seq + s->len};
            f.resend(s);
            if (!(first && lose_again)) arrive(packet);
            first = false;
        }
        EXPECT_GT(f.board.retrans_segments() + (f.segments.empty() ? 1u : 0u), 0u);
        EXPECT_LE(g_steps, 12 * (acks + kCount)) << "acks " << acks;
    }
}

// A peer may report what it likes, in any order. However many segments are under way, one ACK makes the
// sender pass a bounded number of them, and what it reports is believed all the same, after a few more ACKs.
TEST(TcpSack, ReportsThatJumpAboutCostABoundedWalk) {
    constexpr int kCount = 60'000;
    constexpr long kBound = Board::kMostSteps + 64;
    Flight f;
    f.send(kCount, 48);
    long most = 0;
    const auto costs = [&](auto&& call) {
        g_steps = 0;
        call();
        most = std::max(most, g_steps);
    };
    std::mt19937 random(5);
    for (int i = 0; i < 2000; i++) {
        // One far to the right, one far to the left, two anywhere; of single bytes, of parts, of whole
        // segments.
        const auto any = [&](int from, int to) {
            const int n = from + static_cast<int>(random() % static_cast<unsigned>(to - from));
            const std::uint32_t cut = i % 3 == 0 ? 1 : 0;
            return SackBlock{f.at(n) + cut, f.at(n + 1)};
        };
        const std::vector<SackBlock> blocks{any(kCount - 100, kCount), any(1, 100), any(100, kCount),
                                            any(100, kCount)};
        costs([&] { f.sack(blocks); });
        costs([&] { f.find(); });
        if (f.board.phase() == RecoveryPhase::open && f.board.lost_segments() != 0) f.recover();
    }
    EXPECT_LE(most, 4 * kBound) << "for four blocks";
    // The same report again and again is marked in the end.
    most = 0;
    const Seg* last = f.segments[kCount - 3];
    for (int i = 0; i < 100 && !(last->flags & kSacked); i++)
        costs([&] { f.sack({f.block(kCount - 3, kCount - 2)}); });
    EXPECT_TRUE(last->flags & kSacked);
    EXPECT_LE(most, kBound);
}

// The same for the look for what to send again, and for what of that is lost.
TEST(TcpSack, TheLooksForWhatIsLostAreBounded) {
    constexpr int kCount = 60'000;
    Flight f;
    f.send(kCount, 48);
    f.now += 100;
    f.rto();
    for (int i = 0; i < kCount; i++)
        if (i != kCount - 1000) f.resend(f.segments[static_cast<std::size_t>(i)]);
    long most = 0;
    Seg* found = nullptr;
    for (int i = 0; i < 100 && found == nullptr; i++) {
        g_steps = 0;
        found = f.board.next_to_retransmit(f.head());
        most = std::max(most, g_steps);
    }
    EXPECT_EQ(found, f.segments[kCount - 1000]) << "in the end";
    f.resend(found);
    f.resend(f.segments[7]);
    for (int i = 0; i < 200; i++) {
        g_steps = 0;
        f.sack({f.block(kCount - 1000 + i % 2 * 500, kCount - 999 + i)});
        f.find();
        most = std::max(most, g_steps - f.board.kMostSteps);
    }
    EXPECT_LE(most, Board::kMostSteps + 600);
}

}  // namespace
