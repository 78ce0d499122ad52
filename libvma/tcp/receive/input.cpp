// SPDX-License-Identifier: BSD-2-Clause
// Frames on their way into the state machine: staging and merging, the checks in front of lwIP, and what
// follows from them.
#include <errno.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

#include "libvma/config/params.h"
#include "libvma/tcp/connection.h"
#include "libvma/tcp/handshake/isn.h"
#include "libvma/tcp/handshake/listener.h"
#include "libvma/tcp/handshake/syn.h"
#include "libvma/tcp/lwip/entry.h"
#include "libvma/tcp/sequence.h"
#include "libvma/tcp/timers/engine.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {
namespace {

constexpr std::uint32_t kMaxMerged = 60000;     // lwIP counts a segment's bytes in 16 bits
constexpr unsigned kChallengesPerSecond = 100;  // RFC 5961 section 7; a connection's own share
constexpr std::uint64_t kPawsIdleNs = 24ull * 86400 * 1'000'000'000;

struct RxPbuf {
    pbuf_custom storage;
};
static_assert(sizeof(RxPbuf) <= sizeof(ring::RxBuffer::user));

void release_buffer(pbuf* p) {
    auto* storage = reinterpret_cast<std::byte*>(p);
    auto* buffer = reinterpret_cast<ring::RxBuffer*>(storage - offsetof(ring::RxBuffer, user));
    buffer->more = nullptr;
    buffer->release();
}

pbuf* wrap(ring::RxBuffer* buffer, std::uint32_t offset, std::uint32_t length) noexcept {
    auto* storage = new (buffer->user) pbuf_custom{};
    return lwip::received(*storage, &release_buffer, buffer->frame + offset,
                          static_cast<std::uint16_t>(length));
}

const net::TcpHeader& header_of(const ring::RxBuffer& b) noexcept {
    return *reinterpret_cast<const net::TcpHeader*>(b.frame + b.l4_offset);
}

// The TCP part of a frame (from `skip` bytes behind the start of its header on) as a chain of pbufs, one for
// each buffer.
pbuf* chain_of(ring::RxBuffer* first, std::uint32_t from) noexcept {
    const std::uint32_t end =
        first->payload_offset + first->payload_length;  // Ethernet may have padded the frame
    const std::uint32_t header_end = first->payload_offset;
    if (first->length < header_end) {
        // Options beyond the first buffer: no device we know splits frames there. In one piece it is, then.
        const std::uint32_t total = end - from;
        pbuf* p = pbuf_alloc(PBUF_RAW, static_cast<u16_t>(total), PBUF_RAM);
        if (p != nullptr) {
            std::uint32_t at = 0, skip = from;
            for (ring::RxBuffer* b = first; b != nullptr && at < total; b = b->more) {
                if (skip >= b->length) {
                    skip -= b->length;
                    continue;
                }
                const std::uint32_t n = std::min(b->length - skip, total - at);
                std::memcpy(static_cast<std::uint8_t*>(p->payload) + at, b->frame + skip, n);
                at += n;
                skip = 0;
            }
        }
        first->release();
        return p;
    }
    pbuf* head = nullptr;
    pbuf* last = nullptr;
    std::uint32_t position = 0, skip = from;
    ring::RxBuffer* b = first;
    while (b != nullptr) {
        ring::RxBuffer* more = b->more;
        const std::uint32_t left = end > position ? end - position : 0;
        const std::uint32_t in_here = std::min(b->length, left);
        position += b->length;
        if (in_here > skip) {
            pbuf* p = wrap(b, skip, in_here - skip);
            if (head == nullptr)
                head = p;
            else
                last->next = p;
            last = p;
            skip = 0;
        } else {
            skip -= std::min(skip, in_here);
            b->more = nullptr;
            b->release();
        }
        b = more;
    }
    std::uint32_t total = 0;
    for (pbuf* p = head; p != nullptr; p = p->next) total += p->len;
    for (pbuf* p = head; p != nullptr; p = p->next) {
        p->tot_len = static_cast<u16_t>(total);
        total -= p->len;
    }
    return head;
}

bool plain_options(const net::TcpHeader& h, unsigned length) noexcept {
    if (length == 20) return true;
    const auto* o = reinterpret_cast<const std::uint8_t*>(&h + 1);
    return length == 32 && o[0] == 1 && o[1] == 1 && o[2] == 8 && o[3] == 10;
}

bool merges(const ring::RxBuffer& a, const ring::RxBuffer& b, std::uint32_t next_seq) noexcept {
    const unsigned length_a = a.payload_offset - a.l4_offset, length_b = b.payload_offset - b.l4_offset;
    if (length_a != length_b || b.payload_length == 0 || a.payload_length == 0) return false;
    if (a.length < a.payload_offset || b.length < b.payload_offset) return false;
    const net::TcpHeader &x = header_of(a), &y = header_of(b);
    constexpr std::uint8_t kPush = TCP_PSH;
    if ((x.flags & ~kPush) != TCP_ACK || (y.flags & ~kPush) != TCP_ACK) return false;
    return ntohl(y.seq) == next_seq && plain_options(x, length_a) && plain_options(y, length_b);
}

}  // namespace

