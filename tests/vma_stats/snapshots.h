// SPDX-License-Identifier: BSD-2-Clause
// Images as the reader gives them.
#pragma once

#include <gtest/gtest.h>

#include "tests/vma_stats/memory_source.h"
#include "tests/vma_stats/stats_image.h"
#include "tools/vma_stats/sampler.h"

// `seconds` after the image's process began.
inline vma_stats::Snapshot snapshot_of(const stats_image::Image& image, double seconds = 10) {
    MemorySource source(image.bytes());
    vma_stats::Snapshot s;
    const auto error = vma_stats::read_snapshot(source, s);
    EXPECT_FALSE(error) << error->text;
    s.taken_ns = static_cast<std::int64_t>(seconds * 1e9);
    s.realtime_ns = static_cast<std::int64_t>(s.header.started_ns) + s.taken_ns;
    return s;
}
