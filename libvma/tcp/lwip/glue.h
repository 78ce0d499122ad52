// SPDX-License-Identifier: BSD-2-Clause
// How lwIP is entered.
//
// lwIP is written for one thread and one table of connections: its functions walk linear lists of PCBs and
// keep the segment at hand in variables. Two things make it serve many connections on many threads without
// changing how it works. First, the sources go through a checked transformation while they are built
// (cmake/transform_lwip.cmake) that makes all variables thread-local. Second, nobody calls lwIP but through
// an Entry: for its lifetime the lists of the calling thread hold one PCB and nothing else, the one of the
// connection whose lock the caller has. So finding "the" connection of a segment is O(1) (our flow table
// found it before), connections are independent of each other, and a thread may be in one while other threads
// are in others. The timers that walk lists (tcp_slowtmr, tcp_fasttmr) are never called.
//
// What differs between connections, window, segment size, scale, are macros in lwIP; they read the Entry's
// parameters (port/lwipopts.h). What lwIP wants from the world below, sending a packet, an initial sequence
// number, comes from the Entry's hooks. lwIP's calls of tcp_output() go to a hook, too: deciding what to send
// when is not left to lwIP.
//
// Entries nest: a callback may enter lwIP for another connection, and so may a signal handler that interrupts
// any of this; what the thread was doing is put aside and comes back.
#pragma once

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>

#include "libvma/tcp/lwip/input_state.h"
#include "libvma/tcp/lwip/lwip.h"
#include "libvma/tcp/lwip/types.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp::lwip {

// What lwIP needs from the connection it is entered for. `connection` is the Entry's. Functions of C++ must
// not throw.
struct Hooks {
    // Sends one TCP segment: `p->payload` is at the TCP header, whose checksum is not filled in, p->tot_len
    // bytes in a chain. `p` stays lwIP's; who needs it longer takes a reference (pbuf_ref). Anything but
    // ERR_OK: not sent.
    err_t (*output)(void* connection, pbuf* p, ip4_addr_t from, ip4_addr_t to, std::uint8_t ttl,
                    std::uint8_t tos);
    // The initial sequence number of a connection; ports in host byte order.
    std::uint32_t (*isn)(void* connection, ip4_addr_t local, std::uint16_t local_port, ip4_addr_t remote,
                         std::uint16_t remote_port);
    // In place of lwIP's tcp_output(). Not called while a segment for this PCB is being processed.
    err_t (*transmit)(void* connection, tcp_pcb* pcb);
    // May drop a segment before lwIP looks at it (anything but ERR_OK). The header's numbers are in host byte
    // order; its options are `optlen` bytes, the first `opt1len` behind it and the others at `opt2`; `p` is
    // at the data. For a listening PCB `pcb` is a tcp_pcb_listen. Null: all pass.
    err_t (*inpacket)(void* connection, tcp_pcb* pcb, tcp_hdr* header, std::uint16_t optlen,
                      std::uint16_t opt1len, std::uint8_t* opt2, pbuf* p) = nullptr;
};

class Entry {
  public:
    // Enters lwIP on this thread for one connection. `pcb` may be null (to make one: tcp_new()), or in any
    // state; the caller has its lock. `hooks`, `connection` and `parameters` must outlive the Entry. An Entry
    // ends on the thread and in the order it began. Costs a reading of the clock: tcp_ticks are the
    // milliseconds at this moment.
    Entry(tcp_pcb* pcb, const Hooks& hooks, void* connection, const Parameters& parameters) noexcept;
    Entry(tcp_pcb_listen* pcb, const Hooks& hooks, void* connection, const Parameters& parameters) noexcept
        : Entry(reinterpret_cast<tcp_pcb*>(pcb), hooks, connection, parameters) {}
    ~Entry();
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

    // The PCB that was entered, null once lwIP has freed it.
    tcp_pcb* pcb() const noexcept { return pcb_; }
    // What a SYN made of a listening PCB: the new connection's PCB, in state SYN_RCVD, or null.
    tcp_pcb* created() const noexcept;

    // Gives lwIP a received segment, which begins with the TCP header. It is changed in place; length and
    // checksum of the IP packet have been checked. Takes the segment. Addresses in network byte order. pcb()
    // may be null afterwards.
    void input(Piece* segment, in_addr_t from, in_addr_t to) noexcept;

    // When the Entry began.
    Time now() const noexcept { return now_; }

  private:
    friend struct Access;
    // What the thread had been doing; filled in only when there was something.
    struct Saved {
        tcp_pcb* bound;
        tcp_pcb_listen* listening;
        tcp_pcb* active;
        tcp_pcb* time_wait;
        const Parameters* parameters;
        ip_globals ip;
        u32_t ticks;
        std::uint8_t active_changed;
        vma_lwip_input_state input;
    };
    void save() noexcept;
    void restore() noexcept;

    Entry* const outer_;
    tcp_pcb* pcb_;
    const Hooks* const hooks_;
    void* const connection_;
    const Time now_;
    union {
        Saved saved_;
    };
};

// Assertions of lwIP that failed: each is a bug, logged once. Tests let them end the process.
std::uint64_t failed_assertions() noexcept;
void abort_on_assertion(bool yes) noexcept;

}  // namespace vma::tcp::lwip