pbuf* tcp_part(ring::RxBuffer* buffer) noexcept { return chain_of(buffer, buffer->l4_offset); }

void hide_options(tcp_hdr& header, unsigned option_bytes, const Options& wanted) noexcept {
    auto* options = reinterpret_cast<std::uint8_t*>(&header + 1);
    for (unsigned at = 0; at < option_bytes && options[at] != 0;) {
        if (options[at] == 1) {
            at++;
            continue;
        }
        if (at + 1 >= option_bytes || options[at + 1] < 2 || at + options[at + 1] > option_bytes) {
            std::memset(options + at, 0, option_bytes - at);
            return;
        }
        const unsigned kind = options[at], size = options[at + 1];
        const bool no_mss = kind == 2 && size == 4 && options[at + 2] == 0 && options[at + 3] == 0;
        if ((kind == 8 && !wanted.timestamps) || (kind == 4 && !wanted.sack) ||
            (kind == 3 && !wanted.window_scaling) || no_mss)
            std::memset(options + at, 1, size);
        at += size;
    }
}

// ---- from the ring ----

bool Connection::deliver(ring::RxBuffer* buffer) noexcept {
    buffer->next = nullptr;
    if (staged_.last != nullptr)
        staged_.last->next = buffer;
    else
        staged_.first = buffer;
    staged_.last = buffer;
    if (!staged_.in_batch) {
        // Whoever owns this connection may let go of it before the batch is over: a later frame of the batch,
        // a timer.
        staged_.in_batch = true;
        ref();
        buffer->ring->at_batch_end(this);
    }
    return true;
}

void Connection::batch_end(ring::Ring& ring) noexcept {
    staged_.in_batch = false;
    ring::RxBuffer* list = staged_.first;
    ring::RxBuffer* last = staged_.last;
    staged_.first = staged_.last = nullptr;
    if (list != nullptr) take_batch(ring, list, last);
    unref();
}

void Connection::take_batch(ring::Ring& ring, ring::RxBuffer* list, ring::RxBuffer* last) noexcept {
    staged_.ring_scarce.store(ring.scarce(), std::memory_order_relaxed);
    if (lock_.try_lock()) {
        if (!backlog_.any.load(std::memory_order_acquire)) {
            input_list(list);
            if (acks_.ack_when_idle && !staged_.idle_asked && attached_) {
                staged_.idle_asked = true;
                ring.when_idle(this);
            }
            leave();
            return;
        }
        lock_.unlock();
    }
    backlog_.lock.lock();
    if (backlog_.last != nullptr)
        backlog_.last->next = list;
    else
        backlog_.first = list;
    backlog_.last = last;
    backlog_.any.store(true, std::memory_order_seq_cst);
    backlog_.lock.unlock();
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (lock_.try_lock()) leave();  // its owner let go meanwhile
}

void Connection::idle(ring::Ring&) noexcept {
    staged_.idle_asked = false;
    if (!lock_.try_lock()) return;  // its owner, or the timer
    ref();
    if (pcb_ != nullptr && acks_.ack_when_idle) send_ack();
    leave();
    unref();
}

