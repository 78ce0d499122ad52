// SPDX-License-Identifier: BSD-2-Clause
// The statistics file of a process, as the library writes it and tools read it. Tools include this header
// with its two tables (numbers.def, reasons.def) and no other header of the library.
//
// Where: <dir>/vmastat.<pid>, <dir> being VMA_STATS_SHMEM_DIR (default /dev/shm). The library makes the file
// with mode 0600, O_EXCL and O_NOFOLLOW under a temporary name, fills it in, and renames it into place. So a
// reader always finds a complete file. Its size never changes.
//
// What: a Header, then the sections it lists, each an array of blocks of one kind. All numbers are in the
// machine's byte order. Counters have 64 bits and count from the start of the process (or the last "zero"
// command). Addresses are in network order, ports in the machine's. A reader takes offsets and sizes from the
// header, never from its own structs. A block that is longer than the reader's struct has new fields at its
// end (same version); a shorter block lacks fields. Fields never move within a version.
//
// Who: one process writes; every process that may open the file reads, without write permission. The writer
// stores counters with relaxed stores of 8 bytes, so each is whole, but two may belong to different moments.
// `sequence` guards the description of a block (names, addresses, texts: everything under "description"). It
// is odd while the process writes the description. A reader makes a copy, and uses it if `sequence` was even
// and the same before and after. A reader trusts no value in the file: texts may lack their terminating zero,
// numbers may be anything.
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
    std::uint32_t blocks;      // room for so many blocks
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
        start_ticks;  // field 22 of /proc/<pid>/stat: tells a process from a later one with the same pid
    std::uint64_t started_ns;  // CLOCK_REALTIME when the file was made
    std::uint32_t life;        // Life; "ended" is written before the file is removed
    std::int32_t log_level;    // the current VMA_TRACELEVEL
    std::int32_t log_details;
    std::uint32_t zeroed;  // how often a command zeroed the counters
    std::uint64_t
        sockets_unseen;  // sockets that found no block (VMA_STATS_FD_NUM); the totals count their traffic
    char program[64];
    char library[32];  // version
    // Abstract unix socket for commands (control.h), without the leading zero byte; empty: none.
    char command_socket[108];
    // Inode number of /proc/<pid>/ns/pid, the namespace of `pid`; 0: unknown.
    std::uint32_t pid_namespace;
    SectionEntry sections[kMaxSections];
};

// The path of a socket's direction.
enum class Path : std::uint8_t { undecided = 0, offloaded = 1, kernel = 2, closed = 3 };

// Why a direction is not offloaded, or not yet.
enum class Reason : std::uint16_t {
#define VMA_REASON(name, text) name,
#include "libvma/stats/reasons.def"
    count_
};

