// SPDX-License-Identifier: BSD-2-Clause
// Calls that watch descriptors of all kinds at once; those without any; arguments at their limits.
#include <sys/resource.h>

#include "mux.h"

namespace parity::mux {
namespace {

void allow_many_descriptors(rlim_t count) {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = count;
    limit.rlim_max = std::max(limit.rlim_max, count);
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) say("cannot have so many descriptors");
}

// Each subset of these is ready, for each way of waiting.
void subsets(How how) {
    constexpr int kMembers = 5;
    auto friends = company();
    int two[2], loop = -1, loop_other = -1, event = eventfd(0, 0);
    ok(pipe(two));
    loopback_pair(loop, loop_other);
    int fds[kMembers] = {friends->tcp, two[0], friends->udp, loop, event};
    for (unsigned subset = 0; subset < 1u << kMembers; subset++) {
        scenario("%s: mixed, subset %u", name_of(how), subset);
        at_right([&] {
            if (subset & 1) put(friends->tcp, "x");
            if (subset & 4) put(friends->udp, "x");
        });
        at_left([&] {
            if (subset & 2) ok(write(two[1], "x", 1));
            if (subset & 8) ok(write(loop_other, "x", 1));
            if (subset & 16) eventfd_write(event, 1);
            for (int i = 0; i < kMembers; i++)
                if (subset >> i & 1) await_readable(fds[i]);
            Watch w(how);
            for (int fd : fds) w.add(fd, POLLIN);
            w.show("ready", subset != 0 ? kLong : 100 * kUsec);
            w.show("again");
            for (int i = 0; i < kMembers; i++) {
                char block[8];
                if (subset >> i & 1) ok(read(fds[i], block, sizeof block));
            }
            w.show("drained");
        });
    }
    for (int fd : {two[0], two[1], loop, loop_other, event}) close(fd);
}

void no_descriptors() {
    auto friends = company();
    at_left([&] {
        for (How how : kHows) {
            scenario("%s: no descriptors", name_of(how));
            Watch w(how);
            w.show("at once");
            w.show("100 us", 100 * kUsec);
            w.show("3 ms", 3 * kMsec);
        }
        scenario("select and poll without arrays");
        timeval tv{0, 2000};
        SHOW("select", select(0, nullptr, nullptr, nullptr, &tv));
        say("left %ld", static_cast<long>(tv.tv_sec * 1000000 + tv.tv_usec));
        tv = {0, 2'000'000 / 1000};
        SHOW("select, large count", select(100, nullptr, nullptr, nullptr, &tv));
        SHOW("poll", poll(nullptr, 0, 2));
        SHOW("poll of nothing", poll(nullptr, 3, 2));
        timespec ts{0, 100'000};
        SHOW("ppoll", ppoll(nullptr, 0, &ts, nullptr));
        SHOW("pselect", pselect(0, nullptr, nullptr, nullptr, &ts, nullptr));
        say("unchanged %ld", ts.tv_nsec);
    });
}

void arguments_of_poll(int fd) {
    scenario("poll: arguments");
    pollfd p[5] = {{fd, POLLIN, 9}, {-1, POLLIN, 9}, {fd, POLLOUT, 9}, {987, POLLIN, 9}, {fd, 0, 9}};
    auto show_all = [&](const char* what, long n) {
        say("%s: %ld %s %s %s %s %s", what, n, events_text(p[0].revents).c_str(),
            events_text(p[1].revents).c_str(), events_text(p[2].revents).c_str(),
            events_text(p[3].revents).c_str(), events_text(p[4].revents).c_str());
    };
    show_all("several times, and wrong ones", poll(p, 5, 0));
    p[3].fd = ~fd;
    show_all("negated", poll(p, 5, 1000));
    timespec wrong{0, 1'000'000'000}, negative{-1, 5};
    SHOW("not a time", ppoll(p, 5, &wrong, nullptr));
    SHOW("negative time", ppoll(p, 5, &negative, nullptr));
    pollfd idle{fd, POLLIN, 0};
    SHOW("too many", poll(&idle, 0x7fffffff, 0));
    timespec keeps{0, 1'500'000};
    SHOW("time", ppoll(&idle, 1, &keeps, nullptr));
    say("ppoll leaves its time alone: %d", keeps.tv_nsec == 1'500'000);
}

void arguments_of_select(int fd) {
    scenario("select: arguments");
    fd_set r, w;
    auto reset = [&](int of) {
        FD_ZERO(&r);
        FD_SET(of, &r);
        w = r;
    };
    timeval tv{0, 0};
    reset(fd);
    SHOW("negative count", select(-1, &r, &w, nullptr, &tv));
    say("sets are left %d %d", FD_ISSET(fd, &r), FD_ISSET(fd, &w));
    SHOW("count too small", select(fd, &r, &w, nullptr, &tv));
    say("sets are left %d %d", FD_ISSET(fd, &r) != 0, FD_ISSET(fd, &w) != 0);
    reset(fd);
    SHOW("read and write", select(fd + 1, &r, &w, nullptr, &tv));
    say("sets %d %d", FD_ISSET(fd, &r) != 0, FD_ISSET(fd, &w) != 0);
    reset(fd);
    SHOW("one set for both", select(fd + 1, &r, &r, nullptr, &tv));
    say("set %d", FD_ISSET(fd, &r) != 0);
    reset(fd);
    // Lower than the highest that was ever open: of those beyond, the kernel may take no notice.
    int closed = dup(fd);
    close(closed);
    FD_SET(closed, &r);
    SHOW("not open", select(std::max(closed, fd) + 1, &r, &w, nullptr, &tv));
    say("sets are left %d %d", FD_ISSET(fd, &r) != 0, FD_ISSET(closed, &r) != 0);
    reset(fd);
    tv = {-1, 0};
    SHOW("negative time", select(fd + 1, &r, nullptr, nullptr, &tv));
    tv = {0, -1};
    SHOW("negative microseconds", select(fd + 1, &r, nullptr, nullptr, &tv));
    tv = {0, 1'000'000};
    FD_ZERO(&r);
    FD_SET(fd, &r);
    w = r;
    SHOW("a million microseconds", select(fd + 1, nullptr, &w, nullptr, &tv));
    say("left: more than half %d", tv.tv_sec * 1'000'000 + tv.tv_usec > 500'000);
    tv = {0, 3000};
    SHOW("time over", select(fd + 1, &r, nullptr, nullptr, &tv));
    say("left %ld", static_cast<long>(tv.tv_sec * 1'000'000 + tv.tv_usec));
    timespec wrong{0, 1'000'000'000};
    reset(fd);
    SHOW("pselect, not a time", pselect(fd + 1, &r, nullptr, nullptr, &wrong, nullptr));
    timespec keeps{0, 1'500'000};
    SHOW("pselect", pselect(fd + 1, &r, nullptr, nullptr, &keeps, nullptr));
    say("pselect leaves its time alone: %d", keeps.tv_nsec == 1'500'000);
}

// Numbers that no fd_set has room for; and very many.
void beyond_fd_setsize() {
    auto friends = company();
    allow_many_descriptors(20'000);
    int high = -1, high_pipe = -1, two[2];
    at_left([&] {
        high = fcntl(friends->tcp, F_DUPFD, 3000);
        ok(pipe(two));
        high_pipe = fcntl(two[0], F_DUPFD, 3500);
        say("numbers %d %d", high, high_pipe);
    });
    for (How how : kHows) {
        if (how == How::selected_set) continue;
        scenario("%s: numbers beyond FD_SETSIZE", name_of(how));
        at_right([&] { put(friends->tcp, "x"); });
        at_left([&] {
            await_readable(friends->tcp);
            Watch w(how);
            w.add(high, POLLIN);
            w.add(high_pipe, POLLIN);
            w.show("socket");
            ok(write(two[1], "x", 1));
            w.show("both");
            char c;
            ok(read(high, &c, 1));
            w.show("pipe");
            ok(read(high_pipe, &c, 1));
            w.show("none", 100 * kUsec);
        });
    }
    for (How how : {How::poll, How::ppoll, How::level, How::edge, How::nested, How::selected_set}) {
        scenario("%s: ten thousand descriptors", name_of(how));
        at_right([&] { put(friends->tcp, "x"); });
        at_left([&] {
            await_readable(friends->tcp);
            std::vector<int> events;
            Watch w(how);
            for (int i = 0; i < 10'000; i++) {
                int fd = eventfd(i == 5000 || i == 9999, 0);
                if (fd < 0) say("cannot make an eventfd");
                events.push_back(fd);
                if (i == 7000) w.add(friends->tcp, POLLIN);
                w.add(fd, POLLIN);
            }
            w.add(friends->udp, POLLIN);
            w.show("three");
            char c;
            ok(read(friends->tcp, &c, 1));
            w.show("two");
            for (int fd : events) close(fd);
        });
    }
}

}  // namespace

// Only the pair at the loopback address is the kernel's. It begins with 3 segments, carries a byte and its
// acknowledgement in half of the 32 subsets, and ends with at most 4. This host sends and receives each of
// them, so each counts twice.
constexpr long kLoopbackSegments = 2 * (3 + 2 * 16 + 4);

#define MIXED(name, how) \
    TCP_KERNEL_CASE(mixed, name, kLoopbackSegments + kStragglers.kernel_limit) { subsets(How::how); }
MIXED(select, select)
MIXED(pselect, pselect)
MIXED(poll, poll)
MIXED(ppoll, ppoll)
MIXED(level, level)
MIXED(edge, edge)
MIXED(one_shot, one_shot)
MIXED(exclusive, exclusive)
MIXED(pwait, pwait)
MIXED(pwait2, pwait2)
MIXED(nested, nested)
MIXED(nested_edge, nested_edge)
MIXED(edge_nested, edge_nested)
MIXED(polled_set, polled_set)
MIXED(selected_set, selected_set)

TCP_CASE(limits, no_descriptors) { no_descriptors(); }
TCP_CASE(limits, arguments) {
    auto friends = company();
    at_left([&] {
        int two[2];
        ok(pipe(two));
        for (int fd : {friends->tcp, friends->udp, two[1]}) {
            arguments_of_poll(fd);
            arguments_of_select(fd);
        }
    });
}
TCP_CASE(limits, many) { beyond_fd_setsize(); }

}  // namespace parity::mux