void Connection::input_list(ring::RxBuffer* list) noexcept {
    const std::uint64_t now = now_ns();
    const bool merge = config::get().gro_streams_max != 0;
    while (list != nullptr) {
        ring::RxBuffer* first = list;
        list = first->next;
        first->next = nullptr;
        if (__builtin_expect(freeze_.frozen || freeze_.moved, 0)) {
            kernels_frame(first);
            continue;
        }
        if (pcb_ == nullptr) {
            // The rule outlives the connection by some microseconds, and the peer may have begun the next one
            // by then.
            const bool next = origin_ != nullptr && first->ring->rx_owned_by_me();
            if (!next || !origin_->deliver(first)) first->release();
            continue;
        }
        if (phase_.in_time_wait && time_wait_reopens(*first)) {
            reopen(first);
            continue;
        }
        // Without SACK a sender counts the duplicate ACKs, one for each segment behind a gap.
        const bool counted = (pcb_->flags & TF_SACK) == 0 && ntohl(header_of(*first).seq) != pcb_->rcv_nxt;
        if (merge && !counted && list != nullptr && first->payload_length != 0) {
            std::uint32_t total = first->payload_length;
            std::uint32_t next_seq = ntohl(header_of(*first).seq) + first->payload_length;
            ring::RxBuffer* last = first;
            while (list != nullptr && total + list->payload_length <= kMaxMerged &&
                   merges(*last, *list, next_seq)) {
                total += list->payload_length;
                next_seq += list->payload_length;
                last->next = list;
                last = list;
                list = list->next;
                last->next = nullptr;
            }
            if (last != first) {
                // The last one's word counts for ACK, window and time stamp; a PSH of any counts.
                auto& to = const_cast<net::TcpHeader&>(header_of(*first));
                const net::TcpHeader& from = header_of(*last);
                std::uint8_t flags = to.flags;
                for (ring::RxBuffer* b = first; b != nullptr; b = b->next) flags |= header_of(*b).flags;
                to.flags = flags;
                to.ack = from.ack;
                to.window = from.window;
                const unsigned options = first->payload_offset - first->l4_offset - sizeof(net::TcpHeader);
                if (options != 0) std::memcpy(&to + 1, &from + 1, options);
                pbuf* head = nullptr;
                pbuf* tail = nullptr;
                for (ring::RxBuffer* b = first; b != nullptr;) {
                    ring::RxBuffer* next = b->next;
                    b->next = nullptr;
                    pbuf* p = chain_of(b, head == nullptr ? b->l4_offset : b->payload_offset);
                    if (head == nullptr)
                        head = p;
                    else
                        tail->next = p;
                    for (tail = p; tail->next != nullptr; tail = tail->next) {
                    }
                    counters_.merged++;
                    b = next;
                }
                std::uint32_t sum = 0;
                for (pbuf* p = head; p != nullptr; p = p->next) sum += p->len;
                for (pbuf* p = head; p != nullptr; p = p->next) {
                    p->tot_len = static_cast<u16_t>(sum);
                    sum -= p->len;
                }
                input(head, now);
                continue;
            }
        }
        if (pbuf* p = chain_of(first, first->l4_offset)) input(p, now);
    }
    if (pcb_ != nullptr) output(now);
}

void Connection::input(pbuf* p, std::uint64_t now) noexcept {
    counters_.segments_in++;
    check_.last_rx_ns = now;
    // lwIP's own fast retransmit and window arithmetic rest: see before_ack().
    pcb_->rtime = -1;
    pcb_->dupacks = 0;
    pcb_->ssthresh = 0;
    pcb_->cwnd = 0x7fffffff;
    pcb_->bytes_acked = 0;
    pcb_->rttest = 0;
    tcp_clear_flags(pcb_, TF_ACK_DELAY);  // else lwIP wants an ACK for every second call of it
    const std::uint32_t una = pcb_->lastack, window = pcb_->snd_wnd, expected = pcb_->rcv_nxt;
    const bool handshake = pcb_->state == SYN_SENT || pcb_->state == SYN_RCVD;
    if (phase_.established) trim_to_window(p);
    receiver_.processing = true;
    in_lwip([&](lwip::Entry& entry) { entry.input(p, {ends_.remote_addr}, {ends_.local_addr}); });
    receiver_.processing = false;
    if (pcb_ == nullptr) return;
    if (pcb_->rcv_nxt != expected && (receiver_.fin_early || !receiver_.early.empty())) {
        take_early();
        if (pcb_ == nullptr) return;
    }
    if (!handshake) counters_.received += pcb_->rcv_nxt - expected;
    if (seq_before(una, pcb_->lastack)) {
        if (!handshake || origin_ == nullptr) counters_.acked += pcb_->lastack - una;
        recovery_.retries = 0;
        timers_.probes = 0;
        recovery_.first_retry_ns = 0;
        // The backoff stays until a round trip is measured (RFC 6298 section 5, Karn): where it takes longer
        // than the timeout, the next timeout would be as wrong as this one.
        if (!seq_before(pcb_->lastack, send_.small_end))
            send_.small_end = pcb_->lastack;  // so it never gets so old that it seems new
        route_.soft_error = 0;
        timers_.rto_at =
            pcb_->unacked != nullptr ? check_.last_rx_ns + std::uint64_t{recovery_.rtt.rto_us()} * 1000 : 0;
        if (handshake) {
            if (!opening_.syn_repeated)
                recovery_.rtt.sample(
                    static_cast<std::uint32_t>((check_.last_rx_ns - opening_.syn_sent_ns) / 1000),
                    check_.last_rx_ns);
        }
        if (route_.path.stale)
            route_.paths.confirm(route_.path, ends_.remote_addr), route_.path.stale = false;
    }
    if (pcb_->snd_wnd != window || timers_.probes == 0) timers_.probe_at = 0;
    if (phase_.orphan && pcb_->state == FIN_WAIT_2) start_fin_wait2();
}

