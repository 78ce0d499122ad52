// SPDX-License-Identifier: BSD-2-Clause
// What the scenarios on select, poll and epoll are written with, on top of the TCP suite's harness.
//
// One case is a group of many scenarios that run in one pair of programs, since starting two programs costs
// more than most scenarios do. Most are combinations, made by loops: a way of waiting, a kind of descriptor,
// what happens to it. A Watch hides how one waits, so that a scenario is written once for all ways. Results
// are shown in order of the members, because the order in which descriptors are reported is not promised.
#pragma once

#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/signalfd.h>
#include <sys/time.h>
#include <sys/timerfd.h>

#include <memory>
#include <thread>

#include "tests/parity/pair/tcp_harness.h"

namespace parity::mux {

using namespace parity::tcp;

enum class How {
    select,
    pselect,
    poll,
    ppoll,
    level,
    edge,
    one_shot,
    exclusive,
    pwait,
    pwait2,
    nested,        // a set in a set, level triggered
    nested_edge,   // the inner set is an edge-triggered member
    edge_nested,   // the members are edge-triggered in the inner set
    polled_set,    // poll() of the set
    selected_set,  // select() of the set
};
inline constexpr How kHows[] = {How::select,      How::pselect,    How::poll,        How::ppoll,
                                How::level,       How::edge,       How::one_shot,    How::exclusive,
                                How::pwait,       How::pwait2,     How::nested,      How::nested_edge,
                                How::edge_nested, How::polled_set, How::selected_set};
const char* name_of(How how);
inline bool is_epoll(How how) { return how >= How::level; }
// Through these only "something is ready" can be seen.
inline bool is_opaque(How how) { return how >= How::nested; }

// Begins a scenario.
[[gnu::format(printf, 1, 2)]] void scenario(const char* format, ...);

inline constexpr long kForEver = -1, kUsec = 1000, kMsec = 1'000'000, kLong = 5000 * kMsec;

class Watch {
  public:
    explicit Watch(How how);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

    // `events` as POLL* bits; members are numbered in order.
    void add(int fd, int events);
    void remove(int fd);
    // Waits and shows the result: "what: 2 #0 IN #1 IN|OUT", 0, or an error. `limit` in ns. Complains when
    // the call ended too early, left errno changed, or reported what it was never asked for.
    int show(const char* what, long limit = 0, const sigset_t* mask = nullptr);
    // The same without output.
    int wait(long limit, const sigset_t* mask = nullptr);
    std::string result() const;
    int set() const { return set_; }  // what epoll_ctl works on

  private:
    struct Member {
        int fd, events, seen;
    };
    int wait_select(long limit, const sigset_t* mask);
    int wait_poll(long limit, const sigset_t* mask);
    int wait_epoll(long limit, const sigset_t* mask);
    int wait_outer(long limit, const sigset_t* mask);

    How how_;
    std::vector<Member> members_;
    int set_ = -1, outer_ = -1;
    int n_ = 0, error_ = 0;
    bool strange_ = false, early_ = false;
};

inline timespec to_timespec(long ns) { return {ns / 1'000'000'000, ns % 1'000'000'000}; }
long now_ns();

// Offloaded sockets that have nothing to do, to be watched along with others: then a call goes through the
// library.
struct Company {
    int udp = -1, tcp = -1;
    void join(Watch& w) const {
        w.add(udp, POLLIN);
        w.add(tcp, POLLIN);
    }
    ~Company() {
        close(udp);
        close(tcp);
    }
};
// Both programs call it.
std::unique_ptr<Company> company();

// A datagram socket at each host, connected to the other's. `offset`: of the port.
int datagram(int offset);

// Runs `f` in another thread a little later.
template <class F>
std::thread soon(F&& f, useconds_t delay_us = 1500) {
    return std::thread([f = std::forward<F>(f), delay_us] {
        usleep(delay_us);
        f();
    });
}

int epoll_add(int set, int fd, uint32_t events, uint64_t data);
int epoll_mod(int set, int fd, uint32_t events, uint64_t data);
inline int epoll_del(int set, int fd) { return epoll_ctl(set, EPOLL_CTL_DEL, fd, nullptr); }
std::string epoll_text(uint32_t events);
// "what: 2 #1 IN #5 OUT", sorted by data.
int show_set(const char* what, int set, long limit_ms = 0, int room = 64);

}  // namespace parity::mux
