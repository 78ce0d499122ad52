// SPDX-License-Identifier: BSD-2-Clause
// An input as a play of two: an attacker who follows the protocol and lies (tests/support/attacker/model.h),
// and a program that makes socket calls. The input first chooses a state that is hard to reach by chance and
// is brought about in a few honest segments; then operations of a byte with their arguments.
//
// Beside memory errors and assertions these are findings:
//   - the program reads a byte that nobody sent there, or one twice, or beyond what was ever sent;
//   - a segment carries a byte that the program did not write there, or beyond what the peer ever allowed;
//   - an acknowledgement of what was never sent, or one that goes back;
//   - more unread data than the window, more memory than the buffers' sizes explain, or anything left at the
//   end.
#pragma once

#include "tests/fuzz/tcp_world.h"

namespace fuzz {

inline constexpr std::uint16_t kListening = 90, kLocal = 1000, kRemote = 2000;
inline constexpr std::uint32_t kFirst = 0xfffff000u;  // the attacker's first number: it wraps soon

struct Actor {
    Model m;
    Connection* c = nullptr;  // null: not accepted yet, or closed
    bool passive = false;     // the library's side is a listener
    std::uint64_t delivered = 0, written = 0;
    bool acknowledged = false;  // last_ack is one
    std::uint32_t last_ack = 0;
    std::uint32_t right_edge = 0;  // the most that the attacker ever allowed
    std::uint32_t sent_end = 0;    // of our side's numbers, a FIN included
    std::uint8_t shift = 0;
    bool frozen = false, gone = false;
    std::optional<std::uint32_t> begun_again;  // what acknowledges the attacker's last SYN but the first
};

class Run {
  public:
    Run(Input& input, bool calls) : in(input), with_calls(calls) { actors.reserve(4); }

    void run() {
        host.begin();
        const auto how = in.take<std::uint8_t>(), opening = in.take<std::uint8_t>(),
                   more = in.take<std::uint8_t>();
        options.sack = !(how & 1);
        options.timestamps = !(how & 2);
        options.window_scaling = !(how & 4);
        window = options.receive_window = how & 8 ? 4096 : how & 16 ? 1 << 20 : 60'000;
        options.nodelay = how & 32;
        options.user_timeout = vma::tcp::Msec(how & 64 ? 3000 : 0);
        options.congestion =
            how & 128 ? vma::tcp::CongestionAlgorithm::newreno : vma::tcp::CongestionAlgorithm::cubic;
        listener = Listener::create(host, htons(kListening), options, more & 1 ? 300 : 4);
        FUZZ_CHECK(host.ring().attach(rule, listener, vma::ring::Share::latest).has_value());
        open(opening % kOpenings, opening / kOpenings, more);
        for (int i = 0; i < 200 && !in.rest().empty(); i++) {
            operation(in.take<std::uint8_t>());
            if (i % 16 == 15) check_limits();
        }
        finish();
    }

  private:
    static constexpr unsigned kOpenings = 18;
    const vma::verbs::FlowSpec rule{IPPROTO_TCP, Host::instance().address, htons(kListening), 0, 0};

    // ---- the attacker's side ----
    void put(Actor& a, Segment s) {
        Model& m = a.m;
        // Where the stream begins is what a SYN says; the content is numbered from there.
        if (s.flags & kSyn) {
            if (a.passive || a.c == nullptr || a.c->state() == State::syn_sent) {
                s.seq = m.first;
                s.payload = m.content(s.seq + 1, s.payload.size());
            }
            if (s.options.find('\x03') != std::string::npos) a.shift = 14;
        }
        if (s.flags & kSyn && m.heard_syn) a.begun_again = s.seq + 1;
        m.sent(s);
        const std::uint32_t end = s.end();
        if (before(a.sent_end, end) && end - a.sent_end < (8u << 20)) a.sent_end = end;
        if (!m.heard_syn) {  // counted from where its stream begins: see hear()
            a.right_edge = std::max(a.right_edge, std::uint32_t{s.window});
        } else if (const std::uint32_t from = s.flags & kAck ? s.ack : m.rcv;
                   from - m.their_first <= a.written + 2) {
            const std::uint32_t edge = from + (std::uint32_t{s.window} << (s.flags & kSyn ? 0 : a.shift));
            if (before(a.right_edge, edge)) a.right_edge = edge;
        }
        host.put(s);
    }
    void say(Actor& a, std::uint8_t flags, std::size_t length = 0) {
        const Segment s = a.m.segment(flags, length);
        put(a, s);
        a.m.snd = s.end();
        host.poll();
    }

