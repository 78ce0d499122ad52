// SPDX-License-Identifier: BSD-2-Clause
// A program whose main thread leaves by pthread_exit() after it has sent so fast that the library holds
// datagrams back, for which it has a thread. The process must end, as it does without the library.
// preload_leader ADDRESS PORT
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace {

bool has_thread(const std::string& name) {
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
        std::string comm;
        std::getline(std::ifstream(task.path() / "comm") >> std::ws, comm);
        if (comm == name) return true;
    }
    return false;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = inet_addr(argv[1]);
    to.sin_port = htons(static_cast<uint16_t>(atoi(argv[2])));
    const int fd = socket(AF_INET, SOCK_DGRAM, 0);
    if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) return 3;
    bool flusher = false;
    for (int i = 0; i < 500 && !flusher; i++) {
        for (int n = 0; n < 200; n++) (void)!write(fd, "datagram", 8);
        flusher = has_thread("vma-flush");
        usleep(2000);
    }
    printf("flusher %d\n", flusher);
    fflush(stdout);
    pthread_exit(nullptr);
}
