// SPDX-License-Identifier: BSD-2-Clause
// Names of options, fields and flags, as scripts write them.
#pragma once

#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <stddef.h>
#include <sys/socket.h>

#include <string>

namespace names {

struct Option {
    const char* name;
    int level, option;
};
#define SCRIPT_OPTION(level, name) \
    { #name, level, name }
inline constexpr Option kOptions[] = {SCRIPT_OPTION(SOL_SOCKET, SO_ERROR),
                                      SCRIPT_OPTION(SOL_SOCKET, SO_RCVBUF),
                                      SCRIPT_OPTION(SOL_SOCKET, SO_SNDBUF),
                                      SCRIPT_OPTION(SOL_SOCKET, SO_KEEPALIVE),
                                      SCRIPT_OPTION(SOL_SOCKET, SO_RCVLOWAT),
                                      SCRIPT_OPTION(SOL_SOCKET, SO_OOBINLINE),
                                      SCRIPT_OPTION(SOL_SOCKET, SO_REUSEADDR),
                                      SCRIPT_OPTION(SOL_SOCKET, SO_ACCEPTCONN),
                                      SCRIPT_OPTION(IPPROTO_IP, IP_RECVERR),
                                      SCRIPT_OPTION(IPPROTO_IP, IP_TOS),
                                      SCRIPT_OPTION(IPPROTO_IP, IP_TTL),
                                      SCRIPT_OPTION(IPPROTO_IP, IP_MTU_DISCOVER),
                                      SCRIPT_OPTION(IPPROTO_IP, IP_MTU),
                                      SCRIPT_OPTION(IPPROTO_TCP, TCP_NODELAY),
                                      SCRIPT_OPTION(IPPROTO_TCP, TCP_MAXSEG),
                                      SCRIPT_OPTION(IPPROTO_TCP, TCP_CORK),
                                      SCRIPT_OPTION(IPPROTO_TCP, TCP_KEEPIDLE),
                                      SCRIPT_OPTION(IPPROTO_TCP, TCP_KEEPINTVL),
                                      SCRIPT_OPTION(IPPROTO_TCP, TCP_KEEPCNT),
                                      SCRIPT_OPTION(IPPROTO_TCP, TCP_SYNCNT),
                                      SCRIPT_OPTION(IPPROTO_TCP, TCP_LINGER2),
                                      SCRIPT_OPTION(IPPROTO_TCP, TCP_DEFER_ACCEPT),
                                      SCRIPT_OPTION(IPPROTO_TCP, TCP_WINDOW_CLAMP),
                                      SCRIPT_OPTION(IPPROTO_TCP, TCP_QUICKACK),
                                      SCRIPT_OPTION(IPPROTO_TCP, TCP_USER_TIMEOUT),
                                      SCRIPT_OPTION(IPPROTO_TCP, TCP_NOTSENT_LOWAT),
                                      SCRIPT_OPTION(IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS)};
#undef SCRIPT_OPTION

struct Flag {
    const char* name;
    int value;
};
inline constexpr Flag kMessageFlags[] = {{"MSG_MORE", MSG_MORE},       {"MSG_EOR", MSG_EOR},
                                         {"MSG_OOB", MSG_OOB},         {"MSG_PEEK", MSG_PEEK},
                                         {"MSG_WAITALL", MSG_WAITALL}, {"MSG_TRUNC", MSG_TRUNC}};
inline constexpr Flag kEvents[] = {{"IN", POLLIN},       {"PRI", POLLPRI}, {"OUT", POLLOUT},
                                   {"RDHUP", POLLRDHUP}, {"ERR", POLLERR}, {"HUP", POLLHUP}};
inline constexpr const char* kStates[] = {"none",       "ESTABLISHED", "SYN_SENT",  "SYN_RECV",
                                          "FIN_WAIT1",  "FIN_WAIT2",   "TIME_WAIT", "CLOSE",
                                          "CLOSE_WAIT", "LAST_ACK",    "LISTEN",    "CLOSING"};

// A field of tcp_info by its name without "tcpi_".
struct Field {
    const char* name;
    size_t offset, size;
};
#define SCRIPT_FIELD(name) \
    { #name, offsetof(tcp_info, tcpi_##name), sizeof(tcp_info::tcpi_##name) }
inline constexpr Field kFields[] = {
    SCRIPT_FIELD(ca_state),      SCRIPT_FIELD(retransmits),    SCRIPT_FIELD(probes),
    SCRIPT_FIELD(backoff),       SCRIPT_FIELD(options),        SCRIPT_FIELD(rto),
    SCRIPT_FIELD(ato),           SCRIPT_FIELD(snd_mss),        SCRIPT_FIELD(rcv_mss),
    SCRIPT_FIELD(unacked),       SCRIPT_FIELD(sacked),         SCRIPT_FIELD(lost),
    SCRIPT_FIELD(retrans),       SCRIPT_FIELD(last_data_sent), SCRIPT_FIELD(last_data_recv),
    SCRIPT_FIELD(last_ack_recv), SCRIPT_FIELD(pmtu),           SCRIPT_FIELD(rcv_ssthresh),
    SCRIPT_FIELD(rtt),           SCRIPT_FIELD(rttvar),         SCRIPT_FIELD(snd_ssthresh),
    SCRIPT_FIELD(snd_cwnd),      SCRIPT_FIELD(advmss),         SCRIPT_FIELD(reordering),
    SCRIPT_FIELD(rcv_rtt),       SCRIPT_FIELD(rcv_space),      SCRIPT_FIELD(total_retrans),
    SCRIPT_FIELD(bytes_acked),   SCRIPT_FIELD(bytes_received), SCRIPT_FIELD(segs_out),
    SCRIPT_FIELD(segs_in),       SCRIPT_FIELD(notsent_bytes),  SCRIPT_FIELD(min_rtt),
    SCRIPT_FIELD(data_segs_in),  SCRIPT_FIELD(data_segs_out),  SCRIPT_FIELD(busy_time),
    SCRIPT_FIELD(rwnd_limited),  SCRIPT_FIELD(sndbuf_limited), SCRIPT_FIELD(delivered),
    SCRIPT_FIELD(delivered_ce),  SCRIPT_FIELD(bytes_sent),     SCRIPT_FIELD(bytes_retrans),
    SCRIPT_FIELD(dsack_dups),    SCRIPT_FIELD(reord_seen),     SCRIPT_FIELD(rcv_ooopack),
    SCRIPT_FIELD(snd_wnd)};
#undef SCRIPT_FIELD

}  // namespace names
