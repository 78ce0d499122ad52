// SPDX-License-Identifier: BSD-2-Clause
// A connection's PCB: what lwIP keeps of it, under the names of RFC 9293 (section 3.3.1) and RFC 7323.
//
// The block is lwIP's own, seen as this class: nothing is copied, and each function is the few instructions
// that it shows. lwIP makes it (Callbacks::make(), SynEntry) and frees it. Who calls a function under "Inside
// lwIP" needs an Entry for this PCB (Tcb::in_lwip()). Under the connection's lock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "libvma/tcp/handshake/syn.h"
#include "libvma/tcp/lwip/lwip.h"
#include "libvma/tcp/lwip/segment.h"
#include "libvma/tcp/lwip/types.h"
#include "libvma/tcp/sequence.h"
#include "libvma/tcp/state.h"

namespace vma::tcp::lwip {

// In the order of lwIP's.
inline constexpr State kStates[] = {State::close,       State::listen,    State::syn_sent,  State::syn_recv,
                                    State::established, State::fin_wait1, State::fin_wait2, State::close_wait,
                                    State::closing,     State::last_ack,  State::time_wait};
static_assert(kStates[LISTEN] == State::listen && kStates[ESTABLISHED] == State::established &&
              kStates[TIME_WAIT] == State::time_wait);

// A state that is known when the source is compiled, as lwIP numbers it.
struct LwipState {
    consteval LwipState(State state) noexcept  // NOLINT(google-explicit-constructor)
        : value(static_cast<tcp_state>(std::ranges::find(kStates, state) - kStates)) {}
    tcp_state value;
};

class Pcb : tcp_pcb {
  public:
    // For the sources of this folder: the same block as lwIP knows it.
    static Pcb* of(tcp_pcb* block) noexcept { return static_cast<Pcb*>(block); }
    static tcp_pcb* raw(Pcb* pcb) noexcept { return pcb; }

    // ---- state ----
    State state() const noexcept { return kStates[tcp_pcb::state]; }
    bool in(LwipState state) const noexcept { return tcp_pcb::state == state.value; }
    bool in_handshake() const noexcept { return in(State::syn_sent) || in(State::syn_recv); }
    // Both ends know each other's numbers: ESTABLISHED and all that follows.
    bool synchronized() const noexcept { return tcp_pcb::state >= ESTABLISHED; }
    // The peer's FIN has been received: CLOSE_WAIT and all that follows.
    bool peer_finished() const noexcept { return tcp_pcb::state >= CLOSE_WAIT; }

    // Does nothing of lwIP's stand in the way of header prediction? ESTABLISHED, and data is welcome.
    bool predicts() const noexcept { return in(State::established) && (flags & (TF_RXCLOSED | TF_RTO)) == 0; }

    // ---- what the SYNs agreed on ----
    bool sack() const noexcept { return (flags & TF_SACK) != 0; }
    bool timestamps() const noexcept { return (flags & TF_TIMESTAMP) != 0; }
    bool window_scaling() const noexcept { return (flags & TF_WND_SCALE) != 0; }
    // The shifts of the peer's windows and of this end's; 0 without window scaling.
    std::uint8_t snd_scale() const noexcept { return tcp_pcb::snd_scale; }
    std::uint8_t rcv_scale() const noexcept { return tcp_pcb::rcv_scale; }
    // The largest segment that the peer takes, in bytes of data and options.
    std::uint16_t mss() const noexcept { return tcp_pcb::mss; }
    // TS.Recent (RFC 7323): the time stamp to echo.
    std::uint32_t ts_recent() const noexcept { return tcp_pcb::ts_recent; }
    void set_ts_recent(std::uint32_t stamp) noexcept { tcp_pcb::ts_recent = stamp; }
    // Both ends sent a SYN (RFC 9293 section 3.5, figure 7): takes what the peer's says, and goes to
    // SYN_RCVD. lwIP does not know this way. `mss`: the most that the route has room for.
    void open_simultaneously(const SynOptions& said, std::uint32_t irs, std::uint16_t window,
                             std::uint32_t mss, const Parameters& parameters) noexcept;