// ---- in front of lwIP ----

// Cuts off what lies beyond our window. lwIP does so only for some segments; others would make its window
// negative. A FIN needs no room, as in the kernel: else the end of a stream that just fills the window would
// wait for a retransmission.
void Connection::trim_to_window(pbuf* p) noexcept {
    if (p->len < sizeof(net::TcpHeader) || pcb_->state == TIME_WAIT) return;
    auto& h = *static_cast<net::TcpHeader*>(p->payload);
    const std::uint32_t header = std::uint32_t{h.data_offset} >> 4 << 2;
    if (header < sizeof h || header > p->len || (h.flags & (TCP_SYN | TCP_RST))) return;
    const std::uint32_t seq = ntohl(h.seq), length = p->tot_len - header,
                        right = pcb_->rcv_nxt + pcb_->rcv_wnd;
    if ((h.flags & TCP_FIN) && seq + length == right && !receiver_.fin_room) {
        receiver_.fin_room = true;
        pcb_->rcv_wnd++;
        return;
    }
    // A probe of a closed window, or something far off: answered elsewhere.
    if (!seq_before(seq, right) || !seq_before(right, seq + length)) return;
    h.flags &= static_cast<std::uint8_t>(~TCP_FIN);
    pbuf_realloc(p, static_cast<u16_t>(header + (right - seq)));
}

// What the receive queue may hold. A smaller TCP_WINDOW_CLAMP bounds the window, not this.
std::uint32_t Connection::receive_capacity() const noexcept {
    return std::max(options_.receive_window != 0 ? options_.receive_window : 65535u, 536u);
}

// ---- out of sequence ----

// Data, or a FIN, behind a gap. lwIP will not see it before the gap is filled. The ACK goes at once (RFC 5681
// section 4.2): a peer without SACK counts them.
void Connection::keep_early(std::uint32_t seq, const pbuf& p, bool fin) noexcept {
    // After the FIN, or when nobody can read it any more, it is of no use.
    if (pcb_->state < CLOSE_WAIT && (pcb_->flags & TF_RXCLOSED) == 0) {
        const std::uint32_t length = p.tot_len;
        const bool whole = length == 0 || receiver_.early.keep(seq, &p, length, receive_capacity());
        if (fin && whole && !receiver_.fin_early) {
            receiver_.fin_early = true;
            receiver_.fin_at = seq + length;
        }
    }
    vma_lwip_drop_text();
    if (pcb_->state != SYN_RCVD) send_ack();
}

// Data came in sequence: what lay behind the gap may follow now.
void Connection::take_early() noexcept {
    if (pcb_->state >= CLOSE_WAIT) {  // the peer's FIN came in sequence: there was nothing behind it
        receiver_.early.clear();
        receiver_.fin_early = false;
        return;
    }
    tcp_ack_now(pcb_);  // RFC 5681 section 4.2: a gap is filled, wholly or in part
    std::uint32_t bytes = 0;
    if (pbuf* chain = receiver_.early.take(pcb_->rcv_nxt, bytes); chain != nullptr) {
        in_lwip([&](lwip::Entry&) {
            pcb_->rcv_nxt += bytes;
            pcb_->rcv_wnd -= std::min(bytes, pcb_->rcv_wnd);
            tcp_update_rcv_ann_wnd(pcb_);
            received(chain);
        });
    }
    if (pcb_ == nullptr || !receiver_.fin_early || seq_before(pcb_->rcv_nxt, receiver_.fin_at)) return;
    receiver_.fin_early = false;
    if (pcb_->rcv_nxt != receiver_.fin_at) return;  // the peer sent data behind its FIN
    receiver_.early.clear();
    pbuf* p = pbuf_alloc(PBUF_RAW, sizeof(net::TcpHeader), PBUF_RAM);
    if (p == nullptr) return;  // the peer sends it again
    net::TcpHeader h{};
    h.src_port = ends_.remote_port;
    h.dst_port = ends_.local_port;
    h.seq = htonl(receiver_.fin_at);
    h.ack = htonl(pcb_->lastack);
    h.data_offset = sizeof h / 4 << 4;
    h.flags = TCP_ACK | TCP_FIN;
    std::memcpy(p->payload, &h, sizeof h);
    if (pcb_->rcv_wnd == 0) pcb_->rcv_wnd = 1;  // a FIN needs no room
    receiver_.replaying = true;
    in_lwip([&](lwip::Entry& entry) { entry.input(p, {ends_.remote_addr}, {ends_.local_addr}); });
    receiver_.replaying = false;
}

