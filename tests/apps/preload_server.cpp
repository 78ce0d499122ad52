// SPDX-License-Identifier: BSD-2-Clause
// A daemon in the old style: daemon(), closes all descriptors, forks for each TCP connection and serves it
// from a child that runs a shell command. The same program is its client.
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/wait.h>

#include <string>

#include "preload_loopback.h"

using namespace loopback;

namespace {

[[noreturn]] void serve(int listener) {
    int connections = 0;
    while (connections < 5) {
        int fd = accept(listener, nullptr, nullptr);
        if (fd < 0) continue;
        connections++;
        pid_t pid = fork();
        if (pid == 0) {
            close(listener);
            FILE* stream = fdopen(fd, "r+");
            char line[128] = {};
            if (fgets(line, sizeof line, stream) == nullptr) _exit(1);
            fflush(stream);
            dup2(fd, 1);
            dup2(fd, 2);
            execl("/bin/sh", "sh", "-c", line, static_cast<char*>(nullptr));
            _exit(127);
        }
        close(fd);
        while (waitpid(-1, nullptr, WNOHANG) > 0) {
        }
    }
    while (wait(nullptr) > 0) {
    }
    _exit(0);
}

}  // namespace

int main() {
    int keep = udp();  // something for the library to look after
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in a = any_port();
    show("bind", bind(listener, reinterpret_cast<sockaddr*>(&a), sizeof a));
    show("listen", listen(listener, 16));
    a = name_of(listener);
    pid_t pid = fork();
    if (pid == 0) {
        if (daemon(0, 0) != 0) _exit(1);
        dup2(listener, 3);
        for (int fd = 4; fd < 1024; fd++) close(fd);
        // what it opens now starts right behind the listener
        int next = open("/dev/null", O_RDONLY);
        if (next != 4 || udp() != 5) _exit(2);
        serve(3);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    show("daemon", WEXITSTATUS(status));
    const char* commands[] = {"echo one\n", "echo two; exit 3\n", "ls /proc/self/fd | wc -l\n",
                              "echo $((6*7))\n", "cat /etc/hostname | wc -l\n"};
    for (const char* command : commands) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        show("connect", connect(fd, reinterpret_cast<sockaddr*>(&a), sizeof a));
        send(fd, command, strlen(command), 0);
        shutdown(fd, SHUT_WR);
        std::string answer;
        char buf[256];
        long n;
        while ((n = read(fd, buf, sizeof buf)) > 0) answer.append(buf, static_cast<size_t>(n));
        printf("  %s", answer.c_str());
        close(fd);
    }
    close(keep);
}
