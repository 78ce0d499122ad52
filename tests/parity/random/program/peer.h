// SPDX-License-Identifier: BSD-2-Clause
// The peer on the other host does what the coordinator asks it over a local socket, one thing after the
// other. Connections and UDP sockets have the coordinator's numbers.
#pragma once

#include <stdint.h>

namespace random_program {

enum class Wish : int {
    connect,    // a link, b port: to the subject; key, at: keys of the streams to and from the subject
    accept,     // the next one at its listener (port base); key, at as above
    send,       // a bytes of the stream
    await,      // until a bytes are unread here, b events of poll() are there
    read,       // a bytes of the stream, checked
    end,        // a: 0 shutdown(SHUT_WR), 1 close, 2 reset
    finish,     // reads all to the end, tells how it ends, closes
    options,    // a receive buffer for connections accepted later; 0 the usual
    race,       // a bytes to send, b whether then to end; reads records from now on
    race_over,  // a bytes of records have been written; waits for them
    crowd,      // a connections to port b on link `at`
    open,       // UDP: a link, b port
    close,      // UDP
    send_to,    // UDP: a length, b port, key; at: link
    receive,    // UDP: one datagram
    datagrams,  // UDP: a of them, to port b on link `at`, with key + serial
};

struct Asked {
    Wish wish;
    int id;
    long a, b;
    uint64_t key, at;
};
struct Told {
    long value;
    int error;
    char text[200];
};

inline constexpr int kMeeting = 100;  // the socket to the other half

int run_peer();
void ask_without_waiting(const Asked& asked);
Told told();
inline Told ask(const Asked& asked) {
    ask_without_waiting(asked);
    return told();
}

}  // namespace random_program
