// SPDX-License-Identifier: BSD-2-Clause
// A connection's way into lwIP, and lwIP's back.
#pragma once

#include <algorithm>
#include <cstdint>

#include "libvma/tcp/handshake/syn.h"
#include "libvma/tcp/lwip/glue.h"
#include "libvma/tcp/lwip/pcb.h"
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
    static err_t established(void* tcb, tcp_pcb* pcb, err_t error);
    static err_t received(void* tcb, tcp_pcb* pcb, pbuf* p, err_t error);
    static void failed(void* tcb, err_t error);

    // Makes the PCB of an active open. Null without memory.
    static lwip::Pcb* make(Tcb& tcb, const lwip::Parameters& parameters) noexcept;
    // Queues the SYN; inside lwIP. False: no memory.
    static bool connect(Tcb& tcb) noexcept;
    // From here on lwIP's calls for this PCB reach the Tcb.
    static void install(lwip::Pcb* pcb, Tcb& tcb) noexcept;

    static const lwip::Hooks kHooks;
    // PCBs made of SYNs point to it; lwIP wants one to report the end of the handshake to.
    static tcp_pcb_listen g_listener;
};

// How far the window of such a connection has to be shifted in segments (RFC 7323). The SYN announces it once
// and for all.
std::uint8_t window_scale(const Options& options) noexcept;
// Bytes of data that the program gives the peer room for.
inline std::uint32_t program_window(const Options& options) noexcept {
    std::uint32_t window = std::max(options.receive_window != 0 ? options.receive_window : 65535u, 536u);
    if (options.window_clamp != 0) window = std::min(window, options.window_clamp);
    return options.window_scaling ? window : std::min(window, 65535u);
}
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

inline std::uint32_t Opening::full_window() const noexcept {
    if (own_window_ != 0 && !tcb_.phase.established) return own_window_;
    return std::min(program_window(tcb_.options), 0xffffu << own_scale_);
}

inline lwip::Parameters Opening::parameters() const noexcept {
    lwip::Parameters p = negotiated();
    p.wnd = full_window();
    return p;
}

namespace lwip {

// lwIP makes its PCB of a SYN: the way in for a handshake that the library has answered by itself.
class SynEntry {
  public:
    // Enters lwIP as a listener that gets the handshake's SYN once more. An Entry, with an Entry's rules.
    SynEntry(const Handshake& handshake, const Parameters& parameters) noexcept;
    SynEntry(const SynEntry&) = delete;
    SynEntry& operator=(const SynEntry&) = delete;

    // The PCB in state SYN_RCVD, whose SYN-ACK is queued; the caller's. Null without memory.
    Pcb* made() const noexcept { return Pcb::of(entry_.created()); }

  private:
    Handshake handshake_;
    tcp_pcb_listen listener_;
    Entry entry_;
};

}  // namespace lwip

template <class F>
void Tcb::in_lwip(F&& call) noexcept {
    const lwip::Parameters parameters = opening.parameters();
    bool alive;
    {
        lwip::Entry entry(lwip::Pcb::raw(pcb), Callbacks::kHooks, this, parameters);
        call(entry);
        alive = entry.pcb() != nullptr;
    }
    if (pcb == nullptr) return;
    if (alive)
        queue.freed();
    else
        gone();
}

}  // namespace vma::tcp
