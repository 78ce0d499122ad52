// SPDX-License-Identifier: BSD-2-Clause
// Calls on UDP and TCP sockets while each allocation in turn fails: a program may run out of memory, the
// library must not end it for that. preload_no_memory ADDRESS PORT: somebody accepts TCP connections there
#include <arpa/inet.h>
#include <errno.h>
#include <execinfo.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

extern "C" {
void* __libc_malloc(size_t);
void* __libc_memalign(size_t, size_t);

// Of this thread: how many allocations succeed before all fail; negative: no end.
static thread_local int t_left = -1;
static thread_local int t_failed = 0;

static bool fails() {
    if (t_left < 0) return false;
    if (t_left > 0) return t_left--, false;
    t_failed++;
    errno = ENOMEM;
    return true;
}
void* malloc(size_t size) { return fails() ? nullptr : __libc_malloc(size); }
void* aligned_alloc(size_t alignment, size_t size) {
    return fails() ? nullptr : __libc_memalign(alignment, size);
}
int posix_memalign(void** out, size_t alignment, size_t size) {
    if (fails()) return ENOMEM;
    *out = __libc_memalign(alignment, size);
    return *out != nullptr ? 0 : ENOMEM;
}
}

namespace {

// False when no allocation failed: there is nothing further to try.
template <class F>
bool scarce(int left, F&& call) {
    t_failed = 0;
    t_left = left;
    call();
    t_left = -1;
    return t_failed != 0;
}

}  // namespace

// What std::terminate() calls, in the library too.
extern "C" void abort() noexcept {
    t_left = -1;
    void* frames[40];
    backtrace_symbols_fd(frames, backtrace(frames, 40), STDERR_FILENO);
    _exit(99);
}

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    sockaddr_in here{}, there{};
    here.sin_family = there.sin_family = AF_INET;
    there.sin_addr.s_addr = inet_addr(argv[1]);
    there.sin_port = htons(static_cast<in_port_t>(atoi(argv[2])));
    auto* to = reinterpret_cast<sockaddr*>(&there);
    auto* from = reinterpret_cast<sockaddr*>(&here);
    // The library is up and has its device before memory gets scarce.
    const int first = socket(AF_INET, SOCK_DGRAM, 0);
    (void)bind(first, from, sizeof here);
    (void)sendto(first, "x", 1, 0, to, sizeof there);

    int tried = 0;
    for (int left = 0; left < 200; left++) {
        bool any = false;
        const int udp = socket(AF_INET, SOCK_DGRAM, 0);
        any |= scarce(left, [&] { (void)bind(udp, from, sizeof here); });
        any |= scarce(left, [&] { (void)connect(udp, to, sizeof there); });
        any |= scarce(left, [&] { (void)send(udp, "x", 1, 0); });
        any |= scarce(left, [&] { close(udp); });
        if (!any) break;
        tried++;
    }
    int connected = 0, tcp_tried = 0;
    for (int left = 0; left < 400; left++) {
        bool any = false;
        int tcp = -1, listener = -1;
        any |= scarce(left, [&] { tcp = socket(AF_INET, SOCK_STREAM, 0); });
        any |= scarce(left, [&] { listener = socket(AF_INET, SOCK_STREAM, 0); });
        const int one = 1, set = epoll_create1(0);
        epoll_event event{};
        event.events = EPOLLIN;
        any |= scarce(left, [&] { (void)setsockopt(tcp, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one); });
        any |= scarce(left, [&] { (void)listen(listener, 5); });
        any |= scarce(left, [&] { (void)epoll_ctl(set, EPOLL_CTL_ADD, listener, &event); });
        bool up = false;
        any |= scarce(left, [&] { up = connect(tcp, to, sizeof there) == 0; });
        connected += up;
        any |= scarce(left, [&] { (void)epoll_ctl(set, EPOLL_CTL_ADD, tcp, &event); });
        any |= scarce(left, [&] { (void)epoll_wait(set, &event, 1, 0); });
        any |= scarce(left, [&] { (void)send(tcp, "x", 1, MSG_NOSIGNAL); });
        any |= scarce(left, [&] { (void)shutdown(tcp, SHUT_WR); });
        any |= scarce(left, [&] { close(tcp); });
        any |= scarce(left, [&] { close(listener); });
        any |= scarce(left, [&] { close(set); });
        if (!any) break;
        tcp_tried++;
    }
    printf("survived, something failed: %d, connected: %d\n", tried != 0 && tcp_tried != 0, connected != 0);
    return 0;
}
