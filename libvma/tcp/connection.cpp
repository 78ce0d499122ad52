// SPDX-License-Identifier: BSD-2-Clause
// A connection's life: beginning, lock, what it shows to the outside, end.
#include "libvma/tcp/connection.h"

#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "libvma/runtime/fork_renewal.h"
#include "libvma/runtime/log.h"
#include "libvma/tcp/handshake/isn.h"
#include "libvma/tcp/handshake/listener.h"
#include "libvma/tcp/handshake/syn.h"
#include "libvma/tcp/lwip/entry.h"
#include "libvma/tcp/recovery/segments.h"
#include "libvma/tcp/sequence.h"
#include "libvma/tcp/timers/engine.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {
namespace {

std::atomic<std::size_t> g_count{0};
std::atomic<bool> g_moved{false};

constexpr int kMaxLooks = 64;              // at a ring that may never be empty
constexpr std::uint32_t kMinSendMss = 48;  // the kernel's net.ipv4.tcp_min_snd_mss
constexpr std::uint32_t kInEvents =
    EPOLLIN | EPOLLRDNORM | EPOLLRDBAND | EPOLLRDHUP | EPOLLPRI | EPOLLHUP | EPOLLERR;

State state_of(const tcp_pcb& pcb) noexcept {
    switch (pcb.state) {
        case SYN_SENT:
            return State::syn_sent;
        case SYN_RCVD:
            return State::syn_recv;
        case ESTABLISHED:
            return State::established;
        case FIN_WAIT_1:
            return State::fin_wait1;
        case FIN_WAIT_2:
            return State::fin_wait2;
        case CLOSE_WAIT:
            return State::close_wait;
        case CLOSING:
            return State::closing;
        case LAST_ACK:
            return State::last_ack;
        case TIME_WAIT:
            return State::time_wait;
        case LISTEN:
            return State::listen;
        default:
            return State::close;
    }
}

}  // namespace

// ---- beginning ----

Connection* Connection::create(PathSource& paths, const Endpoints& ends, const Options& options) noexcept {
    try {
        return new Connection(paths, ends, options);
    } catch (...) {
        return nullptr;
    }
}

Connection::Connection(PathSource& paths, const Endpoints& ends, const Options& options)
    : ends_(ends), options_(options), route_(paths) {
    recovery_.scoreboard = std::make_unique<SegmentBoard>();
    g_count.fetch_add(1, std::memory_order_relaxed);
    opening_.ts_offset = timestamp_offset(ends_);
    check_.last_rx_ns = now_ns();
    acks_.quick_acks = options.quickack ? 16 : 0;
    shown_.limit.store(send_limit(), std::memory_order_relaxed);
}

Connection::~Connection() {
    Engine::instance().wheel().cancel(timers_.timer);
    later_unrefs_ = 0;
    if (pcb_ != nullptr) in_lwip([&](lwip::Entry&) { tcp_abandon(pcb_, 0); });
    if (phase_.orphan) Engine::instance().orphan_left(*this);
    free_queues();
    while (backlog_.first != nullptr) {
        ring::RxBuffer* next = backlog_.first->next;
        backlog_.first->release();
        backlog_.first = next;
    }
    if (origin_ != nullptr) origin_->unref();
    g_count.fetch_sub(1, std::memory_order_relaxed);
}

