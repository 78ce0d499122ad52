// SPDX-License-Identifier: BSD-2-Clause
// VMA_SPEC: names for sets of defaults. Values are texts, as in a variable, so a preset cannot set a value
// that a variable could not.
#include "libvma/config/params.h"

namespace vma::config {
namespace {

constexpr Preset::Value kLatency[] = {
    {"VMA_TX_WRE", "256"},
    {"VMA_TX_WRE_BATCHING", "4"},
    {"VMA_RX_WRE", "256"},
    {"VMA_RX_WRE_BATCHING", "4"},
    {"VMA_RX_POLL", "-1"},
    {"VMA_RX_PREFETCH_BYTES_BEFORE_POLL", "256"},
    {"VMA_SELECT_POLL", "-1"},
    {"VMA_SELECT_POLL_OS_RATIO", "1"},
    {"VMA_SELECT_SKIP_OS", "1"},
    {"VMA_AVOID_SYS_CALLS_ON_TCP_FD", "1"},
    {"VMA_GRO_STREAMS_MAX", "0"},
    {"VMA_CQ_KEEP_QP_FULL", "0"},
    {"VMA_THREAD_MODE", "0"},
    {"VMA_MEM_ALLOC_TYPE", "2"},
    {"VMA_INTERNAL_THREAD_AFFINITY", "0"},
    {"VMA_PROGRESS_ENGINE_INTERVAL", "100"},
    {"VMA_TCP_NODELAY", "1"},
    {"VMA_RING_DEV_MEM_TX", "16384"},
};

// As latency, with these changes.
constexpr Preset::Value kUltraLatency[] = {
    {"VMA_TX_WRE", "256"},
    {"VMA_TX_WRE_BATCHING", "4"},
    {"VMA_TX_SEGS_TCP", "512"},
    {"VMA_TX_BUFS", "512"},
    {"VMA_RX_BUFS", "1024"},
    {"VMA_RX_WRE", "256"},
    {"VMA_RX_WRE_BATCHING", "4"},
    {"VMA_RX_POLL", "-1"},
    {"VMA_RX_UDP_POLL_OS_RATIO", "0"},
    {"VMA_RX_PREFETCH_BYTES_BEFORE_POLL", "256"},
    {"VMA_SELECT_POLL", "-1"},
    {"VMA_SELECT_POLL_OS_RATIO", "0"},
    {"VMA_SELECT_SKIP_OS", "0"},
    {"VMA_AVOID_SYS_CALLS_ON_TCP_FD", "1"},
    {"VMA_GRO_STREAMS_MAX", "0"},
    {"VMA_CQ_KEEP_QP_FULL", "0"},
    {"VMA_THREAD_MODE", "0"},
    {"VMA_MEM_ALLOC_TYPE", "2"},
    {"VMA_INTERNAL_THREAD_AFFINITY", "0"},
    {"VMA_PROGRESS_ENGINE_INTERVAL", "0"},
    {"VMA_TCP_NODELAY", "1"},
    {"VMA_RING_DEV_MEM_TX", "16384"},
};

constexpr Preset::Value kMultiRing[] = {
    {"VMA_MEM_ALLOC_TYPE", "2"},
    {"VMA_RX_POLL", "-1"},
    {"VMA_SELECT_POLL", "-1"},
    {"VMA_RING_ALLOCATION_LOGIC_RX", "20"},
    {"VMA_RING_ALLOCATION_LOGIC_TX", "20"},
    {"VMA_SELECT_POLL_OS_RATIO", "0"},
    {"VMA_SELECT_SKIP_OS", "0"},
    {"VMA_RX_POLL_ON_TX_TCP", "1"},
    {"VMA_TRIGGER_DUMMY_SEND_GETSOCKNAME", "1"},
};

constexpr Preset::Value k7750[] = {
    {"VMA_TX_BUFS", "8192"},
    {"VMA_RX_BUFS", "204800"},
    {"VMA_TRACELEVEL", "warn"},
    {"VMA_STATS_FD_NUM", "1024"},
    {"VMA_INTERNAL_THREAD_AFFINITY", "0x3"},
    {"VMA_RX_POLL", "-1"},
    {"VMA_SELECT_POLL", "-1"},
    {"VMA_SELECT_POLL_OS_RATIO", "0"},
    {"VMA_TCP_3T_RULES", "1"},
    {"VMA_AVOID_SYS_CALLS_ON_TCP_FD", "1"},
    {"VMA_BUFFER_BATCHING_MODE", "0"},
    {"VMA_TCP_CTL_THREAD", "2"},
};

constexpr char kNameOnly[] = "accepted; changes nothing, since it was made for one program's old release";

constexpr Preset kPresets[] = {
    {"none", "0", "all parameters at their defaults", {}},
    {"ultra-latency", "10",
     "one thread that polls for ever and carries UDP or a little TCP: the kernel's side is looked at last",
     kUltraLatency},
    {"latency", "15", "one thread that polls for ever, short queues", kLatency},
    {"29west", "29", kNameOnly, {}},
    {"wombat_fh", "554", kNameOnly, {}},
    {"mcd", "623", kNameOnly, {}},
    {"mcd-irq", "624", kNameOnly, {}},
    {"rti", "784", kNameOnly, {}},
    {"7750", "", "many connections served by polling threads", k7750},
    {"multi_ring_latency", "", "several threads that poll for ever, each with its own ring", kMultiRing},
};

}  // namespace

std::span<const Preset> presets() noexcept { return kPresets; }

const Preset* find_preset(std::string_view name_or_number) noexcept {
    for (const Preset& preset : kPresets)
        if (name_or_number == preset.name || (name_or_number == preset.number && !name_or_number.empty()))
            return &preset;
    return nullptr;
}

}  // namespace vma::config