// Whether this segment's window is news. As in the kernel, and unlike RFC 9293, any segment that acknowledges
// something new is: a retransmission has an old sequence number, and with the window of before, what may be
// sent would end beyond what the peer has said. One that acknowledges less than is known never is. lwIP
// compares its snd_wl1 and snd_wl2; they are set so that it comes to the same result.
void Connection::choose_window(std::uint32_t seq, std::uint32_t ack, std::uint32_t window) noexcept {
    const bool news = !seq_before(ack, pcb_->lastack) &&
                      (seq_before(pcb_->lastack, ack) || seq_before(check_.window_seq, seq) ||
                       (seq == check_.window_seq && (window > pcb_->snd_wnd || window == 0)));
    if (news) {
        check_.window_seq = seq;
        pcb_->snd_wl1 = seq - 1;
    } else {
        pcb_->snd_wl1 = seq;
        pcb_->snd_wl2 = ack + 1;
    }
}

err_t Callbacks::inpacket(void* connection, tcp_pcb* pcb, tcp_hdr* header, std::uint16_t optlen,
                          std::uint16_t opt1len, std::uint8_t*, pbuf* p) {
    if (pcb->state == LISTEN) return ERR_OK;
    (void)opt1len;
    return static_cast<Connection*>(connection)->check(*header, optlen, *p) ? ERR_OK : ERR_ABRT;
}

// Does the segment announce urgent data that somebody may want to know of? Then it is not for us.
bool Connection::urgent_wanted(const tcp_hdr& h) noexcept {
    const std::uint32_t offset = ntohs(h.urgp);
    const std::uint32_t urgent =
        h.seqno + (offset != 0 ? offset - 1 : 0);         // RFC 6093: the kernel takes the byte before
    if (seq_before(urgent, pcb_->rcv_nxt)) return false;  // of the past
    if (phase_.orphan || shown_.urgent_kept.load(std::memory_order_relaxed)) return false;
    shown_.urgent_seen.store(true, std::memory_order_release);
    if (owner_ != nullptr) owner_->changed();
    return true;
}

void Connection::challenge() noexcept {
    const std::uint64_t now = check_.last_rx_ns;
    if (now - check_.challenge_window_start > 1'000'000'000) {
        check_.challenge_window_start = now;
        check_.challenges = 0;
    }
    if (check_.challenges++ >= kChallengesPerSecond) return;
    counters_.challenge_acks++;
    tcp_ack_now(pcb_);
}