    void hear() {
        host.poll();
        for (const Frame& frame : host.sent()) {
            const auto parsed = parse(frame);
            FUZZ_CHECK(parsed.has_value());
            const Segment& s = *parsed;
            for (std::size_t i = actors.size(); i-- > 0;) {
                Actor& a = actors[i];
                if (s.from_port != a.m.victim_port || s.to_port != a.m.my_port) continue;
                hear(a, s);
                break;
            }
        }
    }
    static bool over(const Actor& a) {
        return a.c == nullptr || a.c->state() == State::close || a.c->state() == State::time_wait;
    }
    // Once a connection is over, a SYN begins another, which acknowledges numbers of its own. Its first
    // acknowledgement is of the SYN, unless the device refused the answer to that.
    bool acknowledges_anew(const Actor& a, std::uint32_t ack) const {
        if (!a.begun_again || !has_refused) return a.begun_again == ack;
        return !before(ack, *a.begun_again) && !before(a.sent_end, ack);
    }
    void hear(Actor& a, const Segment& s) {
        Model& m = a.m;
        if (s.flags & kSyn && !m.heard_syn) a.right_edge += s.end();
        m.hear(s);
        if (s.flags & kRst) {
            if (a.passive) a.acknowledged = false;  // what follows is a new connection's, at the listener
            return;
        }
        if (s.flags & kAck) {
            FUZZ_CHECK(!before(a.sent_end, s.ack));
            const bool anew = a.passive && over(a) && acknowledges_anew(a, s.ack);
            if (a.acknowledged && !anew && !(s.flags & kSyn)) FUZZ_CHECK(!before(s.ack, a.last_ack));
            a.last_ack = s.ack;
            a.acknowledged = true;
        }
        for (const auto& [left, right] : said(s).sacks) {
            FUZZ_CHECK(before(left, right) && !before(a.sent_end, right));
        }
        if (s.flags & kSyn) return;
        if (!s.payload.empty()) {
            const std::uint64_t at = static_cast<std::uint32_t>(s.seq - m.their_first - 1);
            FUZZ_CHECK(at + s.payload.size() <= a.written);
            for (std::size_t i = 0; i < s.payload.size(); i++)
                FUZZ_CHECK(s.payload[i] == stream_byte(at + i, kTheirSeed));
            // One byte more is a probe of the window.
            FUZZ_CHECK(!before(a.right_edge + 1, s.seq + static_cast<std::uint32_t>(s.payload.size())));
        }
    }

    // ---- the program's side ----
    void read(Actor& a, std::size_t most, unsigned flags = 0, std::size_t skip = 0) {
        if (a.c == nullptr) return;
        most = std::min(most, buffer.size());
        // In two pieces, so that the walk over iovecs is exercised.
        const std::size_t half = most / 3;
        const iovec iov[2] = {{buffer.data(), half}, {buffer.data() + half, most - half}};
        const ssize_t n = a.c->receive(iov, 2, most, flags, skip);
        if (n <= 0) return;
        FUZZ_CHECK(static_cast<std::size_t>(n) <= most);
        if (!(flags & Connection::kDiscard))
            for (std::size_t i = 0; i < static_cast<std::size_t>(n); i++)
                FUZZ_CHECK(buffer[i] ==
                           stream_byte(static_cast<std::uint32_t>(a.delivered + skip + i), kOurSeed));
        if (!(flags & Connection::kPeek)) a.delivered += static_cast<std::uint64_t>(n);
        FUZZ_CHECK(a.delivered <= static_cast<std::uint32_t>(a.m.highest - a.m.first - 1));
    }
    void write(Actor& a, std::size_t n, unsigned flags = 0) {
        if (a.c == nullptr || n == 0) return;
        n = std::min(n, buffer.size());
        for (std::size_t i = 0; i < n; i++) buffer[i] = stream_byte(a.written + i, kTheirSeed);
        const std::size_t half = n / 2;
        const iovec iov[3] = {{buffer.data(), half}, {nullptr, 0}, {buffer.data() + half, n - half}};
        // What is sent inside the call is heard later.
        const ssize_t done = a.c->send(iov, 3, n, flags);
        if (done > 0) a.written += static_cast<std::uint64_t>(done);
    }
    void close(Actor& a, bool reset) {
        if (a.c == nullptr) return;
        Connection* c = std::exchange(a.c, nullptr);
        if (std::exchange(a.frozen, false)) c->finish_freeze(false);
        c->close(reset);
        c->unref();
    }
    void accept() {
        Connection* c = listener->accept();
        if (c == nullptr) return;
        for (std::size_t i = actors.size(); i-- > 0;) {
            Actor& a = actors[i];
            if (a.passive && a.c == nullptr && !a.gone && c->endpoints().remote.port == htons(a.m.my_port)) {
                a.c = c;
                a.gone = true;  // accepted once
                return;
            }
        }
        c->close(true);
        c->unref();
    }

