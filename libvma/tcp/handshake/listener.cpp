// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/handshake/listener.h"

#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "libvma/config/params.h"
#include "libvma/os/calls.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/runtime/log.h"
#include "libvma/tcp/handshake/isn.h"
#include "libvma/tcp/handshake/syn_cookie.h"
#include "libvma/tcp/lwip/entry.h"
#include "libvma/tcp/lwip/frames.h"
#include "libvma/tcp/sequence.h"
#include "libvma/tcp/timers/background.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {
namespace {

constexpr Nsec kRemember = kSecond;
constexpr unsigned kAskPerSecond = 8;        // of each of the 256 places in KernelConnections
constexpr unsigned kLookUpsPerSecond = 500;  // of paths; two system calls each, so a millisecond or two
constexpr Nsec kAnswerPeriod = kSecond / 2;  // the kernel's net.ipv4.tcp_invalid_ratelimit
constexpr std::size_t kAgainAtOnce = 16;     // SYN-ACKs that one look at the table repeats

// After how many timeouts TCP_DEFER_ACCEPT is over (the kernel's secs_to_retrans()).
unsigned defer_timeouts(std::chrono::seconds time) noexcept {
    unsigned timeouts = 0;
    std::chrono::seconds period{0}, timeout{1};
    for (; period < time && timeouts < 255; timeouts++) {
        period += timeout;
        timeout = std::min(2 * timeout, std::chrono::seconds(120));
    }
    return timeouts;
}

std::uint16_t announced_mss(std::uint32_t mtu, const Options& options) noexcept {
    std::uint32_t mss = mtu > 40 + 88 ? mtu - 40 : 88;
    if (options.maxseg != 0) mss = std::min(mss, options.maxseg);
    return static_cast<std::uint16_t>(std::min<std::uint32_t>(mss, 0xffff - 40));
}

}  // namespace

