// SPDX-License-Identifier: BSD-2-Clause
// Socket options: values, limits, errors, inheritance by accepted sockets, and what TCP_INFO tells.
#include <sys/time.h>

#include "tests/parity/pair/tcp_harness.h"

namespace parity::tcp {
namespace {

struct Option {
    const char* name;
    int level, number;
};
#define OPTION(level, number) \
    { #number, level, number }

const Option kOptions[] = {
    OPTION(SOL_SOCKET, SO_DEBUG),
    OPTION(SOL_SOCKET, SO_REUSEADDR),
    OPTION(SOL_SOCKET, SO_REUSEPORT),
    OPTION(SOL_SOCKET, SO_TYPE),
    OPTION(SOL_SOCKET, SO_PROTOCOL),
    OPTION(SOL_SOCKET, SO_DOMAIN),
    OPTION(SOL_SOCKET, SO_ERROR),
    OPTION(SOL_SOCKET, SO_DONTROUTE),
    OPTION(SOL_SOCKET, SO_BROADCAST),
    OPTION(SOL_SOCKET, SO_SNDBUF),
    OPTION(SOL_SOCKET, SO_RCVBUF),
    OPTION(SOL_SOCKET, SO_KEEPALIVE),
    OPTION(SOL_SOCKET, SO_OOBINLINE),
    OPTION(SOL_SOCKET, SO_PRIORITY),
    OPTION(SOL_SOCKET, SO_RCVLOWAT),
    OPTION(SOL_SOCKET, SO_SNDLOWAT),
    OPTION(SOL_SOCKET, SO_TIMESTAMP),
    OPTION(SOL_SOCKET, SO_ACCEPTCONN),
    OPTION(SOL_SOCKET, SO_MARK),
    OPTION(SOL_SOCKET, SO_BUSY_POLL),
    OPTION(SOL_SOCKET, SO_ZEROCOPY),
    OPTION(SOL_SOCKET, SO_PEEK_OFF),
    OPTION(SOL_SOCKET, SO_MAX_PACING_RATE),
    OPTION(SOL_IP, IP_TOS),
    OPTION(SOL_IP, IP_TTL),
    OPTION(SOL_IP, IP_MTU_DISCOVER),
    OPTION(SOL_IP, IP_RECVERR),
    OPTION(SOL_IP, IP_PKTINFO),
    OPTION(SOL_IP, IP_RECVTTL),
    OPTION(SOL_IP, IP_RECVTOS),
    OPTION(SOL_IP, IP_FREEBIND),
    OPTION(SOL_IP, IP_TRANSPARENT),
    OPTION(SOL_IP, IP_MINTTL),
    OPTION(SOL_IP, IP_BIND_ADDRESS_NO_PORT),
    OPTION(IPPROTO_TCP, TCP_NODELAY),
    OPTION(IPPROTO_TCP, TCP_MAXSEG),
    OPTION(IPPROTO_TCP, TCP_CORK),
    OPTION(IPPROTO_TCP, TCP_KEEPIDLE),
    OPTION(IPPROTO_TCP, TCP_KEEPINTVL),
    OPTION(IPPROTO_TCP, TCP_KEEPCNT),
    OPTION(IPPROTO_TCP, TCP_SYNCNT),
    OPTION(IPPROTO_TCP, TCP_LINGER2),
    OPTION(IPPROTO_TCP, TCP_DEFER_ACCEPT),
    OPTION(IPPROTO_TCP, TCP_WINDOW_CLAMP),
    OPTION(IPPROTO_TCP, TCP_QUICKACK),
    OPTION(IPPROTO_TCP, TCP_USER_TIMEOUT),
    OPTION(IPPROTO_TCP, TCP_FASTOPEN),
    OPTION(IPPROTO_TCP, TCP_FASTOPEN_CONNECT),
    OPTION(IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE),
    OPTION(IPPROTO_TCP, TCP_NOTSENT_LOWAT),
    OPTION(IPPROTO_TCP, TCP_SAVE_SYN),
    OPTION(IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS),
    OPTION(IPPROTO_TCP, TCP_REPAIR),
    OPTION(IPPROTO_TCP, TCP_INQ),
    OPTION(IPPROTO_TCP, TCP_TX_DELAY),
    {"9999", IPPROTO_TCP, 9999},
    {"9998", SOL_SOCKET, 9998},
    {"udp level", IPPROTO_UDP, 1},
    {"unknown level", 12345, 1},
};

std::string value_text(int fd, const Option& o) {
    int value = -77;
    socklen_t length = sizeof value;
    if (getsockopt(fd, o.level, o.number, &value, &length) != 0) return strerrorname_np(errno);
    return std::to_string(value) + (length == sizeof value ? "" : " length " + std::to_string(length));
}

bool volatile_when_connected(const Option& o) {
    // Tuned by the kernel while data flows, or by the state of the delayed ACK.
    return (o.level == SOL_SOCKET && (o.number == SO_SNDBUF || o.number == SO_RCVBUF)) ||
           (o.level == IPPROTO_TCP && (o.number == TCP_QUICKACK || o.number == TCP_WINDOW_CLAMP));
}

void show_all(int fd, bool connected) {
    for (const Option& o : kOptions)
        if (!connected || !volatile_when_connected(o)) say("%s %s", o.name, value_text(fd, o).c_str());
}

// Sets each value, shows the answer and what is read back.
void try_values(int fd, const Option& o, std::initializer_list<int> values) {
    for (int v : values) {
        long r = set(fd, o.level, o.number, v);
        say("%s := %d %s, reads %s", o.name, v, r == 0 ? "ok" : strerrorname_np(errno),
            value_text(fd, o).c_str());
    }
}

void try_limits(int fd) {
    for (const Option& o : {Option OPTION(IPPROTO_TCP, TCP_NODELAY), Option OPTION(IPPROTO_TCP, TCP_CORK),
                            Option OPTION(SOL_SOCKET, SO_KEEPALIVE), Option OPTION(SOL_SOCKET, SO_OOBINLINE)})
        try_values(fd, o, {1, 2, -1, 0});
    for (const Option& o :
         {Option OPTION(IPPROTO_TCP, TCP_KEEPIDLE), Option OPTION(IPPROTO_TCP, TCP_KEEPINTVL)})
        try_values(fd, o, {1, 0, -1, 32767, 32768, 100000, 60});
    try_values(fd, OPTION(IPPROTO_TCP, TCP_KEEPCNT), {1, 0, -1, 127, 128, 5});
    try_values(fd, OPTION(IPPROTO_TCP, TCP_SYNCNT), {1, 0, -1, 127, 128, 3});
    try_values(fd, OPTION(IPPROTO_TCP, TCP_LINGER2), {5, 0, -1, 1000, 60});
    try_values(fd, OPTION(IPPROTO_TCP, TCP_DEFER_ACCEPT), {1, 3, 5, 100, 0, -1});
    try_values(fd, OPTION(IPPROTO_TCP, TCP_USER_TIMEOUT), {1, 0, -1, 30000});
    try_values(fd, OPTION(IPPROTO_TCP, TCP_NOTSENT_LOWAT), {1, 0, 16384, -1});
    try_values(fd, OPTION(SOL_SOCKET, SO_RCVLOWAT), {1, 0, 100});
    try_values(fd, OPTION(SOL_SOCKET, SO_SNDLOWAT), {1, 100});
    try_values(fd, OPTION(SOL_SOCKET, SO_PRIORITY), {0, 6, 7, -1});
    try_values(fd, OPTION(SOL_IP, IP_TOS), {0, 0x10, 0xff, 0x03, 256, -1, 0});
    try_values(fd, OPTION(SOL_IP, IP_TTL), {1, 255, 0, 256, -1});
    try_values(fd, OPTION(SOL_IP, IP_MTU_DISCOVER), {0, 1, 2, 3, 4, 5, 6, -1, 1});
    try_values(fd, OPTION(SOL_IP, IP_MINTTL), {0, 255, 256, 0});
    try_values(fd, OPTION(SOL_SOCKET, SO_TYPE), {1});
    try_values(fd, OPTION(SOL_SOCKET, SO_ERROR), {1});
    try_values(fd, OPTION(SOL_SOCKET, SO_ACCEPTCONN), {1});
}

std::string algorithm(int fd) {
    char name[32] = {};
    socklen_t length = sizeof name;
    if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) != 0) return strerrorname_np(errno);
    return std::string(name) + " length " + std::to_string(length);
}

void set_algorithm(int fd, const char* name) {
    long r = setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, static_cast<socklen_t>(strlen(name)));
    say("\"%s\": %s, reads %s", name, r == 0 ? "ok" : strerrorname_np(errno), algorithm(fd).c_str());
}

