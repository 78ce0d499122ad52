// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <netinet/in.h>

#include <algorithm>

#include "libvma/tcp/connection.h"
#include "libvma/tcp/handshake/isn.h"
#include "libvma/tcp/lwip/entry.h"
#include "libvma/tcp/lwip/piece.h"
#include "libvma/tcp/lwip/received_header.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {

const lwip::Hooks Callbacks::kHooks{&Callbacks::output, &Callbacks::isn, &Callbacks::transmit,
                                    &Callbacks::inpacket};

tcp_pcb_listen Callbacks::g_listener = [] {
    tcp_pcb_listen l{};
    l.state = LISTEN;
    l.accept = &Callbacks::established;
    return l;
}();

// lwIP would like to send now. Sender::output() does so when lwIP is done.
err_t Callbacks::transmit(void*, tcp_pcb*) { return ERR_OK; }

err_t Callbacks::output(void* tcb, pbuf* p, ip4_addr_t, ip4_addr_t, std::uint8_t, std::uint8_t) {
    static_cast<Tcb*>(tcb)->writer.send_control(*lwip::Piece::of(p));
    return ERR_OK;
}

std::uint32_t Callbacks::isn(void* tcb, ip4_addr_t, std::uint16_t, ip4_addr_t, std::uint16_t) {
    return initial_sequence(static_cast<const Tcb*>(tcb)->ends, Clock::now());
}

void Callbacks::install(lwip::Pcb* pcb, Tcb& tcb) noexcept {
    tcp_pcb* const raw = lwip::Pcb::raw(pcb);
    tcp_arg(raw, &tcb);
    raw->recv = &Callbacks::received;
    raw->errf = &Callbacks::failed;
    raw->sent = nullptr;
    raw->poll = nullptr;
    raw->listener = &g_listener;
}

lwip::Pcb* Callbacks::make(Tcb& tcb, const lwip::Parameters& parameters) noexcept {
    lwip::Entry entry(static_cast<tcp_pcb*>(nullptr), kHooks, &tcb, parameters);
    lwip::Pcb* const pcb = lwip::Pcb::of(tcp_new());
    if (pcb != nullptr) install(pcb, tcb);
    return pcb;
}

bool Callbacks::connect(Tcb& tcb) noexcept {
    tcp_pcb* const pcb = lwip::Pcb::raw(tcb.pcb);
    pcb->local_ip.addr = tcb.ends.local.address.v4();
    pcb->local_port = ntohs(tcb.ends.local.port);
    const ip_addr_t to{tcb.ends.remote.address.v4()};
    return tcp_connect(pcb, &to, ntohs(tcb.ends.remote.port), &Callbacks::established) == ERR_OK;
}

std::uint8_t window_scale(const Options& options) noexcept {
    const std::uint32_t window = program_window(options);
    std::uint8_t scale = 0;
    while (scale < 14 && (window >> scale) > 0xffff) scale++;
    return scale;
}

lwip::Parameters parameters_of(const Options& options, std::uint8_t scale, std::uint32_t mss,
                               std::uint32_t timestamp_offset) noexcept {
    lwip::Parameters p{};
    p.mss = static_cast<std::uint16_t>(mss);
    p.rcv_scale = scale;
    p.wnd = std::min(program_window(options), 0xffffu << scale);
    p.snd_buf = 0x7fffffff;
    p.wnd_update_threshold = 0x7fffffff;  // Receiver::open_window() decides
    p.ooseq_bytes = p.wnd;
    p.timestamp_offset = timestamp_offset;
    return p;
}

err_t Callbacks::inpacket(void* tcb, tcp_pcb* pcb, tcp_hdr* header, std::uint16_t optlen,
                          std::uint16_t opt1len, std::uint8_t*, pbuf* p) {
    if (pcb->state == LISTEN) return ERR_OK;
    (void)opt1len;
    return static_cast<Tcb*>(tcb)->acceptance.check(*lwip::ReceivedHeader::of(header), optlen,
                                                    *lwip::Piece::of(p))
               ? ERR_OK
               : ERR_ABRT;
}

err_t Callbacks::established(void* tcb, tcp_pcb*, err_t) {
    static_cast<Tcb*>(tcb)->opening.established();
    return ERR_OK;
}

err_t Callbacks::received(void* tcb, tcp_pcb*, pbuf* p, err_t) {
    auto* t = static_cast<Tcb*>(tcb);
    if (p != nullptr)
        t->receiver.received(lwip::Piece::of(p));
    else
        t->receiver.peer_finished();
    return ERR_OK;
}

void Callbacks::failed(void* tcb, err_t error) {
    auto* t = static_cast<Tcb*>(tcb);
    // Data for a connection that is shut on both sides: the peer gets a RST, and the program the kernel's
    // error.
    if (error == ERR_ABRT && t->receiver.processing()) t->shown.fail(ECONNRESET);
    if (error != ERR_RST) return;  // by ourselves, or the regular end
    // The kernel's tcp_reset().
    switch (t->pcb->state()) {
        case State::syn_sent:
            t->shown.fail(ECONNREFUSED);
            break;
        case State::close_wait:
            t->shown.fail(EPIPE);
            break;
        case State::time_wait:
        case State::syn_recv:
            break;
        default:
            t->shown.fail(ECONNRESET);
    }
}

namespace lwip {
namespace {

// What lwIP calls meanwhile. There is nothing to send: the answer has left already.
constexpr Hooks kMaking{
    .output = [](void*, pbuf*, ip4_addr_t, ip4_addr_t, std::uint8_t, std::uint8_t) -> err_t {
        return ERR_OK;
    },
    .isn = [](void* handshake, ip4_addr_t, std::uint16_t, ip4_addr_t, std::uint16_t) -> std::uint32_t {
        return static_cast<const Handshake*>(handshake)->iss;
    },
    .transmit = [](void*, tcp_pcb*) -> err_t { return ERR_OK; }};

tcp_pcb_listen listener_at(in_port_t port) noexcept {
    tcp_pcb_listen pcb{};
    pcb.state = LISTEN;
    pcb.prio = TCP_PRIO_NORMAL;
    pcb.local_port = ntohs(port);
    pcb.accept = &Callbacks::established;
    return pcb;
}

}  // namespace

SynEntry::SynEntry(const Handshake& handshake, const Parameters& parameters) noexcept
    : handshake_(handshake),
      listener_(listener_at(handshake.ends.local.port)),
      entry_(&listener_, kMaking, &handshake_, parameters) {
    std::uint8_t bytes[kMaxHandshakeBytes];
    const std::size_t length = write_syn(handshake_, bytes);
    Piece* syn = Piece::copy_of(bytes, static_cast<std::uint32_t>(length));
    if (syn != nullptr)
        entry_.input(syn, handshake_.ends.remote.address.v4(), handshake_.ends.local.address.v4());
}

}  // namespace lwip
}  // namespace vma::tcp
