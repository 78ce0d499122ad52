// SPDX-License-Identifier: BSD-2-Clause
// The statistics file of a process, as the library writes it and tools read it. Tools include this header and
// nothing else of the library.
//
// Where: <dir>/vmastat.<pid>, <dir> being VMA_STATS_SHMEM_DIR (default /dev/shm). Mode 0600, made with O_EXCL
// and O_NOFOLLOW under a temporary name, filled in, and renamed into place: who finds the file finds it
// complete. Its size never changes.
//
// What: a Header, then the sections it lists, each an array of blocks of one kind. All numbers are in the
// byte order of the machine, counters 64 bits and running from the start of the process (or the last "zero"
// command); addresses are in network order, ports in the machine's. A reader takes offsets and sizes from the
// header, never from its own structs: a block that is longer than it knows has new fields at its end (same
// version), one that is shorter lacks them. Fields never move within a version.
//
// Who: one process writes; anyone who may open the file reads, without write permission. Counters are written
// with relaxed stores of 8 bytes, so each is whole but two may belong to different moments. The description
// of a block (names, addresses, texts: everything under "description") is guarded by `sequence`: odd while it
// is written; a reader copies and takes the copy when `sequence` was even and the same before and after. A
// reader trusts nothing it finds: texts may lack their terminating zero, numbers may be anything.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vma::stats {

inline constexpr char kMagic[8] = {'v', 'm', 'a', 's', 't', 'a', 't', '\n'};
inline constexpr std::uint32_t kVersion = 1;
inline constexpr char kDefaultDirectory[] = "/dev/shm";
inline constexpr char kFilePrefix[] = "vmastat.";

enum class Section : std::uint32_t {
    sockets = 1,
    rings = 2,
    pools = 3,
    muxes = 4,
    groups = 5,
    parameters = 6,
    totals = 7
};
inline constexpr unsigned kMaxSections = 16;

struct SectionEntry {
    std::uint32_t kind;        // Section; 0: not used
    std::uint32_t block_size;  // bytes from one block to the next
    std::uint32_t blocks;      // how many there is room for
    std::uint32_t reserved;
    std::uint64_t offset;  // from the beginning of the file
};

enum class Life : std::uint32_t { running = 1, ended = 2 };

struct Header {
    char magic[8];
    std::uint32_t version;
    std::uint32_t header_size;
    std::uint64_t file_size;
    std::uint32_t pid;
    std::uint32_t uid;
    std::uint64_t
        start_ticks;  // field 22 of /proc/<pid>/stat: tells a process from a later one of the same pid
    std::uint64_t started_ns;  // CLOCK_REALTIME when the file was made
    std::uint32_t life;        // Life; "ended" is written before the file is removed
    std::int32_t log_level;    // as VMA_TRACELEVEL now is
    std::int32_t log_details;
    std::uint32_t zeroed;  // how often counters were zeroed by command
    std::uint64_t
        sockets_unseen;  // sockets that found no block (VMA_STATS_FD_NUM); the totals count what they do
    char program[64];
    char library[32];             // version
    char command_socket[108];     // abstract unix socket for commands, without the leading zero byte; empty:
                                  // none (control.h)
    std::uint32_t pid_namespace;  // inode number of /proc/<pid>/ns/pid: where `pid` is a pid; 0: unknown
    SectionEntry sections[kMaxSections];
};

// Which way a direction of a socket goes.
enum class Path : std::uint8_t { undecided = 0, offloaded = 1, kernel = 2, closed = 3 };

// Why a direction is not offloaded, or not yet. Texts: reason_text().
enum class Reason : std::uint16_t {
    none = 0,    // it is offloaded
    not_bound,   // nothing decided yet: no bind, connect, listen or send so far
    rule,        // libvma.conf says os; the rule is in SocketBlock::rule
    all_off,     // VMA_OFFLOADED_SOCKETS=0, or set-uid
    not_inet,    // IPv6, unix and the like
    raw_socket,  // a kind that is never offloaded
    no_device,   // the interface cannot be offloaded; SocketBlock::detail says why
    loopback,
    multicast,
    foreign_address,  // bound to an address of no interface that is offloaded
    no_route,
    option,     // a socket option only the kernel serves; detail names it
    flags,      // a send or receive flag only the kernel serves
    too_long,   // datagrams above the path MTU
    neighbour,  // waits for the neighbour to be resolved
    namespace_changed,
    process,  // shared with, or handed to, another process; detail
    no_memory,
    no_room,  // limits of the library; detail
    other,    // detail
    count_
};

