// SPDX-License-Identifier: BSD-2-Clause
// The parameters: VMA_* environment variables, read once at start.
//
// One row of params.def is one parameter: parsing, the range check, the default, its documentation and its
// test come from that row. A value that cannot be read or is out of range is reported with the variable's
// name and replaced by the default.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace vma::config {

struct Params {
#define VMA_PARAM_INT(member, env, def, min, max, doc) std::int64_t member = def;
#define VMA_PARAM_STR(member, env, def, doc) std::string member = def;
#include "libvma/config/params.def"
#undef VMA_PARAM_INT
#undef VMA_PARAM_STR
};

// A line for the log about one variable: which, its text, and what is used instead.
using Complaints = std::vector<std::string>;

// Reads all parameters through `getenv_fn` (tests pass their own). Never throws on bad values. Old and
// misspelt names that the manual or earlier releases document count where the present name is not set:
// VMA_RX_POLL_OS_RATIO and VMA_RX_SKIP_OS (with a complaint), VMA_SELECT_POLL_RATIO, LOG_COLORS.
Params read(const char* (*getenv_fn)(const char*), Complaints& complaints);

// The process's parameters; read from the environment on first use. That also starts the log, and complaints
// go there as warnings.
const Params& get() noexcept;

// Variables of `environment` (as environ(7), ends with a null pointer) that begin with VMA_ and are no
// parameter. Such as the manual or another release of VMA knows go to `notes`, all others, most likely
// spelling mistakes, to `complaints`.
void check_names(const char* const* environment, Complaints& complaints, Complaints& notes);

// name, default, range and text of every parameter, as docs/parameters.md prints them (tools/vma_params).
struct ParamInfo {
    const char* env;
    std::string default_value;
    std::string range;
    const char* doc;
};
std::vector<ParamInfo> describe();

// docs/parameters.md.
std::string parameters_markdown();

}  // namespace vma::config
