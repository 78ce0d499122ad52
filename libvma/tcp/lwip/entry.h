// SPDX-License-Identifier: BSD-2-Clause
// A connection's way into lwIP, and lwIP's back.
#pragma once

#include "libvma/tcp/lwip/glue.h"
#include "libvma/tcp/tcb_inline.h"

namespace vma::tcp {

// What lwIP calls; the argument of each is the Tcb.
struct Callbacks {
    static err_t output(void* tcb, pbuf* p, ip4_addr_t from, ip4_addr_t to, std::uint8_t ttl,
                        std::uint8_t tos);
    static std::uint32_t isn(void* tcb, ip4_addr_t local, std::uint16_t local_port, ip4_addr_t remote,
                             std::uint16_t remote_port);
    static err_t transmit(void* tcb, tcp_pcb* pcb);
    static err_t inpacket(void* tcb, tcp_pcb* pcb, tcp_hdr* header, std::uint16_t optlen,
                          std::uint16_t opt1len, std::uint8_t* opt2, pbuf* p);
    static err_t connected(void* tcb, tcp_pcb* pcb, err_t error);
    static err_t accepted(void* tcb, tcp_pcb* pcb, err_t error);
    static err_t received(void* tcb, tcp_pcb* pcb, pbuf* p, err_t error);
    static void failed(void* tcb, err_t error);
    static void install(tcp_pcb* pcb, Tcb& tcb) noexcept;

    static const lwip::Hooks kHooks;
    // PCBs made of SYNs point to it; lwIP wants one to report the end of the handshake to.
    static tcp_pcb_listen g_listener;
};

// How far the window of such a connection has to be shifted in segments (RFC 7323). The SYN announces it once
// and for all.
std::uint8_t window_scale(const Options& options) noexcept;
// Window, segment size and the like as lwIP reads them. The window is no larger than `scale` can tell.
lwip::Parameters parameters_of(const Options& options, std::uint8_t scale, std::uint32_t mss,
                               std::uint32_t timestamp_offset) noexcept;
inline lwip::Parameters parameters_of(const Options& options, std::uint32_t mss,
                                      std::uint32_t timestamp_offset) noexcept {
    return parameters_of(options, window_scale(options), mss, timestamp_offset);
}

// Without what holds only until the SYN is answered.
inline lwip::Parameters Opening::negotiated() const noexcept {
    return parameters_of(tcb_.options, own_scale_, tcb_.route.wanted_mss(), ts_offset_);
}

inline lwip::Parameters Opening::parameters() const noexcept {
    lwip::Parameters p = negotiated();
    if (own_window_ != 0 && !tcb_.phase.established) p.wnd = own_window_;
    return p;
}

template <class F>
void Tcb::in_lwip(F&& call) noexcept {
    const lwip::Parameters parameters = opening.parameters();
    tcp_pcb* left;
    {
        lwip::Entry entry(pcb, Callbacks::kHooks, this, parameters);
        call(entry);
        left = entry.pcb();
    }
    if (pcb == nullptr) return;
    if (left == nullptr)
        gone();
    else
        queue.freed();
}

}  // namespace vma::tcp