// VMA's word for each reason, for people.
constexpr const char* reason_text(Reason reason) noexcept {
    switch (reason) {
        case Reason::none:
            return "offloaded";
        case Reason::not_bound:
            return "not bound or connected yet";
        case Reason::rule:
            return "libvma.conf leaves it to the kernel";
        case Reason::all_off:
            return "offloading is switched off";
        case Reason::not_inet:
            return "not an IPv4 socket";
        case Reason::raw_socket:
            return "neither UDP nor TCP";
        case Reason::no_device:
            return "the interface cannot be offloaded";
        case Reason::loopback:
            return "loopback";
        case Reason::multicast:
            return "multicast is served by the kernel";
        case Reason::foreign_address:
            return "the address is on no offloaded interface";
        case Reason::no_route:
            return "no route";
        case Reason::option:
            return "a socket option only the kernel serves";
        case Reason::flags:
            return "flags only the kernel serves";
        case Reason::too_long:
            return "datagrams above the path MTU";
        case Reason::neighbour:
            return "the neighbour is not resolved yet";
        case Reason::namespace_changed:
            return "the process has changed its network namespace";
        case Reason::process:
            return "shared with another process";
        case Reason::no_memory:
            return "no memory";
        case Reason::no_room:
            return "a limit of the library";
        case Reason::other:
            return "see detail";
        case Reason::count_:
            break;
    }
    return "unknown reason";
}

struct Address {
    std::uint8_t bytes[16];  // IPv4: the first four
    std::uint16_t port;
    std::uint8_t family;  // AF_INET, AF_INET6, 0: none
    std::uint8_t reserved[5];
};

struct Traffic {
    std::uint64_t packets;  // datagrams, or receive and send calls that moved data of a stream
    std::uint64_t bytes;    // of the program's data
    std::uint64_t eagain;   // calls that found nothing, or no room
    std::uint64_t errors;   // calls that failed otherwise
};

struct SocketBlock {
    // state: 0 free, 1 in use, 2 closed by the program but still at work (TCP's end)
    std::uint32_t sequence;
    std::uint32_t state;
    std::uint64_t id;  // a number no other socket of the process has: tells a new socket in an old block
    // description
    std::int32_t fd;    // one number that the program knows it by
    std::int32_t type;  // SOCK_DGRAM, SOCK_STREAM, ...
    std::int32_t family;
    std::uint32_t tcp_state;  // as TCP_INFO numbers them: 1 established .. 10 listen, 11 closing; 0: none
    std::uint64_t inode;      // of the kernel's socket, as /proc/net/{udp,tcp} show it
    std::uint8_t rx_path;     // Path
    std::uint8_t tx_path;
    std::uint16_t rx_reason;  // Reason
    std::uint16_t tx_reason;
    std::uint8_t blocking;  // 1: calls wait
    std::uint8_t multicast_loop;
    std::int32_t ring;  // number of the ring block, -1: none
    std::int32_t ifindex;
    char device[16];  // interface
    Address local, peer;
    std::uint8_t multicast_interface[4];  // IP_MULTICAST_IF
    std::uint32_t reserved0;
    char rule[96];    // which rule decided: "libvma.conf:12: use os udp_sender *:53", or "no rule"
    char detail[96];  // more about the reason
    // gauges
    std::int32_t rx_thread, tx_thread;  // ids of the last ones to receive and send
    std::uint64_t rx_queue_packets, rx_queue_bytes, rx_queue_limit;
    std::uint64_t tx_queue_bytes, tx_queue_limit;
    // counters
    Traffic rx_offload, rx_os, tx_offload, tx_os;
    std::uint64_t rx_poll_hit, rx_poll_miss;                 // waits that polling satisfied, and that slept
    std::uint64_t rx_queue_max_packets, rx_queue_max_bytes;  // since the last zero
    std::uint64_t rx_drop_packets, rx_drop_bytes;            // the receive queue was full
    std::uint64_t ring_migrations;
    std::uint64_t tx_dummy;  // warm-up sends
    // TCP
    std::uint64_t tcp_retransmits, tcp_timeouts, tcp_fast_recoveries, tcp_tail_probes;
    std::uint64_t tcp_dup_acks_in, tcp_out_of_order, tcp_segments_in, tcp_segments_out;
    std::uint64_t tcp_rtt_us, tcp_rttvar_us, tcp_rto_us;  // gauges
    std::uint64_t tcp_cwnd_bytes, tcp_ssthresh_bytes, tcp_mss, tcp_send_window;
    std::uint64_t tcp_accepted, tcp_accept_queue, tcp_accept_overflows, tcp_syn_dropped;  // of a listener
};

// What sockets without a block did, and all sockets that have ended: with the blocks in use, the process's
// whole traffic.
struct TotalsBlock {
    std::uint64_t sockets;  // sockets ever made that the library knows
    std::uint64_t reserved;
    Traffic rx_offload, rx_os, tx_offload, tx_os;
    std::uint64_t rx_drop_packets, rx_drop_bytes;
    std::uint64_t tcp_retransmits;
};
enum : unsigned { kTotalsUdp = 0, kTotalsTcp = 1, kTotalsCount = 2 };  // blocks of Section::totals