// A received segment, taken apart.
struct Listener::Segment {
    explicit Segment(ring::RxBuffer* b) noexcept
        : buffer(b), ends{{b->dst_addr, b->dst_port}, {b->src_addr, b->src_port}}, now(Clock::now()) {
        const auto* at = b->frame + b->l4_offset;
        net::TcpHeader h;
        std::memcpy(&h, at, sizeof h);
        seq = ntohl(h.seq);
        ack = ntohl(h.ack);
        flags = h.flags;
        end = seq + b->payload_length + ((flags & TCP_SYN) != 0) + ((flags & TCP_FIN) != 0);
        const std::uint32_t from = b->l4_offset + sizeof h, to = std::min(b->payload_offset, b->length);
        if (from < to) options = {at + sizeof h, to - from};
    }
    bool is_syn() const noexcept { return (flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == TCP_SYN; }

    ring::RxBuffer* buffer;
    net::Endpoints ends;
    Time now;
    std::uint32_t seq = 0, ack = 0, end = 0;
    std::uint8_t flags = 0;
    std::span<const std::uint8_t> options;
};

Listener* Listener::create(PathSource& paths, in_port_t port, const Options& options,
                           unsigned backlog) noexcept {
    try {
        return new Listener(paths, port, options, backlog);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

Listener::Listener(PathSource& paths, in_port_t port, const Options& options, unsigned backlog)
    : paths_(paths), port_(port), options_(options), backlog_(backlog) {}

Listener::~Listener() { Background::instance().wheel().cancel(timer_); }

void Listener::unref() noexcept {
    if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

void Listener::set_backlog(unsigned backlog) noexcept {
    const std::lock_guard guard(lock_);
    backlog_ = backlog;
}

void Listener::set_owner(Owner* owner) noexcept {
    const std::lock_guard guard(lock_);
    owner_ = owner;
}

Connection* Listener::accept() noexcept {
    if (pending_.load(std::memory_order_acquire) == 0) return nullptr;
    if (lock_.owned_by_me()) return nullptr;
    const std::lock_guard guard(lock_);
    Connection* c = nullptr;
    if (!ready_.empty()) {
        c = ready_.front();
        ready_.pop_front();
        pending_.store(static_cast<unsigned>(ready_.size()), std::memory_order_release);
    }
    return c;
}

void Listener::close() noexcept {
    std::vector<Connection*> half, done;
    lock_.lock();
    closed_ = true;
    owner_ = nullptr;
    try {
        half.reserve(table_.opening());
        done.assign(ready_.begin(), ready_.end());
    } catch (...) {
        // No memory: what is left over ends by its timers.
    }
    table_.clear([&](HalfOpen& e) {
        if (e.connection != nullptr && half.size() < half.capacity()) half.push_back(e.connection);
    });
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
    const std::lock_guard guard(lock_);
    return alive_ != 0;
}

void Listener::hold_port(InternalFd socket) noexcept {
    const std::lock_guard guard(lock_);
    if (alive_ != 0) {
        held_port_ = std::move(socket);
        set_reuse();
    }
}

void Listener::set_reuse() noexcept {
    if (!held_port_) return;
    const int on = alive_strict_ == 0;
    const ErrnoKept kept;
    os::setsockopt(held_port_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
}

void Listener::joined(bool reuse) noexcept {
    const std::lock_guard guard(lock_);
    alive_++;
    if (!reuse && alive_strict_++ == 0) set_reuse();
}

void Listener::left(bool reuse) noexcept {
    InternalFd done;  // closed without the lock
    const std::lock_guard guard(lock_);
    alive_--;
    if (!reuse && --alive_strict_ == 0) set_reuse();
    if (alive_ == 0) done = std::move(held_port_);
}

Listener::Counters Listener::counters() noexcept {
    const std::lock_guard guard(lock_);
    return counters_;
}

std::size_t Listener::half_open() noexcept {
    const std::lock_guard guard(lock_);
    return table_.waiting();
}

void Listener::leave_new_to_kernel(bool on) noexcept {
    const std::lock_guard guard(lock_);
    leaving_ = on;
}

// ---- limits; with the lock held ----

bool Listener::full() const noexcept { return ready_.size() + table_.opening() > backlog_; }

std::size_t Listener::most_half_open() const noexcept {
    return std::clamp<std::size_t>(backlog_, kMinHalfOpen, kMaxHalfOpen);
}

bool Listener::ThisSecond::one_more(Time now, std::int64_t limit) noexcept {
    if (now - began >= kSecond) {
        began = now;
        count = 0;
    }
    if (count >= limit) return false;
    count++;
    return true;
}

bool Listener::within_syn_rate(Time now) noexcept {
    const std::int64_t limit = config::get().tcp_max_syn_rate;
    return limit == 0 || syns_.one_more(now, limit);
}

// ---- segments ----

bool Listener::deliver(ring::RxBuffer* buffer) noexcept { return take(buffer, nullptr); }
bool Listener::deliver_again(ring::RxBuffer* buffer, std::uint32_t iss) noexcept {
    return take(buffer, &iss);
}

bool Listener::take(ring::RxBuffer* buffer, const std::uint32_t* iss) noexcept {
    const Segment segment(buffer);
    const bool syn = segment.is_syn();
    lock_.lock();
    if (closed_) {
        lock_.unlock();
        return false;
    }
    if (syn) counters_.syns++;
    if (HalfOpen* e = table_.find(segment.ends)) {
        if (Connection* c = e->connection) {
            c->ref();
            lock_.unlock();
            const bool taken = c->deliver(buffer);
            c->unref();
            return taken;
        }
        if (!e->opening) return on_half_open(segment, *e);
        lock_.unlock();  // another ring's thread is at it
        return false;
    }
    if (leaving_) {
        lock_.unlock();
        if (on_cookie(segment)) return true;
        if (!buffer->ring->give_to_kernel(*buffer)) return false;
        buffer->release();
        return true;
    }
    const bool overflow = syn && full();
    if (overflow) counters_.overflows++;
    const bool limited = syn && !overflow && !within_syn_rate(segment.now);
    if (limited) counters_.limited++;
    const bool nothing = !syn && !(segment.flags & TCP_ACK);
    if (nothing) counters_.bad++;
    lock_.unlock();
    if (!syn && buffer->ring->attr().coarse_steering) {
        switch (kernels_.has(*buffer, segment.now)) {
            case KernelConnections::Answer::no:
                break;
            case KernelConnections::Answer::too_many:
                return false;
            case KernelConnections::Answer::yes:
                if (!buffer->ring->give_to_kernel(*buffer)) return false;
                buffer->release();
                return true;
        }
    }
    if (overflow || limited || nothing || (segment.flags & TCP_RST)) return false;
    if (syn) return on_syn(segment, iss);
    return on_cookie(segment) || on_stray(segment);
}

// A SYN: of somebody new, or one that repeats that of a half-open connection.
bool Listener::on_syn(const Segment& segment, const std::uint32_t* iss) noexcept {
    lock_.lock();
    const Options options = options_;
    const bool look_up = looks_.one_more(segment.now, kLookUpsPerSecond);
    lock_.unlock();
    ReturnPath way;
    if (!find_way(segment, options, look_up, way)) return false;
    const lwip::Parameters parameters = parameters_of(options, way.mss, 0);
    Handshake handshake;
    handshake.ends = segment.ends;
    handshake.irs = segment.seq;
    handshake.said = read_syn_options(segment.options, options);
    handshake.scale = parameters.rcv_scale;
    handshake.sent_at = segment.now;

    bool cookie = false, answer = false, flooded = false;
    lock_.lock();
    if (HalfOpen* e = closed_ ? nullptr : table_.find(segment.ends)) {
        // The numbers of before, by a way that may be another one.
        if (!e->opening && e->handshake.irs == segment.seq) {
            e->way = way;
            e->handshake.repeated = true;
            handshake = e->handshake;
            table_.wait(*e, segment.now);
            answer = true;
        }
    } else if (!closed_) {
        flooded = table_.waiting() >= most_half_open();
        cookie = iss == nullptr && options.syncookies != 0 && (flooded || options.syncookies == 2);
        if (cookie) {
            if (segment.now - cookies_.sent_at > 2 * kCookieTime || cookies_.sent_at == kNoTime)
                cookies_.scale = handshake.scale;
            cookies_.sent_at = segment.now;
            handshake.scale = cookies_.scale;
            counters_.cookies_sent++;
            answer = true;
        } else if (flooded && iss == nullptr) {
            counters_.refused++;
        } else if (HalfOpen* made = table_.add(segment.ends)) {
            handshake.iss = iss != nullptr ? *iss : initial_sequence(segment.ends, segment.now);
            made->handshake = handshake;
            made->way = way;
            table_.wait(*made, segment.now);
            arm();
            answer = true;
        }
    }
    lock_.unlock();
    if (flooded)
        log::once(log::Level::warn, "port {} is flooded with SYNs: {}", ntohs(port_),
                  cookie ? "sending cookies" : "dropping them, since net.ipv4.tcp_syncookies is 0");
    if (!answer) return false;
    if (cookie) {
        if (!handshake.said.has_stamps) handshake.said.has_scale = handshake.said.sack = false;
        handshake.iss = make_cookie(segment.ends, segment.seq, handshake.said.mss, segment.now);
        note_cookie_sent(segment.now);
    }
    send_syn_ack(handshake, way, options, cookie, segment.buffer->ring);
    segment.buffer->release();
    return true;
}

// As the kernel's tcp_check_req(), but for RFC 5961: a RST counts where its number is right, a SYN is
// answered with an ACK.
bool Listener::on_half_open(const Segment& segment, HalfOpen& e) noexcept {
    const Handshake& h = e.handshake;
    const std::uint32_t next = h.irs + 1;
    Stamps stamps;
    const bool stamped = h.said.has_stamps && read_stamps(segment.options, stamps);
    const bool old = stamped && seq_before(stamps.value, h.said.stamp) && !(segment.flags & TCP_RST);
    const bool may_answer = e.answered_at == kNoTime || segment.now - e.answered_at >= kAnswerPeriod;
    if (segment.is_syn() && segment.seq == h.irs && !old) {
        if (may_answer) e.answered_at = segment.now;
        lock_.unlock();
        return may_answer && on_syn(segment, nullptr);
    }
    if ((segment.flags & TCP_ACK) && segment.ack != h.iss + 1) {
        // Perhaps it answers the cookie of an earlier SYN.
        lock_.unlock();
        return on_cookie(segment) || on_stray(segment);
    }
    const std::uint32_t window = parameters_of(options_, e.way.mss, 0).wnd;
    const bool outside = seq_before(segment.end, next) || seq_before(next + window, segment.seq);
    const bool wrong_reset = (segment.flags & TCP_RST) && segment.seq != next;
    if (old || outside || wrong_reset || (segment.flags & TCP_SYN)) {
        const bool answer = may_answer && (!(segment.flags & TCP_RST) || !outside);
        if (answer) e.answered_at = segment.now;
        const Handshake handshake = h;
        const ReturnPath way = e.way;
        const Options options = options_;
        lock_.unlock();
        if (answer) send_ack(handshake, way, options, segment.buffer->ring);
        return false;
    }
    if (segment.flags & TCP_RST) {
        table_.remove(e);
        lock_.unlock();
        return false;
    }
    if (!(segment.flags & TCP_ACK)) {
        lock_.unlock();
        return false;
    }
    if (full() || (segment.end == next && e.timeouts < defer_timeouts(options_.defer_accept))) {
        if (full()) counters_.overflows++;
        e.acked = true;
        lock_.unlock();
        return false;
    }
    if (stamped && !seq_before(next, segment.seq)) e.handshake.said.stamp = stamps.value;
    table_.open(e);
    const Handshake handshake = h;
    lock_.unlock();
    return open(segment, handshake, false);
}

// An ACK of nothing we know: perhaps the answer to a cookie.
bool Listener::on_cookie(const Segment& segment) noexcept {
    if ((segment.flags & (TCP_SYN | TCP_RST | TCP_ACK)) != TCP_ACK || !cookies_expected(segment.now))
        return false;
    const auto mss = read_cookie(segment.ends, segment.seq - 1, segment.ack - 1, segment.now);
    if (!mss) return false;
    Handshake h;
    h.ends = segment.ends;
    h.irs = segment.seq - 1;
    h.iss = segment.ack - 1;
    h.said.mss = *mss;
    h.repeated = true;  // nobody knows when it left
    Stamps stamps;
    lock_.lock();
    const Options options = options_;
    h.scale = cookies_.sent_at != kNoTime ? cookies_.scale : parameters_of(options, *mss, 0).rcv_scale;
    lock_.unlock();
    if (options.timestamps && read_stamps(segment.options, stamps)) {
        if (!read_cookie_stamp(stamps.echo - timestamp_offset(segment.ends), segment.now, h.said))
            return false;
        if ((h.said.sack && !options.sack) || (h.said.has_scale && !options.window_scaling)) return false;
        h.said.has_stamps = true;
        h.said.stamp = stamps.value;
    }
    if (!h.said.has_scale) h.scale = 0;
    // Its connection may be the kernel's by now.
    if (Connection::any_moved() &&
        kernels_.has(*segment.buffer, segment.now) != KernelConnections::Answer::no)
        return false;
    lock_.lock();
    HalfOpen* e = nullptr;
    if (full())
        counters_.overflows++;
    else if (!closed_ && (e = table_.find(segment.ends)) == nullptr)
        e = table_.add(segment.ends);
    if (e == nullptr || e->opening) {
        lock_.unlock();
        segment.buffer->release();  // dropped, as by the kernel: the peer tries again
        return true;
    }
    e->handshake = h;
    table_.open(*e);
    counters_.cookies_accepted++;
    lock_.unlock();
    if (!open(segment, h, true)) segment.buffer->release();
    return true;
}

bool Listener::open(const Segment& segment, const Handshake& handshake, bool cookie) noexcept {
    lock_.lock();
    Options options = options_;
    lock_.unlock();
    options.path.lane = segment.buffer->ring->lane();  // where its frames come in, they go out
    Path path;
    const int error = paths_.find(handshake.ends, options.path, path);
    Connection* c = nullptr;
    if ((error == 0 || error == -EAGAIN) && path.ring != nullptr)
        c = make(handshake, options, path, error == 0, *segment.buffer->ring);
    lock_.lock();
    HalfOpen* e = table_.find(handshake.ends);  // unless the listener was closed
    if (c != nullptr && e != nullptr) {
        e->connection = c;  // with the reference
        c->ref();
        lock_.unlock();
        (void)c->deliver(segment.buffer);
        c->unref();
        return true;
    }
    if (e != nullptr) {
        if (cookie) {
            table_.remove(*e);
        } else {
            e->acked = true;
            table_.close(*e, segment.now);
            arm();
        }
    }
    lock_.unlock();
    if (c != nullptr) {
        c->abandon_quietly();
        c->unref();
    }
    return false;
}

Connection* Listener::make(const Handshake& handshake, const Options& options, const Path& path,
                           bool resolved, ring::Ring& from) noexcept {
    lwip::Parameters parameters =
        parameters_of(options, announced_mss(path.mtu, options), timestamp_offset(handshake.ends));
    // As it was announced, whatever the program has set since then.
    parameters.rcv_scale = handshake.scale;
    parameters.wnd = std::min(parameters.wnd, 0xffffu << handshake.scale);
    lwip::SynEntry entry(handshake, parameters);
    lwip::Pcb* pcb = entry.made();
    if (pcb == nullptr) return nullptr;
    Connection* c = Connection::adopt(paths_, pcb, handshake, options, path, resolved, from, this);
    if (c == nullptr) pcb->abandon(false);
    return c;
}

// A segment of no connection: RST, unless the kernel has the connection.
bool Listener::on_stray(const Segment& segment) noexcept {
    if (!(segment.flags & TCP_ACK) || (segment.flags & TCP_RST)) return false;
    // The device leaves the kernel its connections, but this segment may have been in the queue when one was
    // moved.
    if (Connection::any_moved() && !segment.buffer->ring->attr().coarse_steering) {
        const auto kernels = kernels_.has(*segment.buffer, segment.now);
        if (kernels == KernelConnections::Answer::yes &&
            segment.buffer->ring->give_to_kernel(*segment.buffer)) {
            segment.buffer->release();
            return true;
        }
        if (kernels != KernelConnections::Answer::no) return false;
    }
    lock_.lock();
    const Options options = options_;
    counters_.resets_sent++;
    lock_.unlock();
    ReturnPath way;
    if (find_way(segment, options, false, way)) {
        std::uint8_t bytes[kMaxHandshakeBytes];
        send(segment.ends, way, options, bytes, write_reset(segment.ends, segment.ack, bytes),
             segment.buffer->ring);
    }
    segment.buffer->release();
    return true;
}

Listener::KernelConnections::Answer Listener::KernelConnections::has(const ring::RxBuffer& segment,
                                                                     Time now) noexcept {
    const net::Endpoints ends{{segment.dst_addr, segment.dst_port}, {segment.src_addr, segment.src_port}};
    const std::uint64_t hash =
        (std::uint64_t{ends.remote.address.v4()} << 32 | std::uint64_t{ends.remote.port} << 16) ^
        ends.local.address.v4();
    Entry& entry = known_[hash * 0x9e3779b97f4a7c15u >> 56];
    lock_.lock();
    const bool same = entry.ends.remote.address.v4() == ends.remote.address.v4() &&
                      entry.ends.remote.port == ends.remote.port &&
                      entry.ends.local.address.v4() == ends.local.address.v4() && entry.until != kNoTime;
    if (same && now < entry.until) {
        lock_.unlock();
        return Answer::yes;
    }
    const std::uint64_t second = now.time_since_epoch() / kSecond;
    if (second != entry.second) entry.second = second, entry.asked = 0;
    // One that was the kernel's a moment ago is asked about whatever comes from strangers.
    const bool ask = same || entry.asked < kAskPerSecond;
    if (ask && !same) entry.asked++;
    bool found = false;
    if (ask) {
        found = kernel_.has(ends, segment.ring->attr().ifindex);
        if (found)
            entry.ends = ends, entry.until = now + kRemember;
        else if (same)
            entry.until = kNoTime;
    }
    lock_.unlock();
    return !ask ? Answer::too_many : found ? Answer::yes : Answer::no;
}

// ---- answers ----

// By the route, if it may be looked up; else where the segment came from. So is a neighbour that is not
// resolved yet: it has just shown its link address. False: there is no way.
bool Listener::find_way(const Segment& segment, const Options& options, bool look_up,
                        ReturnPath& way) noexcept {
    const ring::RxBuffer& b = *segment.buffer;
    way.ring = b.ring;
    const auto& ethernet = *reinterpret_cast<const net::EthernetHeader*>(b.frame);
    std::copy_n(ethernet.dst, way.src_mac.size(), way.src_mac.begin());
    std::copy_n(ethernet.src, way.dst_mac.size(), way.dst_mac.begin());
    std::uint32_t mtu = b.ring->attr().mtu;
    if (look_up) {
        Path path;
        net::PathOptions from = options.path;
        from.lane = b.ring->lane();
        const int error = paths_.find(segment.ends, from, path);
        if (error != -EAGAIN && (error != 0 || path.ring == nullptr)) return false;
        if (path.mtu != 0) known_mtu_.store(mtu = path.mtu, std::memory_order_relaxed);
        if (error == 0) {
            way.ring = path.ring;
            way.src_mac = path.src_mac;
            way.dst_mac = path.dst_mac;
        }
    } else if (const std::uint32_t known = known_mtu_.load(std::memory_order_relaxed); known != 0) {
        mtu = std::min(mtu, known);
    }
    way.mss = announced_mss(mtu, options);
    return ((way.dst_mac[0] | way.src_mac[0]) & 1) == 0;  // no group is a sender
}

void Listener::send_syn_ack(const Handshake& h, const ReturnPath& way, const Options& options, bool cookie,
                            ring::Ring* asked) noexcept {
    const Time now = Clock::now();
    const std::uint32_t stamp =
        (cookie ? make_cookie_stamp(h.said, now) : milliseconds(now)) + timestamp_offset(h.ends);
    const auto window =
        static_cast<std::uint16_t>(std::min<std::uint32_t>(parameters_of(options, way.mss, 0).wnd, 0xffff));
    std::uint8_t bytes[kMaxHandshakeBytes];
    send(h.ends, way, options, bytes, write_syn_ack(h, way.mss, window, stamp, bytes), asked);
}

void Listener::send_ack(const Handshake& h, const ReturnPath& way, const Options& options,
                        ring::Ring* asked) noexcept {
    const std::uint32_t window = parameters_of(options, way.mss, 0).wnd >> (h.said.has_scale ? h.scale : 0);
    const std::uint32_t stamp = milliseconds(Clock::now()) + timestamp_offset(h.ends);
    std::uint8_t bytes[kMaxHandshakeBytes];
    send(h.ends, way, options, bytes,
         write_ack(h, static_cast<std::uint16_t>(std::min(window, 0xffffu)), stamp, bytes), asked);
}

void Listener::send(const net::Endpoints& ends, const ReturnPath& way, const Options& options,
                    const std::uint8_t* segment, std::size_t length, ring::Ring* asked) noexcept {
    Answer answer;
    answer.asked = asked;
    answer.by = way.ring;
    answer.length = kFrameHeaders + length;
    net::UdpTemplate t;
    t.src_mac = way.src_mac;
    t.dst_mac = way.dst_mac;
    t.src_addr = ends.local.address.v4();
    t.dst_addr = ends.remote.address.v4();
    t.tos = options.path.tos;
    t.ttl = options.path.ttl;
    t.dont_fragment = options.path.dont_fragment;
    net::build_ip_headers(t, IPPROTO_TCP, answer.bytes.data());
    std::memcpy(answer.bytes.data() + kFrameHeaders, segment, length);
    if (asked != nullptr) {
        lock_.lock();
        const bool room = answers_.count < answers_.list.size();
        bool first = true;
        for (std::size_t i = 0; i < answers_.count; i++) first &= answers_.list[i].asked != asked;
        if (room) answers_.list[answers_.count++] = answer;
        lock_.unlock();
        if (room && first) {
            ref();  // until batch_end()
            asked->at_batch_end(this);
        }
        if (room) return;
    }
    (void)answer.by->send_tcp(answer.bytes.data(), answer.length, nullptr, 0, 0);
}

bool Listener::take_answer(const ring::Ring& asked, Answer& answer) noexcept {
    const std::lock_guard guard(lock_);
    std::size_t i = 0;
    while (i < answers_.count && answers_.list[i].asked != &asked) i++;
    const bool found = i < answers_.count;
    if (found) {
        answer = answers_.list[i];
        answers_.list[i] = answers_.list[--answers_.count];
    }
    return found;
}

// The answers to a batch's segments share a kick.
void Listener::batch_end(ring::Ring& ring) noexcept {
    {
        ring::Ring::Gather gather(&ring);
        Answer answer;
        while (take_answer(ring, answer))
            (void)answer.by->send_tcp(answer.bytes.data(), answer.length, nullptr, 0, 0);
    }
    unref();
}

// ---- time ----

// With the lock held. Later is found out when it fires.
void Listener::arm() noexcept {
    const Time next = table_.next_due();
    if (next == kNoTime || (armed_for_ != kNoTime && armed_for_ <= next)) return;
    armed_for_ = next;
    Background::instance().wheel().arm(timer_, next);
}

void Listener::timer_fired(Timer& timer) noexcept {
    Listener* l = static_cast<OwnTimer&>(timer).listener;
    // The last reference may have gone meanwhile; its holder waits for this callback in cancel().
    std::uint32_t n = l->refs_.load(std::memory_order_relaxed);
    do {
        if (n == 0) return;
    } while (!l->refs_.compare_exchange_weak(n, n + 1, std::memory_order_acquire, std::memory_order_relaxed));
    l->on_timer();
    l->unref();
}

// How often a SYN-ACK is repeated. As in the kernel's reqsk_timer_handler(), less often when the table is
// more than half full, mostly of entries that have been repeated: the peers of a flood do not answer.
unsigned Listener::retries_now() const noexcept {
    unsigned retries = options_.synack_retries;
    const std::size_t waiting = table_.waiting();
    if (2 * waiting <= most_half_open()) return retries;
    for (std::size_t young = 2 * table_.young(); retries > 2 && waiting >= young; young *= 2) retries--;
    return retries;
}

void Listener::on_timer() noexcept {
    struct Again {
        Handshake handshake;
        ReturnPath way;
    } again[kAgainAtOnce];
    std::size_t count;
    lock_.lock();
    armed_for_ = kNoTime;
    lock_.unlock();
    do {
        const Time now = Clock::now();
        count = 0;
        lock_.lock();
        const Options options = options_;
        const unsigned defer = defer_timeouts(options.defer_accept);
        while (count < kAgainAtOnce) {
            HalfOpen* e = table_.due(now);
            if (e == nullptr) break;
            // While data is waited for, nothing is repeated until the last chance.
            const bool deferred = defer != 0 && e->acked;
            if (e->timeouts >= retries_now() && (!deferred || e->timeouts >= defer)) {
                table_.remove(*e);
                continue;
            }
            const bool repeat = !deferred || e->timeouts + 1u >= defer;
            if (e->timeouts != 255) e->timeouts++;
            e->handshake.repeated |= repeat;
            table_.wait(*e, now);
            if (repeat) again[count++] = {e->handshake, e->way};
        }
        if (count < kAgainAtOnce) arm();
        lock_.unlock();
        for (std::size_t i = 0; i < count; i++)
            send_syn_ack(again[i].handshake, again[i].way, options, false, nullptr);
    } while (count == kAgainAtOnce);
}

// ---- from connections ----

bool Listener::completed(Connection& connection) noexcept {
    lock_.lock();
    HalfOpen* e = table_.find(connection.endpoints());
    if (closed_ || e == nullptr || e->connection != &connection) {
        lock_.unlock();
        return false;
    }
    try {
        ready_.push_back(&connection);  // the table's reference
    } catch (...) {
        lock_.unlock();
        return false;
    }
    table_.remove(*e);
    counters_.accepted++;
    pending_.store(static_cast<unsigned>(ready_.size()), std::memory_order_release);
    arrivals_.fetch_add(1, std::memory_order_release);
    if (owner_ != nullptr) owner_->changed();
    lock_.unlock();
    return true;
}

bool Listener::hold_up() noexcept {
    const std::lock_guard guard(lock_);
    const bool full_now = ready_.size() > backlog_;
    if (full_now) counters_.overflows++;
    return full_now;
}

void Listener::lost(Connection& connection) noexcept {
    lock_.lock();
    HalfOpen* e = table_.find(connection.endpoints());
    const bool ours = e != nullptr && e->connection == &connection;
    if (ours) table_.remove(*e);
    lock_.unlock();
    if (ours) connection.unref_later();
}

}  // namespace vma::tcp
