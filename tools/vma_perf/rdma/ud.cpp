// SPDX-License-Identifier: BSD-2-Clause
// Unreliable datagrams. The sides exchange QP numbers, GID and MTU over the control connection.
//
// A multicast group is a GID that the server's queue pairs are attached to. The kernel's IP layer must know
// the group as well, since RoCE's packets are UDP datagrams to its address: a plain socket joins it for as
// long as the run takes.
#include <arpa/inet.h>
#include <errno.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "tools/common/fd.h"
#include "tools/vma_perf/rdma/device.h"
#include "tools/vma_perf/rdma/sessions.h"
#include "tools/vma_perf/rdma/side.h"

namespace vma_perf::rdma {
namespace {

constexpr std::uint32_t kMulticastQp = 0xffffff;  // stands for all that are attached

// An IPv4 multicast address, mapped.
bool is_group(const ibv_gid& gid) noexcept { return gid.raw[0] == 0 && (gid.raw[12] & 0xf0) == 0xe0; }

void check(int error, const char* what) {
    if (error == 0) return;
    errno = error > 0 ? error : errno;
    fail_errno(what);
}

// What both sides have.
class UdSide : public VerbsSide {
  protected:
    UdSide(const Params& params, const Place& place)
        : VerbsSide(params, place, IBV_QPT_UD),
          port_(open_port(params.is_client ? params.rdma.device : params.rdma.server_device,
                          params.is_client ? params.rdma.gid_index : params.rdma.server_gid_index,
                          params.is_client || place.bind.empty() ? place.local : place.bind)) {
        context_ = std::move(port_.context);
        check_mtu(port_.mtu, port_.name);
        make_lanes(context_.get());
        for (unsigned c = 0; c < params.connections; c++) add_queue_pair(c);
    }

    void check_mtu(unsigned mtu, const std::string& device) const {
        if (params_.max_size > mtu)
            throw Failure(kUsage, fmt::format("--size: {} bytes do not fit: a datagram of ud is one packet, "
                                              "and the MTU of {} is {} bytes",
                                              params_.max_size, device, mtu));
    }

    // What the other side must know.
    nlohmann::json describe() {
        nlohmann::json numbers = nlohmann::json::array();
        for (const QpPtr& qp : qps_) numbers.push_back(qp->qp_num);
        return {{"qps", numbers},
                {"gid", gid_text(port_.gid)},
                {"mtu", port_.mtu},
                {"key", key_},
                {"device", port_.name}};
    }
    // Sends to what describe() of the other side gave, or to `groups`, in turn.
    void address(const nlohmann::json& other, const std::vector<std::string>& groups) {
        try {
            const auto numbers = other.at("qps").get<std::vector<std::uint32_t>>();
            const auto key = other.at("key").get<std::uint32_t>();
            if (numbers.size() != params_.connections)
                throw Failure(kVersion, "the other side has another number of queue pairs");
            check_mtu(other.at("mtu").get<unsigned>(),
                      other.at("device").get<std::string>() + " on the other side");
            std::vector<ibv_gid> gids{gid_from_text(other.at("gid").get<std::string>())};
            if (!groups.empty()) gids.clear();
            for (const std::string& group : groups) gids.push_back(mapped_gid(group));
            for (const ibv_gid& gid : gids) handles_.push_back(make_handle(gid));
            for (unsigned c = 0; c < params_.connections; c++)
                lane_of(c).set_destination(number_of(c), handles_[c % handles_.size()].get(),
                                           groups.empty() ? numbers[c] : kMulticastQp, key);
        } catch (const nlohmann::json::exception& error) {
            throw Failure(kVersion,
                          fmt::format("the other side's description cannot be read: {}", error.what()));
        }
    }

    nlohmann::json report() const {
        nlohmann::json json = VerbsSide::report();
        json["mtu"] = port_.mtu;
        return json;
    }

    DevicePort port_;
    std::vector<AhPtr> handles_;
    std::vector<QpPtr> qps_;