// Drops of a ring by reason, beside those that sockets count.
enum class RingDrop : unsigned {
    no_socket = 0,  // a rule matched, its socket has just gone
    no_buffer,      // to keep the receive queue filled
    queue_full,     // the socket's queue was full
    device,         // the device dropped it before the library saw it
    completion_error,
    bad_length,
    bad_ip,
    bad_ip_checksum,
    bad_udp_checksum,
    bad_tcp_checksum,
    bad_other,
    count_
};
inline constexpr unsigned kRingDrops = 16;

struct RingBlock {
    std::uint32_t sequence;
    std::uint32_t state;  // 0 free, 1 in use
    // description
    std::int32_t ifindex;
    std::uint32_t reserved;
    char interface[16];
    char device[48];  // "xdp (generic, copy)"
    // gauges
    std::uint64_t rules;  // flow rules now
    std::uint64_t moderation_count, moderation_period_us;
    std::uint64_t tx_free;
    // counters
    std::uint64_t rx_packets, rx_bytes, tx_packets, tx_bytes;  // frames with their headers
    std::uint64_t tx_retransmits;
    std::uint64_t tx_no_buffer;
    std::uint64_t interrupts_requested, interrupts_received;
    std::uint64_t drops[kRingDrops];  // by RingDrop
    // its completion queue
    std::uint64_t
        cq_dropped;  // completions that brought nothing: sums of no_buffer, device and completion_error
    std::uint64_t cq_queue_length;  // gauge: frames taken from the CQ that wait for a socket to read them
    std::uint64_t cq_drained_max;   // most completions taken by one poll since the last zero
    std::uint64_t cq_posted;        // gauge: receives in the device
    // of an RDMA adapter
    std::uint64_t tx_error, tx_lost;  // counters: sends that failed; those, and what was posted behind them
    std::uint64_t recoveries;         // counter: times its queues were brought back to work after that
    std::uint64_t rx_to_kernel;       // counter: frames given to the kernel, which a coarse rule had brought
};

struct PoolBlock {
    std::uint32_t sequence;
    std::uint32_t state;
    // description
    std::int32_t ring;        // number of the ring block
    std::uint32_t direction;  // 0 receive, 1 send
    // gauges and counters
    std::uint64_t buffers;  // all
    std::uint64_t free;
    std::uint64_t buffer_bytes;  // size of one
    std::uint64_t no_buffer;     // counter: somebody asked in vain
};

enum class Mux : std::uint32_t { poll = 1, select = 2, epoll = 3 };
inline constexpr unsigned kMuxBlocks =
    34;  // poll, select, and 32 epoll sets; the last one counts all further sets

struct MuxBlock {
    std::uint32_t sequence;
    std::uint32_t state;
    std::uint64_t id;
    // description
    std::uint32_t kind;   // Mux
    std::int32_t fd;      // epoll: its number; -1: many
    std::int32_t thread;  // id of the last to wait
    std::uint32_t reserved;
    // counters
    std::uint64_t calls;
    std::uint64_t rx_ready_offload, rx_ready_os;  // ready descriptors reported
    std::uint64_t timeouts, errors;
    std::uint64_t poll_hit, poll_miss;  // waits that polling satisfied, and that slept
    std::uint64_t polling_ns,
        waiting_ns;         // of the time in calls: spent polling, and altogether (VMA_CPU_USAGE_STATS)
    std::uint64_t members;  // gauge, epoll: offloaded sockets watched
};

inline constexpr unsigned kGroupBlocks = 256;
struct GroupBlock {
    std::uint32_t sequence;
    std::uint32_t state;
    // description
    std::uint64_t socket_id;  // SocketBlock::id, or 0 when that socket has no block
    std::int32_t fd;
    std::uint32_t path;     // Path of what the group sends
    Address group, source;  // source: of a source-specific membership
};

// A parameter as the process has it.
struct ParameterBlock {
    char name[48];
    char value[80];
    char origin[16];  // "default", "environment", "preset"
};

static_assert(sizeof(Header) % 8 == 0 && sizeof(SocketBlock) % 8 == 0 && sizeof(RingBlock) % 8 == 0 &&
              sizeof(PoolBlock) % 8 == 0 && sizeof(MuxBlock) % 8 == 0 && sizeof(GroupBlock) % 8 == 0 &&
              sizeof(ParameterBlock) % 8 == 0 && sizeof(TotalsBlock) % 8 == 0);
// Where the counters stand in version 1.
static_assert(offsetof(SocketBlock, rx_offload) % 8 == 0 && offsetof(Header, sections) % 8 == 0);

}  // namespace vma::stats
