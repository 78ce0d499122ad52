// SPDX-License-Identifier: BSD-2-Clause
// A process's first sockets, made by several threads at once.
//   preload_first two             two threads make sockets
//   preload_first fork CHILDREN   one makes sockets while another forks so often; each child makes one, too
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

namespace {

constexpr unsigned kLongest = 30;  // seconds; a child that hangs ends by a signal

bool make_one(int type) {
    const int fd = socket(AF_INET, type, 0);
    sockaddr_in any{};
    any.sin_family = AF_INET;
    const bool good = fd >= 0 && bind(fd, reinterpret_cast<const sockaddr*>(&any), sizeof any) == 0;
    return close(fd) == 0 && good;
}

bool two() {
    std::atomic<int> waiting{2};
    std::atomic<bool> good{true};
    auto work = [&] {
        waiting--;
        while (waiting != 0) {
        }
        for (int i = 0; i < 50; i++)
            if (!make_one(i % 2 == 0 ? SOCK_DGRAM : SOCK_STREAM)) good = false;
    };
    std::thread first(work), second(work);
    first.join();
    second.join();
    return good;
}

bool fork_meanwhile(int children) {
    std::atomic<bool> running{false}, stop{false}, good{true};
    std::thread other([&] {
        running = true;
        while (!stop)
            if (!make_one(SOCK_DGRAM)) good = false;
    });
    while (!running) {
    }
    for (int i = 0; i < children; i++) {
        const pid_t pid = fork();
        if (pid == 0) {
            alarm(kLongest);
            _exit(make_one(SOCK_DGRAM) ? 0 : 1);
        }
        int status = 0;
        if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
            fprintf(stderr, "child %d: status %x\n", i, static_cast<unsigned>(status));
            good = false;
            break;
        }
    }
    stop = true;
    other.join();
    return good;
}

}  // namespace

int main(int argc, char** argv) {
    const bool forks = argc == 3 && strcmp(argv[1], "fork") == 0;
    if (!forks && (argc != 2 || strcmp(argv[1], "two") != 0)) return 2;
    alarm(2 * kLongest);
    return (forks ? fork_meanwhile(atoi(argv[2])) : two()) ? 0 : 1;
}
