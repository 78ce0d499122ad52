// SPDX-License-Identifier: BSD-2-Clause
// The program whose TCP behaviour must not depend on the library: `tcp_parity --list`, or
// `tcp_parity THEME.NAME server|client BASE_PORT` with a socket to its other half as descriptor 100. The
// transcript goes to stdout; the kernel's TCP counters, by which the test sees whether segments bypassed the
// kernel, go to descriptor 101.
#include <stdlib.h>

#include "after_exec.h"
#include "tcp_harness.h"

namespace {

// Segments and datagrams the kernel's TCP and UDP have received and sent in this namespace. Each name appears
// twice: before the names of the values, and before the values.
long kernel_segments() {
    FILE* f = fopen("/proc/net/snmp", "r");
    if (f == nullptr) return 0;
    char line[1024];
    long sum = 0, in = 0, out = 0;
    while (fgets(line, sizeof line, f) != nullptr)
        if (sscanf(line, "Tcp: %*d %*d %*d %*d %*d %*d %*d %*d %*d %ld %ld", &in, &out) == 2 ||
            sscanf(line, "Udp: %ld %*d %*d %ld", &in, &out) == 2)
            sum += in + out;
    fclose(f);
    return sum;
}

// Does a socket of an earlier run still repeat something (a FIN the network lost)? That would be counted as
// this run's.
bool earlier_run_repeats() {
    FILE* f = fopen("/proc/net/tcp", "r");
    if (f == nullptr) return false;
    char line[1024];
    unsigned timer = 0;
    bool repeats = false;
    while (fgets(line, sizeof line, f) != nullptr)
        // 1 is the timer of retransmissions, 4 that of zero window probes.
        if (sscanf(line, " %*d: %*s %*s %*x %*x:%*x %x:", &timer) == 1)
            repeats = repeats || timer == 1 || timer == 4;
    fclose(f);
    return repeats;
}

// Not for ever: what a case left for good is not worth the test's time.
void let_earlier_runs_end() {
    for (int i = 0; i < 80 && earlier_run_repeats(); i++) usleep(50'000);
}

}  // namespace

int main(int argc, char** argv) {
    using namespace parity;
    count_kernel_packets_with(kernel_segments);
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (const Case& c : cases())
            printf("%s %s %ld %s\n", c.theme, c.name, c.traffic.kernel_limit,
                   c.traffic.server_is_killed ? "killed" : "lives");
        return 0;
    }
    if (argc >= 3 && strcmp(argv[1], "--exec") == 0) {
        const int status = tcp::after_exec(argc - 2, argv + 2);
        report_kernel_packets("end");
        return status;
    }
    for (const Case& c : cases()) {
        if (argc != 4 || std::string(c.theme) + "." + c.name != argv[1]) continue;
        tcp::begin(strcmp(argv[2], "server") == 0, atoi(argv[3]));
        let_earlier_runs_end();
        tcp::sync();
        report_kernel_packets("begin");
        tcp::sync();
        c.run();
        tcp::sync();
        // A side without a socket of its own has nothing to offload: its kernel answers for closed ports.
        if (tcp::streams_made() == 0) report_kernel_packets("begin");
        report_kernel_packets("end");
        tcp::sync();  // what the other one's exit sends is not counted
        say("end");
        return 0;
    }
    fprintf(stderr, "usage: %s --list | THEME.NAME server|client BASE_PORT\n", argv[0]);
    return 2;
}
