// SPDX-License-Identifier: BSD-2-Clause
// The manual's views (section 8.1) as text. Additions to the manual stand to the right of its columns or in
// lines of their own. So a script for the manual's layout works.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tools/common/numbers.h"
#include "tools/vma_stats/sampler.h"

namespace vma_stats {

// -s: descriptors in lists and ranges; empty selects all.
class FdFilter {
  public:
    // Takes "4-16,9". False: the text is something else, and the filter is unchanged.
    bool parse(const std::string& list);
    bool contains(int fd) const;

  private:
    std::vector<tools::Range> ranges_;
};

struct Shape {
    bool deltas = false;
    FdFilter sockets;
};

// Views 1 and 2: two lines for each socket, two for each kind of waiting. The view remembers when a heading
// is due.
class BasicView {
  public:
    BasicView(Shape shape, bool medium) : shape_(std::move(shape)), medium_(medium) {}
    std::string report(const Frame& frame);

  private:
    Shape shape_;
    bool medium_;
    int lines_ = kLinesForEachHeading;
    static constexpr int kLinesForEachHeading = 24;
};

// View 3: everything about each socket, ring, completion queue, buffer pool.
std::string full_view(const Frame& frame, const Shape& shape);

// View 4: groups, their members, and what came for each.
std::string groups_view(const Frame& frame, const Shape& shape);

// View 5: the sockets of all processes as netstat lists them.
std::string netstat_view(const std::vector<const Snapshot*>& processes, const Shape& shape);

// --parameters.
std::string parameters_view(const Snapshot& now);

// --explain: which way each socket goes and why, in sentences.
std::string explain_view(const Snapshot& now, const Shape& shape);

// The two lines for each kind of waiting that was used, for views 1 to 3.
std::vector<std::string> mux_lines(const Frame& frame, bool deltas);

}  // namespace vma_stats
