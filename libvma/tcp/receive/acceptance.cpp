// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/receive/acceptance.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "libvma/tcp/connection.h"
#include "libvma/tcp/handshake/syn.h"
#include "libvma/tcp/lwip/frames.h"
#include "libvma/tcp/lwip/piece.h"
#include "libvma/tcp/lwip/received_header.h"
#include "libvma/tcp/recovery/sack.h"
#include "libvma/tcp/sequence.h"
#include "libvma/tcp/tcb_inline.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {
namespace {

constexpr Nsec kPawsIdle = 24 * 86400 * kSecond;
constexpr Msec kSynAgain{8};  // the kernel's TCP_TIMEOUT_MIN: two clock ticks

}  // namespace

struct Acceptance::Said {
    bool has_stamp = false;
    std::uint32_t stamp = 0, echo = 0;
    unsigned block_count = 0;
    SackBlock blocks[4];
};

Acceptance::Acceptance(Tcb& tcb) noexcept : tcb_(tcb), last_rx_(Clock::now()) {}

bool Acceptance::check(lwip::ReceivedHeader& h, unsigned option_bytes, const lwip::Piece& p) noexcept {
    Tcb& t = tcb_;
    lwip::Pcb* const pcb = t.pcb;
    const std::uint8_t flags = h.flags();
    const std::uint32_t seq = h.seq(), ack = h.ack();
    const std::uint32_t length = p.total();
    const std::uint32_t end = seq + length + ((flags & TCP_SYN) != 0) + ((flags & TCP_FIN) != 0);
    seg_ack_ = ack;
    has_ack_ = (flags & TCP_ACK) != 0;
    // The receiver's own: all has been checked when it came, and its window is old.
    if (t.receiver.replaying()) {
        pcb->keep_window(seq, ack);
        return true;
    }
    // lwIP reads what a SYN says. The options of all other segments are read here alone.
    if (__builtin_expect((flags & TCP_SYN) != 0, 0)) {
        if (!hide_options(h, option_bytes, t.options)) t.counters.bad_options++;
    } else {
        lwip::ReceivedHeader::drop_options();
    }
    if (!pcb->in(State::established)) {
        const Answer answer = check_by_state(h, option_bytes, length);
        if (answer != Answer::open) return answer == Answer::yes;
    }
    Said said;
    read_options(h, option_bytes, said);

    // PAWS (RFC 7323 section 5.3).
    if (said.has_stamp && pcb->timestamps() && !(flags & TCP_RST) &&
        seq_before(said.stamp, pcb->ts_recent()) && last_rx_ - ts_recent_at_ < kPawsIdle) {
        const bool bare = length == 0 && (flags & (TCP_SYN | TCP_FIN | TCP_ACK)) == TCP_ACK;
        if (!bare || !old_stamp_counts(h, said.stamp)) {
            t.counters.paws++;
            // Old ACKs are common, and nothing answers them.
            if (!bare || !seq_before(seq, pcb->rcv_nxt())) refuse(flags, length, seq);
            return false;
        }
        said.has_stamp = false;
    }
    if (said.has_stamp) ts_recent_at_ = last_rx_;

    // Acceptability (RFC 9293 section 3.10.7.4), with the kernel's tolerance for probes and for ACKs while
    // our window is closed: any overlap of [seq, end] with [last ACK sent, right edge].
    const std::uint32_t right = pcb->rcv_nxt() + pcb->rcv_wnd();
    if (seq_before(end, t.acks.acked_upto()) || seq_before(right, seq)) {
        t.counters.unacceptable++;
        if (!(flags & TCP_RST)) refuse(flags, length, seq);
        return false;
    }
    const bool early = seq_before(pcb->rcv_nxt(), seq) && (length != 0 || (flags & TCP_FIN) != 0);
    if (flags & TCP_RST) {
        if (seq == pcb->rcv_nxt()) return true;
        if (ends_early_data(seq)) return lwip::ReceivedHeader::begin_at(pcb->rcv_nxt()), true;
        challenge();  // RFC 5961 section 3
        return false;
    }
    if (flags & TCP_SYN) {
        challenge();  // RFC 5961 section 4
        return false;
    }
    if (!(flags & TCP_ACK)) return t.counters.unacceptable++, false;
    if (pcb->in(State::syn_recv)) {
        // Others of this batch may have filled the queue since the listener looked.
        if (t.origin.hold_up()) return false;
        // lwIP checks the ACK, and answers a wrong one with a RST.
        if (seq_before(pcb->snd_una(), ack) && seq_at_or_before(ack, pcb->snd_nxt())) {
            if (length != 0) take_data(length, end);
            if (early) t.receiver.keep_early(seq, p, (flags & TCP_FIN) != 0);
        }
        keep_stamp(said, seq, end);
        return true;
    }
    // RFC 5961 section 5.2.
    if (seq_before(pcb->snd_nxt(), ack) || too_old(ack)) {
        t.counters.unacceptable++;
        challenge();
        return false;
    }
    if (__builtin_expect((flags & TCP_URG) != 0, 0) && urgent_wanted(h)) return false;
    if (early) t.counters.out_of_order++;

    take_ack(seq, ack, h.window(), length != 0 || (flags & TCP_FIN) != 0, said, h.ecn_flags());
    // What comes behind the peer's FIN is not data, and is not answered, as in the kernel.
    if (length != 0 && pcb->peer_finished() && !seq_before(seq, pcb->rcv_nxt())) {
        lwip::ReceivedHeader::drop_text();
        return true;
    }
    if (seq_before(seq, pcb->rcv_nxt()) && seq != end) t.receiver.note_old(seq, end);
    if (length != 0) take_data(length, end);
    if (early) t.receiver.keep_early(seq, p, (flags & TCP_FIN) != 0);
    keep_stamp(said, seq, end);
    return true;
}

