// SPDX-License-Identifier: BSD-2-Clause
// Reading the environment. A value is taken whole or not at all: "10k", "" or " 5" is no number, and a number
// outside the range is not bent into it, because a silently different value is what users of such variables
// lose days over.
#include "libvma/config/params.h"

#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <exception>
#include <memory>
#include <optional>
#include <string_view>

#include "libvma/runtime/cpus.h"
#include "libvma/runtime/lock.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/runtime.h"
#include "libvma/runtime/spin.h"

namespace vma::config {
namespace {

using GetEnv = const char* (*)(const char*);

enum class Reading { good, not_a_number, out_of_range };

// [-][0x]digits, all of the text.
Reading read_number(std::string_view text, std::int64_t min, std::int64_t max, std::int64_t& value) noexcept {
    bool negative = text.starts_with('-');
    if (negative) text.remove_prefix(1);
    int base = 10;
    if (text.starts_with("0x") || text.starts_with("0X")) {
        base = 16;
        text.remove_prefix(2);
    }
    if (text.starts_with('-')) return Reading::not_a_number;
    std::int64_t number = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
    if (end != text.data() + text.size() || error == std::errc::invalid_argument)
        return Reading::not_a_number;
    if (error == std::errc::result_out_of_range) return Reading::out_of_range;
    if (negative) number = -number;
    if (number < min || number > max) return Reading::out_of_range;
    value = number;
    return Reading::good;
}

void read_int(GetEnv env, const char* name, std::int64_t min, std::int64_t max, std::int64_t& value,
              Complaints& complaints) {
    const char* text = env(name);
    if (text == nullptr) return;
    const std::int64_t fallback = value;
    switch (read_number(text, min, max, value)) {
        case Reading::good:
            break;
        case Reading::not_a_number:
            complaints.push_back(
                fmt::format("{}=\"{}\" is not a number: the default {} is used", name, text, fallback));
            break;
        case Reading::out_of_range:
            complaints.push_back(fmt::format("{}=\"{}\" is not between {} and {}: the default {} is used",
                                             name, text, min, max, fallback));
            break;
    }
}

void read_str(GetEnv env, const char* name, std::string& value) {
    if (const char* text = env(name)) value = text;
}

// Names of old releases and slips of the manual.
void read_old_names(GetEnv env, Params& params, Complaints& complaints) {
    if (env("VMA_RX_UDP_POLL_OS_RATIO") == nullptr) {
        for (const char* old : {"VMA_RX_POLL_OS_RATIO", "VMA_RX_SKIP_OS"}) {
            if (env(old) == nullptr) continue;
            complaints.push_back(fmt::format("{} is an old name: use VMA_RX_UDP_POLL_OS_RATIO", old));
            read_int(env, old, 0, 1000000, params.rx_udp_poll_os_ratio, complaints);
        }
    }
    if (env("VMA_SELECT_POLL_OS_RATIO") == nullptr)
        read_int(env, "VMA_SELECT_POLL_RATIO", 0, 1000000, params.select_poll_os_ratio, complaints);
    if (env("VMA_CQ_AIM_MAX_PERIOD_USEC") == nullptr)
        read_int(env, "VMA_CQ_AIM_MAX_PERIOD_US", 0, 100000, params.cq_aim_max_period_usec, complaints);
    if (env("VMA_INTERNAL_THREAD_CPUSET") == nullptr)
        read_str(env, "VMA_INTERNAL_THREAD_CPUSSET", params.internal_thread_cpuset);
    if (env("VMA_LOG_COLORS") == nullptr) {
        // The name is not ours alone, so a text that is none of our values is not wrong.
        Complaints ignored;
        read_int(env, "LOG_COLORS", 0, 1, params.log_colors, ignored);
    }
}

void check_words(Params& params, Complaints& complaints) {
    const Params defaults;
    if (!log::parse_level(params.tracelevel)) {
        complaints.push_back(fmt::format("VMA_TRACELEVEL=\"{}\" is not a log level: the default {} is used",
                                         params.tracelevel, defaults.tracelevel));
        params.tracelevel = defaults.tracelevel;
    }
    if (cpu_set_t cpus; params.internal_thread_affinity != "-1" && !parse_cpus(params.internal_thread_affinity, cpus)) {
        complaints.push_back(fmt::format("VMA_INTERNAL_THREAD_AFFINITY=\"{}\" is no set of processors: the default {} is used",
                                         params.internal_thread_affinity, defaults.internal_thread_affinity));
        params.internal_thread_affinity = defaults.internal_thread_affinity;
    }
    if (params.xdp_mode != "auto" && params.xdp_mode != "drv" && params.xdp_mode != "skb") {
        complaints.push_back(
            fmt::format("VMA_XDP_MODE=\"{}\" is none of auto, drv, skb: the default {} is used",
                        params.xdp_mode, defaults.xdp_mode));
        params.xdp_mode = defaults.xdp_mode;
    }
}

}  // namespace

Params read(GetEnv env, Complaints& complaints) {
    Params params;
    read_old_names(env, params, complaints);
#define VMA_PARAM_INT(member, name, def, min, max, doc) \
    read_int(env, name, min, max, params.member, complaints);
#define VMA_PARAM_STR(member, name, def, doc) read_str(env, name, params.member);
#include "libvma/config/params.def"
#undef VMA_PARAM_INT
#undef VMA_PARAM_STR
    if (params.rx_poll == 0) params.rx_poll = 1;
    if (params.select_poll_os_force != 0) {
        if (env("VMA_SELECT_POLL_OS_RATIO") == nullptr) params.select_poll_os_ratio = 1;
        if (env("VMA_SELECT_SKIP_OS") == nullptr) params.select_skip_os = 1;
    }
    if (params.rx_poll < 0 || params.select_poll < 0) params.cq_moderation_enable = 0;
    check_words(params, complaints);
    return params;
}

const Params& get() noexcept {
    // No lock, so that neither fork nor a signal handler can meet one held: threads that come at the same
    // time each read the environment, and the first to finish wins. Never freed, since other threads outlive
    // exit().
    static constinit std::atomic<const Params*> known{nullptr};
    if (const Params* params = known.load(std::memory_order_acquire)) return *params;

    Complaints complaints, notes;
    std::unique_ptr<const Params> mine;
    try {
        mine = std::make_unique<const Params>(
            read([](const char* name) -> const char* { return getenv(name); }, complaints));
        if (environ != nullptr) check_names(environ, complaints, notes);
    } catch (const std::exception&) {  // no memory for some text: go on without it
        if (mine == nullptr) mine.reset(new (std::nothrow) Params());
        if (mine == nullptr) std::terminate();
    }
    const Params* expected = nullptr;
    if (!known.compare_exchange_strong(expected, mine.get(), std::memory_order_acq_rel)) return *expected;
    const Params& params = *mine.release();
    Lock::set_mode(static_cast<LockMode>(params.thread_mode));
    if (params.cpu_usage_stats != 0) PollTime::enable();
    try {
        runtime::set_internal_thread({params.internal_thread_affinity, params.internal_thread_cpuset,
                                      static_cast<unsigned>(params.timer_resolution_msec)});
    } catch (const std::exception&) {  // no memory for some text
    }
    log::start();  // asks get() again, which answers from here on
    for (const std::string& text : complaints) log::warn("{}", text);
    for (const std::string& text : notes) log::debug("{}", text);
    return params;
}

}  // namespace vma::config
