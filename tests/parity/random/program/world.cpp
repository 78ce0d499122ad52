// SPDX-License-Identifier: BSD-2-Clause
// What there is, the table of steps, and how the program ends, see steps.h.
#include <dirent.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "steps.h"

namespace random_program {

const std::vector<World::Row>& World::table() {
    static const std::vector<Row> rows = {
        {"open_udp", 4, &World::open_udp},
        {"open_tcp", 8, &World::open_tcp},
        {"open_listener", 2, &World::open_listener},
        {"accept", 8, &World::accept_one},
        {"peer_sends", 14, &World::peer_sends},
        {"peer_reads", 6, &World::peer_reads},
        {"peer_ends", 3, &World::peer_ends},
        {"receive", 16, &World::receive},
        {"send", 14, &World::send},
        {"shutdown", 3, &World::shut_down},
        {"close", 5, &World::close_one},
        {"duplicate", 6, &World::duplicate},
        {"blocking_mode", 4, &World::blocking_mode},
        {"options", 8, &World::options},
        {"names", 2, &World::names},
        {"look", 8, &World::look},
        {"udp_send", 7, &World::udp_send},
        {"udp_receive", 7, &World::udp_receive},
        {"udp_connect", 2, &World::udp_connect},
        {"new_set", 2, &World::new_set},
        {"change_set", 9, &World::change_set},
        {"wait_set", 9, &World::wait_set},
        {"fork", 2, &World::fork_child},
        {"end_child", 3, &World::end_child},
        {"blocked_receive", 9, &World::blocked_receive},
        {"blocked_wait", 7, &World::blocked_wait},
        {"blocked_send", 3, &World::blocked_send},
        {"blocked_accept", 3, &World::blocked_accept},
        {"race_stream", 5, &World::race_stream},
        {"race_datagrams", 3, &World::race_datagrams},
        {"race_accept", 2, &World::race_accept},
    };
    return rows;
}

World::World(uint64_t seed, std::set<std::string> without) : seed_(seed), without_(std::move(without)) {
    processes_.resize(1 + kActors - kThreads);
    processes_[0].alive = true;
    g_pages[0].process = getpid();
    g_pages[0].thread = static_cast<pid_t>(syscall(SYS_gettid));
    t_page = &g_pages[0];
    for (int i = 1; i < kThreads; i++) start_thread(i);
}

void World::run(unsigned steps, const std::set<unsigned>& skip) {
    unsigned sum = 0;
    for (const Row& row : table()) sum += allowed(row.name) ? row.weight : 0;
    for (step_ = 1; step_ <= steps; step_++) {
        if (skip.contains(step_)) continue;
        Draw draw(seed_, step_);
        for (int tries = 0; tries < 30; tries++) {
            unsigned at = draw.below(sum);
            const Row* chosen = nullptr;
            for (const Row& row : table()) {
                if (!allowed(row.name)) continue;
                if (at < row.weight) {
                    chosen = &row;
                    break;
                }
                at -= row.weight;
            }
            if ((this->*chosen->step)(draw)) {
                if (getenv("TEST_RANDOM_NAMES") != nullptr) fprintf(stderr, "%u %s\n", step_, chosen->name);
                break;
            }
        }
    }
    Draw draw(seed_, 0);
    leave(draw);
}

int World::add_object(Kind kind, int link) {
    const int number = static_cast<int>(objects_.size());
    objects_.push_back({.kind = kind, .id = number, .link = link});
    objects_.back().rx_key = mix(seed_ * 1000 + static_cast<uint64_t>(number) * 2);
    objects_.back().tx_key = mix(seed_ * 1000 + static_cast<uint64_t>(number) * 2 + 1);
    return number;
}

void World::add_handle(int process, long fd, int object) {
    handles_.push_back({process, static_cast<int>(fd), object});
}

bool World::has_handle(int object) const { return first_handle(object) != nullptr; }

// One of the coordinator's process, if there is one.
const Handle* World::first_handle(int object) const {
    const Handle* found = nullptr;
    for (const Handle& h : handles_)
        if (h.object == object && (found == nullptr || h.process < found->process)) found = &h;
    return found;
}

void World::remove_handle(size_t index) {
    const int object = handles_[index].object;
    handles_.erase(handles_.begin() + static_cast<long>(index));
    if (!has_handle(object)) last_closed(object);
}

int World::pick(Draw& draw, const std::function<bool(const Handle&, const Object&)>& wanted) const {
    std::vector<int> found;
    for (size_t i = 0; i < handles_.size(); i++) {
        const Object& o = objects_[static_cast<size_t>(handles_[i].object)];
        if (handles_[i].process != 0 && !serves_child(o)) continue;
        if (wanted(handles_[i], o)) found.push_back(static_cast<int>(i));
    }
    // Drawn in any case, so that what follows does not depend on the world more than it must.
    const unsigned number = draw.below(1u << 20);
    return found.empty() ? -1 : found[number % found.size()];
}

bool World::serves_child(const Object& o) const {
    if (o.kind == Kind::udp) return allowed("shared_udp");
    if (o.kind == Kind::set) return allowed("shared_set");
    if (o.kind == Kind::listener) return allowed("shared_listener");
    return allowed("ended_in_child") || !(o.dead || (o.we_ended && o.peer_ended));
}

int World::count(Kind kind) const {
    int n = 0;
    for (size_t i = 0; i < objects_.size(); i++)
        n += objects_[i].kind == kind && has_handle(static_cast<int>(i));
    return n;
}

Told World::ask_peer(const char* what, const Asked& asked, bool quiet) {
    const Told t = ask(asked);
    if (!quiet || t.value < 0) tell("peer %s: %ld %s", what, t.value, t.text);
    return t;
}

void World::last_closed(int object) {
    Object& o = objects_[static_cast<size_t>(object)];
    if (o.kind == Kind::udp) ask_peer("closes", {Wish::close, o.id, 0, 0, 0, 0});
    if (o.kind != Kind::tcp || o.peer_closed) return;
    ask_peer("reads the rest", {Wish::finish, o.id, 0, 0, 0, 0}, false);
    o.peer_closed = true;
}

void World::settle(int object) {
    Object& o = objects_[static_cast<size_t>(object)];
    const Handle* h = first_handle(object);
    if (o.kind != Kind::tcp || h == nullptr) return;
    const int actor = h->process == 0 ? 0 : kThreads + h->process - 1;
    if (!o.dead && !o.peer_closed) {
        ask_peer("awaits", {Wish::await, o.id, o.out_queue, o.we_ended ? POLLRDHUP : 0, 0, 0});
        if (o.we_ended) {
            const Result r = call(actor, {.what = What::await_acked, .fd = h->fd});
            if (r.value < 0) show_result(actor, "acknowledged", h->fd, r);
        }
    }
    long events = 0;
    if (o.dead) events |= POLLHUP;
    if (o.peer_ended) events |= POLLRDHUP;
    if (!o.we_ended && !o.dead) events |= POLLOUT;
    const Result r =
        call(actor, {.what = What::await, .fd = h->fd, .a = o.dead ? -1 : o.in_queue, .b = events});
    if (r.value < 0) show_result(actor, "awaits", h->fd, r);
}

void World::leave(Draw& draw) {
    step_ = 9999;
    const bool in_order = draw.one_in(2);
    for (size_t p = processes_.size(); p-- > 1;) {
        if (!processes_[p].alive || (!in_order && draw.one_in(2))) continue;
        if (processes_[p].parent != 0) continue;
        bool has_children = false;
        for (const Proc& other : processes_)
            has_children = has_children || (other.alive && other.parent == static_cast<int>(p));
        if (has_children) continue;
        Page& page = g_pages[kThreads + static_cast<int>(p) - 1];
        page.call = {.what = What::exit, .a = draw.of({0, 1}), .b = 0};
        wake(page.asked);
        show(0, "reap at the end", {.what = What::reap, .a = processes_[p].pid});
        processes_[p].alive = false;
        std::vector<int> objects;
        for (size_t i = handles_.size(); i-- > 0;)
            if (handles_[i].process == static_cast<int>(p)) remove_handle(i);
    }
    if (in_order) {
        for (size_t i = handles_.size(); i-- > 0;) {
            if (handles_[i].process != 0) continue;
            show(0, "close at the end", {.what = What::close, .fd = handles_[i].fd});
            remove_handle(i);
        }
        // The program's own numbers are low ones.
        int open = 0;
        DIR* d = opendir("/proc/self/fd");
        while (const dirent* e = readdir(d)) {
            const int fd = atoi(e->d_name);
            open += e->d_name[0] != '.' && fd > 2 && fd < 100 && fd != dirfd(d);
        }
        closedir(d);
        tell("%d descriptors are left", open);
    }
    tell("end");
    const int code = static_cast<int>(draw.below(3));
    switch (draw.below(4)) {
        case 0:
            _exit(code);
        case 1:
            for (int i = 1; i < kThreads; i++) {
                g_pages[i].call = {.what = What::exit};
                wake(g_pages[i].asked);
            }
            for (int i = 1; i < kThreads; i++) pthread_join(threads_[i], nullptr);
            if (allowed("pthread_exit")) pthread_exit(nullptr);
            [[fallthrough]];
        default:
            exit(code);
    }
}

}  // namespace random_program
