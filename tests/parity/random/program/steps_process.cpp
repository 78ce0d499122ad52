// SPDX-License-Identifier: BSD-2-Clause
// Steps that begin and end processes.
#include <signal.h>

#include "steps.h"

namespace random_program {

bool World::fork_child(Draw& draw) {
    const int parent = processes_[1].alive && draw.one_in(3) ? 1 : 0;
    size_t p = 1;
    while (p < processes_.size() && processes_[p].alive) p++;
    const int most = draw.of({1, 1, 2, 3});
    if (p >= processes_.size() || static_cast<int>(p) > most) return false;
    for (Object& o : objects_)
        if (o.kind == Kind::udp && o.datagrams > 0 && !allowed("shared_udp")) return false;
    Page& page = g_pages[kThreads + static_cast<int>(p) - 1];
    page.asked = page.done = page.entered = 0;
    page.in_handler = 0;
    const int actor = any_actor(draw, parent);
    const Result r = call(actor, {.what = What::fork, .a = kThreads + static_cast<int>(p) - 1});
    tell("A%d forks process %zu: %s", actor, p, r.value > 0 ? "yes" : "no");
    if (r.value <= 0) return true;
    processes_[p] = {true, static_cast<pid_t>(r.value), parent};
    for (size_t i = 0, n = handles_.size(); i < n; i++) {
        if (handles_[i].process != parent) continue;
        objects_[static_cast<size_t>(handles_[i].object)].was_shared = true;
        add_handle(static_cast<int>(p), handles_[i].fd, handles_[i].object);
    }
    return true;
}

bool World::end_child(Draw& draw) {
    const size_t p = 1 + draw.below(static_cast<unsigned>(processes_.size()) - 1);
    if (!processes_[p].alive) return false;
    for (const Proc& other : processes_)
        if (other.alive && other.parent == static_cast<int>(p)) return false;
    Page& page = g_pages[kThreads + static_cast<int>(p) - 1];
    const int way = static_cast<int>(draw.below(3));
    tell("process %zu ends: %d", p, way);
    if (way == 2) {
        kill(processes_[p].pid, SIGKILL);
    } else {
        page.call = {.what = What::exit, .a = way, .b = static_cast<int>(p)};
        wake(page.asked);
    }
    show(any_actor(draw, processes_[p].parent), "waitpid", {.what = What::reap, .a = processes_[p].pid});
    processes_[p].alive = false;
    for (size_t i = handles_.size(); i-- > 0;)
        if (handles_[i].process == static_cast<int>(p)) remove_handle(i);
    return true;
}

}  // namespace random_program
