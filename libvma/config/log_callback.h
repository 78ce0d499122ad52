// SPDX-License-Identifier: BSD-2-Clause
// VMA_LOG_CB_FUNC_PTR: the program's function for log lines, whose address (as printf's %p writes it) comes
// in the environment.
//
// A jump to an address from the environment needs care. So the address must be one that this program itself
// has put there, with setenv() before its first socket. An address that the process was started with comes
// from its parent, where it meant something else, and is refused. An address outside executable memory is
// refused, too. A program can still name a wrong function of its own, but it could also call that function
// itself.
#pragma once

#include <string>
#include <string_view>

#include "libvma/runtime/log.h"

namespace vma::config {

// The function, or null and the reason.
log::Callback log_callback(std::string_view text, std::string& refused);

}  // namespace vma::config
