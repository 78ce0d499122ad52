// SPDX-License-Identifier: BSD-2-Clause
// Reliable connections by RDMA-CM. The server listens on a port of the system's choice. The client connects
// once for each connection; the private data tell its number.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <string.h>

#include <algorithm>

#include "tools/vma_perf/rdma/sessions.h"
#include "tools/vma_perf/rdma/side.h"
#include "tools/vma_perf/sockets/address.h"

namespace vma_perf::rdma {
namespace {

// What the client sends along with its request; network byte order.
struct PrivateData {
    std::uint32_t magic = htonl(kMagic);
    std::uint32_t connection = 0;
    static constexpr std::uint32_t kMagic = 0x766d6170;
};

// How long a sender waits when we had no buffer, as verbs count it (0.64 ms). RDMA-CM leaves it at 0, which
// stands for the longest time, 655 ms.
constexpr std::uint8_t kReceiverNotReady = 12;

// What both sides have.
class RcSide : public VerbsSide {
  protected:
    RcSide(const Params& params, const Place& place)
        : VerbsSide(params, place, IBV_QPT_RC), channel_(rdma_create_event_channel()) {
        if (!channel_)
            fail_errno("an event channel of RDMA-CM (is the module rdma_ucm there?)", kUnsupported);
        if (fcntl(channel_->fd, F_SETFL, O_NONBLOCK) != 0) fail_errno("an event channel of RDMA-CM");
        ids_.resize(params.connections);
    }
    // The ids and their queue pairs end before the lanes: the queue pairs use completion queues of the lanes.
    ~RcSide() {
        for (const CmIdPtr& id : ids_)
            if (id && id->qp != nullptr) rdma_disconnect(id.get());
    }

    CmIdPtr make_id() {
        rdma_cm_id* id = nullptr;
        if (rdma_create_id(channel_.get(), &id, nullptr, RDMA_PS_TCP) != 0) fail_errno("rdma_create_id");
        return CmIdPtr(id);
    }
    void make_queue_pair(unsigned c, rdma_cm_id* id) {
        VerbsLane& lane = lane_of(c);
        lane.add_queue_pair(
            number_of(c),
            [](void* context, ibv_qp_init_attr_ex& attr) -> ibv_qp* {
                auto* of = static_cast<rdma_cm_id*>(context);
                return rdma_create_qp_ex(of, &attr) == 0 ? of->qp : nullptr;
            },
            id);
        lane.start_receiving(number_of(c));
    }
    rdma_conn_param parameters(const PrivateData* data) const {
        rdma_conn_param param{};
        param.private_data = data;
        param.private_data_len = data != nullptr ? sizeof *data : 0;
        param.retry_count = static_cast<std::uint8_t>(params_.rdma.retry);
        param.rnr_retry_count = static_cast<std::uint8_t>(params_.rdma.rnr_retry);
        return param;
    }

    // Of a connection that is established.
    static void set_patience(rdma_cm_id* id) {
        ibv_qp_attr attr{};
        attr.min_rnr_timer = kReceiverNotReady;
        if (const int error = ibv_modify_qp(id->qp, &attr, IBV_QP_MIN_RNR_TIMER); error != 0) {
            errno = error;
            fail_errno("the timer for a receiver that is not ready");
        }
    }

    // The next event. Throws Failure with `status` when none comes.
    CmEventPtr next_event(Clock::time_point deadline, Status status, const char* awaited) {
        while (true) {
            rdma_cm_event* event = nullptr;
            if (rdma_get_cm_event(channel_.get(), &event) == 0) return CmEventPtr(event);
            if (errno != EAGAIN && errno != EINTR) fail_errno("rdma_get_cm_event");
            if (place_.stop->load() || Clock::now() >= deadline)
                throw Failure(status, fmt::format("RDMA-CM: no {}", awaited));
            pollfd ready{channel_->fd, POLLIN, 0};
            ::poll(&ready, 1, static_cast<int>(kTick.count()));
        }
    }

    nlohmann::json report() const {
        nlohmann::json json = VerbsSide::report();
        json["max_inline"] = lane_of(0).max_inline();
        return json;
    }

