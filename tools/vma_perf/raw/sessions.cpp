// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/raw/sessions.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <string.h>
#include <sys/socket.h>

#include <array>
#include <utility>

#include "libvma/net/frame.h"
#include "tools/common/fd.h"
#include "tools/vma_perf/cpus.h"
#include "tools/vma_perf/message.h"
#include "tools/vma_perf/raw/raw_device.h"
#include "tools/vma_perf/side.h"
#include "tools/vma_perf/sockets/address.h"

namespace vma_perf::raw {
namespace {

using vma::net::kUdpHeaders;

// The two ends of a connection; ports in network byte order.
struct Connection {
    tools::Fd reserved;  // a kernel socket that keeps our port
    in_port_t port = 0;
    std::array<std::uint8_t, kUdpHeaders> headers{};  // towards the peer
};

class RawLane final : public Lane {
  public:
    RawLane(RawDevice& device, std::vector<Connection>& connections, bool throughput)
        : device_(device), connections_(connections), throughput_(throughput) {}

    unsigned connections() const noexcept override { return static_cast<unsigned>(connections_.size()); }

    std::byte* prepare(unsigned /*connection*/) override {
        std::uint8_t* const frame = device_.next_frame();
        return frame != nullptr ? reinterpret_cast<std::byte*>(frame + kUdpHeaders) : nullptr;
    }

    bool send(unsigned connection, std::size_t length, bool more) override {
        std::uint8_t* const frame = device_.next_frame();
        // The UDP checksum stays 0, "none" (RFC 768): nothing here is to cost what need not be done.
        memcpy(frame, connections_[connection].headers.data(), kUdpHeaders);
        vma::net::finish_udp_headers(frame, static_cast<std::uint16_t>(length));
        if (!device_.post(kUdpHeaders + length)) return false;
        // One way, the device collects by itself, as it does under the library.
        if (!more && !throughput_) device_.flush();
        return true;
    }

    bool answer(const Arrival& arrival) override {
        std::byte* const to = prepare(arrival.connection);
        if (to == nullptr) return false;
        memcpy(to, arrival.message.data(), arrival.message.size());
        return send(arrival.connection, arrival.message.size(), true);  // receive() flushes after its batch
    }

    std::size_t receive(Receiver& receiver, bool /*may_wait*/) override {
        std::size_t count = 0;
        device_.poll([&](std::span<const std::uint8_t> frame) {
            vma::net::ParsedFrame parsed;
            if (vma::net::parse(frame, true, parsed) != vma::net::Drop::none ||
                parsed.protocol != IPPROTO_UDP || parsed.payload_length < sizeof(Header))
                return;
            const std::byte* const message =
                reinterpret_cast<const std::byte*>(frame.data() + parsed.payload_offset);
            for (unsigned c = 0; c < connections_.size(); ++c)
                if (connections_[c].port == parsed.dst_port) {
                    receiver.take({c, {message, parsed.payload_length}, nullptr});
                    ++count;
                    return;
                }
        });
        device_.flush();
        return count;
    }

  private:
    RawDevice& device_;
    std::vector<Connection>& connections_;
    const bool throughput_;
};

// What both sides have in common.
class RawSide : public Side {
  protected:
    RawSide(const Params& params, const Place& place) : Side(params, place) {
        if (std::string(socket_stack()) == "libvma")
            throw Failure(kUnsupported, "raw has the device for itself: run it without libvma");
    }

    // {"mac", "ports"} of this side, which receives from now on.
    nlohmann::json open(const std::string& name) {
        netdev_ = find_netdev(name, place_.local);
        device_ = std::make_unique<RawDevice>(netdev_, params_.raw.mode);
        if (params_.max_size + kUdpHeaders > device_->max_frame())
            throw Failure(kUsage, fmt::format("--size: {} carries at most {} bytes in a frame", netdev_.name,
                                              device_->max_frame() - kUdpHeaders));
        nlohmann::json ports = nlohmann::json::array();
        for (unsigned c = 0; c < params_.connections; ++c) {
            Connection& connection = connections_.emplace_back();
            connection.reserved = tools::Fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
            const sockaddr_in bound = bind_to(connection.reserved.get(), make_address(place_.local, 0));
            connection.port = bound.sin_port;
            device_->receive_at(bound.sin_addr.s_addr, bound.sin_port);
            ports.push_back(port_of(bound));
        }
        lanes_.push_back(std::make_unique<RawLane>(*device_, connections_, params_.throughput));
        return {{"mac", netdev_.mac}, {"ports", ports}};
    }
    void meet(const nlohmann::json& peer) {
        const auto mac = peer.at("mac").get<vma::verbs::MacAddress>();
        const auto ports = peer.at("ports").get<std::vector<std::uint16_t>>();
        if (ports.size() != connections_.size())
            throw Failure(kVersion, "the other side has another number of ports");
        for (std::size_t c = 0; c < ports.size(); ++c)
            vma::net::build_udp_headers({.src_mac = netdev_.mac,
                                         .dst_mac = mac,
                                         .src_addr = make_address(place_.local, 0).sin_addr.s_addr,
                                         .dst_addr = make_address(place_.peer, 0).sin_addr.s_addr,
                                         .src_port = connections_[c].port,
                                         .dst_port = htons(ports[c])},
                                        0, connections_[c].headers.data());
    }

  private:
    Netdev netdev_;
    std::unique_ptr<RawDevice> device_;
    std::vector<Connection> connections_;
};

class RawServer final : public SessionOf<ServerSession, RawSide> {
  public:
    using SessionOf::SessionOf;
    nlohmann::json offer() override { return open({}); }
    void accept(Clock::time_point) override {}
    void complete(const nlohmann::json& answer) override {
        try {
            meet(answer);
        } catch (const nlohmann::json::exception& error) {
            throw Failure(kVersion, fmt::format("the client's answer cannot be read: {}", error.what()));
        }
    }
};

class RawClient final : public SessionOf<ClientSession, RawSide> {
  public:
    using SessionOf::SessionOf;
    nlohmann::json connect(const nlohmann::json& offer, Clock::time_point) override {
        nlohmann::json answer = open(params_.raw.device);
        meet(offer);
        return answer;
    }
};

void check(const Params& params) {
    if (params.threads != 1) throw Failure(kUsage, "--threads: raw has one queue pair, so one thread");
    for (const auto& [wait, option] :
         {std::pair{params.wait, "--wait"}, {params.server_wait, "--server-wait"}})
        if (wait != Wait::nonblocking)
            throw Failure(kUsage, fmt::format("{}: raw polls; only nonblocking", option));
    if (params.raw.mode != "skb" && params.raw.mode != "drv") throw Failure(kUsage, "--xdp-mode: skb or drv");
    const SocketParams& s = params.sockets;
    if (!s.groups.empty() || s.connected || !s.extra_api.empty() || s.send_buffer != 0 ||
        s.receive_buffer != 0)
        throw Failure(kUsage,
                      "raw has no sockets: --group, --connected, --send-buffer, --receive-buffer and "
                      "--extra-api are for udp "
                      "and tcp");
}

}  // namespace

constinit const TransportType kRaw = with_sessions<RawServer, RawClient>({.name = "raw",
                                                                          .reliable = false,
                                                                          .max_size = kMaxMessage,
                                                                          .check = check,
                                                                          .usual_wait = Wait::nonblocking,
                                                                          .stack = "device"});

}  // namespace vma_perf::raw
