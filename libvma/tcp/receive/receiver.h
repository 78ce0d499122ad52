// SPDX-License-Identifier: BSD-2-Clause
// What has been received and was not read yet, in sequence and out of it, and the end of the stream.
//
// Under the connection's lock.
#pragma once

#include <cstdint>

#include "libvma/tcp/receive/reassembly.h"
#include "libvma/tcp/receive/receive_queue.h"

namespace vma::tcp {

struct Receiver {
    ReceiveQueue rx;
    Reassembly early;          // what came out of sequence
    std::uint32_t fin_at = 0;  // the peer's FIN has this number, if fin_early
    bool fin_early = false;    // it came before data that is missing
    bool replaying = false;    // lwIP is given that FIN again
    bool fin_room = false;     // the window was made one larger for the peer's FIN
    bool processing = false;   // a received segment is in lwIP
};

}  // namespace vma::tcp
