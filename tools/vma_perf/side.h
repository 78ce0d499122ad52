// SPDX-License-Identifier: BSD-2-Clause
// Parts of the sessions of transports.
#pragma once

#include <nlohmann/json.hpp>

#include "tools/vma_perf/transport.h"

namespace vma_perf {

// The common part of client and server sessions. A transport where they share more derives from Side.
class Side {
  public:
    Side(const Params& params, const Place& place) : params_(params), place_(place) {}
    std::span<const std::unique_ptr<Lane>> lanes() const noexcept { return lanes_; }
    static nlohmann::json report() { return nlohmann::json::object(); }

  protected:
    const Params params_;
    const Place place_;
    std::vector<std::unique_ptr<Lane>> lanes_;
};

// ServerSession or ClientSession as far as it follows from what both sides have.
template <class Base, class S = Side>
class SessionOf : public Base, protected S {
  public:
    SessionOf(const Params& params, const Place& place) : S(params, place) {}
    std::span<const std::unique_ptr<Lane>> lanes() const noexcept final { return S::lanes(); }
    nlohmann::json report() final { return S::report(); }
};

// A row of the table of transports, with functions that make sessions of these types.
template <class Server, class Client>
consteval TransportType with_sessions(TransportType row) {
    row.serve = [](const Params& params, const Place& place) -> std::unique_ptr<ServerSession> {
        return std::make_unique<Server>(params, place);
    };
    row.connect = [](const Params& params, const Place& place) -> std::unique_ptr<ClientSession> {
        return std::make_unique<Client>(params, place);
    };
    return row;
}

}  // namespace vma_perf
