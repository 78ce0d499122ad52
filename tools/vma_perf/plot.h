// SPDX-License-Identifier: BSD-2-Clause
// Latency percentile curves as an SVG picture. The percentile goes to the right, stretched so that each nine
// takes the same width. The latency goes upwards on a logarithmic scale, so that the kernel and libvma fit
// into one picture.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace vma_perf {

struct Curve {
    std::string label;
    bool whole_round_trip = false;
    std::vector<std::pair<double, double>> points;  // (percentile, us), ascending
};

// From a result's JSON. Throws Failure with kFailed when the result has no curve; the text names `where`.
Curve curve_of(const nlohmann::json& result, const std::string& where);
// Appends the curves of a file: one result, or a list of results.
void read_curves(const std::string& path, std::vector<Curve>& curves);
// The picture. At least one curve.
std::string draw(const std::vector<Curve>& curves);

}  // namespace vma_perf
