// SPDX-License-Identifier: BSD-2-Clause
// The parameters: VMA_* environment variables, read once at start.
//
// One row of params.def is one parameter: parsing, the range check, the default, the start-up print, its
// documentation and its test come from that row. A value that is unreadable or out of range is reported with
// the variable's name and replaced by the default. VMA_SPEC names a preset, which changes defaults.
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

// Where a parameter's value comes from. derived: the value follows from another parameter that was set.
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

// What a parameter does in this release.
enum class State : std::uint8_t { works, no_effect, not_yet };
struct Standing {
    State state;
    const char* why;  // no_effect: the reason; not_yet: the missing feature
};

// toggle: 0 or 1. bytes: a number that may end in k, m or g (1024s). choice: one of a list, by number or
// name. file: a text whose first %d means the process id (see with_pid).
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

// Old and misspelt names of the manual and of earlier releases. A name counts where the present one is not
// set.
struct OldName {
    const char* old;
    const char* now;
    bool complain;  // the log reports the old name
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

// Lines for the log, each about one variable: its name, its text, and the value used instead.
using Complaints = std::vector<std::string>;

// Reads all parameters through `getenv_fn` (tests pass their own). Never throws on bad values.
Params read(const char* (*getenv_fn)(const char*), Complaints& complaints);

namespace internal {
inline constinit std::atomic<const Params*> g_known{nullptr};
const Params& read_process() noexcept;
}  // namespace internal

// The process's parameters, read from the environment on first use. The first use also starts the log, which
// gets the complaints as warnings.
inline const Params& get() noexcept {
    const Params* params = internal::g_known.load(std::memory_order_acquire);
    return __builtin_expect(params != nullptr, 1) ? *params : internal::read_process();
}

// Writes the start-up print (manual section 4.2), once for a process and its children, when the program makes
// the first socket that may be offloaded.
void print_start() noexcept;

// A parameter of the process as text: the value as a user would set it, and its origin.
struct ParamValue {
    const char* name;
    std::string value;
    const char* origin;
};
std::vector<ParamValue> values(const Params& params = get());

// The value of a row as a user would set it, and as the start-up print shows it ("Disabled", "0 (Ring per
// interface)").
std::string value_text(const Parameter& row, const Params& params);
std::string shown_text(const Parameter& row, const Params& params);

// `text` with its first %d replaced by the calling process's id. Parameters of type file need it on every
// use, because a forked child has another id.
std::string with_pid(std::string_view text);

// Checks `environment` (as environ(7), ends with a null pointer) for variables that begin with VMA_ and are
// no parameter. They are most likely spelling mistakes, so `complaints` gets them with the nearest name.
void check_names(const char* const* environment, Complaints& complaints);

// The lines of the start-up print: all parameters, or only those that differ from their default (and the two
// that are always shown).
std::vector<std::string> parameter_lines(const Params& params, bool all);

// docs/parameters.md and docs/man/libvma.7.
std::string parameters_markdown();
std::string parameters_man();

}  // namespace vma::config
