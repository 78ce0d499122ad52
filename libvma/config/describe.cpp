// SPDX-License-Identifier: BSD-2-Clause
// Prints the parameter table for people: the start-up print, docs/parameters.md, docs/man/libvma.7. Needs
// nothing but the table, so that tools/vma_params does not link the library.
#include <fmt/format.h>

#include <algorithm>

#include "libvma/config/params.h"

namespace vma::config {
namespace {

std::string range_of(const Parameter& row) {
    switch (row.type) {
        case Type::toggle:
            return "0, 1";
        case Type::text:
            return "text";
        case Type::file:
            return "text with %d";
        case Type::number:
        case Type::bytes: {
            const std::string unit = *row.unit == '\0' ? "" : fmt::format(" {}", row.unit);
            return fmt::format("{} to {}{}", row.min, row.max, unit);
        }
        case Type::choice:
            break;
    }
    std::string out;
    for (char c : std::string_view(row.choices))
        if (c == '|')
            out += ", ";
        else
            out += c == '=' ? ' ' : c;
    return out;
}

std::string standing_of(const Parameter& row) {
    switch (row.standing.state) {
        case State::no_effect:
            return fmt::format("no effect: {}", row.standing.why);
        case State::not_yet:
            return fmt::format("not yet: {}", row.standing.why);
        case State::works:
            break;
    }
    return "works";
}

// Escapes the characters that Markdown interprets inside a table.
std::string escaped(std::string_view text) {
    std::string out;
    for (char c : text) {
        if (c == '|' || c == '*' || c == '_' || c == '<') out += '\\';
        out += c;
    }
    return out;
}

// Escapes the characters that roff interprets; a line must not begin with a point or an apostrophe.
std::string roff(std::string_view text) {
    std::string out;
    for (char c : text) {
        if (c == '\\')
            out += "\\e";
        else if (c == '-')
            out += "\\-";
        else if (c == '\'')
            out += "\\(aq";
        else if (c == '.' && out.empty())
            out += "\\&.";
        else
            out += c;
    }
    return out;
}

std::string standard_of(const Parameter& row) { return value_text(row, Params()); }

std::string preset_text(const Preset& preset) {
    std::string out;
    for (const auto& [env, value] : preset.values)
        out += fmt::format("{}{}={}", out.empty() ? "" : ", ", env, value);
    return out;
}

}  // namespace

std::vector<std::string> parameter_lines(const Params& params, bool all) {
    std::vector<std::string> lines;
    for (std::size_t i = 0; i < kParameters; i++) {
        const Parameter& row = table()[i];
        const bool always = row.text == &Params::tracelevel || row.text == &Params::log_file;
        const bool standard =
            params.origin[i] == Origin::standard || value_text(row, params) == standard_of(row);
        if (!all && !always && standard) continue;
        std::string line = fmt::format("{:<30} {:<26} [{}]", row.label, shown_text(row, params), row.env);
        if (!standard && row.standing.state != State::works) line += fmt::format(" {}", standing_of(row));
        lines.push_back(std::move(line));
    }
    return lines;
}

std::string parameters_markdown() {
    std::string out =
        "<!-- SPDX-License-Identifier: BSD-2-Clause -->\n"
        "<!-- Made by tools/vma_params from libvma/config/params.def: change that file and run the build "
        "target docs. -->\n"
        "# Parameters\n"
        "Environment variables, read once when the program opens its first socket. A number may be decimal "
        "or, with 0x in front,\n"
        "hexadecimal; a number of bytes may end in k, m or g. A choice is given by its number or its name. "
        "In a text with %d the first\n"
        "%d becomes the process id. A value that is none, or out of range, is reported in the log, and the "
        "default is used. A variable\n"
        "that begins with VMA\\_ and is not in these tables is reported, too, with the nearest name.\n"
        "\n"
        "State: *works*; *no effect*, on the devices this release knows, with the reason; *not yet*, with "
        "what it waits for. The start-up\n"
        "print says so as well when such a parameter is set. Defaults are those of today's libvma where the "
        "manual (6.6.4) names others,\n"
        "and where they differ from both, the text says why.\n";
    const char* section = "";
    for (const Parameter& row : table()) {
        if (std::string_view(section) != row.section) {
            section = row.section;
            out += fmt::format(
                "\n## {}\n| Variable | Default | Range | State | Meaning |\n|---|---|---|---|---|\n",
                section);
        }
        const std::string standard = standard_of(row);
        out += fmt::format("| `{}` | {} | {} | {} | {} |\n", row.env,
                           standard.empty() ? "(empty)" : "`" + standard + "`", escaped(range_of(row)),
                           escaped(standing_of(row)), escaped(row.help));
    }
    out +=
        "\n## Old names\n"
        "Accepted where the present name is not set.\n"
        "\n| Old | Now |\n|---|---|\n";
    for (const OldName& name : old_names()) out += fmt::format("| `{}` | `{}` |\n", name.old, name.now);
    out +=
        "\n## Presets (VMA\\_SPEC)\n"
        "Defaults that a name or number of `VMA_SPEC` changes.\n"
        "\n| Name | Number | For | Sets |\n|---|---|---|---|\n";
    for (const Preset& preset : presets())
        out += fmt::format("| `{}` | {} | {} | {} |\n", preset.name, preset.number, escaped(preset.help),
                           escaped(preset_text(preset)));
    return out;
}

std::string parameters_man() {
    std::string out =
        ".\\\" SPDX-License-Identifier: BSD-2-Clause\n"
        ".\\\" Made by tools/vma_params from libvma/config/params.def: change that file and run the build "
        "target docs.\n"
        ".TH LIBVMA 7 \"\" \"libvma " VMA_VERSION
        "\" \"libvma\"\n"
        ".SH NAME\n"
        "libvma \\- socket acceleration for unmodified programs\n"
        ".SH SYNOPSIS\n"
        ".B LD_PRELOAD=libvma.so\n"
        ".RI [ VARIABLE = value \" ...] \" program\n"
        ".SH DESCRIPTION\n"
        "The library serves UDP and TCP sockets of a program in user space, over the queues of a network "
        "device. What it does not\n"
        "serve goes to the kernel. Which sockets it serves is said in\n"
        ".IR /etc/libvma.conf ;\n"
        "how, in the variables below. They are read once, when the program opens its first socket.\n"
        ".PP\n"
        "A number may be decimal or, with 0x in front, hexadecimal; a number of bytes may end in k, m or g. "
        "A choice is given by its\n"
        "number or its name. In a text with %d the first %d becomes the process id. A value that is none, or "
        "out of range, is reported\n"
        "in the log, and the default is used.\n"
        ".SH ENVIRONMENT\n";
    const char* section = "";
    for (const Parameter& row : table()) {
        if (std::string_view(section) != row.section) {
            section = row.section;
            out += fmt::format(".SS {}\n", roff(section));
        }
        const std::string standard = standard_of(row);
        out += fmt::format(".TP\n.B {}\n{}\n(default: {}; range: {}", row.env, roff(row.help),
                           standard.empty() ? "empty" : roff(standard), roff(range_of(row)));
        out +=
            row.standing.state == State::works ? ")\n" : fmt::format(")\n.br\n{}.\n", roff(standing_of(row)));
    }
    out += ".SH OLD NAMES\nAccepted where the present name is not set.\n";
    for (const OldName& name : old_names()) out += fmt::format(".TP\n.B {}\nis\n.B {}\n", name.old, name.now);
    out += ".SH PRESETS\nDefaults that a name or number of\n.B VMA_SPEC\nchanges.\n";
    for (const Preset& preset : presets()) {
        out += fmt::format(".TP\n.BR {}{}\n{}.\n", preset.name,
                           *preset.number == '\0' ? "" : fmt::format(" \" ({})\"", preset.number),
                           roff(preset.help));
        if (!preset.values.empty()) out += fmt::format(".br\n{}\n", roff(preset_text(preset)));
    }
    out +=
        ".SH FILES\n"
        ".TP\n"
        ".I /etc/libvma.conf\n"
        "Rules: which sockets are offloaded.\n"
        ".SH SEE ALSO\n"
        ".BR vma_stats (8),\n"
        ".BR ld.so (8)\n";
    return out;
}

}  // namespace vma::config
