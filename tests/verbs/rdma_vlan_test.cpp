// SPDX-License-Identifier: BSD-2-Clause
// Tags on their way down and up, over a queue pair made up by the test.
#include <errno.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "libvma/verbs/rdma/vlan.h"

namespace {

using vma::verbs::rdma::VlanLayer;

// A queue pair below: notes what is sent, completes receives with what the test puts in.
struct Below {
    ibv_context context{};
    ibv_cq cq{};
    ibv_qp qp{};
    std::vector<std::string> sent, headers;
    std::deque<ibv_recv_wr> posted;
    std::deque<ibv_sge> where;
    std::deque<std::pair<std::string, ibv_wc_status>> arrived;
    int accept = 1000;  // requests
    bool armed = false;

    Below() {
        context.abi_compat = this;
        context.ops.post_send = [](ibv_qp* q, ibv_send_wr* wr, ibv_send_wr** bad) {
            Below& b = of(q->context);
            for (; wr != nullptr; wr = wr->next) {
                if (b.accept-- <= 0) {
                    *bad = wr;
                    return ENOMEM;
                }
                std::string frame;
                for (int i = 0; i < wr->num_sge; i++)
                    frame.append(reinterpret_cast<const char*>(wr->sg_list[i].addr), wr->sg_list[i].length);
                b.sent.push_back(frame);
                if (wr->opcode == IBV_WR_TSO)
                    b.headers.emplace_back(static_cast<const char*>(wr->tso.hdr), wr->tso.hdr_sz);
            }
            return 0;
        };
        context.ops.post_recv = [](ibv_qp* q, ibv_recv_wr* wr, ibv_recv_wr** bad) {
            Below& b = of(q->context);
            for (; wr != nullptr; wr = wr->next) {
                if (b.accept-- <= 0) {
                    *bad = wr;
                    return ENOMEM;
                }
                b.posted.push_back(*wr);
                b.where.push_back(wr->sg_list[0]);
            }
            return 0;
        };
        context.ops.poll_cq = [](ibv_cq* c, int count, ibv_wc* wc) {
            Below& b = of(c->context);
            int n = 0;
            for (; n < count && !b.arrived.empty() && !b.posted.empty(); n++) {
                auto [frame, status] = b.arrived.front();
                b.arrived.pop_front();
                wc[n] = {};
                wc[n].wr_id = b.posted.front().wr_id;
                wc[n].status = status;
                wc[n].byte_len = static_cast<std::uint32_t>(frame.size());
                std::memcpy(reinterpret_cast<void*>(b.where.front().addr), frame.data(), frame.size());
                b.posted.pop_front();
                b.where.pop_front();
            }
            return n;
        };
        context.ops.req_notify_cq = [](ibv_cq* c, int) {
            of(c->context).armed = true;
            return 0;
        };
        cq.context = qp.context = &context;
        qp.qp_num = 42;
    }
    static Below& of(ibv_context* c) { return *static_cast<Below*>(c->abi_compat); }
};

const std::string kAddresses = "AAAAAABBBBBB", kTag = std::string("\x81\x00\x01\x2c", 4);  // VLAN 300

struct Vlan : testing::Test {
    Below below;
    VlanLayer layer{300};
    ibv_cq* cq = layer.wrap_recv_cq(&below.cq);
    ibv_qp* qp = layer.wrap_qp(&below.qp, 5);

