// SPDX-License-Identifier: BSD-2-Clause
// Sockets before any constructor has run (.preinit_array), in a constructor, and after destructors have
// begun.
#include "preload_loopback.h"

using namespace loopback;

namespace {

void exchange(const char* when) {
    int p[2];
    udp_pair(p);
    char buf[32] = {};
    send(p[0], when, strlen(when), 0);
    long n = readable(p[1]) ? recv(p[1], buf, sizeof buf - 1, 0) : -1;
    dprintf(1, "%ld %s %d %d\n", n, buf, close(p[0]), close(p[1]));
}

__attribute__((constructor(101))) void early() { exchange("constructor"); }
__attribute__((destructor(101))) void late() { exchange("destructor"); }

}  // namespace

void before_all() { exchange("preinit"); }
__attribute__((section(".preinit_array"), used)) void (*const g_preinit)() = before_all;

int main() {
    exchange("main");
    atexit([] { exchange("atexit"); });
}
