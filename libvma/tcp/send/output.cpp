// SPDX-License-Identifier: BSD-2-Clause
// Everything that is sent: the send queue, what of it may leave now, ACKs, and the frames themselves.
//
// Segments are lwIP's (tcp_seg), because lwIP frees them when they are acknowledged; but they are built, sent
// and sent again here, in place: a segment stays where it is in the list of unacknowledged ones, and the
// scoreboard says which of them are lost.
//
// A short last segment waits in four cases: TCP_CORK and MSG_MORE (200 ms), Nagle as Linux has it (only
// behind a short segment that is still unacknowledged), and in a burst of writes: where frames share a kick
// of the device, the pieces of a burst share segments too. A write is part of a burst when it follows another
// within a few microseconds and the program did not turn to receiving in between; the ring ends the burst
// (Ring::hold).
#include <errno.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "libvma/tcp/connection.h"
#include "libvma/tcp/handshake/isn.h"
#include "libvma/tcp/lwip/entry.h"
#include "libvma/tcp/recovery/segments.h"
#include "libvma/tcp/sequence.h"
#include "libvma/tcp/timers/engine.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {
namespace {

constexpr std::uint64_t kBurstNs = 10'000;  // writes closer than this are a burst
constexpr std::size_t kLongWrite =
    8192;  // such a write shares kicks by itself; its end need not wait for more
constexpr std::uint64_t kCorkNs = 200'000'000;  // the kernel's limit for TCP_CORK
constexpr std::uint32_t kStretch = 16;          // segments for one ACK in a stream
constexpr std::uint32_t kSoonMs = 4;            // such an ACK when nobody polls the ring
constexpr std::uint64_t kRetryNs = 1'000'000;   // after a full device queue
constexpr std::uint32_t kMaxSegments = 60'000;  // lwIP counts pbufs in 16 bits
constexpr std::uint32_t kSmallBlock = 448;      // room of a segment for a lone short write
constexpr std::uint32_t kMinSendBuffer = 256 * 1024, kMaxSendBuffer = 4 * 1024 * 1024;

std::uint32_t seq_of(const tcp_seg* seg) noexcept { return ntohl(seg->tcphdr->seqno); }
std::uint32_t span_of(const tcp_seg* seg) noexcept { return TCP_TCPLEN(seg); }
std::uint8_t* data_of(const tcp_seg* seg) noexcept {
    return reinterpret_cast<std::uint8_t*>(seg->tcphdr) + sizeof(net::TcpHeader);
}

}  // namespace

// ---- hooks ----

const lwip::Hooks Callbacks::kHooks{&Callbacks::output, &Callbacks::isn, &Callbacks::transmit,
                                    &Callbacks::inpacket};

tcp_pcb_listen Callbacks::g_listener = [] {
    tcp_pcb_listen l{};
    l.state = LISTEN;
    l.accept = &Callbacks::accepted;
    return l;
}();

// lwIP would like to send now. We do so when it is done.
err_t Callbacks::transmit(void*, tcp_pcb*) { return ERR_OK; }

err_t Callbacks::output(void* connection, pbuf* p, ip4_addr_t, ip4_addr_t, std::uint8_t, std::uint8_t) {
    static_cast<Connection*>(connection)->send_control(p);
    return ERR_OK;
}

std::uint32_t Callbacks::isn(void* connection, ip4_addr_t, std::uint16_t, ip4_addr_t, std::uint16_t) {
    return initial_sequence(static_cast<Connection*>(connection)->endpoints(), now_ns());
}

void Callbacks::install(tcp_pcb* pcb, Connection* connection) noexcept {
    tcp_arg(pcb, connection);
    pcb->recv = &Callbacks::received;
    pcb->errf = &Callbacks::failed;
    pcb->sent = nullptr;
    pcb->poll = nullptr;
    pcb->listener = &g_listener;
}

