// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/cpus.h"

#include <fmt/format.h>
#include <link.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include <optional>
#include <thread>

#include "tools/common/numbers.h"
#include "tools/vma_perf/status.h"

namespace vma_perf {

static_assert(kMaxCpus == CPU_SETSIZE);

std::vector<unsigned> parse_cpus(const std::string& text, const char* option) {
    const auto ranges = tools::parse_ranges(text, kMaxCpus - 1);
    if (!ranges)
        throw Failure(kUsage,
                      fmt::format("{}: {} is no list of processors and ranges, as 0,2-4", option, text));
    std::vector<unsigned> cpus;
    for (const auto& [first, last] : *ranges)
        for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(static_cast<unsigned>(cpu));
    return cpus;
}

void pin_to(unsigned cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        throw Failure(kUnsupported, fmt::format("cannot run on processor {}: {} ({} online)", cpu,
                                                strerror(errno), sysconf(_SC_NPROCESSORS_ONLN)));
}

void check_cpus(const std::vector<unsigned>& cpus, const char* option) {
    if (cpus.empty()) return;
    std::optional<Failure> failure;
    // In a thread of its own, since a thread stays where it was pinned to.
    std::thread([&] {
        try {
            for (const unsigned cpu : cpus) pin_to(cpu);
        } catch (const Failure& thrown) {
            failure.emplace(thrown.status(), fmt::format("{}: {}", option, thrown.what()));
        }
    }).join();
    if (failure) throw *failure;
}

const char* socket_stack() {
    bool found = false;
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void* result) {
            const char* const name = strrchr(info->dlpi_name, '/');
            if (strncmp(name != nullptr ? name + 1 : info->dlpi_name, "libvma.so", 9) == 0)
                *static_cast<bool*>(result) = true;
            return 0;
        },
        &found);
    return found ? "libvma" : "kernel";
}

}  // namespace vma_perf
