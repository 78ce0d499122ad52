// SPDX-License-Identifier: BSD-2-Clause
// JSON as the tools write it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace tools {

// With a final newline. `indent`: spaces of each level; -1: all on one line. Texts may hold any bytes: those
// that are no UTF-8 are replaced.
template <class Json>
std::string json_text(const Json& json, int indent = -1) {
    return json.dump(indent, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace tools