tcp_info info_of(int fd) {
    tcp_info i{};
    socklen_t length = sizeof i;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &i, &length) != 0)
        say("no TCP_INFO: %s", strerrorname_np(errno));
    return i;
}

}  // namespace

TCP_CASE(option, defaults) {
    at_server([&] { show_all(stream(), false); });
}

TCP_PAIR_CASE(option, defaults_connected) {
    int fd = connection();
    show_all(fd, true);
}

TCP_CASE(option, limits) {
    at_server([&] { try_limits(stream()); });
}

TCP_KERNEL_PAIR_CASE(option, limits_connected, 10) {
    int fd = connection();
    at_left([&] { try_limits(fd); });
    at_left([&] { put(fd, "alive"); });
    at_right([&] { show_read("recv", fd, 10); });
}

TCP_PAIR_CASE(option, lengths_and_pointers) {
    int fd = connection();
    for (const Option& o :
         {Option OPTION(IPPROTO_TCP, TCP_NODELAY), Option OPTION(IPPROTO_TCP, TCP_KEEPIDLE),
          Option OPTION(SOL_SOCKET, SO_KEEPALIVE), Option OPTION(IPPROTO_TCP, TCP_USER_TIMEOUT)}) {
        long value = 1;
        say("%s", o.name);
        for (int length : {0, 1, 3, 4, 5, 8, -1})
            SHOW("set", setsockopt(fd, o.level, o.number, &value, static_cast<socklen_t>(length)));
        SHOW("set bad", setsockopt(fd, o.level, o.number, reinterpret_cast<void*>(8), 4));
        SHOW("set null", setsockopt(fd, o.level, o.number, nullptr, 4));
        for (int room : {0, 1, 3, 4, 5, 100, -1}) {
            char data[100];
            memset(data, 0x5a, sizeof data);
            socklen_t length = static_cast<socklen_t>(room);
            SHOW("get", getsockopt(fd, o.level, o.number, data, &length));
            int touched = 100;
            while (touched > 0 && data[touched - 1] == 0x5a) touched--;
            say("length %u touched %d", length, touched);
        }
        socklen_t length = 4;
        SHOW("get bad", getsockopt(fd, o.level, o.number, reinterpret_cast<void*>(8), &length));
        SHOW("get bad length", getsockopt(fd, o.level, o.number, &value, reinterpret_cast<socklen_t*>(8)));
    }
}

