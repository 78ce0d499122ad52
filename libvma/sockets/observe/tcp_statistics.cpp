// SPDX-License-Identifier: BSD-2-Clause
// What a TCP socket shows in the statistics. Calls are counted by the call; segments, windows and times are
// the connection's, copied when a reader asks.
#include <netinet/tcp.h>

#include "libvma/os/calls.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/runtime/region.h"
#include "libvma/sockets/names.h"
#include "libvma/sockets/shadow.h"
#include "libvma/sockets/tcp/core.h"

namespace vma::sockets {

ssize_t TcpCore::count(stats::TrafficPath way, ssize_t result) noexcept {
    if (result > 0)
        socket_counters_.moved(way, static_cast<std::uint64_t>(result), false);
    else if (__builtin_expect(result < 0 && result != -EREMOTE && result != -runtime::kRestart &&
                                  result != -runtime::kAskKernel && result != -runtime::kAskVerdict,
                              0))
        socket_counters_.result(way, result);
    return result;
}

void TcpCore::kernel_answered(int, stats::TrafficPath way, ssize_t result, int flags) noexcept {
    count_kernel(way, result, way == stats::TrafficPath::rx_os ? flags : 0);
}

ssize_t TcpCore::count_kernel(stats::TrafficPath way, ssize_t result, int flags) noexcept {
    if ((flags & (MSG_PEEK | MSG_ERRQUEUE)) != 0 && result >= 0) return result;
    count(way, result >= 0 ? result : -errno);
    return result;
}

int TcpCore::count_kernel(stats::TrafficPath way, int result, const mmsghdr* msgs, int flags) noexcept {
    if (result < 0) return static_cast<int>(count_kernel(way, static_cast<ssize_t>(result), flags));
    for (int i = 0; i < result; i++) count_kernel(way, static_cast<ssize_t>(msgs[i].msg_len), flags);
    return result;
}

void TcpCore::describe() noexcept {
    stats::SocketBlock* block = socket_counters_.block();
    if (block == nullptr) return;
    Pin pin(transport_);
    stats::Describe guard(block->sequence);
    if (!guard) return;
    if (const tcp::Connection* c = pin.connection) {
        block->tcp_state = static_cast<std::uint32_t>(c->state());
        statistics::put_address(block->local, c->endpoints().local);
        statistics::put_address(block->peer, c->endpoints().remote);
        statistics::put_ring(*block, c->ring(), stack_.present_view());
    } else if (phase() == Phase::listening) {
        block->tcp_state = static_cast<std::uint32_t>(tcp::State::listen);
        statistics::put_address(block->local, name_.listening());
        statistics::put_ring(*block, rules_.first(), stack_.present_view());
    } else {
        block->tcp_state = 0;
        statistics::put_ring(*block, nullptr, stack_.present_view());
    }
}

namespace {

// What the kernel knows of a socket that is its own: names and state.
struct KernelAnswer {
    net::Endpoints ends;
    std::uint32_t state = 0;
};
KernelAnswer ask_kernel(int fd) noexcept {
    KernelAnswer side;
    side.ends = {shadow::name_of(fd), shadow::peer_of(fd)};
    const ErrnoKept kept;
    ::tcp_info info{};
    socklen_t len = sizeof info;
    if (os::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0) side.state = info.tcpi_state;
    return side;
}

}  // namespace

void TcpCore::publish() noexcept {
    stats::SocketBlock* block = socket_counters_.block();
    if (block == nullptr) return;
    describe();
    const int fd = statistics::number_of(*this, block->fd);
    Pin pin(transport_);
    auto put = [](std::uint64_t& word, std::uint64_t value) { stats::store(word, value); };
    tcp::Connection::Sample s;
    if (tcp::Connection* c = pin.connection; c != nullptr && c->sample(s)) {
        put(block->rx_queue_bytes, c->readable());
        put(block->rx_queue_limit, s.receive_window);
        put(block->tx_queue_bytes, c->unacked_bytes());
        put(block->tx_queue_limit, s.send_limit);
        const statistics::TcpBase base = statistics::base_of(block, c);
#define VMA_TCP_COUNTER(name, ...) put(block->tcp_##name, s.counters.name - base.connection.name);
#include "libvma/stats/numbers.def"
        put(block->tcp_rtt_us, s.rtt.count());
        put(block->tcp_rttvar_us, s.rttvar.count());
        put(block->tcp_rto_us, s.rto.count());
        put(block->tcp_cwnd_bytes, s.cwnd);
        put(block->tcp_ssthresh_bytes, s.ssthresh);
        put(block->tcp_mss, s.mss);
        put(block->tcp_send_window, s.send_window);
    }
    if (tcp::Listener* l = pin.listener; l != nullptr && phase() == Phase::listening) {
        const tcp::Listener::Counters now = l->counters();
        const statistics::TcpBase base = statistics::base_of(block, l);
        put(block->tcp_accepted, now.accepted - base.listener.accepted);
        put(block->tcp_accept_queue, l->pending());
        put(block->tcp_accept_overflows, now.overflows - base.listener.overflows);
        put(block->tcp_syn_dropped, now.refused - base.listener.refused);
    }
    const bool kernels = fd >= 0 && pin.connection == nullptr && phase() != Phase::listening;
    const KernelAnswer side = kernels ? ask_kernel(fd) : KernelAnswer{};
    stats::Describe guard(block->sequence);
    if (!guard) return;
    statistics::put_number(*block, fd);
    block->blocking = !nonblock_.load(std::memory_order_relaxed);
    if (kernels) {
        block->tcp_state = side.state;
        statistics::put_address(block->local, side.ends.local);
        statistics::put_address(block->peer, side.ends.remote);
    }
}

// What is counted in the block is counted by atomic additions, which need no lock.
void TcpCore::zero_counters() noexcept {
    stats::SocketBlock* block = socket_counters_.block();
    if (block == nullptr) return;
    Pin pin(transport_);
    statistics::TcpBase base;
    tcp::Connection::Sample s;
    if (tcp::Connection* c = pin.connection; c != nullptr && c->sample(s)) {
        base.connection = s.counters;
        statistics::set_base(block, c, base);
    } else if (tcp::Listener* l = pin.listener; l != nullptr && phase() == Phase::listening) {
        base.listener = l->counters();
        statistics::set_base(block, l, base);
    }
}

}  // namespace vma::sockets
