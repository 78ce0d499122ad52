// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/send/segment_writer.h"

#include <errno.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "libvma/tcp/connection.h"
#include "libvma/tcp/handshake/syn.h"
#include "libvma/tcp/lwip/piece.h"
#include "libvma/tcp/recovery/segments.h"
#include "libvma/tcp/sequence.h"
#include "libvma/tcp/tcb_inline.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {
namespace {

constexpr Msec kRetry{1};  // after a full device queue
// In front of a TCP header: link and IP headers, and what aligns the TCP header.
constexpr std::size_t kRoom = 36;
constexpr std::size_t kMaxTcpHeader = 60;
constexpr std::size_t kTosAt = 15;  // in the frame

}  // namespace

void SegmentWriter::use(const Path& path) noexcept {
    net::UdpTemplate t;
    t.src_mac = path.src_mac;
    t.dst_mac = path.dst_mac;
    t.src_addr = tcb_.ends.local.address.v4();
    t.dst_addr = tcb_.ends.remote.address.v4();
    t.tos = tcb_.options.path.tos & static_cast<std::uint8_t>(~Ecn::kIpBits);
    t.ttl = tcb_.options.path.ttl;
    t.dont_fragment = forbids_fragments();
    net::build_ip_headers(t, IPPROTO_TCP, ip_headers_);
}

bool SegmentWriter::forbids_fragments() const noexcept {
    return tcb_.options.path.dont_fragment && (!tcb_.route.may_be_cut() || tcb_.options.never_cut);
}

bool SegmentWriter::send(lwip::Segment* seg, bool again) noexcept {
    Tcb& t = tcb_;
    lwip::Pcb* const pcb = t.pcb;
    alignas(4) std::uint8_t frame[kRoom + kMaxTcpHeader];
    std::uint8_t* const head = frame + kRoom;
    auto* h = reinterpret_cast<net::TcpHeader*>(head);
    const std::uint8_t own = seg->control();
    const bool syn = (own & TCP_SYN) != 0;
    h->src_port = t.ends.local.port;
    h->dst_port = t.ends.remote.port;
    h->seq = htonl(seg->seq());
    h->ack = pcb->in(State::syn_sent) ? 0 : htonl(pcb->rcv_nxt());
    std::uint8_t flags = static_cast<std::uint8_t>(own & (TCP_SYN | TCP_FIN));
    if (!pcb->in(State::syn_sent)) flags |= TCP_ACK;
    if (seg->size() != 0 && seg->next() == nullptr) flags |= TCP_PSH;
    std::uint8_t ecn = 0;  // IP's bits
    if (syn) {
        flags |= pcb->in(State::syn_sent)
                     ? t.ecn.syn(t.options.ecn_asks || t.route.path().ecn, again, t.options.ecn_fallback)
                     : t.ecn.syn_ack();
    } else if (__builtin_expect(t.ecn.on(), 0)) {
        if (!again && seg->size() != 0) ecn = Ecn::kCapable0;
        flags |= t.ecn.segment(ecn != 0);
    }
    h->flags = flags;
    const std::uint32_t window = syn ? std::min(pcb->announced_wnd(), 0xffffu) : pcb->window_field();
    h->window = htons(static_cast<std::uint16_t>(window));
    h->checksum = 0;
    h->urgent = 0;
    const Time now = Clock::now();
    const std::size_t length = sizeof *h + put_options(head + sizeof *h, seg, now);
    h->data_offset = static_cast<std::uint8_t>(length / 4 << 4);

    const iovec data{seg->data(), seg->size()};
    const std::uint32_t mss = t.shown.mss(), frames = seg->size() <= mss ? 1 : (seg->size() + mss - 1) / mss;
    if (!transmit(head, length, &data, seg->size() != 0, seg->size(), frames, ecn)) {
        if (!syn && (flags & Ecn::kReduced) != 0) t.ecn.reduced();  // it is yet to be told
        return false;
    }
    t.acks.sent();
    const std::uint32_t end = seg->end();
    seg->set_sent(microseconds(now));
    if (again) {
        t.counters.retransmits++;
        if (t.route.ring() != nullptr) t.route.ring()->note_retransmit();
        t.counters.bytes_again += seg->size();
        t.recovery.sent_again(end, seg->size(), now);
    } else {
        if (seq_before(pcb->snd_nxt(), end)) pcb->set_snd_nxt(end);
        t.timers.tail_at = kNoTime;
        t.recovery.sent(end, seg->size(), now);
        if (seg->size() != 0 && seg->size() < frames * mss) t.sender.small_sent(end);
    }
    if (syn) t.opening.syn_sent(window, now);
    if (seg->size() != 0) {
        t.acks.data_sent(now);
        t.counters.bytes_out += seg->size();
        t.counters.data_segments_out += frames;
    }
    if (t.timers.rto_at == kNoTime) t.timers.rto_at = now + t.recovery.rto();
    return true;
}

