// SPDX-License-Identifier: BSD-2-Clause
// A hostile TCP on a packet socket, and an honest client to run beside it.
//
//   tcp_attacker ASSAULT INTERFACE VICTIM PORT SEED COUNT
//   tcp_attacker honest VICTIM PORT CONNECTIONS BYTES
//
// VICTIM is the address of a tcp_victim that echoes on PORT. The attacker has the addresses from .50 to .250
// of the victim's /24 and a MAC address of its own; it answers who asks for them. It follows each connection
// (tests/support/attacker/model.h), so it gets into its deep states, and lies from there. What comes back as
// an echo must be what it sent: a wrong byte is a fault of the victim's, and ends the program with 1. It
// prints how far it got; it does not print times.
//
// The honest client uses the kernel. It wants each of its bytes back.
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <memory>

#include "tests/support/attacker/model.h"

using namespace attacker;

namespace {

[[noreturn]] void fault(const std::string& what) {
    printf("fault: %s\n", what.c_str());
    fflush(stdout);
    _exit(1);
}

std::uint64_t now_ms() {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<std::uint64_t>(t.tv_sec) * 1000 + static_cast<std::uint64_t>(t.tv_nsec) / 1'000'000;
}

// One connection of ours with the victim.
struct Peer {
    Model m;
    std::uint64_t heard = 0, resets = 0, echoed = 0;
    bool reset = false, their_fin = false;
    bool checks = true;  // is an echo of our content to be expected?

