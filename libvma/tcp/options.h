// SPDX-License-Identifier: BSD-2-Clause
// What a program sets of a connection, and what a connection tells of itself.
#pragma once

#include <netinet/tcp.h>

#include <cstddef>
#include <cstdint>

#include "libvma/tcp/path.h"
#include "libvma/tcp/recovery/congestion.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {

inline constexpr std::uint32_t kTimestampBytes = 12;  // of options in each segment

inline constexpr std::uint32_t kNoLowat = 0xffffffff;

// What the program may set (socket options). A listener's are copied to what it accepts.
struct Options {
    net::PathOptions path;
    bool nodelay = false, cork = false, keepalive = false;
    bool quickack = true;  // TCP_QUICKACK as read: true while not "pingpong"
    bool timestamps = true, sack = true, window_scaling = true;
    bool dsack = true;  // net.ipv4.tcp_dsack: what came twice is reported (RFC 2883)
    std::chrono::seconds keep_idle{7200}, keep_interval{75};
    unsigned keep_count = 9;
    Msec user_timeout{};                   // TCP_USER_TIMEOUT, 0: by retransmissions
    unsigned syn_retries = 6;              // TCP_SYNCNT
    unsigned retries1 = 3, retries2 = 15;  // net.ipv4.tcp_retries1, tcp_retries2
    unsigned syn_linear_timeouts = 0;      // net.ipv4.tcp_syn_linear_timeouts
    unsigned synack_retries = 5;           // TCP_SYNCNT of a listener, net.ipv4.tcp_synack_retries
    unsigned orphan_retries = 0;           // net.ipv4.tcp_orphan_retries
    unsigned syncookies = 1;               // net.ipv4.tcp_syncookies: never, when the table is full, always
    // net.ipv4.tcp_ecn and tcp_ecn_fallback (ecn.h)
    bool ecn_asks = false, ecn_answers = true, ecn_fallback = true;
    Msec invalid_ratelimit{500};       // net.ipv4.tcp_invalid_ratelimit: between ACKs of what is not taken
    std::chrono::seconds linger2{60};  // TCP_LINGER2: FIN_WAIT_2 of a closed socket; < 0: none
    std::uint32_t maxseg = 0;          // TCP_MAXSEG, 0: the path's
    std::uint32_t receive_window = 0;  // bytes of data we let the peer have under way and unread
    bool receive_auto = false;         // the window grows with what comes, as the kernel's without SO_RCVBUF
    std::uint32_t send_buffer =
        0;  // bytes of data that may wait to be acknowledged; 0: grows with the window
    std::uint32_t window_clamp = 0;
    // TCP_NOTSENT_LOWAT, 0: not set; and net.ipv4.tcp_notsent_lowat
    std::uint32_t notsent_lowat = 0, notsent_default = kNoLowat;
    std::uint32_t receive_lowat = 1;  // SO_RCVLOWAT
    std::chrono::seconds defer_accept{};
    bool reuse_address = false;  // SO_REUSEADDR: others may bind the port while the connection lives
    Msec delayed_ack{40};
    // net.ipv4.route.mtu_expires: how long what ICMP said of the path holds
    std::chrono::seconds mtu_expires{600};
    bool never_cut = false;        // IP_PMTUDISC_DO: not even behind a router that asks for tiny packets
    std::uint32_t min_pmtu = 552;  // net.ipv4.route.min_pmtu: ICMP cannot say less
    // net.ipv4.tcp_mtu_probing: never, behind a black hole, always; the size it begins with, and the least
    unsigned mtu_probing = 0;
    std::uint32_t base_mss = 1024, mtu_probe_floor = 48;
    std::uint32_t settings = 0;  // of which reading of the system's settings; 0: of none
    CongestionAlgorithm congestion = CongestionAlgorithm::cubic;
    bool slow_start_after_idle = true;  // net.ipv4.tcp_slow_start_after_idle

    // Bytes not sent that stop a writer; kNoLowat: none.
    std::uint32_t unsent_limit() const noexcept {
        return notsent_lowat != 0 ? notsent_lowat : notsent_default;
    }
    // SO_RCVBUF
    void set_receive_window(std::uint32_t bytes) noexcept {
        receive_window = bytes;
        receive_auto = false;
    }
};

// What a connection is good for at the moment; for statistics and tests.
struct Counters {
    // What vma_stats shows.
#define VMA_TCP_COUNTER(name, ...) std::uint64_t name = 0;
#include "libvma/stats/numbers.def"
    std::uint64_t bytes_in = 0, bytes_out = 0;
    std::uint64_t challenge_acks = 0, unacceptable = 0, paws = 0, bad_options = 0, probes = 0, keepalives = 0,
                  dsacks = 0;
    std::uint64_t merged = 0;  // received frames that shared a pass through the state machine
    // As TCP_INFO counts: sequence numbers, each once, and what was sent again.
    std::uint64_t acked = 0, received = 0, bytes_again = 0, data_segments_in = 0, data_segments_out = 0;
    std::uint64_t delivered_marked = 0;  // bytes acknowledged by segments that echo congestion
};

// What getsockopt(TCP_INFO) tells: the kernel's struct tcp_info (linux/tcp.h), of which the C library's
// header has the beginning only. Fields up to snd_wnd; what follows is newer than the features here.
struct Info {
    ::tcp_info basic;
    std::uint64_t pacing_rate, max_pacing_rate, bytes_acked, bytes_received;
    std::uint32_t segs_out, segs_in, notsent_bytes, min_rtt, data_segs_in, data_segs_out;
    std::uint64_t delivery_rate, busy_time, rwnd_limited, sndbuf_limited;
    std::uint32_t delivered, delivered_ce;
    std::uint64_t bytes_sent, bytes_retrans;
    std::uint32_t dsack_dups, reord_seen, rcv_ooopack, snd_wnd;
};
static_assert(offsetof(Info, bytes_acked) == 120 && offsetof(Info, snd_wnd) == 228);

}  // namespace vma::tcp