    // ---- sending ----
    std::uint32_t snd_una() const noexcept { return lastack; }
    std::uint32_t snd_nxt() const noexcept { return tcp_pcb::snd_nxt; }
    void set_snd_nxt(std::uint32_t seq) noexcept { tcp_pcb::snd_nxt = seq; }
    std::uint32_t snd_wnd() const noexcept { return tcp_pcb::snd_wnd; }
    // The largest window that the peer has had.
    std::uint32_t max_snd_wnd() const noexcept { return snd_wnd_max; }
    // That of the SYN does not count, as it is not scaled.
    void forget_snd_wnd() noexcept { snd_wnd_max = 0; }
    std::uint32_t snd_wl1() const noexcept { return tcp_pcb::snd_wl1; }
    // lwIP takes the window of the segment at hand, or keeps the one it has: it compares these.
    void take_window(std::uint32_t seq) noexcept { tcp_pcb::snd_wl1 = seq - 1; }
    void keep_window(std::uint32_t seq, std::uint32_t ack) noexcept {
        tcp_pcb::snd_wl1 = seq;
        snd_wl2 = ack + 1;
    }
    // The segments that wait for an ACK, and those that were not sent yet, by sequence number. lwIP frees
    // what is acknowledged.
    Segment* unacked() const noexcept { return Segment::of(tcp_pcb::unacked); }
    Segment* unsent() const noexcept { return Segment::of(tcp_pcb::unsent); }
    void set_unacked(Segment* first) noexcept { tcp_pcb::unacked = Segment::raw(first); }
    void set_unsent(Segment* first) noexcept { tcp_pcb::unsent = Segment::raw(first); }
    // How many there are in both lists; the owner of the lists counts one more.
    std::uint32_t segments() const noexcept { return snd_queuelen; }
    void count_segment() noexcept { snd_queuelen++; }
    // As lwIP takes an ACK of the segment `seq`, behind take_window() or keep_window(). `ack` lies in
    // [snd_una, snd_nxt], `window` is scaled. Frees what is acknowledged.
    void acknowledged(std::uint32_t seq, std::uint32_t ack, std::uint32_t window) noexcept {
        if (seq_before(tcp_pcb::snd_wl1, seq)) {
            tcp_pcb::snd_wnd = window;
            snd_wnd_max = std::max(snd_wnd_max, window);
            tcp_pcb::snd_wl1 = seq;
            snd_wl2 = ack;
        }
        if (!seq_before(lastack, ack)) return;
        lastack = ack;
        free_acknowledged(tcp_pcb::unacked);
        free_acknowledged(tcp_pcb::unsent);
    }
    // The sequence number behind all of them. lwIP gives it to the FIN.
    std::uint32_t queue_end() const noexcept { return snd_lbb; }
    void set_queue_end(std::uint32_t seq) noexcept { snd_lbb = seq; }

    // ---- receiving ----
    std::uint32_t rcv_nxt() const noexcept { return tcp_pcb::rcv_nxt; }
    std::uint32_t rcv_wnd() const noexcept { return tcp_pcb::rcv_wnd; }
    void set_rcv_wnd(std::uint32_t bytes) noexcept { tcp_pcb::rcv_wnd = bytes; }
    // The window to announce, and where the last one that was announced ends.
    std::uint32_t announced_wnd() const noexcept { return rcv_ann_wnd; }
    std::uint32_t announced_edge() const noexcept { return rcv_ann_right_edge; }
    void announce(std::uint32_t window) noexcept { tcp_pcb::rcv_wnd = rcv_ann_wnd = window; }
    // The window when the handshake is done, at least what the SYN could announce. lwIP believes that the SYN
    // announced more than this; the next segment tells it, and none leaves for that alone, as in the kernel.
    void begin_with_window(std::uint32_t window) noexcept {
        announce(window);
        rcv_ann_right_edge = tcp_pcb::rcv_nxt + window;
    }
    // The largest window that the SYNs allow, of `full` bytes that the program does (Opening::full_window()).
    std::uint32_t largest_rcv_wnd(std::uint32_t full) const noexcept {
        return window_scaling() ? full : std::min(full, 0xffffu);
    }
    void widen(std::uint32_t window, std::uint32_t full) noexcept {
        tcp_pcb::rcv_wnd = window;
        announce_edge(full);
    }
    // `bytes` have been received that lwIP has not seen.
    void received(std::uint32_t bytes, std::uint32_t full) noexcept {
        tcp_pcb::rcv_nxt += bytes;
        tcp_pcb::rcv_wnd -= std::min(bytes, tcp_pcb::rcv_wnd);
        announce_edge(full);
    }
    // What a segment's window field holds.
    std::uint32_t window_field() const noexcept {
        return std::min(rcv_ann_wnd >> tcp_pcb::rcv_scale, 0xffffu);
    }
    // An ACK is to leave at once.
    void ack_now() noexcept { tcp_ack_now(this); }
    void drop_ack_now() noexcept { tcp_clear_flags(this, TF_ACK_NOW); }
    bool ack_wanted() const noexcept { return (flags & TF_ACK_NOW) != 0; }
    // lwIP forgets that it owes an ACK.
    void drop_delayed_ack() noexcept { tcp_clear_flags(this, TF_ACK_DELAY); }
    // A segment has left, with an ACK and the window in it.
    void ack_sent() noexcept {
        tcp_clear_flags(this, TF_ACK_DELAY | TF_ACK_NOW);
        rcv_ann_right_edge = tcp_pcb::rcv_nxt + rcv_ann_wnd;
    }
    // Data that still comes can reach nobody, and is answered with a RST.
    void refuse_data() noexcept { tcp_set_flags(this, TF_RXCLOSED); }
    bool refuses_data() const noexcept { return (flags & TF_RXCLOSED) != 0; }

