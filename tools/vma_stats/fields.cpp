// SPDX-License-Identifier: BSD-2-Clause
// See fields.h.
#include "tools/vma_stats/fields.h"

#include <iterator>

namespace vma_stats {
namespace {

using vma::stats::MuxBlock;
using vma::stats::PoolBlock;
using vma::stats::RingBlock;
using vma::stats::SocketBlock;
using vma::stats::TotalsBlock;
constexpr Kind counter = Kind::counter;
constexpr Kind gauge = Kind::gauge;
constexpr double kMicro = 1e-6, kNano = 1e-9;

// The four numbers of a Traffic member, for a metric's prefix and a label.
#define TRAFFIC(block, member, prefix, label, verb)                                          \
    {#member ".packets",                                                                     \
     prefix "_packets",                                                                      \
     label,                                                                                  \
     offsetof(block, member.packets),                                                        \
     counter,                                                                                \
     "Datagrams " verb ", or calls that moved data of a stream"},                            \
        {#member ".bytes",                                                                   \
         prefix "_bytes",                                                                    \
         label,                                                                              \
         offsetof(block, member.bytes),                                                      \
         counter,                                                                            \
         "Bytes of the program's data " verb},                                               \
        {#member ".eagain",                                                                  \
         prefix "_eagain",                                                                   \
         label,                                                                              \
         offsetof(block, member.eagain),                                                     \
         counter,                                                                            \
         "Calls that found nothing, or no room, and did not wait"},                          \
    {                                                                                        \
#member ".errors", prefix "_errors", label, offsetof(block, member.errors), counter, \
            "Calls that failed otherwise"                                                    \
    }
#define ALL_TRAFFIC(block, prefix)                                                  \
    TRAFFIC(block, rx_offload, prefix "_receive", "path=\"offload\"", "received"),  \
        TRAFFIC(block, rx_os, prefix "_receive", "path=\"os\"", "received"),        \
        TRAFFIC(block, tx_offload, prefix "_transmit", "path=\"offload\"", "sent"), \
        TRAFFIC(block, tx_os, prefix "_transmit", "path=\"os\"", "sent")
#define ONE(block, member, metric, kind, help) \
    { #member, metric, "", offsetof(block, member), kind, help }
#define TIME(block, member, metric, kind, scale, help) \
    { #member, metric, "", offsetof(block, member), kind, help, scale }

constexpr Field kSocket[] = {
    ONE(SocketBlock, rx_queue_packets, "socket_receive_queue_packets", gauge,
        "Datagrams in the receive queue"),
    ONE(SocketBlock, rx_queue_bytes, "socket_receive_queue_bytes", gauge, "Bytes in the receive queue"),
    ONE(SocketBlock, rx_queue_limit, "socket_receive_queue_limit_bytes", gauge, "Limit of the receive queue"),
    ONE(SocketBlock, tx_queue_bytes, "socket_transmit_queue_bytes", gauge, "Bytes in the send queue"),
    ONE(SocketBlock, tx_queue_limit, "socket_transmit_queue_limit_bytes", gauge, "Limit of the send queue"),
    ALL_TRAFFIC(SocketBlock, "socket"),
    ONE(SocketBlock, rx_poll_hit, "socket_receive_poll_hits", counter,
        "Waits for data that polling satisfied"),
    ONE(SocketBlock, rx_poll_miss, "socket_receive_poll_misses", counter, "Waits for data that slept"),
    ONE(SocketBlock, rx_queue_max_packets, "socket_receive_queue_max_packets", gauge,
        "Most datagrams in the receive queue since the counters were zeroed"),
    ONE(SocketBlock, rx_queue_max_bytes, "socket_receive_queue_max_bytes", gauge,
        "Most bytes in the receive queue since the counters were zeroed"),
    ONE(SocketBlock, rx_drop_packets, "socket_receive_dropped_packets", counter,
        "Datagrams dropped because the receive queue was full"),
    ONE(SocketBlock, rx_drop_bytes, "socket_receive_dropped_bytes", counter,
        "Bytes dropped because the receive queue was full"),
    ONE(SocketBlock, ring_migrations, "socket_ring_migrations", counter, "Changes of the socket's ring"),
    ONE(SocketBlock, tx_dummy, "socket_transmit_dummy_packets", counter, "Sends that only warmed the caches"),
    ONE(SocketBlock, tcp_retransmits, "socket_tcp_retransmitted_segments", counter, "Segments sent again"),
    ONE(SocketBlock, tcp_timeouts, "socket_tcp_timeouts", counter, "Retransmission timeouts"),
    ONE(SocketBlock, tcp_fast_recoveries, "socket_tcp_fast_recoveries", counter,
        "Losses found by duplicate or selective acknowledgements"),
    ONE(SocketBlock, tcp_tail_probes, "socket_tcp_tail_probes", counter, "Tail loss probes sent"),
    ONE(SocketBlock, tcp_dup_acks_in, "socket_tcp_duplicate_acks", counter,
        "Duplicate acknowledgements received"),
    ONE(SocketBlock, tcp_out_of_order, "socket_tcp_out_of_order_segments", counter,
        "Segments received out of order"),
    ONE(SocketBlock, tcp_segments_in, "socket_tcp_received_segments", counter, "Segments received"),
    ONE(SocketBlock, tcp_segments_out, "socket_tcp_sent_segments", counter, "Segments sent"),
    TIME(SocketBlock, tcp_rtt_us, "socket_tcp_rtt_seconds", gauge, kMicro, "Smoothed round-trip time"),
    TIME(SocketBlock, tcp_rttvar_us, "socket_tcp_rtt_variation_seconds", gauge, kMicro,
         "Variation of the round-trip time"),
    TIME(SocketBlock, tcp_rto_us, "socket_tcp_rto_seconds", gauge, kMicro, "Retransmission timeout"),
    ONE(SocketBlock, tcp_cwnd_bytes, "socket_tcp_cwnd_bytes", gauge, "Congestion window"),
    ONE(SocketBlock, tcp_ssthresh_bytes, "socket_tcp_ssthresh_bytes", gauge, "Slow start threshold"),
    ONE(SocketBlock, tcp_mss, "socket_tcp_mss_bytes", gauge, "Maximum segment size"),
    ONE(SocketBlock, tcp_send_window, "socket_tcp_send_window_bytes", gauge, "Window that the peer offers"),
    ONE(SocketBlock, tcp_accepted, "socket_tcp_accepted_connections", counter,
        "Connections a listener accepted"),
    ONE(SocketBlock, tcp_accept_queue, "socket_tcp_accept_queue_connections", gauge,
        "Connections that wait for accept()"),
    ONE(SocketBlock, tcp_accept_overflows, "socket_tcp_accept_overflows", counter,
        "Connections refused because the accept queue was full"),
    ONE(SocketBlock, tcp_syn_dropped, "socket_tcp_dropped_syns", counter, "SYNs a listener dropped"),
};

// The manual's drop counters by their reason; the labels are drop_name().
#define DROP(reason)                                                                            \
    {                                                                                           \
        "drops." #reason, "ring_dropped_packets", "reason=\"" #reason "\"",                     \
            offsetof(RingBlock, drops) +                                                        \
                static_cast<std::size_t>(vma::stats::RingDrop::reason) * sizeof(std::uint64_t), \
            counter, "Frames dropped, beside those that sockets count"                          \
    }

constexpr Field kRing[] = {
    ONE(RingBlock, rules, "ring_rules", gauge, "Flow rules"),
    ONE(RingBlock, moderation_count, "ring_moderation_frames", gauge,
        "Frames that end a wait of the interrupt moderation"),
    TIME(RingBlock, moderation_period_us, "ring_moderation_period_seconds", gauge, kMicro,
         "Time after which a wait of the interrupt moderation ends"),
    ONE(RingBlock, tx_free, "ring_transmit_free_entries", gauge, "Free entries of the send queue"),
    ONE(RingBlock, rx_packets, "ring_receive_packets", counter, "Frames received"),
    ONE(RingBlock, rx_bytes, "ring_receive_bytes", counter, "Bytes received, with headers"),
    ONE(RingBlock, tx_packets, "ring_transmit_packets", counter, "Frames sent"),
    ONE(RingBlock, tx_bytes, "ring_transmit_bytes", counter, "Bytes sent, with headers"),
    ONE(RingBlock, tx_retransmits, "ring_tcp_retransmitted_segments", counter, "TCP segments sent again"),
    ONE(RingBlock, tx_no_buffer, "ring_transmit_no_buffer", counter, "Sends that found no buffer"),
    ONE(RingBlock, tx_error, "ring_transmit_errors", counter, "Sends that the adapter could not do"),
    ONE(RingBlock, tx_lost, "ring_transmit_lost", counter, "Sends lost by that, with those behind them"),
    ONE(RingBlock, recoveries, "ring_recoveries", counter,
        "Times the adapter's queues were brought back to work"),
    ONE(RingBlock, rx_to_kernel, "ring_receive_packets_to_kernel", counter,
        "Frames of others, given to the kernel"),
    ONE(RingBlock, interrupts_requested, "ring_interrupts_requested", counter,
        "Times the ring was armed to wake a sleeper"),
    ONE(RingBlock, interrupts_received, "ring_interrupts_received", counter, "Times it woke one"),
    DROP(no_socket),
    DROP(no_buffer),
    DROP(queue_full),
    DROP(device),
    DROP(completion_error),
    DROP(bad_length),
    DROP(bad_ip),
    DROP(bad_ip_checksum),
    DROP(bad_udp_checksum),
    DROP(bad_tcp_checksum),
    DROP(bad_other),
    {"cq.dropped", "cq_dropped_packets", "", offsetof(RingBlock, cq_dropped), counter,
     "Completions that brought nothing"},
    {"cq.queue_length", "cq_queue_length_packets", "", offsetof(RingBlock, cq_queue_length), gauge,
     "Frames taken from the completion queue that wait to be read"},
    {"cq.drained_max", "cq_drained_max_packets", "", offsetof(RingBlock, cq_drained_max), gauge,
     "Most completions taken by one poll since the counters were zeroed"},
    {"cq.posted", "cq_posted_receives", "", offsetof(RingBlock, cq_posted), gauge,
     "Receives posted to the device"},
};

constexpr Field kPool[] = {
    ONE(PoolBlock, buffers, "pool_buffers", gauge, "Buffers of the pool"),
    ONE(PoolBlock, free, "pool_free_buffers", gauge, "Buffers that are free"),
    ONE(PoolBlock, buffer_bytes, "pool_buffer_bytes", gauge, "Size of a buffer"),
    ONE(PoolBlock, no_buffer, "pool_no_buffer", counter, "Times a buffer was asked for in vain"),
};

constexpr Field kMux[] = {
    ONE(MuxBlock, calls, "mux_calls", counter, "Calls"),
    {"rx_ready_offload", "mux_ready", "path=\"offload\"", offsetof(MuxBlock, rx_ready_offload), counter,
     "Ready descriptors reported"},
    {"rx_ready_os", "mux_ready", "path=\"os\"", offsetof(MuxBlock, rx_ready_os), counter,
     "Ready descriptors reported"},
    ONE(MuxBlock, timeouts, "mux_timeouts", counter, "Calls that timed out"),
    ONE(MuxBlock, errors, "mux_errors", counter, "Calls that failed"),
    ONE(MuxBlock, poll_hit, "mux_poll_hits", counter, "Waits that polling satisfied"),
    ONE(MuxBlock, poll_miss, "mux_poll_misses", counter, "Waits that slept"),
    TIME(MuxBlock, polling_ns, "mux_polling_seconds", counter, kNano,
         "Time spent polling (VMA_CPU_USAGE_STATS)"),
    TIME(MuxBlock, waiting_ns, "mux_waiting_seconds", counter, kNano,
         "Time spent in calls (VMA_CPU_USAGE_STATS)"),
    ONE(MuxBlock, members, "mux_members", gauge, "Offloaded sockets that an epoll set watches"),
};

constexpr Field kTotals[] = {
    ONE(TotalsBlock, sockets, "totals_sockets", counter, "Sockets ever made"),
    ALL_TRAFFIC(TotalsBlock, "totals"),
    ONE(TotalsBlock, rx_drop_packets, "totals_receive_dropped_packets", counter,
        "Datagrams dropped because a receive queue was full"),
    ONE(TotalsBlock, rx_drop_bytes, "totals_receive_dropped_bytes", counter,
        "Bytes dropped because a receive queue was full"),
    ONE(TotalsBlock, tcp_retransmits, "totals_tcp_retransmitted_segments", counter, "Segments sent again"),
};

}  // namespace

template <>
std::span<const Field> fields_of<SocketBlock>() {
    return kSocket;
}
template <>
std::span<const Field> fields_of<RingBlock>() {
    return kRing;
}
template <>
std::span<const Field> fields_of<PoolBlock>() {
    return kPool;
}
template <>
std::span<const Field> fields_of<MuxBlock>() {
    return kMux;
}
template <>
std::span<const Field> fields_of<TotalsBlock>() {
    return kTotals;
}

const char* drop_name(unsigned drop) {
    static constexpr const char* kNames[] = {"no_socket",        "no_buffer",        "queue_full",
                                             "device",           "completion_error", "bad_length",
                                             "bad_ip",           "bad_ip_checksum",  "bad_udp_checksum",
                                             "bad_tcp_checksum", "bad_other"};
    static_assert(std::size(kNames) == static_cast<unsigned>(vma::stats::RingDrop::count_));
    return drop < std::size(kNames) ? kNames[drop] : "other";
}

}  // namespace vma_stats