bool Connection::check(tcp_hdr& h, unsigned option_bytes, const pbuf& p) noexcept {
    const std::uint8_t flags = TCPH_FLAGS(&h);
    const std::uint32_t seq = h.seqno, ack = h.ackno;
    const std::uint32_t length = p.tot_len;
    const std::uint32_t end = seq + length + ((flags & TCP_SYN) != 0) + ((flags & TCP_FIN) != 0);
    if (receiver_
            .replaying) {  // take_early()'s own: all has been checked when it came, and its window is old
        pcb_->snd_wl1 = seq;
        pcb_->snd_wl2 = ack + 1;
        return true;
    }

    // Options. What is malformed ends the list, as in the kernel.
    auto* options = reinterpret_cast<std::uint8_t*>(&h + 1);
    bool has_ts = false;
    std::uint32_t ts_value = 0, ts_echo = 0;
    SackBlock blocks[4];
    unsigned block_count = 0;
    for (unsigned at = 0; at < option_bytes;) {
        const std::uint8_t kind = options[at];
        if (kind == 0) break;
        if (kind == 1) {
            at++;
            continue;
        }
        if (at + 1 >= option_bytes || options[at + 1] < 2 || at + options[at + 1] > option_bytes) {
            counters_.bad_options++;
            std::memset(options + at, 0, option_bytes - at);  // lwIP would read on
            break;
        }
        const unsigned size = options[at + 1];
        auto word = [&](unsigned offset) {
            std::uint32_t v;
            std::memcpy(&v, options + at + offset, 4);
            return ntohl(v);
        };
        if (kind == 2 && !(flags & TCP_SYN)) {
            std::memset(options + at, 1, size);  // only a SYN may say it, and lwIP would believe any segment
        } else if (kind == 8 && size == 10) {
            has_ts = true;
            ts_value = word(2);
            ts_echo = word(6);
        } else if (kind == 5 && size >= 10 && (size - 2) % 8 == 0) {
            for (unsigned i = 0; i < (size - 2) / 8 && block_count < 4; i++)
                blocks[block_count++] = {word(2 + 8 * i), word(6 + 8 * i)};
        }
        at += size;
    }
    if (flags & TCP_SYN) hide_options(h, option_bytes, options_);

    const tcp_state state = pcb_->state;
    if (state == SYN_SENT) {
        if (flags & TCP_RST) {
            // Without an acceptable ACK it is somebody's guess (RFC 9293 section 3.10.7.3).
            if (!(flags & TCP_ACK) || ack != pcb_->snd_nxt) return counters_.unacceptable++, false;
            return true;
        }
        if (!(flags & TCP_ACK) && (flags & TCP_SYN)) return simultaneous_open(h, option_bytes), false;
        return true;
    }
    if (state == TIME_WAIT) {
        if (!(flags & TCP_RST)) return true;
        // As in the kernel (net.ipv4.tcp_rfc1337 of 0) it ends the wait; leave() sees to it, lwIP would
        // ignore it.
        if (seq == pcb_->rcv_nxt) backlog_.abandon.store(true), backlog_.wants_output.store(true);
        return false;
    }
    if (state == SYN_RCVD) {
        if ((flags & TCP_SYN) && seq == pcb_->rcv_nxt - 1 && !(flags & TCP_ACK)) {
            // A SYN again: our SYN-ACK got lost.
            if (pcb_->unacked != nullptr) {
                opening_.syn_repeated = true;
                send_segment(pcb_->unacked, true);
            }
            return false;
        }
        if (opening_.simultaneous && (flags & (TCP_SYN | TCP_ACK | TCP_FIN)) == (TCP_SYN | TCP_ACK) &&
            seq == pcb_->rcv_nxt - 1 && length == 0) {
            // The other half of a simultaneous open: its SYN is known, its ACK counts. With data it is not
            // taken, as in the kernel (lwIP would take the SYN for the first byte): these come again.
            TCPH_FLAGS_SET(&h, TCP_ACK);
            h.seqno = pcb_->rcv_nxt;
            return true;
        }
    }

    // PAWS (RFC 7323 section 5.3).
    if (has_ts && (pcb_->flags & TF_TIMESTAMP) && !(flags & TCP_RST) &&
        seq_before(ts_value, pcb_->ts_recent) && check_.last_rx_ns - check_.ts_recent_ns < kPawsIdleNs) {
        counters_.paws++;
        challenge();
        return false;
    }
    if (has_ts) check_.ts_recent_ns = check_.last_rx_ns;

    // Acceptability (RFC 9293 section 3.10.7.4), with the kernel's tolerance for probes and for ACKs while
    // our window is closed: any overlap of [seq, end] with [last ACK sent, right edge].
    const std::uint32_t right = pcb_->rcv_nxt + pcb_->rcv_wnd;
    if (seq_before(end, acks_.acked_upto) || seq_before(right, seq)) {
        counters_.unacceptable++;
        if (length != 0 || (flags & TCP_FIN))
            tcp_ack_now(pcb_);  // data again: our ACK got lost
        else if (!(flags & TCP_RST))
            challenge();
        return false;
    }
    const bool early = seq_before(pcb_->rcv_nxt, seq) && (length != 0 || (flags & TCP_FIN) != 0);
    if (flags & TCP_RST) {
        if (seq == pcb_->rcv_nxt) return true;
        challenge();  // RFC 5961 section 3
        return false;
    }
    if (flags & TCP_SYN) {
        challenge();  // RFC 5961 section 4
        return false;
    }
    if (!(flags & TCP_ACK)) return counters_.unacceptable++, false;
    if (state == SYN_RCVD) {
        // Others of this batch may have filled the queue since the listener looked.
        if (origin_ != nullptr && origin_->hold_up()) return false;
        // lwIP checks the ACK, and answers a wrong one with a RST.
        if (seq_before(pcb_->lastack, ack) && seq_at_or_before(ack, pcb_->snd_nxt)) {
            if (length != 0) count_data(length);
            if (early) keep_early(seq, p, (flags & TCP_FIN) != 0);
        }
        return true;
    }
    // RFC 5961 section 5: an ACK of what was never sent, or older than any window the peer could have seen.
    if (seq_before(pcb_->snd_nxt, ack) ||
        seq_before(ack, pcb_->lastack - std::max(pcb_->snd_wnd_max, 65535u))) {
        counters_.unacceptable++;
        challenge();
        return false;
    }
    if (__builtin_expect((flags & TCP_URG) != 0, 0) && urgent_wanted(h)) return false;
    if (length != 0 && seq != pcb_->rcv_nxt) counters_.out_of_order++;

    AckInfo info;
    info.ack = ack;
    info.window = static_cast<std::uint32_t>(h.wnd) << (pcb_->flags & TF_WND_SCALE ? pcb_->snd_scale : 0);
    info.data = length != 0 || (flags & TCP_FIN);
    info.blocks = blocks;
    info.block_count = pcb_->flags & TF_SACK ? block_count : 0;
    info.echo = has_ts && (pcb_->flags & TF_TIMESTAMP) ? ts_echo : 0;
    timers_.unanswered_probes = 0;
    check_.last_ack_rx_ns = check_.last_rx_ns;
    choose_window(seq, ack, info.window);
    before_ack(info);
    if (length != 0) count_data(length);
    if (early) keep_early(seq, p, (flags & TCP_FIN) != 0);
    return true;
}

