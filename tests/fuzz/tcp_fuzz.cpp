// SPDX-License-Identifier: BSD-2-Clause
// Segments for a live connection and a listener on the test wire: what a peer sends is up to the input, with numbers that are
// derived from the right ones so that much of it gets past the first check. Beside memory errors and assertions it looks
// for bytes that nobody sent: the content of the peer's stream is a function of the sequence number alone, so whatever
// the reader gets must be that, in order, however the segments overlapped, shrank or came again.
//
// Input: two bytes of options and beginning, then operations of a byte and their arguments.
#include "libvma/tcp/lwip/memory.h"
#include "tests/fuzz/input.h"
#include "tests/unit/tcp_wiretap.h"

using namespace vma::tcp;
using namespace vma::tcp::test;

namespace {

constexpr std::uint16_t kMine = 1000, kTheirs = 2000, kListening = 90;
constexpr std::uint32_t kFirst = 0xfffff000;  // the peer's first sequence number: it wraps soon
constexpr std::uint64_t kMs = 1'000'000;

struct Run {
    explicit Run(fuzz::Input& input) : in(input), world(1, small()) {}

    static vma::verbs::wire::WireConfig small() {
        vma::verbs::wire::WireConfig config;
        config.max_send_wr = 64;
        config.max_recv_wr = 128;
        return config;
    }

    std::string content(std::uint32_t seq, std::size_t n) const {
        std::string s(n, '\0');
        for (std::size_t i = 0; i < n; i++) s[i] = stream_byte(static_cast<std::uint32_t>(seq + i - kFirst - 1), 7);
        return s;
    }

    void read(std::size_t most) {
        if (c == nullptr) return;
        const std::string got = receive(c, most);
        for (char b : got) FUZZ_CHECK(b == stream_byte(delivered++, 7));
        // Nothing from beyond what was ever sent.
        FUZZ_CHECK(delivered <= highest - kFirst - 1);
    }

    void listen_to(const std::vector<Segment>& heard) {
        for (const Segment& s : heard) {
            if (s.flags & kRst) continue;
            if (static_cast<std::int32_t>(s.end() - peer->rcv) > 0 && s.seq == peer->rcv) peer->rcv = s.end();
            if (static_cast<std::int32_t>(s.ack - acked) > 0) acked = s.ack;
            if (auto v = said(s).stamp) peer->echo = *v;
        }
    }

    void put(Segment s) {
        const std::uint32_t end = s.seq + static_cast<std::uint32_t>(s.payload.size());
        // Only numbers within the window's reach count; far ones must not get in.
        if (static_cast<std::int32_t>(end - highest) > 0 && end - highest < (4u << 20)) highest = end;
        peer->put(s);
    }

    std::string options() {
        const auto mode = in.take<std::uint8_t>();
        switch (mode % 8) {
            case 0:
                return "";
            case 1:
                return option::stamps(peer->stamp + static_cast<std::uint32_t>(in.take<std::int8_t>()), peer->echo);
            case 2: {
                std::vector<std::pair<std::uint32_t, std::uint32_t>> blocks;
                for (unsigned i = 0; i < 1u + mode / 8 % 4; i++) {
                    const std::uint32_t left = peer->rcv + static_cast<std::uint32_t>(in.take<std::int16_t>());
                    blocks.emplace_back(left, left + static_cast<std::uint32_t>(in.take<std::int16_t>()));
                }
                return option::sack(blocks);
            }
            case 3: {
                std::string raw;
                const unsigned n = mode / 8 % 10 * 4 + 4;
                for (unsigned i = 0; i < n; i++) raw += static_cast<char>(in.take<std::uint8_t>());
                return raw;
            }
            case 4:
                return option::mss(in.take<std::uint16_t>()) + option::scale(in.take<std::uint8_t>());
            default:
                return peer->stamps ? option::stamps(peer->stamp, peer->echo) : "";
        }
    }

    Segment crafted() {
        const auto flags = in.take<std::uint8_t>();
        const auto how = in.take<std::uint8_t>();
        Segment s = peer->segment(flags);
        const std::uint32_t seqs[] = {peer->snd, acked, kFirst + 1, acked + window};
        s.seq = seqs[how & 3];
        if (how & 4) s.seq += static_cast<std::uint32_t>(in.take<std::int16_t>());
        // Where its stream begins is what the peer says in its SYN, and the content is numbered from there.
        if ((flags & kSyn) && c != nullptr && c->state() == State::syn_sent) s.seq = kFirst;
        const std::uint32_t acks[] = {peer->rcv, peer->syn.seq + 1, peer->rcv, peer->rcv};
        s.ack = acks[how >> 3 & 3];
        if (how & 32) s.ack += static_cast<std::uint32_t>(in.take<std::int16_t>());
        if (how & 64) s.window = in.take<std::uint16_t>();
        std::size_t length = 0;
        if (how & 128) length = in.take<std::uint16_t>() % 1460;
        s.options = options();
        s.payload = content(s.seq + ((flags & kSyn) != 0), std::min<std::size_t>(length, 1460 - s.options.size()));
        return s;
    }

