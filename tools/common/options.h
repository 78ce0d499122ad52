// SPDX-License-Identifier: BSD-2-Clause
// What a command line leads to when nothing is left to do: help, the version, or an error.
#pragma once

#include <stdio.h>

#include <string>

namespace tools {

inline constexpr int kUsageError = 2;  // exit status

struct Said {
    int status = 0;
    std::string out, err;
    void print() const {
        fputs(out.c_str(), stdout);
        fputs(err.c_str(), stderr);
    }
};

}  // namespace tools
