// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/handshake/opening.h"

#include <errno.h>
#include <netinet/in.h>

#include <algorithm>

#include "libvma/tcp/connection.h"
#include "libvma/tcp/handshake/isn.h"
#include "libvma/tcp/handshake/syn.h"
#include "libvma/tcp/lwip/entry.h"
#include "libvma/tcp/lwip/received_header.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {

Opening::Opening(Tcb& tcb) noexcept : tcb_(tcb), ts_offset_(timestamp_offset(tcb.ends)) {}

int Opening::start() noexcept {
    own_scale_ = window_scale(tcb_.options);
    const lwip::Parameters parameters = negotiated();
    own_window_ = parameters.wnd;
    tcb_.pcb = Callbacks::make(tcb_, parameters);
    if (tcb_.pcb == nullptr) return -ENOBUFS;
    bool queued = false;
    tcb_.in_lwip([&](lwip::Entry&) { queued = Callbacks::connect(tcb_); });
    if (queued) tcb_.sender.output();
    // What may be sent before the peer has said anything (RFC 9293 section 3.7.1).
    tcb_.shown.set_mss(std::min(tcb_.route.wanted_mss(), 536u) -
                       (tcb_.options.timestamps ? kTimestampBytes : 0));
    return queued ? 0 : -ENOBUFS;
}

void Opening::adopt(lwip::Pcb* pcb, const Handshake& handshake) noexcept {
    tcb_.pcb = pcb;
    own_scale_ = pcb->rcv_scale();
    tcb_.ecn.begin(handshake.said.ecn);
    tcb_.shown.set_state(State::syn_recv);
    Callbacks::install(pcb, tcb_);
    tcb_.queue.adopt_syn_ack();
    pcb->set_snd_nxt(handshake.iss + 1);
    tcb_.acks.sent();
    sent_at_ = handshake.sent_at;
    repeated_ = handshake.repeated;
    tcb_.counters.segments_out++;
    tcb_.timers.rto_at = tcb_.acceptance.last_rx() + tcb_.recovery.rto();
}

void Opening::established() noexcept {
    tcb_.phase.connecting = false;
    tcb_.phase.established = true;
    done_at_ = tcb_.acceptance.last_rx();
    if (tcb_.origin.passive()) tcb_.pcb->forget_snd_wnd();  // the segment at hand tells it
    tcb_.shown.set_mss(tcb_.route.send_mss());
    tcb_.acks.start(tcb_.pcb->rcv_nxt());
    // As the kernel's tcp_init_wl(): the window came with the peer's SYN, or with the ACK behind it.
    tcb_.acceptance.start(tcb_.origin.passive() ? tcb_.pcb->rcv_nxt() : tcb_.pcb->rcv_nxt() - 1);
    if (!tcb_.origin.passive()) {
        // SO_RCVBUF may have changed since the SYN; what that has announced holds.
        const std::uint32_t most = tcb_.pcb->window_scaling() ? 0xffffffff : 0xffff;
        const std::uint32_t now = negotiated().wnd;
        tcb_.pcb->announce(std::max(std::min(now, most), syn_window_));
    }
    if (const std::uint32_t limit = tcb_.acks.window_limit(); tcb_.pcb->rcv_wnd() > limit)
        tcb_.pcb->begin_with_window(limit);
    tcb_.recovery.start();
    tcb_.queue.start(tcb_.pcb->queue_end());
    tcb_.sender.start(tcb_.pcb->queue_end());
    tcb_.shown.wake_writers();
    if (!tcb_.origin.passive()) return;
    // A passive open: a rule of its own, then the listener may hand it out.
    Connection& connection = tcb_.connection;
    const bool handed_out = connection.attach() == 0 && tcb_.origin.completed(connection);
    if (!handed_out) connection.reset_soon();  // the peer believes that it is connected
}

void Opening::simultaneous_open(const lwip::ReceivedHeader& h, unsigned option_bytes) noexcept {
    lwip::Pcb* const pcb = tcb_.pcb;
    if (pcb->unacked() == nullptr) return;
    const SynOptions said = read_syn_options({h.options(), option_bytes}, tcb_.options);
    pcb->open_simultaneously(said, h.seq(), h.window(), tcb_.route.wanted_mss(), negotiated());
    tcb_.acks.start(pcb->rcv_nxt());
    simultaneous_ = true;
    tcb_.ecn.met(h.ecn_flags());
    (void)tcb_.writer.send(pcb->unacked(), true);
}

void Opening::repeat() noexcept {
    if (tcb_.pcb->unacked() == nullptr) return;
    repeated_ = true;
    (void)tcb_.writer.send(tcb_.pcb->unacked(), true);
}

void Opening::measure(Time now) noexcept {
    if (!repeated_) tcb_.recovery.rtt().sample(std::chrono::duration_cast<Usec>(now - sent_at_), now);
}

}  // namespace vma::tcp