// Data that will be acknowledged.
void Connection::count_data(std::uint32_t length) noexcept {
    acks_.ack_due_bytes += length;
    counters_.bytes_in += length;
    counters_.data_segments_in++;
    acks_.pingpong = acks_.last_data_tx_ns > acks_.last_data_rx_ns;
    acks_.bulk_bytes =
        acks_.pingpong ? 0 : acks_.bulk_bytes + std::min(length, 0x7fffffffu - acks_.bulk_bytes);
    acks_.last_data_rx_ns = check_.last_rx_ns;
    acks_.largest_in = std::max(acks_.largest_in, std::min(length, std::uint32_t{wanted_mss()}));
    if (acks_.bulk_bytes > AckPolicy::kBulkSegments * std::max(acks_.largest_in, 1u))
        if (ring::Ring* ring = ring_.load(std::memory_order_relaxed)) ring->expect_bulk();
}

// ---- what lwIP tells ----

err_t Callbacks::connected(void* connection, tcp_pcb*, err_t) {
    static_cast<Connection*>(connection)->established();
    return ERR_OK;
}

err_t Callbacks::accepted(void* connection, tcp_pcb*, err_t) {
    static_cast<Connection*>(connection)->established();
    return ERR_OK;
}

err_t Callbacks::received(void* connection, tcp_pcb*, pbuf* p, err_t) {
    auto* c = static_cast<Connection*>(connection);
    if (p != nullptr)
        c->received(p);
    else
        c->peer_finished();
    return ERR_OK;
}

void Callbacks::failed(void* connection, err_t error) {
    auto* c = static_cast<Connection*>(connection);
    // Data for a connection that is shut on both sides: the peer gets a RST, and the program the kernel's
    // error.
    if (error == ERR_ABRT && c->receiver_.processing) c->fail(ECONNRESET);
    if (error != ERR_RST) return;  // by ourselves, or the regular end
    // The kernel's tcp_reset().
    switch (c->pcb_->state) {
        case SYN_SENT:
            c->fail(ECONNREFUSED);
            break;
        case CLOSE_WAIT:
            c->fail(EPIPE);
            break;
        case TIME_WAIT:
        case SYN_RCVD:
            break;
        default:
            c->fail(ECONNRESET);
    }
}

void Connection::received(pbuf* p) noexcept {
    const std::size_t before = receiver_.rx.bytes();
    receiver_.rx.append(p, staged_.ring_scarce.load(std::memory_order_relaxed), receive_capacity(),
                        receiver_.early.held());
    if (receiver_.rx.bytes() == before) return;
    shown_.readable.store(receiver_.rx.bytes(), std::memory_order_release);
    shown_.in_wake++;
    widen_window();
}

void Connection::peer_finished() noexcept {
    phase_.peer_closed = true;
    phase_.fin_seen = true;
    shown_.in_wake++;
    tcp_ack_now(pcb_);
}

// Makes our window as large as the capacity allows. Never smaller: the peer may use what it was told. Called
// inside lwIP.
void Connection::widen_window() noexcept {
    const std::size_t capacity = receive_capacity(), used = receiver_.rx.bytes();
    const std::size_t room = std::min<std::size_t>(capacity > used ? capacity - used : 0, TCP_WND_MAX(pcb_));
    if (room <= pcb_->rcv_wnd) return;
    pcb_->rcv_wnd = static_cast<tcpwnd_size_t>(room);
    tcp_update_rcv_ann_wnd(pcb_);
}