    void hear(const Segment& s) {
        heard++;
        // After a reset a SYN of ours began another connection, whose content is numbered from elsewhere.
        if ((s.flags & kSyn) && m.heard_syn && s.seq != m.their_first) checks = false;
        m.hear(s);
        if (s.flags & kRst) reset = true, resets++;
        if (s.flags & kFin) their_fin = true;
        if (s.payload.empty() || !checks) return;
        const std::uint32_t at = s.seq - m.their_first - 1;
        if (at + s.payload.size() > m.highest - m.first - 1) fault("an echo of what was never sent");
        for (std::size_t i = 0; i < s.payload.size(); i++)
            if (s.payload[i] != stream_byte(at + i, kOurSeed)) fault("an echo of something else");
        echoed += s.payload.size();
    }
};

class Wire {
  public:
    Wire(const char* interface, const char* victim_address, std::uint16_t port)
        : victim(inet_addr(victim_address)), port(port) {
        fd_ = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, htons(ETH_P_ALL));
        if (fd_ < 0) fault("no packet socket");
        sockaddr_ll address{};
        address.sll_family = AF_PACKET;
        address.sll_protocol = htons(ETH_P_ALL);
        address.sll_ifindex = static_cast<int>(if_nametoindex(interface));
        const int one = 1, room = 8 << 20;
        setsockopt(fd_, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one);
        setsockopt(fd_, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
        if (bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
            fault("cannot bind to the interface");
        find_victim();
    }
    ~Wire() { close(fd_); }

    // The n-th address of ours.
    in_addr_t address(unsigned n = 0) const { return htonl((ntohl(victim) & 0xffffff00u) + 50 + n % 200); }

    void put(const Frame& frame) {
        for (int tries = 0; send(fd_, frame.data(), frame.size(), 0) < 0; tries++) {
            if ((errno != ENOBUFS && errno != EAGAIN && errno != EINTR) || tries > 1000)
                fault("the interface is gone");
            pollfd p{fd_, POLLOUT, 0};
            ::poll(&p, 1, 1);
        }
        frames_++;
        if (frames_ % 32 == 0) listen(0);  // the victim's answers shall not fill the socket
    }
    void put(Peer& p, const Segment& s) {
        p.m.sent(s);
        put(build(s, kMine, theirs));
    }
    void say(Peer& p, std::uint8_t flags, std::size_t length = 0) {
        const Segment s = p.m.segment(flags, length);
        put(p, s);
        p.m.snd = s.end();
    }
    void icmp(const Frame& frame) { put(frame); }

    // Hears what is there; waits up to `ms` for something.
    void listen(int ms) {
        std::uint8_t bytes[65536];
        for (int waited = 0;;) {
            const ssize_t n = recv(fd_, bytes, sizeof bytes, 0);
            if (n <= 0) {
                if (ms == 0 || waited++ != 0) return;
                pollfd p{fd_, POLLIN, 0};
                ::poll(&p, 1, ms);
                continue;
            }
            waited = 1;
            const std::span<const std::uint8_t> frame(bytes, static_cast<std::size_t>(n));
            if (frame.size() >= 42 && get16(&frame[12]) == 0x0806) answer_arp(frame);
            const auto s = parse(frame);
            if (!s || s->from != victim) continue;
            heard_++;
            const auto found = peers_.find({s->to, s->to_port, s->from_port});
            if (found != peers_.end())
                found->second->hear(*s);
            else if (on_stranger)
                on_stranger(*s);
        }
    }
    template <class Done>
    bool until(Done&& done, int ms = 2000) {
        const std::uint64_t end = now_ms() + static_cast<std::uint64_t>(ms);
        while (!done()) {
            if (now_ms() >= end) return false;
            listen(5);
        }
        return true;
    }

    void know(Peer& p) { peers_[{p.m.me, p.m.my_port, p.m.victim_port}] = &p; }
    void forget(Peer& p) { peers_.erase({p.m.me, p.m.my_port, p.m.victim_port}); }

    // A connection of ours that has sent its SYN and heard the answer. False: none came.
    bool begin(Peer& p, const std::string& options, unsigned who = 0) {
        Model& m = p.m;
        m.me = address(who);
        m.victim = victim;
        m.my_port = next_port_++;
        if (next_port_ < 10000) next_port_ = 10000;
        m.victim_port = port;
        m.first = m.snd = 0xffffff00u + m.my_port * 77u;
        m.highest = m.acked = m.first + 1;
        know(p);
        Segment s = m.segment(kSyn);
        s.options = options;
        for (int tries = 0; tries < 3;
             tries++) {  // the first may find that the victim does not know our MAC address
            put(p, s);
            if (until([&] { return m.heard_syn || p.reset; }, 700)) break;
        }
        m.snd = s.end();
        if (!m.heard_syn) return false;
        const Said mine = said(s);
        m.scaling = mine.scale.has_value() && m.their_scale != 0;
        m.stamps = mine.stamp.has_value() && m.echo != 0;
        return true;
    }
    bool connect(Peer& p, const std::string& options, unsigned who = 0) {
        if (!begin(p, options, who)) return false;
        say(p, kAck);
        return true;
    }
    // No trace is left.
    void end(Peer& p) {
        Segment s = p.m.segment(kRst);
        s.seq = p.m.acked;
        if (!p.reset) put(p, s);
        forget(p);
    }
    std::uint64_t frames() const { return frames_; }
    std::uint64_t heard() const { return heard_; }

    const in_addr_t victim;
    const std::uint16_t port;
    Mac theirs{};
    std::function<void(const Segment&)> on_stranger;
    static constexpr Mac kMine{2, 0, 0x5e, 0x10, 0x66, 0x66};

  private:
    void find_victim() {
        Frame ask(42);
        std::fill_n(ask.begin(), 6, std::uint8_t{0xff});
        std::copy(kMine.begin(), kMine.end(), ask.begin() + 6);
        put16(&ask[12], 0x0806);
        put16(&ask[14], 1);
        put16(&ask[16], 0x0800);
        ask[18] = 6;
        ask[19] = 4;
        put16(&ask[20], 1);
        std::copy(kMine.begin(), kMine.end(), ask.begin() + 22);
        const in_addr_t me = address();
        std::memcpy(&ask[28], &me, 4);
        std::memcpy(&ask[38], &victim, 4);
        for (int tries = 0; tries < 10 && theirs == Mac{}; tries++) {
            put(ask);
            listen(200);
        }
        if (theirs == Mac{}) fault("the victim does not answer");
    }
    void answer_arp(std::span<const std::uint8_t> frame) {
        std::uint32_t sender, target;
        std::memcpy(&sender, &frame[28], 4);
        std::memcpy(&target, &frame[38], 4);
        if (sender == victim) std::copy_n(frame.begin() + 22, 6, theirs.begin());
        const std::uint32_t last = ntohl(target) & 0xff;
        if (get16(&frame[20]) != 1 || (target ^ victim) << 8 != 0 || last < 50 || last > 250) return;
        Frame answer(frame.begin(), frame.begin() + 42);
        std::copy_n(frame.begin() + 6, 6, answer.begin());
        std::copy(kMine.begin(), kMine.end(), answer.begin() + 6);
        put16(&answer[20], 2);
        std::copy(kMine.begin(), kMine.end(), answer.begin() + 22);
        std::memcpy(&answer[28], &target, 4);
        std::copy_n(frame.begin() + 22, 10, answer.begin() + 32);
        put(answer);
    }

    int fd_;
    std::uint64_t frames_ = 0, heard_ = 0;
    std::uint16_t next_port_ = 10000;
    std::map<std::tuple<in_addr_t, std::uint16_t, std::uint16_t>, Peer*> peers_;
};

const std::string kUsual =
    option::mss(1460) + option::sack_allowed() + option::scale(7) + option::stamps(100, 0);

// ---- assaults ----

unsigned connected = 0;

void options_of_syns(Wire& w, Dice&, unsigned count) {
    std::vector<std::string> all = malformed_options();
    for (auto& o : extreme_sizes()) all.push_back(o);
    const auto lengths = all_lengths();
    for (std::size_t i = 0; i < lengths.size(); i += 1 + lengths.size() / count) all.push_back(lengths[i]);
    for (const std::string& o : all) {
        Peer p;
        if (!w.connect(p, o.substr(0, 40))) {
            w.end(p);
            continue;
        }
        connected++;
        w.say(p, kAck | kPsh, 4000 % 1400);
        w.until([&] { return p.echoed >= 1 || p.reset; }, 300);
        // The same in the wrong segments: with data, with a FIN.
        for (const std::uint8_t flags : {std::uint8_t{kAck}, std::uint8_t{kAck | kFin}}) {
            Segment s = p.m.segment(flags, 10);
            s.options = (s.options + o).substr(0, 40);
            w.put(p, s);
        }
        w.listen(0);
        w.end(p);
    }
}

void numbers(Wire& w, Dice&, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        Peer p;
        // Urgent data is no part of the stream: with it, what comes back is other than what was sent.
        p.checks = i % 4 != 3;
        if (!w.connect(p, i % 2 ? kUsual : option::mss(1460))) continue;
        connected++;
        w.say(p, kAck | kPsh, 1000);
        w.until([&] { return p.m.acked - p.m.first - 1 >= 1000 || p.reset; }, 300);
        const auto seqs = p.m.sequence_edges(), acks = p.m.ack_edges();
        const unsigned flags[] = {kAck, kAck | kPsh, kAck | kFin, 0, kUrg | kAck, kFin, 63};
        for (const std::uint32_t seq : seqs)
            for (const std::uint32_t ack : acks)
                for (const std::size_t length : {0u, 1u, 1400u}) {
                    Segment s = p.m.segment(static_cast<std::uint8_t>(flags[(seq ^ ack ^ i) % 7]));
                    s.seq = seq;
                    s.ack = ack;
                    s.window = static_cast<std::uint16_t>(length == 1 ? 0 : 1);
                    if (p.checks) s.flags &= static_cast<std::uint8_t>(~kUrg);
                    s.payload = p.m.content(seq + ((s.flags & kSyn) != 0), length);
                    w.put(p, s);
                }
        w.listen(1);
        w.end(p);
    }
}

// RST and SYN with every number, in every state that the peer can bring about.
void states(Wire& w, Dice&, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        Peer p;
        const unsigned state = i % 6;
        if (!w.begin(p, kUsual)) continue;
        connected++;
        if (state != 0) w.say(p, kAck);
        if (state >= 2) {
            w.say(p, kAck | kPsh, 3000 % 1400);
            w.until([&] { return p.echoed != 0 || p.reset; }, 300);
        }
        if (state >= 3) w.say(p, kFin | kAck);  // the victim's program closes then
        if (state >= 4) w.until([&] { return p.their_fin || p.reset; }, 300);
        if (state >= 5) w.say(p, kAck);
        for (const std::uint8_t flags :
             {std::uint8_t{kSyn}, std::uint8_t{kSyn | kAck}, std::uint8_t{kRst}, std::uint8_t{kRst | kAck}})
            for (const std::uint32_t seq : p.m.sequence_edges()) {
                if ((flags & kRst) && seq == p.m.acked) continue;  // that one is right: at the end
                Segment s = p.m.segment(flags);
                s.seq = seq;
                s.ack = p.m.rcv;
                w.put(p, s);
            }
        w.listen(1);
        w.end(p);
    }
}

