// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/listener.h"

#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "libvma/config/params.h"
#include "libvma/net/kernel_tcp.h"
#include "libvma/os/calls.h"
#include "libvma/tcp/isn.h"
#include "libvma/tcp/lwip_entry.h"
#include "libvma/tcp/time.h"

namespace vma::tcp {
namespace {

constexpr std::uint64_t kRememberNs = 1'000'000'000;
constexpr std::size_t kMinHalfOpen = 256, kMaxHalfOpen = 4096;

struct Syn {
    Listener* listener;
    in_port_t peer_port;
    const Options* options;
};

}  // namespace

// What lwIP calls while it looks at a segment for a listening port; the argument is a Syn.
struct ListenerCallbacks {
    static err_t output(void* arg, pbuf* p, ip4_addr_t from, ip4_addr_t to, std::uint8_t, std::uint8_t) {
        auto* syn = static_cast<Syn*>(arg);
        syn->listener->reply(p, from.addr, to.addr, syn->peer_port);
        return ERR_OK;
    }
    static std::uint32_t isn(void*, ip4_addr_t local, std::uint16_t local_port, ip4_addr_t remote,
                             std::uint16_t remote_port) {
        return initial_sequence(Endpoints{local.addr, remote.addr, htons(local_port), htons(remote_port)}, now_ns());
    }
    static err_t transmit(void*, tcp_pcb*) { return ERR_OK; }
    static err_t inpacket(void* arg, tcp_pcb*, tcp_hdr* header, std::uint16_t optlen, std::uint16_t, std::uint8_t*, pbuf*) {
        hide_options(*header, optlen, *static_cast<Syn*>(arg)->options);
        return ERR_OK;
    }
    static const lwip::Hooks kHooks;
};
const lwip::Hooks ListenerCallbacks::kHooks{&ListenerCallbacks::output, &ListenerCallbacks::isn,
                                            &ListenerCallbacks::transmit, &ListenerCallbacks::inpacket};

Listener* Listener::create(PathSource& paths, in_port_t port, const Options& options, unsigned backlog) noexcept {
    return new (std::nothrow) Listener(paths, port, options, backlog);
}

Listener::Listener(PathSource& paths, in_port_t port, const Options& options, unsigned backlog) noexcept
    : paths_(paths), port_(port), options_(options), backlog_(backlog) {}

void Listener::unref() noexcept {
    if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

void Listener::set_backlog(unsigned backlog) noexcept {
    lock_.lock();
    backlog_ = backlog;
    lock_.unlock();
}

void Listener::set_owner(Owner* owner) noexcept {
    lock_.lock();
    owner_ = owner;
    lock_.unlock();
}

Connection* Listener::accept() noexcept {
    if (pending_.load(std::memory_order_acquire) == 0) return nullptr;
    if (lock_.owned_by_me()) return nullptr;
    lock_.lock();
    Connection* c = nullptr;
    if (!ready_.empty()) {
        c = ready_.front();
        ready_.pop_front();
        pending_.store(static_cast<unsigned>(ready_.size()), std::memory_order_release);
    }
    lock_.unlock();
    return c;
}

void Listener::close() noexcept {
    std::vector<Connection*> half, done;
    lock_.lock();
    closed_ = true;
    owner_ = nullptr;
    try {
        half.reserve(half_open_.size());
        for (auto& [key, h] : half_open_) half.push_back(h.connection);
        done.assign(ready_.begin(), ready_.end());
    } catch (...) {
        // No memory: what is left over ends by its timers.
    }
    half_open_.clear();
    by_age_.clear();
    ready_.clear();
    pending_.store(0, std::memory_order_release);
    lock_.unlock();
    for (Connection* c : half) {
        c->abandon_quietly();
        c->unref();
    }
    for (Connection* c : done) {
        c->close(true);
        c->unref();
    }
}

// ---- the port ----

bool Listener::has_connections() noexcept {
    lock_.lock();
    const bool any = alive_ != 0;
    lock_.unlock();
    return any;
}

void Listener::hold_port(InternalFd socket) noexcept {
    lock_.lock();
    if (alive_ != 0) {
        held_port_ = std::move(socket);
        set_reuse();
    }
    lock_.unlock();
}

void Listener::set_reuse() noexcept {
    if (!held_port_) return;
    const int on = alive_strict_ == 0;
    int saved = errno;
    os::setsockopt(held_port_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    errno = saved;
}

void Listener::joined(bool reuse) noexcept {
    lock_.lock();
    alive_++;
    if (!reuse && alive_strict_++ == 0) set_reuse();
    lock_.unlock();
}

void Listener::left(bool reuse) noexcept {
    lock_.lock();
    alive_--;
    if (!reuse && --alive_strict_ == 0) set_reuse();
    InternalFd done;
    if (alive_ == 0) done = std::move(held_port_);
    lock_.unlock();
}

Listener::Counters Listener::counters() noexcept {
    lock_.lock();
    Counters c = counters_;
    lock_.unlock();
    return c;
}

// ---- frames ----

bool Listener::deliver(ring::RxBuffer* buffer) noexcept {
    const net::TcpHeader& h = *reinterpret_cast<const net::TcpHeader*>(buffer->frame + buffer->l4_offset);
    lock_.lock();
    if (closed_) {
        lock_.unlock();
        return false;
    }
    auto it = half_open_.find({buffer->src_addr, buffer->dst_addr, buffer->src_port});
    if (it != half_open_.end()) {
        Connection* c = it->second.connection;
        if (full() && (h.flags & TCP_ACK) && !(h.flags & TCP_RST)) {
            counters_.overflows++;
            lock_.unlock();
            return false;
        }
        c->ref();
        lock_.unlock();
        const bool taken = c->deliver(buffer);
        c->unref();  // the table's own holds until the end of the batch, and so does the rule afterwards
        return taken;
    }
    const bool syn = (h.flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == TCP_SYN;
    const bool overflow = syn && full();
    if (syn) counters_.syns++;
    if (overflow) counters_.overflows++;
    const bool limited = syn && !overflow && !within_syn_rate();
    if (limited) counters_.limited++;
    if (!syn && !(h.flags & TCP_ACK)) counters_.bad++;
    lock_.unlock();
    if (!syn && buffer->ring->attr().coarse_steering && kernels_.has(*buffer)) {
        if (!buffer->ring->give_to_kernel(*buffer)) return false;
        buffer->release();
        return true;
    }
    if (overflow || limited || (h.flags & TCP_RST) || (!syn && !(h.flags & TCP_ACK))) return false;
    if (syn) {
        on_syn(buffer);
        return true;
    }
    // The device leaves the kernel its connections, but this segment may have been in the queue when one was moved.
    if (Connection::any_moved() &&
        net::kernel_has_tcp(buffer->dst_addr, buffer->dst_port, buffer->src_addr, buffer->src_port, buffer->ring->attr().ifindex))
        return false;
    answer_stray(buffer);
    return true;
}

bool Listener::KernelConnections::has(const ring::RxBuffer& segment) noexcept {
    const Key key{segment.src_addr, segment.dst_addr, segment.src_port};
    Entry& entry = known_[KeyHash()(key) % known_.size()];
    const std::uint64_t now = now_ns();
    lock_.lock();
    const bool known = entry.key == key && now < entry.until_ns;
    lock_.unlock();
    if (known) return true;
    if (!net::kernel_has_tcp(segment.dst_addr, segment.dst_port, segment.src_addr, segment.src_port, segment.ring->attr().ifindex))
        return false;
    lock_.lock();
    entry = {key, now + kRememberNs};
    lock_.unlock();
    return true;
}

// One more SYN in this second, unless that is too many. With the lock held.
bool Listener::within_syn_rate() noexcept {
    const std::int64_t limit = config::get().tcp_max_syn_rate;
    if (limit == 0) return true;
    const std::uint64_t now = now_ns();
    if (now - syn_second_ >= 1'000'000'000) {
        syn_second_ = now;
        syns_this_second_ = 0;
    }
    return ++syns_this_second_ <= limit;
}

void Listener::batch_end(ring::Ring&) noexcept {}

void Listener::make_room() noexcept {
    // Called with the lock held.
    const std::size_t most = std::clamp<std::size_t>(backlog_, kMinHalfOpen, kMaxHalfOpen);
    while (half_open_.size() >= most && !by_age_.empty()) {
        Connection* oldest = by_age_.begin()->second;
        by_age_.erase(by_age_.begin());
        half_open_.erase(key_of(*oldest));
        counters_.evicted++;
        lock_.unlock();
        oldest->abandon_quietly();
        oldest->unref();
        lock_.lock();
    }
}

void Listener::on_syn(ring::RxBuffer* buffer) noexcept {
    const Endpoints ends{buffer->dst_addr, buffer->src_addr, buffer->dst_port, buffer->src_port};
    lock_.lock();
    const Options options = options_;
    lock_.unlock();
    Path path;
    const int error = paths_.find(ends, options.path, path);
    if ((error != 0 && error != EAGAIN) || path.ring == nullptr) {
        buffer->release();
        return;
    }
    std::uint32_t mss = path.mtu > 128 ? path.mtu - 40 : 88;
    if (options.maxseg != 0) mss = std::min(mss, options.maxseg);
    const std::uint32_t offset = timestamp_offset(ends);
    const lwip::Parameters parameters = parameters_of(options, mss, offset);
    Syn syn{this, ends.remote_port, &options};
    tcp_pcb_listen pcb{};
    pcb.state = LISTEN;
    pcb.prio = TCP_PRIO_NORMAL;
    pcb.local_port = ntohs(port_);
    pcb.accept = &Callbacks::accepted;
    ring::Ring* ring = buffer->ring;
    pbuf* p = tcp_part(buffer);
    if (p == nullptr) return;
    Connection* c = nullptr;
    {
        lwip::Entry entry(&pcb, ListenerCallbacks::kHooks, &syn, parameters);
        entry.input(p, {ends.remote_addr}, {ends.local_addr});
        tcp_pcb* made = entry.created();
        if (made == nullptr) return;
        c = Connection::adopt(paths_, made, ends, options, this);
        if (c == nullptr) {
            tcp_abandon(made, 0);
            return;
        }
    }
    // Into the table first: the answer to the SYN-ACK may arrive before this returns, on another ring's thread.
    lock_.lock();
    bool placed = false;
    if (!closed_) {
        make_room();
        try {
            if (half_open_.emplace(key_of(*c), HalfOpen{c, serial_}).second) {
                by_age_.emplace(serial_++, c);
                placed = true;
            }
        } catch (...) {
            half_open_.erase(key_of(*c));
        }
    }
    lock_.unlock();
    if (placed) {
        c->ref();
        c->answer_syn(path, error == 0, *ring);
        c->unref();
    } else {
        c->abandon_quietly();
        c->unref();
    }
}

bool Listener::completed(Connection& connection) noexcept {
    lock_.lock();
    auto it = half_open_.find(key_of(connection));
    if (closed_ || it == half_open_.end() || it->second.connection != &connection) {
        lock_.unlock();
        return false;
    }
    try {
        ready_.push_back(&connection);  // the table's reference
    } catch (...) {
        lock_.unlock();
        return false;
    }
    by_age_.erase(it->second.serial);
    half_open_.erase(it);
    counters_.accepted++;
    pending_.store(static_cast<unsigned>(ready_.size()), std::memory_order_release);
    arrivals_.fetch_add(1, std::memory_order_release);
    if (owner_ != nullptr) owner_->changed();
    lock_.unlock();
    return true;
}

bool Listener::hold_up() noexcept {
    lock_.lock();
    const bool full_now = full();
    if (full_now) counters_.overflows++;
    lock_.unlock();
    return full_now;
}

void Listener::lost(Connection& connection) noexcept {
    lock_.lock();
    auto it = half_open_.find(key_of(connection));
    const bool ours = it != half_open_.end() && it->second.connection == &connection;
    if (ours) {
        by_age_.erase(it->second.serial);
        half_open_.erase(it);
    }
    lock_.unlock();
    if (ours) connection.unref_later();
}

// A segment of no connection: RST, which lwIP makes.
void Listener::answer_stray(ring::RxBuffer* buffer) noexcept {
    const Endpoints ends{buffer->dst_addr, buffer->src_addr, buffer->dst_port, buffer->src_port};
    lock_.lock();
    const Options options = options_;
    counters_.resets_sent++;
    lock_.unlock();
    Syn syn{this, ends.remote_port, &options};
    const lwip::Parameters parameters = parameters_of(options, 536, 0);
    tcp_pcb_listen pcb{};
    pcb.state = LISTEN;
    pcb.local_port = ntohs(port_);
    pcb.accept = &Callbacks::accepted;
    pbuf* p = tcp_part(buffer);
    if (p == nullptr) return;
    lwip::Entry entry(&pcb, ListenerCallbacks::kHooks, &syn, parameters);
    entry.input(p, {ends.remote_addr}, {ends.local_addr});
}

void Listener::reply(pbuf* p, in_addr_t from, in_addr_t to, in_port_t peer_port) noexcept {
    std::uint8_t headers[34 + 60];
    const std::uint16_t length = p->tot_len;
    if (length < sizeof(net::TcpHeader) || length > 60) return;
    const Endpoints ends{from, to, port_, peer_port};
    Path path;
    if (paths_.find(ends, options_.path, path) != 0) return;
    net::UdpTemplate t;
    t.src_mac = path.src_mac;
    t.dst_mac = path.dst_mac;
    t.src_addr = from;
    t.dst_addr = to;
    t.ttl = options_.path.ttl;
    net::build_ip_headers(t, IPPROTO_TCP, headers);
    pbuf_copy_partial(p, headers + 34, length, 0);
    (void)path.ring->send_tcp(headers, 34u + length, nullptr, 0, 0);
}

}  // namespace vma::tcp