// The order and the results are those of check().
bool Acceptance::take_expected(const net::TcpHeader& h, unsigned option_bytes,
                               std::uint32_t length) noexcept {
    Tcb& t = tcb_;
    lwip::Pcb* const pcb = t.pcb;
    const std::uint32_t seq = ntohl(h.seq), ack = ntohl(h.ack), end = seq + length;
    if ((h.flags & ~TCP_PSH) != TCP_ACK || !pcb->predicts() || seq != pcb->rcv_nxt() ||
        length > pcb->rcv_wnd())
        return false;
    if (seq_before(ack, pcb->snd_una()) || seq_before(pcb->snd_nxt(), ack) ||
        seq_before(end, t.acks.acked_upto()))
        return false;
    Said said;
    if (option_bytes != 0) {
        const auto* options = reinterpret_cast<const std::uint8_t*>(&h + 1);
        if (!usual_stamp(options, option_bytes)) return false;
        said.has_stamp = true;
        said.stamp = word_at(options + 4);
        said.echo = word_at(options + 8);
        if (pcb->timestamps() && seq_before(said.stamp, pcb->ts_recent())) return false;
        ts_recent_at_ = last_rx_;
    }
    pcb->acknowledged(seq, ack, take_ack(seq, ack, ntohs(h.window), length != 0, said, 0));
    if (length != 0) take_data(length, end);
    keep_stamp(said, seq, end);
    return true;
}

[[gnu::always_inline]] inline void Acceptance::read_options(const lwip::ReceivedHeader& h,
                                                            unsigned option_bytes, Said& said) noexcept {
    // What is malformed ends the list, as in the kernel.
    const std::uint8_t* options = h.options();
    for (unsigned at = 0; at < option_bytes;) {
        const std::uint8_t kind = options[at];
        if (kind == 0) break;
        if (kind == 1) {
            at++;
            continue;
        }
        if (at + 1 >= option_bytes || options[at + 1] < 2 || at + options[at + 1] > option_bytes) {
            tcb_.counters.bad_options++;
            break;
        }
        const unsigned size = options[at + 1];
        auto word = [&](unsigned offset) { return word_at(options + at + offset); };
        if (kind == 8 && size == 10) {
            said.has_stamp = true;
            said.stamp = word(2);
            said.echo = word(6);
        } else if (kind == 5 && size >= 10 && (size - 2) % 8 == 0) {
            for (unsigned i = 0; i < (size - 2) / 8 && said.block_count < 4; i++)
                said.blocks[said.block_count++] = {word(2 + 8 * i), word(6 + 8 * i)};
        }
        at += size;
    }
}

