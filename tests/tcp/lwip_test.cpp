// SPDX-License-Identifier: BSD-2-Clause
// lwIP as we build and enter it: two PCBs connected back to back through the hooks, on one thread and on
// several at once; what differs per connection; nesting; the memory below.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "libvma/tcp/lwip/glue.h"
#include "libvma/tcp/lwip/memory.h"
#include "libvma/tcp/lwip/piece.h"
#include "libvma/tcp/timers/time.h"

// lwIP's own tcp_output() under the name that the transformation gives it. The library has a sender in its
// place; here it makes lwIP complete.
extern "C" err_t vma_lwip_original_output(tcp_pcb* pcb);

namespace {

using namespace vma::tcp;
using lwip::Entry;
using lwip::Hooks;
using lwip::Parameters;

ip4_addr_t address(unsigned last) { return {lwip_htonl(0xC6120000u | last)}; }  // 198.18.0.last

// One TCP segment on its way, from its header on.
struct Segment {
    ip4_addr_t from{}, to{};
    std::vector<std::uint8_t> bytes;

    const tcp_hdr* header() const { return reinterpret_cast<const tcp_hdr*>(bytes.data()); }
    unsigned flags() const { return TCPH_FLAGS(header()); }
    std::size_t header_length() const { return TCPH_HDRLEN_BYTES(header()); }
    std::size_t data_length() const { return bytes.size() - header_length(); }
    // The option's bytes behind kind and length; empty when it is not there.
    std::vector<std::uint8_t> option(std::uint8_t kind) const {
        for (std::size_t at = TCP_HLEN; at < header_length();) {
            if (bytes[at] == LWIP_TCP_OPT_EOL) break;
            if (bytes[at] == LWIP_TCP_OPT_NOP) {
                ++at;
                continue;
            }
            if (bytes[at] == kind)
                return {bytes.begin() + static_cast<long>(at) + 2,
                        bytes.begin() + static_cast<long>(at) + bytes[at + 1]};
            at += bytes[at + 1];
        }
        return {};
    }
};

constexpr std::uint8_t kSackOption = 5;

// Received bytes in memory of their own, so that a sanitizer sees what reads beyond them.
struct Received {
    pbuf_custom storage;
    std::unique_ptr<std::uint8_t[]> bytes;

    static std::atomic<int> alive;
    static pbuf* make(const Segment& segment) {
        auto* received = new Received{{}, std::make_unique<std::uint8_t[]>(segment.bytes.size())};
        std::ranges::copy(segment.bytes, received->bytes.get());
        ++alive;
        received->storage.custom_free_function = [](pbuf* p) {
            delete reinterpret_cast<Received*>(p);
            --alive;
        };
        const auto length = static_cast<std::uint16_t>(segment.bytes.size());
        return pbuf_alloced_custom(PBUF_RAW, length, PBUF_REF, &received->storage, received->bytes.get(),
                                   length);
    }
};
std::atomic<int> Received::alive{0};

// One end: a connection or a listener with the connection it makes.
struct End {
    explicit End(unsigned last) : ip(address(last)) {}
    ~End() {
        if (pcb != nullptr) {
            Entry entry(pcb, hooks, this, parameters);
            tcp_abandon(pcb, 0);
        }
        if (listener != nullptr) {
            Entry entry(listener, hooks, this, parameters);
            tcp_close(reinterpret_cast<tcp_pcb*>(listener));
        }
    }
    End(const End&) = delete;

