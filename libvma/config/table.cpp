// SPDX-License-Identifier: BSD-2-Clause
// The rows of params.def, and values as text. Needs nothing but the table, so that tools/vma_params does not
// link the library.
#include <algorithm>

#include "libvma/config/params.h"

namespace vma::config {
namespace {

constexpr Standing works{State::works, ""};
constexpr Standing no_effect(const char* why) { return {State::no_effect, why}; }
constexpr Standing not_yet(const char* what) { return {State::not_yet, what}; }

// Titles are rows without a variable; rows() copies a title into the rows that follow.
consteval std::array<Parameter, kParameters> rows() {
    const Parameter lines[] = {
#define VMA_SECTION(title) Parameter{.section = title, .env = nullptr},
#define VMA_NUMBER(member, env, label, def, min, max, unit, standing, help)      \
    Parameter{"",  env, label, Type::number, &Params::member, nullptr, def, min, \
              max, "",  unit,  "",           standing,        help},
#define VMA_BYTES(member, env, label, def, min, max, standing, help)              \
    Parameter{"",  env, label,   Type::bytes, &Params::member, nullptr, def, min, \
              max, "",  "bytes", "",          standing,        help},
#define VMA_SWITCH(member, env, label, def, standing, help) \
    Parameter{"", env, label, Type::toggle, &Params::member, nullptr, def, 0, 1, "", "", "", standing, help},
#define VMA_CHOICE(member, env, label, def, choices, standing, help)        \
    Parameter{"", env, label, Type::choice, &Params::member, nullptr,  def, \
              0,  0,   "",    "",           choices,         standing, help},
#define VMA_TEXT(member, env, label, def, standing, help) \
    Parameter{"", env, label, Type::text, nullptr, &Params::member, 0, 0, 0, def, "", "", standing, help},
#define VMA_FILE(member, env, label, def, standing, help) \
    Parameter{"", env, label, Type::file, nullptr, &Params::member, 0, 0, 0, def, "", "", standing, help},
#include "libvma/config/params.def"
    };
    std::array<Parameter, kParameters> result{};
    const char* section = "";
    std::size_t n = 0;
    for (const Parameter& line : lines) {
        if (line.env == nullptr) {
            section = line.section;
        } else {
            result[n] = line;
            result[n++].section = section;
        }
    }
    return result;
}

constexpr std::array<Parameter, kParameters> kTable = rows();

constexpr OldName kOldNames[] = {
    {"VMA_RX_POLL_OS_RATIO", "VMA_RX_UDP_POLL_OS_RATIO", true},
    {"VMA_RX_SKIP_OS", "VMA_RX_UDP_POLL_OS_RATIO", true},
    {"VMA_SELECT_POLL_RATIO", "VMA_SELECT_POLL_OS_RATIO", false},
    {"VMA_CQ_AIM_MAX_PERIOD_US", "VMA_CQ_AIM_MAX_PERIOD_USEC", false},
    {"VMA_CQ_DRAIN_WCE_MAX", "VMA_PROGRESS_ENGINE_WCE_MAX", false},
    {"VMA_INTERNAL_THREAD_CPUSSET", "VMA_INTERNAL_THREAD_CPUSET", false},
    {"VMA_MAX_INLINE", "VMA_TX_MAX_INLINE", true},
    {"VMA_HUGETBL", "VMA_HUGETLB", false},
    {"LOG_COLORS", "VMA_LOG_COLORS", false},
};

// The name of a choice, empty for a choice without a name.
std::string_view choice_name(std::string_view choices, std::int64_t value) {
    const std::string number = std::to_string(value);
    while (!choices.empty()) {
        std::string_view one = choices.substr(0, choices.find('|'));
        choices.remove_prefix(std::min(one.size() + 1, choices.size()));
        if (one.starts_with(number) && one.size() > number.size() && one[number.size()] == '=')
            return one.substr(number.size() + 1);
    }
    return {};
}

}  // namespace

const char* origin_name(Origin origin) noexcept {
    switch (origin) {
        case Origin::environment:
            return "environment";
        case Origin::preset:
            return "preset";
        case Origin::derived:
            return "derived";
        case Origin::standard:
            break;
    }
    return "default";
}

std::span<const Parameter, kParameters> table() noexcept { return kTable; }
std::span<const OldName> old_names() noexcept { return kOldNames; }

const Parameter* find(std::string_view env) noexcept {
    for (const Parameter& row : kTable)
        if (env == row.env) return &row;
    return nullptr;
}

std::string value_text(const Parameter& row, const Params& params) {
    return row.text != nullptr ? params.*row.text : std::to_string(params.*row.number);
}

std::string shown_text(const Parameter& row, const Params& params) {
    std::string value = value_text(row, params);
    if (row.type == Type::toggle) return params.*row.number != 0 ? "Enabled" : "Disabled";
    if (row.type == Type::choice)
        if (std::string_view name = choice_name(row.choices, params.*row.number); !name.empty())
            value.append(" (").append(name).append(")");
    return value;
}

std::vector<ParamValue> values(const Params& params) {
    std::vector<ParamValue> all;
    all.reserve(kParameters);
    for (std::size_t i = 0; i < kParameters; i++)
        all.push_back({kTable[i].env, value_text(kTable[i], params), origin_name(params.origin[i])});
    return all;
}

}  // namespace vma::config
