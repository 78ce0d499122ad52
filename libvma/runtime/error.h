// SPDX-License-Identifier: BSD-2-Clause
// What a control-path function returns when it can fail.
#pragma once

#include <errno.h>
#include <string.h>

#include <expected>
#include <string>

namespace vma {

// An errno value, and a sentence for the log that tells what was tried on what.
struct Error {
    int code = 0;
    std::string what;
};

template <class T>
using Result = std::expected<T, Error>;

// The errno value of a failed system call, with what was tried.
inline std::unexpected<Error> fail(int code, std::string what) {
    return std::unexpected(Error{code, std::move(what)});
}

}  // namespace vma
