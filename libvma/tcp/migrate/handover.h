// SPDX-License-Identifier: BSD-2-Clause
// Moves a live TCP connection out of this library into a kernel socket, so that fork, exec, descriptor
// passing and process exit mean to the program what they always meant.
//
// The kernel offers this for checkpoint and restore (TCP_REPAIR): a closed socket is given sequence numbers,
// connects without a packet, and takes queue contents, negotiated options and windows as told. What it has no
// call for is done by a segment of our own on the loopback interface: a FIN the peer sent long ago and that
// was acknowledged here.
//
// Steering. Between the snapshot and the end of hand_over() no frame of the flow may be processed by this
// library, and none may reach a kernel that has no such connection yet: it would answer with a reset. So, in
// this order:
//   1. under the connection's lock, process what has arrived, and mark the connection as moving: from now on
//   the sink
//      drops its frames (the rule still steers them here; the peer takes it for loss and repairs it), and
//      nothing touches its queues;
//   2. with no lock held, call hand_over(). When the kernel's socket is complete, hand_over() calls
//   `unsteer`, which
//      removes the flow rule: the next frame meets that socket. Then the kernel starts, first of all with a
//      window probe: its answer tells what the peer has, so that an acknowledgement lost on the way does no
//      harm;
//   3. if hand_over() failed, `unsteer` was not called: take the mark back and go on.
// What the peer sent into the gap comes again by its own timer; what we sent and the peer did not get, by the
// kernel's. A restored socket has measured no round trip, and its first timeouts take seconds. So where
// anything may be lost and the connection has time stamps, it is made to measure one: a segment of ours, from
// "the peer", acknowledges a byte that stands before the send queue and echoes a time `srtt` ago.
#pragma once

#include <netinet/in.h>
#include <sys/uio.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "libvma/net/address.h"
#include "libvma/runtime/error.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {

// A connection as hand_over() needs it. Sequence numbers count data only: a FIN of either side has none here,
// although on the wire it takes the number after the last byte. Windows are in bytes, after scaling.
struct KernelState {
    enum class OwnFin : std::uint8_t { none, wanted, sent, acknowledged };

    net::Endpoints ends;

    // The queues point to the bytes, which stay the caller's until hand_over() returns or calls `unsteer`.
    // The send queue is all that is not acknowledged: its first byte is snd_una, what lies before snd_nxt was
    // sent at least once, the rest never.
    std::uint32_t snd_una = 0, snd_nxt = 0;
    std::vector<iovec> send_queue;
    OwnFin own_fin =
        OwnFin::none;  // wanted: goes out after the send queue; sent, acknowledged: nothing is unsent

    // The receive queue is what the program has not read, in order; it ends at rcv_nxt. Data received out of
    // order is not handed over: the peer sends it again (RFC 2018, section 8 allows the receiver to forget
    // it).
    std::uint32_t rcv_nxt = 0;
    std::vector<iovec> receive_queue;
    bool peer_fin = false;        // received; it came at rcv_nxt
    bool peer_fin_first = false;  // and before we sent ours: CLOSE-WAIT or LAST-ACK, not CLOSING or TIME-WAIT
    bool read_shut = false;       // the program called shutdown(SHUT_RD)

    // Negotiated with the SYNs.
    std::uint16_t mss = 536;  // the peer's MSS option as received (536 without one: RFC 9293, 3.7.1)
    bool window_scaling = false;
    std::uint8_t snd_wscale = 0, rcv_wscale = 0;  // shift of the windows we get, of those we announce
    bool sack = false;
    bool timestamps = false;
    std::uint32_t ts_value = 0;   // what TSval of a segment sent now would be; one a millisecond
    std::uint32_t ts_recent = 0;  // RFC 7323

    // The peer's window, counted from snd_una; the sequence number of the segment that announced it; the
    // largest ever.
    std::uint32_t snd_wnd = 0, snd_wl1 = 0, max_window = 0;
    // Ours: the window announced last, and rcv_nxt at that time.
    std::uint32_t rcv_wnd = 0, rcv_wup = 0;

    Usec srtt{};  // smoothed round trip time; 0: not known

    // Both sides have ended, or a reset came. The socket ends the same way, and the peer hears nothing of it.
    // Of the numbers, own_fin and the send queue nothing matters.
    bool over = false;
    int error = 0;  // which the program has not been told yet; that of a reset is meant, whatever it is
};

// Makes `fd` the connection that `state` describes. `fd` is a TCP/IPv4 socket in state CLOSE of the
// connection's network namespace, not bound, or bound to the local port; options the program set stay (a
// buffer size it did not set may grow to hold the queues). Copies the queues. Nothing is sent before
// everything that is likely to fail has succeeded; `unsteer` is called once, when nothing can fail any more,
// and must not throw. Error: the reason. The socket is in state CLOSE again without a pending error, at most
// bound to the local address, and the caller may go on with the connection or try again. Codes: EPERM
// (CAP_NET_ADMIN is missing), EISCONN (not in state CLOSE), EINVAL (a state that contradicts itself),
// EADDRNOTAVAIL (the address is gone, or this connection exists), and what bind(2), connect(2) and send(2)
// say. Uses system calls only: no cancellation point, errno untouched. Safe in any thread; in a signal
// handler as far as allocating an error text is.
Result<void> hand_over(int fd, const KernelState& state, const std::function<void()>& unsteer);

// May this process hand connections over? Asked of the kernel once, and again after
// forget_handover_possible(). Preserves errno.
bool handover_possible() noexcept;
void forget_handover_possible() noexcept;

}  // namespace vma::tcp