void sacks_and_windows(Wire& w, Dice& dice, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        Peer p;
        if (!w.connect(p, i % 3 ? kUsual : option::mss(500) + option::sack_allowed())) continue;
        connected++;
        // The victim has 8000 bytes to echo, and hears lies about them.
        for (int k = 0; k < 8; k++) w.say(p, kAck | kPsh, 1000);
        w.until([&] { return p.echoed >= 1000 || p.reset; }, 300);
        const std::uint32_t rcv = p.m.rcv;
        p.m.rcv = p.m.their_first + 1;
        for (int k = 0; k < 30; k++) {
            Segment s = p.m.segment(kAck);
            const auto lies = p.m.lying_blocks();
            s.options = ((p.m.stamps ? option::stamps(p.m.stamp, p.m.echo) : "") +
                         option::sack(lies[dice.take<unsigned>() % lies.size()]))
                            .substr(0, 40);
            s.window =
                static_cast<std::uint16_t>(dice.take<unsigned>() % 3 == 0 ? 0 : dice.take<unsigned>() % 3);
            w.put(p, s);
        }
        w.listen(1);
        // Then honestly: all the rest must come.
        p.m.rcv = rcv;
        p.m.window = 65535;
        bool all = false;
        for (int tries = 0; tries < 1000 && !all && !p.reset; tries++) {
            w.say(p, kAck);
            w.listen(20);
            all = p.m.rcv - p.m.their_first - 1 >= 8000;
        }
        if (!all && !p.reset) fault("an echo never came after lies about it");
        w.end(p);
    }
}

