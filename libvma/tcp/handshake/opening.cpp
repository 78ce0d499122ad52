// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/handshake/opening.h"

#include <errno.h>
#include <netinet/in.h>

#include <algorithm>

#include "libvma/tcp/connection.h"
#include "libvma/tcp/handshake/isn.h"
#include "libvma/tcp/handshake/syn.h"
#include "libvma/tcp/lwip/entry.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {

Opening::Opening(Tcb& tcb) noexcept : tcb_(tcb), ts_offset_(timestamp_offset(tcb.ends)) {}

int Opening::start() noexcept {
    own_scale_ = window_scale(tcb_.options);
    const lwip::Parameters parameters = negotiated();
    own_window_ = parameters.wnd;
    {
        lwip::Entry entry(static_cast<tcp_pcb*>(nullptr), Callbacks::kHooks, &tcb_, parameters);
        tcb_.pcb = tcp_new();
    }
    if (tcb_.pcb == nullptr) return ENOBUFS;
    Callbacks::install(tcb_.pcb, tcb_);
    tcb_.set_pcb_options();
    err_t result = ERR_OK;
    tcb_.in_lwip([&](lwip::Entry&) {
        tcb_.pcb->local_ip.addr = tcb_.ends.local_addr;
        tcb_.pcb->local_port = ntohs(tcb_.ends.local_port);
        ip_addr_t to{tcb_.ends.remote_addr};
        result = tcp_connect(tcb_.pcb, &to, ntohs(tcb_.ends.remote_port), &Callbacks::connected);
    });
    if (result == ERR_OK) tcb_.sender.output();
    // What may be sent before the peer has said anything (RFC 9293 section 3.7.1).
    tcb_.shown.set_mss(std::min(tcb_.route.wanted_mss(), 536u) -
                       (tcb_.options.timestamps ? kTimestampBytes : 0));
    return result == ERR_OK ? 0 : ENOBUFS;
}

void Opening::adopt(tcp_pcb* pcb, const Handshake& handshake) noexcept {
    tcb_.pcb = pcb;
    own_scale_ = pcb->rcv_scale;
    tcb_.shown.set_state(State::syn_recv);
    Callbacks::install(pcb, tcb_);
    tcb_.set_pcb_options();
    tcb_.queue.adopt_syn_ack();
    pcb->snd_nxt = handshake.iss + 1;
    tcb_.acks.sent();
    sent_ns_ = handshake.sent_ns;
    repeated_ = handshake.repeated;
    tcb_.counters.segments_out++;
    tcb_.timers.rto_at = tcb_.acceptance.last_rx_ns() + tcb_.recovery.rto_ns();
}

void Opening::established() noexcept {
    tcb_.phase.connecting = false;
    tcb_.phase.established = true;
    tcb_.shown.set_mss(tcb_.route.send_mss());
    tcb_.acks.start(tcb_.pcb->rcv_nxt);
    // As the kernel's tcp_init_wl(): the window came with the peer's SYN, or with the ACK behind it.
    tcb_.acceptance.start(tcb_.origin.passive() ? tcb_.pcb->rcv_nxt : tcb_.pcb->rcv_nxt - 1);
    if (!tcb_.origin.passive()) {
        // SO_RCVBUF may have changed since the SYN; what that has announced holds.
        const std::uint32_t most = tcb_.pcb->flags & TF_WND_SCALE ? 0xffffffff : 0xffff;
        const std::uint32_t now = negotiated().wnd;
        tcb_.pcb->rcv_wnd = tcb_.pcb->rcv_ann_wnd = std::max(std::min(now, most), syn_window_);
    }
    tcb_.recovery.start();
    tcb_.queue.start(tcb_.pcb->snd_lbb);
    tcb_.sender.start(tcb_.pcb->snd_lbb);
    tcb_.shown.wake_writers();
    if (!tcb_.origin.passive()) return;
    // A passive open: a rule of its own, then the listener may hand it out.
    Connection& connection = tcb_.connection;
    const bool handed_out = connection.attach() == 0 && tcb_.origin.completed(connection);
    if (!handed_out) connection.reset_soon();  // the peer believes that it is connected
}

// Both ends sent a SYN (RFC 9293 section 3.5, figure 7): lwIP does not know this way into SYN_RCVD.
void Opening::simultaneous_open(const tcp_hdr& h, unsigned option_bytes) noexcept {
    tcp_pcb* const pcb = tcb_.pcb;
    if (pcb->unacked == nullptr) return;
    const auto* options = reinterpret_cast<const std::uint8_t*>(&h + 1);
    const SynOptions said = read_syn_options({options, option_bytes}, tcb_.options);
    const std::uint32_t mss = said.mss != 0 ? said.mss : 536;
    tcp_clear_flags(pcb, TF_SACK | TF_TIMESTAMP | TF_WND_SCALE);
    if (said.sack) tcp_set_flags(pcb, TF_SACK);
    if (said.has_stamps) {
        pcb->ts_recent = said.stamp;
        tcp_set_flags(pcb, TF_TIMESTAMP);
    }
    const lwip::Parameters parameters = negotiated();
    if (said.has_scale) {
        tcp_set_flags(pcb, TF_WND_SCALE);
        pcb->snd_scale = said.scale;
        pcb->rcv_scale = parameters.rcv_scale;
        pcb->rcv_wnd = pcb->rcv_ann_wnd = parameters.wnd;
    }
    pcb->mss = static_cast<u16_t>(std::min(mss, tcb_.route.wanted_mss()));
    pcb->rcv_nxt = h.seqno + 1;
    pcb->rcv_ann_right_edge = pcb->rcv_nxt;
    pcb->snd_wnd = pcb->snd_wnd_max = h.wnd;
    pcb->snd_wl1 = h.seqno - 1;
    // What tcp_listen_input() has there, so that the ACK of our SYN is new.
    pcb->lastack = pcb->snd_nxt - 1;
    tcb_.acks.start(pcb->rcv_nxt);
    pcb->state = SYN_RCVD;
    simultaneous_ = true;
    TCPH_SET_FLAG(pcb->unacked->tcphdr, TCP_ACK);
    (void)tcb_.writer.send(pcb->unacked, true);
}

void Opening::repeat() noexcept {
    if (tcb_.pcb->unacked == nullptr) return;
    repeated_ = true;
    (void)tcb_.writer.send(tcb_.pcb->unacked, true);
}

void Opening::measure(std::uint64_t now) noexcept {
    if (!repeated_) tcb_.recovery.rtt().sample(static_cast<std::uint32_t>((now - sent_ns_) / 1000), now);
}

}  // namespace vma::tcp
