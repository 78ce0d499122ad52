// SPDX-License-Identifier: BSD-2-Clause
// VMA_LOG_CB_FUNC_PTR: the program's function for log lines, whose address (as printf's %p writes it) comes
// in the environment.
//
// An address from the environment is a strange thing to jump to, so it must be one that this program itself
// has put there, with setenv() before its first socket. An address that the process was started with comes
// from its parent, where it meant something else, and is refused; so is one that is not inside executable
// memory. What is left is a program that names a wrong function of its own, and that could call it as well.
#pragma once

#include <string>
#include <string_view>

#include "libvma/runtime/log.h"

namespace vma::config {

// The function, or null and the reason.
log::Callback log_callback(std::string_view text, std::string& refused);

}  // namespace vma::config
