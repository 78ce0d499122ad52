// SPDX-License-Identifier: BSD-2-Clause
// A long random sequence of operations on many descriptors and sets. Both programs draw the same numbers, so
// each knows what the other does; after every step the state of everything is shown, so the first step that
// differs is seen.
//
// Where the kernel is free to do one thing or another (which of many events when there is room for few, how
// many edges several segments make), nothing random is done: see sets.cpp and remote.cpp for these.
#include <stdarg.h>

#include <algorithm>
#include <utility>

#include "mux.h"

namespace parity::mux {
namespace {

class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15 + 1) {}
    unsigned operator()(unsigned below) {
        state_ ^= state_ << 13;
        state_ ^= state_ >> 7;
        state_ ^= state_ << 17;
        return static_cast<unsigned>(state_ >> 33) % below;
    }

  private:
    uint64_t state_;
};

enum Kind { kTcp, kUdp, kPipe, kEventfd, kLoopback };

struct Subject {
    Kind kind;
    int fd = -1, other = -1;  // other: of those that have both ends here
    int twin = -1;            // a duplicate of fd
    uint64_t twin_data = 0;   // members with the same data could not be told apart
    // What both programs know.
    unsigned queued = 0;
    bool peer_ended = false, we_ended = false, dead = false, has_twin = false;
};

constexpr int kAll = POLLIN | POLLOUT | POLLPRI | POLLRDHUP;

class World {
  public:
    explicit World(uint64_t seed) : random_(seed) {
        for (Kind kind : {kTcp, kTcp, kTcp, kUdp, kUdp, kPipe, kEventfd, kLoopback}) {
            auto& s = subjects_.emplace_back();
            s.kind = kind;
            open(s, subjects_.size());
        }
        for (int& set : sets_) set = epoll_create1(0);
        sync();
    }
    ~World() {
        for (Subject& s : subjects_) shut(s);
        for (int set : sets_) close(set);
    }

    void run(unsigned steps) {
        for (step_ = 0; step_ < steps; step_++) {
            step();
            if (left()) show_all();
            sync();
        }
    }

  private:
    static constexpr unsigned kSets = 4;

    void open(Subject& s, size_t index) {
        int two[2] = {-1, -1};
        switch (s.kind) {
            case kTcp:
                s.fd = connection();
                break;
            case kUdp:
                s.fd = datagram(static_cast<int>(index));
                sync();
                break;
            case kPipe:
                ok(pipe(two));
                break;
            case kEventfd:
                s.fd = eventfd(0, EFD_NONBLOCK);
                break;
            case kLoopback:
                loopback_pair(two[0], two[1]);
                break;
        }
        if (two[0] >= 0) {
            s.fd = two[0];
            s.other = two[1];
        }
        s.queued = 0;
        s.peer_ended = s.we_ended = s.dead = s.has_twin = false;
    }
    static void shut(Subject& s) {
        for (int* fd : {&s.fd, &s.other, &s.twin})
            if (*fd >= 0) close(std::exchange(*fd, -1));
    }

    Subject& any() { return subjects_[random_(static_cast<unsigned>(subjects_.size()))]; }
    int any_set() { return sets_[random_(kSets)]; }
    [[gnu::format(printf, 2, 3)]] void tell(const char* format, ...) {
        if (!left()) return;
        char text[160];
        va_list args;
        va_start(args, format);
        vsnprintf(text, sizeof text, format, args);
        va_end(args);
        say("%u %s", step_, text);
    }
    long index(const Subject& s) const { return &s - subjects_.data(); }

    uint32_t random_events() {
        static constexpr uint32_t kBits[] = {EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLPRI, EPOLLRDNORM};
        uint32_t events = 0;
        for (uint32_t bit : kBits)
            if (random_(2)) events |= bit;
        switch (random_(6)) {
            case 0:
                events |= EPOLLET;
                break;
            case 1:
                events |= EPOLLONESHOT;
                break;
            case 2:
                events |= EPOLLET | EPOLLONESHOT;
                break;
            default:
                break;
        }
        return events;
    }

