// SPDX-License-Identifier: BSD-2-Clause
// What other programs read: JSON and the text format of Prometheus. docs/vma_stats.md describes both.
#pragma once

#include <string>
#include <vector>

#include "tools/vma_stats/views.h"

namespace vma_stats {

// One object on one line, with all blocks. In delta mode counters are rates a second, with fractions; gauges
// stay.
std::string json_line(const Frame& frame, const Shape& shape);

// A scrape: text exposition format 0.0.4, of all processes given.
std::string prometheus_text(const std::vector<const Snapshot*>& processes, const Shape& shape);
inline constexpr char kPrometheusType[] = "text/plain; version=0.0.4; charset=utf-8";

}  // namespace vma_stats
