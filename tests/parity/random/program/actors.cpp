// SPDX-License-Identifier: BSD-2-Clause
// The coordinator's side of actors: threads of its own and forked children, see steps.h.
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "steps.h"

namespace random_program {

void World::start_thread(int actor) {
    Page& page = g_pages[actor];
    page.thread = 0;
    page.done = page.asked.load();
    pthread_create(
        &threads_[actor], nullptr,
        [](void* page) -> void* {
            serve_calls(*static_cast<Page*>(page));
            return nullptr;
        },
        &page);
}

void World::begin(int actor, const Call& call) {
    Page& page = g_pages[actor];
    page.call = call;
    const uint32_t entered = page.entered.load();
    page.asked = page.done.load() + 1;
    syscall(SYS_futex, &page.asked, 1 /* FUTEX_WAKE */, 1, nullptr, nullptr, 0);
    if (!wait_change(page.entered, entered, 20'000)) give_up("does not come to a call", actor);
}

bool World::finished(int actor, long msec) {
    Page& page = g_pages[actor];
    return page.done.load() == page.asked.load() || (wait_change(page.done, page.asked.load() - 1, msec));
}

Result World::finish(int actor) {
    if (!finished(actor, 20'000)) give_up("hangs in a call", actor);
    return g_pages[actor].result;
}

Result World::call(int actor, const Call& call) {
    if (actor == 0) {
        g_pages[0].call = call;
        perform(g_pages[0]);
        return g_pages[0].result;
    }
    begin(actor, call);
    return finish(actor);
}

void World::show_result(int actor, const char* name, int fd, const Result& r) {
    tell("A%d %s(%d) = %ld%s%s%s", actor, name, fd, r.value, r.value < 0 ? " " : "",
         r.value < 0 ? strerrorname_np(r.error) : "", r.text);
}

Result World::show(int actor, const char* name, const Call& call) {
    const int pipes = *g_sigpipes;
    const Result r = this->call(actor, call);
    show_result(actor, name, call.fd, r);
    if (*g_sigpipes != pipes) tell("SIGPIPE %d", *g_sigpipes - pipes);
    return r;
}

void World::tell(const char* format, ...) {
    char text[500];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    say("%u %s", step_, text);
}

void World::signal_actor(int actor, int number) {
    syscall(SYS_tgkill, g_pages[actor].process, g_pages[actor].thread, number);
}

int World::any_actor(Draw& draw, int process) {
    return process == 0 ? static_cast<int>(draw.below(kThreads)) : kThreads + process - 1;
}
int World::any_thread(Draw& draw, int process) {
    return process == 0 ? 1 + static_cast<int>(draw.below(kThreads - 1)) : kThreads + process - 1;
}

void World::give_up(const char* why, int actor) {
    tell("A%d %s (call %d of descriptor %d): HANG", actor, why, static_cast<int>(g_pages[actor].call.what),
         g_pages[actor].call.fd);
    // Where to look with a debugger or in /proc, before all of it goes.
    if (getenv("TEST_RANDOM_STAY") != nullptr) {
        fprintf(stderr, "process %d thread %d hangs\n", g_pages[actor].process, g_pages[actor].thread);
        sleep(60);
    }
    for (size_t p = 1; p < processes_.size(); p++)
        if (processes_[p].alive) kill(processes_[p].pid, SIGKILL);
    kill(getpid(), SIGKILL);  // not exit(): what hangs might keep it
    for (;;) pause();
}

}  // namespace random_program
