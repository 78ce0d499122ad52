// SPDX-License-Identifier: BSD-2-Clause
// What is particular to epoll, for members of each kind: epoll_ctl's errors, duplicates, several sets, sets
// in sets, members that are closed or handed to the kernel, room for few events, several threads.
#include <sys/un.h>

#include <atomic>
#include <iterator>
#include <utility>

#include "mux.h"
#include "tests/apps/pass_descriptor.h"

namespace parity::mux {
namespace {

enum Kind { kTcp, kUdp, kPipe, kKinds };
const char* const kNames[] = {"TCP", "UDP", "pipe"};

// A member whose other end is at the right host, or in this program for a pipe. Both programs make it and
// call give().
struct Member {
    Kind kind;
    int fd = -1, other = -1;
    explicit Member(Kind k) : kind(k) {
        static int offset = 0;
        if (kind == kTcp) fd = connection();
        if (kind == kUdp) {
            fd = datagram(4 + offset++ % 8);
            sync();
        }
        if (kind == kPipe) {
            int two[2];
            ok(pipe(two));
            fd = two[0];
            other = two[1];
        }
    }
    ~Member() {
        if (fd >= 0) close(fd);
        if (other >= 0) close(other);
    }
    void give() {
        at_right([&] {
            if (kind != kPipe) put(fd, "x");
        });
        if (kind == kPipe) ok(write(other, "x", 1));
        at_left([&] { await_readable(fd); });
    }
    void take() {
        char c;
        ok(read(fd, &c, 1));
    }
};

void control_errors(Kind kind) {
    Member m(kind);
    at_left([&] {
        int set = epoll_create1(0), other = epoll_create1(0);
        epoll_event e{EPOLLIN, {.u64 = 1}};
        SHOW("mod, not there", epoll_ctl(set, EPOLL_CTL_MOD, m.fd, &e));
        SHOW("del, not there", epoll_ctl(set, EPOLL_CTL_DEL, m.fd, nullptr));
        SHOW("add", epoll_ctl(set, EPOLL_CTL_ADD, m.fd, &e));
        SHOW("add again", epoll_ctl(set, EPOLL_CTL_ADD, m.fd, &e));
        SHOW("no such operation", epoll_ctl(set, 77, m.fd, &e));
        SHOW("no event for add", epoll_ctl(other, EPOLL_CTL_ADD, m.fd, nullptr));
        SHOW("no event for mod", epoll_ctl(set, EPOLL_CTL_MOD, m.fd, nullptr));
        SHOW("itself", epoll_ctl(set, EPOLL_CTL_ADD, set, &e));
        SHOW("to what is no set", epoll_ctl(m.fd, EPOLL_CTL_ADD, set, &e));
        SHOW("to nothing", epoll_ctl(-1, EPOLL_CTL_ADD, m.fd, &e));
        SHOW("nothing", epoll_ctl(set, EPOLL_CTL_ADD, -1, &e));
        SHOW("nothing there", epoll_ctl(set, EPOLL_CTL_ADD, 9999, &e));
        SHOW("mod to exclusive", epoll_mod(set, m.fd, EPOLLIN | EPOLLEXCLUSIVE, 1));
        SHOW("exclusive and one-shot", epoll_add(other, m.fd, EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT, 1));
        SHOW("exclusive and RDHUP", epoll_add(other, m.fd, EPOLLIN | EPOLLEXCLUSIVE | EPOLLRDHUP, 1));
        SHOW("exclusive, edge, wakeup",
             epoll_add(other, m.fd,
                       EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLET | EPOLLWAKEUP | EPOLLEXCLUSIVE, 1));
        SHOW("mod of exclusive", epoll_mod(other, m.fd, EPOLLIN, 1));
        SHOW("del of exclusive", epoll_del(other, m.fd));
        SHOW("exclusive set", epoll_add(other, set, EPOLLIN | EPOLLEXCLUSIVE, 1));
        SHOW("wakeup", epoll_add(other, m.fd, EPOLLIN | EPOLLWAKEUP, 2));
        SHOW("del", epoll_del(set, m.fd));
        SHOW("del again", epoll_del(set, m.fd));
        SHOW("a file", epoll_add(set, open("/proc/self/exe", O_RDONLY | O_CLOEXEC), EPOLLIN, 1));
        epoll_event out[2];
        SHOW("no room", epoll_wait(set, out, 0, 0));
        SHOW("less", epoll_wait(set, out, -1, 0));
        SHOW("more than there can be", epoll_wait(set, out, 0x7fffffff, 0));
        SHOW("wait on what is no set", epoll_wait(m.fd, out, 1, 0));
        SHOW("wait on nothing", epoll_wait(-1, out, 1, 0));
        timespec wrong{0, 1'000'000'000}, negative{-1, 0};
        SHOW("not a time", epoll_pwait2(other, out, 1, &wrong, nullptr));
        SHOW("a negative time", epoll_pwait2(other, out, 1, &negative, nullptr));
        SHOW("nowhere to write, nothing there", epoll_wait(other, nullptr, 2, 0));
        SHOW("create 0", epoll_create(0));
        SHOW("create with flags", epoll_create1(5));
        int old = epoll_create(1);
        SHOW("create 1", old >= 0 ? 0 : -1);
        for (int fd : {old, set, other}) close(fd);
    });
    m.give();
    at_left([&] {
        int set = epoll_create1(0);
        epoll_add(set, m.fd, EPOLLIN, 1);
        SHOW("nowhere to write", epoll_wait(set, nullptr, 2, 0));
        show_set("still there", set);
        close(set);
    });
}

void data_intact(Kind kind) {
    Member a(kind), b(kind), c(kind);
    int set = epoll_create1(0);
    at_left([&] {
        epoll_add(set, a.fd, EPOLLIN, ~0ull);
        epoll_add(set, b.fd, EPOLLIN, 0);
        epoll_add(set, c.fd, EPOLLIN, 0x8000000000000001);
    });
    for (Member* m : {&a, &b, &c}) m->give();
    at_left([&] {
        show_set("all", set);
        epoll_mod(set, b.fd, EPOLLIN, ~0ull);
        show_set("two alike", set);
        epoll_mod(set, c.fd, EPOLLIN | EPOLLONESHOT, ~0ull);
        show_set("all alike", set);
        show_set("one fired", set);
        b.take();
        show_set("one left", set);
        epoll_mod(set, a.fd, EPOLLIN, 7);
        epoll_mod(set, c.fd, EPOLLIN, 8);
        show_set("different again", set);
    });
    close(set);
}

void duplicates(Kind kind) {
    Member m(kind);
    int set = epoll_create1(0), other = -1;
    at_left([&] {
        other = dup(m.fd);
        SHOW("add", epoll_add(set, m.fd, EPOLLIN, 1));
        SHOW("add the other number", epoll_add(set, other, EPOLLIN | EPOLLET, 2));
        show_set("idle", set);
    });
    m.give();
    at_left([&] {
        show_set("data", set);
        show_set("again", set);
        SHOW("mod", epoll_mod(set, other, EPOLLIN | EPOLLET, 3));
        show_set("modified", set);
        m.take();
        show_set("drained", set);
    });
    m.give();
    at_left([&] {
        int number = m.fd;
        close(number);
        m.fd = other;
        show_set("the first number is closed", set);
        SHOW("del it", epoll_del(set, number));
        // Another file under the old number is another member.
        int fresh = eventfd(1, 0);
        if (fresh != number) say("cannot get the number");
        SHOW("add the new file", epoll_add(set, number, EPOLLIN, 9));
        show_set("both", set);
        SHOW("del the new file", epoll_del(set, number));
        close(number);
        m.take();
        show_set("drained", set);
        close(other);
        m.fd = -1;
        show_set("closed", set);
    });
    sync();
    close(set);
}

void two_sets(Kind kind) {
    Member m(kind);
    int level = epoll_create1(0), edge = epoll_create1(0), once = epoll_create1(0), third = epoll_create1(0);
    at_left([&] {
        epoll_add(level, m.fd, EPOLLIN, 1);
        epoll_add(edge, m.fd, EPOLLIN | EPOLLET, 2);
        epoll_add(once, m.fd, EPOLLIN | EPOLLONESHOT, 3);
    });
    m.give();
    at_left([&] {
        for (int round = 0; round < 2; round++)
            for (int set : {level, edge, once}) show_set("set", set);
        epoll_add(third, m.fd, EPOLLIN | EPOLLET, 4);
        show_set("late", third);
        show_set("late again", third);
        m.take();
        for (int set : {level, edge, once, third}) show_set("drained", set);
        epoll_mod(once, m.fd, EPOLLIN | EPOLLONESHOT, 3);
        epoll_del(level, m.fd);
    });
    m.give();
    at_left([&] {
        for (int set : {level, edge, once, third}) show_set("more", set);
        pollfd p{m.fd, POLLIN, 0};
        SHOW("and poll", poll(&p, 1, 0));
        close(m.fd);
        m.fd = -1;
        for (int set : {level, edge, once, third}) show_set("closed", set);
    });
    sync();
    for (int set : {level, edge, once, third}) close(set);
}

void nested(Kind kind) {
    Member m(kind), n(kind);
    constexpr int kDepth = 7;
    int sets[kDepth];
    for (int& set : sets) set = epoll_create1(0);
    at_left([&] {
        SHOW("add", epoll_add(sets[0], m.fd, EPOLLIN, 100));
        for (int i = 1; i < kDepth; i++)
            if (SHOW("set in set", epoll_add(sets[i], sets[i - 1], EPOLLIN, static_cast<uint64_t>(i))) != 0)
                break;
        SHOW("a circle", epoll_add(sets[0], sets[2], EPOLLIN, 1));
        for (int set : sets) show_set("idle", set);
    });
    m.give();
    at_left([&] {
        for (int set : sets) show_set("data", set);
        for (int set : sets) {
            pollfd p{set, POLLIN, 0};
            SHOW("poll", poll(&p, 1, 0));
        }
        m.take();
        for (int set : sets) show_set("drained", set);
        epoll_mod(sets[0], m.fd, EPOLLIN | EPOLLET, 100);
        epoll_mod(sets[1], sets[0], EPOLLIN | EPOLLET, 1);
    });
    m.give();
    at_left([&] {
        show_set("outer", sets[1]);
        show_set("outer again", sets[1]);
        show_set("outer of outer", sets[2]);
        show_set("inner", sets[0]);
        show_set("inner again", sets[0]);
        m.take();
        // A second way from the outer set to the socket.
        SHOW("directly", epoll_add(sets[1], m.fd, EPOLLIN, 50));
        SHOW("a second member", epoll_add(sets[0], n.fd, EPOLLIN, 51));
    });
    m.give();
    at_left([&] {
        show_set("both ways", sets[1]);
        show_set("inner", sets[0]);
        m.take();
    });
    n.give();
    at_left([&] {
        show_set("the second", sets[1]);
        show_set("inner", sets[0]);
        close(sets[0]);
        sets[0] = -1;
        show_set("inner closed", sets[1]);
    });
    for (int set : sets)
        if (set >= 0) close(set);
}

void modify(Kind kind) {
    Member m(kind);
    int set = epoll_create1(0);
    at_left([&] { epoll_add(set, m.fd, 0, 1); });
    m.give();
    at_left([&] {
        show_set("nothing asked", set);
        const uint32_t all[] = {EPOLLIN,    EPOLLRDNORM,       EPOLLPRI,
                                EPOLLRDHUP, EPOLLIN | EPOLLET, EPOLLIN | EPOLLONESHOT};
        for (uint32_t events : all) {
            SHOW("mod", epoll_mod(set, m.fd, events, events));
            show_set("after", set);
            show_set("again", set);
        }
        SHOW("del", epoll_del(set, m.fd));
        show_set("gone", set);
        SHOW("add", epoll_add(set, m.fd, EPOLLIN | EPOLLONESHOT, 3));
        show_set("there", set);
        SHOW("add a fired one", epoll_add(set, m.fd, EPOLLIN, 3));
        SHOW("del a fired one", epoll_del(set, m.fd));
        SHOW("mod a deleted one", epoll_mod(set, m.fd, EPOLLIN, 3));
        if (kind != kPipe) {
            SHOW("add", epoll_add(set, m.fd, EPOLLIN | EPOLLOUT | EPOLLET, 4));
            show_set("in and out", set);
            SHOW("mod", epoll_mod(set, m.fd, EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND, 5));
            show_set("out", set);
        }
    });
    close(set);
}

// An edge shows what is true when it is looked at, even if that is not what made it.
void read_before_the_wait(Kind kind) {
    Member m(kind);
    int set = epoll_create1(0), narrow = epoll_create1(0), outer = epoll_create1(0);
    at_left([&] {
        epoll_add(set, m.fd, EPOLLIN | EPOLLOUT | EPOLLET, 1);
        epoll_add(narrow, m.fd, EPOLLIN | EPOLLET, 2);
        epoll_add(outer, narrow, EPOLLIN | EPOLLET, 3);
        show_set("fresh", set);
        show_set("fresh, narrow", narrow);
        show_set("fresh, outer", outer);
    });
    for (int round = 0; round < 2; round++) {
        m.give();
        at_left([&] {
            m.take();
            pollfd p[2] = {{set, POLLIN, 0}, {narrow, POLLIN, 0}};
            if (round == 1) SHOW("poll", poll(p, 2, 0));
            show_set("read", set);
            show_set("read, again", set);
            show_set("read, narrow", narrow);
            show_set("read, outer", outer);
        });
    }
    for (int s : {set, narrow, outer}) close(s);
}

void closed_while_watched(Kind kind) {
    for (bool ready : {false, true}) {
        Member m(kind), n(kind);
        int set = epoll_create1(0);
        at_left([&] {
            epoll_add(set, m.fd, EPOLLIN, 1);
            epoll_add(set, n.fd, EPOLLIN, 2);
        });
        if (ready) m.give();
        at_left([&] {
            int number = m.fd;
            close(m.fd);
            m.fd = -1;
            show_set("closed", set);
            SHOW("del", epoll_del(set, number));
            SHOW("mod", epoll_mod(set, number, EPOLLIN, 1));
        });
        n.give();
        at_left([&] { show_set("the other", set); });
        close(set);
    }
}

// Another thread closes what this one waits for. The kernel goes on waiting; the call ends with its time. The
// wait has to begin before the close, on a busy machine, too.
void closed_by_another(Kind kind) {
    for (How how : {How::select, How::poll, How::level, How::nested, How::polled_set}) {
        Member m(kind), n(kind);
        at_left([&] {
            Watch w(how);
            w.add(m.fd, POLLIN);
            w.add(n.fd, POLLIN);
            std::atomic<bool> begins{false};
            std::thread other([&] {
                while (!begins) usleep(200);
                usleep(40'000);
                close(std::exchange(m.fd, -1));
            });
            begins = true;
            w.show(name_of(how), 100 * kMsec);
            other.join();
        });
        n.give();
        at_left([&] {
            Watch w(how);
            w.add(n.fd, POLLIN);
            w.show("the other", kLong);
        });
    }
}

void threads_in_one_wait(Kind kind) {
    constexpr int kThreads = 4;
    for (bool edge : {false, true}) {
        Member m(kind);
        int set = epoll_create1(0);
        at_left([&] { epoll_add(set, m.fd, EPOLLIN | (edge ? EPOLLET : 0u), 1); });
        std::thread threads[kThreads];
        std::atomic<int> woken{0};
        if (left()) {
            for (auto& t : threads)
                t = std::thread([&] {
                    epoll_event e;
                    if (epoll_wait(set, &e, 1, 40) == 1) woken++;
                });
            usleep(5000);
        }
        m.give();
        at_left([&] {
            for (auto& t : threads) t.join();
            // Level-triggered, everyone who looks may see it.
            if (edge)
                say("woken %d", woken.load());
            else
                say("woken %s", woken > 0 ? "some" : "none");
        });
        close(set);
    }
}

// A member that another thread adds, modifies or makes ready wakes who waits.
void changes_wake(Kind kind) {
    for (int what = 0; what < 3; what++) {
        Member m(kind);
        int set = epoll_create1(0);
        m.give();
        at_left([&] {
            int idle = eventfd(0, 0);
            epoll_add(set, idle, EPOLLIN, 9);
            if (what == 1) epoll_add(set, m.fd, 0, 1);
            if (what == 2) epoll_add(set, m.fd, EPOLLIN | EPOLLONESHOT, 1);
            if (what == 2) show_set("once", set);
            std::thread other = soon([&] {
                if (what == 0) epoll_add(set, m.fd, EPOLLIN, 1);
                if (what != 0) epoll_mod(set, m.fd, EPOLLIN, 1);
            });
            show_set(what == 0 ? "added" : what == 1 ? "modified" : "armed again", set, 5000);
            other.join();
            close(idle);
        });
        close(set);
    }
}

void other_numbers_of_the_set(Kind kind) {
    Member m(kind);
    int set = epoll_create1(EPOLL_CLOEXEC), early = dup(set);
    at_left([&] { SHOW("add", epoll_add(set, m.fd, EPOLLIN, 1)); });
    int late = dup(set);
    // And one that came over a unix socket.
    int two[2];
    ok(socketpair(AF_UNIX, SOCK_STREAM, 0, two));
    SHOW("send the set", pass_descriptor(two[0], set));
    int received = -1;
    SHOW("receive it", DescriptorMessage().receive(two[1], received));
    m.give();
    at_left([&] {
        for (int number : {set, early, late, received}) show_set("by each number", number);
        SHOW("mod", epoll_mod(early, m.fd, EPOLLIN | EPOLLET, 2));
        for (int number : {set, early, late, received}) show_set("an edge, once", number);
        close(set);
        set = -1;
        SHOW("mod", epoll_mod(received, m.fd, EPOLLIN, 3));
        for (int number : {early, late, received}) show_set("without the first", number);
        SHOW("del", epoll_del(late, m.fd));
        show_set("gone", early);
    });
    for (int fd : {set, early, late, received, two[0], two[1]})
        if (fd >= 0) close(fd);
}

// ---- a set that others watch ----

enum Watching {
    kByPoll,
    kByPpoll,
    kBySelect,
    kByPselect,
    kAmongOurs,
    kSelectAmongOurs,
    kByOuterSet,
    kPolledOuterSet,
    kCopy
};
const char* const kWatchings[] = {"poll",
                                  "ppoll",
                                  "select",
                                  "pselect",
                                  "poll with sockets",
                                  "select with sockets",
                                  "epoll of the set",
                                  "poll of the outer set",
                                  "poll of a copy"};

// Waits for `set` alone or, as a pollfd or in a set of its own, in company. The call's result, and -2 for a
// wrong report.
int watch_set(Watching how, int set, int outer, int copy, const Company& ours) {
    int n = 0;
    constexpr timespec kTime{5, 0};
    fd_set in;
    FD_ZERO(&in);
    FD_SET(set, &in);
    pollfd p[3] = {{how == kPolledOuterSet ? outer
                    : how == kCopy         ? copy
                                           : set,
                    POLLIN, 0},
                   {ours.udp, POLLIN, 0},
                   {ours.tcp, POLLIN, 0}};
    switch (how) {
        case kByPoll:
        case kPolledOuterSet:
        case kCopy:
            n = poll(p, 1, 5000);
            break;
        case kByPpoll:
            n = ppoll(p, 1, &kTime, nullptr);
            break;
        case kAmongOurs:
            n = poll(p, 3, 5000);
            break;
        case kSelectAmongOurs:
            FD_SET(ours.udp, &in);
            [[fallthrough]];
        case kBySelect: {
            timeval t{5, 0};
            n = select(std::max(set, ours.udp) + 1, &in, nullptr, nullptr, &t);
            return n == 1 && (!FD_ISSET(set, &in) || t.tv_sec >= 5) ? -2 : n;
        }
        case kByPselect:
            n = pselect(set + 1, &in, nullptr, nullptr, &kTime, nullptr);
            return n == 1 && !FD_ISSET(set, &in) ? -2 : n;
        case kByOuterSet: {
            epoll_event e{};
            n = epoll_wait(outer, &e, 1, 5000);
            return n == 1 && e.data.u64 != 5 ? -2 : n;
        }
    }
    return n == 1 && p[0].revents != POLLIN ? -2 : n;
}

// Threads that watch a set in each of these ways, all at once. `change` is made meanwhile and makes nothing
// ready.
class Watchers {
  public:
    Watchers(int set, const Company& ours) : outer_(epoll_create1(0)), copy_(dup(set)) {
        epoll_add(outer_, set, EPOLLIN, 5);
        for (int how = 0; how <= kCopy; how++)
            threads_.emplace_back([=, this, &ours] {
                results_[how] = watch_set(static_cast<Watching>(how), set, outer_, copy_, ours);
                early_[how] = !given_;
            });
    }
    // From here on the set may be ready.
    void giving() { given_ = true; }
    void show() {
        for (auto& t : threads_) t.join();
        for (int how = 0; how <= kCopy; how++)
            say("%s: %d%s", kWatchings[how], results_[how], early_[how] ? ", too early" : "");
        close(outer_);
        close(copy_);
    }

  private:
    int outer_, copy_;
    std::atomic<bool> given_{false};
    int results_[kCopy + 1] = {};
    bool early_[kCopy + 1] = {};
    std::vector<std::thread> threads_;
};
constexpr int kGiveTime = 30'000;  // for threads to fall asleep, or to wake up where they should not: usec

// The set's first members come while it is watched.
void filled_while_watched(const Company& ours, Kind kind) {
    scenario("filled while watched: %s", kNames[kind]);
    Member m(kind);
    std::unique_ptr<Watchers> watchers;
    int set = epoll_create1(0);
    at_left([&] {
        watchers = std::make_unique<Watchers>(set, ours);
        usleep(kGiveTime);
        SHOW("add", epoll_add(set, m.fd, EPOLLIN, 1));
        usleep(kGiveTime);
        watchers->giving();
    });
    m.give();
    at_left([&] {
        watchers->show();
        show_set("the set", set);
        m.take();
        show_set("read", set);
    });
    close(set);
}

// Its member gets its connection while it is watched.
void connected_while_watched(const Company& ours, Kind kind, bool early) {
    scenario("connected while watched: %s%s", kNames[kind], early ? ", added meanwhile" : "");
    int fd = -1, listener = -1, set = epoll_create1(0);
    std::unique_ptr<Watchers> watchers;
    if (kind == kTcp) at_right([&] { listener = listening(16); });
    at_left([&] {
        fd = kind == kTcp ? stream(SOCK_NONBLOCK) : udp();
        auto add = [&] { SHOW("add", epoll_add(set, fd, EPOLLIN | EPOLLET, 1)); };
        if (!early) add();
        show_set("fresh", set);
        if (kind == kUdp || !early) watchers = std::make_unique<Watchers>(set, ours);
        usleep(kGiveTime);
        if (early) add();
        if (early && kind == kTcp) {
            show_set("a hang-up", set);
            watchers = std::make_unique<Watchers>(set, ours);
            usleep(kGiveTime);
        }
        const sockaddr_in a = at(there(), port(kind == kTcp ? 16 : 15));
        if (kind == kUdp) SHOW("bind", bind(fd, raw(at(here(), port(15))), sizeof a));
        const int r = connect(fd, raw(a), sizeof a);
        say("connect %s", r == 0 || errno == EINPROGRESS ? "begins" : strerrorname_np(errno));
        usleep(kGiveTime);
        watchers->giving();
    });
    at_right([&] {
        if (kind == kTcp) {
            fd = accepted(listener);
            close(listener);
        } else {
            fd = datagram(15);
        }
        put(fd, "x");
    });
    at_left([&] {
        watchers->show();
        show_read("data", fd, 10);
    });
    close(fd);
    close(set);
}

// Every kind in its turn, for each of the scenarios above.
void for_each_kind(const char* name, void (*f)(Kind)) {
    auto friends = company();
    for (int kind = 0; kind < kKinds; kind++) {
        scenario("%s: %s", name, kNames[kind]);
        f(static_cast<Kind>(kind));
        sync();
    }
}

// ---- sockets that become the kernel's ----

void to_kernel(int fd, Kind kind) {
    if (kind == kTcp) {
        // The library leaves pacing to the kernel.
        unsigned rate = 1'000'000'000;
        SHOW("pacing", setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate));
    } else {
        sockaddr_in nobody = at("127.0.0.1", port(17));
        SHOW("connect", connect(fd, raw(nobody), sizeof nobody));
    }
}

void fallback(Kind kind, uint32_t mode) {
    scenario("%s falls back to the kernel, %s", kNames[kind],
             mode == 0         ? "level"
             : mode == EPOLLET ? "edge"
                               : "one-shot");
    Member m(kind), n(kind);
    int set = epoll_create1(0), outer = epoll_create1(0);
    at_left([&] {
        epoll_add(set, m.fd, EPOLLIN | mode, 1);
        epoll_add(set, n.fd, EPOLLIN, 2);
        epoll_add(outer, set, EPOLLIN, 3);
        show_set("idle", set);
    });
    m.give();
    at_left([&] {
        show_set("data", set);
        to_kernel(m.fd, kind);
        // The hand-over may make an edge of its own: an edge may always come once too often.
        if (mode != EPOLLET) show_set("moved", set);
        SHOW("mod", epoll_mod(set, m.fd, EPOLLIN | EPOLLOUT | mode, 4));
        show_set("modified", set);
        show_set("again", set);
        m.take();
        SHOW("mod", epoll_mod(set, m.fd, EPOLLIN | mode, 5));
        show_set("drained", set);
    });
    if (kind == kTcp) {
        m.give();
        at_left([&] {
            show_set("more", set);
            m.take();
        });
    }
    n.give();
    at_left([&] {
        show_set("the other", set);
        SHOW("add", epoll_add(set, m.fd, EPOLLIN, 4));
        SHOW("del", epoll_del(set, m.fd));
        SHOW("del again", epoll_del(set, m.fd));
        SHOW("add", epoll_add(set, m.fd, EPOLLIN | EPOLLOUT, 6));
        show_set("added", set);
        show_set("outer", outer);
    });
    close(set);
    close(outer);
}

// ---- room for few events ----

void fairness(int room) {
    scenario("fairness: room for %d", room);
    std::vector<std::unique_ptr<Member>> members;
    for (int i = 0; i < 9; i++) members.push_back(std::make_unique<Member>(static_cast<Kind>(i % kKinds)));
    int set = epoll_create1(0);
    for (auto& m : members) m->give();
    at_left([&] {
        uint64_t i = 0;
        for (auto& m : members) epoll_add(set, m->fd, EPOLLIN, i++);
        // Level-triggered members take turns: nobody waits for more than two rounds.
        int rounds = 2 * (9 + room - 1) / room;
        std::string seen(9, '-');
        for (int r = 0; r < rounds; r++) {
            epoll_event e[9];
            int n = epoll_wait(set, e, room, 0);
            if (n != room) say("got %d", n);
            for (int k = 0; k < n; k++) seen[e[k].data.u64] = '*';
        }
        say("seen %s", seen.c_str());
        // Edge-triggered ones come once each.
        i = 0;
        for (auto& m : members) epoll_mod(set, m->fd, EPOLLIN | EPOLLET, i++);
        std::string times(9, '0');
        int total = 0;
        for (int n = 1, calls = 0; n > 0 && calls < 50; calls++) {
            epoll_event e[9];
            n = epoll_wait(set, e, room, 0);
            for (int k = 0; k < n; k++) times[e[k].data.u64]++;
            total += n;
        }
        say("edges %s, %d", times.c_str(), total);
    });
    close(set);
}

}  // namespace

TCP_KERNEL_CASE(sets, control_errors, 7) {
    for_each_kind("errors of epoll_ctl and epoll_wait", control_errors);
}
TCP_KERNEL_CASE(sets, data_intact, 10) { for_each_kind("the program's data", data_intact); }
TCP_CASE(sets, duplicates) { for_each_kind("two numbers of one socket", duplicates); }
TCP_KERNEL_CASE(sets, two_sets, 7) { for_each_kind("a member of several sets", two_sets); }
TCP_KERNEL_CASE(sets, nested, 7) { for_each_kind("sets in sets", nested); }
TCP_KERNEL_CASE(sets, modify, 7) { for_each_kind("modify", modify); }
TCP_CASE(sets, read_before_the_wait) { for_each_kind("read before the wait", read_before_the_wait); }
TCP_KERNEL_CASE(sets, closed_while_watched, 7) {
    for_each_kind("closed while watched", closed_while_watched);
}
TCP_KERNEL_CASE(sets, closed_by_another, 10) { for_each_kind("closed by another thread", closed_by_another); }
TCP_KERNEL_CASE(sets, threads_in_one_wait, 7) { for_each_kind("several threads wait", threads_in_one_wait); }
TCP_KERNEL_CASE(sets, changes_wake, 10) { for_each_kind("changes wake", changes_wake); }
TCP_KERNEL_CASE(sets, other_numbers_of_the_set, 7) {
    for_each_kind("other numbers of the set", other_numbers_of_the_set);
}
// An epoll set from before the library (mux_parity_test.cpp gives it), with a member already.
TCP_CASE(sets, inherited) {
    constexpr int kSet = 102, kPipeEnd = 103;
    auto friends = company();
    for (Kind kind : {kTcp, kUdp}) {
        scenario("an inherited set: %s", kNames[kind]);
        Member m(kind);
        at_left([&] {
            show_set("idle", kSet);
            ok(write(kPipeEnd, "x", 1));
            show_set("its own member", kSet);
            SHOW("add", epoll_add(kSet, m.fd, EPOLLIN, 1));
            show_set("again", kSet);
        });
        m.give();
        at_left([&] {
            show_set("both", kSet);
            SHOW("mod", epoll_mod(kSet, m.fd, EPOLLIN | EPOLLET, 2));
            show_set("edge", kSet);
            show_set("no edge", kSet);
            int other = dup(kSet);
            m.take();
            epoll_mod(kSet, m.fd, EPOLLIN, 3);
            show_set("drained", other);
            close(other);
        });
        m.give();
        at_left([&] {
            show_set("more", kSet);
            SHOW("del", epoll_del(kSet, m.fd));
            show_set("gone", kSet);
        });
    }
}
// The port of what is closed here stays taken while a connection lives. The set knows nothing of that.
TCP_KERNEL_CASE(sets, closed_while_a_connection_lives, 12) {
    int listener = -1, fd = -1, set = -1;
    constexpr uint32_t kAll = EPOLLIN | EPOLLOUT | EPOLLRDHUP;
    at_server([&] {
        listener = listening();
        set = epoll_create1(0);
        SHOW("add", epoll_add(set, listener, kAll, 1));
    });
    at_client([&] { fd = connecting(there(), port()); });
    at_server([&] {
        await_events(listener, POLLIN);
        show_set("listener", set);
        fd = accepted(listener);
        SHOW("close", close(listener));
        show_set("closed", set);
        pollfd p{set, POLLIN, 0};
        SHOW("poll", poll(&p, 1, 50));
    });
    at_client([&] {
        set = epoll_create1(0);
        SHOW("add", epoll_add(set, fd, kAll, 2));
        show_set("connection", set);
        put(fd, "last words");
        SHOW("close", close(fd));
        show_set("closed", set);
        pollfd p{set, POLLIN, 0};
        SHOW("poll", poll(&p, 1, 50));
    });
    at_server([&] {
        show_read("recv", fd, 20);
        show_read("end", fd, 20);
        SHOW("close", close(fd));
    });
    at_client([&] { show_set("all over", set); });
    close(set);
}
TCP_KERNEL_CASE(sets, fallback, 41) {
    auto friends = company();
    for (Kind kind : {kTcp, kUdp})
        for (uint32_t mode : {0u, static_cast<uint32_t>(EPOLLET), static_cast<uint32_t>(EPOLLONESHOT)})
            fallback(kind, mode);
}
TCP_KERNEL_CASE(sets, watched_from_outside, 12) {
    auto friends = company();
    for (Kind kind : {kTcp, kUdp, kPipe}) filled_while_watched(*friends, kind);
    for (Kind kind : {kTcp, kUdp})
        for (bool early : {false, true}) connected_while_watched(*friends, kind, early);
}
// Each connection of fairness() ends with its byte unread, so by a reset. The peer's FIN crosses it and finds
// the connection gone: the kernel receives that FIN and answers it. All 15 may do so.
constexpr int kRooms[] = {1, 2, 3, 5, 8};
constexpr int kConnectionsOfARoom = 9 / kKinds;
TCP_KERNEL_CASE(sets, fairness, (1 + std::ssize(kRooms) * kConnectionsOfARoom) * kStragglers.kernel_limit) {
    auto friends = company();
    for (int room : kRooms) fairness(room);
}

}  // namespace parity::mux
