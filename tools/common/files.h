// SPDX-License-Identifier: BSD-2-Clause
// Whole files.
#pragma once

#include <stdio.h>

#include <expected>
#include <string>

namespace tools {

// The contents of a file. The error is an errno value.
std::expected<std::string, int> read_file(const std::string& path);
// Writes all of the text and flushes. False: errno says why.
bool print(const std::string& text, FILE* to = stdout);

}  // namespace tools
