// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/send/segment_writer.h"

#include <errno.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "libvma/tcp/connection.h"
#include "libvma/tcp/lwip/glue.h"
#include "libvma/tcp/recovery/segments.h"
#include "libvma/tcp/send/segment.h"
#include "libvma/tcp/sequence.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {
namespace {

constexpr std::uint64_t kRetryNs = 1'000'000;  // after a full device queue

}  // namespace

void SegmentWriter::use(const Path& path) noexcept {
    net::UdpTemplate t;
    t.src_mac = path.src_mac;
    t.dst_mac = path.dst_mac;
    t.src_addr = tcb_.ends.local_addr;
    t.dst_addr = tcb_.ends.remote_addr;
    t.tos = tcb_.options.path.tos;
    t.ttl = tcb_.options.path.ttl;
    t.dont_fragment = tcb_.options.path.dont_fragment;
    net::build_ip_headers(t, IPPROTO_TCP, ip_headers_);
}

bool SegmentWriter::send(tcp_seg* seg, bool again) noexcept {
    std::uint8_t head[60];
    auto* h = reinterpret_cast<net::TcpHeader*>(head);
    const std::uint8_t own = TCPH_FLAGS(seg->tcphdr);
    const bool syn = (own & TCP_SYN) != 0;
    h->src_port = tcb_.ends.local_port;
    h->dst_port = tcb_.ends.remote_port;
    h->seq = seg->tcphdr->seqno;
    h->ack = tcb_.pcb->state == SYN_SENT ? 0 : htonl(tcb_.pcb->rcv_nxt);
    std::uint8_t flags = static_cast<std::uint8_t>(own & (TCP_SYN | TCP_FIN));
    if (tcb_.pcb->state != SYN_SENT) flags |= TCP_ACK;
    if (seg->len != 0 && seg->next == nullptr) flags |= TCP_PSH;
    h->flags = flags;
    const std::uint32_t window =
        syn ? std::min<std::uint32_t>(tcb_.pcb->rcv_ann_wnd, 0xffff)
            : std::min<std::uint32_t>(RCV_WND_SCALE(tcb_.pcb, tcb_.pcb->rcv_ann_wnd), 0xffff);
    h->window = htons(static_cast<std::uint16_t>(window));
    h->checksum = 0;
    h->urgent = 0;
    const std::uint64_t now = now_ns();
    const std::size_t length = sizeof *h + put_options(head + sizeof *h, seg, now);
    h->data_offset = static_cast<std::uint8_t>(length / 4 << 4);

    const iovec data{data_of(seg), seg->len};
    if (transmit(head, length, &data, seg->len != 0, seg->len) != 0) return false;
    tcb_.acks.sent();
    const std::uint32_t end = seq_of(seg) + span_of(seg);
    if (again) {
        tcb_.counters.retransmits++;
        if (tcb_.route.ring() != nullptr) tcb_.route.ring()->note_retransmit();
        tcb_.counters.bytes_again += seg->len;
        tcb_.recovery.sent_again(end);
    } else {
        SegmentAccess::set_sent_us(seg, static_cast<std::uint32_t>(now / 1000));
        if (seq_before(tcb_.pcb->snd_nxt, end)) tcb_.pcb->snd_nxt = end;
        tcb_.timers.tail_at = 0;
        tcb_.recovery.sent(end, seg->len != 0, now);
        if (seg->len != 0 && seg->len < tcb_.shown.mss()) tcb_.sender.small_sent(end);
    }
    if (syn) tcb_.opening.syn_sent(window, now);
    if (seg->len != 0) {
        tcb_.acks.data_sent(now);
        tcb_.counters.bytes_out += seg->len;
        tcb_.counters.data_segments_out++;
    }
    if (tcb_.timers.rto_at == 0) tcb_.timers.rto_at = now + tcb_.recovery.rto_ns();
    return true;
}

