// SPDX-License-Identifier: BSD-2-Clause
// A program that is drawn at random: threads, children, handlers, descriptors and their copies, epoll sets,
// connections in both directions, UDP sockets; cancels, closes and ends at any place. It runs once on the
// kernel and once with the library; what it saw must be the same
// (tests/parity/random/random_program_test.cpp).
//
//   app_random_program subject SEED BASE_PORT STEPS [--skip 3,17,...] [--without name,...]
//   app_random_program peer SEED BASE_PORT
//
// Descriptor 100 is the socket to the other half. The transcript goes to standard output. The peer is on the
// other host.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <set>
#include <sstream>
#include <string>

#include "peer.h"
#include "steps.h"

namespace {

template <class T>
T* shared(size_t count = 1) {
    void* memory =
        mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) abort();
    return static_cast<T*>(memory);
}

}  // namespace

int main(int argc, char** argv) {
    using namespace random_program;
    if (argc < 4) {
        fprintf(stderr,
                "usage: %s subject|peer SEED BASE_PORT STEPS [--skip 3,17,...] [--without name,...]\n",
                argv[0]);
        return 2;
    }
    g_base = atoi(argv[3]);
    if (strcmp(argv[1], "peer") == 0) return run_peer();
    g_pages = shared<Page>(kActors);
    g_race = shared<Race>();
    g_brief = shared<SocketCounters>(kBriefTallies);
    g_brief_used = shared<std::atomic<int>>();
    g_sigpipes = shared<std::atomic<int>>();
    for (int i = 0; i < kActors; i++) g_pages[i].number = i;
    std::set<unsigned> skip;
    std::set<std::string> without;
    for (int i = 5; i + 1 < argc; i += 2) {
        std::istringstream list(argv[i + 1]);
        for (std::string part; std::getline(list, part, ',');) {
            if (strcmp(argv[i], "--skip") == 0) skip.insert(static_cast<unsigned>(atoi(part.c_str())));
            if (strcmp(argv[i], "--without") == 0) without.insert(part);
        }
    }
    told();  // the peer is ready
    install_handlers();
    World world(strtoull(argv[2], nullptr, 0), std::move(without));
    world.run(argc > 4 ? static_cast<unsigned>(atoi(argv[4])) : 100, skip);
}