namespace {

// Bytes of data that the program gives the peer room for.
std::uint32_t full_window(const Options& options) noexcept {
    std::uint32_t window = std::max(options.receive_window != 0 ? options.receive_window : 65535u, 536u);
    if (options.window_clamp != 0) window = std::min(window, options.window_clamp);
    return options.window_scaling ? window : std::min(window, 65535u);
}

}  // namespace

std::uint8_t window_scale(const Options& options) noexcept {
    const std::uint32_t window = full_window(options);
    std::uint8_t scale = 0;
    while (scale < 14 && (window >> scale) > 0xffff) scale++;
    return scale;
}

lwip::Parameters parameters_of(const Options& options, std::uint8_t scale, std::uint32_t mss,
                               std::uint32_t timestamp_offset) noexcept {
    lwip::Parameters p{};
    p.mss = static_cast<std::uint16_t>(mss);
    p.rcv_scale = scale;
    p.wnd = std::min(full_window(options), 0xffffu << scale);
    p.snd_buf = 0x7fffffff;
    p.wnd_update_threshold = 0x7fffffff;  // Connection::open_window decides
    p.ooseq_bytes = p.wnd;
    p.timestamp_offset = timestamp_offset;
    return p;
}

// ---- the send queue ----

std::uint32_t Connection::queued() const noexcept {
    if (pcb_ == nullptr || !phase_.established) return 0;
    const auto n = static_cast<std::int32_t>(send_.data_end - pcb_->lastack);
    return n > 0 ? static_cast<std::uint32_t>(n) : 0;
}

std::uint32_t Connection::send_limit() const noexcept {
    if (options_.send_buffer != 0) return options_.send_buffer;
    return std::clamp(2 * std::min(recovery_.cc.cwnd(), kMaxSendBuffer), kMinSendBuffer, kMaxSendBuffer);
}

std::size_t Connection::unacked_bytes() const noexcept {
    return shown_.queued.load(std::memory_order_acquire);
}
std::size_t Connection::unsent_bytes() const noexcept {
    return shown_.unsent.load(std::memory_order_acquire);
}
std::uint32_t Connection::send_buffer() const noexcept {
    return shown_.limit.load(std::memory_order_acquire);
}
std::uint32_t Connection::send_space() const noexcept {
    const std::uint32_t used = static_cast<std::uint32_t>(unacked_bytes()), limit = send_buffer();
    return used < limit ? limit - used : 0;
}

tcp_seg* Connection::new_segment(std::uint32_t room) noexcept {
    pbuf* p = pbuf_alloc(PBUF_RAW, static_cast<u16_t>(sizeof(net::TcpHeader) + room), PBUF_RAM);
    if (p == nullptr) return nullptr;
    auto* seg = static_cast<tcp_seg*>(memp_malloc(MEMP_TCP_SEG));
    if (seg == nullptr) {
        pbuf_free(p);
        return nullptr;
    }
    seg->next = nullptr;
    seg->p = p;
    seg->len = 0;
    seg->flags = 0;
    seg->tcphdr = static_cast<tcp_hdr*>(p->payload);
    p->len = p->tot_len = sizeof(net::TcpHeader);
    seg->tcphdr->src = ends_.local_port;
    seg->tcphdr->dest = ends_.remote_port;
    TCPH_HDRLEN_FLAGS_SET(seg->tcphdr, 5, TCP_ACK);
    seg->tcphdr->urgp = 0;
    return seg;
}