    EventChannelPtr channel_;
    std::vector<CmIdPtr> ids_;
};

class RcServer final : public SessionOf<ServerSession, RcSide> {
  public:
    RcServer(const Params& params, const Place& place) : SessionOf(params, place), listener_(make_id()) {
        sockaddr_in address = make_address(place.bind, 0);
        if (rdma_bind_addr(listener_.get(), reinterpret_cast<sockaddr*>(&address)) != 0 ||
            listener_->verbs == nullptr)
            throw Failure(kUnsupported, fmt::format("no RDMA device has the address {}: {}", place.bind,
                                                    strerrordesc_np(errno)));
        make_lanes(listener_->verbs);
        if (rdma_listen(listener_.get(), static_cast<int>(std::min(params.connections, 1024u))) != 0)
            fail_errno("rdma_listen");
    }
    nlohmann::json offer() override { return {{"port", ntohs(rdma_get_src_port(listener_.get()))}}; }
    void accept(Clock::time_point deadline) override {
        for (unsigned established = 0; established < params_.connections;) {
            const CmEventPtr event = next_event(deadline, kPeerEnded, "connection from the client");
            switch (event->event) {
                case RDMA_CM_EVENT_CONNECT_REQUEST:
                    accept_one(*event);
                    break;
                case RDMA_CM_EVENT_ESTABLISHED:
                    set_patience(event->id);
                    established++;
                    break;
                default:
                    throw Failure(kPeerEnded, fmt::format("RDMA-CM: {} while connections were made",
                                                          rdma_event_str(event->event)));
            }
        }
    }

  private:
    void accept_one(const rdma_cm_event& event) {
        CmIdPtr id(event.id);
        PrivateData data;
        // Others may try, too; and the transport pads what the client sent.
        if (event.param.conn.private_data_len >= sizeof data)
            memcpy(&data, event.param.conn.private_data, sizeof data);
        const unsigned c = ntohl(data.connection);
        if (event.param.conn.private_data_len < sizeof data || data.magic != PrivateData().magic ||
            c >= ids_.size() || ids_[c]) {
            rdma_reject(id.get(), nullptr, 0);
            return;
        }
        make_queue_pair(c, id.get());
        rdma_conn_param param = parameters(nullptr);
        if (rdma_accept(id.get(), &param) != 0) fail_errno("rdma_accept");
        ids_[c] = std::move(id);
    }

    CmIdPtr listener_;
};

class RcClient final : public SessionOf<ClientSession, RcSide> {
  public:
    using SessionOf::SessionOf;
    nlohmann::json connect(const nlohmann::json& offer, Clock::time_point deadline) override {
        const auto port = offer.find("port");
        if (port == offer.end() || !port->is_number_unsigned() || *port > 65535)
            throw Failure(kVersion, "the server's offer has no port");
        for (unsigned c = 0; c < params_.connections; c++)
            connect_one(c, port->get<std::uint16_t>(), deadline);
        return nlohmann::json::object();
    }

  private:
    void expect(rdma_cm_event_type type, Clock::time_point deadline) {
        const CmEventPtr event = next_event(deadline, kUnreachable, rdma_event_str(type));
        if (event->event == type) return;
        const std::string reason = event->status < 0   ? std::string(": ") + strerrordesc_np(-event->status)
                                   : event->status > 0 ? fmt::format(" (reason {})", event->status)
                                                       : "";
        throw Failure(kUnreachable, fmt::format("RDMA-CM: {} in place of {}{}", rdma_event_str(event->event),
                                                rdma_event_str(type), reason));
    }
    void connect_one(unsigned c, std::uint16_t port, Clock::time_point deadline) {
        CmIdPtr& id = ids_[c];
        id = make_id();
        sockaddr_in from = make_address(place_.local, 0), to = make_address(place_.peer, port);
        const auto left =
            std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
        const int limit = static_cast<int>(std::clamp<long>(left, 1, 10'000));
        if (rdma_resolve_addr(id.get(), reinterpret_cast<sockaddr*>(&from), reinterpret_cast<sockaddr*>(&to),
                              limit) != 0)
            throw Failure(kUnsupported, fmt::format("no RDMA device from {} to {}: {}", place_.local,
                                                    place_.peer, strerrordesc_np(errno)));
        expect(RDMA_CM_EVENT_ADDR_RESOLVED, deadline);
        if (rdma_resolve_route(id.get(), limit) != 0) fail_errno("rdma_resolve_route");
        expect(RDMA_CM_EVENT_ROUTE_RESOLVED, deadline);
        if (lanes_.empty()) make_lanes(id->verbs);  // the first id knows its device
        make_queue_pair(c, id.get());
        PrivateData data;
        data.connection = htonl(c);
        rdma_conn_param param = parameters(&data);
        if (rdma_connect(id.get(), &param) != 0) fail_errno("rdma_connect");
        expect(RDMA_CM_EVENT_ESTABLISHED, deadline);
        set_patience(id.get());
    }
};

}  // namespace

constinit const TransportType kRc = with_sessions<RcServer, RcClient>({.name = "rc",
                                                                       .reliable = true,
                                                                       .max_size = kMaxRcMessage,
                                                                       .check = check_rc,
                                                                       .usual_wait = Wait::nonblocking});

}  // namespace vma_perf::rdma