// The reason in words for people; "unknown reason" for an unknown number.
constexpr const char* reason_text(Reason reason) noexcept {
    switch (reason) {
#define VMA_REASON(name, text) \
    case Reason::name:         \
        return text;
#include "libvma/stats/reasons.def"
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
    std::uint64_t eagain;   // calls that found no data, or no room
    std::uint64_t errors;   // calls that failed otherwise
};

struct SocketBlock {
    // state: 0 free, 1 in use, 2 closed by the program but still at work (TCP's end)
    std::uint32_t sequence;
    std::uint32_t state;
    std::uint64_t id;  // unique in the process: tells a new socket in an old block
    // description
    std::int32_t fd;    // one number by which the program knows the socket
    std::int32_t type;  // SOCK_DGRAM, SOCK_STREAM, ...
    std::int32_t family;
    std::uint32_t tcp_state;  // as TCP_INFO numbers them: 1 established .. 10 listen, 11 closing; 0: none
    std::uint64_t inode;      // of the kernel's socket, as in /proc/net/{udp,tcp}
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
    // The rule that decided: "libvma.conf:12: use os udp_sender *:53", or "no rule".
    char rule[96];
    char detail[96];  // more about the reason
    // gauges
    std::int32_t rx_thread, tx_thread;  // ids of the last threads to receive and send
    // gauges and counters
#define VMA_SOCKET_NUMBER(member, ...) std::uint64_t member;
#define VMA_SOCKET_TRAFFIC(member, ...) Traffic member;
#include "libvma/stats/numbers.def"
};

// Traffic of sockets without a block, and of all sockets that have ended. With the blocks in use, that is the
// process's whole traffic.
struct TotalsBlock {
#define VMA_TOTALS_NUMBER(member, ...) std::uint64_t member;
#define VMA_TOTALS_RESERVED(member) std::uint64_t member;
#define VMA_TOTALS_TRAFFIC(member, ...) Traffic member;
#include "libvma/stats/numbers.def"
};
enum : unsigned { kTotalsUdp = 0, kTotalsTcp = 1, kTotalsCount = 2 };  // blocks of Section::totals

// A ring's drops by reason, beside the drops that sockets count.
enum class RingDrop : unsigned {
#define VMA_RING_DROP(name) name,
#include "libvma/stats/numbers.def"
    count_
};
inline constexpr unsigned kRingDrops = 16;

struct RingBlock {
    std::uint32_t sequence;
    std::uint32_t state;  // 0 free, 1 in use
    // description
    std::int32_t ifindex;
    std::uint32_t lane;  // its number among the rings of the interface
    char interface[16];
    char device[48];  // "xdp (generic, copy)"
    // gauges and counters
#define VMA_RING_NUMBER(member, ...) std::uint64_t member;
#define VMA_RING_DROPS(member) std::uint64_t member[kRingDrops];
#define VMA_RING_LAST_NUMBER(...)
#include "libvma/stats/numbers.def"
    // description, too
    std::uint32_t logic;    // VMA_RING_ALLOCATION_LOGIC_*, the greater one
    std::uint32_t sockets;  // that have the lane
    char owner[32];         // "thread 4711"
    // counters
#define VMA_RING_LAST_NUMBER(member, ...) std::uint64_t member;
#include "libvma/stats/numbers.def"
    // description, too: what the device is and does, in words
    char details[160];
};
static_assert(offsetof(RingBlock, details) == 448);  // further numbers come behind it

struct PoolBlock {
    std::uint32_t sequence;
    std::uint32_t state;
    // description
    std::int32_t ring;        // number of the ring block
    std::uint32_t direction;  // 0 receive, 1 send
    // gauges and counters
#define VMA_POOL_NUMBER(member, ...) std::uint64_t member;
#include "libvma/stats/numbers.def"
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
    std::int32_t thread;  // id of the last thread to wait
    std::uint32_t reserved;
    // counters and gauges
#define VMA_MUX_NUMBER(member, ...) std::uint64_t member;
#include "libvma/stats/numbers.def"
};

inline constexpr unsigned kGroupBlocks = 256;
struct GroupBlock {
    std::uint32_t sequence;
    std::uint32_t state;
    // description
    std::uint64_t socket_id;  // SocketBlock::id, or 0 when that socket has no block
    std::int32_t fd;
    std::uint32_t path;     // Path by which datagrams to the group come
    Address group, source;  // source: of a source-specific membership; one with several has a block for each
    char detail[112];       // why the kernel serves it; empty: it does not, or the socket is not bound yet
    std::int32_t ifindex;
    std::uint32_t reserved;
    char interface[16];
    // counters of the membership, the same in all its blocks
#define VMA_GROUP_NUMBER(member, ...) std::uint64_t member;
#include "libvma/stats/numbers.def"
};

// The process's value of a parameter.
struct ParameterBlock {
    char name[48];
    char value[80];
    char origin[16];  // "default", "environment", "preset"
};

static_assert(sizeof(Header) % 8 == 0 && sizeof(SocketBlock) % 8 == 0 && sizeof(RingBlock) % 8 == 0 &&
              sizeof(PoolBlock) % 8 == 0 && sizeof(MuxBlock) % 8 == 0 && sizeof(GroupBlock) % 8 == 0 &&
              sizeof(ParameterBlock) % 8 == 0 && sizeof(TotalsBlock) % 8 == 0);
// Checks the counters' places in version 1.
static_assert(offsetof(SocketBlock, rx_offload) % 8 == 0 && offsetof(Header, sections) % 8 == 0);

}  // namespace vma::stats
