// SPDX-License-Identifier: BSD-2-Clause
// Urgent data: one byte outside the stream or inside it, the mark, and the events around it.
#include <signal.h>
#include <sys/epoll.h>
#include <sys/time.h>

#include "tests/parity/pair/tcp_harness.h"

namespace parity::tcp {
namespace {

int at_mark(int fd) {
    int mark = -1;
    return ioctl(fd, SIOCATMARK, &mark) == 0 ? mark : -1;
}

// The urgent byte comes when the other side's call waits.
void urgent_later(int fd, int msec) {
    usleep(static_cast<useconds_t>(msec) * 1000);
    SHOW("oob", send(fd, "!", 1, MSG_OOB));
}

}  // namespace

TCP_KERNEL_PAIR_CASE(urgent, out_of_band, 28) {
    int fd = connection();
    at_left([&] {
        put(fd, "before");
        SHOW("oob", send(fd, "!", 1, MSG_OOB));
        put(fd, "after");
        await_acked(fd);
    });
    at_right([&] {
        await_bytes(fd, 6);
        await_events(fd, POLLPRI);
        await_readable(fd);
        show_events("urgent", fd);
        show_select("urgent", fd);
        say("at mark %d", at_mark(fd));
        show_read("peek oob", fd, 10, MSG_OOB | MSG_PEEK);
        show_read("oob", fd, 10, MSG_OOB);
        show_read("oob again", fd, 10, MSG_OOB);
        show_read("up to the mark", fd, 100);
        say("at mark %d", at_mark(fd));
        show_events("at the mark", fd);
        show_read("behind it", fd, 100);
        say("at mark %d", at_mark(fd));
        show_read("no more oob", fd, 10, MSG_OOB);
        show_events("all read", fd);
    });
}

TCP_KERNEL_PAIR_CASE(urgent, longer_than_a_byte, 19) {
    int fd = connection();
    at_left([&] { SHOW("oob", send(fd, "abc", 3, MSG_OOB)); });
    at_right([&] {
        await_events(fd, POLLPRI);
        await_bytes(fd, 2);
        show_read("stream", fd, 10);
        show_read("oob", fd, 10, MSG_OOB);
        show_read("nothing", fd, 10, MSG_DONTWAIT);
    });
}

TCP_KERNEL_PAIR_CASE(urgent, inline_, 28) {
    int fd = connection();
    at_right([&] {
        SHOW("inline", set(fd, SOL_SOCKET, SO_OOBINLINE, 1));
        say("inline %d", get(fd, SOL_SOCKET, SO_OOBINLINE));
    });
    at_left([&] {
        put(fd, "before");
        SHOW("oob", send(fd, "!", 1, MSG_OOB));
        put(fd, "after");
        await_acked(fd);
    });
    at_right([&] {
        await_events(fd, POLLPRI);
        await_bytes(fd, 6);
        show_events("urgent", fd);
        show_read("oob", fd, 10, MSG_OOB);
        show_read("up to the mark", fd, 100);
        say("at mark %d", at_mark(fd));
        await_bytes(fd, 6);
        show_read("the urgent byte and on", fd, 100);
        say("at mark %d", at_mark(fd));
    });
}

TCP_KERNEL_PAIR_CASE(urgent, two_in_a_row, 25) {
    int fd = connection();
    at_left([&] {
        SHOW("first", send(fd, "1", 1, MSG_OOB));
        await_acked(fd);
        SHOW("second", send(fd, "2", 1, MSG_OOB));
        await_acked(fd);
    });
    at_right([&] {
        await_events(fd, POLLPRI);
        // The first one became ordinary data.
        show_read("oob", fd, 10, MSG_OOB);
        show_read("stream", fd, 10, MSG_DONTWAIT);
    });
}

TCP_PAIR_CASE(urgent, none) {
    int fd = connection();
    say("at mark %d", at_mark(fd));
    show_read("oob", fd, 10, MSG_OOB);
    show_read("oob", fd, 10, MSG_OOB | MSG_DONTWAIT);
    show_read("oob, no room", fd, 0, MSG_OOB);
    sync();
    at_left([&] { shutdown(fd, SHUT_WR); });
    at_right([&] {
        await_events(fd, POLLRDHUP);
        show_read("oob at the end", fd, 10, MSG_OOB);
    });
}

TCP_KERNEL_PAIR_CASE(urgent, signal, 19) {
    int fd = connection();
    static volatile sig_atomic_t urgent;
    urgent = 0;
    at_right([&] {
        struct sigaction action {};
        action.sa_handler = [](int) { urgent = urgent + 1; };
        sigaction(SIGURG, &action, nullptr);
        SHOW("owner", fcntl(fd, F_SETOWN, getpid()));
        say("owner is us %d", fcntl(fd, F_GETOWN) == getpid());
    });
    at_left([&] { SHOW("oob", send(fd, "!", 1, MSG_OOB)); });
    at_right([&] {
        eventually("signal", [&] { return urgent > 0; });
        await_events(fd, POLLPRI);
        show_read("oob", fd, 10, MSG_OOB);
    });
}

TCP_KERNEL_PAIR_CASE(urgent, epoll, 19) {
    int fd = connection();
    int ep = epoll_create1(0);
    epoll_event e{EPOLLPRI, {.fd = fd}};
    epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
    at_left([&] { SHOW("oob", send(fd, "x!", 2, MSG_OOB)); });
    at_right([&] {
        SHOW("wait", epoll_wait(ep, &e, 1, 3000));
        say("events %x", e.events);
        await_bytes(fd, 1);
        show_read("stream", fd, 10);
        SHOW("read up to it", epoll_wait(ep, &e, 1, 0));
        show_read("oob", fd, 10, MSG_OOB);
        SHOW("read", epoll_wait(ep, &e, 1, 0));
    });
}

// A call that waits when the urgent byte comes. The other side says no more until the call has ended.
TCP_KERNEL_PAIR_CASE(urgent, ends_a_call_that_wants_all, 28) {
    int fd = connection();
    if (left()) {
        put(fd, "0123456789");
        urgent_later(fd, 100);
    } else {
        set_timeout(fd, SO_RCVTIMEO, 3000);
        show_read("all", fd, 100, MSG_WAITALL);
        say("at mark %d", at_mark(fd));
    }
    sync();
}

TCP_KERNEL_PAIR_CASE(urgent, ends_a_call_that_wants_more, 28) {
    int fd = connection();
    if (left()) {
        put(fd, "0123456789");
        urgent_later(fd, 100);
    } else {
        set_timeout(fd, SO_RCVTIMEO, 3000);
        SHOW("low water", set(fd, SOL_SOCKET, SO_RCVLOWAT, 20));
        show_read("more", fd, 100);
        say("low water %d", get(fd, SOL_SOCKET, SO_RCVLOWAT));
    }
    sync();
}

TCP_KERNEL_PAIR_CASE(urgent, leaves_a_call_its_limit, 28) {
    int fd = connection();
    if (left()) {
        urgent_later(fd, 200);
    } else {
        set_timeout(fd, SO_RCVTIMEO, 500);
        show_read("nothing", fd, 100, MSG_WAITALL);
        show_read("oob", fd, 10, MSG_OOB);
    }
    sync();
    at_left([&] { put(fd, "behind"); });
    at_right([&] { show_read("behind", fd, 6, MSG_WAITALL); });
}

TCP_KERNEL_PAIR_CASE(urgent, leaves_a_call_its_limit_behind_the_mark, 36) {
    int fd = connection();
    if (left()) {
        SHOW("oob", send(fd, "!", 1, MSG_OOB));
        usleep(200000);
        put(fd, "01234");
    } else {
        set_timeout(fd, SO_RCVTIMEO, 600);
        show_read("some", fd, 100, MSG_WAITALL);
    }
    sync();
}

TCP_KERNEL_PAIR_CASE(urgent, leaves_a_call_its_restart, 60) {
    int fd = connection();
    for (const int flags : {SA_RESTART, 0}) {
        if (left()) {
            urgent_later(fd, 100);
            usleep(400000);
            put(fd, "data");
        } else {
            static volatile sig_atomic_t alarms;
            alarms = 0;
            struct sigaction action {};
            action.sa_handler = [](int) { alarms = alarms + 1; };
            action.sa_flags = flags;
            sigaction(SIGALRM, &action, nullptr);
            const itimerval once{{}, {0, 300000}};
            setitimer(ITIMER_REAL, &once, nullptr);
            if (show_read("read", fd, 100) < 0) show_read("read again", fd, 100);
            say("alarms %d", static_cast<int>(alarms));
        }
        sync();
    }
}

TCP_KERNEL_PAIR_CASE(urgent, leaves_a_writer_its_limit, 8000) {
    int fd = connection();
    if (left()) {
        urgent_later(fd, 200);
    } else {
        set_timeout(fd, SO_SNDTIMEO, 700);
        const std::vector<char> much(64u << 20);
        const long n = send(fd, much.data(), much.size(), 0);
        say("sent some %d, all %d", n > 0, n == static_cast<long>(much.size()));
    }
    sync();
    set_linger(fd, true, 0);
}

}  // namespace parity::tcp
