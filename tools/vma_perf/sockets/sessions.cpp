// SPDX-License-Identifier: BSD-2-Clause
// See sessions.h.
#include "tools/vma_perf/sockets/sessions.h"

#include <errno.h>
#include <fmt/format.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <optional>
#include <tuple>
#include <utility>

#include "tools/vma_perf/message.h"
#include "tools/vma_perf/side.h"
#include "tools/vma_perf/sockets/address.h"
#include "tools/vma_perf/sockets/connect.h"
#include "tools/vma_perf/sockets/datagram_lane.h"
#include "tools/vma_perf/sockets/stream_lane.h"

namespace vma_perf::sockets {
namespace {

void set_option(int fd, int level, int option, int value, const char* name) {
    if (setsockopt(fd, level, option, &value, sizeof value) != 0) fail_errno(name);
}

void set_buffers(int fd, const Params& params) {
    if (params.sockets.send_buffer > 0)
        set_option(fd, SOL_SOCKET, SO_SNDBUF, params.sockets.send_buffer, "--send-buffer");
    if (params.sockets.receive_buffer > 0)
        set_option(fd, SOL_SOCKET, SO_RCVBUF, params.sockets.receive_buffer, "--receive-buffer");
}

// Deals the run's connections, with `each` sockets one after the other, out to its lanes.
template <class Connection>
std::vector<std::vector<Connection>> deal(std::vector<Connection> all, unsigned lanes, unsigned each) {
    std::vector<std::vector<Connection>> dealt(lanes);
    for (std::size_t c = 0; c < all.size(); ++c) dealt[c / each % lanes].push_back(std::move(all[c]));
    return dealt;
}

template <class L, class Connection>
std::vector<std::unique_ptr<Lane>> make_lanes(std::vector<Connection> all, const Params& params,
                                              const Place& place) {
    std::vector<std::unique_ptr<Lane>> lanes;
    for (auto& connections : deal(std::move(all), params.threads, params.sockets_each()))
        lanes.push_back(std::make_unique<L>(std::move(connections), params, place.stop));
    return lanes;
}

void check(const Params& params) {
    for (const auto& [wait, sockets, threads] :
         {std::tuple{params.wait, params.connections, "--wait"},
          {params.server_wait, params.connections * params.sockets.group_sockets, "--server-wait"}})
        if (wait == Wait::blocking && sockets > params.threads)
            throw Failure(
                kUsage,
                fmt::format("{} blocking: a thread can block on one connection only; as many --threads as "
                            "--connections, or another --wait",
                            threads));
    if (params.sockets.extra_api.empty()) return;
    if (vma_get_api() == nullptr || vma_get_api2() == nullptr)
        throw Failure(kUnsupported, "--extra-api: the library's extra API is not available");
    if (params.transport != "udp") throw Failure(kUnsupported, "--extra-api: is for udp");
}

// ---- UDP ----

tools::Fd udp_socket(const Params& params, Wait wait) {
    tools::Fd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!fd) fail_errno("socket");
    set_buffers(fd.get(), params);
    prepare_for(fd.get(), wait);
    return fd;
}

class UdpServer final : public SessionOf<ServerSession> {
  public:
    using SessionOf::SessionOf;

    nlohmann::json offer() override {
        std::vector<DatagramConnection> all;
        nlohmann::json ports = nlohmann::json::array();
        for (unsigned c = 0; c < params_.connections; ++c) {
            const std::string group = group_of(c);
            sockaddr_in name = make_address(group.empty() ? place_.bind : group, 0);
            for (unsigned copy = 0; copy < params_.sockets_each(); ++copy) {
                DatagramConnection connection;
                connection.fd = udp_socket(params_, params_.own_wait());
                name = copy == 0 ? bind_first(connection.fd.get(), name)
                                 : bind_beside(connection.fd.get(), name);
                if (!group.empty()) join(connection.fd.get(), group);
                all.push_back(std::move(connection));
            }
            ports.push_back(port_of(name));
        }
        lanes_ = make_lanes<DatagramLane>(std::move(all), params_, place_);
        return {{"ports", ports}};
    }
    void accept(Clock::time_point) override {}

