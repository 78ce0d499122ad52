// SPDX-License-Identifier: BSD-2-Clause
// Made set-uid by the test: opens a socket and shows that the library is not at work.
#include <sys/auxv.h>

#include "preload_loopback.h"

int main() {
    loopback::show("AT_SECURE", getauxval(AT_SECURE) != 0);
    int fd = loopback::udp();
    loopback::show("socket", fd);
    FILE* maps = fopen("/proc/self/maps", "r");
    if (maps == nullptr) {
        puts("maps are hidden");  // as they may be from another user
        return 0;
    }
    char line[512];
    bool found = false;
    while (fgets(line, sizeof line, maps) != nullptr) found |= strstr(line, "libvma.so") != nullptr;
    loopback::show("library mapped", found);
}