// Appends up to `length` bytes to the queue. Returns how many.
std::size_t Connection::append(const iovec* iov, std::size_t count, std::size_t length) noexcept {
    const std::uint32_t mss = shown_.mss.load(std::memory_order_relaxed);
    std::size_t done = 0, at = 0, which = 0;
    while (done < length) {
        std::uint32_t room = send_.tail != nullptr && send_.tail->len < mss
                                 ? std::min(send_.tail_room, mss - send_.tail->len)
                                 : 0;
        if (room == 0) {
            if (pcb_->snd_queuelen >= kMaxSegments) break;
            const std::size_t left = length - done;
            // Pieces of a burst will fill a whole segment, where they are kept back for it.
            const bool whole = left > kSmallBlock || (send_.burst != 0 && route_.path.ring->attr().lazy_tx);
            const std::uint32_t size = whole ? mss : std::min(kSmallBlock, mss);
            tcp_seg* seg = new_segment(size);
            if (seg == nullptr) break;
            seg->tcphdr->seqno = htonl(pcb_->snd_lbb);
            if (pcb_->unsent == nullptr) {
                pcb_->unsent = seg;
            } else {
                tcp_seg* last = send_.tail;
                if (last == nullptr)
                    for (last = pcb_->unsent; last->next != nullptr; last = last->next) {
                    }
                last->next = seg;
            }
            pcb_->snd_queuelen++;
            send_.tail = seg;
            send_.tail_room = room = size;
        }
        const std::size_t n = std::min<std::size_t>(room, length - done);
        std::uint8_t* out = data_of(send_.tail) + send_.tail->len;
        for (std::size_t put = 0; put < n;) {
            while (at == iov[which].iov_len) which++, at = 0;
            const std::size_t piece = std::min(n - put, iov[which].iov_len - at);
            std::memcpy(out + put, static_cast<const std::uint8_t*>(iov[which].iov_base) + at, piece);
            put += piece;
            at += piece;
        }
        (void)count;
        send_.tail->len = static_cast<u16_t>(send_.tail->len + n);
        send_.tail->p->len = send_.tail->p->tot_len = static_cast<u16_t>(send_.tail->p->len + n);
        send_.tail_room -= static_cast<std::uint32_t>(n);
        pcb_->snd_lbb += static_cast<std::uint32_t>(n);
        done += n;
    }
    send_.data_end = pcb_->snd_lbb;
    return done;
}

ssize_t Connection::send(const iovec* iov, std::size_t count, std::size_t length, unsigned flags) noexcept {
    if (!enter()) return -EWOULDBLOCK;
    ssize_t result;
    if (__builtin_expect(freeze_.frozen || freeze_.moved, 0)) {
        result = -EREMOTE;
    } else if (int error = shown_.error.load(std::memory_order_relaxed); error != 0) {
        shown_.error.store(0, std::memory_order_relaxed);
        result = -error;
    } else if (phase_.write_shut) {
        result = -EPIPE;
    } else if (pcb_ == nullptr) {
        result = phase_.connecting ? -EAGAIN : -EPIPE;
    } else if (!phase_.established) {
        result = -EAGAIN;
    } else {
        const std::uint32_t used = queued(), limit = send_limit();
        // As the kernel does, the last write that begins within the limit may go beyond it by a segment: so
        // short writes of several threads are not torn apart.
        const std::size_t segment = std::min<std::size_t>(length, shown_.mss.load(std::memory_order_relaxed));
        const std::size_t room = used < limit ? std::max<std::size_t>(limit - used, segment) : 0;
        if (length == 0) {
            result = 0;
        } else if (room == 0) {
            send_.no_space = true;
            result = -EAGAIN;
        } else {
            const std::uint64_t now = now_ns();
            if (now - send_.last_write_ns < kBurstNs && length < kLongWrite)
                send_.burst++;
            else
                send_.burst = 0;
            send_.last_write_ns = now;
            if (pcb_->unsent == nullptr && pcb_->unacked == nullptr) restart_after_idle(now);
            send_.more = (flags & kMore) != 0;
            send_.push = false;
            const std::size_t done = append(iov, count, std::min(length, room));
            if (done < length) send_.no_space = true;
            result = done != 0 ? static_cast<ssize_t>(done) : -EAGAIN;
            if (!(flags & kQuiet)) output(now);
        }
    }
    leave();
    return result;
}

void Connection::push() noexcept {
    if (!enter()) return;
    output();
    leave();
}