std::size_t SegmentWriter::put_options(std::uint8_t* at, const tcp_seg* seg, std::uint64_t now) noexcept {
    std::uint8_t* const start = at;
    auto word = [&](std::uint32_t v) {
        v = htonl(v);
        std::memcpy(at, &v, 4);
        at += 4;
    };
    const bool syn = seg != nullptr && (TCPH_FLAGS(seg->tcphdr) & TCP_SYN) != 0;
    if (syn) {
        word(0x02040000u | (tcb_.route.wanted_mss() & 0xffff));
        const bool active = tcb_.pcb->state == SYN_SENT;
        if (tcb_.options.sack && (active || (tcb_.pcb->flags & TF_SACK))) word(0x01010402u);
        if (tcb_.options.window_scaling && (active || (tcb_.pcb->flags & TF_WND_SCALE)))
            word(0x01030300u | tcb_.opening.own_scale());
        if (tcb_.options.timestamps && (active || (tcb_.pcb->flags & TF_TIMESTAMP))) {
            word(0x0101080au);
            word(tcb_.opening.timestamp(now));
            word(active ? 0 : tcb_.pcb->ts_recent);
        }
        return static_cast<std::size_t>(at - start);
    }
    if (tcb_.pcb->flags & TF_TIMESTAMP) {
        word(0x0101080au);
        word(tcb_.opening.timestamp(now));
        word(tcb_.pcb->ts_recent);
    }
    if (seg == nullptr && (tcb_.pcb->flags & TF_SACK)) {
        SackBlock blocks[Reassembly::kMaxBlocks];
        const std::size_t n = tcb_.receiver.early().blocks(blocks, tcb_.pcb->flags & TF_TIMESTAMP ? 3 : 4);
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

void SegmentWriter::send_ack(std::uint32_t back) noexcept {
    std::uint8_t head[60];
    auto* h = reinterpret_cast<net::TcpHeader*>(head);
    h->src_port = tcb_.ends.local_port;
    h->dst_port = tcb_.ends.remote_port;
    h->seq = htonl(tcb_.pcb->snd_nxt - back);
    h->ack = htonl(tcb_.pcb->rcv_nxt);
    h->flags = TCP_ACK;
    h->window = htons(static_cast<std::uint16_t>(
        std::min<std::uint32_t>(RCV_WND_SCALE(tcb_.pcb, tcb_.pcb->rcv_ann_wnd), 0xffff)));
    h->checksum = 0;
    h->urgent = 0;
    const std::size_t length = sizeof *h + put_options(head + sizeof *h, nullptr, now_ns());
    h->data_offset = static_cast<std::uint8_t>(length / 4 << 4);
    if (transmit(head, length, nullptr, 0, 0) != 0) {
        if (tcb_.timers.path_at == 0)
            tcb_.timers.path_at = now_ns() + kRetryNs;  // the flag stays, so output() comes back to it
        return;
    }
    tcb_.acks.sent();
}

void SegmentWriter::send_control(pbuf* p) noexcept {
    std::uint8_t head[128];
    const std::uint16_t length = p->tot_len;
    if (length < sizeof(net::TcpHeader) || length > sizeof head) return;
    pbuf_copy_partial(p, head, length, 0);
    auto* h = reinterpret_cast<net::TcpHeader*>(head);
    if (h->flags == TCP_ACK && tcb_.pcb != nullptr && tcb_.pcb->state >= ESTABLISHED) {
        send_ack(tcb_.pcb->snd_nxt - ntohl(h->seq));  // the same with our options
        return;
    }
    const std::size_t header = std::size_t{h->data_offset} >> 4 << 2;
    if (header < sizeof(net::TcpHeader) || header > length) return;
    const iovec data{head + header, length - header};
    (void)transmit(head, header, &data, data.iov_len != 0, data.iov_len);
}

int SegmentWriter::transmit(const std::uint8_t* tcp_header, std::size_t header_length, const iovec* iov,
                            std::size_t count, std::size_t length) noexcept {
    if (!tcb_.route.known()) {
        if (tcb_.route.find() != 0) return EAGAIN;
    }
    std::uint8_t headers[sizeof ip_headers_ + 60];
    std::memcpy(headers, ip_headers_, sizeof ip_headers_);
    std::memcpy(headers + sizeof ip_headers_, tcp_header, header_length);
    if (!tcb_.options.path.dont_fragment) net::renew_ip_id(headers);
    const int error =
        tcb_.route.ring()->send_tcp(headers, sizeof ip_headers_ + header_length, iov, count, length);
    if (error == 0) tcb_.counters.segments_out++;
    return error;
}

}  // namespace vma::tcp
