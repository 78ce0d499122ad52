// SPDX-License-Identifier: BSD-2-Clause
// vma_stats: shows what libvma does in running processes. docs/vma_stats.md tells how it is used.
//
//   options  the command line      attach   finds and opens statistics files, trusting none
//   reader   takes a file apart    fleet    the processes that are watched
//   sampler  differences, rates    view_*   the manual's views; json, prometheus, http, top: others
#include <exception>

#include "tools/vma_stats/watch.h"

int main(int argc, char** argv) {
    try {
        const vma_stats::Parsed parsed = vma_stats::parse_options(argc, argv);
        parsed.print();
        return parsed.options ? vma_stats::watch(*parsed.options) : parsed.status;
    } catch (const std::exception& error) {
        // Memory may be missing.
        fprintf(stderr, "vmastat: %s\n", error.what());
        return vma_stats::kFailed;
    }
}