  private:
    // The first socket of a port shares it only now: an earlier SO_REUSEADDR could give it a port that
    // another run shares.
    sockaddr_in bind_first(int fd, const sockaddr_in& name) const {
        const sockaddr_in bound = bind_to(fd, name);
        if (params_.sockets_each() > 1) set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR");
        return bound;
    }
    static sockaddr_in bind_beside(int fd, const sockaddr_in& name) {
        set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR");
        return bind_to(fd, name);
    }
    std::string group_of(unsigned c) const {
        const auto& groups = params_.sockets.groups;
        return groups.empty() ? "" : groups[c % groups.size()];
    }
    void join(int fd, const std::string& group) const {
        ip_mreqn request{};
        request.imr_multiaddr = make_address(group, 0).sin_addr;
        request.imr_address = make_address(place_.local, 0).sin_addr;
        if (setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, sizeof request) != 0)
            fail_errno(fmt::format("joining group {} at {}", group, place_.local));
    }
};

class UdpClient final : public SessionOf<ClientSession> {
  public:
    using SessionOf::SessionOf;

    nlohmann::json connect(const nlohmann::json& offer, Clock::time_point) override {
        const auto ports = offer.at("ports").get<std::vector<std::uint16_t>>();
        if (ports.size() != params_.connections)
            throw Failure(kVersion, "the server offers another number of ports");
        const auto& groups = params_.sockets.groups;
        std::vector<DatagramConnection> all;
        for (unsigned c = 0; c < params_.connections; ++c) {
            DatagramConnection connection;
            connection.fd = udp_socket(params_, params_.own_wait());
            const int fd = connection.fd.get();
            // Bound to the address that the server sees, so that a socket is one interface's from the
            // beginning.
            bind_to(fd, make_address(place_.local, 0));
            connection.peer =
                make_address(groups.empty() ? place_.peer : groups[c % groups.size()], ports[c]);
            if (!groups.empty()) send_to_group(fd);
            connection.connected = params_.sockets.connected;
            if (connection.connected &&
                ::connect(fd, as_sockaddr(connection.peer), sizeof connection.peer) != 0)
                fail_errno("connect");
            all.push_back(std::move(connection));
        }
        lanes_ = make_lanes<DatagramLane>(std::move(all), params_, place_);
        return nlohmann::json::object();
    }

  private:
    void send_to_group(int fd) const {
        const std::string& interface = params_.sockets.group_interface;
        ip_mreqn request{};
        request.imr_address = make_address(interface.empty() ? place_.local : interface, 0).sin_addr;
        if (setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &request, sizeof request) != 0)
            fail_errno("--group-interface");
        set_option(fd, IPPROTO_IP, IP_MULTICAST_TTL, params_.sockets.group_ttl, "--group-ttl");
    }
};

// ---- TCP ----

// The first bytes of a connection say which one it is: a header with the session's token as its sequence
// number.
constexpr std::uint16_t kIntroduction = 0x8000;

void prepare_stream(int fd, const Params& params) {
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, params.sockets.delay ? 0 : 1, "TCP_NODELAY");
}

class TcpServer final : public SessionOf<ServerSession> {
  public:
    TcpServer(const Params& params, const Place& place) : SessionOf(params, place) {
        if (getrandom(&token_, sizeof token_, 0) != sizeof token_) fail_errno("getrandom");
    }

    nlohmann::json offer() override {
        listener_ = listen_on(make_address(place_.bind, 0), static_cast<int>(params_.connections));
        set_buffers(listener_.get(), params_);
        return {{"port", port_of(local_address(listener_.get()))}, {"token", token_}};
    }

