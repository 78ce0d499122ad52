// SPDX-License-Identifier: BSD-2-Clause
// Commands to a watched process (libvma/stats/control.h): log level, details, zeroed counters, a dump of
// sockets to its log.
#pragma once

#include <chrono>
#include <expected>
#include <string>

#include "libvma/stats/control.h"
#include "tools/vma_stats/attach.h"

namespace vma_stats {

struct Instruction {
    vma::stats::Command command;
    int value = 0;  // level, details, or descriptor
    int level = 0;  // of a dump's lines
};

// Sends the command and waits for the answer: what the process did, or why it did not.
std::expected<std::string, std::string> command(const Attachment& process, const Instruction& what,
                                                std::chrono::milliseconds patience = std::chrono::seconds(3));

}  // namespace vma_stats