    // lwIP's fast retransmit, its round trips and its congestion window never act: called before each
    // segment. Nor does its own count of segments for an ACK.
    void rest() noexcept {
        rtime = -1;
        dupacks = 0;
        ssthresh = 0;
        cwnd = 0x7fffffff;
        bytes_acked = 0;
        rttest = 0;
        drop_delayed_ack();
    }

    // ---- inside lwIP ----
    // Queues a FIN and goes on to the next state. May free the PCB.
    void shut_write() noexcept { tcp_shutdown(this, 0, 1); }
    // Sends a segment that the peer must answer because it is old.
    void send_keepalive() noexcept { tcp_keepalive(this); }
    // Frees the PCB. `reset`: with a RST to the peer where the state asks for one.
    void abandon(bool reset) noexcept { tcp_abandon(this, reset); }

  private:
    // Silly window avoidance of the receiver (RFC 9293 section 3.8.6.2.2): the announced edge moves by a
    // segment or half of the full window, and never back. As lwIP does it.
    void announce_edge(std::uint32_t full) noexcept {
        const std::uint32_t edge = tcp_pcb::rcv_nxt + tcp_pcb::rcv_wnd;
        const std::uint32_t worth = std::min<std::uint32_t>(full / 2, tcp_pcb::mss);
        if (!seq_before(edge, rcv_ann_right_edge + worth))
            rcv_ann_wnd = tcp_pcb::rcv_wnd;
        else if (seq_before(rcv_ann_right_edge, tcp_pcb::rcv_nxt))
            rcv_ann_wnd = 0;
        else
            rcv_ann_wnd = rcv_ann_right_edge - tcp_pcb::rcv_nxt;
    }
    // A segment is a single pbuf, and counts as that.
    void free_acknowledged(tcp_seg*& list) noexcept {
        while (list != nullptr && seq_at_or_before(Segment::of(list)->end(), lastack)) {
            Segment* const first = Segment::of(list);
            list = Segment::raw(first->next());
            snd_queuelen--;
            first->free();
        }
    }
};
// What lwIP made is a Pcb, too: the class adds nothing.
static_assert(sizeof(Pcb) == sizeof(tcp_pcb) && std::is_standard_layout_v<Pcb> && std::is_trivial_v<Pcb>);

inline void Pcb::open_simultaneously(const SynOptions& said, std::uint32_t irs, std::uint16_t window,
                                     std::uint32_t mss, const Parameters& parameters) noexcept {
    tcp_clear_flags(this, TF_SACK | TF_TIMESTAMP | TF_WND_SCALE);
    if (said.sack) tcp_set_flags(this, TF_SACK);
    if (said.has_stamps) {
        tcp_set_flags(this, TF_TIMESTAMP);
        tcp_pcb::ts_recent = said.stamp;
    }
    if (said.has_scale) {
        tcp_set_flags(this, TF_WND_SCALE);
        tcp_pcb::snd_scale = said.scale;
        tcp_pcb::rcv_scale = parameters.rcv_scale;
        announce(parameters.wnd);
    }
    const std::uint32_t peers = said.mss != 0 ? said.mss : 536;
    tcp_pcb::mss = static_cast<u16_t>(std::min(peers, mss));
    tcp_pcb::rcv_nxt = rcv_ann_right_edge = irs + 1;
    tcp_pcb::snd_wnd = snd_wnd_max = window;
    tcp_pcb::snd_wl1 = irs - 1;
    // What tcp_listen_input() has there, so that the ACK of this end's SYN is new.
    lastack = tcp_pcb::snd_nxt - 1;
    tcp_pcb::state = SYN_RCVD;
    TCPH_SET_FLAG(tcp_pcb::unacked->tcphdr, TCP_ACK);
}

}  // namespace vma::tcp::lwip
