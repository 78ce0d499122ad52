// SPDX-License-Identifier: BSD-2-Clause
// Random requests, once through libmlx5's data path and once through the library's own: the same frames on
// the wire, the same completions.
#include <cstring>
#include <random>

#include "tests/support/mlx5_sim/tests/fixture.h"
#include "tests/verbs/sim_mlx5/direct_rig.h"

namespace mlx5_sim::test {
namespace {

struct Request {
    std::vector<std::uint8_t> frame;    // of a large send: the payload
    std::vector<std::uint32_t> pieces;  // lengths of the buffers, together the frame
    std::vector<std::uint8_t> header;   // not empty: a large send
    std::uint16_t mss = 0;
    unsigned flags = 0;
};

// libmlx5 44 loses its place where the header of a large send goes on at the queue's beginning. So the test
// knows where libmlx5 is: the simulated adapter wants no inline header, so libmlx5 writes none.
struct PlainPosition {
    std::uint32_t entries, at = 0;
    static std::uint32_t units(const Request& r) {
        std::uint32_t n =
            r.header.empty() ? 2 : 2 + static_cast<std::uint32_t>((r.header.size() - 2 + 15) / 16);
        if ((r.flags & IBV_SEND_INLINE) != 0)
            return n + static_cast<std::uint32_t>((4 + r.frame.size() + 15) / 16);
        for (std::uint32_t length : r.pieces) n += length != 0;
        return n;
    }
    bool header_wraps(const Request& r) const {
        return !r.header.empty() && at % entries * 64 + 30 + r.header.size() > entries * 64;
    }
    void post(const Request& r) { at += (units(r) + 3) / 4; }
};

class Compare {
  public:
    explicit Compare(std::uint32_t cqe_size) {
        SideOptions options;
        options.max_tso_header = 94;
        options.cqe_size = cqe_size;
        direct = std::make_unique<Side>(kSecond, options);
        options.direct = false;
        plain = std::make_unique<Side>(kFirst, options);
        for (Side* side : {plain.get(), direct.get()}) side->take_all();
        nic(kFirst).on_transmit([this](Frame frame) { frames[0].push_back(std::move(frame)); });
        nic(kSecond).on_transmit([this](Frame frame) { frames[1].push_back(std::move(frame)); });
        mlx5dv_qp queues{};
        mlx5dv_obj object{};
        object.qp = {plain->real_qp, &queues};
        EXPECT_EQ(mlx5dv_init_obj(&object, MLX5DV_OBJ_QP), 0);
        position.entries = queues.sq.wqe_cnt;
    }
    ~Compare() { join(kFirst, kSecond); }

    void post(Side& side, const std::vector<Request>& requests, std::uint64_t first_id) {
        std::vector<std::vector<ibv_sge>> lists(requests.size());
        std::vector<ibv_send_wr> wr(requests.size());
        for (std::size_t i = 0; i < requests.size(); i++) {
            const Request& r = requests[i];
            const std::uint64_t id = first_id + i;
            std::memcpy(side.tx_slot(id), r.frame.data(), r.frame.size());
            std::uint32_t from = 0;
            for (std::uint32_t length : r.pieces) {
                lists[i].push_back(side.sge(Side::kHalf + id % Side::kHalf, from, length));
                from += length;
            }
            wr[i].wr_id = id;
            wr[i].next = i + 1 < wr.size() ? &wr[i + 1] : nullptr;
            wr[i].sg_list = lists[i].data();
            wr[i].num_sge = static_cast<int>(lists[i].size());
            wr[i].opcode = r.header.empty() ? IBV_WR_SEND : IBV_WR_TSO;
            wr[i].send_flags = r.flags;
            wr[i].tso = {const_cast<std::uint8_t*>(r.header.data()),
                         static_cast<std::uint16_t>(r.header.size()), r.mss};
        }
        ibv_send_wr* bad = nullptr;
        ASSERT_EQ(ibv_post_send(side.qp, wr.data(), &bad), 0);
    }

