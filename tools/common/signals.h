// SPDX-License-Identifier: BSD-2-Clause
// Signals that ask a tool to end.
#pragma once

#include <signal.h>

namespace tools {

inline constexpr int kEndSignals[] = {SIGINT, SIGTERM, SIGHUP};

// Installs the action unless the signal is ignored: nohup and background jobs of old shells ask for that.
// False: the signal stays ignored.
inline bool handle_unless_ignored(int signal, const struct sigaction& action) noexcept {
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    return before.sa_handler != SIG_IGN && sigaction(signal, &action, nullptr) == 0;
}

}  // namespace tools
