// SPDX-License-Identifier: BSD-2-Clause
// The parameter table as text. Needs nothing but the table, so that tools/vma_params does not link the
// library.
#include "libvma/config/params.h"

namespace vma::config {
namespace {

// Markdown takes these characters for its own inside a table.
std::string escaped(std::string_view text) {
    std::string out;
    for (char c : text) {
        if (c == '|' || c == '*' || c == '_' || c == '<') out += '\\';
        out += c;
    }
    return out;
}

}  // namespace

std::vector<ParamInfo> describe() {
    return {
#define VMA_PARAM_INT(member, env, def, min, max, doc) \
    ParamInfo{env, std::to_string(std::int64_t{def}),  \
              std::to_string(std::int64_t{min}) + " to " + std::to_string(std::int64_t{max}), doc},
#define VMA_PARAM_STR(member, env, def, doc) ParamInfo{env, def, "text", doc},
#include "libvma/config/params.def"
#undef VMA_PARAM_INT
#undef VMA_PARAM_STR
    };
}

std::string parameters_markdown() {
    std::string out =
        "<!-- SPDX-License-Identifier: BSD-2-Clause -->\n"
        "<!-- Made by tools/vma_params from libvma/config/params.def: change that file and run the build "
        "target docs. -->\n"
        "# Parameters\n"
        "Environment variables, read once when the program opens its first socket. A number may be decimal "
        "or, with 0x\n"
        "in front, hexadecimal. A value that is no number or out of range is reported in the log, and the "
        "default is used.\n"
        "A VMA_ variable that is not in this table is reported too: as a warning, with the nearest name, if "
        "no release of\n"
        "VMA knows it; otherwise at level debug, since it has no effect here yet.\n"
        "\n"
        "Old names and spellings that are accepted when the present name is not set: "
        "VMA\\_RX\\_POLL\\_OS\\_RATIO and\n"
        "VMA\\_RX\\_SKIP\\_OS (VMA\\_RX\\_UDP\\_POLL\\_OS\\_RATIO), VMA\\_SELECT\\_POLL\\_RATIO "
        "(VMA\\_SELECT\\_POLL\\_OS\\_RATIO),\n"
        "LOG\\_COLORS (VMA\\_LOG\\_COLORS).\n"
        "\n"
        "| Variable | Default | Range | Meaning |\n"
        "|---|---|---|---|\n";
    for (const ParamInfo& row : describe()) {
        std::string fallback = row.default_value.empty() ? "(empty)" : "`" + row.default_value + "`";
        out += "| `" + std::string(row.env) + "` | " + fallback + " | " + row.range + " | " +
               escaped(row.doc) + " |\n";
    }
    return out;
}

}  // namespace vma::config