    // ---- openings ----
    Actor& add(bool passive, std::uint16_t port, std::uint32_t first) {
        actors.push_back(make(passive, port, first));
        return actors.back();
    }
    Actor make(bool passive, std::uint16_t port, std::uint32_t first) const {
        Actor a;
        a.passive = passive;
        a.m.me = host.attackers;
        a.m.victim = host.address;
        a.m.my_port = port;
        a.m.victim_port = passive ? kListening : kLocal;
        a.m.first = a.m.snd = first;
        a.m.highest = a.m.acked = a.sent_end = first + 1;
        return a;
    }
    std::string syn_options(std::uint8_t more, const Model& m) const {
        return (more & 2   ? option::mss(1460)
                : more & 4 ? option::mss(600)
                           : "") +
               (more & 8 ? option::sack_allowed() : "") + (more & 16 ? option::scale(more >> 5) : "") +
               (more & 128 ? option::stamps(m.stamp, m.echo) : "");
    }
    void established(bool passive, std::uint8_t more) {
        Actor& a = actors.front();
        const bool scaled = (more & 16) && options.window_scaling;
        a.m.scaling = scaled;
        if (passive) {
            Segment s = a.m.segment(kSyn);
            s.options = syn_options(more, a.m);
            put(a, s);
            a.m.snd++;
            hear();
            if (!a.m.heard_syn) return;
            a.shift = scaled ? more >> 5 : 0;
            a.m.stamps = (more & 128) && options.timestamps;
            say(a, kAck);
            accept();
        } else {
            Segment s = a.m.segment(kSyn | kAck);
            s.options = syn_options(more, a.m);
            put(a, s);
            a.shift = scaled ? more >> 5 : 0;
            a.m.snd++;
            a.m.stamps = (more & 128) && options.timestamps;
            hear();
        }
        hear();
    }
    void open(unsigned state, unsigned variant, std::uint8_t more) {
        const bool passive = state == 14 || state == 15 || variant & 1;
        Actor& a = add(passive, kRemote, kFirst);
        if (!passive) {
            a.c = Connection::create(host, {{host.address, htons(kLocal)}, {host.attackers, htons(kRemote)}},
                                     options);
            FUZZ_CHECK(a.c != nullptr && a.c->connect() == 0);
            hear();
            FUZZ_CHECK(a.m.heard_syn);
        }
        if (state == 0 && !passive) return;
        if (state == 15) {
            Segment s = a.m.segment(kSyn);
            s.options = syn_options(more, a.m);
            put(a, s);
            a.m.snd++;
            hear();
            return;
        }
        established(passive, more);
        if (a.c == nullptr) return;
        switch (state) {
            case 2:
                write(a, 3000);
                hear();
                say(a, kAck | kPsh, 1000);
                break;
            case 3: {  // recovery: all but the first arrived
                write(a, 20'000);
                hear();
                for (int i = 0; i < 4; i++) {
                    Segment s = a.m.segment(kAck);
                    s.ack = a.m.their_first + 1;
                    if (more & 8)
                        s.options +=
                            option::sack({{s.ack + 1448, s.ack + 1448 * (3 + static_cast<unsigned>(i))}});
                    put(a, s);
                    host.poll();
                }
                break;
            }
            case 4:  // after a timeout
                write(a, 8000);
                host.pass(2 * kSecond);
                hear();
                break;
            case 5:  // a closed window
                a.m.window = 0;
                say(a, kAck);
                write(a, 5000);
                host.pass(kSecond);
                break;
            case 6:  // our window is full
                for (int i = 0; i < 50 && a.c->readable() + 1400 <= window; i++) say(a, kAck, 1400);
                break;
            case 7:  // holes
                for (unsigned i = 0; i < 12; i++) {
                    Segment s = a.m.segment(kAck, 0);
                    s.seq += 100 + 200 * (i % 2 != 0 ? i : 24 - i);
                    s.payload = a.m.content(s.seq, 50 + 20 * i);
                    put(a, s);
                }
                host.poll();
                break;
            case 8:
            case 9:
            case 10:
            case 11: {
                write(a, 100);
                a.c->shutdown(SHUT_WR);
                if (state == 10) say(a, kFin | kAck);  // CLOSING: before it has seen ours
                hear();
                if (state == 9 || state == 11) say(a, kAck);
                if (state == 11) say(a, kFin | kAck);
                break;
            }
            case 12:
            case 13:
                say(a, kFin | kAck, 10);
                if (state == 13) a.c->shutdown(SHUT_WR);
                break;
            case 16: {  // frozen, and perhaps moved
                write(a, 3000);
                say(a, kAck, 700);
                freeze(a);
                break;
            }
            case 17:  // closed by the program: nobody reads any more
                write(a, 3000);
                hear();
                close(a, false);
                break;
            default:
                break;
        }
        hear();
    }

    void freeze(Actor& a) {
        if (a.c == nullptr || a.frozen) return;
        KernelState state;
        if (a.c->freeze(state) != 0) return;
        a.frozen = true;
        // What would be handed over is the streams' next bytes.
        std::uint64_t at = a.delivered;
        for (const iovec& piece : state.receive_queue)
            for (std::size_t i = 0; i < piece.iov_len; i++)
                FUZZ_CHECK(static_cast<const char*>(piece.iov_base)[i] ==
                           stream_byte(static_cast<std::uint32_t>(at++), kOurSeed));
        if (state.over) return;  // the numbers of what has ended are any
        FUZZ_CHECK(a.m.first + 1 + static_cast<std::uint32_t>(at) == state.rcv_nxt);
        at = static_cast<std::uint32_t>(state.snd_una - a.m.their_first - 1);
        for (const iovec& piece : state.send_queue)
            for (std::size_t i = 0; i < piece.iov_len; i++)
                FUZZ_CHECK(static_cast<const char*>(piece.iov_base)[i] == stream_byte(at++, kTheirSeed));
        FUZZ_CHECK(at == a.written);
        FUZZ_CHECK(!before(state.snd_nxt, state.snd_una));
    }
    void thaw(Actor& a, bool moved) {
        if (!a.frozen) return;
        a.frozen = false;
        a.c->finish_freeze(moved);
        if (!moved) return;
        Connection* c = std::exchange(a.c, nullptr);
        c->unref();
    }

    // ---- operations ----
    Actor& chosen(std::uint8_t op) { return actors[op & 128 && actors.size() > 1 ? actors.size() - 1 : 0]; }

    void operation(std::uint8_t op) {
        Actor& a = chosen(op);
        Model& m = a.m;
        const unsigned what = op % 16;
        if (what > 5) host.poll();
        switch (what) {
            case 0:
            case 1:
            case 2: {
                const Segment s = m.crafted(in);
                put(a, s);
                if (op & 32) host.poll();  // else together with what follows
                if (op & 64 && s.seq == m.snd) m.snd = s.end();
                break;
            }
            case 3: {  // in order
                const Segment s = m.segment(kAck | kPsh, in.take<std::uint8_t>() * (op & 16 ? 5u : 1u));
                put(a, s);
                if (op & 32) m.stamp++;
                m.snd = s.end();
                break;
            }
            case 4: {  // from the edges
                Segment s = m.segment(in.take<std::uint8_t>());
                const auto where = in.take<std::uint8_t>();
                const auto seqs = m.sequence_edges(), acks = m.ack_edges();
                s.seq = seqs[where % seqs.size()];
                s.ack = acks[where / seqs.size() % acks.size()];
                if (op & 16) s.window = op & 32 ? 0 : 1;
                s.payload = m.content(s.seq + ((s.flags & kSyn) != 0), op & 64 ? 1000 : 0);
                put(a, s);
                break;
            }
            case 5: {  // a lie about what was received
                const auto lies = m.lying_blocks();
                const auto which = in.take<std::uint8_t>();
                Segment s = m.segment(kAck);
                if (op & 16) s.ack = m.their_first + 1;
                s.options = (s.options + option::sack(lies[which % lies.size()])).substr(0, 40);
                put(a, s);
                break;
            }
            case 6:
                hear();
                say(a, kAck);  // everything is acknowledged
                if (op & 16) m.window = in.take<std::uint8_t>() * 257u;
                break;
            case 7:
                write(a, in.take<std::uint16_t>() % 20000, with_calls && op & 16 ? Connection::kMore : 0);
                break;
            case 8:
                read(a, in.take<std::uint8_t>() * 64u + 1,
                     !with_calls ? 0u
                     : op & 16   ? unsigned{Connection::kPeek}
                     : op & 32   ? unsigned{Connection::kDiscard}
                                 : 0u,
                     with_calls && op & 16 && op & 64 ? in.take<std::uint8_t>() : 0u);
                break;
            case 9: {
                // With a full device each millisecond is a new attempt, and seconds of that take their time.
                const std::uint64_t ms = refusing ? 1u + in.take<std::uint8_t>() % 16
                                                  : (1u + in.take<std::uint8_t>()) * (op & 16 ? 100u : 1u);
                m.stamp += static_cast<std::uint32_t>(ms);
                host.pass(ms * kMs);
                break;
            }
            case 10:
                listen(op);
                break;
            case 11: {  // the connection's past comes again
                Segment s = m.segment(kAck, 0);
                s.seq = m.first + 1 + in.take<std::uint16_t>() % (m.highest - m.first);
                s.payload = m.content(
                    s.seq, std::min<std::size_t>(in.take<std::uint16_t>() % 1400, m.highest - s.seq));
                put(a, s);
                break;
            }
            default:
                if (with_calls)
                    call(a, op, what);
                else
                    hear();
        }
    }

    // The listener and those who knock.
    void listen(std::uint8_t op) {
        const auto arg = in.take<std::uint8_t>();
        if ((op & 0x70) == 0 && actors.size() < 4) {  // somebody new
            Actor& a = add(true, static_cast<std::uint16_t>(3000 + actors.size()), kFirst + arg);
            Segment s = a.m.segment(kSyn);
            a.m.scaling = arg & 16 && options.window_scaling;
            s.options = syn_options(arg, a.m);
            put(a, s);
            a.shift = a.m.scaling ? arg >> 5 : 0;
            a.m.snd++;
            hear();
            a.m.stamps = arg & 128 && options.timestamps;
        } else if (op & 16) {
            accept();
        } else if (op & 32) {  // many who never answer
            for (unsigned i = 0; i < arg; i++) {
                Segment s;
                s.from = htonl(0xc6120a00u + i);
                s.to = host.address;
                s.from_port = static_cast<std::uint16_t>(4000 + (op & 128));
                s.to_port = kListening;
                s.seq = i;
                s.flags = kSyn;
                host.put(s);
            }
            if (op & 64) host.poll();
        } else if (Actor& old = actors.front();
                   old.passive && old.c != nullptr && old.c->state() == State::time_wait) {
            // The same four numbers anew. Of the old connection nobody says anything any more.
            Actor a = make(true, kRemote, old.sent_end + arg);
            close(old, false);
            hear();
            old = std::move(a);
            put(old, old.m.segment(kSyn));
            old.m.snd++;
            hear();
        }
    }

    void call(Actor& a, std::uint8_t op, unsigned what) {
        Connection* c = a.c;
        const auto arg = in.take<std::uint8_t>();
        switch (what) {
            case 12:
                if (op & 16) {
                    host.refuse_sends(refusing = op & 32);
                    has_refused |= refusing;
                } else if (op & 32) {
                    host.error = op & 64 ? arg % 3 == 0 ? EAGAIN : EHOSTUNREACH : 0;
                    host.changed();
                } else if (op & 64) {
                    host.mtu = 600 + arg * 3u;
                    host.changed();
                } else if (c != nullptr) {
                    vma::ring::IcmpError error{arg & 1   ? EMSGSIZE
                                               : arg & 2 ? EHOSTUNREACH
                                                         : ECONNREFUSED,
                                               in.take<std::uint16_t>(), 0};
                    error.seq = a.m.ack_edges()[arg / 4 % a.m.ack_edges().size()];
                    c->icmp_error(host.ring(), error);
                }
                break;
            case 13:
                if (c == nullptr) break;
                c->change([&](vma::tcp::Options& o) {
                    switch (arg % 16) {
                        case 0:
                            o.cork = op & 16;
                            break;
                        case 1:
                            o.nodelay = op & 16;
                            break;
                        case 2:
                            o.keepalive = op & 16, o.keep_idle = o.keep_interval = std::chrono::seconds(1),
                            o.keep_count = 2;
                            break;
                        case 3:
                            o.user_timeout = vma::tcp::Msec(arg * 100u);
                            break;
                        case 4:
                            o.receive_window = 1024u << (op >> 4 & 7);
                            break;
                        case 5:
                            o.window_clamp = op & 16 ? 2000 : 0;
                            break;
                        case 6:
                            o.maxseg = op & 16 ? 88u + (op >> 5) * 100u : 0;
                            break;
                        case 7:
                            o.congestion = static_cast<vma::tcp::CongestionAlgorithm>(op / 16 % 3);
                            break;
                        case 8:
                            o.linger2 = std::chrono::seconds(op & 16 ? -1 : 1);
                            break;
                        case 9:
                            o.delayed_ack = vma::tcp::Msec(op & 16 ? 0 : 40);
                            break;
                        case 10:
                            o.send_buffer = op & 16 ? 5000 : 0;
                            break;
                        case 11:
                            o.notsent_lowat = op & 16 ? 100 : 0xffffffff;
                            break;
                        case 12:
                            o.receive_lowat = op & 16 ? 3000 : 1;
                            break;
                        case 13:
                            o.reuse_address = op & 16;
                            break;
                        case 14:
                            o.retries2 = 1, o.syn_retries = 1;
                            break;
                        default:
                            o.quickack = op & 16;
                            break;
                    }
                });
                if (arg % 16 == 4 && op & 16) window = std::max(window, 1024u << (op >> 4 & 7));
                window = std::max(window, options_window(c));
                break;
            case 14:
                if (c == nullptr) break;
                switch (arg % 8) {
                    case 0:
                    case 1:
                    case 2:
                        c->shutdown(arg % 8);
                        break;
                    case 3:
                        close(a, op & 16);
                        break;
                    case 4:
                        freeze(a);
                        break;
                    case 5:
                        thaw(a, op & 16);
                        break;
                    case 6:
                        c->path_mtu(arg * 16u);
                        break;
                    default:
                        if (op & 16)
                            c->lose_path(ENETDOWN);
                        else
                            c->keep_urgent();
                }
                break;
            default: {
                if (c == nullptr) {
                    if (op & 16) listener->set_backlog(arg);
                    break;
                }
                vma::tcp::Info info;
                Connection::Sample sample;
                switch (arg % 8) {
                    case 0:
                        c->info(info);
                        break;
                    case 1:
                        (void)c->sample(sample);
                        break;
                    case 2:
                        c->quick_ack(op & 16);
                        break;
                    case 3:
                        c->nodelay(op & 16);
                        break;
                    case 4:
                        c->push();
                        break;
                    case 5:
                        (void)c->events_asked();
                        break;
                    case 6:
                        (void)c->take_error();
                        break;
                    default:
                        (void)c->drained(), (void)c->edges(EPOLLIN | EPOLLOUT), (void)c->send_space();
                }
                if (op & 16) write(a, 1 + arg % 100, Connection::kQuiet);
            }
        }
    }
    static std::uint32_t options_window(Connection* c) { return c->options().receive_window; }

    void check_limits() {
        host.poll();
        std::size_t queued = 0;
        for (const Actor& a : actors) {
            if (a.c == nullptr) continue;
            FUZZ_CHECK(a.c->readable() <= window + 70'000u);
            queued += a.c->unacked_bytes();
        }
        // Twice the buffers, and what the tables of half-open connections and control segments take.
        FUZZ_CHECK(Host::memory() < 4 * queued + 4 * actors.size() * std::size_t{window} + (8u << 20));
    }

    void finish() {
        host.refuse_sends(false);
        host.error = 0;
        host.changed();
        for (Actor& a : actors) {
            if (a.frozen) thaw(a, false);
            read(a, 1 << 16);
        }
        hear();
        for (Actor& a : actors) close(a, true);
        listener_gone();
        host.end();
    }
    void listener_gone() {
        host.ring().detach(rule, listener);
        listener->close();
        listener->unref();
    }

    Input& in;
    const bool with_calls;
    Host& host = Host::instance();
    vma::tcp::Options options;
    Listener* listener = nullptr;
    std::vector<Actor> actors;
    static inline std::vector<char> buffer = std::vector<char>(1 << 17);
    std::uint32_t window = 0;
    bool refusing = false, has_refused = false;
};

}  // namespace fuzz