bool Connection::split(tcp_seg* seg, std::uint32_t length) noexcept {
    const bool sent = seq_before(seq_of(seg), pcb_->snd_nxt);
    tcp_seg* rest = new_segment(seg->len - length);
    if (rest == nullptr) return false;
    rest->len = static_cast<u16_t>(seg->len - length);
    rest->p->len = rest->p->tot_len = static_cast<u16_t>(sizeof(net::TcpHeader) + rest->len);
    std::memcpy(data_of(rest), data_of(seg) + length, rest->len);
    rest->tcphdr->seqno = htonl(seq_of(seg) + length);
    rest->flags = seg->flags;
    SegmentAccess::set_sent_us(rest, SegmentAccess::sent_us(seg));
    if (TCPH_FLAGS(seg->tcphdr) & TCP_FIN) {
        TCPH_SET_FLAG(rest->tcphdr, TCP_FIN);
        TCPH_FLAGS_SET(seg->tcphdr, TCPH_FLAGS(seg->tcphdr) & ~TCP_FIN);
    }
    seg->len = static_cast<u16_t>(length);
    seg->p->len = seg->p->tot_len = static_cast<u16_t>(sizeof(net::TcpHeader) + length);
    rest->next = seg->next;
    seg->next = rest;
    pcb_->snd_queuelen++;
    if (send_.tail == seg) {
        send_.tail = rest;
        send_.tail_room = 0;
    }
    if (send_.unacked_last == seg) send_.unacked_last = rest;
    if (sent) split_sent(seg, rest);
    return true;
}

// Segments became too long for the path: the ones under way are lost for certain.
void Connection::resegment() noexcept {
    const std::uint32_t mss = shown_.mss.load(std::memory_order_relaxed);
    for (tcp_seg* list : {pcb_->unacked, pcb_->unsent})
        for (tcp_seg* seg = list; seg != nullptr; seg = seg->next)
            if (seg->len > mss && !split(seg, mss)) return;
    if (pcb_->unacked != nullptr) all_lost();
}

// ---- what may leave ----

bool Connection::keep_back(const tcp_seg* seg) noexcept {
    if (seg->next != nullptr || seg->len >= shown_.mss.load(std::memory_order_relaxed) || seg->len == 0)
        return false;
    if (TCPH_FLAGS(seg->tcphdr) & TCP_FIN) return false;
    if (send_.push) return false;
    if (options_.cork || send_.more) {
        const std::uint64_t now = now_ns();
        if (timers_.cork_at == 0) timers_.cork_at = now + kCorkNs;
        if (now < timers_.cork_at) return true;
        timers_.cork_at = 0;
        send_.more = false;
        return false;
    }
    if (!options_.nodelay && seq_before(pcb_->lastack, send_.small_end)) return true;
    ring::Ring* ring = route_.path.ring;
    if (send_.burst != 0 && ring->attr().lazy_tx) {
        if (!staged_.held.exchange(true, std::memory_order_relaxed)) {
            ref();
            ring->hold(this);
        }
        return true;
    }
    return false;
}

