// SPDX-License-Identifier: BSD-2-Clause
// JSON, one object for each report of a process. See formats.h.
#include "tools/common/json.h"

#include <sys/socket.h>

#include <nlohmann/json.hpp>

#include "tools/vma_stats/fields.h"
#include "tools/vma_stats/formats.h"
#include "tools/vma_stats/text.h"

namespace vma_stats {
namespace {

using Json = nlohmann::ordered_json;

class Writer {
  public:
    Writer(const Frame& frame, const Shape& shape)
        : shown_(frame.shown(shape.deltas)), shape_(shape), seconds_(frame.seconds) {}

    Json whole() {
        Json out = process();
        out["sockets"] = Json::array();
        for (const auto& row : shown_.sockets)
            if (shape_.sockets.contains(row.block.fd)) out["sockets"].push_back(socket(row));
        out["rings"] = each(shown_.rings, [&](const auto& row) { return ring(row); });
        out["pools"] = each(shown_.pools, [&](const auto& row) { return pool(row); });
        out["muxes"] = each(shown_.muxes, [&](const auto& row) { return mux(row); });
        out["groups"] = each(shown_.groups, [&](const auto& row) { return group(row); });
        out["parameters"] = each(shown_.parameters, [&](const auto& row) { return parameter(row); });
        Json& totals = out["totals"] = Json::object();
        for (const auto& row : shown_.totals) {
            if (row.number >= layout::kTotalsCount) continue;
            Json object = Json::object();
            numbers(object, row.block);
            totals[row.number == layout::kTotalsUdp ? "udp" : "tcp"] = std::move(object);
        }
        return out;
    }

  private:
    template <class Rows, class Make>
    static Json each(const Rows& rows, Make make) {
        Json array = Json::array();
        for (const auto& row : rows) array.push_back(make(row));
        return array;
    }

    // All fields of the block's table; "rx_os.bytes" is a member of a member.
    template <class Block>
    void numbers(Json& object, const Block& block) const {
        for (const Field& field : fields_of<Block>()) {
            const std::string name = field.name;
            const std::size_t dot = name.find('.');
            Json& place = dot == name.npos ? object[name] : object[name.substr(0, dot)][name.substr(dot + 1)];
            const std::uint64_t value = get(block, field);
            if (shape_.deltas && field.kind == Kind::counter)
                place = static_cast<double>(value) / (seconds_ > 0 ? seconds_ : 1);
            else
                place = value;
        }
    }

    Json process() const {
        const layout::Header& h = shown_.header;
        return {{"schema", "vma_stats/1"},
                {"time", static_cast<double>(shown_.realtime_ns) / 1e9},
                {"mode", shape_.deltas ? "per_second" : "total"},
                {"interval", seconds_},
                {"pid", h.pid},
                {"uid", h.uid},
                {"program", text(h.program)},
                {"library", text(h.library)},
                {"started", static_cast<double>(h.started_ns) / 1e9},
                {"ended", static_cast<layout::Life>(h.life) == layout::Life::ended},
                {"log_level", h.log_level},
                {"log_details", h.log_details},
                {"zeroed", h.zeroed},
                {"sockets_unseen", h.sockets_unseen}};
    }

    static Json address(const layout::Address& a) {
        if (a.family == 0) return nullptr;
        return {{"address", host(a)}, {"port", a.port}};
    }

    static Json way(std::uint8_t path_value, std::uint16_t reason_value) {
        return {{"path", path(path_value)}, {"reason", reason(reason_value)}, {"reason_code", reason_value}};
    }

    Json socket(const Row<layout::SocketBlock>& row) const {
        const layout::SocketBlock& s = row.block;
        const auto& m = s.multicast_interface;
        Json out = {{"id", s.id},
                    {"fd", s.fd},
                    {"protocol", protocol(s)},
                    {"type", s.type},
                    {"family", s.family},
                    {"closed_by_program", s.state == 2},
                    {"tcp_state", tcp_state(s.tcp_state)},
                    {"inode", s.inode},
                    {"local", address(s.local)},
                    {"peer", address(s.peer)},
                    {"blocking", s.blocking == 1},
                    {"multicast_loop", s.multicast_loop != 0},
                    {"multicast_interface", std::to_string(m[0]) + "." + std::to_string(m[1]) + "." +
                                                std::to_string(m[2]) + "." + std::to_string(m[3])},
                    {"rx", way(s.rx_path, s.rx_reason)},
                    {"tx", way(s.tx_path, s.tx_reason)},
                    {"rule", text(s.rule)},
                    {"detail", text(s.detail)},
                    {"ring", s.ring >= 0 ? Json(s.ring) : Json(nullptr)},
                    {"ifindex", s.ifindex},
                    {"device", text(s.device)},
                    {"rx_thread", s.rx_thread},
                    {"tx_thread", s.tx_thread},
                    {"torn", row.torn}};
        numbers(out, s);
        return out;
    }

    Json ring(const Row<layout::RingBlock>& row) const {
        Json out = {{"number", row.number},
                    {"ifindex", row.block.ifindex},
                    {"interface", text(row.block.interface)},
                    {"device", text(row.block.device)},
                    {"details", text(row.block.details)},
                    {"lane", row.block.lane},
                    {"logic", row.block.logic},
                    {"owner", text(row.block.owner)},
                    {"sockets", row.block.sockets}};
        numbers(out, row.block);
        return out;
    }

    Json pool(const Row<layout::PoolBlock>& row) const {
        Json out = {{"number", row.number},
                    {"ring", row.block.ring >= 0 ? Json(row.block.ring) : Json(nullptr)},
                    {"direction", row.block.direction == 0 ? "receive" : "send"}};
        numbers(out, row.block);
        return out;
    }

    Json mux(const Row<layout::MuxBlock>& row) const {
        Json out = {{"kind", mux_name(row.block.kind)},
                    {"fd", row.block.fd >= 0 ? Json(row.block.fd) : Json(nullptr)},
                    {"id", row.block.id},
                    {"thread", row.block.thread}};
        numbers(out, row.block);
        return out;
    }

    Json group(const Row<layout::GroupBlock>& row) const {
        const layout::GroupBlock& g = row.block;
        Json out = {{"group", host(g.group)},
                    {"source", g.source.family != 0 ? Json(host(g.source)) : Json(nullptr)},
                    {"ifindex", g.ifindex},
                    {"interface", text(g.interface)},
                    {"fd", g.fd},
                    {"socket_id", g.socket_id},
                    {"path", path(static_cast<std::uint8_t>(g.path & 0xff))},
                    {"detail", text(g.detail)}};
        numbers(out, g);
        return out;
    }

    static Json parameter(const Row<layout::ParameterBlock>& row) {
        return {{"name", text(row.block.name)},
                {"value", text(row.block.value)},
                {"origin", text(row.block.origin)}};
    }

    const Snapshot& shown_;
    const Shape& shape_;
    double seconds_;
};

}  // namespace

std::string json_line(const Frame& frame, const Shape& shape) {
    return tools::json_text(Writer(frame, shape).whole());
}

}  // namespace vma_stats