TCP_CASE(option, buffers) {
    at_server([&] {
        int fd = stream();
        for (int v : {0, 1, 2048, 4096, 10'000, 65'536, 200'000, 1'000'000, 100'000'000, -1}) {
            SHOW("rcvbuf", set(fd, SOL_SOCKET, SO_RCVBUF, v));
            say("reads %d", get(fd, SOL_SOCKET, SO_RCVBUF));
            SHOW("sndbuf", set(fd, SOL_SOCKET, SO_SNDBUF, v));
            say("reads %d", get(fd, SOL_SOCKET, SO_SNDBUF));
            SHOW("forced", set(fd, SOL_SOCKET, SO_RCVBUFFORCE, v));
            say("reads %d", get(fd, SOL_SOCKET, SO_RCVBUF));
            SHOW("forced", set(fd, SOL_SOCKET, SO_SNDBUFFORCE, v));
            say("reads %d", get(fd, SOL_SOCKET, SO_SNDBUF));
        }
    });
}

TCP_PAIR_CASE(option, buffers_connected) {
    int fd = connection();
    for (int v : {5000, 100'000, 1'000'000}) {
        SHOW("rcvbuf", set(fd, SOL_SOCKET, SO_RCVBUF, v));
        SHOW("sndbuf", set(fd, SOL_SOCKET, SO_SNDBUF, v));
        say("reads %d %d", get(fd, SOL_SOCKET, SO_RCVBUF), get(fd, SOL_SOCKET, SO_SNDBUF));
    }
    sync();
    at_left([&] { put_bytes(fd, 30'000, 3); });
    at_right([&] { show_read("recv", fd, 30'000, MSG_WAITALL); });
}

TCP_CASE(option, inherited_by_accept) {
    int fd = connection({.listener =
                             [](int l) {
                                 set(l, SOL_SOCKET, SO_KEEPALIVE, 1);
                                 set(l, SOL_SOCKET, SO_OOBINLINE, 1);
                                 set(l, SOL_SOCKET, SO_PRIORITY, 4);
                                 set(l, SOL_SOCKET, SO_RCVLOWAT, 7);
                                 set(l, SOL_SOCKET, SO_RCVBUF, 50'000);
                                 set(l, SOL_SOCKET, SO_SNDBUF, 60'000);
                                 set(l, SOL_IP, IP_TOS, 0x10);
                                 set(l, SOL_IP, IP_TTL, 33);
                                 set(l, IPPROTO_TCP, TCP_KEEPIDLE, 100);
                                 set(l, IPPROTO_TCP, TCP_KEEPINTVL, 11);
                                 set(l, IPPROTO_TCP, TCP_KEEPCNT, 4);
                                 set(l, IPPROTO_TCP, TCP_SYNCNT, 2);
                                 set(l, IPPROTO_TCP, TCP_LINGER2, 7);
                                 set(l, IPPROTO_TCP, TCP_USER_TIMEOUT, 12'000);
                                 set(l, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 9000);
                                 set(l, IPPROTO_TCP, TCP_NODELAY, 1);
                                 set(l, IPPROTO_TCP, TCP_DEFER_ACCEPT, 0);
                                 set_linger(l, true, 9);
                                 set_timeout(l, SO_RCVTIMEO, 7000);
                                 set_timeout(l, SO_SNDTIMEO, 6000);
                                 setsockopt(l, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
                                 fcntl(l, F_SETOWN, getpid());
                             },
                         .client = nullptr});
    at_server([&] {
        show_all(fd, true);
        say("rcvbuf %d sndbuf %d", get(fd, SOL_SOCKET, SO_RCVBUF), get(fd, SOL_SOCKET, SO_SNDBUF));
        linger l{};
        socklen_t length = sizeof l;
        getsockopt(fd, SOL_SOCKET, SO_LINGER, &l, &length);
        say("linger %d %d", l.l_onoff, l.l_linger);
        for (int name : {SO_RCVTIMEO, SO_SNDTIMEO}) {
            timeval t{};
            length = sizeof t;
            getsockopt(fd, SOL_SOCKET, name, &t, &length);
            say("time limit %ld", static_cast<long>(t.tv_sec));
        }
        say("algorithm %s", algorithm(fd).c_str());
        say("owner %d", fcntl(fd, F_GETOWN) == getpid());
    });
}

TCP_CASE(option, connector_keeps_its_own) {
    int fd = connection({.listener = nullptr, .client = [](int c) {
                             set(c, SOL_SOCKET, SO_KEEPALIVE, 1);
                             set(c, SOL_IP, IP_TOS, 0x08);
                             set(c, IPPROTO_TCP, TCP_KEEPIDLE, 44);
                             set(c, IPPROTO_TCP, TCP_MAXSEG, 1000);
                             set(c, IPPROTO_TCP, TCP_USER_TIMEOUT, 5000);
                         }});
    show_all(fd, true);
}

TCP_CASE(option, linger) {
    at_server([&] {
        int fd = stream();
        for (linger l : {linger{0, 0}, linger{1, 0}, linger{1, 10}, linger{0, 5}, linger{-3, -1},
                         linger{1, 1'000'000'000}}) {
            SHOW("set", setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l));
            linger back{7, 7};
            socklen_t length = sizeof back;
            SHOW("get", getsockopt(fd, SOL_SOCKET, SO_LINGER, &back, &length));
            say("%d %d length %u", back.l_onoff, back.l_linger, length);
        }
        linger l{1, 1};
        SHOW("short", setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, 4));
        socklen_t length = 4;
        SHOW("short get", getsockopt(fd, SOL_SOCKET, SO_LINGER, &l, &length));
    });
}

TCP_CASE(option, time_limits) {
    at_server([&] {
        int fd = stream();
        for (int name : {SO_RCVTIMEO, SO_SNDTIMEO})
            for (timeval t : {timeval{0, 0}, timeval{1, 500'000}, timeval{0, 1}, timeval{0, 1'000'000},
                              timeval{0, -1}, timeval{-1, 0}, timeval{1'000'000'000'000, 0}}) {
                SHOW("set", setsockopt(fd, SOL_SOCKET, name, &t, sizeof t));
                timeval back{7, 7};
                socklen_t length = sizeof back;
                SHOW("get", getsockopt(fd, SOL_SOCKET, name, &back, &length));
                say("%ld.%06ld length %u", static_cast<long>(back.tv_sec), static_cast<long>(back.tv_usec),
                    length);
            }
        timeval t{1, 0};
        SHOW("short", setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, 8));
    });
}

TCP_CASE(option, max_segment) {
    at_server([&] {
        int fd = stream();
        try_values(fd, OPTION(IPPROTO_TCP, TCP_MAXSEG),
                   {0, 1, 87, 88, 500, 1460, 32767, 32768, 65535, 65536, -1});
    });
}

TCP_CASE(option, max_segment_used) {
    for (bool at_listener : {true, false}) {
        auto limit = [](int s) { SHOW("limit", set(s, IPPROTO_TCP, TCP_MAXSEG, 600)); };
        Prepare p;
        if (at_listener)
            p.listener = limit;
        else
            p.client = limit;
        int fd = connection(p);
        say("segment %d", get(fd, IPPROTO_TCP, TCP_MAXSEG));
        tcp_info i = info_of(fd);
        say("send %u advertised %u", i.tcpi_snd_mss, i.tcpi_advmss);
        SHOW("later", set(fd, IPPROTO_TCP, TCP_MAXSEG, 300));
        put_bytes(fd, 50'000, 9);
        show_read("recv", fd, 50'000, MSG_WAITALL);
        sync();
        close(fd);
    }
}

TCP_PAIR_CASE(option, window_clamp) {
    int fd = connection();
    at_right([&] {
        SHOW("clamp", set(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, 5000));
        SHOW("clamp 0", set(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, 0));
    });
    at_left([&] { put_bytes(fd, 1000, 3); });
    at_right([&] { show_read("recv", fd, 1000, MSG_WAITALL); });
    if (left()) put_bytes(fd, 100'000, 4);
    if (!left()) show_read("recv", fd, 100'000, MSG_WAITALL);
    sync();
    int fresh = stream();
    try_values(fresh, OPTION(IPPROTO_TCP, TCP_WINDOW_CLAMP), {5000, 0, 1, -1});
}

TCP_PAIR_CASE(option, quick_ack) {
    int fd = connection();
    SHOW("off", set(fd, IPPROTO_TCP, TCP_QUICKACK, 0));
    say("reads %d", get(fd, IPPROTO_TCP, TCP_QUICKACK));
    SHOW("on", set(fd, IPPROTO_TCP, TCP_QUICKACK, 1));
    say("reads %d", get(fd, IPPROTO_TCP, TCP_QUICKACK));
    sync();
    at_left([&] {
        put(fd, "acknowledged without an answer");
        await_acked(fd);
    });
    at_right([&] { show_read("recv", fd, 100); });
}

TCP_CASE(option, congestion) {
    at_server([&] {
        int fd = stream();
        say("default %s", algorithm(fd).c_str());
        for (const char* name : {"reno", "cubic", "nonsense", "", "a name that is much too long", "reno"})
            set_algorithm(fd, name);
        char name[32];
        for (int room : {0, 1, 4, 15, 16, 32, -1}) {
            memset(name, 'z', sizeof name);
            socklen_t length = static_cast<socklen_t>(room);
            SHOW("get", getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length));
            say("length %u \"%.4s\"", length, room > 0 ? name : "");
        }
        SHOW("bad", setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, reinterpret_cast<void*>(8), 4));
    });
}

TCP_PAIR_CASE(option, congestion_connected) {
    int fd = connection();
    for (const char* name : {"reno", "cubic", "nonsense"}) set_algorithm(fd, name);
    sync();
    at_left([&] { put_bytes(fd, 100'000, 2); });
    at_right([&] { show_read("recv", fd, 100'000, MSG_WAITALL); });
}

TCP_KERNEL_PAIR_CASE(option, upper_layer_protocol, 13) {
    int fd = connection();
    char name[32] = {};
    socklen_t length = sizeof name;
    SHOW("get", getsockopt(fd, IPPROTO_TCP, TCP_ULP, name, &length));
    say("length %u", length);
    SHOW("unknown", setsockopt(fd, IPPROTO_TCP, TCP_ULP, "nonsense", 8));
    SHOW("empty", setsockopt(fd, IPPROTO_TCP, TCP_ULP, "", 0));
    int fresh = stream();
    SHOW("fresh", setsockopt(fresh, IPPROTO_TCP, TCP_ULP, "nonsense", 8));
}

TCP_CASE(option, fast_open) {
    at_server([&] {
        int fd = stream();
        try_values(fd, OPTION(IPPROTO_TCP, TCP_FASTOPEN_CONNECT), {1, 0, 2, -1});
        try_values(fd, OPTION(IPPROTO_TCP, TCP_FASTOPEN), {5, 0, -1});
        sockaddr_in a = at(here(), port());
        ok(bind(fd, raw(a), sizeof a));
        ok(listen(fd, 5));
        try_values(fd, OPTION(IPPROTO_TCP, TCP_FASTOPEN), {5, 100'000, 0});
    });
}

// A server and a client that ask for fast open get a connection, with or without.
TCP_KERNEL_CASE(option, fast_open_used, 23) {
    int listener = -1;
    at_server([&] {
        listener = listening();
        SHOW("fastopen", set(listener, IPPROTO_TCP, TCP_FASTOPEN, 5));
    });
    for (int i = 0; i < 2; i++) {
        int fd = -1;
        at_client([&] {
            fd = stream();
            sockaddr_in a = at(there(), port());
            SHOW("sendto", sendto(fd, "opening", 7, MSG_FASTOPEN, raw(a), sizeof a));
            show_state("connected", fd);
        });
        at_server([&] {
            fd = accepted(listener);
            show_read("recv", fd, 10);
            put(fd, "answer");
        });
        at_client([&] { show_read("recv", fd, 10); });
    }
    int fd = -1;
    at_client([&] {
        fd = stream();
        SHOW("connect later", set(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1));
        sockaddr_in a = at(there(), port());
        SHOW("connect", connect(fd, raw(a), sizeof a));
        SHOW("write", write(fd, "late", 4));
    });
    at_server([&] { show_read("recv", accepted(listener), 10); });
}

TCP_KERNEL_PAIR_CASE(option, signatures, 13) {
    int fd = connection();
    tcp_md5sig key{};
    SHOW("no key", setsockopt(fd, IPPROTO_TCP, TCP_MD5SIG, &key, sizeof key));
    SHOW("short", setsockopt(fd, IPPROTO_TCP, TCP_MD5SIG, &key, 4));
    sockaddr_in a = at(there(), 0);
    memcpy(&key.tcpm_addr, &a, sizeof a);
    SHOW("remove an unknown key", setsockopt(fd, IPPROTO_TCP, TCP_MD5SIG, &key, sizeof key));
}

TCP_PAIR_CASE(option, info) {
    int fd = connection();
    put_bytes(fd, 20'000, 1);
    show_read("recv", fd, 20'000, MSG_WAITALL);
    await_acked(fd);
    sync();
    tcp_info i = info_of(fd);
    say("state %s options %x snd_mss %u advmss %u", state_name(i.tcpi_state), i.tcpi_options, i.tcpi_snd_mss,
        i.tcpi_advmss);
    say("rcv_mss %d", i.tcpi_rcv_mss > 0 && i.tcpi_rcv_mss <= 65535);
    say("rtt %d rttvar %d rto %d", i.tcpi_rtt > 0 && i.tcpi_rtt < 1'000'000, i.tcpi_rttvar < 1'000'000,
        i.tcpi_rto >= 200'000 && i.tcpi_rto < 3'000'000);
    say("cwnd %d ssthresh %d", i.tcpi_snd_cwnd >= 2, i.tcpi_snd_ssthresh > 0);
    say("unacked %u lost %u retrans %u ca_state %d probes %d backoff %d", i.tcpi_unacked, i.tcpi_lost,
        i.tcpi_retrans, i.tcpi_ca_state, i.tcpi_probes, i.tcpi_backoff);
    say("pmtu %u rcv_space %d", i.tcpi_pmtu, i.tcpi_rcv_space > 0);
    say("acked %llu received %llu", static_cast<unsigned long long>(i.tcpi_bytes_acked),
        static_cast<unsigned long long>(i.tcpi_bytes_received));
    // Less what a busy machine made either side send again.
    say("sent %llu notsent %u", static_cast<unsigned long long>(i.tcpi_bytes_sent - i.tcpi_bytes_retrans),
        i.tcpi_notsent_bytes);
    say("segments %d %d", i.tcpi_segs_in > 0, i.tcpi_segs_out > 0);
    say("scales %d %d", i.tcpi_snd_wscale > 0 && i.tcpi_snd_wscale <= 14, i.tcpi_rcv_wscale <= 14);
    say("window %d", i.tcpi_snd_wnd > 0);
}

TCP_PAIR_CASE(option, info_lengths) {
    int fd = connection();
    for (int room : {0, 1, 8, 100, 104, 192, static_cast<int>(sizeof(tcp_info)), 1000, -1}) {
        char data[1000];
        memset(data, 0x5a, sizeof data);
        socklen_t length = static_cast<socklen_t>(room);
        SHOW("get", getsockopt(fd, IPPROTO_TCP, TCP_INFO, data, &length));
        bool intact = true;
        for (int i = room < 0 ? 0 : std::min<int>(room, static_cast<int>(length)); i < 1000; i++)
            intact = intact && data[i] == 0x5a;
        say("length %u, state %d, rest intact %d", length, room > 0 ? data[0] : 0, intact);
    }
    tcp_info i{};
    SHOW("set", setsockopt(fd, IPPROTO_TCP, TCP_INFO, &i, sizeof i));
}

TCP_PAIR_CASE(option, info_while_unread) {
    int fd = connection();
    at_left([&] {
        put_bytes(fd, 5000, 1);
        await_acked(fd);
        tcp_info i = info_of(fd);
        say("acked %llu unacked %u", static_cast<unsigned long long>(i.tcpi_bytes_acked), i.tcpi_unacked);
    });
    at_right([&] {
        tcp_info i = info_of(fd);
        say("received %llu", static_cast<unsigned long long>(i.tcpi_bytes_received));
    });
}

TCP_PAIR_CASE(option, inq_message) {
    int fd = connection();
    SHOW("set", set(fd, IPPROTO_TCP, TCP_INQ, 1));
    at_left([&] { put(fd, "0123456789"); });
    at_right([&] {
        await_bytes(fd, 10);
        char data[4], control[100];
        iovec iov{data, sizeof data};
        msghdr m{};
        m.msg_iov = &iov;
        m.msg_iovlen = 1;
        m.msg_control = control;
        m.msg_controllen = sizeof control;
        SHOW("recvmsg", recvmsg(fd, &m, 0));
        cmsghdr* c = CMSG_FIRSTHDR(&m);
        int left_over = -1;
        if (c != nullptr && c->cmsg_type == TCP_CM_INQ) memcpy(&left_over, CMSG_DATA(c), sizeof left_over);
        say("left over %d", left_over);
    });
}

TCP_PAIR_CASE(option, bind_to_device) {
    int fd = connection();
    char name[32] = {};
    socklen_t length = sizeof name;
    SHOW("get", getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, &length));
    say("\"%s\" length %u", name, length);
    SHOW("unknown", setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "nonsense0", 9));
    SHOW("the right one", setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "veth1", 5));
    length = sizeof name;
    getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, &length);
    say("\"%s\" length %u", name, length);
    sync();
    at_left([&] { put(fd, "bound"); });
    at_right([&] { show_read("recv", fd, 10); });
}

TCP_KERNEL_CASE(option, bound_to_device_before, 16) {
    for (const char* device : {"veth1", "veth2", "lo"}) {
        int listener = -1;
        at_server([&] {
            listener = stream();
            set(listener, SOL_SOCKET, SO_REUSEADDR, 1);
            SHOW(device, setsockopt(listener, SOL_SOCKET, SO_BINDTODEVICE, device,
                                    static_cast<socklen_t>(strlen(device))));
            sockaddr_in a = at("0.0.0.0", port());
            SHOW("bind", bind(listener, raw(a), sizeof a));
            SHOW("listen", listen(listener, 5));
        });
        at_client([&] {
            for (const char* address : {kHere, kHereLink2}) {
                sockaddr_in a = at(address, port());
                int fd = stream();
                SHOW(address, connect(fd, raw(a), sizeof a));
                close(fd);
            }
        });
        at_server([&] { close(listener); });
    }
}

// One second idle, one probe, one more second: the connection whose peer answers lasts, the other one dies.
TCP_CASE(option, keepalive_probes) {
    int silent = connection(), listener = -1, answered = -1;
    at_server([&] { listener = listening(1, kHereLink2); });
    at_client([&] { answered = connecting(kHereLink2, port(1)); });
    at_server([&] {
        answered = accepted(listener);
        for (int fd : {silent, answered}) {
            set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
            set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1);
            set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
            set(fd, IPPROTO_TCP, TCP_KEEPCNT, 1);
        }
    });
    at_client([&] { ok(system("ip route add blackhole 198.18.1.1/32")); });
    at_server([&] {
        pollfd p{silent, POLLIN, 0};
        SHOW("poll", poll(&p, 1, 6000));
        say("%s", events_text(p.revents).c_str());
        show_read("recv", silent, 10);
        show_read("recv", silent, 10);
        show_state("dead", silent);
        show_events("alive", answered);
        put(answered, "alive");
    });
    at_client([&] {
        ok(system("ip route del blackhole 198.18.1.1/32"));
        show_read("recv", answered, 10);
    });
}

TCP_PAIR_CASE(option, notsent_low_water) {
    int fd = connection();
    at_left([&] {
        SHOW("set", set(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 1));
        fill(fd);
        show_events("full", fd);
    });
    at_right([&] {});
}

// Writes stop at the limit, though the send buffer has room for more.
TCP_PAIR_CASE(option, notsent_low_water_stops_writes) {
    constexpr int kLimit = 16384, kBuffer = 65160;  // the kernel fills a buffer that it has begun
    int fd = connection();
    at_left([&] {
        set(fd, SOL_SOCKET, SO_SNDBUF, 2 << 20);
        set(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kLimit);
        int unsent = 0;
        const std::string text(4096, 'x');
        for (int quiet = 0; quiet < 20;) {  // until the peer takes no more
            if (send(fd, text.data(), text.size(), MSG_DONTWAIT) > 0)
                quiet = 0;
            else
                quiet++, usleep(10'000);
        }
        ioctl(fd, SIOCOUTQNSD, &unsent);
        say("at least the limit: %d, at most a buffer more: %d", unsent >= kLimit, unsent < kLimit + kBuffer);
        show_events("full", fd);
    });
}

// The system's settings are those of the moment when a connection begins.
TCP_CASE(option, settings_of_each_connection) {
    auto setting = [](const char* name, const char* value) {
        const std::string path = std::string("/proc/sys/net/ipv4/") + name;
        const int fd = open(path.c_str(), O_WRONLY);
        if (write(fd, value, strlen(value)) < 0) say("%s: %s", name, strerrorname_np(errno));
        close(fd);
        usleep(20'000);
    };
    auto show = [](const char* what, int fd) {
        tcp_info i{};
        socklen_t length = sizeof i;
        getsockopt(fd, IPPROTO_TCP, TCP_INFO, &i, &length);
        say("%s: options %x", what, i.tcpi_options & 7);
    };
    int listener = -1;
    at_server([&] { listener = listening(); });
    auto round = [&](const char* what) {
        int fd = -1;
        at_client([&] { fd = connecting(there(), port()); });
        at_server([&] { fd = accepted(listener); });
        show(what, fd);
        close(fd);
        sync();
    };
    round("at first");
    at_client([&] { setting("tcp_timestamps", "0"); });
    round("client without time stamps");
    at_client([&] { setting("tcp_sack", "0"); });
    int late = -1;
    at_client([&] {
        late = stream();
        setting("tcp_window_scaling", "0");
        sockaddr_in to = at(there(), port());
        SHOW("connect", connect(late, raw(to), sizeof to));
        show("socket made before", late);
    });
    at_server([&] {
        late = accepted(listener);
        show("nothing agreed", late);
    });
    close(late);
    at_client([&] {
        for (const char* name : {"tcp_timestamps", "tcp_sack", "tcp_window_scaling"}) setting(name, "1");
    });
    round("at last");
    at_server([&] {
        setting("tcp_keepalive_time", "1234");
        const int fd = stream();
        say("keepalive %d", get(fd, IPPROTO_TCP, TCP_KEEPIDLE));
        setting("tcp_keepalive_time", "7200");
        say("keepalive %d", get(fd, IPPROTO_TCP, TCP_KEEPIDLE));
        close(fd);
    });
}

}  // namespace parity::tcp