    // A frame with room in front, as a ring has it.
    struct Frame {
        std::vector<char> memory;
        ibv_sge sge{};
        ibv_send_wr wr{};
        explicit Frame(const std::string& text) : memory(64, '.') {
            memory.insert(memory.end(), text.begin(), text.end());
            sge = {reinterpret_cast<std::uintptr_t>(memory.data() + 64),
                   static_cast<std::uint32_t>(text.size()), 0};
            wr.sg_list = &sge;
            wr.num_sge = 1;
            wr.opcode = IBV_WR_SEND;
        }
        std::string text() const { return {memory.begin() + 64, memory.end()}; }
    };
    void post(std::vector<std::uint64_t> ids) {
        for (auto id : ids) {
            ibv_sge sge{reinterpret_cast<std::uintptr_t>(buffers[id]), sizeof buffers[id], 0};
            ibv_recv_wr wr{id, nullptr, &sge, 1}, *bad = nullptr;
            ASSERT_EQ(ibv_post_recv(qp, &wr, &bad), 0);
        }
    }
    char buffers[8][64] = {};
};

TEST_F(Vlan, TagsWhatIsSent) {
    Frame frame(kAddresses + "rest of it");
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(qp, &frame.wr, &bad), 0);
    ASSERT_EQ(below.sent.size(), 1u);
    EXPECT_EQ(below.sent[0], kAddresses + kTag + "rest of it");
    EXPECT_EQ(frame.sge.length, 22u) << "the caller's request is as it was";
    EXPECT_EQ(frame.sge.addr, reinterpret_cast<std::uintptr_t>(frame.memory.data() + 64));
    EXPECT_EQ(qp->qp_num, 42u);
}

// An IPv4 header's beginning behind the addresses.
std::string ipv4(int tos) {
    return kAddresses + std::string("\x08\x00\x45", 3) + static_cast<char>(tos) + "rest";
}

struct VlanPriority : Vlan {
    VlanPriority() {
        vma::net::VlanPriorities map;
        map.map(6, 5);
        map.map(2, 1);
        prioritising.emplace(300, map);
        prioritising->wrap_recv_cq(&below.cq);
        qp = prioritising->wrap_qp(&below.qp, 5);
    }
    // The third byte of the tag that the frame gets.
    int tag_of(const std::string& text) {
        Frame frame(text);
        ibv_send_wr* bad = nullptr;
        EXPECT_EQ(ibv_post_send(qp, &frame.wr, &bad), 0);
        const std::string sent = below.sent.back();
        EXPECT_EQ(sent.substr(0, 14), kAddresses + kTag.substr(0, 2));
        EXPECT_EQ(sent.substr(15), kTag.substr(3) + text.substr(12)) << "nothing else is changed";
        return static_cast<unsigned char>(sent[14]);
    }
    std::optional<VlanLayer> prioritising;
};

TEST_F(VlanPriority, FollowsTheTosByte) {
    EXPECT_EQ(tag_of(ipv4(0)), 0x01);
    EXPECT_EQ(tag_of(ipv4(0x10)), 0xa1);
    EXPECT_EQ(tag_of(ipv4(0xb2)), 0xa1) << "with other bits, and ECN";
    EXPECT_EQ(tag_of(ipv4(0x08)), 0x21);
    EXPECT_EQ(tag_of(ipv4(0x18)), 0x01) << "no entry";
    EXPECT_EQ(tag_of(ipv4(0)), 0x01) << "each frame has its own";
    EXPECT_EQ(tag_of(kAddresses + std::string("\x08\x06\x00\x10", 4)), 0x01) << "ARP";
    EXPECT_EQ(tag_of(kAddresses + std::string("\x08\x00\x45", 3)), 0x01) << "its header is elsewhere";
}

TEST_F(VlanPriority, OfLargeSends) {
    Frame payload("payload");
    std::string header = ipv4(0x10) + std::string(36, 'h');
    payload.wr.opcode = IBV_WR_TSO;
    payload.wr.tso.hdr = header.data();
    payload.wr.tso.hdr_sz = static_cast<std::uint16_t>(header.size());
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(qp, &payload.wr, &bad), 0);
    EXPECT_EQ(below.headers[0], kAddresses + std::string("\x81\x00\xa1\x2c", 4) + header.substr(12));
}

