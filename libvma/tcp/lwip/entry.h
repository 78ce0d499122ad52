// SPDX-License-Identifier: BSD-2-Clause
// Connection's way into lwIP, for the files that make up Connection and Listener.
#pragma once

#include "libvma/tcp/connection.h"
#include "libvma/tcp/lwip/glue.h"

namespace vma::tcp {

// What lwIP calls; the argument of each is the Connection.
struct Callbacks {
    static err_t output(void* connection, pbuf* p, ip4_addr_t from, ip4_addr_t to, std::uint8_t ttl,
                        std::uint8_t tos);
    static std::uint32_t isn(void* connection, ip4_addr_t local, std::uint16_t local_port, ip4_addr_t remote,
                             std::uint16_t remote_port);
    static err_t transmit(void* connection, tcp_pcb* pcb);
    static err_t inpacket(void* connection, tcp_pcb* pcb, tcp_hdr* header, std::uint16_t optlen,
                          std::uint16_t opt1len, std::uint8_t* opt2, pbuf* p);
    static err_t connected(void* connection, tcp_pcb* pcb, err_t error);
    static err_t accepted(void* connection, tcp_pcb* pcb, err_t error);
    static err_t received(void* connection, tcp_pcb* pcb, pbuf* p, err_t error);
    static void failed(void* connection, err_t error);
    static void install(tcp_pcb* pcb, Connection* connection) noexcept;

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

// The TCP part of a received frame as a pbuf chain; takes the buffer. Null without memory (then it is
// released).
pbuf* tcp_part(ring::RxBuffer* buffer) noexcept;

// Turns options of a SYN that `options` does not want into padding, and cuts off what is malformed: lwIP
// reads them next.
void hide_options(tcp_hdr& header, unsigned option_bytes, const Options& options) noexcept;

template <class F>
void Connection::in_lwip(F&& call) noexcept {
    lwip::Parameters parameters =
        parameters_of(options_, opening_.own_scale, wanted_mss(), opening_.ts_offset);
    if (opening_.own_window != 0 && !phase_.established) parameters.wnd = opening_.own_window;
    tcp_pcb* left;
    {
        lwip::Entry entry(pcb_, Callbacks::kHooks, this, parameters);
        call(entry);
        left = entry.pcb();
    }
    if (pcb_ != nullptr && left == nullptr) {
        gone();
    } else if (pcb_ != nullptr) {
        if (pcb_->unacked == nullptr) send_.unacked_last = nullptr;
        if (pcb_->unsent == nullptr) send_.tail = nullptr;
    }
}

}  // namespace vma::tcp