    void accept(Clock::time_point deadline) override {
        std::vector<tools::Fd> all(params_.connections);
        for (unsigned missing = params_.connections; missing > 0;) {
            tools::Fd fd = accept_one(listener_.get(), deadline, place_.stop);
            if (!fd) {
                if (place_.stop->load() || Clock::now() >= deadline)
                    throw Failure(kPeerEnded, "the client did not make its TCP connections in time");
                continue;
            }
            const auto number = introduction(fd.get(), deadline);
            if (!number || all[*number]) continue;  // of another program
            prepare_stream(fd.get(), params_);
            prepare_for(fd.get(), params_.own_wait());
            all[*number] = std::move(fd);
            --missing;
        }
        listener_.reset();
        lanes_ = make_lanes<StreamLane>(std::move(all), params_, place_);
    }

  private:
    std::optional<unsigned> introduction(int fd, Clock::time_point deadline) const {
        std::byte bytes[sizeof(Header)];
        for (std::size_t got = 0; got < sizeof bytes;) {
            if (!wait_for(fd, POLLIN, deadline, place_.stop)) return std::nullopt;
            const ssize_t n = recv(fd, bytes + got, sizeof bytes - got, MSG_DONTWAIT);
            if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return std::nullopt;
            if (n > 0) got += static_cast<std::size_t>(n);
        }
        const Header header = read_header(bytes);
        if (header.flags != kIntroduction || header.sequence != token_ ||
            header.connection >= params_.connections)
            return std::nullopt;
        return header.connection;
    }

    std::uint64_t token_ = 0;
    tools::Fd listener_;
};

class TcpClient final : public SessionOf<ClientSession> {
  public:
    using SessionOf::SessionOf;

    nlohmann::json connect(const nlohmann::json& offer, Clock::time_point deadline) override {
        const sockaddr_in server = make_address(place_.peer, offer.at("port").get<std::uint16_t>());
        std::vector<tools::Fd> all;
        for (unsigned c = 0; c < params_.connections; ++c) {
            tools::Fd fd = connect_to(
                server, deadline, place_.stop,
                [](int socket, const void* params) {
                    set_buffers(socket, *static_cast<const Params*>(params));
                },
                &params_);
            std::byte bytes[sizeof(Header)];
            write_header(bytes, {sizeof bytes, static_cast<std::uint16_t>(c), kIntroduction,
                                 offer.at("token").get<std::uint64_t>()});
            if (::send(fd.get(), bytes, sizeof bytes, MSG_NOSIGNAL) != sizeof bytes)
                fail_errno("TCP connection", kPeerEnded);
            prepare_stream(fd.get(), params_);
            prepare_for(fd.get(), params_.own_wait());
            all.push_back(std::move(fd));
        }
        lanes_ = make_lanes<StreamLane>(std::move(all), params_, place_);
        return nlohmann::json::object();
    }
};

void check_udp(const Params& params) {
    check(params);
    for (const std::string& group : params.sockets.groups)
        if (!IN_MULTICAST(ntohl(make_address(group, 0).sin_addr.s_addr)))
            throw Failure(
                kUsage,
                fmt::format("--group: {} is no multicast group (224.0.0.0 to 239.255.255.255)", group));
    if (!params.sockets.groups.empty() && params.sockets.connected && !params.throughput)
        throw Failure(
            kUsage,
            "--connected: answers of a group come from other addresses, which a connected socket drops");
    if (!params.sockets.group_interface.empty()) make_address(params.sockets.group_interface, 0);
}

void check_tcp(const Params& params) {
    check(params);
    if (!params.sockets.groups.empty()) throw Failure(kUsage, "--group: multicast is UDP's");
    if (params.sockets.connected) throw Failure(kUsage, "--connected: for UDP; TCP always is");
}

}  // namespace

constinit const TransportType kUdp = with_sessions<UdpServer, UdpClient>(
    {.name = "udp", .reliable = false, .max_size = kMaxDatagram, .check = check_udp});
constinit const TransportType kTcp = with_sessions<TcpServer, TcpClient>(
    {.name = "tcp", .reliable = true, .max_size = kMaxStreamMessage, .check = check_tcp});

}  // namespace vma_perf::sockets
