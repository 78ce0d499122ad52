// SPDX-License-Identifier: BSD-2-Clause
// See after_exec.h.
#include "after_exec.h"

#include <stdlib.h>

#include "tcp_harness.h"

namespace parity::tcp {

int after_exec(int argc, char** argv) {
    if (argc != 2) return 2;
    std::string what = argv[0];
    int fd = atoi(argv[1]);
    if (what == "echo") {
        // One answer, then the rest of the stream back in capitals.
        char text[100];
        put(fd, "executed ");
        long n;
        while ((n = recv(fd, text, sizeof text, 0)) > 0) {
            for (long i = 0; i < n; i++)
                if (text[i] >= 'a' && text[i] <= 'z') text[i] = static_cast<char>(text[i] - 32);
            if (send(fd, text, static_cast<size_t>(n), MSG_NOSIGNAL) != n) return 4;
        }
        say("executed: ends with %ld", n);
        return 0;
    }
    if (what == "accept") {
        int c = accepted(fd);
        show_read("executed: recv", c, 100);
        put(c, "from the executed program");
        return 0;
    }
    if (what == "gone") {
        SHOW("executed: getsockname", fcntl(fd, F_GETFD));
        return 0;
    }
    return 2;
}

}  // namespace parity::tcp
