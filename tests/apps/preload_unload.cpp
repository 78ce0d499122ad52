// SPDX-License-Identifier: BSD-2-Clause
// Opens the library with dlopen, uses it, and closes it: its threads and handlers must not find that their
// code is gone. preload_unload LIBRARY
#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>

#include "preload_loopback.h"

int main(int argc, char** argv) {
    if (argc < 2) return 2;
    void* library = dlopen(argv[1], RTLD_NOW);
    if (library == nullptr) {
        puts(dlerror());
        return 1;
    }
    auto make = reinterpret_cast<decltype(&socket)>(dlsym(library, "socket"));
    const int fd = make(AF_INET, SOCK_DGRAM, 0);  // starts the internal thread
    loopback::show("dlclose", dlclose(library));
    usleep(300'000);  // the thread wakes up now and then
    pid_t pid = fork();
    if (pid == 0) _exit(7);
    int status = 0;
    waitpid(pid, &status, 0);
    loopback::show("fork", WEXITSTATUS(status));
    loopback::show("close", close(fd));
}
