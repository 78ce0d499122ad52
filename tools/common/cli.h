// SPDX-License-Identifier: BSD-2-Clause
// What the tools' command lines have in common. CLI11 takes ten seconds to compile: few sources include this.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>

#include "tools/common/options.h"

namespace tools {

// A check that adds nothing to the help, where words say the same.
inline CLI::Validator quiet(CLI::Validator validator) { return validator.description(""); }
template <class Number>
CLI::Validator in_range(Number low, Number high) {
    return quiet(CLI::Range(low, high));
}

// The options --help and --version, and --help-all of a program with commands. `column`: where the help's
// explanations begin.
inline void add_usual_flags(CLI::App& app, const std::string& version, std::size_t column,
                            bool has_commands = false) {
    app.get_formatter()->column_width(column);
    app.set_help_flag("-h,--help", "Prints this help and exits");
    if (has_commands) app.set_help_all_flag("--help-all", "Prints the help of all commands and exits");
    app.set_version_flag("-V,--version", version, "Prints the version and exits");
}

// Runs `parse`, which parses by `app` and may throw CLI::ParseError. Returns what is to be printed instead of
// running. An error reads "PROGRAM: reason", then `hint`.
template <class Parse>
Said parse_with(const CLI::App& app, const std::string& version, const char* program, const char* hint,
                Parse&& parse) {
    try {
        parse();
    } catch (const CLI::CallForAllHelp&) {
        return {.out = app.help("", CLI::AppFormatMode::All)};
    } catch (const CLI::CallForHelp&) {
        return {.out = app.help()};
    } catch (const CLI::CallForVersion&) {
        return {.out = version + "\n"};
    } catch (const CLI::ParseError& error) {
        return {.status = kUsageError, .err = fmt::format("{}: {}\n{}\n", program, error.what(), hint)};
    }
    return {};
}

}  // namespace tools