    void make(std::uint16_t port) {
        Entry entry(static_cast<tcp_pcb*>(nullptr), hooks, this, parameters);
        pcb = tcp_new();
        ASSERT_NE(pcb, nullptr);
        tcp_arg(pcb, this);
        ASSERT_EQ(tcp_bind(pcb, &ip, port), ERR_OK);
        follow(pcb);
    }
    void listen(std::uint16_t port) {
        make(port);
        Entry entry(pcb, hooks, this, parameters);
        listener = reinterpret_cast<tcp_pcb_listen*>(tcp_listen_with_backlog(pcb, 255));
        EXPECT_EQ(entry.pcb(), nullptr) << "the small PCB replaces the big one";
        pcb = nullptr;
        tcp_accept(reinterpret_cast<tcp_pcb*>(listener), [](void* self, tcp_pcb* accepted, err_t) -> err_t {
            static_cast<End*>(self)->connected = true;
            static_cast<End*>(self)->follow(accepted);
            return ERR_OK;
        });
    }
    void connect(const End& to, std::uint16_t port) {
        Entry entry(pcb, hooks, this, parameters);
        ASSERT_EQ(tcp_connect(pcb, &to.ip, port,
                              [](void* self, tcp_pcb*, err_t) -> err_t {
                                  static_cast<End*>(self)->connected = true;
                                  return ERR_OK;
                              }),
                  ERR_OK);
    }
    void close() {
        Entry entry(pcb, hooks, this, parameters);
        ASSERT_EQ(tcp_close(pcb), ERR_OK);
        if (entry.pcb() == nullptr) pcb = nullptr;
    }
    // As much of `data` as fits into the send buffer.
    std::size_t write(const std::uint8_t* data, std::size_t size) {
        Entry entry(pcb, hooks, this, parameters);
        std::size_t done = 0;
        while (done < size) {
            const std::size_t part = std::min<std::size_t>({size - done, 1000, pcb->snd_buf});
            if (part == 0 ||
                tcp_write(pcb, data + done, static_cast<std::uint16_t>(part), TCP_WRITE_FLAG_COPY) != ERR_OK)
                break;
            done += part;
        }
        vma_lwip_output(pcb);
        return done;
    }
    void input(const Segment& segment) {
        const auto enter = [&](tcp_pcb* at) {
            Entry entry(at, hooks, this, parameters);
            entry.input(lwip::Piece::of(Received::make(segment)), segment.from.addr, segment.to.addr);
            if (tcp_pcb* made = entry.created()) pcb = made;
            if (at == pcb && entry.pcb() == nullptr) pcb = nullptr;
        };
        if (pcb != nullptr) {
            enter(pcb);
        } else if (listener != nullptr) {
            enter(reinterpret_cast<tcp_pcb*>(listener));
        }
    }
    void follow(tcp_pcb* at) {
        tcp_recv(at, [](void* self, tcp_pcb* from, pbuf* p, err_t) -> err_t {
            End& end = *static_cast<End*>(self);
            if (p == nullptr) {
                end.eof = true;
                return ERR_OK;
            }
            for (const pbuf* q = p; q != nullptr; q = q->next) {
                const auto* bytes = static_cast<const std::uint8_t*>(q->payload);
                end.received.insert(end.received.end(), bytes, bytes + q->len);
            }
            const std::uint16_t length = p->tot_len;
            pbuf_free(p);
            if (end.on_receive) end.on_receive();
            tcp_recved(from, length);
            return ERR_OK;
        });
        tcp_err(at, [](void* self, err_t error) { static_cast<End*>(self)->error = error; });
    }

    static err_t transmit(void*, tcp_pcb* pcb) { return vma_lwip_original_output(pcb); }
    static err_t output(void* self, pbuf* p, ip4_addr_t from, ip4_addr_t to, std::uint8_t, std::uint8_t) {
        Segment segment{from, to, std::vector<std::uint8_t>(p->tot_len)};
        EXPECT_EQ(pbuf_copy_partial(p, segment.bytes.data(), p->tot_len, 0), p->tot_len);
        static_cast<End*>(self)->sent.push_back(std::move(segment));
        return ERR_OK;
    }
    static std::uint32_t isn(void* self, ip4_addr_t, std::uint16_t, ip4_addr_t, std::uint16_t) {
        return static_cast<End*>(self)->first;
    }