void Connection::unref() noexcept {
    if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

void Connection::note_moved() noexcept { g_moved.store(true, std::memory_order_relaxed); }
bool Connection::any_moved() noexcept { return g_moved.load(std::memory_order_relaxed); }

std::size_t Connection::count() noexcept { return g_count.load(std::memory_order_relaxed); }

int Connection::attach() noexcept {
    if (attached_) return 0;
    ring::Ring* ring = route_.rule_ring != nullptr ? route_.rule_ring : route_.path.ring;
    try {
        // Two connections cannot have the same four numbers; a peer may begin anew while we remember the old
        // one.
        const ring::Share share = origin_ == nullptr ? ring::Share::only : ring::Share::latest;
        auto added = ring->attach(flow(), this, share);
        if (!added && added.error().code == EEXIST && !ring->rx_owned_by_me()) {
            // Perhaps the last segment of the old one has come, but nobody has looked.
            for (int i = 0; i < kMaxLooks && ring->poll() != 0; i++) {
            }
            added = ring->attach(flow(), this, share);
        }
        if (!added && origin_ != nullptr)
            log::once(log::Level::warn, "a connection is refused, for it cannot have a flow rule: {}",
                      added.error().what);
        if (!added) return added.error().code == EEXIST ? EADDRNOTAVAIL : EOPNOTSUPP;
    } catch (...) {
        return ENOBUFS;
    }
    attached_ = true;
    ref();  // the rule's; detached() gives it back
    ring_.store(ring, std::memory_order_release);
    ring->expect_stream(true);
    Engine::instance().started(*ring);
    return 0;
}

int Connection::connect() noexcept {
    if (!enter()) return -EALREADY;
    int error = find_path();
    // The neighbour's address may be unknown yet: the SYN then waits for it, as a packet in the kernel does.
    if (error == EAGAIN && route_.path.ring != nullptr) error = 0;
    if (error == 0) {
        phase_.connecting = true;
        // Before the SYN leaves, and without the lock: rings call us with their locks held.
        lock_.unlock();
        error = attach();
        lock_.lock();
    }
    if (error == 0) {
        opening_.own_scale = window_scale(options_);
        const lwip::Parameters parameters =
            parameters_of(options_, opening_.own_scale, wanted_mss(), opening_.ts_offset);
        opening_.own_window = parameters.wnd;
        {
            lwip::Entry entry(static_cast<tcp_pcb*>(nullptr), Callbacks::kHooks, this, parameters);
            pcb_ = tcp_new();
        }
        if (pcb_ != nullptr) Callbacks::install(pcb_, this);
        if (pcb_ == nullptr) {
            error = ENOBUFS;
        } else {
            err_t result = ERR_OK;
            set_pcb_options();
            in_lwip([&](lwip::Entry&) {
                pcb_->local_ip.addr = ends_.local_addr;
                pcb_->local_port = ntohs(ends_.local_port);
                ip_addr_t to{ends_.remote_addr};
                result = tcp_connect(pcb_, &to, ntohs(ends_.remote_port), &Callbacks::connected);
            });
            if (result != ERR_OK)
                error = ENOBUFS;
            else
                output();
            // What may be sent before the peer has said anything (RFC 9293 section 3.7.1).
            shown_.mss.store(std::min(wanted_mss(), 536u) - (options_.timestamps ? kTimestampBytes : 0),
                             std::memory_order_relaxed);
        }
    }
    if (error != 0) {
        phase_.connecting = false;
        if (pcb_ != nullptr) in_lwip([&](lwip::Entry&) { tcp_abandon(pcb_, 0); });
    }
    leave();
    return -error;
}

Connection* Connection::adopt(PathSource& paths, tcp_pcb* pcb, const Handshake& handshake,
                              const Options& options, const Path& path, bool resolved, ring::Ring& from,
                              Listener* origin) noexcept {
    Connection* c = create(paths, handshake.ends, options);
    if (c == nullptr) return nullptr;
    c->pcb_ = pcb;
    c->opening_.own_scale = pcb->rcv_scale;
    origin->ref();
    c->origin_ = origin;
    c->counted_reuse_ = options.reuse_address;
    origin->joined(options.reuse_address);
    c->shown_.state.store(State::syn_recv, std::memory_order_release);
    Callbacks::install(pcb, c);
    c->set_pcb_options();
    c->route_.path = path;
    c->route_.rule_ring = &from;
    c->route_.has_path = resolved;
    if (resolved) c->use_path(path);
    // The SYN-ACK that lwIP has queued is under way already.
    pcb->unacked = c->send_.unacked_last = std::exchange(pcb->unsent, nullptr);
    pcb->snd_nxt = handshake.iss + 1;
    c->ack_sent();
    c->opening_.syn_sent_ns = handshake.sent_ns;
    c->opening_.syn_repeated = handshake.repeated;
    c->counters_.segments_out++;
    c->timers_.rto_at = c->check_.last_rx_ns + std::uint64_t{c->recovery_.rtt.rto_us()} * 1000;
    return c;
}

void Connection::established() noexcept {
    phase_.connecting = false;
    phase_.established = true;
    shown_.mss.store(send_mss(), std::memory_order_relaxed);
    recovery_.cc.init(options_.congestion, send_mss());
    if (recovery_.rtt.backoffs() != 0 && !recovery_.rtt.measured()) recovery_.rtt.handshake_without_sample();
    recovery_.retries = 0;
    acks_.acked_upto = pcb_->rcv_nxt;
    // As the kernel's tcp_init_wl(): the window came with the peer's SYN, or with the ACK behind it.
    check_.window_seq = origin_ == nullptr ? pcb_->rcv_nxt - 1 : pcb_->rcv_nxt;
    check_.last_ack_rx_ns = check_.last_rx_ns;
    if (origin_ == nullptr) {
        // SO_RCVBUF may have changed since the SYN; what that has announced holds.
        const std::uint32_t most = pcb_->flags & TF_WND_SCALE ? 0xffffffff : 0xffff;
        const std::uint32_t now =
            parameters_of(options_, opening_.own_scale, wanted_mss(), opening_.ts_offset).wnd;
        pcb_->rcv_wnd = pcb_->rcv_ann_wnd = std::max(std::min(now, most), opening_.syn_window);
    }
    start_recovery();
    send_.data_end = send_.small_end = pcb_->snd_lbb;
    shown_.out_wake++;
    if (origin_ == nullptr) return;
    // A passive open: a rule of its own, then the listener may hand it out.
    handed_out_ = attach() == 0 && origin_->completed(*this);
    // The peer believes that it is connected.
    if (!handed_out_) backlog_.close_requested.store(2), backlog_.wants_output.store(true);
}

void Connection::set_owner(Owner* owner) noexcept {
    const bool mine = enter();
    owner_ = owner;
    if (mine) leave();
}

// ---- lock ----

bool Connection::enter() noexcept {
    if (lock_.try_lock()) return true;
    if (lock_.owned_by_me()) return false;
    lock_.lock();
    return true;
}

void Connection::leave() noexcept {
    for (;;) {
        while (backlog_.any.load(std::memory_order_acquire)) {
            backlog_.lock.lock();
            ring::RxBuffer* list = backlog_.first;
            backlog_.first = backlog_.last = nullptr;
            backlog_.any.store(false, std::memory_order_relaxed);
            backlog_.lock.unlock();
            input_list(list);
        }
        if (backlog_.wants_output.load(std::memory_order_relaxed) && backlog_.wants_output.exchange(false)) {
            if (backlog_.abandon.exchange(false) && pcb_ != nullptr)
                in_lwip([&](lwip::Entry&) { tcp_abandon(pcb_, 0); });
            if (backlog_.icmp_any.load(std::memory_order_relaxed)) {
                backlog_.lock.lock();
                const ring::IcmpError error = backlog_.icmp;
                backlog_.icmp_any.store(false, std::memory_order_relaxed);
                backlog_.lock.unlock();
                icmp_error_locked(error);
            }
            if (const int how = backlog_.close_requested.exchange(0); how != 0) close_locked(how == 2);
            send_.burst = 0;
            output();
        }
        settle();
        const std::uint32_t unrefs = std::exchange(later_unrefs_, 0);
        // The rule goes when nothing is to come any more.
        const bool ended =
            pcb_ == nullptr && attached_ && !detaching_ && !freeze_.frozen && !phase_.connecting;
        if (ended) detaching_ = true;
        const bool moved = freeze_.moved;
        lock_.unlock();
        std::atomic_thread_fence(std::memory_order_seq_cst);
        for (std::uint32_t i = 0; i < unrefs; i++) unref();  // never the last: the caller has one
        if (ended) {
            ring::Ring* ring = ring_.load(std::memory_order_relaxed);
            ring->detach_soon(flow(), this,
                              moved);  // may be the end of this object, unless the caller has a reference
            return;
        }
        if (!backlog_.any.load(std::memory_order_relaxed) &&
            !backlog_.wants_output.load(std::memory_order_relaxed))
            return;
        if (!lock_.try_lock()) return;  // the new owner does it
    }
}

void Connection::abandon_quietly() noexcept {
    backlog_.abandon.store(true, std::memory_order_relaxed);
    backlog_.wants_output.store(true, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (lock_.try_lock()) leave();
}

void Connection::settle() noexcept {
    if (freeze_.moved) {  // what was shown last stays true until the owner shows the kernel's socket
        arm_timers();
        return;
    }
    // Of a connection that has failed the last count stands, as in the kernel; the SYN counts until it is
    // answered.
    if (pcb_ != nullptr)
        shown_.queued.store(phase_.established ? queued() : origin_ == nullptr, std::memory_order_release);
    std::uint32_t unsent = 0;
    if (pcb_ != nullptr && pcb_->unsent != nullptr && phase_.established) {
        const auto n = static_cast<std::int32_t>(send_.data_end - ntohl(pcb_->unsent->tcphdr->seqno));
        unsent = n > 0 ? static_cast<std::uint32_t>(n) : 0;
    }
    shown_.unsent.store(unsent, std::memory_order_release);
    shown_.limit.store(send_limit(), std::memory_order_release);
    if (pcb_ != nullptr) {
        const State now = state_of(*pcb_);
        if (now == State::time_wait && !phase_.in_time_wait) enter_time_wait();
        // "Wake up lingering close()" (tcp_rcv_state_process): another edge.
        if (now == State::fin_wait2 && shown_.state.load(std::memory_order_relaxed) == State::fin_wait1)
            shown_.in_wake++, shown_.out_wake++;
        shown_.state.store(now, std::memory_order_release);
    } else {
        shown_.state.store(State::close, std::memory_order_release);
    }
    publish();
    arm_timers();
}

void Connection::publish() noexcept {
    const std::uint32_t before = shown_.events.load(std::memory_order_relaxed);
    // Before connect(), which sets the window: who watches must not see a hang-up.
    if (pcb_ == nullptr && before == 0 && opening_.own_window == 0 && !phase_.established) return;
    const std::uint32_t now = compute_events();
    if ((now & ~before) & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) shown_.in_wake++, shown_.out_wake++;
    // Visible before the look at who asked meanwhile, see events_asked().
    if (before != now) shown_.events.store(now, std::memory_order_seq_cst);
    if (now & EPOLLOUT) {
        const bool asked = shown_.room_wanted.load(std::memory_order_seq_cst);
        if (send_.no_space || asked || (!(before & EPOLLOUT) && !phase_.established)) shown_.out_wake++;
        if (asked) shown_.room_wanted.store(false, std::memory_order_relaxed);
        send_.no_space = false;
    }
    if (before == now && (shown_.in_wake | shown_.out_wake) == 0) return;
    shown_.in_edges.fetch_add(shown_.in_wake, std::memory_order_release);
    shown_.out_edges.fetch_add(shown_.out_wake, std::memory_order_release);
    shown_.in_wake = shown_.out_wake = 0;
    if (owner_ != nullptr) owner_->changed();
}

// The kernel's tcp_poll() in other words.
std::uint32_t Connection::compute_events() const noexcept {
    std::uint32_t mask = 0;
    const State state = pcb_ != nullptr ? state_of(*pcb_) : State::close;
    const bool receive_shut = phase_.read_shut || phase_.peer_closed;
    if ((receive_shut && phase_.write_shut) || state == State::close) mask |= EPOLLHUP;
    if (receive_shut) mask |= EPOLLIN | EPOLLRDNORM | EPOLLRDHUP;
    if (state != State::syn_sent && state != State::syn_recv) {
        const std::uint32_t limit = send_limit();
        const std::size_t enough = std::max<std::size_t>(1, std::min(options_.receive_lowat, limit));
        if (shown_.readable.load(std::memory_order_relaxed) >= enough) mask |= EPOLLIN | EPOLLRDNORM;
        if (phase_.write_shut) {
            mask |= EPOLLOUT | EPOLLWRNORM;
        } else {
            const std::uint32_t used = queued();
            const bool room = used <= limit && limit - used >= used / 2;
            const bool few_unsent = options_.notsent_lowat == 0xffffffff ||
                                    unsent_bytes() < options_.notsent_lowat || unsent_bytes() == 0;
            if (room && few_unsent) mask |= EPOLLOUT | EPOLLWRNORM;
        }
    }
    if (shown_.error.load(std::memory_order_relaxed) != 0) mask |= EPOLLERR;
    return mask;
}

std::uint32_t Connection::edges(std::uint32_t interest) const noexcept {
    std::uint32_t n = 0;
    if (interest & kInEvents) n += shown_.in_edges.load(std::memory_order_acquire);
    if (interest & (EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND))
        n += shown_.out_edges.load(std::memory_order_acquire);
    return n;
}

int Connection::take_error() noexcept {
    const int error = shown_.error.exchange(0, std::memory_order_acq_rel);
    if (error != 0 && enter()) leave();  // EPOLLERR goes
    return error;
}

void Connection::fail(int error) noexcept { shown_.error.store(error, std::memory_order_release); }

// lwIP has freed the PCB: the connection is over, for whatever reason.
void Connection::gone() noexcept {
    pcb_ = nullptr;
    send_.tail = nullptr;
    send_.unacked_last = nullptr;
    send_.tail_room = 0;
    phase_.connecting = false;
    if (origin_ != nullptr) {
        if (!handed_out_) origin_->lost(*this);
        origin_->left(counted_reuse_);
    }
    receiver_.early.clear();
    receiver_.fin_early = false;
    scoreboard_reset();
    Engine::instance().time_wait_left(*this);
    if (phase_.orphan) Engine::instance().orphan_left(*this);
    // Both directions, as the kernel's tcp_done().
    phase_.peer_closed = true;
    phase_.write_shut = true;
    shown_.in_wake++;
    shown_.out_wake++;
    if (phase_.orphan) free_queues();
}

void Connection::free_queues() noexcept {
    receiver_.rx.clear();
    receiver_.early.clear();
    receiver_.fin_early = false;
    shown_.readable.store(0, std::memory_order_release);
}

void Connection::detached(ring::Ring& ring) noexcept {
    Engine::instance().stopped(ring);
    ring.expect_stream(false);
    // Frames that this batch has staged find no PCB any more.
    while (staged_.first != nullptr) {
        ring::RxBuffer* next = staged_.first->next;
        staged_.first->next = nullptr;
        staged_.first->release();
        staged_.first = next;
    }
    staged_.last = nullptr;
    unref();
}

// ---- path ----

std::uint32_t Connection::wanted_mss() const noexcept {
    std::uint32_t mtu = route_.path.mtu != 0 ? route_.path.mtu : 1500;
    if (route_.learnt_mtu != 0) mtu = std::min(mtu, route_.learnt_mtu);
    std::uint32_t mss = mtu > 40 + 88 ? mtu - 40 : 88;
    if (options_.maxseg != 0) mss = std::min(mss, options_.maxseg);
    return std::min<std::uint32_t>(mss, 0xffff - 40);
}

// As the kernel's tcp_mtu_to_mss(): what the peer asks for is raised to kMinSendMss, and our options take
// their room of that.
std::uint32_t Connection::send_mss() const noexcept {
    static_assert(kMinSendMss > kTimestampBytes);
    std::uint32_t mss = wanted_mss();
    if (pcb_ != nullptr) mss = std::min<std::uint32_t>(mss, pcb_->mss);
    mss = std::max(mss, kMinSendMss);
    return pcb_ != nullptr && (pcb_->flags & TF_TIMESTAMP) ? mss - kTimestampBytes : mss;
}

int Connection::find_path() noexcept {
    Path path;
    const int error = route_.paths.find(ends_, options_.path, path);
    if (error != 0 && error != EAGAIN) {
        route_.has_path = false;
        return error;
    }
    if (path.ring == nullptr) return error != 0 ? error : EOPNOTSUPP;
    // The rule stays on the ring where it is: a route over another interface is used for sending only.
    const std::uint32_t mss_before = wanted_mss();
    route_.path = path;
    route_.has_path = error == 0;
    if (route_.has_path) use_path(path);
    if (wanted_mss() != mss_before) mss_changed();
    return error;
}

// The path, or the program, allows segments of another size.
void Connection::mss_changed() noexcept {
    if (!phase_.established) return;
    const std::uint32_t mss = send_mss();
    if (mss == shown_.mss.load(std::memory_order_relaxed)) return;
    shown_.mss.store(mss, std::memory_order_relaxed);
    recovery_.cc.set_mss(mss);
    recovery_.scoreboard->set_mss(mss);
}

void Connection::use_path(const Path& path) noexcept {
    net::UdpTemplate t;
    t.src_mac = path.src_mac;
    t.dst_mac = path.dst_mac;
    t.src_addr = ends_.local_addr;
    t.dst_addr = ends_.remote_addr;
    t.tos = options_.path.tos;
    t.ttl = options_.path.ttl;
    t.dont_fragment = options_.path.dont_fragment;
    net::build_ip_headers(t, IPPROTO_TCP, route_.ip_headers);
}

void Connection::path_mtu(std::uint32_t mtu) noexcept {
    if (!enter()) return;
    learn_mtu(mtu);
    leave();
}

void Connection::icmp_error(ring::Ring&, const ring::IcmpError& error) noexcept {
    backlog_.lock.lock();
    backlog_.icmp = error;
    backlog_.icmp_any.store(true, std::memory_order_relaxed);
    backlog_.lock.unlock();
    backlog_.wants_output.store(true, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (lock_.try_lock()) leave();
}

// As the kernel's tcp_v4_err(): only what quotes a segment under way counts. Fatal while connecting, else a
// hint why retransmissions may fail; a smaller MTU is obeyed.
void Connection::icmp_error_locked(const ring::IcmpError& error) noexcept {
    if (pcb_ == nullptr || freeze_.frozen || phase_.in_time_wait) return;
    if (seq_before(error.seq, pcb_->lastack) || seq_before(pcb_->snd_nxt, error.seq)) return;
    if (error.error == EMSGSIZE) {
        learn_mtu(error.mtu != 0 ? error.mtu : 576);
    } else if (pcb_->state == SYN_SENT || pcb_->state == SYN_RCVD) {
        give_up(error.error);
    } else {
        route_.soft_error = error.error;
    }
}

void Connection::lose_path(int error) noexcept {
    if (!enter()) return;
    if (pcb_ != nullptr && !freeze_.frozen && !phase_.in_time_wait) give_up(error);
    leave();
}

void Connection::learn_mtu(std::uint32_t mtu) noexcept {
    mtu = std::max<std::uint32_t>(mtu, 552);  // the kernel's net.ipv4.route.min_pmtu
    if (route_.learnt_mtu != 0 && mtu > route_.learnt_mtu) return;
    // After this time a longer segment tries again, as in the kernel: the path may have become better.
    route_.learnt_until_ns = now_ns() + std::uint64_t{options_.mtu_expires_s} * 1'000'000'000;
    if (mtu == route_.learnt_mtu) return;
    route_.learnt_mtu = mtu;
    if (pcb_ == nullptr || !phase_.established) return;
    const std::uint32_t before = shown_.mss.load(std::memory_order_relaxed);
    mss_changed();
    if (send_mss() >= before)
        return;  // segments were that short already: it is not for this that one was lost
    resegment();
    output();
}

void Connection::forget_mtu() noexcept {
    route_.learnt_mtu = 0;
    mss_changed();
}

// ---- options ----

Options Connection::options() noexcept {
    if (!enter()) return options_;
    Options o = options_;
    leave();
    return o;
}

void Connection::tell_readable() noexcept {
    if (!enter()) return;
    const std::size_t enough = std::max<std::size_t>(1, options_.receive_lowat);
    if (shown_.readable.load(std::memory_order_relaxed) >= enough || phase_.fin_seen) shown_.in_wake++;
    leave();
}

void Connection::set_pcb_options() noexcept {
    pcb_->ttl = options_.path.ttl;
    pcb_->tos = options_.path.tos;
    tcp_set_flags(pcb_, TF_NODELAY);  // when to wait is decided in output.cpp
}

void Connection::options_changed() noexcept {
    if (pcb_ != nullptr) {
        set_pcb_options();
        if (phase_.established) {
            if (recovery_.cc.algorithm() != options_.congestion) recovery_.cc.change(options_.congestion);
            mss_changed();
        }
        if (route_.has_path) use_path(route_.path);
        if (phase_.established && !phase_.in_time_wait) open_window();  // SO_RCVBUF may have grown
        send_.burst = 0;
        if (pcb_ != nullptr) output();  // a cork may have gone
    }
    // Counted anew from the last segment that came, as the kernel does for TCP_KEEPIDLE.
    if (!options_.keepalive ||
        std::exchange(timers_.timed_keep_idle_s, options_.keep_idle_s) != options_.keep_idle_s)
        timers_.keepalive_at = 0;
    if (origin_ != nullptr && pcb_ != nullptr && counted_reuse_ != options_.reuse_address) {
        origin_->left(counted_reuse_);
        counted_reuse_ = options_.reuse_address;
        origin_->joined(counted_reuse_);
    }
}

void Connection::quick_ack(bool on) noexcept {
    if (!enter()) return;
    options_.quickack = on;
    acks_.quick_acks = on ? 16 : 0;
    if (on && pcb_ != nullptr && acks_.ack_due_bytes != 0) {
        tcp_ack_now(pcb_);
        output();
    }
    leave();
}

// ---- figures ----

Counters Connection::counters() noexcept {
    if (!enter()) return counters_;
    Counters c = counters_;
    leave();
    return c;
}

bool Connection::sample(Sample& out) noexcept {
    if (!enter()) return false;
    out.counters = counters_;
    out.rtt_us = recovery_.rtt.srtt_us();
    out.rttvar_us = recovery_.rtt.rttvar_us();
    out.rto_us = recovery_.rtt.rto_us();
    out.cwnd = recovery_.cc.cwnd();
    out.ssthresh = recovery_.cc.ssthresh() >= Congestion::kNoThreshold ? 0 : recovery_.cc.ssthresh();
    out.mss = shown_.mss.load(std::memory_order_relaxed);
    out.send_window = pcb_ != nullptr ? pcb_->snd_wnd : 0;
    out.receive_window = options_.receive_window;
    out.send_limit = send_limit();
    leave();
    return true;
}

Connection::Held Connection::held() noexcept {
    if (!enter()) return {};
    const Held h{receiver_.rx.bytes() + receiver_.early.bytes(), receiver_.rx.held() + receiver_.early.held(),
                 receiver_.rx.steps() + receiver_.early.steps()};
    leave();
    return h;
}

// As the kernel's tcp_get_info(), in its units: microseconds, milliseconds, segments.
void Connection::info(Info& all) noexcept {
    all = {};
    ::tcp_info& out = all.basic;
    if (!enter()) return;
    const std::uint64_t now = now_ns();
    auto ms_since = [&](std::uint64_t at) {
        return at == 0 ? 0u : static_cast<std::uint32_t>((now - at) / 1'000'000);
    };
    const std::uint32_t mss = std::max(shown_.mss.load(std::memory_order_relaxed), 1u);
    out.tcpi_state = static_cast<std::uint8_t>(state());
    out.tcpi_ca_state = after_timeout() ? TCP_CA_Loss : recovering() ? TCP_CA_Recovery : TCP_CA_Open;
    out.tcpi_retransmits = static_cast<std::uint8_t>(std::min(recovery_.retries, 255u));
    out.tcpi_probes = static_cast<std::uint8_t>(std::min(timers_.probes, 255u));
    out.tcpi_backoff = static_cast<std::uint8_t>(std::min(recovery_.rtt.backoffs(), 255u));
    out.tcpi_rto = recovery_.rtt.rto_us();
    out.tcpi_ato = options_.delayed_ack_ms * 1000;
    out.tcpi_snd_mss = mss;
    out.tcpi_rcv_mss = std::max(acks_.largest_in, 536u);
    out.tcpi_advmss = wanted_mss() - (options_.timestamps ? kTimestampBytes : 0);
    out.tcpi_pmtu = route_.learnt_mtu != 0 ? std::min(route_.path.mtu, route_.learnt_mtu) : route_.path.mtu;
    out.tcpi_rtt = recovery_.rtt.srtt_us();
    out.tcpi_rttvar = recovery_.rtt.rttvar_us();
    out.tcpi_snd_ssthresh =
        recovery_.cc.ssthresh() >= Congestion::kNoThreshold ? 0x7fffffff : recovery_.cc.ssthresh() / mss;
    out.tcpi_snd_cwnd = std::max(recovery_.cc.cwnd() / mss, 1u);
    out.tcpi_reordering = 3;
    out.tcpi_last_data_sent = ms_since(acks_.last_data_tx_ns);
    out.tcpi_last_data_recv = ms_since(acks_.last_data_rx_ns);
    out.tcpi_last_ack_recv = ms_since(check_.last_ack_rx_ns);
    out.tcpi_rcv_space = options_.receive_window;
    out.tcpi_total_retrans = static_cast<std::uint32_t>(counters_.retransmits);
    if (pcb_ != nullptr) {
        if (pcb_->flags & TF_TIMESTAMP) out.tcpi_options |= TCPI_OPT_TIMESTAMPS;
        if (pcb_->flags & TF_SACK) out.tcpi_options |= TCPI_OPT_SACK;
        if (pcb_->flags & TF_WND_SCALE) {
            out.tcpi_options |= TCPI_OPT_WSCALE;
            out.tcpi_snd_wscale = pcb_->snd_scale & 15u;
            out.tcpi_rcv_wscale = pcb_->rcv_scale & 15u;
        }
        for (const tcp_seg* s = pcb_->unacked; s != nullptr; s = s->next) out.tcpi_unacked++;
        all.snd_wnd = pcb_->snd_wnd;
    }
    all.pacing_rate = all.max_pacing_rate = ~std::uint64_t{0};  // not paced
    all.bytes_acked = counters_.acked;
    all.bytes_received = counters_.received;
    all.segs_out = static_cast<std::uint32_t>(counters_.segments_out);
    all.segs_in = static_cast<std::uint32_t>(counters_.segments_in);
    all.notsent_bytes = static_cast<std::uint32_t>(unsent_bytes());
    all.min_rtt = recovery_.rtt.min_rtt_us();
    all.data_segs_in = static_cast<std::uint32_t>(counters_.data_segments_in);
    all.data_segs_out = static_cast<std::uint32_t>(counters_.data_segments_out);
    all.delivered = all.data_segs_out > out.tcpi_unacked ? all.data_segs_out - out.tcpi_unacked : 0;
    all.bytes_sent = counters_.bytes_out;
    all.bytes_retrans = counters_.bytes_again;
    all.dsack_dups = static_cast<std::uint32_t>(counters_.dsacks);
    all.rcv_ooopack = static_cast<std::uint32_t>(counters_.out_of_order);
    leave();
}

void Connection::nodelay(bool on) noexcept {
    if (!enter()) return;
    options_.nodelay = on;
    send_.burst = 0;
    if (on) send_.push = true;
    if (pcb_ != nullptr) output();
    leave();
}

CongestionAlgorithm Connection::algorithm() noexcept { return options().congestion; }

// ---- data, the receiving half ----

ssize_t Connection::receive(const iovec* iov, std::size_t count, std::size_t length, unsigned flags,
                            std::size_t skip) noexcept {
    if (!enter()) return -EWOULDBLOCK;
    ssize_t result;
    if (__builtin_expect(freeze_.frozen || freeze_.moved, 0)) {
        leave();
        return -EREMOTE;
    }
    if (shown_.readable.load(std::memory_order_relaxed) <= skip) {
        if (skip != 0)
            result = -EAGAIN;
        else if (phase_.fin_seen)
            result = 0;  // the kernel's SOCK_DONE: an error that came later is for SO_ERROR and for writers
        else if (int error = shown_.error.load(std::memory_order_relaxed); error != 0) {
            shown_.error.store(0, std::memory_order_relaxed);
            result = -error;
        } else if (phase_.peer_closed || phase_.read_shut)
            result = 0;
        else if (pcb_ == nullptr && !phase_.connecting)
            result = -ENOTCONN;
        else
            result = -EAGAIN;
        leave();
        return result;
    }
    const std::size_t done = receiver_.rx.read(
        iov, count, length, {.copy = !(flags & kDiscard), .take = !(flags & kPeek), .skip = skip});
    result = static_cast<ssize_t>(done);
    send_.burst = 0;
    send_.last_write_ns =
        0;  // the next write begins a burst, however soon it comes: an answer on a fast wire
    if (!(flags & kPeek) && done != 0) {
        shown_.readable.store(receiver_.rx.bytes(), std::memory_order_release);
        if (pcb_ != nullptr && pcb_->state != TIME_WAIT) open_window();
    }
    leave();
    return result;
}

// ---- end ----

int Connection::shutdown(int how) noexcept {
    if (!enter()) return -ENOTCONN;
    int result = 0;
    if (freeze_.frozen || freeze_.moved) {
        result = -EREMOTE;
    } else if (pcb_ == nullptr) {
        result = -ENOTCONN;
    } else if (pcb_->state == SYN_SENT) {
        // The kernel gives the connection up, without an error to read.
        in_lwip([&](lwip::Entry&) { tcp_abandon(pcb_, 0); });
        phase_.peer_closed = false;
    } else {
        // The kernel's state_change: whoever waits is woken, whatever for.
        shown_.in_wake++;
        shown_.out_wake++;
        if (how != SHUT_WR) phase_.read_shut = true;
        if (how != SHUT_RD && !phase_.write_shut) {
            phase_.write_shut = true;
            in_lwip([&](lwip::Entry&) { tcp_shutdown(pcb_, 0, 1); });
            if (pcb_ != nullptr) output();
        }
        // As the kernel: data that still comes can reach nobody, and is answered with a RST.
        if (pcb_ != nullptr && phase_.read_shut && phase_.write_shut) tcp_set_flags(pcb_, TF_RXCLOSED);
    }
    leave();
    return result;
}

void Connection::close(bool reset) noexcept {
    const bool mine = enter();
    owner_ = nullptr;
    if (!mine) {  // a handler interrupted a call of this thread on this connection: that call ends it
        backlog_.close_requested = reset ? 2 : 1;
        backlog_.wants_output = true;
        return;
    }
    close_locked(reset);
    leave();
}

void Connection::close_locked(bool reset) noexcept {
    phase_.orphan = true;
    const bool unread = shown_.readable.load(std::memory_order_relaxed) != 0;
    free_queues();
    if (pcb_ == nullptr) return;
    phase_.read_shut = true;
    if (pcb_->state == SYN_SENT) {
        in_lwip([&](lwip::Entry&) { tcp_abandon(pcb_, 0); });
    } else if (pcb_->state == TIME_WAIT) {
        // nothing more to do
    } else if (reset || unread || !phase_.established) {
        // A FIN would wait for the handshake of a simultaneous open, which a peer need not ever complete.
        in_lwip([&](lwip::Entry&) { tcp_abandon(pcb_, 1); });
    } else {
        tcp_set_flags(pcb_, TF_RXCLOSED);  // data that still comes is answered with a RST
        if (!phase_.write_shut) {
            phase_.write_shut = true;
            in_lwip([&](lwip::Entry&) { tcp_shutdown(pcb_, 0, 1); });
        }
        if (pcb_ != nullptr) {
            send_.burst = 0;
            output();
        }
        if (pcb_ != nullptr && pcb_->state == FIN_WAIT_2) start_fin_wait2();
        if (pcb_ != nullptr) Engine::instance().orphaned(*this);
    }
}

bool Connection::drained() const noexcept {
    switch (state()) {
        case State::fin_wait1:
        case State::closing:
        case State::last_ack:
        case State::established:
        case State::close_wait:
            return false;
        default:
            return true;
    }
}

namespace {
void forget_connections() noexcept { g_count = 0; }
VMA_RENEW_IN_CHILD(forget_connections);
}  // namespace

}  // namespace vma::tcp