std::size_t SegmentWriter::put_options(std::uint8_t* at, const lwip::Segment* seg, Time now) noexcept {
    Tcb& t = tcb_;
    lwip::Pcb* const pcb = t.pcb;
    std::uint8_t* const start = at;
    auto word = [&](std::uint32_t v) {
        v = htonl(v);
        std::memcpy(at, &v, 4);
        at += 4;
    };
    const bool syn = seg != nullptr && seg->syn();
    if (syn) {
        word(0x02040000u | (t.route.wanted_mss() & 0xffff));
        const bool active = pcb->in(State::syn_sent);
        if (t.options.sack && (active || pcb->sack())) word(0x01010402u);
        if (t.options.window_scaling && (active || pcb->window_scaling()))
            word(0x01030300u | t.opening.own_scale());
        if (t.options.timestamps && (active || pcb->timestamps())) {
            word(0x0101080au);
            word(t.opening.timestamp(now));
            word(active ? 0 : pcb->ts_recent());
        }
        return static_cast<std::size_t>(at - start);
    }
    if (pcb->timestamps()) {
        word(0x0101080au);
        word(t.opening.timestamp(now));
        word(pcb->ts_recent());
    }
    if (seg == nullptr && pcb->sack()) {
        SackBlock blocks[Reassembly::kMaxBlocks];
        const std::size_t n = t.receiver.sack_blocks(blocks, pcb->timestamps() ? 3 : 4);
        if (n != 0) {
            word(0x01010500u | static_cast<std::uint32_t>(2 + 8 * n));
            for (const SackBlock& block : std::span(blocks, n)) {
                word(block.left);
                word(block.right);
            }
        }
    }
    return static_cast<std::size_t>(at - start);
}

int SegmentWriter::headers(void* out, std::size_t room) const noexcept {
    if (!tcb_.route.known()) return -ENOTCONN;
    std::uint8_t all[sizeof ip_headers_ + sizeof(net::TcpHeader)];
    net::TcpHeader h{};
    h.src_port = tcb_.ends.local.port;
    h.dst_port = tcb_.ends.remote.port;
    h.seq = htonl(tcb_.pcb->snd_nxt());
    h.ack = htonl(tcb_.pcb->rcv_nxt());
    h.data_offset = sizeof h / 4 << 4;
    h.flags = TCP_ACK;
    std::memcpy(all, ip_headers_, sizeof ip_headers_);
    std::memcpy(all + sizeof ip_headers_, &h, sizeof h);
    if (room != 0) std::memcpy(out, all, std::min(room, sizeof all));
    return sizeof all;
}

void SegmentWriter::send_ack(std::uint32_t back) noexcept {
    Tcb& t = tcb_;
    lwip::Pcb* const pcb = t.pcb;
    alignas(4) std::uint8_t frame[kRoom + kMaxTcpHeader];
    std::uint8_t* const head = frame + kRoom;
    auto* h = reinterpret_cast<net::TcpHeader*>(head);
    h->src_port = t.ends.local.port;
    h->dst_port = t.ends.remote.port;
    h->seq = htonl(pcb->snd_nxt() - back);
    h->ack = htonl(pcb->rcv_nxt());
    h->flags = TCP_ACK | t.ecn.segment(false);
    h->window = htons(static_cast<std::uint16_t>(pcb->window_field()));
    h->checksum = 0;
    h->urgent = 0;
    const std::size_t length = sizeof *h + put_options(head + sizeof *h, nullptr, Clock::now());
    h->data_offset = static_cast<std::uint8_t>(length / 4 << 4);
    if (!transmit(head, length, nullptr, 0, 0)) {
        if (t.timers.path_at == kNoTime)
            t.timers.path_at = Clock::now() + kRetry;  // the flag stays, so output() comes back to it
        return;
    }
    t.receiver.duplicate().told();
    t.acks.sent();
}