    void step();
    void give(Subject& s);
    void take(Subject& s);
    void control();
    void look();
    void end(Subject& s);
    void replace(Subject& s);
    void duplicate(Subject& s);
    void nest();
    void show_all();

    Random random_;
    std::vector<Subject> subjects_;
    int sets_[kSets];
    unsigned step_ = 0;
};

void World::give(Subject& s) {
    unsigned length = 1 + random_(100);
    if (s.dead || s.peer_ended || s.queued > 5000) return;
    std::string data(length, 'x');
    switch (s.kind) {
        case kTcp:
            if (!left()) put(s.fd, data.c_str());
            s.queued += length;
            if (left()) {
                await_bytes(s.fd, static_cast<int>(s.queued));
                await_readable(s.fd);  // where another thread polls, a moment after the bytes are counted
            }
            break;
        case kUdp:
            if (s.queued != 0) return;  // whether a second one has come cannot be seen
            if (!left()) put(s.fd, data.c_str());
            s.queued = length;
            if (left()) await_readable(s.fd);
            break;
        case kPipe:
        case kLoopback:
            if (left()) ok(write(s.other, data.data(), length));
            s.queued += length;
            if (left()) await_bytes(s.fd, static_cast<int>(s.queued));
            break;
        case kEventfd:
            if (left()) eventfd_write(s.fd, 1);
            s.queued = 1;
            break;
    }
    tell("give %u to %ld", length, index(s));
}

void World::take(Subject& s) {
    unsigned room = 1 + random_(150);
    if (s.queued == 0 && !s.peer_ended) return;
    if (s.dead) return;
    bool whole = s.kind == kUdp || s.kind == kEventfd;
    unsigned expected = whole ? s.queued : std::min(room, s.queued);
    if (left()) {
        char block[200];
        long n = read(s.fd, block, whole ? sizeof block : room);
        tell("take %ld from %ld", n, index(s));
    }
    s.queued -= expected;
}

void World::control() {
    Subject& s = any();
    int set = any_set();
    static constexpr int kOps[] = {EPOLL_CTL_ADD, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_MOD, EPOLL_CTL_DEL};
    int op = kOps[random_(5)];
    uint32_t events = random_events();
    bool by_twin = random_(4) == 0;
    if (op == EPOLL_CTL_ADD && random_(8) == 0)
        events = (events & (EPOLLIN | EPOLLOUT | EPOLLET)) | EPOLLEXCLUSIVE;
    if (!left()) return;
    int fd = by_twin && s.has_twin ? s.twin : s.fd;
    epoll_event e{events, {.u64 = fd == s.twin ? s.twin_data : static_cast<uint64_t>(index(s))}};
    errno = 0;
    int r = epoll_ctl(set, op, fd, &e);
    tell("ctl %d %ld %x in %ld: %d %s", op, index(s), events,
         static_cast<long>(std::find(sets_, sets_ + kSets, set) - sets_), r,
         r < 0 ? strerrorname_np(errno) : "");
}

void World::look() {
    unsigned how = random_(4), mask = random_(256);
    unsigned which = random_(kSets);
    std::vector<int> events;
    for (size_t i = 0; i < subjects_.size(); i++) events.push_back(static_cast<int>(random_events() & kAll));
    if (!left()) return;
    if (how < 2) {
        show_set(("set " + std::to_string(which)).c_str(), sets_[which]);
        return;
    }
    Watch w(how == 2 ? How::select : How::poll);
    for (size_t i = 0; i < subjects_.size(); i++)
        if (mask >> i & 1) w.add(subjects_[i].fd, events[i]);
    w.show(how == 2 ? "select" : "poll");
}

