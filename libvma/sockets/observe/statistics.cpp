// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/observe/statistics.h"

#include <limits.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/runtime.h"
#include "libvma/sockets/fd_table.h"
#include "libvma/sockets/names.h"
#include "libvma/sockets/stack.h"
#include "libvma/stats/control_server.h"
#include "libvma/stats/mux.h"
#include "libvma/stats/report.h"
#include "libvma/stats/stats_memory.h"
#include "libvma/tcp/memory_bound.h"

namespace vma::sockets::statistics {
namespace {

constexpr clock::Msec kTick{1000};  // the internal thread wakes up as often anyway

std::array<std::atomic<Socket*>, stats::kMaxSockets> g_sockets{};  // by block

// A ring's block, and what its counters were when all were zeroed.
struct RingSlot {
    std::atomic<ring::Ring*> ring{nullptr};
    ring::RingCounters base;
    ring::ModerationCounters moderation_base;
    std::uint64_t device_base = 0;
};
std::array<RingSlot, stats::kRingBlocks> g_rings{};

struct BaseSlot {
    const void* owner = nullptr;
    TcpBase base;
};
std::array<BaseSlot, stats::kMaxSockets>* g_bases = nullptr;  // made by the first zero()

// Calls `visit(socket, block)` for each socket with a block, which is held meanwhile.
template <class F>
void for_each_socket(F&& visit) {
    stats::StatsMemory* segment = stats::current();
    if (segment == nullptr) return;
    for (unsigned i = 0; i < segment->sockets(); i++) {
        Socket* socket = g_sockets[i].load(std::memory_order_acquire);
        // Its memory is always a socket's: see object_pool.h.
        if (socket == nullptr || !socket->try_ref()) continue;
        const Ref<Socket> held(socket);
        if (g_sockets[i].load(std::memory_order_acquire) == socket) visit(*socket, segment->socket(i));
    }
}

// ---- rings ----

void describe_ring(unsigned number, ring::Ring& ring, net::KernelView& view) noexcept {
    stats::RingBlock& block = stats::current()->ring(number);
    const verbs::DeviceAttr& attr = ring.attr();
    net::Link link;
    const bool known = view.link(attr.ifindex, link);
    stats::Describe guard(block.sequence);
    // Another thread may have been quicker; others read what it wrote by now.
    if (!guard || stats::published(block.state)) return;
    block.ifindex = attr.ifindex;
    stats::put_text(block.interface, known ? link.name : std::string_view{});
    stats::put_text(block.device, attr.name);
    stats::put_text(block.details, attr.details);
    block.lane = ring.lane();
    stats::publish(block.state, 1);
}

// With the control lock held. refresh() has described it before.
void update_details(ring::Ring& ring) noexcept {
    const int number = ring_number(&ring);
    if (number < 0 || stats::current() == nullptr) return;
    stats::RingBlock& block = stats::current()->ring(static_cast<unsigned>(number));
    const stats::Describe guard(block.sequence);
    if (guard) stats::put_text(block.details, ring.attr().details);
}

// A lane has another owner now and then.
void publish_owner(stats::RingBlock& block, const ring::Lanes& lanes, unsigned lane) noexcept {
    try {
        const std::string owner = lanes.owner(lane);
        const unsigned sockets = lanes.users(lane);
        const ring::Logic own = lanes.logic(lane);
        const auto logic = static_cast<std::uint32_t>(own != ring::Logic::interface ? own : lanes.logic());
        if (stats::text_of(block.owner) == owner && block.sockets == sockets && block.logic == logic) return;
        stats::Describe guard(block.sequence);
        if (!guard) return;
        block.logic = logic;
        block.sockets = sockets;
        stats::put_text(block.owner, owner);
    } catch (...) {
        // no memory: the one of before stays
    }
}

void publish_ring(unsigned number, RingSlot& slot) noexcept {
    using stats::RingDrop;
    ring::Ring& ring = *slot.ring.load(std::memory_order_relaxed);
    stats::RingBlock& block = stats::current()->ring(number);
    const ring::RingCounters now = ring.counters(), &base = slot.base;
    const ring::BufferCounts buffers = ring.buffer_counts();
    const ring::ModerationCounters moderation = ring.moderation_counters();
    const std::uint64_t device = ring.device().rx_device_drops() - slot.device_base;
    auto put = [](std::uint64_t& word, std::uint64_t value) { stats::store(word, value); };
    put(block.rules, now.rules);
    put(block.moderation_count, moderation.count);
    put(block.moderation_period_us, moderation.period.count());
    put(block.tx_free, buffers.tx_free);
    put(block.rx_packets, now.rx_frames - base.rx_frames);
    put(block.rx_bytes, now.rx_bytes - base.rx_bytes);
    put(block.tx_packets, now.tx_frames - base.tx_frames);
    put(block.tx_bytes, now.tx_bytes - base.tx_bytes);
    put(block.tx_retransmits, now.tx_retransmits - base.tx_retransmits);
    put(block.tx_no_buffer, now.tx_no_buffer - base.tx_no_buffer);
    put(block.tx_error, now.tx_error - base.tx_error);
    put(block.tx_lost, now.tx_lost - base.tx_lost);
    put(block.recoveries, now.recoveries - base.recoveries);
    put(block.rx_to_kernel, now.rx_to_kernel - base.rx_to_kernel);
    put(block.rx_strays, now.rx_strays - base.rx_strays);
    put(block.migrations, now.flows_taken - base.flows_taken);
    put(block.rx_lock_waits, now.rx_lock_waits - base.rx_lock_waits);
    put(block.tx_lock_waits, now.tx_lock_waits - base.tx_lock_waits);
    put(block.device_lock_waits, now.device_lock_waits - base.device_lock_waits);
    put(block.interrupts_requested, moderation.requested - slot.moderation_base.requested);
    put(block.interrupts_received, moderation.received - slot.moderation_base.received);

    std::uint64_t drops[stats::kRingDrops]{};
    auto drop = [&](RingDrop reason) -> std::uint64_t& { return drops[static_cast<unsigned>(reason)]; };
    drop(RingDrop::no_socket) = now.rx_no_socket - base.rx_no_socket;
    drop(RingDrop::no_buffer) = now.rx_no_buffer - base.rx_no_buffer;
    drop(RingDrop::queue_full) = now.rx_refused - base.rx_refused;
    drop(RingDrop::device) = device;
    drop(RingDrop::completion_error) = now.rx_error - base.rx_error;
    for (std::size_t i = 0; i < now.rx_bad.size(); i++) {
        const std::uint64_t n = now.rx_bad[i] - base.rx_bad[i];
        switch (static_cast<net::Drop>(i)) {
            case net::Drop::short_frame:
            case net::Drop::bad_l4_length:
                drop(RingDrop::bad_length) += n;
                break;
            case net::Drop::bad_ip_header:
                drop(RingDrop::bad_ip) += n;
                break;
            case net::Drop::bad_ip_checksum:
                drop(RingDrop::bad_ip_checksum) += n;
                break;
            case net::Drop::bad_l4_checksum:
                drop(RingDrop::bad_udp_checksum) += n;
                break;
            default:
                drop(RingDrop::bad_other) += n;
        }
    }
    for (unsigned i = 0; i < stats::kRingDrops; i++) put(block.drops[i], drops[i]);
    put(block.cq_dropped,
        drop(RingDrop::no_buffer) + drop(RingDrop::device) + drop(RingDrop::completion_error));
    const std::uint32_t placed = buffers.rx_posted + buffers.rx_free;
    put(block.cq_queue_length, buffers.rx_total - std::min(placed, buffers.rx_total));
    put(block.cq_drained_max, now.rx_drained_max);
    put(block.cq_posted, buffers.rx_posted);

    auto pool = [&](unsigned direction, std::uint64_t total, std::uint64_t free, std::uint64_t lacking) {
        stats::PoolBlock& out = stats::current()->pool(2 * number + direction);
        if (stats::load(out.state) == 0) {
            stats::Describe guard(out.sequence);
            out.ring = static_cast<std::int32_t>(number);
            out.direction = direction;
            stats::store(out.state, 1);
        }
        put(out.buffers, total);
        put(out.free, free);
        put(out.buffer_bytes, ring.attr().chunk_size);
        put(out.no_buffer, lacking);
    };
    pool(0, buffers.rx_total, buffers.rx_free, drop(RingDrop::no_buffer));
    pool(1, buffers.tx_total, buffers.tx_free, now.tx_no_buffer - base.tx_no_buffer);
}

template <class F>
void for_each_ring(F&& visit) {
    Stack* stack = Stack::running();
    if (stack == nullptr || stats::current() == nullptr) return;
    // Those that have been opened since are found here, as they may have no socket.
    stack->control().lock();
    stack->rings().for_each([&](ring::Ring& ring) { ring_number(&ring); });
    stack->control().unlock();
    for (unsigned i = 0; i < g_rings.size(); i++)
        if (ring::Ring* ring = g_rings[i].ring.load(std::memory_order_acquire)) {
            if (stats::load(stats::current()->ring(i).state) == 0)
                describe_ring(i, *ring, stack->present_view());
            publish_owner(stats::current()->ring(i), stack->rings().lanes(), ring->lane());
            visit(i, g_rings[i]);
        }
}

std::atomic<bool> g_served{false};  // serve() was called

void forget_in_child() noexcept {
    g_served.store(false, std::memory_order_relaxed);
    for (auto& socket : g_sockets) socket.store(nullptr, std::memory_order_relaxed);
    for (RingSlot& slot : g_rings) {
        slot.ring.store(nullptr, std::memory_order_relaxed);
        slot.base = {};
        slot.moderation_base = {};
        slot.device_base = 0;
    }
    if (g_bases != nullptr) g_bases->fill({});
}
VMA_RENEW_IN_CHILD(forget_in_child);

}  // namespace

// ---- life ----

void start() noexcept {
    runtime::install_fork_hooks();
    stats::start();
}

void serve() noexcept {
    if (g_served.exchange(true)) return;
    stats::start_control({&refresh, &zero, &dump});
    try {
        runtime::every(clock::Msec(1), [] {
            stats::sweep();
            return false;
        });
        runtime::every(kTick, [] {
            refresh();
            if (Stack* stack = Stack::running(); stack != nullptr && stack->control().try_lock()) {
                if (stack->rings().check()) stack->rings().for_each(update_details);
                stack->control().unlock();
            }
            return true;
        });
    } catch (...) {
        // no memory: readers ask
    }
}

void joined(Socket& socket) noexcept {
    stats::StatsMemory* segment = stats::current();
    if (segment == nullptr || socket.socket_counters().block() == nullptr) return;
    g_sockets[segment->index_of(socket.socket_counters().block())].store(&socket, std::memory_order_release);
}

void left(Socket& socket) noexcept {
    stats::StatsMemory* segment = stats::current();
    const stats::SocketBlock* block = socket.socket_counters().block();
    if (segment == nullptr || block == nullptr) return;
    const unsigned i = segment->index_of(block);
    // A socket of the process we were forked from has no block here.
    if (i >= segment->sockets() || g_sockets[i].load(std::memory_order_relaxed) != &socket) return;
    socket.publish();
    report_if_active(*block);
    g_sockets[i].store(nullptr, std::memory_order_release);
    socket.socket_counters().close();
}

void report_if_active(const stats::SocketBlock& block) noexcept {
    if (stats::reports_wanted() && stats::active(block)) stats::report(block);
}

void report_all() noexcept {
    if (stats::current() == nullptr || !stats::reports_wanted()) return;
    for_each_socket([](Socket& socket, stats::SocketBlock& block) {
        socket.publish();
        report_if_active(block);
    });
}

// ---- commands ----

namespace {

tcp::memory_bound::Counts g_memory_base{};  // at the last zero()

void publish_memory(stats::StatsMemory& segment) noexcept {
    const tcp::memory_bound::Counts now = tcp::memory_bound::counts();
    stats::TotalsBlock& totals = segment.totals(stats::kTotalsTcp);
    stats::store(totals.tcp_memory_bytes, now.bytes);
    stats::store(totals.tcp_memory_pressures, now.pressures - g_memory_base.pressures);
    stats::store(totals.tcp_memory_drops, now.dropped_segments - g_memory_base.dropped_segments);
    stats::store(totals.tcp_orphans_reset, now.reset_orphans - g_memory_base.reset_orphans);
}

}  // namespace

void refresh() noexcept {
    stats::StatsMemory* segment = stats::current();
    if (segment == nullptr) return;
    for_each_socket([](Socket& socket, stats::SocketBlock&) { socket.publish(); });
    stats::forget_closed_kernel_sockets();
    stats::collect_totals();
    publish_memory(*segment);
    stats::collect_muxes();
    refresh_groups();
    for_each_ring([](unsigned number, RingSlot& slot) { publish_ring(number, slot); });
    stats::store(segment->header().log_level, static_cast<std::int32_t>(log::level()));
    stats::store(segment->header().log_details, log::details());
}

void zero() noexcept {
    stats::StatsMemory* segment = stats::current();
    if (segment == nullptr) return;
    for_each_socket([](Socket& socket, stats::SocketBlock& block) {
        socket.zero_counters();
        // What is counted by atomic additions.
        stats::Traffic* ways = &block.rx_offload;
        for (unsigned way = 0; way < 4; way++) {
            stats::store(ways[way].eagain, 0);
            stats::store(ways[way].errors, 0);
            const bool locked =
                block.type == SOCK_DGRAM && (way == unsigned(stats::TrafficPath::rx_offload) ||
                                             way == unsigned(stats::TrafficPath::tx_offload));
            if (locked) continue;
            stats::store(ways[way].packets, 0);
            stats::store(ways[way].bytes, 0);
        }
        for (std::uint64_t* word :
             {&block.rx_poll_hit, &block.rx_poll_miss, &block.ring_migrations, &block.tx_dummy,
              &block.extra_callback_dropped, &block.extra_callback_received, &block.extra_callback_held})
            stats::store(*word, 0);
    });
    stats::collect_totals();
    for (unsigned p = 0; p < stats::kTotalsCount; p++) {
        auto* words = reinterpret_cast<std::uint64_t*>(&segment->totals(p));
        for (std::size_t i = 0; i < sizeof(stats::TotalsBlock) / 8; i++) stats::store(words[i], 0);
    }
    g_memory_base = tcp::memory_bound::counts();
    stats::zero_muxes();
    zero_groups();
    stats::store(segment->header().sockets_unseen, 0);
    for_each_ring([](unsigned, RingSlot& slot) {
        ring::Ring& ring = *slot.ring.load(std::memory_order_relaxed);
        ring.reset_drained_max();
        slot.base = ring.counters();
        slot.moderation_base = ring.moderation_counters();
        slot.device_base = ring.device().rx_device_drops();
    });
    stats::store(segment->header().zeroed, segment->header().zeroed + 1);
    refresh();
}

unsigned dump(int fd, int level) noexcept {
    unsigned found = 0;
    const auto to = static_cast<log::Level>(level);
    refresh();
    const Ref<Socket> wanted = fd > 0 ? g_fds.socket(fd) : Ref<Socket>();
    for_each_socket([&](Socket& socket, stats::SocketBlock& block) {
        if (fd > 0 && &socket != wanted.get()) return;
        found++;
        try {
            for (const std::string& line : stats::dump_lines(block)) log::print(to, "{}", line);
        } catch (...) {
            // no memory for the lines
        }
    });
    return found;
}

// ---- zeroed counters of connections ----

TcpBase base_of(const stats::SocketBlock* block, const void* owner) noexcept {
    if (g_bases == nullptr || stats::current() == nullptr) return {};
    const BaseSlot& slot = (*g_bases)[stats::current()->index_of(block)];
    return slot.owner == owner ? slot.base : TcpBase{};
}

void set_base(const stats::SocketBlock* block, const void* owner, const TcpBase& base) noexcept {
    if (g_bases == nullptr) g_bases = new (std::nothrow) std::array<BaseSlot, stats::kMaxSockets>;
    if (g_bases != nullptr) (*g_bases)[stats::current()->index_of(block)] = {owner, base};
}

// ---- descriptions ----

int ring_number(const ring::Ring* ring) noexcept {
    if (ring == nullptr) return -1;
    for (unsigned i = 0; i < g_rings.size(); i++) {
        ring::Ring* there = g_rings[i].ring.load(std::memory_order_acquire);
        if (there == nullptr && g_rings[i].ring.compare_exchange_strong(there, const_cast<ring::Ring*>(ring)))
            there = const_cast<ring::Ring*>(ring);
        if (there == ring) return static_cast<int>(i);
    }
    return -1;
}

int number_of(const Socket& socket, int fd) noexcept {
    if (!socket.has_fds()) return -1;
    if (g_fds.peek(fd) == &socket) return fd;
    int found = -1;
    g_fds.for_each(0, INT_MAX, [&](int number, const FdObject* object) {
        if (found < 0 && object == &socket) found = number;
    });
    return found;
}

void put_address(stats::Address& out, const net::Endpoint& endpoint) noexcept {
    stats::Address a{};
    const in_addr_t v4 = endpoint.address.v4();
    const in6_addr v6 = endpoint.address.v6();
    if (endpoint.address.is_v4()) {
        std::memcpy(a.bytes, &v4, sizeof v4);
        a.family = endpoint != net::Endpoint() ? AF_INET : 0;
    } else {
        std::memcpy(a.bytes, &v6, sizeof v6);
        a.family = AF_INET6;
    }
    a.port = ntohs(endpoint.port);
    out = a;
}

void put_ring(stats::SocketBlock& block, ring::Ring* ring, net::KernelView& view) noexcept {
    const int number = ring_number(ring);
    block.ring = number;
    block.ifindex = ring == nullptr ? 0 : ring->attr().ifindex;
    if (number < 0) return stats::put_text(block.device, {});
    stats::RingBlock& known = stats::current()->ring(static_cast<unsigned>(number));
    if (!stats::published(known.state)) describe_ring(static_cast<unsigned>(number), *ring, view);
    stats::put_text(block.device, stats::text_of(known.interface));
}

void put_number(stats::SocketBlock& block, int fd) noexcept {
    if (fd < 0) return stats::store(block.state, 2);
    block.fd = fd;
    struct stat s {};
    if (block.inode == 0 && os::raw_syscall(SYS_fstat, fd, &s) == 0) block.inode = s.st_ino;
}

// ---- reasons ----

stats::Reason reason_of_address(const net::Address& address) noexcept {
    if (address.is_loopback()) return stats::Reason::loopback;
    if (address.is_multicast() || address == net::Address(INADDR_BROADCAST)) return stats::Reason::multicast;
    return address.is_unicast() ? stats::Reason::none : stats::Reason::foreign_address;
}

stats::Reason reason_of_route(const net::Route& route) noexcept {
    switch (route.kind) {
        case net::Route::Kind::unicast:
            return stats::Reason::none;
        case net::Route::Kind::local:
            return stats::Reason::loopback;
        case net::Route::Kind::broadcast:
        case net::Route::Kind::multicast:
            return stats::Reason::multicast;
        case net::Route::Kind::other:
            break;
    }
    return stats::Reason::no_route;
}

}  // namespace vma::sockets::statistics
