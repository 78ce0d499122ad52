// SPDX-License-Identifier: BSD-2-Clause
// A UDP socket's life: creation, bind, connect, options, close, and how the socket becomes the kernel's.
#include <linux/net_tstamp.h>
#include <sys/ioctl.h>

#include <cstring>
#include <mutex>

#include "libvma/config/params.h"
#include "libvma/os/calls.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/runtime/error_watch.h"
#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/runtime.h"
#include "libvma/sockets/membership_options.h"
#include "libvma/sockets/object_pool.h"
#include "libvma/sockets/option_value.h"
#include "libvma/sockets/udp/option_table.h"
#include "libvma/sockets/udp/udp_socket.h"

namespace vma::sockets {
namespace {

constinit ObjectPool<UdpSocket> g_udp_pool;

}  // namespace

UdpSocket* UdpSocket::create(Stack& stack, int fd, int type) noexcept {
    void* memory = g_udp_pool.take();
    if (memory == nullptr) return nullptr;
    auto* socket = new (memory) UdpSocket(stack, fd, type);
    socket->socket_counters_.open(stats::Protocol::udp, fd, SOCK_DGRAM, (type & SOCK_NONBLOCK) == 0);
    statistics::joined(*socket);
    socket->join_extreme(fd, false);
    if (config::get().tx_mc_loopback == 0) {
        const int off = 0;
        socket->setsockopt(fd, IPPROTO_IP, IP_MULTICAST_LOOP, &off, sizeof off);
    }
    return socket;
}

namespace {
void renew_udp_pool() noexcept { g_udp_pool.reset_in_child(); }
VMA_RENEW_IN_CHILD(renew_udp_pool);
}  // namespace

UdpSocket::UdpSocket(Stack& stack, int fd, int type) noexcept : UdpExtra(stack, type) { shadow_.learn(fd); }

UdpSocket::~UdpSocket() {
    while (ring::RxBuffer* b = queue_.pop()) b->release();
    while (ring::RxBuffer* b = undecided_ != nullptr ? undecided_->queue.pop() : nullptr) b->release();
    statistics::left(*this);
}

void UdpSocket::recycle() noexcept {
    this->~UdpSocket();
    g_udp_pool.give(this);
}

// The port is to be free when close() returns.
void UdpSocket::before_last_close(int fd) noexcept {
    leave_if_shared(fd);
    if (errors_watched_) runtime::unwatch_errors(fd);
    leave_extreme();
}

void UdpSocket::last_fd_closed() noexcept {
    closed_.store(true, std::memory_order_release);
    if (stack_.control().owned_by_me() || interrupted_library_code()) return bury_later();
    {
        Stack::Control control(stack_);
        drop_rules();
    }
    watchers_.wake(0);
}

void UdpSocket::on_shadow_error(std::uint64_t token) noexcept {
    auto* socket = reinterpret_cast<UdpSocket*>(static_cast<std::uintptr_t>(token));
    if (!socket->try_ref()) return;  // its memory is always a socket's: see object_pool.h
    socket->kernel_side_.note_event();
    socket->unref();
}

// Only of a socket that gets errors at all: connected, or with IP_RECVERR. Under the control lock.
void UdpSocket::watch_errors(int fd) noexcept {
    if (errors_watched_) return;
    errors_watched_ = true;
    runtime::watch_errors(fd, reinterpret_cast<std::uintptr_t>(this));
}

// ---- calls ----

int UdpSocket::bind(int fd, const sockaddr* addr, socklen_t len) {
    int r = os::bind(fd, addr, len);
    if (r != 0 || left_) return r;
    const ErrnoKept kept;
    Stack::Control control(stack_);
    if (control.mine) {
        bound_explicitly_ = true;
        read_names(fd);
        read_attributes(fd);
        update_rules(false);
    }
    publish();
    return r;
}

int UdpSocket::connect(int fd, const sockaddr* addr, socklen_t len) {
    flush();
    int r = os::connect(fd, addr, len);
    if (left_) return r;
    const ErrnoKept kept;
    Stack::Control control(stack_);
    if (control.mine) {
        read_names(fd);
        read_attributes(fd);
        update_rules(false);
        if (rules_.any()) watch_errors(fd);
    }
    publish();
    return r;
}

void UdpSocket::after_autobind(int fd) noexcept {
    Stack::Control control(stack_);
    if (!control.mine || ends_.local.port != 0) return;
    read_names(fd);
    read_attributes(fd);
    // Only rings that exist, and the one of this route, which resolve() opens: a client need not attach
    // everywhere.
    update_rules(true);
    publish();
}

int UdpSocket::shutdown(int fd, int how) {
    flush();
    int r = os::shutdown(fd, how);
    int saved = errno;
    // Linux marks an unconnected UDP socket as shut down as well, while it answers ENOTCONN.
    if (r == 0 || saved == ENOTCONN) {
        if (how == SHUT_WR || how == SHUT_RDWR)
            send_.set_kernel_sends(SendPath::shut, true), show_kernel_sends();
        if (how == SHUT_RD || how == SHUT_RDWR) {
            rx_shut_.store(true, std::memory_order_release);
            watchers_.wake(0);
        }
    }
    errno = saved;
    return r;
}

void UdpSocket::leave_to_kernel(int, LeaveCause why) noexcept {
    int saved = errno;
    if (left_.exchange(true)) return;
    log::once(log::Level::info, "a UDP socket is left to the kernel: {}", why.text);
    decided({stats::Path::kernel, why.reason, why.text});
    flush();
    statistics::groups_left(*this, why.text);
    {
        Stack::Control control(stack_);
        if (control.mine) drop_rules();
    }
    if (undecided_ != nullptr) undecided_->set({}), filter_changed(false);
    // Calls of the kernel's will want what has come already.
    if (why.reason != stats::Reason::option && why.reason != stats::Reason::flags) give_queue_to_kernel();
    errno = saved;
}

// The rules go with the program; and when exec fails, the socket goes on as it was.
void UdpSocket::before_exec(int fd) noexcept {
    if (shared()) return Socket::before_exec(fd);
    const ErrnoKept kept;
    give_queue_to_kernel();
}

// The queue of a socket that no other process has ends with the process.
void UdpSocket::before_process_end(int fd) noexcept {
    if (shared()) leave_to_kernel(fd, leave::end);
}

// The ring is not to be had any more, so its rules go, and destinations are looked up again.
void UdpSocket::ring_failed(int fd, ring::Ring&) noexcept {
    if (left_ || closed_) return;
    const ErrnoKept kept;
    Stack::Control control(stack_);
    if (control.mine) {
        read_attributes(fd);
        update_rules(!bound_explicitly_);
    }
}

// ---- options ----
//
// Every option is set on the shadow first; its answer is the program's answer. Then the table says what
// follows from it.

int UdpSocket::setsockopt(int fd, int level, int name, const void* value, socklen_t len) {
    int r = os::setsockopt(fd, level, name, value, len);
    const ErrnoKept kept;
    if (r != 0) {
        const MembershipOption* option = level == IPPROTO_IP ? find_membership_option(name) : nullptr;
        if (option != nullptr && option->one_source) learn_groups(fd, name, value, len, false);
        return r;
    }
    using Effect = UdpEffect;
    const UdpOptionRow* row = find_udp_option(level, name);
    const Effect effect = row != nullptr ? row->effect : Effect::kernel_all;
    if (left_ && effect != Effect::groups) return r;

    switch (effect) {
        case Effect::none:
            if (level == SOL_SOCKET && name == SO_REUSEPORT) reuseport_ = any_byte(value, len);
            break;
        case Effect::group:
            if (!stack_.control().owned_by_me()) {
                const std::lock_guard guard(stack_.control());
                SendAttributes attributes = send_.attributes();
                attributes.multicast.learn(stack_, fd, name, value, len);
                send_.set_attributes(attributes);
            }
            if (name != IP_MULTICAST_TTL) show_multicast(fd);
            break;
        case Effect::send:
        case Effect::queue:
        case Effect::route:
            if (!stack_.control().owned_by_me()) {
                const std::lock_guard guard(stack_.control());
                read_attributes(fd);
                announce_queue();
                if (effect == Effect::route) update_rules(!bound_explicitly_);
            }
            break;
        case Effect::groups:
            learn_groups(fd, name, value, len, true);
            break;
        case Effect::errors:
            if (any_byte(value, len) && !stack_.control().owned_by_me()) {
                const std::lock_guard guard(stack_.control());
                watch_errors(fd);
            }
            break;
        case Effect::timeout:
            receive_timeout_.store(timeout_option(fd, SO_RCVTIMEO));
            break;
        case Effect::receive: {
            bool on = any_byte(value, len);
            if (level == SOL_SOCKET && name == SO_TIMESTAMPING) {
                int flags = 0;
                socklen_t size = sizeof flags;
                os::getsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &flags, &size);
                send_.set_kernel_sends(SendPath::tx_timestamps,
                                       (flags & (SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_TX_HARDWARE |
                                                 SOF_TIMESTAMPING_TX_SCHED)) != 0);
                on = (flags & SOF_TIMESTAMPING_RX_SOFTWARE) && (flags & SOF_TIMESTAMPING_SOFTWARE);
                control_.want(
                    ReceiveControl::timestamping_device,
                    (flags & SOF_TIMESTAMPING_RX_HARDWARE) && (flags & SOF_TIMESTAMPING_RAW_HARDWARE));
            }
            control_.want(row->bit, on);
            if (!stack_.control().owned_by_me()) {
                const std::lock_guard guard(stack_.control());
                control_.count_timestamps(!rules_.empty());
            }
            break;
        }
        case Effect::kernel_tx: {
            bool on = any_byte(value, len);
            // An unlimited pacing rate is no pacing.
            if (row->bit == SendPath::pacing) {
                on = false;
                for (socklen_t i = 0; i < len && i < 4; i++)
                    on |= static_cast<const unsigned char*>(value)[i] != 0xff;
            }
            flush();
            send_.set_kernel_sends(row->bit, on);
            show_kernel_sends();
            if (on)
                log::once(log::Level::info, "a UDP socket sends through the kernel: option {}/{} is set",
                          level, name);
            break;
        }
        case Effect::kernel_all: {
            char why[64];
            auto end =
                fmt::format_to_n(why, sizeof why - 1, "socket option {}/{} is not supported", level, name);
            *end.out = 0;
            leave_to_kernel(fd, {stats::Reason::option, why});
            break;
        }
    }
    return r;
}