    ip4_addr_t ip;
    Hooks hooks{.output = &output, .isn = &isn, .transmit = &transmit};
    Parameters parameters{.mss = 1460,
                          .rcv_scale = 7,
                          .wnd = 1u << 20,
                          .snd_buf = 256u << 10,
                          .wnd_update_threshold = 64u << 10,
                          .ooseq_bytes = 1u << 20,
                          .timestamp_offset = 0};
    std::uint32_t first = 0xfffff000u;  // the numbers wrap soon
    tcp_pcb* pcb = nullptr;
    tcp_pcb_listen* listener = nullptr;
    std::deque<Segment> sent;
    std::vector<std::uint8_t> received;
    void (*on_receive)() = nullptr;
    bool connected = false;
    bool eof = false;
    err_t error = ERR_OK;
};

// Carries segments both ways until nothing moves.
void run(End& a, End& b) {
    for (int i = 0; i < 100000 && (!a.sent.empty() || !b.sent.empty()); ++i) {
        End& from = !a.sent.empty() && (b.sent.empty() || i % 2 == 0) ? a : b;
        End& to = &from == &a ? b : a;
        const Segment segment = std::move(from.sent.front());
        from.sent.pop_front();
        to.input(segment);
    }
}

void establish(End& client, End& server) {
    ASSERT_NO_FATAL_FAILURE(server.listen(80));
    ASSERT_NO_FATAL_FAILURE(client.make(5000));
    ASSERT_NO_FATAL_FAILURE(client.connect(server, 80));
    run(client, server);
    ASSERT_TRUE(client.connected);
    ASSERT_TRUE(server.connected);
    ASSERT_EQ(client.pcb->state, ESTABLISHED);
    ASSERT_NE(server.pcb, nullptr);
    ASSERT_EQ(server.pcb->state, ESTABLISHED);
}

std::vector<std::uint8_t> pattern(std::size_t size, std::uint32_t seed) {
    std::vector<std::uint8_t> bytes(size);
    for (auto& byte : bytes) {
        seed = seed * 1664525u + 1013904223u;
        byte = static_cast<std::uint8_t>(seed >> 24);
    }
    return bytes;
}

void send_all(End& from, End& to, const std::vector<std::uint8_t>& data) {
    // An ACK that is being delayed would be sent by a timer, which there is none of here.
    const auto flush = [](End& end) {
        Entry entry(end.pcb, end.hooks, &end, end.parameters);
        if (end.pcb->flags & TF_ACK_DELAY) tcp_ack_now(end.pcb);
        vma_lwip_output(end.pcb);
    };
    std::size_t done = 0;
    for (int i = 0; i < 100000 && (done < data.size() || from.pcb->unacked != nullptr); ++i) {
        done += from.write(data.data() + done, data.size() - done);
        run(from, to);
        flush(to);
        run(from, to);
    }
    EXPECT_EQ(done, data.size());
}

class Lwip : public ::testing::Test {
  protected:
    void SetUp() override {
        lwip::abort_on_assertion(true);
        lwip::flush_thread_cache();
        used_ = lwip::memory_use().used;
        received_ = Received::alive;
    }
    void TearDown() override {
        lwip::flush_thread_cache();
        EXPECT_EQ(lwip::memory_use().used, used_) << "lwIP's memory has leaked";
        EXPECT_EQ(Received::alive, received_) << "received segments were not let go";
        EXPECT_EQ(lwip::failed_assertions(), 0u);
    }

