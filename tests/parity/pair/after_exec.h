// SPDX-License-Identifier: BSD-2-Clause
// The part of the process cases that runs after exec.
#pragma once

namespace parity::tcp {

// `tcp_parity --exec WHAT FD`: what an executed program does with the connection it inherited.
int after_exec(int argc, char** argv);

}  // namespace parity::tcp
