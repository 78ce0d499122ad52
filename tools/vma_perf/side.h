// SPDX-License-Identifier: BSD-2-Clause
// What transports build their sessions from.
#pragma once

#include <nlohmann/json.hpp>

#include "tools/vma_perf/transport.h"

namespace vma_perf {

// What the sessions of the client and of the server are both made of. A transport where they share more
// derives from it.
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

// For the rows of the table of transports: makes a session of type `S`.
template <class Base, class S>
std::unique_ptr<Base> make_session(const Params& params, const Place& place) {
    return std::make_unique<S>(params, place);
}

}  // namespace vma_perf