void half_open(Wire& w, Dice& dice, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        Segment s;
        s.from = w.address(dice.take<unsigned>());
        s.to = w.victim;
        s.from_port = static_cast<std::uint16_t>(1024 + dice.take<unsigned>() % 60000);
        s.to_port = w.port;
        s.seq = dice.take<std::uint32_t>();
        s.flags = kSyn;
        s.options = i % 2 ? kUsual : "";
        w.put(build(s, Wire::kMine, w.theirs));
        // Some go on at once, in the same batch: a segment of one that the table may just lose.
        if (i % 16 == 0) {
            s.flags = kAck;
            s.seq++;
            s.ack = dice.take<std::uint32_t>();
            w.put(build(s, Wire::kMine, w.theirs));
        }
    }
    w.listen(50);
}

// Segments of no connection: FINs, ACKs, resets, data.
void strays(Wire& w, Dice& dice, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        Segment s;
        s.from = w.address(dice.take<unsigned>());
        s.to = w.victim;
        s.from_port = static_cast<std::uint16_t>(1024 + dice.take<unsigned>() % 60000);
        s.to_port = w.port;
        s.seq = dice.take<std::uint32_t>();
        s.ack = dice.take<std::uint32_t>();
        const std::uint8_t flags[] = {kFin, kFin | kAck, kAck, kRst, kSyn | kAck, 0, 63, kPsh | kAck};
        s.flags = flags[i % 8];
        s.payload.assign(i % 8 == 7 ? 100 : 0, 'x');
        w.put(build(s, Wire::kMine, w.theirs));
    }
    w.listen(50);
}

// One byte each; and with holes between them, which nobody may ever read.
void tiny(Wire& w, Dice&, unsigned count) {
    Peer in_order, holes;
    if (w.connect(in_order, kUsual)) connected++;
    if (w.connect(holes, kUsual, 1)) connected++;
    for (unsigned i = 0; i < count; i++) {
        // No further than the victim's window.
        if (static_cast<std::int32_t>(in_order.m.snd - in_order.m.acked) < 30'000)
            w.say(in_order, kAck | kPsh, 1);
        Segment s = holes.m.segment(kAck);
        s.seq += 1 + 2 * i;
        s.payload = holes.m.content(s.seq, 1);
        w.put(holes, s);
        if (i % 64 == 0) {
            w.listen(0);
            w.put(in_order, in_order.m.segment(kAck));
        }
    }
    w.listen(50);
    if (holes.echoed != 0) fault("an echo of what lies behind a hole");
    w.end(in_order);
    w.end(holes);
}

// Data that overlaps with other content. Either may count, but each place has one of the two, and only once.
void conflicts(Wire& w, Dice& dice, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        Peer p;
        p.checks = false;
        if (!w.connect(p, kUsual)) continue;
        connected++;
        constexpr std::uint32_t kTotal = 4000;
        std::string heard(kTotal, '\0');
        for (int k = 0; k < 40; k++) {
            Segment s = p.m.segment(kAck);
            const std::uint32_t from = 1 + dice.take<unsigned>() % (kTotal - 1),
                                n = 1 + dice.take<unsigned>() % std::min(kTotal - from, 1400u);
            s.seq = p.m.first + 1 + from;
            s.payload.assign(n, k % 2 ? 'a' : 'b');
            w.put(p, s);
        }
        for (std::uint32_t at = 0; at < kTotal;) {
            Segment s = p.m.segment(kAck);
            const std::uint32_t n = std::min(kTotal - at, 1000u);
            s.seq = p.m.first + 1 + at;
            s.payload.assign(n, 'c');
            w.put(p, s);
            at += n;
        }
        w.until([&] { return p.m.acked - p.m.first - 1 >= kTotal || p.reset; }, 500);
        w.end(p);
    }
}

