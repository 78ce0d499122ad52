// SPDX-License-Identifier: BSD-2-Clause
// A misspelt variable has no effect and says nothing, which is the worst of answers. So every VMA_ variable
// in the environment that is not a parameter gets a line; the table of names that exist elsewhere keeps that
// line quiet for variables that are right for another release.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "libvma/config/params.h"

namespace vma::config {
namespace {

constexpr std::string_view kParameters[] = {
#define VMA_PARAM_INT(member, env, def, min, max, doc) env,
#define VMA_PARAM_STR(member, env, def, doc) env,
#include "libvma/config/params.def"
#undef VMA_PARAM_INT
#undef VMA_PARAM_STR
};

// Names that read() takes beside those of the table.
constexpr std::string_view kOldNames[] = {"VMA_RX_POLL_OS_RATIO", "VMA_RX_SKIP_OS", "VMA_SELECT_POLL_RATIO",
                                            "VMA_CQ_AIM_MAX_PERIOD_US", "VMA_INTERNAL_THREAD_CPUSSET"};

// Documented or read by some release of VMA. A name that becomes a parameter may stay here: parameters are
// looked up first.
constexpr std::string_view known_elsewhere[] = {
    "VMA_ALLOW_PRIVILEGED_SOCK_OPT",
    "VMA_AVOID_SYS_CALLS_ON_TCP_FD",
    "VMA_BF",
    "VMA_BUFFER_BATCHING_MODE",
    "VMA_CLOSE_ON_DUP2",
    "VMA_CPU_USAGE_STATS",
    "VMA_CQ_AIM_INTERRUPTS_RATE_PER_SEC",
    "VMA_CQ_AIM_INTERVAL_MSEC",
    "VMA_CQ_AIM_MAX_COUNT",
    "VMA_CQ_AIM_MAX_PERIOD_US",
    "VMA_CQ_AIM_MAX_PERIOD_USEC",
    "VMA_CQ_DRAIN_WCE_MAX",
    "VMA_CQ_KEEP_QP_FULL",
    "VMA_CQ_MODERATION_COUNT",
    "VMA_CQ_MODERATION_ENABLE",
    "VMA_CQ_MODERATION_PERIOD_USEC",
    "VMA_DBG_SEND_MCPKT_COUNTER",
    "VMA_DBG_SEND_MCPKT_MCGROUP",
    "VMA_DEFERRED_CLOSE",
    "VMA_ETH_MC_L2_ONLY_RULES",
    "VMA_EXCEPTION_HANDLING",
    "VMA_FORK",
    "VMA_GRO_STREAMS_MAX",
    "VMA_HANDLE_SIGINTR",
    "VMA_HANDLE_SIGSEGV",
    "VMA_HUGETBL",
    "VMA_HUGETLB",
    "VMA_HW_TS_CONVERSION",
    "VMA_IGMP",
    "VMA_INTERNAL_THREAD_AFFINITY",
    "VMA_INTERNAL_THREAD_ARM_CQ",
    "VMA_INTERNAL_THREAD_CPUSET",
    "VMA_INTERNAL_THREAD_CPUSSET",
    "VMA_IPOIB",
    "VMA_LOG_CB_FUNC_PTR",
    "VMA_MAX_INLINE",
    "VMA_MC_FORCE_FLOWTAG",
    "VMA_MSS",
    "VMA_MTU",
    "VMA_NEIGH_NUM_ERR_RETRIES",
    "VMA_NEIGH_UC_ARP_DELAY_MSEC",
    "VMA_NEIGH_UC_ARP_QUATA",
    "VMA_NETLINK_TIMER",
    "VMA_PROGRESS_ENGINE_INTERVAL",
    "VMA_PROGRESS_ENGINE_WCE_MAX",
    "VMA_QP_COMPENSATION_LEVEL",
    "VMA_QP_LOGIC",
    "VMA_RING_ALLOCATION_LOGIC_RX",
    "VMA_RING_ALLOCATION_LOGIC_TX",
    "VMA_RING_DEV_MEM_TX",
    "VMA_RING_LIMIT_PER_INTERFACE",
    "VMA_RING_MIGRATION_RATIO_RX",
    "VMA_RING_MIGRATION_RATIO_TX",
    "VMA_RX_CQ_DRAIN_RATE_NSEC",
    "VMA_RX_POLL_INIT",
    "VMA_RX_POLL_ON_TX_TCP",
    "VMA_RX_POLL_YIELD",
    "VMA_RX_PREFETCH_BYTES",
    "VMA_RX_PREFETCH_BYTES_BEFORE_POLL",
    "VMA_SELECT_CQ_IRQ",
    "VMA_SELECT_POLL_OS_FORCE",
    "VMA_SELECT_POLL_YIELD",
    "VMA_SELECT_SKIP_OS",
    "VMA_SOCKETXTREME",
    "VMA_SPEC",
    "VMA_SPEC_PARAM1",
    "VMA_SPEC_PARAM2",
    "VMA_SUPPRESS_IGMP_WARNING",
    "VMA_TCP_3T_RULES",
    "VMA_TCP_CC_ALGO",
    "VMA_TCP_CTL_THREAD",
    "VMA_TCP_MAX_SYN_RATE",
    "VMA_TCP_NODELAY",
    "VMA_TCP_QUICKACK",
    "VMA_TCP_TIMER_RESOLUTION_MSEC",
    "VMA_TCP_TIMESTAMP_OPTION",
    "VMA_THREAD_MODE",
    "VMA_TIMER_RESOLUTION_MSEC",
    "VMA_TIME_MEASURE_DUMP_FILE",
    "VMA_TIME_MEASURE_NUM_SAMPLES",
    "VMA_TRIGGER_DUMMY_SEND_GETSOCKNAME",
    "VMA_TX_BACKLOG_MAX",
    "VMA_TX_BUFS",
    "VMA_TX_MAX_INLINE",
    "VMA_TX_MC_LOOPBACK",
    "VMA_TX_NONBLOCKED_EAGAINS",
    "VMA_TX_PREFETCH_BYTES",
    "VMA_TX_SEGS_TCP",
    "VMA_TX_WRE_BATCHING",
    "VMA_VMAD_NOTIFY_DIR",
    "VMA_WAIT_AFTER_JOIN_MSEC",
    "VMA_WAIT_AFTER_REREG_MSEC",
    "VMA_WINDOW_SCALING",
};

constexpr std::size_t kFarthest =
    2;  // a slip of the finger: one letter wrong, left out, doubled, or two exchanged
constexpr std::size_t kLongest = 64;

// Levenshtein distance; anything above kFarthest may come out as any number above it.
std::size_t distance(std::string_view a, std::string_view b) noexcept {
    std::size_t gap = a.size() > b.size() ? a.size() - b.size() : b.size() - a.size();
    if (gap > kFarthest || b.size() >= kLongest) return kFarthest + 1;
    std::array<std::size_t, kLongest> row{};
    for (std::size_t j = 0; j <= b.size(); j++) row[j] = j;
    for (std::size_t i = 1; i <= a.size(); i++) {
        std::size_t diagonal = row[0];
        row[0] = i;
        for (std::size_t j = 1; j <= b.size(); j++) {
            std::size_t above = row[j];
            row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
            diagonal = above;
        }
    }
    return row[b.size()];
}

bool contains(std::span<const std::string_view> names, std::string_view name) noexcept {
    return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

void check_names(const char* const* environment, Complaints& complaints, Complaints& notes) {
    for (; *environment != nullptr; environment++) {
        std::string_view name = *environment;
        if (!name.starts_with("VMA_")) continue;
        name = name.substr(0, name.find('='));
        if (contains(kParameters, name) || contains(kOldNames, name)) continue;
        if (contains(known_elsewhere, name)) {
            notes.push_back(fmt::format("{} is not implemented yet and has no effect", name));
            continue;
        }
        std::string_view nearest;
        std::size_t best = kFarthest + 1;
        for (auto names : {std::span<const std::string_view>(kParameters),
                           std::span<const std::string_view>(known_elsewhere)}) {
            for (std::string_view candidate : names) {
                std::size_t d = distance(name, candidate);
                if (d < best) {
                    best = d;
                    nearest = candidate;
                }
            }
        }
        if (nearest.empty())
            complaints.push_back(fmt::format("{} is not a parameter and has no effect", name));
        else
            complaints.push_back(
                fmt::format("{} is not a parameter and has no effect: is {} meant?", name, nearest));
    }
}

}  // namespace vma::config