  private:
    void add_queue_pair(unsigned c) {
        VerbsLane& lane = lane_of(c);
        lane.add_queue_pair(
            number_of(c),
            [](void* self, ibv_qp_init_attr_ex& attr) {
                return ibv_create_qp_ex(static_cast<UdSide*>(self)->context_.get(), &attr);
            },
            this);
        QpPtr& qp = qps_.emplace_back(lane.queue_pair(number_of(c)));
        ibv_qp_attr attr{};
        attr.qp_state = IBV_QPS_INIT;
        attr.port_num = port_.port;
        attr.qkey = key_;
        check(ibv_modify_qp(qp.get(), &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
              "a queue pair to INIT");
        attr.qp_state = IBV_QPS_RTR;
        check(ibv_modify_qp(qp.get(), &attr, IBV_QP_STATE), "a queue pair to RTR");
        attr.qp_state = IBV_QPS_RTS;
        check(ibv_modify_qp(qp.get(), &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), "a queue pair to RTS");
        lane.start_receiving(number_of(c));
    }

    AhPtr make_handle(const ibv_gid& gid) {
        ibv_ah_attr attr{};
        attr.is_global = 1;
        attr.port_num = port_.port;
        attr.grh.dgid = gid;
        attr.grh.sgid_index = static_cast<std::uint8_t>(port_.gid_index);
        attr.grh.hop_limit =
            is_group(gid) ? static_cast<std::uint8_t>(std::max(params_.sockets.group_ttl, 1)) : 64;
        AhPtr handle(ibv_create_ah(pd(), &attr));
        if (!handle)
            fail_errno(fmt::format("an address handle for GID {} from index {} of {}", gid_text(gid),
                                   port_.gid_index, port_.name));
        return handle;
    }

    // Controlled keys, whose top bit is set, are the kernel's.
    const std::uint32_t key_ = std::random_device()() & 0x7fffffff;
};

class UdServer final : public SessionOf<ServerSession, UdSide> {
  public:
    UdServer(const Params& params, const Place& place) : SessionOf(params, place) {
        const auto& groups = params.sockets.groups;
        for (std::size_t c = 0; c < qps_.size() && !groups.empty(); c++)
            attach(qps_[c].get(), groups[c % groups.size()]);
    }
    ~UdServer() override {
        for (const auto& [qp, gid] : attached_) ibv_detach_mcast(qp, &gid, 0);
    }
    nlohmann::json offer() override { return describe(); }
    void accept(Clock::time_point) override {}
    void complete(const nlohmann::json& answer) override { address(answer, {}); }

  private:
    void attach(ibv_qp* qp, const std::string& group) {
        tools::Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
        ip_mreqn request{};
        inet_pton(AF_INET, group.c_str(), &request.imr_multiaddr);
        inet_pton(AF_INET, place_.bind.c_str(), &request.imr_address);
        if (!socket || setsockopt(socket.get(), IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, sizeof request) != 0)
            fail_errno("joining the group " + group);
        members_.push_back(std::move(socket));
        const ibv_gid gid = mapped_gid(group);
        check(ibv_attach_mcast(qp, &gid, 0), ("ibv_attach_mcast for " + group).c_str());
        attached_.emplace_back(qp, gid);
    }

    std::vector<tools::Fd> members_;
    std::vector<std::pair<ibv_qp*, ibv_gid>> attached_;
};

class UdClient final : public SessionOf<ClientSession, UdSide> {
  public:
    using SessionOf::SessionOf;
    nlohmann::json connect(const nlohmann::json& offer, Clock::time_point) override {
        address(offer, params_.sockets.groups);
        return describe();
    }
};

}  // namespace

constinit const TransportType kUd = with_sessions<UdServer, UdClient>({.name = "ud",
                                                                       .reliable = false,
                                                                       .max_size = kMaxUdMessage,
                                                                       .check = check_ud,
                                                                       .usual_wait = Wait::nonblocking});

}  // namespace vma_perf::rdma
