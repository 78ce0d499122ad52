// SPDX-License-Identifier: BSD-2-Clause
// What the coordinator knows of the world, and the steps it may take in it. A step ends when all of it has
// arrived: what every call answers then depends on the calls before only, and the kernel's transcript can be
// compared with the library's. Inside a race nothing is shown; what must hold there is checked, and the step
// says so.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "call.h"
#include "draw.h"
#include "peer.h"

namespace random_program {

enum class Role : int { reader, writer, watcher, forker };
enum class Kind { tcp, udp, listener, set };

struct Object {
    Kind kind;
    int id;  // the peer's number for it
    int link = 0, port = 0;
    bool nonblocking = false;
    // TCP
    uint64_t rx_key = 0, tx_key = 0, received = 0, sent = 0;
    long in_queue = 0, out_queue = 0;  // unread here, and at the peer
    bool we_ended = false, peer_ended = false, peer_closed = false, dead = false, read_shut = false;
    // UDP
    bool connected = false;
    long datagrams = 0;
    bool was_shared = false;  // another process had it
};

struct Handle {
    int process, fd, object;
};

struct Proc {
    bool alive = false;
    pid_t pid = 0;
    int parent = 0;
};

class World {
  public:
    World(uint64_t seed, std::set<std::string> without);
    // Makes `steps` steps, without those in `skip`; then ends the process in one of its ways.
    [[noreturn]] void run(unsigned steps, const std::set<unsigned>& skip);

  private:
    using Step = bool (World::*)(Draw&);
    struct Row {
        const char* name;
        unsigned weight;
        Step step;
    };
    static const std::vector<Row>& table();

    // ---- actors (actors.cpp) ----
    void start_thread(int actor);
    void cancel(int actor, const char* name);
    void begin(int actor, const Call& call);
    bool finished(int actor, long msec);
    Result finish(int actor);  // ends the program when the call does not end
    Result call(int actor, const Call& call);
    Result show(int actor, const char* name, const Call& call);
    void tell(const char* format, ...) __attribute__((format(printf, 2, 3)));
    void show_result(int actor, const char* name, int fd, const Result& result);
    void signal_actor(int actor, int number);
    int any_actor(Draw& draw, int process);
    int any_thread(Draw& draw, int process);  // not the coordinator itself
    bool is_thread(int actor) const { return actor > 0 && actor < kThreads; }
    int process_of(int actor) const { return actor < kThreads ? 0 : actor - kThreads + 1; }
    [[noreturn]] void give_up(const char* why, int actor);

    // ---- objects (world.cpp) ----
    int add_object(Kind kind, int link);
    void add_handle(int process, long fd, int object);
    void remove_handle(size_t index);
    void last_closed(int object);
    bool has_handle(int object) const;
    const Handle* first_handle(int object) const;
    // -1 when there is none.
    int pick(Draw& draw, const std::function<bool(const Handle&, const Object&)>& wanted) const;
    int count(Kind kind) const;
    // Whether a child may be tried with it: some of what goes on between processes has known differences.
    bool serves_child(const Object& o) const;
    Told ask_peer(const char* what, const Asked& asked, bool quiet = true);
    // Waits until all that is expected is there, on both sides.
    void settle(int object);
    bool readable(const Object& o) const { return o.in_queue > 0 || o.peer_ended || o.dead || o.read_shut; }
    static bool talks(const Object& o) {
        return o.kind == Kind::tcp && !o.dead && !o.we_ended && !o.peer_closed;
    }

    // ---- steps ----
    bool open_udp(Draw& draw);
    bool open_tcp(Draw& draw);
    bool open_listener(Draw& draw);
    bool accept_one(Draw& draw);
    bool peer_sends(Draw& draw);
    bool peer_reads(Draw& draw);
    bool peer_ends(Draw& draw);
    bool receive(Draw& draw);
    bool send(Draw& draw);
    bool shut_down(Draw& draw);
    bool close_one(Draw& draw);
    bool duplicate(Draw& draw);
    bool blocking_mode(Draw& draw);
    bool options(Draw& draw);
    bool names(Draw& draw);
    bool look(Draw& draw);
    bool udp_send(Draw& draw);
    bool udp_receive(Draw& draw);
    bool udp_connect(Draw& draw);
    bool new_set(Draw& draw);
    bool change_set(Draw& draw);
    bool wait_set(Draw& draw);
    bool fork_child(Draw& draw);
    bool end_child(Draw& draw);
    bool blocked_receive(Draw& draw);
    bool blocked_wait(Draw& draw);
    bool blocked_send(Draw& draw);
    bool blocked_accept(Draw& draw);
    bool race_stream(Draw& draw);
    bool race_datagrams(Draw& draw);
    bool race_accept(Draw& draw);

    bool allowed(const char* what) const { return !without_.contains(what); }
    void after_receive(Object& o, const Result& r);
    void after_send(int object, const Result& r);
    void trigger_data(int object, long length);
    void trigger_end(int object, int how);
    void race(Draw& draw, int object, const std::vector<std::pair<int, Call>>& parts, bool signals,
              int record_fd);
    [[noreturn]] void leave(Draw& draw);

    uint64_t seed_;
    std::set<std::string> without_;
    unsigned step_ = 0;
    std::vector<Object> objects_;
    std::vector<Handle> handles_;
    std::vector<Proc> processes_;
    pthread_t threads_[kThreads] = {};
    int next_port_ = 1;
};

}  // namespace random_program