void icmp(Wire& w, Dice&, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        Peer p;
        if (!w.connect(p, kUsual)) continue;
        connected++;
        w.say(p, kAck | kPsh, 1000);
        w.until([&] { return p.echoed >= 1000 || p.reset; }, 300);
        for (const std::uint32_t seq : p.m.ack_edges()) {
            Segment quoted;
            quoted.from = w.victim;
            quoted.to = p.m.me;
            quoted.from_port = w.port;
            quoted.to_port = p.m.my_port;
            quoted.seq = seq;
            quoted.flags = kAck;
            for (const Frame& f : icmp_errors(w.address(7), quoted, Wire::kMine, w.theirs)) w.put(f);
        }
        // The connection goes on: none of that quoted what is under way.
        const std::uint64_t before = p.echoed;
        for (int tries = 0; tries < 20 && p.echoed == before && !p.reset; tries++) {
            w.put(p, p.m.segment(kAck));
            Segment s = p.m.segment(kAck | kPsh, 500);
            w.put(p, s);
            if (w.until([&] { return p.echoed != before || p.reset; }, 300)) break;
        }
        if (p.echoed == before && !p.reset) fault("a connection stopped after forged ICMP");
        w.end(p);
    }
}

// Whatever the dice say, from wherever the connection stands.
void random(Wire& w, Dice& dice, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        Peer p;
        p.checks = i % 4 != 3;
        const unsigned kind = dice.take<unsigned>();
        if (!w.connect(
                p, kind % 4 == 0 ? option::mss(static_cast<std::uint16_t>(dice.take<unsigned>())) : kUsual))
            continue;
        connected++;
        for (int k = 0; k < 60 && !p.reset; k++) {
            const unsigned what = dice.take<unsigned>() % 8;
            if (what == 0) {
                w.say(p, kAck | kPsh, dice.take<unsigned>() % 1400);
            } else if (what == 1) {
                w.listen(1);
                w.put(p, p.m.segment(kAck));
            } else {
                Segment s = p.m.crafted(dice);
                if (s.flags & kSyn) s.payload.clear();
                if (p.checks) s.flags &= static_cast<std::uint8_t>(~kUrg);
                w.put(p, s);
            }
        }
        w.listen(0);
        if (kind % 3 == 0)
            w.end(p);
        else
            w.forget(p);
    }
}

// The victim connects to us, again and again: answers that no server gives.
void answers(Wire& w, Dice& dice, unsigned count) {
    std::vector<std::string> all = extreme_sizes();
    for (const auto& o : malformed_options()) all.push_back(o);
    std::map<std::uint16_t, std::unique_ptr<Peer>> peers;
    unsigned seen = 0;
    w.on_stranger = [&](const Segment& syn) {
        if ((syn.flags & (kSyn | kAck)) != kSyn) return;
        auto& p = peers[syn.from_port];
        if (p != nullptr) w.forget(*p);
        p = std::make_unique<Peer>();
        p->checks = false;
        Model& m = p->m;
        m.me = syn.to;
        m.victim = w.victim;
        m.my_port = syn.to_port;
        m.victim_port = syn.from_port;
        m.first = m.snd = 0xfffffff0u;
        m.highest = m.acked = m.first + 1;
        w.know(*p);
        p->hear(syn);
        const unsigned i = seen++;
        Segment s = m.segment(kSyn | kAck);
        s.options = all[i % all.size()];
        switch (i % 7) {
            case 1:  // an answer to something else first
                s.ack += 1000;
                w.put(*p, s);
                s.ack -= 1000;
                break;
            case 2: {  // a reset that is a guess
                Segment r = m.segment(kRst);
                w.put(*p, r);
                break;
            }
            case 3:  // both open
                s.flags = kSyn;
                w.put(*p, s);
                s.flags = kSyn | kAck;
                break;
            case 4:  // with data
                s.payload = m.content(s.seq + 1, 700);
                break;
            case 5:
                s.window = static_cast<std::uint16_t>(i % 2);
                break;
            default:
                break;
        }
        w.put(*p, s);
        m.snd = s.end();
        connected++;
    };
    const std::uint64_t end = now_ms() + 20'000;
    while (seen < count && now_ms() < end) {
        w.listen(5);
        // Those who are connected hear something crafted, then the end.
        for (auto it = peers.begin(); it != peers.end();) {
            Peer& p = *it->second;
            if (p.heard > 1 || p.reset) {
                w.put(p, p.m.segment(kAck));
                for (int k = 0; k < 4; k++) w.put(p, p.m.crafted(dice));
                w.end(p);
                it = peers.erase(it);
            } else {
                ++it;
            }
        }
    }
    if (seen < count) fault("the victim connected " + std::to_string(seen) + " times only");
}

