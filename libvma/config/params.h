// SPDX-License-Identifier: BSD-2-Clause
// The parameters: VMA_* environment variables, read once at start.
//
// One row of params.def is one parameter: parsing, the range check, the default, the start-up print, its
// documentation and its test come from that row. A value that cannot be read or is out of range is reported
// with the variable's name and replaced by the default. VMA_SPEC names a preset, which changes defaults.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace vma::config {

// Where a parameter's value comes from. derived: it follows from another parameter that was set.
enum class Origin : std::uint8_t { standard, environment, preset, derived };
const char* origin_name(Origin origin) noexcept;  // "default", "environment", "preset", "derived"

#define VMA_SECTION(title)
#define VMA_NUMBER(member, ...) +1
#define VMA_BYTES(member, ...) +1
#define VMA_SWITCH(member, ...) +1
#define VMA_CHOICE(member, ...) +1
#define VMA_TEXT(member, ...) +1
#define VMA_FILE(member, ...) +1
inline constexpr std::size_t kParameters = 0
#include "libvma/config/params.def"
    ;

struct Params {
#define VMA_SECTION(title)
#define VMA_NUMBER(member, env, label, def, ...) std::int64_t member = def;
#define VMA_BYTES VMA_NUMBER
#define VMA_SWITCH VMA_NUMBER
#define VMA_CHOICE VMA_NUMBER
#define VMA_TEXT(member, env, label, def, ...) std::string member = def;
#define VMA_FILE VMA_TEXT
#include "libvma/config/params.def"
    std::array<Origin, kParameters> origin{};  // in the table's order
};

// What a parameter is worth in this release.
enum class State : std::uint8_t { works, no_effect, not_yet };
struct Standing {
    State state;
    const char* why;  // no_effect: the reason; not_yet: what it waits for
};

// toggle: 0 or 1. bytes: a number that may end in k, m or g (1024s). choice: one of a list, by number or
// name. file: a text whose first %d stands for the process id (see with_pid).
enum class Type : std::uint8_t { number, bytes, toggle, choice, text, file };

// A row of the table.
struct Parameter {
    const char* section;
    const char* env;
    const char* label;  // in the start-up print
    Type type;
    std::int64_t Params::*number;  // of number, bytes, toggle, choice
    std::string Params::*text;     // of text, file
    std::int64_t standard, min, max;
    const char* standard_text;
    const char* unit;
    const char* choices;  // "0=Name|1=Other"
    Standing standing;
    const char* help;
};
std::span<const Parameter, kParameters> table() noexcept;
const Parameter* find(std::string_view env) noexcept;  // a row by its variable, null if there is none

// Old and misspelt names of the manual and of earlier releases. They count where the present name is not set.
struct OldName {
    const char* old;
    const char* now;
    bool complain;  // whether the log says that the name is old
};
std::span<const OldName> old_names() noexcept;

// Presets (VMA_SPEC).
struct Preset {
    const char* name;
    const char* number;  // other name; may be empty
    const char* help;
    struct Value {
        const char* env;
        const char* value;
    };
    std::span<const Value> values;
};
std::span<const Preset> presets() noexcept;
const Preset* find_preset(std::string_view name_or_number) noexcept;

// A line for the log about one variable: which, its text, and what is used instead.
using Complaints = std::vector<std::string>;

// Reads all parameters through `getenv_fn` (tests pass their own). Never throws on bad values.
Params read(const char* (*getenv_fn)(const char*), Complaints& complaints);

namespace internal {
inline constinit std::atomic<const Params*> g_known{nullptr};
const Params& read_process() noexcept;
}  // namespace internal

// The process's parameters; read from the environment on first use. That also starts the log, and complaints
// go there as warnings.
inline const Params& get() noexcept {
    const Params* params = internal::g_known.load(std::memory_order_acquire);
    return __builtin_expect(params != nullptr, 1) ? *params : internal::read_process();
}

// The start-up print (manual section 4.2), once for a process and its children: when the first socket that
// may be offloaded is made.
void print_start() noexcept;

// A parameter of the process as text: the value as one would set it, and where it comes from.
struct ParamValue {
    const char* name;
    std::string value;
    const char* origin;
};
std::vector<ParamValue> values(const Params& params = get());

// The value of a row as one would set it, and as the start-up print shows it ("Disabled", "0 (Ring per
// interface)").
std::string value_text(const Parameter& row, const Params& params);
std::string shown_text(const Parameter& row, const Params& params);

// `text` with its first %d replaced by the calling process's id. For parameters of type file, when they are
// used: a forked child has another id.
std::string with_pid(std::string_view text);

// Variables of `environment` (as environ(7), ends with a null pointer) that begin with VMA_ and are no
// parameter, most likely spelling mistakes, go to `complaints` with the nearest name.
void check_names(const char* const* environment, Complaints& complaints);

// The lines of the start-up print: each parameter, or only those that are not at their default (and two that
// always are shown).
std::vector<std::string> parameter_lines(const Params& params, bool all);

// docs/parameters.md and docs/man/libvma.7.
std::string parameters_markdown();
std::string parameters_man();

}  // namespace vma::config
