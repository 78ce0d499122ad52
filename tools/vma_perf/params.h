// SPDX-License-Identifier: BSD-2-Clause
// The parameters of a run. The client decides, and sends all of them to the server over the control
// connection.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace vma_perf {

// How a thread waits for messages.
enum class Wait { blocking, nonblocking, select, poll, epoll };

// Of udp and tcp.
struct SocketParams {
    bool connected = false;           // udp: connect() the sockets, then send() and recv()
    bool delay = false;               // tcp: Nagle's algorithm stays on
    int send_buffer = 0;              // SO_SNDBUF, bytes; 0: the system's choice
    int receive_buffer = 0;           // SO_RCVBUF
    std::vector<std::string> groups;  // udp: multicast groups; connection i uses group i % size
    std::string group_interface;      // address of the interface for them on the client; empty: by route
    int group_ttl = 1;
    unsigned group_sockets = 1;  // of the server for each connection; each has a copy
    // The library's: "zcopy", "callback" to receive, "sendmany", "send_zcopy" to send; empty: none.
    std::string extra_api;
    friend bool operator==(const SocketParams&, const SocketParams&) = default;
};

// Of raw.
struct RawParams {
    std::string device;        // of the client; empty: the one that has the address of the control connection
    std::string mode = "skb";  // "skb", "drv"
    friend bool operator==(const RawParams&, const RawParams&) = default;
};

// Of rc and ud.
struct RdmaParams {
    unsigned send_depth = 0;     // requests that a send queue holds; 0: 128, fewer of large messages
    unsigned receive_depth = 0;  // receives kept posted; 0: 512, fewer of large messages
    int signal_every = -1;  // every n-th send asks for a completion; 0: none, -1: 64 or half the send queue
    int max_inline = -1;    // bytes; -1: what the device can
    bool events = false;    // completion events in place of polling
    bool builder = false;   // ibv_wr_start() and its like in place of ibv_post_send()
    unsigned retry = 7, rnr_retry = 7;          // rc
    std::string device, server_device;          // ud; empty: that with the address
    int gid_index = -1, server_gid_index = -1;  // ud; -1: that with the address
    friend bool operator==(const RdmaParams&, const RdmaParams&) = default;
};

struct Params {
    bool throughput = false;  // one way; else ping-pong
    std::string transport = "udp";
    std::uint32_t min_size =
        64;  // bytes of a message, header included; the size of each is drawn from min..max
    std::uint32_t max_size = 64;
    unsigned threads = 1;
    unsigned connections = 1;  // of all threads together, at least as many
    unsigned window =
        0;  // requests in flight for each connection; 0: 1 (burst, if that is more), or with a rate no limit
    unsigned burst = 1;  // messages sent at once
    double rate = 0;     // messages per second of all threads together; 0: as fast as it goes
    double seconds = 2;  // of the measured part
    std::uint64_t iterations =
        0;                // measured messages of all connections together, in place of the time; 0: by time
    double warmup = 0.2;  // seconds before that
    double lost_after = 0.25;    // seconds after which a request counts as lost (unreliable transports)
    double timeout = 5;          // seconds without any sign of the other side after which the run is given up
    Wait wait = Wait::blocking;  // client
    Wait server_wait = Wait::blocking;
    std::vector<unsigned> server_cpus;  // for the server's threads, in turn; empty: as the server was told
    bool verify = false;
    double interval = 0;  // seconds between reports of the server; 0: none
    SocketParams sockets;
    RawParams raw;
    RdmaParams rdma;

    bool is_client = true;  // set by each side for itself, not sent
    Wait own_wait() const noexcept { return is_client ? wait : server_wait; }
    // The number of connections of lane `lane`.
    unsigned lane_connections(unsigned lane) const noexcept {
        return connections / threads + (lane < connections % threads ? 1 : 0);
    }
    // Sockets that this side has for each connection.
    unsigned sockets_each() const noexcept { return is_client ? 1 : sockets.group_sockets; }
    friend bool operator==(const Params&, const Params&) = default;
};

const char* wait_name(Wait wait) noexcept;
// Throws Failure with kUsage.
Wait wait_from_name(const std::string& name);

nlohmann::json to_json(const Params& params);
// From what a client sent: throws Failure with kVersion when something is missing or is of the wrong type or
// out of range.
Params params_from_json(const nlohmann::json& json);
// What no transport can do. Throws Failure with kUsage and a text that names the option.
void check_params(const Params& params);

}  // namespace vma_perf