struct Assault {
    const char* name;
    void (*run)(Wire&, Dice&, unsigned);
};
constexpr Assault kAssaults[] = {
    {"options", options_of_syns},
    {"numbers", numbers},
    {"states", states},
    {"sacks", sacks_and_windows},
    {"half_open", half_open},
    {"strays", strays},
    {"tiny", tiny},
    {"conflicts", conflicts},
    {"icmp", icmp},
    {"random", random},
    {"answers", answers},
};

// ---- the honest one ----

int honest(const char* victim, std::uint16_t port, unsigned connections, std::size_t bytes) {
    std::vector<char> out(bytes), in(bytes);
    for (std::size_t i = 0; i < bytes; i++) out[i] = stream_byte(i, 1);
    for (unsigned i = 0; i < connections; i++) {
        const int fd = socket(AF_INET, SOCK_STREAM, 0);
        const timeval patience{60, 0};
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
        sockaddr_in a{};
        a.sin_family = AF_INET;
        a.sin_port = htons(port);
        a.sin_addr.s_addr = inet_addr(victim);
        if (connect(fd, reinterpret_cast<sockaddr*>(&a), sizeof a) != 0)
            fault("an honest connect() failed: " + std::string(strerror(errno)));
        std::size_t sent = 0, got = 0;
        while (got < bytes) {
            // As much under way as fits into any window.
            while (sent < bytes && sent - got < 16384) {
                const ssize_t n =
                    send(fd, &out[sent], std::min<std::size_t>(bytes - sent, 4096), MSG_NOSIGNAL);
                if (n <= 0) fault("an honest send() failed: " + std::string(strerror(errno)));
                sent += static_cast<std::size_t>(n);
            }
            const ssize_t n = recv(fd, &in[got], bytes - got, 0);
            if (n <= 0)
                fault("an honest recv() failed after " + std::to_string(got) +
                      " bytes: " + (n == 0 ? "end" : strerror(errno)));
            got += static_cast<std::size_t>(n);
        }
        if (in != out) fault("an honest connection got other bytes");
        close(fd);
    }
    printf("honest: %u connections\n", connections);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    if (argc == 6 && strcmp(argv[1], "honest") == 0)
        return honest(argv[2], static_cast<std::uint16_t>(atoi(argv[3])),
                      static_cast<unsigned>(atoi(argv[4])), static_cast<std::size_t>(atol(argv[5])));
    if (argc != 7) {
        fprintf(stderr,
                "usage: tcp_attacker ASSAULT INTERFACE VICTIM PORT SEED COUNT | honest VICTIM PORT "
                "CONNECTIONS BYTES\n");
        return 2;
    }
    for (const Assault& a : kAssaults) {
        if (strcmp(a.name, argv[1]) != 0) continue;
        Wire wire(argv[2], argv[3], static_cast<std::uint16_t>(atoi(argv[4])));
        Dice dice(strtoull(argv[5], nullptr, 0));
        puts("ready");
        a.run(wire, dice, static_cast<unsigned>(atoi(argv[6])));
        printf("%s: %u connections, %llu frames sent, %llu heard\n", a.name, connected,
               static_cast<unsigned long long>(wire.frames()), static_cast<unsigned long long>(wire.heard()));
        return 0;
    }
    fprintf(stderr, "no such assault: %s\n", argv[1]);
    return 2;
}
