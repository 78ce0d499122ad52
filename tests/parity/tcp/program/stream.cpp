// SPDX-License-Identifier: BSD-2-Clause
// Bytes through a connection: every call that reads and writes, its flags, its addresses and its limits.
#include <limits.h>

#include "tests/parity/pair/tcp_harness.h"

namespace parity::tcp {
namespace {

void* const kBad = reinterpret_cast<void*>(8);

// recvmsg with everything asked for; shows what came back beside the data.
void show_message(const char* what, int fd, size_t room, int flags = 0) {
    char data[4096], control[256];
    sockaddr_in from;
    memset(&from, 0xee, sizeof from);
    iovec iov{data, room};
    msghdr m{};
    m.msg_name = &from;
    m.msg_namelen = sizeof from;
    m.msg_iov = &iov;
    m.msg_iovlen = 1;
    m.msg_control = control;
    m.msg_controllen = sizeof control;
    m.msg_flags = 0x5a5a;
    errno = ERANGE;
    long n = recvmsg(fd, &m, flags);
    if (n < 0)
        say("%s = -1 %s", what, strerrorname_np(errno));
    else
        say("%s = %s namelen=%u flags=%s controllen=%zu", what, digest(data, n).c_str(), m.msg_namelen,
            flags_text(m.msg_flags).c_str(), static_cast<size_t>(m.msg_controllen));
}

}  // namespace

TCP_PAIR_CASE(stream, sizes) {
    int fd = connection();
    for (size_t length : {1, 2, 100, 1447, 1448, 1449, 2896, 2897, 10'000, 65'535, 65'536, 100'001}) {
        at_left([&] { put_bytes(fd, length, static_cast<uint32_t>(length)); });
        at_right([&] {
            show_read("recv", fd, length, MSG_WAITALL);
            int n = -1;
            ioctl(fd, FIONREAD, &n);
            say("left over %d", n);
        });
    }
}

TCP_PAIR_CASE(stream, both_directions) {
    int fd = connection();
    for (int i = 0; i < 20; i++) {
        put_bytes(fd, 3000, static_cast<uint32_t>(i + left()));
        show_read("recv", fd, 3000, MSG_WAITALL);
    }
}

TCP_PAIR_CASE(stream, ping_pong) {
    int fd = connection();
    long good = 0;
    for (int i = 0; i < 300; i++) {
        auto data = bytes(static_cast<size_t>(1 + i * 7), static_cast<uint32_t>(i));
        std::vector<uint8_t> back(data.size());
        if (left()) {
            good += send(fd, data.data(), data.size(), 0) == static_cast<long>(data.size());
            good += recv(fd, back.data(), back.size(), MSG_WAITALL) == static_cast<long>(data.size()) &&
                    back == data;
        } else {
            good += recv(fd, back.data(), back.size(), MSG_WAITALL) == static_cast<long>(data.size()) &&
                    back == data;
            good += send(fd, back.data(), back.size(), 0) == static_cast<long>(data.size());
        }
    }
    say("good %ld", good);
}

TCP_PAIR_CASE(stream, bulk) {
    int fd = connection();
    constexpr size_t kLength = 4'000'000;
    if (left()) {
        put_bytes(fd, kLength, 11);
        shutdown(fd, SHUT_WR);
        show_read("end", fd, 1);
    } else {
        show_rest("recv", fd);
        close(fd);
    }
}

// So much that the library leaves the rest to the kernel, in the midst of it.
TCP_KERNEL_PAIR_CASE(stream, bulk_for_long, 1'000'000) {
    int fd = connection();
    constexpr size_t kLength = 131'072;
    constexpr uint32_t kWrites = 800;  // half as much again as makes it the kernel's
    long good = 0;
    for (uint32_t i = 0; i < kWrites; i++) {
        auto data = bytes(kLength, i % 8);
        std::vector<uint8_t> got(kLength);
        if (left()) good += send(fd, data.data(), kLength, 0) == static_cast<long>(kLength);
        if (!left())
            good += recv(fd, got.data(), kLength, MSG_WAITALL) == static_cast<long>(kLength) && got == data;
    }
    say("good %ld", good);
    sync();
    // It goes on as before.
    at_left([&] { put(fd, "small"); });
    at_right([&] {
        show_read("recv", fd, 100);
        put(fd, "too");
    });
    at_left([&] {
        show_read("recv", fd, 100);
        shutdown(fd, SHUT_WR);
    });
    at_right([&] { show_read("end", fd, 100); });
}

TCP_PAIR_CASE(stream, no_message_boundaries) {
    int fd = connection();
    at_left([&] {
        for (const char* piece : {"a", "bc", "def", "ghij"}) put(fd, piece);
        await_acked(fd);
    });
    at_right([&] {
        await_bytes(fd, 10);
        show_read("recv", fd, 4);
        show_read("recv", fd, 100);
    });
}

TCP_PAIR_CASE(stream, peek) {
    int fd = connection();
    at_left([&] {
        put(fd, "first ");
        await_acked(fd);
        put(fd, "second ");
        await_acked(fd);
        put(fd, "third");
    });
    at_right([&] {
        await_bytes(fd, 18);
        show_read("peek", fd, 3, MSG_PEEK);
        show_read("peek", fd, 100, MSG_PEEK);
        show_read("peek", fd, 100, MSG_PEEK);
        show_read("recv", fd, 8);
        show_read("peek", fd, 7, MSG_PEEK);
        show_read("peek all", fd, 10, MSG_PEEK | MSG_WAITALL);
        int n = -1;
        ioctl(fd, FIONREAD, &n);
        say("queued %d", n);
        show_read("recv", fd, 100);
        show_read("peek nothing", fd, 100, MSG_PEEK | MSG_DONTWAIT);
    });
    if (left()) {
        usleep(3000);
        put(fd, "later");
        shutdown(fd, SHUT_WR);
    } else {
        show_read("peek waits", fd, 100, MSG_PEEK);
        show_read("recv", fd, 100);
        show_read("peek the end", fd, 100, MSG_PEEK);
        show_read("recv the end", fd, 100);
    }
    sync();
}

TCP_KERNEL_PAIR_CASE(stream, peek_offset, 7) {
    int fd = connection();
    at_left([&] { put(fd, "0123456789"); });
    at_right([&] {
        await_bytes(fd, 10);
        SHOW("set", set(fd, SOL_SOCKET, SO_PEEK_OFF, 3));
        say("offset %d", get(fd, SOL_SOCKET, SO_PEEK_OFF));
        show_read("peek", fd, 2, MSG_PEEK);
        say("offset %d", get(fd, SOL_SOCKET, SO_PEEK_OFF));
        show_read("peek", fd, 2, MSG_PEEK);
        show_read("recv", fd, 4);
        say("offset %d", get(fd, SOL_SOCKET, SO_PEEK_OFF));
        SHOW("off", set(fd, SOL_SOCKET, SO_PEEK_OFF, -1));
        show_read("peek", fd, 100, MSG_PEEK);
    });
}

TCP_PAIR_CASE(stream, wait_all) {
    int fd = connection();
    if (left()) {
        for (int i = 0; i < 5; i++) {
            put_bytes(fd, 1000, static_cast<uint32_t>(i));
            usleep(1000);
        }
    } else {
        show_read("all", fd, 5000, MSG_WAITALL);
    }
    sync();
    at_left([&] { put(fd, "some"); });
    at_right([&] {
        await_bytes(fd, 4);
        show_read("without waiting", fd, 100, MSG_WAITALL | MSG_DONTWAIT);
        show_read("nothing", fd, 100, MSG_WAITALL | MSG_DONTWAIT);
        set_timeout(fd, SO_RCVTIMEO, 20);
        show_read("time limit, nothing", fd, 100, MSG_WAITALL);
    });
    at_left([&] { put(fd, "part"); });
    at_right([&] {
        show_read("time limit, part", fd, 100, MSG_WAITALL);
        set_timeout(fd, SO_RCVTIMEO, 0);
    });
    at_left([&] {
        put(fd, "the end");
        shutdown(fd, SHUT_WR);
    });
    at_right([&] {
        show_read("end", fd, 100, MSG_WAITALL);
        show_read("end", fd, 100, MSG_WAITALL);
    });
}

TCP_PAIR_CASE(stream, dont_wait) {
    int fd = connection();
    show_read("nothing", fd, 10, MSG_DONTWAIT);
    show_read("no room", fd, 0, MSG_DONTWAIT);
    nonblocking(fd);
    show_read("nonblocking", fd, 10);
    SHOW("read", read(fd, nullptr, 0));
    nonblocking(fd, false);
    set_timeout(fd, SO_RCVTIMEO, 20);
    show_read("time limit", fd, 10);
    char c;
    SHOW("read", read(fd, &c, 1));
    iovec iov{&c, 1};
    SHOW("readv", readv(fd, &iov, 1));
    sync();
    at_left([&] { put(fd, "data"); });
    at_right([&] {
        await_readable(fd);
        show_read("data", fd, 10, MSG_DONTWAIT);
    });
}

TCP_PAIR_CASE(stream, more) {
    int fd = connection();
    at_left([&] {
        SHOW("more", send(fd, "held ", 5, MSG_MORE));
        SHOW("more", send(fd, "back ", 5, MSG_MORE));
        int unsent = -1;
        SHOW("SIOCOUTQNSD", ioctl(fd, SIOCOUTQNSD, &unsent));
        say("unsent %d", unsent);
        SHOW("last", send(fd, "sent", 4, 0));
    });
    at_right([&] { show_read("in one", fd, 100); });
    at_left([&] {
        auto data = bytes(2000, 4);
        SHOW("more than a segment", send(fd, data.data(), data.size(), MSG_MORE));
    });
    at_right([&] {
        await_bytes(fd, 1);
        show_read("a full segment", fd, 1448, MSG_WAITALL);
    });
    at_left([&] {
        SHOW("nodelay pushes", set(fd, IPPROTO_TCP, TCP_NODELAY, 1));
        int unsent = -1;
        ioctl(fd, SIOCOUTQNSD, &unsent);
        say("unsent %d", unsent);
    });
    at_right([&] { show_read("the rest", fd, 552, MSG_WAITALL); });
    at_left([&] {
        SHOW("more", send(fd, "held", 4, MSG_MORE));
        shutdown(fd, SHUT_WR);
    });
    at_right([&] { show_rest("the end pushes", fd); });
}

TCP_PAIR_CASE(stream, more_by_sendmsg) {
    int fd = connection();
    at_left([&] {
        iovec iov[2] = {{const_cast<char*>("one "), 4}, {const_cast<char*>("two "), 4}};
        msghdr m{};
        m.msg_iov = iov;
        m.msg_iovlen = 2;
        SHOW("sendmsg", sendmsg(fd, &m, MSG_MORE));
        mmsghdr mm[3] = {{m, 0}, {m, 0}, {m, 0}};
        SHOW("sendmmsg", sendmmsg(fd, mm, 3, MSG_MORE));
        say("lengths %u %u %u", mm[0].msg_len, mm[1].msg_len, mm[2].msg_len);
        SHOW("write", write(fd, "end", 3));
    });
    at_right([&] { show_read("in one", fd, 100); });
}

TCP_PAIR_CASE(stream, cork) {
    int fd = connection();
    at_left([&] {
        SHOW("cork", set(fd, IPPROTO_TCP, TCP_CORK, 1));
        for (const char* piece : {"several ", "small ", "writes "}) put(fd, piece);
        int unsent = -1;
        ioctl(fd, SIOCOUTQNSD, &unsent);
        say("unsent %d", unsent);
        SHOW("nodelay does not push", set(fd, IPPROTO_TCP, TCP_NODELAY, 1));
        ioctl(fd, SIOCOUTQNSD, &unsent);
        say("unsent %d", unsent > 0);
        SHOW("uncork", set(fd, IPPROTO_TCP, TCP_CORK, 0));
    });
    at_right([&] {
        await_bytes(fd, 20);
        show_read("in one", fd, 100);
    });
    at_left([&] {
        SHOW("cork", set(fd, IPPROTO_TCP, TCP_CORK, 1));
        put(fd, "corked at the end");
        shutdown(fd, SHUT_WR);
    });
    at_right([&] { show_rest("the end uncorks", fd); });
}

// The kernel lets a corked remainder go after 200 ms.
TCP_PAIR_CASE(stream, cork_time) {
    int fd = connection();
    at_left([&] {
        set(fd, IPPROTO_TCP, TCP_CORK, 1);
        put(fd, "forgotten");
    });
    at_right([&] { show_read("in the end", fd, 100); });
}

TCP_PAIR_CASE(stream, trunc_discards) {
    int fd = connection();
    at_left([&] { put(fd, "0123456789abcdefghij"); });
    at_right([&] {
        await_bytes(fd, 20);
        char untouched[20] = "untouched";
        SHOW("discard", recv(fd, untouched, 5, MSG_TRUNC));
        say("buffer %s", untouched);
        SHOW("discard into nothing", recv(fd, nullptr, 5, MSG_TRUNC));
        show_read("the rest", fd, 100);
        SHOW("nothing", recv(fd, nullptr, 5, MSG_TRUNC | MSG_DONTWAIT));
    });
    at_left([&] { put(fd, "more"); });
    at_right([&] {
        await_bytes(fd, 4);
        SHOW("peek and discard", recv(fd, nullptr, 100, MSG_TRUNC | MSG_PEEK));
        show_read("all is there", fd, 100);
    });
}

TCP_PAIR_CASE(stream, zero_length) {
    int fd = connection();
    at_left([&] {
        SHOW("send", send(fd, "", 0, 0));
        SHOW("send nothing", send(fd, nullptr, 0, 0));
        SHOW("write", write(fd, "", 0));
        SHOW("writev", writev(fd, nullptr, 0));
        iovec iov{nullptr, 0};
        SHOW("writev empty", writev(fd, &iov, 1));
        msghdr m{};
        SHOW("sendmsg", sendmsg(fd, &m, 0));
        SHOW("sendto", sendto(fd, nullptr, 0, 0, nullptr, 0));
    });
    at_right([&] { show_events("nothing comes", fd); });
    at_left([&] { put(fd, "x"); });
    at_right([&] {
        await_bytes(fd, 1);
        char c;
        SHOW("recv", recv(fd, &c, 0, 0));
        SHOW("read", read(fd, &c, 0));
        SHOW("readv", readv(fd, nullptr, 0));
        iovec iov{nullptr, 0};
        SHOW("readv empty", readv(fd, &iov, 1));
        msghdr m{};
        SHOW("recvmsg", recvmsg(fd, &m, 0));
        SHOW("recvmsg peek", recvmsg(fd, &m, MSG_PEEK));
        show_read("still there", fd, 10);
        // A read of nothing on an empty stream does not wait in the kernel.
        SHOW("read nothing", read(fd, &c, 0));
    });
}

TCP_PAIR_CASE(stream, vectors) {
    int fd = connection();
    for (int count : {1, 2, 7, 100, 1023, 1024}) {
        std::vector<uint8_t> data(static_cast<size_t>(count) * 5);
        payload::fill(data.data(), data.size(), 3);
        std::vector<iovec> iov;
        for (int i = 0; i < count; i++) {
            size_t first = static_cast<size_t>(i) * 5;
            // Every third is empty, its bytes go with the next.
            iov.push_back({data.data() + first, i % 3 == 0 ? 5u : i % 3 == 1 ? 0u : 5u});
        }
        long total = 0;
        for (const iovec& v : iov) total += static_cast<long>(v.iov_len);
        at_left([&] { SHOW("writev", writev(fd, iov.data(), count)); });
        at_right([&] {
            await_bytes(fd, static_cast<int>(total));
            std::fill(data.begin(), data.end(), 0);
            SHOW("readv", readv(fd, iov.data(), count));
            say("%s", digest(data.data(), static_cast<long>(data.size())).c_str());
        });
        msghdr m{};
        m.msg_iov = iov.data();
        m.msg_iovlen = static_cast<size_t>(count);
        at_left([&] { SHOW("sendmsg", sendmsg(fd, &m, 0)); });
        at_right([&] {
            SHOW("recvmsg", recvmsg(fd, &m, MSG_WAITALL));
            say("%s", digest(data.data(), static_cast<long>(data.size())).c_str());
        });
    }
}

TCP_PAIR_CASE(stream, large_vectors) {
    int fd = connection();
    std::vector<uint8_t> data = bytes(300'000, 6);
    std::vector<iovec> iov(1000);
    for (size_t i = 0; i < iov.size(); i++) iov[i] = {data.data() + i * 300, 300};
    if (left()) {
        SHOW("writev", writev(fd, iov.data(), 1000));
    } else {
        std::fill(data.begin(), data.end(), 0);
        msghdr m{};
        m.msg_iov = iov.data();
        m.msg_iovlen = iov.size();
        SHOW("recvmsg", recvmsg(fd, &m, MSG_WAITALL));
        say("%s", digest(data.data(), static_cast<long>(data.size())).c_str());
    }
}

TCP_PAIR_CASE(stream, too_many_vectors) {
    int fd = connection();
    char c = 'x';
    std::vector<iovec> iov(1100, iovec{&c, 1});
    for (int count : {1025, -1, INT_MAX}) {
        SHOW("writev", writev(fd, iov.data(), count));
        SHOW("readv", readv(fd, iov.data(), count));
    }
    msghdr m{};
    m.msg_iov = iov.data();
    m.msg_iovlen = 1025;
    SHOW("sendmsg", sendmsg(fd, &m, 0));
    SHOW("recvmsg", recvmsg(fd, &m, MSG_DONTWAIT));
    m.msg_iovlen = static_cast<size_t>(-1);
    SHOW("sendmsg", sendmsg(fd, &m, 0));
    SHOW("recvmsg", recvmsg(fd, &m, MSG_DONTWAIT));
    iov[0].iov_len = static_cast<size_t>(-1);
    SHOW("negative length", writev(fd, iov.data(), 2));
    SHOW("negative length", readv(fd, iov.data(), 2));
    sync();
    show_events("nothing was sent", fd);
}

TCP_PAIR_CASE(stream, bad_pointers) {
    int fd = connection();
    at_left([&] {
        SHOW("send", send(fd, kBad, 10, 0));
        SHOW("write", write(fd, kBad, 10));
        SHOW("sendmsg", sendmsg(fd, static_cast<msghdr*>(kBad), 0));
        SHOW("writev", writev(fd, static_cast<iovec*>(kBad), 1));
        iovec iov{kBad, 10};
        SHOW("writev", writev(fd, &iov, 1));
        msghdr m{};
        m.msg_iov = &iov;
        m.msg_iovlen = 1;
        SHOW("sendmsg", sendmsg(fd, &m, 0));
        iovec two[2] = {{const_cast<char*>("good"), 4}, {kBad, 10}};
        SHOW("second is bad", writev(fd, two, 2));
        put(fd, "[after]");
    });
    at_right([&] {
        await_readable(fd);
        SHOW("recv", recv(fd, kBad, 4, 0));
        SHOW("read", read(fd, kBad, 4));
        iovec iov{kBad, 4};
        SHOW("readv", readv(fd, &iov, 1));
        SHOW("recvmsg", recvmsg(fd, static_cast<msghdr*>(kBad), 0));
        SHOW("readv", readv(fd, static_cast<iovec*>(kBad), 1));
        sockaddr_in from;
        char c;
        SHOW("bad address", recvfrom(fd, &c, 0, 0, raw(from), static_cast<socklen_t*>(kBad)));
    });
    at_left([&] { shutdown(fd, SHUT_WR); });
    at_right([&] { show_rest("nothing is lost", fd); });
}

TCP_PAIR_CASE(stream, message_fields) {
    int fd = connection();
    at_left([&] { put(fd, "0123456789"); });
    at_right([&] {
        await_bytes(fd, 10);
        show_message("peek", fd, 3, MSG_PEEK);
        show_message("short", fd, 3);
        show_message("rest", fd, 100);
        show_message("nothing", fd, 100, MSG_DONTWAIT);
    });
    at_left([&] { shutdown(fd, SHUT_WR); });
    at_right([&] { show_message("end", fd, 100); });
}

TCP_PAIR_CASE(stream, recvfrom_address) {
    int fd = connection();
    at_left([&] { put(fd, "0123456789"); });
    at_right([&] {
        await_bytes(fd, 10);
        unsigned char name[32];
        memset(name, 0xee, sizeof name);
        socklen_t length = sizeof name;
        char data[10];
        SHOW("recvfrom", recvfrom(fd, data, 5, 0, reinterpret_cast<sockaddr*>(name), &length));
        say("length %u untouched %d", length, name[0] == 0xee);
        length = static_cast<socklen_t>(-1);
        SHOW("negative length",
             recvfrom(fd, data, 5, MSG_DONTWAIT, reinterpret_cast<sockaddr*>(name), &length));
        length = 0;
        SHOW("no length", recvfrom(fd, data, 5, MSG_DONTWAIT, reinterpret_cast<sockaddr*>(name), nullptr));
    });
}

TCP_PAIR_CASE(stream, sendto_with_address) {
    int fd = connection();
    at_left([&] {
        sockaddr_in a = at(kNoRoute, 1);
        SHOW("another address", sendto(fd, "one ", 4, 0, raw(a), sizeof a));
        SHOW("short address", sendto(fd, "two ", 4, 0, raw(a), 3));
        SHOW("bad address", sendto(fd, "three ", 6, 0, static_cast<sockaddr*>(kBad), sizeof a));
        SHOW("long address", sendto(fd, "four ", 5, 0, raw(a), 1000));
        a.sin_family = AF_UNIX;
        SHOW("another family", sendto(fd, "five", 4, 0, raw(a), sizeof a));
        shutdown(fd, SHUT_WR);
    });
    at_right([&] { show_rest("recv", fd); });
}

TCP_KERNEL_PAIR_CASE(stream, control_messages, 16) {
    int fd = connection();
    at_left([&] {
        iovec iov{const_cast<char*>("data"), 4};
        alignas(cmsghdr) char control[64] = {};
        msghdr m{};
        m.msg_iov = &iov;
        m.msg_iovlen = 1;
        m.msg_control = control;
        auto put_control = [&](int level, int type, size_t length) {
            m.msg_controllen = CMSG_SPACE(4);
            cmsghdr* c = CMSG_FIRSTHDR(&m);
            c->cmsg_level = level;
            c->cmsg_type = type;
            c->cmsg_len = length;
        };
        put_control(SOL_SOCKET, SCM_RIGHTS, CMSG_LEN(4));
        SHOW("rights", sendmsg(fd, &m, 0));
        put_control(SOL_SOCKET, 9999, CMSG_LEN(4));
        SHOW("unknown", sendmsg(fd, &m, 0));
        put_control(SOL_IP, IP_TTL, CMSG_LEN(4));
        SHOW("another level", sendmsg(fd, &m, 0));
        put_control(SOL_SOCKET, SCM_RIGHTS, 2);
        SHOW("malformed", sendmsg(fd, &m, 0));
        m.msg_control = kBad;
        SHOW("bad pointer", sendmsg(fd, &m, 0));
        shutdown(fd, SHUT_WR);
    });
    at_right([&] { show_rest("recv", fd); });
}

TCP_KERNEL_PAIR_CASE(stream, time_stamps, 10) {
    int fd = connection();
    at_right([&] { SHOW("timestamps", set(fd, SOL_SOCKET, SO_TIMESTAMP, 1)); });
    at_left([&] { put(fd, "stamped"); });
    at_right([&] {
        await_bytes(fd, 7);
        char data[100], control[100];
        iovec iov{data, sizeof data};
        msghdr m{};
        m.msg_iov = &iov;
        m.msg_iovlen = 1;
        m.msg_control = control;
        m.msg_controllen = sizeof control;
        SHOW("recvmsg", recvmsg(fd, &m, 0));
        // The kernel starts taking stamps a little after it was asked.
        say("flags %s, option %d", flags_text(m.msg_flags).c_str(), get(fd, SOL_SOCKET, SO_TIMESTAMP));
    });
}

TCP_PAIR_CASE(stream, unknown_flags) {
    int fd = connection();
    at_left([&] {
        for (int flags :
             {0x10000000, 0x8, 0x800, int{MSG_CONFIRM}, int{MSG_EOR}, int{MSG_DONTROUTE}, 0x02000000})
            SHOW("send", send(fd, "x", 1, flags));
        SHOW("fastopen", sendto(fd, "x", 1, MSG_FASTOPEN, nullptr, 0));
        shutdown(fd, SHUT_WR);
    });
    at_right([&] {
        await_readable(fd);
        SHOW("errqueue", recv(fd, nullptr, 0, MSG_ERRQUEUE | MSG_DONTWAIT));
        char c;
        for (int flags : {0x10000000, 0x800, int{MSG_CMSG_CLOEXEC}})
            SHOW("recv", recv(fd, &c, 1, flags | MSG_PEEK));
        show_rest("recv", fd);
    });
}

TCP_PAIR_CASE(stream, recvmmsg) {
    int fd = connection();
    at_left([&] { put(fd, "0123456789"); });
    at_right([&] {
        await_bytes(fd, 10);
        char data[4][4] = {};
        iovec iov[4];
        mmsghdr mm[4] = {};
        for (int i = 0; i < 4; i++) {
            iov[i] = {data[i], 4};
            mm[i].msg_hdr.msg_iov = &iov[i];
            mm[i].msg_hdr.msg_iovlen = 1;
        }
        SHOW("recvmmsg", recvmmsg(fd, mm, 4, MSG_DONTWAIT, nullptr));
        say("%u %u %u, %.4s %.4s %.2s", mm[0].msg_len, mm[1].msg_len, mm[2].msg_len, data[0], data[1],
            data[2]);
        SHOW("nothing", recvmmsg(fd, mm, 4, MSG_DONTWAIT, nullptr));
    });
    at_left([&] { put(fd, "x"); });
    at_right([&] {
        char c[2];
        iovec iov{c, 1};
        mmsghdr mm[2] = {};
        for (mmsghdr& m : mm) {
            m.msg_hdr.msg_iov = &iov;
            m.msg_hdr.msg_iovlen = 1;
        }
        SHOW("wait for one", recvmmsg(fd, mm, 2, MSG_WAITFORONE, nullptr));
    });
}

// Other than recv(), it tells of an error before it gives what came before that.
TCP_PAIR_CASE(stream, recvmmsg_and_errors) {
    int fd = connection();
    at_right([&] { put(fd, "0123456789"); });
    at_left([&] { await_bytes(fd, 10); });
    at_right([&] {
        set_linger(fd, true, 0);
        close(fd);
    });
    at_left([&] {
        await_events(fd, POLLHUP | POLLERR);
        char c[3][4];
        iovec iov[3];
        mmsghdr mm[3] = {};
        for (int i = 0; i < 3; i++) {
            iov[i] = {c[i], 4};
            mm[i].msg_hdr.msg_iov = &iov[i];
            mm[i].msg_hdr.msg_iovlen = 1;
        }
        SHOW("error", recvmmsg(fd, mm, 3, MSG_DONTWAIT | MSG_PEEK, nullptr));
        SHOW("data", recvmmsg(fd, mm, 3, MSG_DONTWAIT, nullptr));
        say("%u %u %u", mm[0].msg_len, mm[1].msg_len, mm[2].msg_len);
        SHOW("end", recvmmsg(fd, mm, 1, MSG_DONTWAIT, nullptr));
    });
}

// How much fits is the implementation's business; that all of it arrives is not.
TCP_PAIR_CASE(stream, partial_writes) {
    int fd = connection();
    long total = 0;
    at_left([&] {
        nonblocking(fd);
        std::vector<uint8_t> data(20'000'000);
        for (size_t i = 0; i < data.size(); i++) data[i] = static_cast<uint8_t>(i * 5 + (i >> 9));
        total = send(fd, data.data(), data.size(), 0);
        say("partly %d", total > 0 && total < 20'000'000);
        long n;
        while ((n = send(fd, data.data() + total, data.size() - static_cast<size_t>(total), 0)) > 0)
            total += n;
        say("full: %ld %s", n, strerrorname_np(errno));
    });
    total = left() ? (exchange(total), total) : exchange(0);
    at_right([&] {
        std::vector<uint8_t> data(static_cast<size_t>(total));
        say("all %d", recv(fd, data.data(), data.size(), MSG_WAITALL) == total);
        bool same = true;
        for (size_t i = 0; i < data.size(); i++)
            same = same && data[i] == static_cast<uint8_t>(i * 5 + (i >> 9));
        say("same %d", same);
    });
}

TCP_PAIR_CASE(stream, send_time_limit) {
    int fd = connection();
    at_left([&] {
        fill(fd);
        set_timeout(fd, SO_SNDTIMEO, 20);
        std::vector<uint8_t> data(8'000'000);
        long n;
        while ((n = send(fd, data.data(), data.size(), 0)) > 0) {
        }
        say("full: %ld %s", n, strerrorname_np(errno));
        while ((n = write(fd, data.data(), data.size())) > 0) {
        }
        say("full: %ld %s", n, strerrorname_np(errno));
    });
}

TCP_PAIR_CASE(stream, blocked_write_continues) {
    int fd = connection();
    long length = 0;
    if (left()) length = static_cast<long>(fill(fd));
    long other = exchange(length);
    if (left()) {
        auto data = bytes(3'000'000, 8);
        SHOW("write", send(fd, data.data(), data.size(), 0));
        shutdown(fd, SHUT_WR);
    } else {
        usleep(5000);
        drain(fd, static_cast<size_t>(other));
        show_rest("the rest", fd);
    }
}

TCP_PAIR_CASE(stream, low_water_mark) {
    int fd = connection();
    at_right([&] {
        SHOW("set", set(fd, SOL_SOCKET, SO_RCVLOWAT, 10));
        say("mark %d", get(fd, SOL_SOCKET, SO_RCVLOWAT));
    });
    at_left([&] {
        put(fd, "12345");
        await_acked(fd);
    });
    at_right([&] {
        await_bytes(fd, 5);
        show_events("below", fd);
        show_select("below", fd);
        show_read("not waiting", fd, 3, MSG_DONTWAIT);
    });
    at_left([&] { put(fd, "67890abc"); });
    at_right([&] {
        show_events_with("at the mark", fd, POLLIN);
        show_read("recv", fd, 100);
    });
    if (left()) {
        for (int i = 0; i < 4; i++) {
            put(fd, "four");
            usleep(1000);
        }
    } else {
        char data[100];
        long n = recv(fd, data, sizeof data, 0);
        say("waited for the mark %d", n >= 10 && n <= 16);
        await_bytes(fd, static_cast<int>(16 - n));
        ok(recv(fd, data, sizeof data, MSG_DONTWAIT));
    }
    sync();
    at_left([&] { shutdown(fd, SHUT_WR); });
    at_right([&] {
        await_events(fd, POLLRDHUP);
        SHOW("set", set(fd, SOL_SOCKET, SO_RCVLOWAT, 1));
    });
    SHOW("zero", set(fd, SOL_SOCKET, SO_RCVLOWAT, 0));
    say("mark %d", get(fd, SOL_SOCKET, SO_RCVLOWAT));
    SHOW("negative", set(fd, SOL_SOCKET, SO_RCVLOWAT, -1));
    say("mark large %d", get(fd, SOL_SOCKET, SO_RCVLOWAT) > 1000);
}

TCP_PAIR_CASE(stream, small_buffers) {
    int fd = connection(
        {.listener = [](int l) { set(l, SOL_SOCKET, SO_RCVBUF, 4096), set(l, SOL_SOCKET, SO_SNDBUF, 4096); },
         .client = [](int c) { set(c, SOL_SOCKET, SO_RCVBUF, 4096), set(c, SOL_SOCKET, SO_SNDBUF, 4096); }});
    if (left()) {
        put_bytes(fd, 200'000, 12);
        shutdown(fd, SHUT_WR);
    } else {
        show_rest("recv", fd);
    }
}

TCP_PAIR_CASE(stream, slow_reader) {
    int fd = connection();
    if (left()) {
        put_bytes(fd, 1'500'000, 13);
        shutdown(fd, SHUT_WR);
    } else {
        auto expected = bytes(1'500'000, 13);
        std::vector<uint8_t> block(7001);
        size_t total = 0;
        bool same = true;
        for (long n; (n = recv(fd, block.data(), block.size(), 0)) > 0; total += static_cast<size_t>(n)) {
            same = same && total + static_cast<size_t>(n) <= expected.size() &&
                   memcmp(block.data(), expected.data() + total, static_cast<size_t>(n)) == 0;
            if (total % 50 == 0) usleep(1000);
        }
        say("total %zu same %d", total, same);
    }
}

// The window closes and opens again: nobody hangs.
TCP_PAIR_CASE(stream, window_closes) {
    int fd = connection();
    long length = 0;
    if (left()) length = static_cast<long>(fill(fd));
    long other = exchange(length);
    at_right([&] { drain(fd, static_cast<size_t>(other)); });
    at_left([&] {
        await_acked(fd);
        show_events_with("empty again", fd, POLLOUT);
        put(fd, "again");
    });
    at_right([&] { show_read("recv", fd, 10); });
}

// Without TCP_NODELAY: a second small write waits for the first one's acknowledgement, and goes.
TCP_PAIR_CASE(stream, nagle) {
    int fd = connection();
    set(fd, IPPROTO_TCP, TCP_NODELAY, 0);
    for (int i = 0; i < 3; i++) {
        at_left([&] {
            for (const char* piece : {"small ", "writes ", "together"}) put(fd, piece);
        });
        at_right([&] {
            show_read("recv", fd, 21, MSG_WAITALL);
            put(fd, "ok");
        });
        at_left([&] { show_read("recv", fd, 2); });
    }
}

TCP_KERNEL_CASE(stream, zero_copy, 35) {
    int fd = connection();
    at_server([&] {
        SHOW("without the option", send(fd, "plain ", 6, MSG_ZEROCOPY));
        long allowed = SHOW("option", set(fd, SOL_SOCKET, SO_ZEROCOPY, 1));
        auto data = bytes(20'000, 3);
        if (allowed == 0) SHOW("zero copy", send(fd, data.data(), data.size(), MSG_ZEROCOPY));
        await_acked(fd);
        await_events(fd, POLLERR);
        char control[200];
        msghdr m{};
        m.msg_control = control;
        m.msg_controllen = sizeof control;
        SHOW("completion", recvmsg(fd, &m, MSG_ERRQUEUE));
        say("flags %s", flags_text(m.msg_flags).c_str());
        SHOW("no more", recvmsg(fd, &m, MSG_ERRQUEUE));
        shutdown(fd, SHUT_WR);
    });
    at_client([&] { show_rest("recv", fd); });
}

}  // namespace parity::tcp
