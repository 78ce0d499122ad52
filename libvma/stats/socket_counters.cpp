// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/stats/socket_counters.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "libvma/os/raw_syscall.h"
#include "libvma/stats/stats_memory.h"

namespace vma::stats {
namespace {

constinit std::array<Stripe, kStripes> g_stripes{};

// Adds the counters of `from` to `to`. Other threads may go on counting in `from`.
template <class From>
void add_traffic(TotalsBlock& to, From& from, std::uint64_t (*read)(std::uint64_t&)) noexcept {
    Traffic* in = &from.rx_offload;
    Traffic* out = &to.rx_offload;
    auto move = [&](std::uint64_t& sum, std::uint64_t& part) {
        if (const std::uint64_t n = read(part); n != 0) add_shared(sum, n);
    };
    for (unsigned way = 0; way < 4; way++) {
        move(out[way].packets, in[way].packets);
        move(out[way].bytes, in[way].bytes);
        move(out[way].eagain, in[way].eagain);
        move(out[way].errors, in[way].errors);
    }
    move(to.rx_drop_packets, from.rx_drop_packets);
    move(to.rx_drop_bytes, from.rx_drop_bytes);
    move(to.tcp_retransmits, from.tcp_retransmits);
}

constinit thread_local std::int32_t t_id = 0;

// The blocks of kernel sockets, one bit for each block.
std::array<std::atomic<std::uint64_t>, kMaxSockets / 64> g_kernel_sockets{};

std::uint64_t inode_of(int fd) noexcept {
    struct stat s {};
    return os::raw_syscall(SYS_fstat, fd, &s) == 0 ? s.st_ino : 0;
}

}  // namespace

std::int32_t thread_id() noexcept {
    if (__builtin_expect(t_id == 0, 0)) t_id = static_cast<std::int32_t>(os::raw_syscall(SYS_gettid));
    return t_id;
}

Stripe& stripe(unsigned i) noexcept { return g_stripes[i % kStripes]; }

void collect_totals() noexcept {
    StatsMemory* segment = current();
    if (segment == nullptr) return;
    for (Stripe& s : g_stripes)
        for (unsigned p = 0; p < kTotalsCount; p++) add_traffic(segment->totals(p), s.totals[p], &take);
}

void forget_totals() noexcept {
    t_id = 0;
    for (Stripe& s : g_stripes)
        for (TotalsBlock& totals : s.totals) std::memset(&totals, 0, sizeof totals);
    for (auto& word : g_kernel_sockets) word.store(0, std::memory_order_relaxed);
}

void SocketCounters::open(Protocol protocol, int fd, int type, bool blocking) noexcept {
    protocol_ = protocol;
    StatsMemory* segment = current();
    if (segment == nullptr) return;
    add_shared(segment->totals(static_cast<unsigned>(protocol)).sockets, 1);
    block_ = segment->take_socket();
    if (block_ == nullptr) {
        add_shared(segment->header().sockets_unseen, 1);
        return;
    }
    Describe guard(block_->sequence);
    block_->fd = fd;
    block_->type = type;
    block_->family = AF_INET;
    block_->blocking = blocking;
    block_->multicast_loop = 1;
    block_->ring = -1;
    block_->rx_reason = block_->tx_reason = static_cast<std::uint16_t>(Reason::not_bound);
    store(block_->state, 1);
}

void SocketCounters::close() noexcept {
    StatsMemory* segment = current();
    SocketBlock* block = block_;
    block_ = nullptr;
    if (segment == nullptr || block == nullptr) return;
    add_traffic(segment->totals(static_cast<unsigned>(protocol_)), *block,
                [](std::uint64_t& word) { return load(word); });
    segment->give_socket(block);
}

void SocketCounters::decided(Direction direction, const Decision& d) noexcept {
    if (block_ == nullptr) return;
    const bool rx = direction == Direction::rx;
    if (is(direction, d.path, d.reason) && (d.detail.empty() || d.detail == text_of(block_->detail)) &&
        (d.rule.empty() || d.rule == text_of(block_->rule)))
        return;
    Describe guard(block_->sequence);
    if (!guard) return;
    store(rx ? block_->rx_path : block_->tx_path, static_cast<std::uint8_t>(d.path));
    store(rx ? block_->rx_reason : block_->tx_reason, static_cast<std::uint16_t>(d.reason));
    // One text serves both directions: the text of the direction that is not offloaded.
    const auto other = static_cast<Reason>(load(rx ? block_->tx_reason : block_->rx_reason));
    const bool told = d.reason != Reason::none || other == Reason::none || other == Reason::not_bound;
    if (told) put_text(block_->detail, d.detail);
    if (told || d.reason == Reason::rule) put_text(block_->rule, d.rule);
}

bool active(const SocketBlock& block) noexcept {
    const Traffic* way = &block.rx_offload;
    bool any = load(block.rx_drop_packets) != 0;
    for (unsigned i = 0; i < 4; i++) any |= load(way[i].packets) != 0 || load(way[i].errors) != 0;
    return any;
}

// ---- kernel sockets ----

void note_kernel_socket(int fd, int family, int type, Reason reason, std::string_view detail,
                        std::string_view rule) noexcept {
    StatsMemory* segment = current();
    if (segment == nullptr) return;
    // An earlier kernel socket, closed meanwhile, may have had the same number.
    for (unsigned i = 0; i < segment->sockets(); i++)
        if ((g_kernel_sockets[i / 64].load(std::memory_order_relaxed) >> (i % 64) & 1) != 0 &&
            segment->socket(i).fd == fd &&
            (g_kernel_sockets[i / 64].fetch_and(~(std::uint64_t{1} << (i % 64))) >> (i % 64) & 1) != 0)
            segment->give_socket(&segment->socket(i));
    SocketBlock* block = segment->take_socket(segment->sockets() / 4);
    if (block == nullptr) return;
    {
        Describe guard(block->sequence);
        block->fd = fd;
        block->type = type;
        block->family = family;
        block->blocking = 1;
        block->inode = inode_of(fd);
        block->rx_path = block->tx_path = static_cast<std::uint8_t>(Path::kernel);
        block->rx_reason = block->tx_reason = static_cast<std::uint16_t>(reason);
        block->ring = -1;
        put_text(block->detail, detail);
        put_text(block->rule, rule);
        store(block->state, 1);
    }
    const unsigned i = segment->index_of(block);
    g_kernel_sockets[i / 64].fetch_or(std::uint64_t{1} << (i % 64), std::memory_order_release);
}

void forget_closed_kernel_sockets() noexcept {
    StatsMemory* segment = current();
    if (segment == nullptr) return;
    for (unsigned i = 0; i < segment->sockets(); i++) {
        const std::uint64_t bit = std::uint64_t{1} << (i % 64);
        if ((g_kernel_sockets[i / 64].load(std::memory_order_acquire) & bit) == 0) continue;
        SocketBlock& block = segment->socket(i);
        if (block.inode == inode_of(block.fd)) continue;
        if ((g_kernel_sockets[i / 64].fetch_and(~bit) & bit) != 0) segment->give_socket(&block);
    }
}

}  // namespace vma::stats
