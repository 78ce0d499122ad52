// SPDX-License-Identifier: BSD-2-Clause
// Opens the library with dlopen, as some measuring tools do, and sends a datagram through the functions it
// finds there.
#include <dlfcn.h>

#include "preload_loopback.h"

int main(int argc, char** argv) {
    if (argc < 2) return 2;
    void* library = dlopen(argv[1], RTLD_NOW);
    if (library == nullptr) {
        puts(dlerror());
        return 1;
    }
    const char* names[] = {"socket",        "close",      "__res_iclose", "shutdown",    "accept",
                           "accept4",       "bind",       "connect",      "listen",      "setsockopt",
                           "getsockopt",    "fcntl",      "fcntl64",      "ioctl",       "getsockname",
                           "getpeername",   "read",       "__read_chk",   "readv",       "recv",
                           "__recv_chk",    "recvmsg",    "recvmmsg",     "recvfrom",    "__recvfrom_chk",
                           "write",         "writev",     "send",         "sendmsg",     "sendmmsg",
                           "sendto",        "sendfile",   "sendfile64",   "select",      "pselect",
                           "poll",          "__poll_chk", "ppoll",        "__ppoll_chk", "epoll_create",
                           "epoll_create1", "epoll_ctl",  "epoll_wait",   "epoll_pwait", "socketpair",
                           "pipe",          "open",       "creat",        "dup",         "dup2",
                           "clone",         "fork",       "vfork",        "daemon",      "sigaction",
                           "signal",        "vma_exit"};
    int missing = 0;
    for (const char* name : names) {
        void* address = dlsym(library, name);
        Dl_info info{};
        // Its own, not libc's, which dlsym finds among the library's dependencies.
        if (address == nullptr || dladdr(address, &info) == 0 || strcmp(info.dli_fname, argv[1]) != 0) {
            printf("missing %s\n", name);
            missing++;
        }
    }
    printf("missing: %d\n", missing);
    auto find = [&]<class F>(F*, const char* name) { return reinterpret_cast<F*>(dlsym(library, name)); };
    auto socket = find(&::socket, "socket");
    auto bind = find(&::bind, "bind");
    auto sendto = find(&::sendto, "sendto");
    auto recv = find(&::recv, "recv");
    auto close = find(&::close, "close");
    auto poll = find(&::poll, "poll");
    int a = socket(AF_INET, SOCK_DGRAM, 0), b = socket(AF_INET, SOCK_DGRAM, 0);
    sockaddr_in addr = loopback::any_port();
    loopback::show("bind", bind(a, reinterpret_cast<sockaddr*>(&addr), sizeof addr));
    addr = loopback::name_of(a);
    loopback::show("sendto", sendto(b, "datagram", 8, 0, reinterpret_cast<sockaddr*>(&addr), sizeof addr));
    pollfd p{a, POLLIN, 0};
    loopback::show("poll", poll(&p, 1, 5000));
    char buf[16];
    loopback::show("recv", recv(a, buf, sizeof buf, 0));
    loopback::show("close", close(a) + close(b));
    reinterpret_cast<void (*)()>(dlsym(library, "vma_exit"))();
    return missing != 0;
}
