// SPDX-License-Identifier: BSD-2-Clause
// How connections end: half, whole, by force, with data under way, from both sides at once.
#include <sys/sendfile.h>

#include <thread>

#include "tests/parity/pair/tcp_harness.h"

namespace parity::tcp {
namespace {

void read_to_the_end(int fd) {
    uint8_t block[10000];
    ssize_t n;
    while ((n = recv(fd, block, sizeof block, 0)) > 0) continue;
    say("end %zd", n);
    close(fd);
}

// What a reader and a writer see after the end, twice.
void show_ended(const char* what, int fd) {
    show_events(what, fd);
    show_read(what, fd, 100);
    show_read(what, fd, 100);
    show_error(what, fd);
    SHOW("send", send(fd, "x", 1, MSG_NOSIGNAL));
    show_name(what, fd);
    show_peer(what, fd);
    show_state(what, fd);
}

void await_reset(int fd) { await_events(fd, POLLERR | POLLHUP); }

}  // namespace

TCP_PAIR_CASE(close, orderly) {
    int fd = connection();
    at_left([&] {
        put(fd, "goodbye");
        SHOW("close", close(fd));
        show_read("closed", fd, 10);
    });
    at_right([&] {
        await_events(fd, POLLIN | POLLRDHUP);
        show_events("ended", fd);
        show_state("ended", fd);
        show_read("recv", fd, 100);
        show_read("end", fd, 100);
        show_read("end again", fd, 100);
        show_events("read", fd);
        show_peer("ended", fd);
        SHOW("close", close(fd));
    });
}

TCP_PAIR_CASE(close, half_close) {
    int fd = connection();
    at_left([&] {
        put(fd, "question");
        SHOW("shutdown", shutdown(fd, SHUT_WR));
        SHOW("again", shutdown(fd, SHUT_WR));
        SHOW("send", send(fd, "x", 1, MSG_NOSIGNAL));
        eventually("fin acknowledged", [&] { return state(fd) == TCP_FIN_WAIT2; });
        show_events("half closed", fd);
        show_peer("half closed", fd);
    });
    at_right([&] {
        show_rest("question", fd);
        show_state("answering", fd);
        show_events("answering", fd);
        put(fd, "first answer");
        put_bytes(fd, 100'000, 5);
    });
    at_left([&] {
        show_read("recv", fd, 12, MSG_WAITALL);
        show_read("recv", fd, 100'000, MSG_WAITALL);
        show_events("answered", fd);
    });
    at_right([&] {
        SHOW("shutdown", shutdown(fd, SHUT_WR));
        eventually("closed", [&] { return state(fd) == TCP_CLOSE; });
        show_events("closed", fd);
        show_peer("closed", fd);
        SHOW("shutdown again", shutdown(fd, SHUT_WR));
        show_read("closed", fd, 10);
        SHOW("send", send(fd, "x", 1, MSG_NOSIGNAL));
    });
    at_left([&] {
        show_read("end", fd, 10);
        await_state(fd, TCP_CLOSE);
        show_events("closed", fd);
        show_peer("closed", fd);
        SHOW("shutdown again", shutdown(fd, SHUT_WR));
        SHOW("shutdown again", shutdown(fd, SHUT_RD));
    });
}

TCP_PAIR_CASE(close, shutdown_read) {
    int fd = connection();
    at_right([&] { put(fd, "before"); });
    at_left([&] {
        await_bytes(fd, 6);
        SHOW("shutdown", shutdown(fd, SHUT_RD));
        show_events("shut", fd);
        show_state("shut", fd);
        show_read("what was there", fd, 100);
        show_read("end", fd, 100);
        SHOW("again", shutdown(fd, SHUT_RD));
        put(fd, "still writing");
    });
    // The kernel keeps taking data, it just no longer waits for any.
    at_right([&] {
        show_read("recv", fd, 100);
        put(fd, "after");
        await_acked(fd);
    });
    at_left([&] {
        show_events("more came", fd);
        show_read("what came after", fd, 100);
        show_read("end", fd, 100);
        SHOW("close", close(fd));
    });
    at_right([&] { show_read("end", fd, 100); });
}

TCP_PAIR_CASE(close, shutdown_both) {
    int fd = connection();
    at_left([&] {
        SHOW("shutdown", shutdown(fd, SHUT_RDWR));
        await_state(fd, TCP_FIN_WAIT2);
        show_events("shut", fd);
        show_read("recv", fd, 10);
        SHOW("send", send(fd, "x", 1, MSG_NOSIGNAL));
        show_peer("shut", fd);
    });
    at_right([&] {
        show_read("end", fd, 10);
        put(fd, "into the shut side");
        await_reset(fd);  // nobody will ever read it
        show_ended("reset", fd);
    });
    at_left([&] {
        show_read("recv", fd, 10);
        SHOW("close", close(fd));
    });
}

TCP_PAIR_CASE(close, shutdown_bad_how) {
    int fd = connection();
    for (int how : {-1, 3, 4, 100}) SHOW("shutdown", shutdown(fd, how));
    SHOW("nothing", shutdown(999, SHUT_WR));
    int fresh = stream();
    for (int how : {SHUT_RD, SHUT_WR, SHUT_RDWR}) SHOW("fresh", shutdown(fresh, how));
    show_events("fresh", fresh);
    sync();
    if (left()) put(fd, "unharmed");
    if (!left()) show_read("recv", fd, 10);
}

TCP_PAIR_CASE(close, write_to_the_gone) {
    int fd = connection();
    count_sigpipe();
    at_left([&] { close(fd); });
    at_right([&] {
        await_events(fd, POLLRDHUP);
        SHOW("first", send(fd, "x", 1, 0));
        await_reset(fd);
        show_events("reset", fd);
        show_error("reset", fd);
        show_error("once", fd);
        SHOW("second", send(fd, "x", 1, 0));
        say("sigpipes %d", sigpipes());
        show_read("recv", fd, 10);
        show_peer("reset", fd);
        show_state("reset", fd);
    });
}

TCP_PAIR_CASE(close, sigpipe_of_each_call) {
    int fd = connection();
    count_sigpipe();
    at_right([&] {
        shutdown(fd, SHUT_WR);
        iovec iov{const_cast<char*>("x"), 1};
        msghdr m{};
        m.msg_iov = &iov;
        m.msg_iovlen = 1;
        mmsghdr mm{m, 0};
        SHOW("write", write(fd, "x", 1));
        say("sigpipes %d", sigpipes());
        SHOW("writev", writev(fd, &iov, 1));
        say("sigpipes %d", sigpipes());
        SHOW("send", send(fd, "x", 1, 0));
        say("sigpipes %d", sigpipes());
        SHOW("sendto", sendto(fd, "x", 1, 0, nullptr, 0));
        say("sigpipes %d", sigpipes());
        SHOW("sendmsg", sendmsg(fd, &m, 0));
        say("sigpipes %d", sigpipes());
        SHOW("sendmmsg", sendmmsg(fd, &mm, 1, 0));
        say("sigpipes %d", sigpipes());
        int file = open("/proc/self/exe", O_RDONLY);
        SHOW("sendfile", sendfile(fd, file, nullptr, 10));
        say("sigpipes %d", sigpipes());
        SHOW("send nosignal", send(fd, "x", 1, MSG_NOSIGNAL));
        SHOW("sendto nosignal", sendto(fd, "x", 1, MSG_NOSIGNAL, nullptr, 0));
        SHOW("sendmsg nosignal", sendmsg(fd, &m, MSG_NOSIGNAL));
        SHOW("sendmmsg nosignal", sendmmsg(fd, &mm, 1, MSG_NOSIGNAL));
        SHOW("send nothing", send(fd, "", 0, 0));
        SHOW("write nothing", write(fd, "", 0));
        int p[2];
        ok(pipe(p));
        ok(write(p[1], "data", 4));
        SHOW("splice", splice(p[0], nullptr, fd, nullptr, 4, 0));
        say("sigpipes %d", sigpipes());
    });
    at_left([&] { show_read("end", fd, 10); });
}

TCP_PAIR_CASE(close, unread_data_resets) {
    int fd = connection();
    at_right([&] { put(fd, "unread"); });
    at_left([&] {
        await_bytes(fd, 6);
        SHOW("close", close(fd));
    });
    at_right([&] {
        await_reset(fd);
        show_ended("reset", fd);
    });
}

TCP_PAIR_CASE(close, partly_read_resets) {
    int fd = connection();
    at_right([&] { put(fd, "half of it"); });
    at_left([&] {
        await_bytes(fd, 10);
        show_read("recv", fd, 5);
        show_read("peek", fd, 100, MSG_PEEK);
        SHOW("close", close(fd));
    });
    at_right([&] {
        await_reset(fd);
        show_read("recv", fd, 10);
    });
}

// Data that came before a reset is lost to a reader who did not take it.
TCP_PAIR_CASE(close, reset_with_data_queued) {
    int fd = connection();
    at_left([&] {
        put(fd, "too late");
        await_acked(fd);
        set_linger(fd, true, 0);
        SHOW("close", close(fd));
    });
    at_right([&] {
        await_reset(fd);
        show_events("reset", fd);
        int n = -1;
        SHOW("FIONREAD", ioctl(fd, FIONREAD, &n));
        show_read("peek", fd, 100, MSG_PEEK);
        show_read("recv", fd, 100);
        show_read("recv", fd, 100);
        show_read("recv", fd, 100);
        show_error("then", fd);
    });
}

TCP_PAIR_CASE(close, linger_zero) {
    int fd = connection();
    at_left([&] {
        set_linger(fd, true, 0);
        SHOW("close", close(fd));
    });
    at_right([&] {
        await_reset(fd);
        show_ended("reset", fd);
    });
}

TCP_PAIR_CASE(close, linger_zero_shutdown) {
    int fd = connection();
    at_left([&] {
        set_linger(fd, true, 0);
        SHOW("shutdown", shutdown(fd, SHUT_WR));
        await_state(fd, TCP_FIN_WAIT2);
    });
    at_right([&] { show_read("orderly", fd, 10); });
    at_left([&] { SHOW("close", close(fd)); });
    at_right([&] {
        await_reset(fd);
        show_ended("reset", fd);
    });
}

TCP_PAIR_CASE(close, reset_is_reported_once) {
    enum { by_recv, by_send, by_error, by_peek, by_sendmsg, by_write, count };
    for (int how = 0; how < count; how++) {
        int fd = connection();
        at_left([&] {
            set_linger(fd, true, 0);
            close(fd);
        });
        at_right([&] {
            count_sigpipe();
            await_reset(fd);
            iovec iov{const_cast<char*>("x"), 1};
            msghdr m{};
            m.msg_iov = &iov;
            m.msg_iovlen = 1;
            if (how == by_recv) show_read("recv", fd, 10);
            if (how == by_send) SHOW("send", send(fd, "x", 1, 0));
            if (how == by_error) show_error("error", fd);
            if (how == by_peek) show_read("peek", fd, 10, MSG_PEEK);
            if (how == by_sendmsg) SHOW("sendmsg", sendmsg(fd, &m, 0));
            if (how == by_write) SHOW("write", write(fd, "x", 1));
            say("sigpipes %d", sigpipes());
            show_events("then", fd);
            show_error("then", fd);
            show_read("then", fd, 10);
            SHOW("then send", send(fd, "x", 1, 0));
            say("sigpipes %d", sigpipes());
            SHOW("shutdown", shutdown(fd, SHUT_RDWR));
            close(fd);
        });
    }
}

TCP_PAIR_CASE(close, reset_while_waiting) {
    int fd = connection();
    at_left([&] {});
    if (left()) {
        usleep(5000);
        set_linger(fd, true, 0);
        close(fd);
    } else {
        show_read("waiting", fd, 10);
        show_read("again", fd, 10);
    }
    sync();
}

TCP_PAIR_CASE(close, end_while_waiting) {
    int fd = connection();
    if (left()) {
        usleep(5000);
        put(fd, "12345");
        shutdown(fd, SHUT_WR);
    } else {
        show_read("waiting for more", fd, 10, MSG_WAITALL);
        show_read("again", fd, 10, MSG_WAITALL);
    }
    sync();
}

TCP_PAIR_CASE(close, both_at_once) {
    for (int i = 0; i < 10; i++) {
        int fd = connection();
        put(fd, left() ? "from the left" : "from the right");
        sync();
        shutdown(fd, SHUT_WR);
        show_rest("recv", fd);
        eventually("closed", [&] { return state(fd) == TCP_CLOSE; });
        show_events("closed", fd);
        SHOW("close", close(fd));
        sync();
    }
}

TCP_PAIR_CASE(close, unsent_data_is_delivered) {
    int fd = connection();
    long sent = 0;
    if (left()) sent = static_cast<long>(fill(fd));
    long length = exchange(sent);
    at_left([&] { SHOW("close", close(fd)); });
    at_right([&] {
        drain(fd, static_cast<size_t>(length));
        show_read("end", fd, 10);
    });
}

TCP_PAIR_CASE(close, unsent_data_after_shutdown) {
    int fd = connection();
    long sent = 0;
    if (left()) {
        sent = static_cast<long>(fill(fd));
        SHOW("shutdown", shutdown(fd, SHUT_WR));
        show_events("full and shut", fd);
    }
    long length = exchange(sent);
    at_right([&] {
        drain(fd, static_cast<size_t>(length));
        show_read("end", fd, 10);
        put(fd, "thanks");
        close(fd);
    });
    at_left([&] { show_rest("answer", fd); });
}

// The peer closes without reading: what is unsent is lost, and the writer learns it.
TCP_PAIR_CASE(close, reader_gives_up) {
    int fd = connection();
    at_left([&] { fill(fd); });
    at_right([&] { SHOW("close", close(fd)); });
    at_left([&] {
        await_reset(fd);
        show_ended("reset", fd);
    });
}

TCP_PAIR_CASE(close, writer_waits_reader_gives_up) {
    int fd = connection();
    at_left([&] {
        count_sigpipe();
        fill(fd);
    });
    if (left()) {
        std::vector<uint8_t> data(4'000'000);
        SHOW("blocked write", send(fd, data.data(), data.size(), 0) > 0 ? 1 : -1);
        SHOW("next", send(fd, data.data(), data.size(), 0));
        say("sigpipes %d", sigpipes() > 0);
    } else {
        usleep(20'000);
        set_linger(fd, true, 0);
        close(fd);
    }
    sync();
}

TCP_PAIR_CASE(close, data_after_own_close) {
    int fd = connection();
    at_left([&] {
        SHOW("shutdown", shutdown(fd, SHUT_WR));
        await_state(fd, TCP_FIN_WAIT2);
        SHOW("close", close(fd));
    });
    at_right([&] {
        show_read("end", fd, 10);
        SHOW("send", send(fd, "nobody reads this", 17, MSG_NOSIGNAL));
        await_reset(fd);
        show_ended("reset", fd);
    });
}

TCP_PAIR_CASE(close, linger_waits_for_delivery) {
    int fd = connection();
    if (left()) {
        set_linger(fd, true, 5);
        put_bytes(fd, 200'000, 9);
        SHOW("close", close(fd));
    } else {
        show_rest("recv", fd);
        close(fd);
    }
    sync();
}

// Nobody reads: close gives up waiting after a second, and the data is still delivered later.
TCP_CASE(close, linger_times_out) {
    int fd = connection();
    long sent = 0;
    if (server()) {
        sent = static_cast<long>(fill(fd));
        set_linger(fd, true, 1);
        SHOW("close", close(fd));
    }
    long length = exchange(sent);
    at_client([&] {
        drain(fd, static_cast<size_t>(length));
        show_read("end", fd, 10);
    });
}

// While close() waits, the number is free: what other threads do with it concerns the connection no more.
TCP_PAIR_CASE(close, linger_frees_the_number) {
    int fd = connection();
    count_sigpipe();
    at_left([&] {
        fill(fd);
        set_linger(fd, true, 1);
        const int nothing = open("/dev/null", O_WRONLY | O_CLOEXEC);
        long closed = -1;
        std::thread closer([&] { closed = close(fd); });
        ssize_t n;
        do n = send(fd, "x", 1, MSG_DONTWAIT);
        while (n == 1 || errno == EAGAIN);
        SHOW("send", send(fd, "x", 1, 0));
        SHOW("write", write(fd, "x", 1));
        SHOW("recv", recv(fd, &n, 1, 0));
        SHOW("F_GETFD", fcntl(fd, F_GETFD));
        show_events("closed", fd);
        SHOW("close again", close(fd));
        SHOW("another file", dup2(nothing, fd) == fd);
        SHOW("write", write(fd, "x", 1));
        closer.join();
        say("close %ld", closed);
        SHOW("write", write(fd, "x", 1));
        SHOW("close", close(fd));
        close(nothing);
        say("sigpipes %d", sigpipes());
    });
    at_right([&] { read_to_the_end(fd); });
}

// The same when another file takes the number.
TCP_CASE(close, linger_of_dup2) {
    int fd = connection();
    count_sigpipe();
    at_server([&] {
        fill(fd);
        set_linger(fd, true, 1);
        const int nothing = open("/dev/null", O_WRONLY | O_CLOEXEC);
        long copied = -1;
        std::thread closer([&] { copied = dup2(nothing, fd); });
        ssize_t n;
        do n = send(fd, "x", 1, MSG_DONTWAIT);
        while (n == 1 || errno == EAGAIN);
        SHOW("send", send(fd, "x", 1, 0));
        SHOW("write", write(fd, "x", 1));
        closer.join();
        say("dup2 %d", copied == fd);
        SHOW("write", write(fd, "x", 1));
        close(fd);
        close(nothing);
        say("sigpipes %d", sigpipes());
    });
    at_client([&] { read_to_the_end(fd); });
}

TCP_PAIR_CASE(close, linger_nonblocking) {
    int fd = connection();
    at_left([&] {
        nonblocking(fd);
        set_linger(fd, true, 5);
        put(fd, "delivered");
        SHOW("close", close(fd));
    });
    at_right([&] {
        show_rest("recv", fd);
        close(fd);
    });
}

TCP_PAIR_CASE(close, linger2_negative) {
    int fd = connection();
    at_left([&] {
        SHOW("linger2", set(fd, IPPROTO_TCP, TCP_LINGER2, -1));
        SHOW("shutdown", shutdown(fd, SHUT_WR));
        await_state(fd, TCP_FIN_WAIT2);
    });
    at_right([&] { show_read("end", fd, 10); });
    at_left([&] { SHOW("close", close(fd)); });
    at_right([&] {
        await_reset(fd);
        show_read("reset", fd, 10);
    });
}

TCP_PAIR_CASE(close, states_on_the_way) {
    int fd = connection();
    show_state("connected", fd);
    sync();
    at_left([&] {
        shutdown(fd, SHUT_WR);
        await_state(fd, TCP_FIN_WAIT2);
        show_state("shut", fd);
    });
    at_right([&] {
        await_state(fd, TCP_CLOSE_WAIT);
        show_state("the other is shut", fd);
        shutdown(fd, SHUT_WR);
        await_state(fd, TCP_CLOSE);
        show_state("both are shut", fd);
    });
    at_left([&] {
        await_state(fd, TCP_CLOSE);
        show_state("both are shut", fd);
        show_name("both are shut", fd);
        show_peer("both are shut", fd);
        show_read("both are shut", fd, 10);
        sockaddr_in a = at(there(), port());
        SHOW("connect", connect(fd, raw(a), sizeof a));
        SHOW("listen", listen(fd, 1));
    });
}

TCP_CASE(close, many_short_connections) {
    constexpr int kMany = 100;
    int listener = -1;
    if (server()) listener = listening(0, nullptr, 100);
    sync();
    long good = 0;
    for (int i = 0; i < kMany; i++) {
        char text[64] = {};
        if (server()) {
            int fd = accepted(listener);
            long n = recv(fd, text, sizeof text, 0);
            good += n == 16 && send(fd, text, 16, 0) == 16;
            close(fd);
        } else {
            int fd = connecting(there(), port());
            snprintf(text, sizeof text, "request %08d", i);
            good += send(fd, text, 16, 0) == 16;
            char reply[64] = {};
            good += recv(fd, reply, 16, MSG_WAITALL) == 16 && strcmp(text, reply) == 0 &&
                    recv(fd, reply, 1, 0) == 0;
            close(fd);
        }
    }
    say("good %ld", good);
}

TCP_PAIR_CASE(close, descriptor_is_gone) {
    int fd = connection();
    SHOW("close", close(fd));
    SHOW("close again", close(fd));
    SHOW("send", send(fd, "x", 1, 0));
    show_read("recv", fd, 1);
    SHOW("shutdown", shutdown(fd, SHUT_RDWR));
    show_peer("closed", fd);
    show_events("closed", fd);
    SHOW("fcntl", fcntl(fd, F_GETFL));
    int again = stream();
    say("number is reused %d", again == fd);
    show_events("fresh", again);
    show_peer("fresh", again);
    close(again);
}

// The network goes away: the peer's answers get lost on its own host.
TCP_CASE(close, user_timeout) {
    int fd = connection();
    at_server([&] { SHOW("timeout", set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 250)); });
    at_client([&] { ok(system("ip route add blackhole 198.18.1.1/32")); });
    at_server([&] {
        put(fd, "unheard");
        show_events_with("timed out", fd, POLLHUP);
        show_read("recv", fd, 10);
        show_read("recv", fd, 10);
        SHOW("send", send(fd, "x", 1, MSG_NOSIGNAL));
        show_state("timed out", fd);
        close(fd);
    });
    at_client([&] { ok(system("ip route del blackhole 198.18.1.1/32")); });
}

}  // namespace parity::tcp