void SegmentWriter::send_control(const lwip::Piece& segment) noexcept {
    alignas(4) std::uint8_t frame[kRoom + 128];
    std::uint8_t* const head = frame + kRoom;
    const std::uint32_t length = segment.total();
    if (length < sizeof(net::TcpHeader) || length > sizeof frame - kRoom) return;
    segment.copy_to(head, length);
    auto* h = reinterpret_cast<net::TcpHeader*>(head);
    if ((h->flags & TCP_RST) && tcb_.pcb != nullptr) {
        if (!tcb_.receiver.processing()) return send_reset();
        if (tcb_.acceptance.has_ack()) return refuse(tcb_.acceptance.seg_ack());
        h->seq = 0;
        h->window = 0;
    }
    if (h->flags == TCP_ACK && tcb_.pcb != nullptr && tcb_.pcb->synchronized()) {
        send_ack(tcb_.pcb->snd_nxt() - ntohl(h->seq));  // the same with our options
        return;
    }
    const std::size_t header = std::size_t{h->data_offset} >> 4 << 2;
    if (header < sizeof(net::TcpHeader) || header > length) return;
    if ((h->flags & TCP_RST) && tcb_.pcb != nullptr && tcb_.pcb->synchronized())
        h->flags |= tcb_.ecn.segment(false);
    const iovec data{head + header, length - header};
    (void)transmit(head, header, &data, data.iov_len != 0, data.iov_len);
}

void SegmentWriter::refuse(std::uint32_t ack) noexcept {
    alignas(4) std::uint8_t frame[kRoom + kMaxHandshakeBytes];
    (void)transmit(frame + kRoom, write_reset(tcb_.ends, ack, frame + kRoom), nullptr, 0, 0);
}

// The program ends the connection. What the peer needs to believe it is in the segment: the numbers, and a
// time stamp.
void SegmentWriter::send_reset() noexcept {
    lwip::Pcb* const pcb = tcb_.pcb;
    alignas(4) std::uint8_t frame[kRoom + kMaxTcpHeader]{};
    std::uint8_t* const head = frame + kRoom;
    auto* h = reinterpret_cast<net::TcpHeader*>(head);
    h->src_port = tcb_.ends.local.port;
    h->dst_port = tcb_.ends.remote.port;
    h->seq = htonl(pcb->snd_nxt());
    h->ack = htonl(pcb->rcv_nxt());
    h->flags = TCP_RST | TCP_ACK;
    h->window = htons(static_cast<std::uint16_t>(pcb->window_field()));
    std::size_t length = sizeof *h;
    if (pcb->timestamps()) {
        const std::uint32_t stamps[] = {htonl(0x0101080au), htonl(tcb_.opening.timestamp(Clock::now())),
                                        htonl(pcb->ts_recent())};
        std::memcpy(head + length, stamps, sizeof stamps);
        length += sizeof stamps;
    }
    h->data_offset = static_cast<std::uint8_t>(length / 4 << 4);
    (void)transmit(head, length, nullptr, 0, 0);
}

// `tcp_header` has kRoom bytes in front of it, for the other headers.
bool SegmentWriter::transmit(std::uint8_t* tcp_header, std::size_t header_length, const iovec* iov,
                             std::size_t count, std::size_t length, std::uint32_t frames,
                             std::uint8_t ecn) noexcept {
    Tcb& t = tcb_;
    if (!t.route.known() && t.route.find() != 0) return false;
    std::uint8_t* const headers = tcp_header - sizeof ip_headers_;
    std::memcpy(headers, ip_headers_, sizeof ip_headers_);
    headers[kTosAt] |= ecn;
    if (!forbids_fragments()) net::renew_ip_id(headers);
    ring::Ring& ring = *t.route.ring();
    const std::size_t all_headers = sizeof ip_headers_ + header_length;
    const int error = frames == 1 ? ring.send_tcp(headers, all_headers, iov, count, length)
                                  : ring.send_long_tcp(headers, all_headers, *iov, t.shown.mss());
    if (error != 0) return false;
    t.counters.segments_out += frames;
    return true;
}

}  // namespace vma::tcp