  private:
    std::size_t used_ = 0;
    int received_ = 0;
};

TEST_F(Lwip, HandshakeNegotiatesWhatEachEndWasGiven) {
    End client(1), server(2);
    client.parameters.mss = 1400;
    client.parameters.rcv_scale = 3;
    client.parameters.wnd = 300'000;
    server.parameters.mss = 8000;
    ASSERT_NO_FATAL_FAILURE(server.listen(80));
    ASSERT_NO_FATAL_FAILURE(client.make(5000));
    ASSERT_NO_FATAL_FAILURE(client.connect(server, 80));
    ASSERT_EQ(client.sent.size(), 1u);
    const Segment syn = client.sent.front();
    EXPECT_EQ(syn.flags(), unsigned{TCP_SYN});
    EXPECT_EQ(lwip_ntohl(syn.header()->seqno), client.first - 1) << "lwIP starts one below";
    EXPECT_EQ(syn.option(LWIP_TCP_OPT_MSS), (std::vector<std::uint8_t>{1400 >> 8, 1400 & 255}));
    EXPECT_EQ(syn.option(LWIP_TCP_OPT_WS), std::vector<std::uint8_t>{3});
    EXPECT_EQ(syn.option(LWIP_TCP_OPT_TS).size(), 8u);
    EXPECT_EQ(lwip_ntohs(syn.header()->wnd), 65535) << "a SYN's window is not scaled";
    run(client, server);
    ASSERT_TRUE(client.connected);
    ASSERT_TRUE(server.connected);
    EXPECT_EQ(client.pcb->mss, 1400) << "the peer takes 8000, we have but 1400";
    EXPECT_EQ(server.pcb->mss, 1400);
    EXPECT_EQ(server.pcb->snd_scale, 3);
    EXPECT_EQ(client.pcb->snd_scale, 7);
    EXPECT_EQ(client.pcb->rcv_wnd, 300'000u);
    EXPECT_EQ(server.pcb->rcv_wnd, 1u << 20);
    for (const tcp_pcb* pcb : {client.pcb, server.pcb}) {
        EXPECT_TRUE(pcb->flags & TF_SACK);
        EXPECT_TRUE(pcb->flags & TF_TIMESTAMP);
        EXPECT_TRUE(pcb->flags & TF_WND_SCALE);
    }
}

TEST_F(Lwip, DataArrivesIntactBothWays) {
    End client(1), server(2);
    ASSERT_NO_FATAL_FAILURE(establish(client, server));
    const auto up = pattern(1'000'000, 1), down = pattern(700'000, 2);
    send_all(client, server, up);
    send_all(server, client, down);
    EXPECT_EQ(server.received, up);
    EXPECT_EQ(client.received, down);
}

TEST_F(Lwip, OutOfOrderSegmentsAreKeptAndTold) {
    End client(1), server(2);
    ASSERT_NO_FATAL_FAILURE(establish(client, server));
    const auto data = pattern(5 * 1000, 3);
    client.pcb->cwnd = 1u << 20;
    tcp_nagle_disable(client.pcb);
    ASSERT_EQ(client.write(data.data(), data.size()), data.size());
    ASSERT_GE(client.sent.size(), 3u);
    const Segment lost = client.sent.front();
    client.sent.pop_front();
    const Segment second = client.sent.front();
    while (!client.sent.empty()) {
        server.input(client.sent.front());
        client.sent.pop_front();
    }
    EXPECT_TRUE(server.received.empty());
    ASSERT_FALSE(server.sent.empty());
    const Segment& duplicate = server.sent.back();
    EXPECT_EQ(duplicate.header()->ackno, lost.header()->seqno);
    const auto sack = duplicate.option(kSackOption);
    ASSERT_EQ(sack.size(), 8u);
    std::uint32_t edges[2];
    std::memcpy(edges, sack.data(), sizeof edges);
    EXPECT_EQ(edges[0], second.header()->seqno);
    EXPECT_EQ(lwip_ntohl(edges[1]) - lwip_ntohl(lost.header()->seqno), data.size());
    server.sent.clear();
    server.input(lost);
    EXPECT_EQ(server.received, data);
    send_all(client, server, {});
}

TEST_F(Lwip, OutOfOrderBytesAreBounded) {
    End client(1), server(2);
    server.parameters.ooseq_bytes = 3000;
    ASSERT_NO_FATAL_FAILURE(establish(client, server));
    const auto data = pattern(10 * 1000, 4);
    client.pcb->cwnd = 1u << 20;
    tcp_nagle_disable(client.pcb);
    ASSERT_EQ(client.write(data.data(), data.size()), data.size());
    client.sent.pop_front();
    while (!client.sent.empty()) {
        server.input(client.sent.front());
        client.sent.pop_front();
    }
    std::size_t kept = 0;
    for (const tcp_seg* seg = server.pcb->ooseq; seg != nullptr; seg = seg->next) kept += seg->len;
    EXPECT_GT(kept, 0u);
    EXPECT_LE(kept, 3000u);
    server.sent.clear();
}

TEST_F(Lwip, FinBothWays) {
    End client(1), server(2);
    ASSERT_NO_FATAL_FAILURE(establish(client, server));
    {
        Entry entry(client.pcb, client.hooks, &client, client.parameters);
        ASSERT_EQ(tcp_enqueue_flags(client.pcb, TCP_FIN), ERR_OK);
        client.pcb->state = FIN_WAIT_1;
        vma_lwip_output(client.pcb);
    }
    run(client, server);
    EXPECT_TRUE(server.eof);
    EXPECT_EQ(client.pcb->state, FIN_WAIT_2);
    EXPECT_EQ(server.pcb->state, CLOSE_WAIT);
    const auto data = pattern(3000, 5);
    send_all(server, client, data);
    EXPECT_EQ(client.received, data) << "half closed: the other direction still works";
    server.close();
    EXPECT_EQ(server.pcb->state, LAST_ACK);
    run(client, server);
    EXPECT_TRUE(client.eof);
    EXPECT_EQ(client.pcb->state, TIME_WAIT);
    EXPECT_EQ(server.pcb, nullptr) << "the last ACK frees it, and the Entry tells";
    // A FIN that comes again is acknowledged.
    Segment fin{server.ip, client.ip, std::vector<std::uint8_t>(TCP_HLEN)};
    auto* header = reinterpret_cast<tcp_hdr*>(fin.bytes.data());
    header->src = lwip_htons(80);
    header->dest = lwip_htons(5000);
    header->seqno = lwip_htonl(client.pcb->rcv_nxt - 1);
    header->ackno = lwip_htonl(client.pcb->snd_nxt);
    TCPH_HDRLEN_FLAGS_SET(header, 5, TCP_FIN | TCP_ACK);
    client.input(fin);
    ASSERT_EQ(client.sent.size(), 1u);
    EXPECT_EQ(client.sent.front().flags(), unsigned{TCP_ACK});
    client.sent.clear();
}

TEST_F(Lwip, ResetEndsTheConnection) {
    End client(1), server(2);
    ASSERT_NO_FATAL_FAILURE(establish(client, server));
    {
        Entry entry(client.pcb, client.hooks, &client, client.parameters);
        tcp_abort(client.pcb);
        EXPECT_EQ(entry.pcb(), nullptr);
        client.pcb = nullptr;
    }
    EXPECT_EQ(client.error, ERR_ABRT);
    ASSERT_EQ(client.sent.size(), 1u);
    EXPECT_TRUE(client.sent.front().flags() & TCP_RST);
    run(client, server);
    EXPECT_EQ(server.error, ERR_RST);
    EXPECT_EQ(server.pcb, nullptr);
}

TEST_F(Lwip, ResetBesideTheExactNumberIsChallenged) {
    End client(1), server(2);
    ASSERT_NO_FATAL_FAILURE(establish(client, server));
    Segment reset{client.ip, server.ip, std::vector<std::uint8_t>(TCP_HLEN)};
    auto* header = reinterpret_cast<tcp_hdr*>(reset.bytes.data());
    header->src = lwip_htons(5000);
    header->dest = lwip_htons(80);
    header->seqno = lwip_htonl(server.pcb->rcv_nxt + 100);
    TCPH_HDRLEN_FLAGS_SET(header, 5, TCP_RST);
    server.input(reset);
    ASSERT_NE(server.pcb, nullptr);
    EXPECT_EQ(server.pcb->state, ESTABLISHED);
    ASSERT_EQ(server.sent.size(), 1u);
    EXPECT_EQ(server.sent.front().flags(), unsigned{TCP_ACK});
    server.sent.clear();
}

Segment bare_syn(const End& from, const End& to, const std::vector<std::uint8_t>& options) {
    const std::size_t words = (options.size() + 3) / 4;
    Segment syn{from.ip, to.ip, std::vector<std::uint8_t>(TCP_HLEN + 4 * words)};
    auto* header = reinterpret_cast<tcp_hdr*>(syn.bytes.data());
    header->src = lwip_htons(5000);
    header->dest = lwip_htons(80);
    header->seqno = lwip_htonl(1000);
    header->wnd = lwip_htons(1000);
    TCPH_HDRLEN_FLAGS_SET(header, 5 + words, TCP_SYN);
    std::ranges::copy(options, syn.bytes.begin() + TCP_HLEN);
    return syn;
}

TEST_F(Lwip, PeerWithoutOptionsGetsTheDefaultSegmentSize) {
    End client(1), server(2);
    ASSERT_NO_FATAL_FAILURE(server.listen(80));
    server.input(bare_syn(client, server, {}));
    ASSERT_NE(server.pcb, nullptr);
    EXPECT_EQ(server.pcb->state, SYN_RCVD);
    EXPECT_EQ(server.pcb->mss, 536);
    EXPECT_FALSE(server.pcb->flags & (TF_SACK | TF_TIMESTAMP | TF_WND_SCALE));
    ASSERT_EQ(server.sent.size(), 1u);
    EXPECT_TRUE(server.sent.front().option(LWIP_TCP_OPT_WS).empty());
}

TEST_F(Lwip, TruncatedAndWrongOptionsReadNothingElse) {
    const std::vector<std::vector<std::uint8_t>> cases = {
        {1, 1, 1, LWIP_TCP_OPT_MSS},
        {1, 1, LWIP_TCP_OPT_MSS, 4},
        {1, 1, 1, 254},
        {254, 0, 0, 0},
        {254, 255, 0, 0},
        {LWIP_TCP_OPT_TS, 10, 255, 255},
        {1, 1, LWIP_TCP_OPT_TS, 10, 255, 255, 255, 255, 255, 255, 255, 255},
        {LWIP_TCP_OPT_WS, 3, 255, 0},
    };
    for (const auto& options : cases) {
        End client(1), server(2);
        ASSERT_NO_FATAL_FAILURE(server.listen(80));
        server.input(bare_syn(client, server, options));
        ASSERT_NE(server.pcb, nullptr);
        EXPECT_LE(server.pcb->snd_scale, 14);
        EXPECT_LE(server.pcb->mss, 536);
    }
}

TEST_F(Lwip, SegmentForSomebodyElseIsReset) {
    End client(1), server(2), stranger(3);
    ASSERT_NO_FATAL_FAILURE(establish(client, server));
    Segment ack{stranger.ip, server.ip, std::vector<std::uint8_t>(TCP_HLEN)};
    auto* header = reinterpret_cast<tcp_hdr*>(ack.bytes.data());
    header->src = lwip_htons(5000);
    header->dest = lwip_htons(80);
    TCPH_HDRLEN_FLAGS_SET(header, 5, TCP_ACK);
    server.input(ack);
    EXPECT_EQ(server.pcb->state, ESTABLISHED);
    ASSERT_EQ(server.sent.size(), 1u);
    EXPECT_TRUE(server.sent.front().flags() & TCP_RST);
    EXPECT_EQ(server.sent.front().to.addr, stranger.ip.addr);
    server.sent.clear();
}

TEST_F(Lwip, ShortSegmentsAreDropped) {
    End client(1), server(2);
    ASSERT_NO_FATAL_FAILURE(establish(client, server));
    for (std::size_t size = 1; size < TCP_HLEN; ++size)
        server.input({client.ip, server.ip, std::vector<std::uint8_t>(size, 0xff)});
    Segment longer{client.ip, server.ip, std::vector<std::uint8_t>(TCP_HLEN)};
    TCPH_HDRLEN_FLAGS_SET(reinterpret_cast<tcp_hdr*>(longer.bytes.data()), 15, TCP_ACK);
    server.input(longer);
    EXPECT_TRUE(server.sent.empty());
    EXPECT_EQ(server.pcb->state, ESTABLISHED);
}

TEST_F(Lwip, PacketHookSeesAndDropsSegments) {
    End client(1), server(2);
    ASSERT_NO_FATAL_FAILURE(establish(client, server));
    server.hooks.inpacket = [](void* self, tcp_pcb* pcb, tcp_hdr* header, std::uint16_t, std::uint16_t,
                               std::uint8_t*, pbuf* p) -> err_t {
        EXPECT_EQ(pcb, static_cast<End*>(self)->pcb);
        EXPECT_EQ(header->src, 5000) << "host byte order";
        EXPECT_EQ(p->tot_len, 100);
        return ERR_VAL;
    };
    const auto data = pattern(100, 6);
    client.write(data.data(), data.size());
    ASSERT_EQ(client.sent.size(), 1u);
    const Segment segment = client.sent.front();
    client.sent.clear();
    server.input(segment);
    EXPECT_TRUE(server.received.empty());
    EXPECT_TRUE(server.sent.empty());
    server.hooks.inpacket = nullptr;
    server.input(segment);
    EXPECT_EQ(server.received, data);
    send_all(client, server, {});
}

TEST_F(Lwip, TransmitHookReplacesOutput) {
    End client(1), server(2);
    static int calls;
    calls = 0;
    client.hooks.transmit = [](void*, tcp_pcb* pcb) -> err_t {
        ++calls;
        return vma_lwip_original_output(pcb);
    };
    ASSERT_NO_FATAL_FAILURE(establish(client, server));
    EXPECT_EQ(calls, 2) << "the SYN, and the ACK at the end of processing the SYN|ACK";
    client.hooks.transmit = [](void*, tcp_pcb*) -> err_t { return ERR_OK; };
    client.close();
    EXPECT_TRUE(client.sent.empty());
    EXPECT_EQ(client.pcb->state, FIN_WAIT_1);
    ASSERT_NE(client.pcb->unsent, nullptr);
}

// The connection's own checks do (Acceptance), and bound how many.
TEST_F(Lwip, DoesNotAnswerWhatHasNoData) {
    End client(1), server(2);
    ASSERT_NO_FATAL_FAILURE(establish(client, server));
    {
        Entry entry(client.pcb, client.hooks, &client, client.parameters);
        EXPECT_EQ(tcp_keepalive(client.pcb), ERR_OK);
    }
    ASSERT_EQ(client.sent.size(), 1u);
    server.input(client.sent.front());
    client.sent.clear();
    EXPECT_EQ(server.sent.size(), 0u);
}

TEST_F(Lwip, TimestampsAreMillisecondsWithAnOffset) {
    set_clock([] { return Time(5 * kSecond); });
    {
        End client(1), server(2);
        client.parameters.timestamp_offset = 1000;
        ASSERT_NO_FATAL_FAILURE(client.make(5000));
        ASSERT_NO_FATAL_FAILURE(client.connect(server, 80));
        ASSERT_EQ(client.sent.size(), 1u);
        const auto stamp = client.sent.front().option(LWIP_TCP_OPT_TS);
        ASSERT_EQ(stamp.size(), 8u);
        EXPECT_EQ(stamp[0] << 24 | stamp[1] << 16 | stamp[2] << 8 | stamp[3], 6000);
        EXPECT_EQ(client.pcb->tmr, 5000u);
    }
    set_clock(nullptr);
}

// A callback that enters lwIP for two other connections, once while it processes a segment of the first.
TEST_F(Lwip, EntriesNest) {
    static End* other_client;
    static End* other_server;
    End client(1), server(2), third(3), fourth(4);
    third.parameters.mss = 700;
    ASSERT_NO_FATAL_FAILURE(establish(client, server));
    ASSERT_NO_FATAL_FAILURE(establish(third, fourth));
    other_client = &third;
    other_server = &fourth;
    server.on_receive = [] {
        tcp_pcb* const processed = tcp_input_pcb;
        const tcp_pcb* const active = tcp_active_pcbs;
        const auto source = ip_data.current_iphdr_src.addr;
        const auto data = pattern(1000, 8);
        other_client->write(data.data(), data.size());
        run(*other_client, *other_server);
        EXPECT_EQ(tcp_input_pcb, processed);
        EXPECT_EQ(tcp_active_pcbs, active);
        EXPECT_EQ(ip_data.current_iphdr_src.addr, source);
        EXPECT_EQ(vma_lwip_parameters->mss, 1460);
    };
    const auto data = pattern(20'000, 9);
    send_all(client, server, data);
    EXPECT_EQ(server.received, data);
    EXPECT_GE(fourth.received.size(), 1000u);
    EXPECT_EQ(tcp_active_pcbs, nullptr) << "nothing is entered any more";
    send_all(third, fourth, {});
}

TEST_F(Lwip, NestedEntryMayFreeTheOuterPcb) {
    End client(1), server(2);
    ASSERT_NO_FATAL_FAILURE(establish(client, server));
    Entry outer(client.pcb, client.hooks, &client, client.parameters);
    {
        Entry inner(client.pcb, client.hooks, &client, client.parameters);
        tcp_abandon(client.pcb, 0);
        EXPECT_EQ(inner.pcb(), nullptr);
    }
    EXPECT_EQ(outer.pcb(), nullptr);
    client.pcb = nullptr;
}

TEST_F(Lwip, NothingIsSentOutsideOfAnEntry) {
    End client(1), server(2);
    ASSERT_NO_FATAL_FAILURE(establish(client, server));
    EXPECT_EQ(tcp_send_empty_ack(client.pcb), ERR_RTE);
    EXPECT_EQ(vma_lwip_output(client.pcb), ERR_RTE);
    EXPECT_TRUE(client.sent.empty());
}

// Each thread has connections of its own, inside lwIP at the same time as the others.
TEST_F(Lwip, ThreadsDoNotMeet) {
    constexpr int kThreads = 4;
    std::array<std::vector<std::uint8_t>, kThreads> sent, received;
    std::vector<std::thread> threads;
    std::atomic<int> ready{0};
    for (int i = 0; i < kThreads; ++i) {
        threads.emplace_back([&, i] {
            ++ready;
            while (ready < kThreads) std::this_thread::yield();
            for (int round = 0; round < 20; ++round) {
                End client(static_cast<unsigned>(2 * i + 1)), server(static_cast<unsigned>(2 * i + 2));
                client.parameters.mss = static_cast<std::uint16_t>(500 + 300 * i);
                establish(client, server);
                if (::testing::Test::HasFatalFailure()) return;
                EXPECT_EQ(server.pcb->mss, 500 + 300 * i);
                const auto data = pattern(100'000, static_cast<std::uint32_t>(i * 100 + round));
                send_all(client, server, data);
                sent[static_cast<std::size_t>(i)] = data;
                received[static_cast<std::size_t>(i)] = server.received;
                EXPECT_EQ(server.received, data);
            }
        });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(sent, received);
}

TEST_F(Lwip, ConnectionMovesBetweenThreads) {
    End client(1), server(2);
    ASSERT_NO_FATAL_FAILURE(establish(client, server));
    std::vector<std::uint8_t> all;
    for (std::uint32_t i = 0; i < 20; ++i) {
        const auto data = pattern(10'000, i);
        std::thread([&] { send_all(client, server, data); }).join();
        all.insert(all.end(), data.begin(), data.end());
    }
    EXPECT_EQ(server.received, all);
}

TEST_F(Lwip, MemoryIsAlignedAndItsOwners) {
    std::vector<std::pair<std::uint8_t*, std::size_t>> blocks;
    for (std::size_t size = 1; size <= 2 * lwip::kLargestBlock; size += 37) {
        auto* block = static_cast<std::uint8_t*>(lwip::allocate(size));
        ASSERT_NE(block, nullptr);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 16, 0u);
        std::memset(block, static_cast<int>(size & 255), size);
        blocks.emplace_back(block, size);
    }
    for (const auto& [block, size] : blocks) {
        EXPECT_TRUE(
            std::all_of(block, block + size, [size = size](std::uint8_t b) { return b == (size & 255); }));
        lwip::deallocate(block, size);
    }
}

TEST(TcpTime, RunsAndCanBeReplaced) {
    const Time before = Clock::now();
    EXPECT_GT(before, kNoTime);
    Time after = before;
    for (int i = 0; i < 10'000'000 && after - before < Msec(1); ++i) {
        const Time next = Clock::now();
        ASSERT_GE(next, after);
        after = next;
    }
    EXPECT_GT(after, before);
    set_clock([] { return Time(Nsec(42)); });
    EXPECT_EQ(Clock::now(), Time(Nsec(42)));
    set_clock(nullptr);
    EXPECT_GE(Clock::now(), after);
}

}  // namespace