// The stamp to echo is that of the segment in which the last ACK sent lies (RFC 7323 section 4.3).
[[gnu::always_inline]] inline void Acceptance::keep_stamp(const Said& said, std::uint32_t seq,
                                                          std::uint32_t end) noexcept {
    const std::uint32_t acked = tcb_.acks.acked_upto();
    if (said.has_stamp && seq_at_or_before(seq, acked) && seq_at_or_before(acked, end))
        tcb_.pcb->set_ts_recent(said.stamp);
}

// What the states before and after a connection's life make of a segment. Open: the general rules hold.
Acceptance::Answer Acceptance::check_by_state(lwip::ReceivedHeader& h, unsigned option_bytes,
                                              std::uint32_t length) noexcept {
    Tcb& t = tcb_;
    lwip::Pcb* const pcb = t.pcb;
    const std::uint8_t flags = h.flags();
    const std::uint32_t seq = h.seq();
    if (pcb->in(State::syn_sent)) return check_syn_sent(h, option_bytes);
    if (pcb->in(State::time_wait)) return check_time_wait(h, option_bytes, length), Answer::no;
    // Who has closed may not know that its FIN has arrived.
    if ((flags & TCP_RST) && pcb->peer_finished() && seq == pcb->rcv_nxt() - 1)
        return lwip::ReceivedHeader::begin_at(pcb->rcv_nxt()), Answer::yes;
    if (pcb->in(State::syn_recv)) {
        if ((flags & TCP_SYN) && seq == pcb->rcv_nxt() - 1 && !(flags & TCP_ACK)) {
            // A SYN again: our SYN-ACK got lost.
            t.opening.repeat();
            return Answer::no;
        }
        if (t.opening.simultaneous() && (flags & (TCP_SYN | TCP_ACK | TCP_FIN)) == (TCP_SYN | TCP_ACK) &&
            seq == pcb->rcv_nxt() - 1 && length == 0) {
            // The other half of a simultaneous open: its SYN is known, its ACK counts. With data it is not
            // taken, as in the kernel (lwIP would take the SYN for the first byte): these come again.
            h.make_ack(pcb->rcv_nxt());
            return Answer::yes;
        }
    }
    return Answer::open;
}

// RFC 9293 section 3.10.7.3, as the kernel's tcp_rcv_synsent_state_process() does it.
Acceptance::Answer Acceptance::check_syn_sent(lwip::ReceivedHeader& h, unsigned option_bytes) noexcept {
    Tcb& t = tcb_;
    const std::uint8_t flags = h.flags();
    if (!(flags & TCP_ACK)) {
        if (flags & TCP_RST)
            t.counters.unacceptable++;  // somebody's guess
        else if (flags & TCP_SYN)
            t.opening.simultaneous_open(h, option_bytes);
        return Answer::no;
    }
    Said said;
    read_options(h, option_bytes, said);
    const bool acceptable = h.ack() == t.pcb->snd_nxt();
    // Perhaps it answers an earlier connection of the same numbers, which the RST ends.
    if (!acceptable && t.recovery.retries() == 0) t.timers.rto_at = last_rx_ + kSynAgain;
    const std::uint32_t first = t.opening.timestamp(t.opening.sent_at());
    const bool foreign = said.has_stamp && said.echo != 0 && t.options.timestamps &&
                         said.echo - first > t.opening.timestamp(last_rx_) - first;
    if (!acceptable || foreign) {
        t.counters.unacceptable++;
        if (!(flags & TCP_RST)) t.writer.refuse(h.ack());
        return Answer::no;
    }
    if ((flags & (TCP_SYN | TCP_RST)) == TCP_SYN) t.ecn.answered(h.ecn_flags());
    return (flags & (TCP_SYN | TCP_RST)) != 0 ? Answer::yes : Answer::no;
}

// As the kernel's tcp_timewait_state_process() with net.ipv4.tcp_rfc1337 of 0. reopens() has seen SYNs.
void Acceptance::check_time_wait(const lwip::ReceivedHeader& h, unsigned option_bytes,
                                 std::uint32_t length) noexcept {
    Tcb& t = tcb_;
    const std::uint8_t flags = h.flags();
    Said said;
    read_options(h, option_bytes, said);
    const bool stamped = said.has_stamp && t.pcb->timestamps();
    const bool old = stamped && seq_before(said.stamp, t.pcb->ts_recent());
    const bool reset = (flags & TCP_RST) != 0;
    const bool bare = length == 0 && (flags & (TCP_SYN | TCP_FIN)) == 0;
    if (!old && h.seq() == t.pcb->rcv_nxt() && (bare || reset)) {
        if (stamped) t.pcb->set_ts_recent(said.stamp);
        reset ? t.connection.abandon_soon() : t.timers.time_wait_again();
        return;
    }
    if (reset) return;
    if (old || (flags & TCP_ACK)) t.timers.time_wait_again();
    refuse(flags, length, h.seq());
}

