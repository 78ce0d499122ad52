// SPDX-License-Identifier: BSD-2-Clause
// One call that an actor (a thread, or a forked child) makes for the coordinator, and what came of it. Both
// are plain memory, shared between processes, so it makes no difference who makes a call.
#pragma once

#include <setjmp.h>
#include <stdint.h>
#include <sys/types.h>

#include <atomic>
#include <string>

#include "stream.h"

namespace random_program {

inline constexpr const char* kSubject[] = {"198.18.1.1", "198.18.2.1"};  // of link 1 and 2
inline constexpr const char* kPeer[] = {"198.18.1.2", "198.18.2.2"};
inline constexpr int kPorts = 20;
extern int g_base;  // the first of this run's ports

enum class What : int {
    nothing,
    socket,
    bind,
    connect,
    listen,
    accept,
    receive,
    send,
    shutdown,
    close,
    dup,
    dup2,
    dup3,
    dupfd,
    dupfd_cloexec,
    nonblock,
    nonblock_ioctl,
    status_flags,
    set_option,
    get_option,
    linger,
    own_name,
    peer_name,
    poll,
    select,
    new_set,
    change_set,
    wait_set,
    fork,
    exit,
    reap,
    await,
    await_acked,
    race,
};

// What the arguments mean is said at each case of perform().
struct Call {
    What what = What::nothing;
    int fd = -1, count = 0;
    long a = 0, b = 0, c = 0, d = 0;
    uint64_t key = 0, at = 0;
    int list[24] = {};
};

struct Result {
    long value = 0;
    int error = 0;
    long moved = 0;  // bytes of a stream that were taken out
    char text[300] = "";
};

// How a race is going, for all that take part. In shared memory.
struct Race {
    static constexpr int kDatagrams = 64;
    std::atomic<long> read, target, written;
    std::atomic<bool> stop;
    std::atomic<int> writers;  // the next free number
    std::atomic<int> seen[kDatagrams];

    void reset() {
        read = target = written = 0;
        stop = false;
        writers = 0;
        for (auto& s : seen) s = 0;
    }
};

enum class InHandler : int { nothing, jump, close, send, record };

// What an actor is to do and has done. In shared memory.
struct Page {
    std::atomic<uint32_t> asked, entered, done;
    pid_t process, thread;
    int number;
    Call call;
    Result result;
    // For the signal handler of this actor.
    std::atomic<int> in_handler, handler_ran, handlers;  // the last: that run now
    int handler_fd;
    uint64_t handler_key, handler_at;
    int handler_writer;
    uint64_t handler_serial;
    SocketCounters tally;
};

extern Race* g_race;
extern Page* g_pages;
// Tallies of children that a race forks, for their short lives.
inline constexpr int kActors = 8, kThreads = 4, kBriefTallies = 64;
extern SocketCounters* g_brief;
extern std::atomic<int>* g_brief_used;
extern std::atomic<int>* g_sigpipes;
extern thread_local Page* t_page;
extern thread_local sigjmp_buf t_jump;
extern thread_local volatile int t_may_jump;

void install_handlers();
// Makes the call, here and now.
void perform(Page& page);
void take_part(const Call& call, Page& page, Result& result);  // What::race

void say(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string address_text(const void* address, unsigned length);
std::string events_text(unsigned events);
long milliseconds();

// The actors' side: waits for calls until What::exit.
void serve_calls(Page& page);

void wake(std::atomic<uint32_t>& word);
// Until the word is not `old`; false after `msec`.
bool wait_change(std::atomic<uint32_t>& word, uint32_t old, long msec);

}  // namespace random_program
