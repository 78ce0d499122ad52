// SPDX-License-Identifier: BSD-2-Clause
// Steps in which several actors use one descriptor at once, see race.cpp.
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "steps.h"

namespace random_program {

// Everybody's part runs until it ends by itself; watchers when all others have. Signals come the while, if so
// drawn; where record_fd is one, their handlers send a word on it.
void World::race(Draw& draw, int object, const std::vector<std::pair<int, Call>>& parts, bool signals,
                 int record_fd) {
    for (const auto& [actor, part] : parts) {
        Page& page = g_pages[actor];
        page.tally.reset();
        page.handler_fd = record_fd;
        page.handler_writer = 100 + actor;
        page.handler_serial = 0;
        page.in_handler = record_fd >= 0 && process_of(actor) == 0 ? static_cast<int>(InHandler::record) : 0;
    }
    for (const auto& [actor, part] : parts) begin(actor, part);
    const long end = milliseconds() + 25'000;
    auto all_done = [&](bool watchers) {
        for (const auto& [actor, part] : parts)
            if ((part.list[0] == static_cast<int>(Role::watcher)) == watchers && !finished(actor, 0))
                return false;
        return true;
    };
    while (!all_done(false)) {
        if (signals) {
            const auto& [actor, part] = parts[draw.below(static_cast<unsigned>(parts.size()))];
            signal_actor(actor, draw.of({SIGUSR1, SIGUSR2}));
        }
        usleep(signals ? 100 + draw.below(900) : 200);
        if (milliseconds() > end) break;
    }
    g_race->stop = true;
    for (const auto& [actor, part] : parts) {
        const Result r = finish(actor);
        // A signal may come after the actor's part.
        g_pages[actor].in_handler = 0;
        while (g_pages[actor].handlers != 0) usleep(100);
        if (r.value < 0)
            tell("A%d in a race, role %d:%s %s: FAULT", actor, part.list[0], r.text,
                 r.error ? strerrorname_np(r.error) : "");
    }
    (void)object;
}

bool World::race_stream(Draw& draw) {
    const bool to_end = draw.one_in(4), signals = draw.one_in(2), records = draw.one_in(2);
    const int h = pick(draw, [&](auto&, auto& o) {
        return o.kind == Kind::tcp && talks(o) && !o.peer_ended && !o.read_shut && o.out_queue == 0 &&
               (!to_end || !o.nonblocking);
    });
    if (h < 0) return false;
    const Handle handle = handles_[static_cast<size_t>(h)];
    Object& o = objects_[static_cast<size_t>(handle.object)];
    const long length = 1 + draw.below(200'000);
    const bool forks = allowed("fork_in_race") && draw.one_in(3);
    g_race->reset();
    g_race->target = o.in_queue + length;
    g_race->writers = 30;
    for (int i = 0; i < *g_brief_used; i++) g_brief[i].reset();
    *g_brief_used = 0;
    // Who takes part: those that have a descriptor of it.
    std::vector<std::pair<int, Call>> parts;
    bool reads = false;
    for (int actor = 1; actor < kActors; actor++) {
        const int process = process_of(actor);
        if (!processes_[static_cast<size_t>(process)].alive) continue;
        int fd = -1;
        for (const Handle& other : handles_)
            if (other.process == process && other.object == handle.object && (fd < 0 || draw.one_in(2)))
                fd = other.fd;
        if (fd < 0) continue;
        Role role = static_cast<Role>(draw.of({0, 0, 1, 1, 2, 3}));
        if (role == Role::forker && (!forks || *g_brief_used != 0)) role = Role::writer;
        Call part{.what = What::race,
                  .fd = fd,
                  .count = actor,
                  .a = 1 + draw.below(25),
                  .b = static_cast<long>(draw.number() >> 2),
                  .c = to_end,
                  .d = allowed("one_piece"),
                  .key = o.rx_key,
                  .list = {static_cast<int>(role), 0}};
        if (role == Role::forker) part.a = 1 + draw.below(4);
        reads = reads || role == Role::reader;
        parts.emplace_back(actor, part);
    }
    if (parts.empty()) return false;
    if (!reads) parts[0].second.list[0] = static_cast<int>(Role::reader);
    int last_forker = -1;
    for (auto& [actor, part] : parts) {  // one is enough for the places that tallies have
        if (part.list[0] != static_cast<int>(Role::forker)) continue;
        if (last_forker >= 0) part.list[0] = static_cast<int>(Role::writer);
        last_forker = actor;
    }
    const int record_fd = signals && records && handle.process == 0 ? handle.fd : -1;
    ask_peer("begins", {Wish::race, o.id, length, to_end, 0, 0});
    race(draw, handle.object, parts, signals, record_fd);
    const Told t = ask_peer("has read", {Wish::race_over, o.id, g_race->written, 0, 0, 0});
    std::vector<const SocketCounters*> tallies;
    for (const auto& [actor, part] : parts) tallies.push_back(&g_pages[actor].tally);
    for (int i = 0; i < *g_brief_used; i++) tallies.push_back(&g_brief[i]);
    const uint64_t to = o.received + static_cast<uint64_t>(o.in_queue + length);
    const std::string fault = coverage(Stream{o.rx_key}, tallies, o.received, to);
    tell("%zu race on %d: %s%s%s", parts.size(), handle.fd, t.value < 0 ? "FAULT" : "sent",
         fault.empty() ? ", received" : ", FAULT: ", fault.c_str());
    o.received = to;
    o.in_queue = 0;
    o.peer_ended = to_end;
    settle(handle.object);
    return true;
}

bool World::race_datagrams(Draw& draw) {
    const bool signals = draw.one_in(2);
    const int h = pick(draw, [&](auto&, auto& o) {
        return o.kind == Kind::udp && o.datagrams == 0 && !o.connected &&
               (!o.was_shared || allowed("shared_udp"));
    });
    if (h < 0) return false;
    const Handle handle = handles_[static_cast<size_t>(h)];
    Object& o = objects_[static_cast<size_t>(handle.object)];
    g_race->reset();
    const long how_many = 1 + draw.below(Race::kDatagrams);
    g_race->target = how_many;
    const uint64_t key = draw.number();
    std::vector<std::pair<int, Call>> parts;
    for (int actor = 1; actor < kActors; actor++) {
        const int process = process_of(actor);
        if (!processes_[static_cast<size_t>(process)].alive || (process != 0 && !allowed("shared_udp")))
            continue;
        int fd = -1;
        for (const Handle& other : handles_)
            if (other.process == process && other.object == handle.object) fd = other.fd;
        if (fd < 0) continue;
        const Role role = actor != 1 && draw.one_in(3) ? Role::watcher : Role::reader;
        parts.emplace_back(actor, Call{.what = What::race,
                                       .fd = fd,
                                       .b = static_cast<long>(draw.number() >> 2),
                                       .key = key,
                                       .list = {static_cast<int>(role), 1}});
    }
    if (parts.empty()) return false;
    parts[0].second.list[0] = static_cast<int>(Role::reader);
    ask_without_waiting({Wish::datagrams, o.id, how_many, o.port, key, static_cast<uint64_t>(o.link)});
    race(draw, handle.object, parts, signals, -1);
    const Told t = told();
    long seen = 0;
    for (const auto& s : g_race->seen) seen += s;
    tell("%zu race for %ld datagrams: %ld %s", parts.size(), how_many, seen, t.text);
    return true;
}

bool World::race_accept(Draw& draw) {
    const int h = pick(draw, [&](auto&, auto& o) { return o.kind == Kind::listener && o.nonblocking; });
    if (h < 0) return false;
    const Handle handle = handles_[static_cast<size_t>(h)];
    const Object& o = objects_[static_cast<size_t>(handle.object)];
    g_race->reset();
    const long how_many = 1 + draw.below(12);
    g_race->target = how_many;
    const bool signals = draw.one_in(2);
    std::vector<std::pair<int, Call>> parts;
    for (int actor = 1; actor < kActors; actor++) {
        const int process = process_of(actor);
        if (!processes_[static_cast<size_t>(process)].alive || (process != 0 && !serves_child(o))) continue;
        int fd = -1;
        for (const Handle& other : handles_)
            if (other.process == process && other.object == handle.object) fd = other.fd;
        if (fd < 0 || draw.one_in(3)) continue;
        parts.emplace_back(actor, Call{.what = What::race,
                                       .fd = fd,
                                       .b = static_cast<long>(draw.number() >> 2),
                                       .list = {static_cast<int>(Role::reader), 2}});
    }
    if (parts.empty()) return false;
    ask_without_waiting({Wish::crowd, 1'000'000, how_many, o.port, 0, static_cast<uint64_t>(o.link)});
    race(draw, handle.object, parts, signals, -1);
    const Told t = told();
    tell("%zu race to accept: %s%s", parts.size(), t.text, t.value < 0 ? ": FAULT" : "");
    return true;
}

}  // namespace random_program