    std::unique_ptr<Side> plain, direct;
    std::vector<Frame> frames[2];
    PlainPosition position{};
};

void compare_completions(const std::vector<ibv_wc>& plain, const std::vector<ibv_wc>& direct) {
    ASSERT_EQ(direct.size(), plain.size());
    for (std::size_t i = 0; i < plain.size(); i++) {
        ASSERT_EQ(direct[i].wr_id, plain[i].wr_id);
        ASSERT_EQ(direct[i].status, plain[i].status);
        ASSERT_EQ(direct[i].opcode, plain[i].opcode);
        if (plain[i].opcode != IBV_WC_RECV) continue;
        ASSERT_EQ(direct[i].byte_len, plain[i].byte_len);
        ASSERT_EQ(direct[i].wc_flags & IBV_WC_IP_CSUM_OK, plain[i].wc_flags & IBV_WC_IP_CSUM_OK);
    }
}

class DirectCompare : public Joined, public testing::WithParamInterface<std::uint32_t> {
  protected:
    void SetUp() override {
        Joined::SetUp();
        for (const char* name : {kFirst, kSecond}) nic(name).check_blue_flames(true);
    }
};

TEST_P(DirectCompare, Sends) {
    Compare c(GetParam());
    std::mt19937 random(GetParam());
    std::uint64_t id = 0;
    std::size_t copied = 0, large = 0, several = 0;
    for (int round = 0; round < 20000; round++) {
        std::vector<Request> batch(1 + (random() % 4 == 0 ? random() % 4 : 0));
        for (Request& r : batch) {
            const auto seed = static_cast<std::uint8_t>(random());
            if (random() % 8 == 0) {
                r.header = udp_frame(54 + random() % 4 * 4, seed);
                r.header[23] = 6;  // TCP
                r.header[46] = static_cast<std::uint8_t>((r.header.size() - 34) / 4 << 4);
                r.frame.resize(1 + random() % 3000);
                for (auto& byte : r.frame) byte = static_cast<std::uint8_t>(random());
                r.mss = static_cast<std::uint16_t>(300 + random() % 1200);
                r.flags = IBV_SEND_IP_CSUM;
            }
            if (r.header.empty() || c.position.header_wraps(r)) {
                r.header.clear();
                r.frame = udp_frame(random() % 2 == 0 ? 44 + random() % 161 : 44 + random() % 1470, seed);
                if (random() % 2 == 0) r.flags |= IBV_SEND_IP_CSUM;
                if (r.frame.size() <= 204 && random() % 3 != 0) r.flags |= IBV_SEND_INLINE;
            }
            // Up to four buffers, some of them empty; the first holds an Ethernet header at least, as libmlx5
            // wants it.
            auto left = static_cast<std::uint32_t>(r.frame.size());
            for (auto n = random() % 4; n != 0 && left > 20; n--) {
                const std::uint32_t length = r.pieces.empty() ? 18 + random() % (left - 18) : random() % left;
                r.pieces.push_back(length);
                left -= length;
            }
            r.pieces.push_back(left);
            copied += (r.flags & IBV_SEND_INLINE) != 0;
            large += !r.header.empty();
            several += r.pieces.size() > 1;
            if (random() % 3 == 0) r.flags |= IBV_SEND_SIGNALED;
            c.position.post(r);
        }
        if (batch.back().flags & IBV_SEND_SIGNALED || round % 4 == 0) batch.back().flags |= IBV_SEND_SIGNALED;
        c.post(*c.plain, batch, id);
        c.post(*c.direct, batch, id);
        if (HasFatalFailure()) return;
        id += batch.size();
        ASSERT_TRUE(settle());
        ASSERT_EQ(c.frames[1], c.frames[0]) << "request " << id;
        for (auto& frames : c.frames) frames.clear();
        compare_completions(c.plain->poll(c.plain->send_cq, 64), c.direct->poll(c.direct->send_cq, 64));
        if (HasFatalFailure()) return;
    }
    EXPECT_GT(copied, 2000u);
    EXPECT_GT(large, 2000u);
    EXPECT_GT(several, 2000u);
}

TEST_P(DirectCompare, Receives) {
    Compare c(GetParam());
    std::mt19937 random(GetParam());
    std::uint64_t posted = 0, received = 0;
    while (received < 20000) {
        for (auto n = random() % 40; n != 0 && posted - received < 64; n--, posted++)
            for (Side* side : {c.plain.get(), c.direct.get()}) ASSERT_EQ(side->receive(posted), 0);
        for (auto n = random() % 40; n != 0; n--) {  // more than there are receives, now and then
            auto frame = udp_frame(60 + random() % 1400, static_cast<std::uint8_t>(random()));
            if (random() % 4 == 0)
                frame[14 + random() % 40] ^= 1;  // wrong sums, other protocols, fragments, options
            if (random() % 16 == 0) frame[12] = 0x86, frame[13] = 0xdd;
            ASSERT_EQ(nic(kFirst).receive(frame), nic(kSecond).receive(frame));
        }
        ASSERT_TRUE(settle());
        const auto plain = c.plain->poll(c.plain->recv_cq, 64),
                   direct = c.direct->poll(c.direct->recv_cq, 64);
        compare_completions(plain, direct);
        if (HasFatalFailure()) return;
        for (const ibv_wc& wc : plain)
            ASSERT_EQ(std::memcmp(c.plain->rx_slot(wc.wr_id), c.direct->rx_slot(wc.wr_id), wc.byte_len), 0);
        received += plain.size();
    }
}

INSTANTIATE_TEST_SUITE_P(CqeSize, DirectCompare, testing::Values(64u, 128u));

}  // namespace
}  // namespace mlx5_sim::test