// Is `seq` the end of the data out of sequence? A RST there is the peer's: the segments before it are under
// way (as in the kernel's tcp_validate_incoming()).
bool Acceptance::ends_early_data(std::uint32_t seq) const noexcept {
    if (!tcb_.pcb->sack() || tcb_.receiver.early().empty()) return false;
    SackBlock blocks[Reassembly::kMaxBlocks];
    const std::size_t n = tcb_.receiver.early().blocks(blocks, Reassembly::kMaxBlocks);
    std::uint32_t end = tcb_.pcb->rcv_nxt();
    for (const SackBlock& block : std::span(blocks, n))
        if (seq_before(end, block.right)) end = block.right;
    return n != 0 && seq == end;
}

Time Acceptance::last_heard() const noexcept { return std::max(last_ack_rx_, tcb_.acks.last_data_rx()); }

// An acceptable ACK. Returns the window in bytes.
[[gnu::always_inline]] inline std::uint32_t Acceptance::take_ack(std::uint32_t seq, std::uint32_t ack,
                                                                 std::uint16_t window, bool data,
                                                                 const Said& said,
                                                                 std::uint8_t ecn_flags) noexcept {
    Tcb& t = tcb_;
    lwip::Pcb* const pcb = t.pcb;
    AckInfo info;
    info.ack = ack;
    info.window = std::uint32_t{window} << (pcb->window_scaling() ? pcb->snd_scale() : 0);
    info.data = data;
    info.blocks = said.blocks;
    info.block_count = pcb->sack() ? said.block_count : 0;
    info.echo = said.has_stamp && pcb->timestamps() ? said.echo : 0;
    if (ecn_flags != 0 && t.ecn.on()) {
        // Where nothing is under way it says nothing, as in the kernel.
        info.ecn_echo = (ecn_flags & Ecn::kEcho) != 0 && pcb->snd_nxt() != pcb->snd_una();
        if (info.ecn_echo && seq_before(pcb->snd_una(), ack))
            t.counters.delivered_marked += ack - pcb->snd_una();
        if ((ecn_flags & Ecn::kReduced) != 0) {
            t.ecn.take_reduced();
            if (data) pcb->ack_now();  // the peer's window may be a single segment
        }
    }
    t.timers.probe_answered();
    if (!seq_before(ack, pcb->snd_una())) last_ack_rx_ = last_rx_;
    if (!data || seq_before(pcb->snd_una(), ack)) t.sender.more_is_late();
    choose_window(seq, ack, info.window);
    t.recovery.before_ack(info);
    return info.window;
}

// New data, though perhaps behind a gap.
[[gnu::always_inline]] inline void Acceptance::take_data(std::uint32_t length, std::uint32_t end) noexcept {
    Tcb& t = tcb_;
    t.acks.data_received(length);
    if (__builtin_expect(t.ecn.on(), 0) && seq_before(t.pcb->rcv_nxt(), end) && t.ecn.take_data())
        t.pcb->ack_now();
}

// Whether this segment's window is news. As in the kernel, and unlike RFC 9293, any segment that acknowledges
// something new is: a retransmission has an old sequence number, and with the window of before, what may be
// sent would end beyond what the peer has said. One that acknowledges less than is known never is. lwIP
// compares its snd_wl1 and snd_wl2; they are set so that it comes to the same result.
[[gnu::always_inline]] inline void Acceptance::choose_window(std::uint32_t seq, std::uint32_t ack,
                                                             std::uint32_t window) noexcept {
    lwip::Pcb* const pcb = tcb_.pcb;
    const bool news = !seq_before(ack, pcb->snd_una()) &&
                      (seq_before(pcb->snd_una(), ack) || seq_before(window_seq_, seq) ||
                       (seq == window_seq_ && (window > pcb->snd_wnd() || window == 0)));
    if (news) {
        window_seq_ = seq;
        pcb->take_window(seq);
    } else {
        pcb->keep_window(seq, ack);
    }
}

}  // namespace vma::tcp