void Connection::send_held() noexcept {
    staged_.held.store(false, std::memory_order_relaxed);
    backlog_.wants_output.store(true, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (lock_.try_lock()) leave();  // else its owner sees the wish
    unref();
}

void Connection::output() noexcept { output(now_ns()); }

void Connection::output(std::uint64_t now) noexcept {
    if (pcb_ == nullptr || freeze_.frozen) return;
    if (!route_.has_path || route_.path.generation != route_.paths.generation()) {
        if (const int error = find_path(); error != 0) {
            wait_for_path(error, now);
            return;
        }
        route_.path_tries = 0;
        timers_.path_at = 0;
    }
    if (route_.learnt_mtu != 0 && now >= route_.learnt_until_ns) forget_mtu();
    const tcp_seg* const first = pcb_->unsent;
    ring::Ring::Gather gather(
        phase_.established && first != nullptr && first->next != nullptr ? route_.path.ring : nullptr);
    if (phase_.established) retransmit_lost();
    recovery_.app_limited = false;
    for (;;) {
        tcp_seg* seg = pcb_->unsent;
        if (seg == nullptr) {
            recovery_.app_limited = true;
            break;
        }
        const bool syn = (TCPH_FLAGS(seg->tcphdr) & TCP_SYN) != 0;
        if (!syn) {
            if (!phase_.established) break;
            const std::uint32_t mss = shown_.mss.load(std::memory_order_relaxed);
            if (seg->len > mss && !split(seg, mss)) break;
            const std::uint32_t seq = seq_of(seg), edge = pcb_->lastack + pcb_->snd_wnd;
            if (seq_before(edge, seq + seg->len)) {
                // Silly window avoidance (RFC 9293 section 3.8.6.2.1): a part only when it is half of the
                // largest window the peer had.
                const std::uint32_t room = seq_before(seq, edge) ? edge - seq : 0;
                if (room == 0 || room < pcb_->snd_wnd_max / 2 || !split(seg, room)) break;
            }
            const std::uint32_t in_flight = pipe();
            if (seg->len != 0 && in_flight != 0 && in_flight + seg->len > recovery_.cc.cwnd()) break;
            if (keep_back(seg)) {
                recovery_.app_limited = true;
                break;
            }
        }
        if (!send_segment(seg, false)) {
            timers_.path_at = now + kRetryNs;
            break;
        }
        pcb_->unsent = seg->next;
        seg->next = nullptr;
        if (send_.tail == seg) send_.tail = nullptr;
        if (pcb_->unacked == nullptr)
            pcb_->unacked = seg;
        else
            send_.unacked_last->next = seg;
        send_.unacked_last = seg;
    }
    if (pcb_->unsent == nullptr) timers_.cork_at = 0;
    if (phase_.established) schedule_tail_probe(now);
    // A closed window, and nothing under way whose ACK could open it: probes.
    if (pcb_->unacked == nullptr && pcb_->unsent != nullptr && phase_.established &&
        seq_before(pcb_->lastack + pcb_->snd_wnd, seq_of(pcb_->unsent) + pcb_->unsent->len)) {
        if (timers_.probe_at == 0) timers_.probe_at = now + std::uint64_t{recovery_.rtt.rto_us()} * 1000;
    } else {
        timers_.probe_at = 0;
        timers_.probes = 0;
    }
    acknowledge(now);
}

// Is an ACK due, and not gone with data?
void Connection::acknowledge(std::uint64_t now) noexcept {
    if (pcb_->state == SYN_SENT || pcb_->state == SYN_RCVD) return;
    if (pcb_->flags & TF_ACK_NOW) {
        send_ack();
        return;
    }
    if (acks_.ack_due_bytes == 0) {
        tcp_clear_flags(pcb_, TF_ACK_DELAY);
        timers_.ack_at = 0;
        return;
    }
    // RFC 9293 section 3.8.6.3: an ACK for every second segment, at once. In the midst of a stream that costs
    // more frames than it helps anybody, so there it is one for sixteen, or for those of 20 us; receivers
    // that merge segments in hardware have made every sender live with that.
    const std::uint32_t segment = std::max(acks_.largest_in, 1u);
    const bool quick = options_.delayed_ack_ms == 0 || (acks_.quick_acks != 0 && !acks_.pingpong);
    const bool bulk = acks_.bulk_bytes > AckPolicy::kBulkSegments * segment && options_.delayed_ack_ms != 0;
    const std::uint32_t enough = bulk ? std::min(kStretch * segment, pcb_->rcv_ann_wnd / 4) : 2 * segment;
    if (acks_.ack_due_bytes >= enough || (quick && !bulk)) {
        if (acks_.quick_acks != 0) acks_.quick_acks--;
        send_ack();
        return;
    }
    const bool soon = acks_.ack_due_bytes >= 2 * segment;
    acks_.ack_when_idle = soon;
    const std::uint64_t at =
        now + (soon ? std::min(kSoonMs, options_.delayed_ack_ms) : options_.delayed_ack_ms) *
                  std::uint64_t{1'000'000};
    if (timers_.ack_at == 0 || at < timers_.ack_at) timers_.ack_at = at;
}

bool Connection::send_segment(tcp_seg* seg, bool again) noexcept {
    std::uint8_t head[60];
    auto* h = reinterpret_cast<net::TcpHeader*>(head);
    const std::uint8_t own = TCPH_FLAGS(seg->tcphdr);
    const bool syn = (own & TCP_SYN) != 0;
    h->src_port = ends_.local_port;
    h->dst_port = ends_.remote_port;
    h->seq = seg->tcphdr->seqno;
    h->ack = pcb_->state == SYN_SENT ? 0 : htonl(pcb_->rcv_nxt);
    std::uint8_t flags = static_cast<std::uint8_t>(own & (TCP_SYN | TCP_FIN));
    if (pcb_->state != SYN_SENT) flags |= TCP_ACK;
    if (seg->len != 0 && seg->next == nullptr) flags |= TCP_PSH;
    h->flags = flags;
    const std::uint32_t window =
        syn ? std::min<std::uint32_t>(pcb_->rcv_ann_wnd, 0xffff)
            : std::min<std::uint32_t>(RCV_WND_SCALE(pcb_, pcb_->rcv_ann_wnd), 0xffff);
    h->window = htons(static_cast<std::uint16_t>(window));
    h->checksum = 0;
    h->urgent = 0;
    const std::uint64_t now = now_ns();
    const std::size_t length = sizeof *h + put_options(head + sizeof *h, seg, now);
    h->data_offset = static_cast<std::uint8_t>(length / 4 << 4);

    const iovec data{data_of(seg), seg->len};
    if (transmit(head, length, &data, seg->len != 0, seg->len) != 0) return false;
    ack_sent();
    const std::uint32_t end = seq_of(seg) + span_of(seg);
    if (again) {
        counters_.retransmits++;
        if (route_.path.ring != nullptr) route_.path.ring->note_retransmit();
        counters_.bytes_again += seg->len;
        // Karn: what is sent twice is not timed.
        if (recovery_.rtt_start_ns != 0 && !seq_before(recovery_.rtt_seq, end)) recovery_.rtt_start_ns = 0;
    } else {
        SegmentAccess::set_sent_us(seg, static_cast<std::uint32_t>(now / 1000));
        if (seq_before(pcb_->snd_nxt, end)) pcb_->snd_nxt = end;
        timers_.tlp_at = 0;
        if (recovery_.rtt_start_ns == 0 && seg->len != 0) {
            recovery_.rtt_start_ns = now;
            recovery_.rtt_seq = end;
        }
        if (seg->len != 0 && seg->len < shown_.mss.load(std::memory_order_relaxed)) send_.small_end = end;
    }
    if (syn) {
        if (opening_.syn_sent_ns == 0) opening_.syn_sent_ns = now;
        opening_.syn_window = std::max(opening_.syn_window, window);
    }
    if (seg->len != 0) {
        acks_.last_data_tx_ns = now;
        counters_.bytes_out += seg->len;
        counters_.data_segments_out++;
    }
    if (timers_.rto_at == 0) timers_.rto_at = now + std::uint64_t{recovery_.rtt.rto_us()} * 1000;
    return true;
}

std::size_t Connection::put_options(std::uint8_t* at, const tcp_seg* seg, std::uint64_t now) noexcept {
    std::uint8_t* const start = at;
    auto word = [&](std::uint32_t v) {
        v = htonl(v);
        std::memcpy(at, &v, 4);
        at += 4;
    };
    const bool syn = seg != nullptr && (TCPH_FLAGS(seg->tcphdr) & TCP_SYN) != 0;
    if (syn) {
        word(0x02040000u | (wanted_mss() & 0xffff));
        const bool active = pcb_->state == SYN_SENT;
        if (options_.sack && (active || (pcb_->flags & TF_SACK))) word(0x01010402u);
        if (options_.window_scaling && (active || (pcb_->flags & TF_WND_SCALE)))
            word(0x01030300u | opening_.own_scale);
        if (options_.timestamps && (active || (pcb_->flags & TF_TIMESTAMP))) {
            word(0x0101080au);
            word(timestamp(now));
            word(active ? 0 : pcb_->ts_recent);
        }
        return static_cast<std::size_t>(at - start);
    }
    if (pcb_->flags & TF_TIMESTAMP) {
        word(0x0101080au);
        word(timestamp(now));
        word(pcb_->ts_recent);
    }
    if (seg == nullptr && (pcb_->flags & TF_SACK)) {
        SackBlock blocks[Reassembly::kMaxBlocks];
        const std::size_t n = receiver_.early.blocks(blocks, pcb_->flags & TF_TIMESTAMP ? 3 : 4);
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

std::uint32_t Connection::timestamp(std::uint64_t now) const noexcept {
    return static_cast<std::uint32_t>(now / 1'000'000) + opening_.ts_offset;
}

void Connection::ack_sent() noexcept {
    tcp_clear_flags(pcb_, TF_ACK_DELAY | TF_ACK_NOW);
    pcb_->rcv_ann_right_edge = pcb_->rcv_nxt + pcb_->rcv_ann_wnd;
    pcb_->ts_lastacksent = pcb_->rcv_nxt;
    acks_.acked_upto = pcb_->rcv_nxt;
    acks_.ack_due_bytes = 0;
    timers_.ack_at = 0;
    acks_.ack_when_idle = false;
}

// `back`: how far before SND.NXT it is; 1 makes it a probe, which the peer must answer because it is old.
void Connection::send_ack(std::uint32_t back) noexcept {
    std::uint8_t head[60];
    auto* h = reinterpret_cast<net::TcpHeader*>(head);
    h->src_port = ends_.local_port;
    h->dst_port = ends_.remote_port;
    h->seq = htonl(pcb_->snd_nxt - back);
    h->ack = htonl(pcb_->rcv_nxt);
    h->flags = TCP_ACK;
    h->window = htons(
        static_cast<std::uint16_t>(std::min<std::uint32_t>(RCV_WND_SCALE(pcb_, pcb_->rcv_ann_wnd), 0xffff)));
    h->checksum = 0;
    h->urgent = 0;
    const std::size_t length = sizeof *h + put_options(head + sizeof *h, nullptr, now_ns());
    h->data_offset = static_cast<std::uint8_t>(length / 4 << 4);
    if (transmit(head, length, nullptr, 0, 0) != 0) {
        if (timers_.path_at == 0)
            timers_.path_at = now_ns() + kRetryNs;  // the flag stays, so output() comes back to it
        return;
    }
    ack_sent();
}

// What lwIP has made itself: RST, keep-alive, ACKs of out-of-order segments.
void Connection::send_control(pbuf* p) noexcept {
    std::uint8_t head[128];
    const std::uint16_t length = p->tot_len;
    if (length < sizeof(net::TcpHeader) || length > sizeof head) return;
    pbuf_copy_partial(p, head, length, 0);
    auto* h = reinterpret_cast<net::TcpHeader*>(head);
    if (h->flags == TCP_ACK && pcb_ != nullptr && pcb_->state >= ESTABLISHED) {
        send_ack(pcb_->snd_nxt - ntohl(h->seq));  // the same with our options
        return;
    }
    const std::size_t header = std::size_t{h->data_offset} >> 4 << 2;
    if (header < sizeof(net::TcpHeader) || header > length) return;
    const iovec data{head + header, length - header};
    (void)transmit(head, header, &data, data.iov_len != 0, data.iov_len);
}

int Connection::transmit(const std::uint8_t* tcp_header, std::size_t header_length, const iovec* iov,
                         std::size_t count, std::size_t length) noexcept {
    if (!route_.has_path) {
        if (find_path() != 0) return EAGAIN;
    }
    std::uint8_t headers[sizeof route_.ip_headers + 60];
    std::memcpy(headers, route_.ip_headers, sizeof route_.ip_headers);
    std::memcpy(headers + sizeof route_.ip_headers, tcp_header, header_length);
    if (!options_.path.dont_fragment) net::renew_ip_id(headers);
    const int error =
        route_.path.ring->send_tcp(headers, sizeof route_.ip_headers + header_length, iov, count, length);
    if (error == 0) counters_.segments_out++;
    return error;
}

}  // namespace vma::tcp