// The ends of a connection, and resets.
void World::end(Subject& s) {
    unsigned what = random_(5);
    if (s.kind != kTcp || s.dead) return;
    if (what < 2 && !s.peer_ended) {
        if (!left()) shutdown(s.fd, SHUT_WR);
        s.peer_ended = true;
        if (left()) await_events(s.fd, s.we_ended ? POLLRDHUP | POLLHUP : POLLRDHUP);
        tell("the peer of %ld ends", index(s));
    } else if (what < 4 && !s.we_ended) {
        if (left()) {
            shutdown(s.fd, SHUT_WR);
            // The acknowledgement of the FIN is one more edge.
            eventually("acknowledged", [&] {
                int now = state(s.fd);
                return now != TCP_FIN_WAIT1 && now != TCP_LAST_ACK && now != TCP_CLOSING;
            });
        }
        s.we_ended = true;
        tell("%ld ends", index(s));
    } else if (what == 4 && !(s.peer_ended && s.we_ended)) {
        if (!left()) {
            set_linger(s.fd, true, 0);
            close(std::exchange(s.fd, -1));
        }
        s.dead = true;
        if (left()) await_events(s.fd, POLLHUP | POLLERR);
        tell("%ld is reset", index(s));
    }
}

void World::replace(Subject& s) {
    bool fresh = s.kind == kTcp && (s.dead || (s.peer_ended && s.we_ended) || random_(10) == 0);
    if (!fresh) return;
    shut(s);
    sync();
    open(s, 0);
    tell("replaced %ld", index(s));
}

void World::duplicate(Subject& s) {
    if (s.has_twin) {
        if (left()) close(std::exchange(s.twin, -1));
        s.has_twin = false;
        tell("closed the twin of %ld", index(s));
    } else {
        if (left()) s.twin = dup(s.fd);
        s.twin_data = 1000 + step_;
        s.has_twin = true;
        tell("twin of %ld", index(s));
    }
}

void World::nest() {
    unsigned outer = random_(kSets), inner = random_(kSets), op = random_(3);
    uint32_t events = EPOLLIN;
    if (!left()) return;
    errno = 0;
    int r = op == 2 ? epoll_del(sets_[outer], sets_[inner])
                    : epoll_add(sets_[outer], sets_[inner], events, 100 + inner);
    tell("nest %u %u in %u: %d %s", op, inner, outer, r, r < 0 ? strerrorname_np(errno) : "");
}

void World::show_all() {
    std::string line;
    for (Subject& s : subjects_) {
        pollfd p{s.fd, kAll, 0};
        poll(&p, 1, 0);
        char text[8];
        snprintf(text, sizeof text, " %x", static_cast<unsigned>(p.revents));
        line += text;
    }
    pollfd p[kSets];
    for (unsigned i = 0; i < kSets; i++) p[i] = {sets_[i], POLLIN, 0};
    poll(p, kSets, 0);
    for (const pollfd& x : p) line += x.revents != 0 ? " R" : " -";
    say("%u%s", step_, line.c_str());
}

void World::step() {
    switch (random_(12)) {
        case 0:
        case 1:
            return give(any());
        case 2:
            return take(any());
        case 3:
        case 4:
        case 5:
            return control();
        case 6:
        case 7:
        case 8:
            return look();
        case 9:
            return random_(3) == 0 ? end(any()) : replace(any());
        case 10:
            return random_(4) == 0 ? duplicate(any()) : give(any());
        default:
            return random_(4) == 0 ? nest() : take(any());
    }
}

void random_walk(uint64_t seed) {
    // Fewer where each step waits for a simulated adapter.
    const char* const steps = getenv("TEST_RANDOM_STEPS");
    World world(seed);
    world.run(steps == nullptr ? 10'000 : static_cast<unsigned>(atoi(steps)));
}

}  // namespace

TCP_KERNEL_CASE(random, seed1, 1372) { random_walk(1); }
TCP_KERNEL_CASE(random, seed2, 1604) { random_walk(2); }
TCP_KERNEL_CASE(random, seed3, 1583) { random_walk(3); }
TCP_KERNEL_CASE(random, seed4, 1684) { random_walk(4); }

}  // namespace parity::mux
