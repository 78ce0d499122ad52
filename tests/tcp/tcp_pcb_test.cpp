// SPDX-License-Identifier: BSD-2-Clause
// What header prediction does to lwIP's control block, beside what lwIP itself does.
#include <gtest/gtest.h>

#include <sstream>

#include "libvma/tcp/lwip/glue.h"
#include "libvma/tcp/lwip/pcb.h"
#include "libvma/tcp/lwip/piece.h"
#include "tcp_scripted.h"

namespace vma::tcp::test {
namespace {

constexpr lwip::Parameters kParameters{.mss = 1460,
                                       .rcv_scale = 7,
                                       .wnd = 1u << 20,
                                       .snd_buf = 1u << 20,
                                       .wnd_update_threshold = 0x7fffffff,
                                       .ooseq_bytes = 1u << 20,
                                       .timestamp_offset = 0};
constexpr lwip::Hooks kHooks{
    .output = [](void*, pbuf*, ip4_addr_t, ip4_addr_t, std::uint8_t, std::uint8_t) -> err_t {
        return ERR_OK;
    },
    .isn = [](void*, ip4_addr_t, std::uint16_t, ip4_addr_t, std::uint16_t) -> std::uint32_t { return 1; },
    .transmit = [](void*, tcp_pcb*) -> err_t { return ERR_OK; }};

// An established connection of lwIP's, and nothing around it.
struct Block {
    explicit Block(Random random) {
        {
            lwip::Entry entry(static_cast<tcp_pcb*>(nullptr), kHooks, nullptr, kParameters);
            pcb = tcp_new();
        }
        pcb->state = ESTABLISHED;
        pcb->local_ip.addr = htonl(1), pcb->remote_ip.addr = htonl(2);
        pcb->local_port = 10, pcb->remote_port = 20;
        pcb->recv = [](void*, tcp_pcb*, pbuf* p, err_t) -> err_t {
            if (p != nullptr) pbuf_free(p);
            return ERR_OK;
        };
        pcb->mss = 1460;
        if (below(random, 2) != 0) pcb->flags |= TF_WND_SCALE, pcb->snd_scale = 5, pcb->rcv_scale = 7;
        if (below(random, 4) == 0) pcb->flags |= TF_ACK_NOW;
        pcb->rcv_nxt = static_cast<std::uint32_t>(random());
        pcb->rcv_wnd = 1 + below(random, 200'000);
        pcb->rcv_ann_wnd = below(random, pcb->rcv_wnd + 1);
        pcb->rcv_ann_right_edge = pcb->rcv_nxt - 2000 + below(random, pcb->rcv_wnd);
        pcb->lastack = static_cast<std::uint32_t>(random());
        pcb->snd_wnd = below(random, 100'000);
        pcb->snd_wnd_max = pcb->snd_wnd + below(random, 2) * 1000;
        pcb->snd_wl1 = pcb->rcv_nxt - below(random, 100);
        pcb->snd_wl2 = pcb->lastack - below(random, 100);
        std::uint32_t seq = pcb->lastack;
        for (std::uint32_t sent = below(random, 6), i = 0; i < sent + below(random, 3); i++) {
            lwip::Segment* s = lwip::Segment::make(1460, seq, htons(10), htons(20));
            s->grow(1 + below(random, 1460));
            seq = s->end();
            tcp_seg** end = i < sent ? &pcb->unacked : &pcb->unsent;
            while (*end != nullptr) end = &(*end)->next;
            *end = lwip::Segment::raw(s);
            pcb->snd_queuelen++;
            if (i < sent) pcb->snd_nxt = seq;
        }
        if (pcb->unacked == nullptr) pcb->snd_nxt = pcb->lastack;
        pcb->snd_lbb = seq;
    }
    ~Block() {
        lwip::Entry entry(pcb, kHooks, nullptr, kParameters);
        tcp_abandon(pcb, 0);
    }
    Block(const Block&) = delete;

    // All that somebody may read. Of the rest lwIP's timers and its sending are the readers, which nobody
    // calls, or Pcb::rest() resets it.
    std::string text() const {
        std::ostringstream out;
        out << pcb->state << ' ' << (pcb->flags & ~TF_ACK_DELAY) << ' ' << pcb->mss << " receives "
            << pcb->rcv_nxt << ' ' << pcb->rcv_wnd << ' ' << pcb->rcv_ann_wnd << ' '
            << pcb->rcv_ann_right_edge << " sends " << pcb->lastack << ' ' << pcb->snd_nxt << ' '
            << pcb->snd_wnd << ' ' << pcb->snd_wnd_max << ' ' << pcb->snd_wl1 << ' ' << pcb->snd_wl2 << ' '
            << pcb->snd_lbb << ' ' << pcb->snd_queuelen << ' ' << pcb->ts_recent << ' ' << pcb->ts_lastacksent
            << " unacked";
        for (const tcp_seg* s = pcb->unacked; s != nullptr; s = s->next)
            out << ' ' << ntohl(s->tcphdr->seqno) << '+' << s->len;
        out << " unsent";
        for (const tcp_seg* s = pcb->unsent; s != nullptr; s = s->next)
            out << ' ' << ntohl(s->tcphdr->seqno) << '+' << s->len;
        out << ' ' << (pcb->ooseq != nullptr) << (pcb->refused_data != nullptr);
        return std::move(out).str();
    }
    lwip::Pcb& view() { return *lwip::Pcb::of(pcb); }

    tcp_pcb* pcb;
};

TEST(TcpPcb, AnExpectedSegmentLeavesItAsLwipDoes) {
    Random random(1);
    const auto before = memory_used();
    for (int i = 0; i < 20'000; i++) {
        const auto seed = static_cast<std::uint32_t>(random());
        Block by_lwip{Random(seed)}, predicted{Random(seed)};
        ASSERT_EQ(by_lwip.text(), predicted.text());
        lwip::Pcb &a = by_lwip.view(), &b = predicted.view();
        ASSERT_TRUE(b.predicts());
        const std::uint32_t seq = a.rcv_nxt(), sent = a.snd_nxt() - a.snd_una();
        const std::uint32_t ack = a.snd_una() + (below(random, 2) != 0 ? sent : below(random, sent + 1));
        const std::uint32_t length =
            below(random, 3) == 0 ? 0 : below(random, std::min(a.rcv_wnd(), 60'000u) + 1);
        const auto window = static_cast<std::uint16_t>(random());
        const bool news = below(random, 2) != 0;
        for (lwip::Pcb* pcb : {&a, &b}) news ? pcb->take_window(seq) : pcb->keep_window(seq, ack);

        lwip::Piece* p = lwip::Piece::block(sizeof(net::TcpHeader) + length);
        net::TcpHeader header{};
        header.src_port = htons(20), header.dst_port = htons(10);
        header.seq = htonl(seq), header.ack = htonl(ack);
        header.data_offset = sizeof header / 4 << 4;
        header.flags = static_cast<std::uint8_t>(below(random, 2) != 0 ? kAck : kAck | kPsh);
        header.window = htons(window);
        p->append(&header, sizeof header);
        const std::string data(length, 'x');
        p->append(data.data(), length);
        a.rest();
        {
            lwip::Entry entry(by_lwip.pcb, kHooks, nullptr, kParameters);
            entry.input(p, htonl(2), htonl(1));
        }
        b.acknowledged(seq, ack, std::uint32_t{window} << b.snd_scale());
        if (length != 0) b.received(length, kParameters.wnd);
        ASSERT_EQ(by_lwip.text(), predicted.text())
            << "seed " << seed << ", ack " << ack << ", data " << length;
    }
    EXPECT_EQ(memory_used(), before);
}

}  // namespace
}  // namespace vma::tcp::test