void UdpSocket::show_multicast(int fd) noexcept {
    stats::SocketBlock* block = socket_counters_.block();
    if (block == nullptr) return;
    in_addr interface {};
    int loop = 1;
    socklen_t size = sizeof interface;
    if (os::getsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &interface, &size) != 0) interface = {};
    size = sizeof loop;
    if (os::getsockopt(fd, IPPROTO_IP, IP_MULTICAST_LOOP, &loop, &size) != 0) loop = 1;
    stats::Describe guard(block->sequence);
    std::memcpy(block->multicast_interface, &interface, sizeof block->multicast_interface);
    block->multicast_loop = loop != 0;
}

int UdpSocket::ioctl(int fd, unsigned long request, void* arg) {
    if (request == FIONREAD && arg != nullptr && offloaded()) {
        flush();
        if (queue_.size() == 0) progress();
        const std::lock_guard guard(watchers_.lock());
        if (const ring::RxBuffer* b = queue_.first(); b != nullptr) {
            *static_cast<int*>(arg) = static_cast<int>(b->payload_length);
            return 0;
        }
    }
    return SteeredSocket::ioctl(fd, request, arg);
}

// ---- statistics ----

void UdpSocket::publish() noexcept {
    stats::SocketBlock* block = socket_counters_.block();
    if (block == nullptr || watchers_.locked_by_me()) return;
    {
        const std::lock_guard guard(watchers_.lock());
        stats::store(block->rx_queue_packets, queue_.size());
        stats::store(block->rx_queue_bytes, queue_.payload());
        const ReceiveQueue::Lent lent = queue_.lent();
        stats::store(block->extra_held_packets, lent.packets);
        stats::store(block->extra_held_bytes, lent.bytes);
    }
    stats::store(block->rx_queue_limit, queue_.limit());
    const int fd = statistics::number_of(*this, block->fd);
    stats::Describe guard(block->sequence);
    if (!guard) return;
    statistics::put_number(*block, fd);
    block->blocking = !nonblock_.load(std::memory_order_relaxed);
    statistics::put_address(block->local, ends_.local);
    statistics::put_address(block->peer, ends_.remote);
    if (closed_.load(std::memory_order_relaxed)) return;  // its rules are gone; the report tells where it was
    statistics::put_ring(*block, rules_.first(), stack_.present_view());
}

void UdpSocket::zero_counters() noexcept {
    stats::SocketBlock* block = socket_counters_.block();
    if (block == nullptr) return;
    {
        const std::lock_guard guard(watchers_.lock());
        stats::store(block->rx_offload.packets, 0);
        stats::store(block->rx_offload.bytes, 0);
        stats::store(block->rx_drop_packets, 0);
        stats::store(block->rx_drop_bytes, 0);
        stats::store(block->rx_queue_max_packets, queue_.size());
        stats::store(block->rx_queue_max_bytes, queue_.payload());
    }
    const std::lock_guard guard(send_.lock());
    stats::store(block->tx_offload.packets, 0);
    stats::store(block->tx_offload.bytes, 0);
}

}  // namespace vma::sockets