    void operation(std::uint8_t op) {
        switch (op % 16) {
            case 0: case 1: case 2: case 3:
                put(crafted());
                break;
            case 4: case 5: {  // in order
                Segment s = peer->segment(kAck | kPsh, content(peer->snd, in.take<std::uint8_t>() * 5u));
                put(s);
                if (op & 16) peer->stamp++;
                peer->snd = s.end();
                break;
            }
            case 6:
                if (c != nullptr) (void)send(c, std::string(in.take<std::uint16_t>() % 20000, 's'));
                break;
            case 7:
                read(in.take<std::uint8_t>() * 64u + 1);
                break;
            case 8:
                if (c != nullptr) c->shutdown(op / 16 % 3);
                break;
            case 9:
                if (c != nullptr && op / 16 == 15) {
                    world.close(c, in.take<std::uint8_t>() & 1);
                    c = nullptr;
                }
                break;
            case 10:
                // With a full device each millisecond is a new attempt, and minutes of that take their time.
                world.pass((1 + in.take<std::uint8_t>()) * (op & 16 && !refusing ? 100 * kMs : kMs));
                break;
            case 11:
                listen_to(peer->take());
                break;
            case 12: {  // everything is acknowledged
                listen_to(peer->take());
                put(peer->segment(kAck));
                break;
            }
            case 13: {  // to the listener
                Segment s = crafted();
                s.to_port = kListening;
                s.from_port = static_cast<std::uint16_t>(3000 + op / 16);
                if (op & 16) s.flags = kSyn;
                peer->put(s);
                if (Connection* accepted = listener->accept()) world.close_later(accepted);
                break;
            }
            case 14:
                if (c != nullptr) {
                    c->change([&](Options& o) {
                        o.cork = op & 16;
                        o.nodelay = op & 32;
                        o.keepalive = op & 64;
                        o.keep_idle_s = 1;
                    });
                }
                break;
            case 15:
                if (op & 128) world.a->device->refuse_sends(refusing = op & 16);
                else if (op & 64) world.a->error = op & 16 ? EHOSTUNREACH : 0, world.a->changed();
                else if (c != nullptr) c->path_mtu(in.take<std::uint16_t>());
                break;
        }
    }

    void run() {
        const auto how = in.take<std::uint8_t>(), begin = in.take<std::uint8_t>();
        world.options.sack = how & 1;
        world.options.timestamps = how & 2;
        world.options.window_scaling = how & 4;
        window = world.options.receive_window = how & 8 ? 4096 : how & 16 ? 60'000 : 1 << 20;
        world.options.nodelay = how & 32;
        world.options.user_timeout_ms = how & 64 ? 3000 : 0;
        peer.emplace(world, *world.b, kTheirs, *world.a, kMine);
        peer->snd = kFirst;
        highest = acked = kFirst + 1;
        listener = Listener::create(*world.a, htons(kListening), world.options, 4);
        const vma::verbs::FlowSpec rule{IPPROTO_TCP, world.a->address, htons(kListening), 0, 0};
        FUZZ_CHECK(world.a->ring->attach(rule, listener, vma::ring::Share::latest).has_value());
        c = Connection::create(*world.a, {world.a->address, world.b->address, htons(kMine), htons(kTheirs)}, world.options);
        world.opened.push_back(c);
        FUZZ_CHECK(c->connect() == 0);
        auto first = peer->take();
        FUZZ_CHECK(first.size() == 1 && first[0].flags == kSyn);
        peer->syn = first[0];
        peer->rcv = first[0].end();
        if (auto v = said(first[0]).stamp) peer->echo = *v;
        if (begin & 1) {
            Segment s = peer->segment(kSyn | kAck);
            s.options = (begin & 2 ? option::mss(1460) : "") + (begin & 4 ? option::sack_allowed() : "") +
                        (begin & 8 ? option::scale(begin >> 4) : "") + (begin & 128 ? option::stamps(1, peer->echo) : "");
            peer->stamps = begin & 128 && how & 2;
            peer->put(s);
            peer->snd++;
            peer->put(peer->segment(kAck));
            (void)peer->take();
        }
        for (int i = 0; i < 400 && !in.rest().empty(); i++) {
            operation(in.take<std::uint8_t>());
            if (i % 16 == 15) {
                world.poll();
                FUZZ_CHECK(lwip::memory_use().used < 32u << 20);
                if (c != nullptr) FUZZ_CHECK(c->readable() <= window + 70'000u);
            }
        }
        world.a->device->refuse_sends(false);
        world.a->error = 0;
        world.a->changed();
        world.poll();
        read(1 << 20);
        world.close_all();
        world.a->ring->detach(rule, listener);
        while (Connection* accepted = listener->accept()) world.close_later(accepted);
        listener->close();
        listener->unref();
        // Now ~World waits until everything has ended.
    }

    struct FuzzWorld : World {
        using World::World;
        void close_later(Connection* accepted) {
            accepted->close(true);
            accepted->unref();
        }
    };

    fuzz::Input& in;
    FuzzWorld world;
    std::optional<Peer> peer;
    Listener* listener = nullptr;
    Connection* c = nullptr;
    std::uint64_t delivered = 0;
    bool refusing = false;
    std::uint32_t highest = 0, acked = 0, window = 0;
};

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
    testing::FLAGS_gtest_break_on_failure = true;  // what a World expects is a finding, too
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::Input input(data, size);
    Run(input).run();
    return 0;
}