TEST_F(Vlan, ChainsAndRefusals) {
    std::deque<Frame> frames;
    for (int i = 0; i < 40; i++) frames.emplace_back(kAddresses + std::to_string(i));
    for (int i = 0; i + 1 < 40; i++) frames[i].wr.next = &frames[i + 1].wr;
    below.accept = 20;
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_send(qp, &frames[0].wr, &bad), ENOMEM);
    ASSERT_EQ(bad, &frames[20].wr);
    for (int i = 20; i < 40; i++) EXPECT_EQ(frames[i].text(), kAddresses + std::to_string(i)) << "untouched";
    for (int i = 0; i + 1 < 40; i++) EXPECT_EQ(frames[i].wr.next, &frames[i + 1].wr);
    below.accept = 100;
    EXPECT_EQ(ibv_post_send(qp, bad, &bad), 0);
    ASSERT_EQ(below.sent.size(), 40u);
    for (int i = 0; i < 40; i++) EXPECT_EQ(below.sent[i], kAddresses + kTag + std::to_string(i));
}

TEST_F(Vlan, LargeSends) {
    Frame payload("payload");
    std::string header = kAddresses + std::string(42, 'h');
    payload.wr.opcode = IBV_WR_TSO;
    payload.wr.tso.hdr = header.data();
    payload.wr.tso.hdr_sz = static_cast<std::uint16_t>(header.size());
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(qp, &payload.wr, &bad), 0);
    EXPECT_EQ(below.headers[0], kAddresses + kTag + std::string(42, 'h'));
    EXPECT_EQ(below.sent[0], "payload");
    EXPECT_EQ(payload.wr.tso.hdr, header.data());
    EXPECT_EQ(payload.wr.tso.hdr_sz, header.size());
}

TEST_F(Vlan, WhatIsNoFrame) {
    Frame good(kAddresses + "good"), bad_one("short");
    good.wr.next = &bad_one.wr;
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_send(qp, &good.wr, &bad), EINVAL);
    EXPECT_EQ(bad, &bad_one.wr);
    EXPECT_EQ(below.sent.size(), 1u);
}

TEST_F(Vlan, TakesTagsOut) {
    post({3, 1, 2, 0});
    below.arrived = {{kAddresses + kTag + "first", IBV_WC_SUCCESS},
                     {"", IBV_WC_WR_FLUSH_ERR},
                     {kAddresses + "untagged", IBV_WC_SUCCESS},
                     {std::string(62, 'x'), IBV_WC_SUCCESS}};
    ibv_wc wc[8];
    ASSERT_EQ(ibv_poll_cq(cq, 8, wc), 4);
    EXPECT_EQ(wc[0].wr_id, 3u);
    EXPECT_EQ(std::string(buffers[3] + 4, wc[0].byte_len), kAddresses + "first");
    EXPECT_EQ(std::string(buffers[2] + 4, wc[2].byte_len), kAddresses + "untagged");
    EXPECT_EQ(wc[3].byte_len, 0u) << "no room to move it";
}

TEST_F(Vlan, QueueWrapsAndResets) {
    ibv_wc wc[8];
    for (int round = 0; round < 20; round++) {
        post({4, 5, 6});
        for (int i = 0; i < 3; i++)
            below.arrived.emplace_back(kAddresses + kTag + "round " + std::to_string(round), IBV_WC_SUCCESS);
        ASSERT_EQ(ibv_poll_cq(cq, 8, wc), 3);
        for (int i = 0; i < 3; i++)
            EXPECT_EQ(std::string(buffers[wc[i].wr_id] + 4, wc[i].byte_len),
                      kAddresses + "round " + std::to_string(round));
    }
    post({1, 2});
    below.posted.clear();
    below.where.clear();
    layer.reset();
    post({7});
    below.arrived.emplace_back(kAddresses + kTag + "after", IBV_WC_SUCCESS);
    ASSERT_EQ(ibv_poll_cq(cq, 8, wc), 1);
    EXPECT_EQ(std::string(buffers[7] + 4, wc[0].byte_len), kAddresses + "after");
}

TEST_F(Vlan, Arms) {
    EXPECT_EQ(ibv_req_notify_cq(cq, 0), 0);
    EXPECT_TRUE(below.armed);
}

}  // namespace
