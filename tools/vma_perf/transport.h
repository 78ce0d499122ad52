// SPDX-License-Identifier: BSD-2-Clause
// What a transport (udp, tcp, rc, ud, raw) is to the rest of the program.
//
// A run is the same for all transports: schedules, windows, percentiles, loss and verification know nothing
// of sockets or queue pairs (load.h, drain.h). A transport carries messages from one side to the other:
//
//   client                          server
//   ClientSession(params)           ServerSession(params)   made when the client has sent its parameters
//                          <- offer offer()                 prepares; JSON: ports, QP numbers, ...
//   connect(offer)                  accept()                at the same time: connections are made
//   answer ->                       complete(answer)        JSON: what only the connected client knows
//                          <- ready                         each side's lanes() run on a thread each
//   ... the run ...
//   report() ->                     report()                counters of the transport's own
//
// The JSON travels over the control connection (control.h). A Failure that a session throws ends the run on
// both sides, with its text and status. Sessions are made, used and destroyed by one thread; each lane is
// used by one thread at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "tools/common/clock.h"
#include "tools/vma_perf/params.h"
#include "tools/vma_perf/status.h"

namespace vma_perf {

using tools::Clock;

// A lane that waits comes back after this time at the latest, so that its thread sees the end of the run.
inline constexpr std::chrono::milliseconds kTick{20};

// A message that was received. Valid until take() returns.
struct Arrival {
    unsigned connection = 0;  // of the lane, from 0
    std::span<const std::byte>
        message;                   // with its Header; datagrams shorter than that are dropped by the lane
    const void* origin = nullptr;  // the transport's own: where answer() sends to
    unsigned copy = 0;             // of the connection's sockets (Params::sockets_each()) the one that got it
};

class Receiver {
  public:
    virtual ~Receiver() = default;
    virtual void take(const Arrival& arrival) = 0;
};

// What one thread uses: one connection or several, and a way to wait for all of them.
class Lane {
  public:
    virtual ~Lane() = default;

    // Connections of this lane. The run's connection c belongs to lane c % threads, as its number c /
    // threads.
    virtual unsigned connections() const noexcept = 0;

    // Memory for the next message to be sent on the connection, at least Params::max_size bytes, kept until
    // send(). The memory holds old bytes; a transport may have several such places and use them in turn.
    // nullptr: no place is free. Receive, then try again.
    virtual std::byte* prepare(unsigned connection) = 0;

    // Sends the first `length` bytes of what prepare() gave. `more`: another send() follows at once, so the
    // transport may wait for it before it starts (a chain of work requests, one doorbell); the last of a
    // burst comes without. False: there was no room; nothing was sent, and the same message may be tried
    // again after receive(), which starts what was collected so far.
    virtual bool send(unsigned connection, std::size_t length, bool more) = 0;

    // Server: sends a message back as it is, to where it came from. Called inside take(). May wait for room,
    // and gives up when the run ends. False: not sent.
    virtual bool answer(const Arrival& arrival) = 0;

    // Gives the arrived messages to the receiver, one by one; returns their number. With `may_wait` the lane
    // first waits as Params::wait says, up to kTick. A transport that polls does not wait, and returns 0.
    // Without `may_wait` the lane looks once. A peer that closed the connection is a Failure with kPeerEnded.
    virtual std::size_t receive(Receiver& receiver, bool may_wait) = 0;
};

// Where the two sides are, and what a session must watch while it waits.
struct Place {
    std::string local, peer;  // IPv4 addresses of the control connection
    std::string bind;         // server: address to bind to, usually `local`
    const std::atomic<bool>*
        stop;  // the run is over, or was given up: nothing may wait longer than kTick after that
};

class Session {
  public:
    virtual ~Session() = default;
    // One for each thread, in order; valid once connections exist. They live as long as the session.
    virtual std::span<const std::unique_ptr<Lane>> lanes() const noexcept = 0;
    // Counters of the transport's own for the result, after the run: {"retries": 3}. An empty object: none.
    virtual nlohmann::json report() = 0;
};

class ServerSession : public Session {
  public:
    virtual nlohmann::json offer() = 0;
    // Waits for the client's connections, if it must, up to `deadline`.
    virtual void accept(Clock::time_point deadline) = 0;
    virtual void complete(const nlohmann::json& /*answer*/) {}
};

class ClientSession : public Session {
  public:
    // Connects; returns the answer.
    virtual nlohmann::json connect(const nlohmann::json& offer, Clock::time_point deadline) = 0;
};

// A row of the table of transports.
struct TransportType {
    const char* name;
    // True: lost messages are an error of the run, not a number. No message is given up for lost while there
    // is a connection.
    bool reliable;
    std::size_t max_size;  // bytes of a message
    // Throws Failure with kUsage when the parameters do not go together for this transport.
    void (*check)(const Params& params);
    // Throw Failure with kUnsupported where the machine has no such thing.
    std::unique_ptr<ServerSession> (*serve)(const Params& params, const Place& place);
    std::unique_ptr<ClientSession> (*connect)(const Params& params, const Place& place);
    // Where --wait says nothing and a thread has one connection.
    Wait usual_wait = Wait::blocking;
    // What carries the messages, for the result. nullptr: sockets; the result then tells whether libvma or
    // the kernel has them.
    const char* stack = nullptr;
};

// All of them, in the order of the help.
std::span<const TransportType* const> transports() noexcept;
// Throws Failure with kUnsupported: a client may know transports that this build lacks.
const TransportType& transport(const std::string& name);

}  // namespace vma_perf
