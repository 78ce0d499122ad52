// SPDX-License-Identifier: BSD-2-Clause
// The transmission control block (RFC 9293 section 3.3.1): all that one connection knows, in parts.
//
// Each part owns its state and has the functions that work on it; a part reaches the others through the
// block. What several parts change, or lwIP does, stands here in the open. The connection's lock guards
// everything, except where published.h says otherwise.
#pragma once

#include <cstdint>

#include "libvma/tcp/ecn.h"
#include "libvma/tcp/handshake/opening.h"
#include "libvma/tcp/handshake/origin.h"
#include "libvma/tcp/lwip/types.h"
#include "libvma/tcp/migrate/freeze.h"
#include "libvma/tcp/options.h"
#include "libvma/tcp/path.h"
#include "libvma/tcp/published.h"
#include "libvma/tcp/receive/acceptance.h"
#include "libvma/tcp/receive/receiver.h"
#include "libvma/tcp/recovery/loss_recovery.h"
#include "libvma/tcp/route.h"
#include "libvma/tcp/send/ack_policy.h"
#include "libvma/tcp/send/segment_writer.h"
#include "libvma/tcp/send/send_queue.h"
#include "libvma/tcp/send/send_times.h"
#include "libvma/tcp/send/sender.h"
#include "libvma/tcp/timers/connection_timers.h"

namespace vma::tcp {

class Connection;
class Owner;

// How far the connection's life has come.
struct Phase {
    bool connecting = false;   // connect() waits for the peer
    bool established = false;  // it is, or was
    bool orphan = false;       // the program has closed it
    bool in_time_wait = false;
    bool read_shut = false, write_shut = false, peer_closed = false;
    bool fin_seen = false;  // the stream has an end, which comes before any error
};

struct Tcb {
    Tcb(Connection& c, PathSource& paths, const net::Endpoints& e, const Options& o);
    Tcb(const Tcb&) = delete;
    Tcb& operator=(const Tcb&) = delete;

    // Enters lwIP with this PCB: call(lwip::Entry&). Notices when lwIP has freed it.
    template <class F>
    void in_lwip(F&& call) noexcept;
    // Frees the PCB. `reset`: with a RST to the peer where the state asks for one.
    void abandon(bool reset) noexcept;
    // Ends the connection with `error` for the program, if it has not closed it. `reset`: the peer is told,
    // once there is a connection.
    void give_up(int error, bool reset) noexcept;
    // Frees what was received and not read.
    void free_queues() noexcept;

    Connection& connection;
    const net::Endpoints ends;
    lwip::Pcb* pcb = nullptr;
    Owner* owner = nullptr;
    Options options;
    Phase phase;
    Ecn ecn;
    Published shown{*this};
    Freeze freeze{*this};
    Route route;
    SegmentWriter writer{*this};
    SendQueue queue{*this};
    Sender sender{*this};
    SendTimes send_times;
    AckPolicy acks{*this};
    Receiver receiver{*this};
    Acceptance acceptance{*this};
    LossRecovery recovery{*this};
    ConnectionTimers timers{*this};
    Opening opening{*this};
    Origin origin;
    Counters counters;

  private:
    void gone() noexcept;  // lwIP has freed the PCB
};

}  // namespace vma::tcp
