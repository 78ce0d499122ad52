// SPDX-License-Identifier: BSD-2-Clause
// Reads the environment. A value counts as a whole or not at all: "10k", "" or " 5" is no number. A number
// outside the range is not clamped, because users lose days over a value that differs silently.
#include "libvma/config/params.h"

#include <limits.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/cpus.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/pid_name.h"

namespace vma::config {
namespace {

using GetEnv = const char* (*)(const char*);

enum class Reading { good, not_a_number, out_of_range };

// Reads [-][0x]digits, which must be all of the text.
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

// The same, with an optional k, m or g at the end.
Reading read_bytes(std::string_view text, std::int64_t min, std::int64_t max, std::int64_t& value) noexcept {
    int shift = 0;
    switch (text.empty() ? '\0' : text.back() | 0x20) {
        case 'k':
            shift = 10;
            break;
        case 'm':
            shift = 20;
            break;
        case 'g':
            shift = 30;
            break;
        default:
            break;
    }
    if (shift == 0) return read_number(text, min, max, value);
    text.remove_suffix(1);
    std::int64_t number = 0;
    constexpr std::int64_t kMost = INT64_MAX >> 30;
    if (Reading reading = read_number(text, -kMost, kMost, number); reading != Reading::good) return reading;
    number *= std::int64_t{1} << shift;
    if (number < min || number > max) return Reading::out_of_range;
    value = number;
    return Reading::good;
}

bool same_word(std::string_view a, std::string_view b) noexcept {
    return std::ranges::equal(a, b, [](char x, char y) {
        auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; };
        return lower(x) == lower(y);
    });
}

// Reads one choice of "0=Name|1=Other", by number or name.
bool read_choice(std::string_view text, std::string_view choices, std::int64_t& value) noexcept {
    std::int64_t number = 0;
    const bool numeric = read_number(text, INT32_MIN, INT32_MAX, number) == Reading::good;
    while (!choices.empty()) {
        std::string_view one = choices.substr(0, choices.find('|'));
        choices.remove_prefix(std::min(one.size() + 1, choices.size()));
        const std::size_t equals = std::min(one.find('='), one.size());
        std::int64_t here = 0;
        read_number(one.substr(0, equals), INT32_MIN, INT32_MAX, here);
        const std::string_view name = one.substr(std::min(equals + 1, one.size()));
        if (numeric ? number == here : !name.empty() && same_word(text, name)) {
            value = here;
            return true;
        }
    }
    return false;
}

// What is wrong with a text that must have a form; empty if the text is valid. Texts that other layers read
// are checked here, so that the program's start finds a mistake, not the first use of the value.
std::string_view fault_of(const Parameter& row, std::string_view text) noexcept {
    if (row.text == &Params::tracelevel && !log::parse_level(text)) return "is not a log level";
    if (row.text == &Params::internal_thread_affinity && text != "-1")
        if (cpu_set_t cpus; !parse_cpus(text, cpus)) return "is no set of processors";
    if (row.text == &Params::xdp_mode && text != "auto" && text != "drv" && text != "skb" && text != "tc")
        return "is none of auto, drv, skb, tc";
    if (row.text == &Params::spec && find_preset(text) == nullptr) return "is not a preset";
    return {};
}

// Takes `text` of the variable `name` as the value of the row. Returns false, with a complaint, if the text
// is no valid value.
bool take(const Parameter& row, const char* name, std::string_view text, Params& params,
          Complaints& complaints) {
    std::string wrong;
    if (row.text != nullptr) {
        wrong = fault_of(row, text);
        if (wrong.empty()) params.*row.text = text;
    } else if (row.type == Type::choice) {
        if (!read_choice(text, row.choices, params.*row.number))
            wrong = fmt::format("is none of {}", row.choices);
    } else {
        auto read = row.type == Type::bytes ? read_bytes : read_number;
        switch (read(text, row.min, row.max, params.*row.number)) {
            case Reading::good:
                break;
            case Reading::not_a_number:
                wrong = "is not a number";
                break;
            case Reading::out_of_range:
                wrong = fmt::format("is not between {} and {}", row.min, row.max);
                break;
        }
    }
    if (wrong.empty()) return true;
    complaints.push_back(
        fmt::format("{}=\"{}\" {}: the default {} is used", name, text, wrong, value_text(row, params)));
    return false;
}

std::size_t index_of(const Parameter& row) noexcept {
    return static_cast<std::size_t>(&row - table().data());
}

void apply_preset(Params& params, Complaints& complaints) {
    for (const auto& [env, value] : find_preset(params.spec)->values) {
        const Parameter& row = *find(env);
        if (take(row, env, value, params, complaints)) params.origin[index_of(row)] = Origin::preset;
    }
}

void read_old_names(GetEnv env, Params& params, Complaints& complaints) {
    for (const OldName& name : old_names()) {
        const char* text = env(name.old);
        if (text == nullptr || env(name.now) != nullptr) continue;
        if (name.complain) complaints.push_back(fmt::format("{} is an old name: use {}", name.old, name.now));
        const Parameter& row = *find(name.now);
        // A name that other software uses, too, may hold a text that is no value of this library. That is no
        // mistake.
        Complaints ignored;
        const bool ours = std::string_view(name.old).starts_with("VMA_");
        if (take(row, name.old, text, params, ours ? complaints : ignored))
            params.origin[index_of(row)] = Origin::environment;
    }
}

// Sets a parameter that follows from others, unless the environment has set it.
void derive(Params& params, std::int64_t Params::*member, std::int64_t value) {
    for (std::size_t i = 0; i < kParameters; i++) {
        if (table()[i].number != member || params.*member == value) continue;
        params.*member = value;
        params.origin[i] = Origin::derived;
    }
}

}  // namespace

Params read(GetEnv env, Complaints& complaints) {
    Params params;
    const Parameter& spec = *find("VMA_SPEC");
    if (const char* text = env(spec.env); text != nullptr && take(spec, spec.env, text, params, complaints)) {
        params.origin[index_of(spec)] = Origin::environment;
        apply_preset(params, complaints);
    }
    read_old_names(env, params, complaints);
    for (const Parameter& row : table()) {
        const char* text = &row == &spec ? nullptr : env(row.env);
        if (text != nullptr && take(row, row.env, text, params, complaints))
            params.origin[index_of(row)] = Origin::environment;
    }
    if (params.rx_poll == 0) params.rx_poll = 1;
    if (params.select_poll_os_force != 0) {
        if (env("VMA_SELECT_POLL_OS_RATIO") == nullptr) derive(params, &Params::select_poll_os_ratio, 1);
        if (env("VMA_SELECT_SKIP_OS") == nullptr) derive(params, &Params::select_skip_os, 1);
    }
    if (log::parse_level(params.tracelevel) >= log::Level::debug && params.log_details < 2)
        derive(params, &Params::log_details, 2);
    if (params.rx_poll < 0 || params.select_poll < 0) derive(params, &Params::cq_moderation_enable, 0);
    return params;
}

std::string with_pid(std::string_view text) {
    char out[PATH_MAX];
    return expand_pid(text, os::raw_syscall(SYS_getpid), out, sizeof out) ? out : std::string(text);
}

}  // namespace vma::config
