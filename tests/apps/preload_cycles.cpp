// SPDX-License-Identifier: BSD-2-Clause
// Opens and closes sockets 10,000 times, in each way that ends one; descriptors and memory must not grow.
#include <dirent.h>
#include <linux/close_range.h>

#include "preload_loopback.h"

using namespace loopback;

namespace {

int open_descriptors() {
    int n = 0;
    DIR* dir = opendir("/proc/self/fd");
    while (readdir(dir) != nullptr) n++;
    closedir(dir);
    return n;
}

long resident_kib() {
    FILE* f = fopen("/proc/self/statm", "r");
    long size = 0, resident = 0;
    if (fscanf(f, "%ld %ld", &size, &resident) != 2) resident = 0;
    fclose(f);
    return resident * (getpagesize() / 1024);
}

// Room for malloc's habits; a sanitizer, which has options here, keeps freed memory for a while.
const long kSlackKib = getenv("ASAN_OPTIONS") != nullptr ? 64 * 1024 : 4 * 1024;

void cycle(int i) {
    int fd = udp();
    switch (i % 5) {
        case 0:
            close(fd);
            break;
        case 1:
            close_range(fd, fd, 0);
            break;
        case 2:
            fclose(fdopen(fd, "r"));
            break;
        case 3: {
            int other = udp();
            dup2(other, fd);
            close(fd);
            close(other);
            break;
        }
        case 4: {
            int copy = dup(fd);
            close(fd);
            close(copy);
            break;
        }
    }
}

}  // namespace

int main() {
    for (int i = 0; i < 500; i++) cycle(i);
    int fds = open_descriptors();
    long memory = resident_kib();
    for (int i = 0; i < 10000; i++) cycle(i);
    show("more descriptors", open_descriptors() - fds);
    long grown = resident_kib() - memory;
    show("memory grown", grown > kSlackKib);
    if (grown > kSlackKib) fprintf(stderr, "grown by %ld KiB\n", grown);
}
