// SPDX-License-Identifier: BSD-2-Clause
// How far a connection's life has come.
//
// Under the connection's lock.
#pragma once

namespace vma::tcp {

struct Phase {
    bool connecting = false;   // connect() waits for the peer
    bool established = false;  // it is, or was
    bool orphan = false;       // the program has closed it
    bool in_time_wait = false;
    bool read_shut = false, write_shut = false, peer_closed = false;
    bool fin_seen = false;  // the stream has an end, which comes before any error
};

}  // namespace vma::tcp