void Connection::open_window() noexcept {
    in_lwip([&](lwip::Entry&) { widen_window(); });
    if (pcb_ == nullptr) return;
    // Tell the peer when what it may send has at least doubled, by a segment or more (RFC 9293
    // section 3.8.6.2.2).
    const std::uint32_t known = pcb_->rcv_ann_right_edge - pcb_->rcv_nxt;
    if (pcb_->rcv_wnd >= 2 * known &&
        pcb_->rcv_wnd - known >= std::min<std::uint32_t>(acks_.largest_in, pcb_->rcv_wnd / 2) &&
        pcb_->state != SYN_SENT && pcb_->state != SYN_RCVD) {
        pcb_->rcv_ann_wnd = pcb_->rcv_wnd;
        tcp_ack_now(pcb_);
        output();
    }
}

// Both ends sent a SYN (RFC 9293 section 3.5, figure 7): lwIP does not know this way into SYN_RCVD.
void Connection::simultaneous_open(const tcp_hdr& h, unsigned option_bytes) noexcept {
    if (pcb_->unacked == nullptr) return;
    const auto* options = reinterpret_cast<const std::uint8_t*>(&h + 1);
    const SynOptions said = read_syn_options({options, option_bytes}, options_);
    const std::uint32_t mss = said.mss != 0 ? said.mss : 536;
    tcp_clear_flags(pcb_, TF_SACK | TF_TIMESTAMP | TF_WND_SCALE);
    if (said.sack) tcp_set_flags(pcb_, TF_SACK);
    if (said.has_stamps) {
        pcb_->ts_recent = said.stamp;
        tcp_set_flags(pcb_, TF_TIMESTAMP);
    }
    const lwip::Parameters parameters =
        parameters_of(options_, opening_.own_scale, wanted_mss(), opening_.ts_offset);
    if (said.has_scale) {
        tcp_set_flags(pcb_, TF_WND_SCALE);
        pcb_->snd_scale = said.scale;
        pcb_->rcv_scale = parameters.rcv_scale;
        pcb_->rcv_wnd = pcb_->rcv_ann_wnd = parameters.wnd;
    }
    pcb_->mss = static_cast<u16_t>(std::min(mss, wanted_mss()));
    pcb_->rcv_nxt = h.seqno + 1;
    pcb_->rcv_ann_right_edge = pcb_->rcv_nxt;
    pcb_->snd_wnd = pcb_->snd_wnd_max = h.wnd;
    pcb_->snd_wl1 = h.seqno - 1;
    // What tcp_listen_input() has there, so that the ACK of our SYN is new.
    pcb_->lastack = pcb_->snd_nxt - 1;
    acks_.acked_upto = pcb_->rcv_nxt;
    pcb_->state = SYN_RCVD;
    opening_.simultaneous = true;
    TCPH_SET_FLAG(pcb_->unacked->tcphdr, TCP_ACK);
    (void)send_segment(pcb_->unacked, true);
}

// ---- TIME_WAIT ----

// RFC 9293 section 3.10.7.4 and RFC 6191, as the kernel does it: a SYN beyond the old connection's numbers
// begins anew.
bool Connection::time_wait_reopens(const ring::RxBuffer& buffer) const noexcept {
    const net::TcpHeader& h = header_of(buffer);
    if ((h.flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) != TCP_SYN || origin_ == nullptr) return false;
    return seq_before(pcb_->rcv_nxt, ntohl(h.seq));
}

void Connection::reopen(ring::RxBuffer* buffer) noexcept {
    // From the backlog the ring is not ours to use; the peer's next SYN then finds the listener alone.
    if (!buffer->ring->rx_owned_by_me()) {
        in_lwip([&](lwip::Entry&) { tcp_abandon(pcb_, 0); });
        buffer->release();
        return;
    }
    // Beyond any segment of the old connection's that may still be on its way, as the kernel's
    // tcp_timewait_state_process().
    const std::uint32_t iss = pcb_->snd_nxt + 65537;
    in_lwip([&](lwip::Entry&) { tcp_abandon(pcb_, 0); });
    // The listener's table has no rule of ours to compete with: it answers the SYN now, and the rule that
    // goes is replaced when the handshake is complete.
    if (!origin_->deliver_again(buffer, iss)) buffer->release();
}

}  // namespace vma::tcp
