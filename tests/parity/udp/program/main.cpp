// SPDX-License-Identifier: BSD-2-Clause
// The program whose behaviour must not depend on the library: `parity --list`, or `parity THEME.NAME` with
// the agent's control socket as descriptor 100. The transcript goes to stdout; the kernel's UDP counters, by
// which the test sees whether datagrams bypassed the kernel, go to descriptor 101.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <string>

#include "process.h"
#include "tests/parity/harness/harness.h"

namespace {

// Datagrams the kernel's UDP has delivered and sent in this namespace.
long kernel_datagrams() {
    FILE* f = fopen("/proc/net/snmp", "r");
    if (f == nullptr) return 0;
    char line[1024];
    long in = 0, no_port = 0, errors = 0, out = 0;
    while (fgets(line, sizeof line, f) != nullptr)
        if (sscanf(line, "Udp: %ld %ld %ld %ld", &in, &no_port, &errors, &out) == 4) break;
    fclose(f);
    return in + out;
}

}  // namespace

int main(int argc, char** argv) {
    using namespace parity;
    count_kernel_packets_with(kernel_datagrams);
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (const Case& c : cases()) printf("%s %s %ld\n", c.theme, c.name, c.traffic.kernel_limit);
        return 0;
    }
    if (argc >= 3 && strcmp(argv[1], "--exec") == 0) {
        const int status = after_exec(argc - 2, argv + 2);
        report_kernel_packets("end");
        return status;
    }
    for (const Case& c : cases()) {
        if (argc != 2 || std::string(c.theme) + "." + c.name != argv[1]) continue;
        ask("reset");
        report_kernel_packets("begin");
        c.run();
        report_kernel_packets("end");
        say("end");
        return 0;
    }
    fprintf(stderr, "usage: %s --list | THEME.NAME\n", argv[0]);
    return 2;
}
