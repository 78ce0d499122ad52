// SPDX-License-Identifier: BSD-2-Clause
// Runs a script against a program.
#pragma once

#include <string>
#include <vector>

#include "calls.h"
#include "script.h"
#include "wire.h"

namespace scripts {

struct Outcome {
    bool passed = false;
    std::string transcript;  // what happened, in order; its last line says what differs
    std::vector<Recorded> frames;
};

// `who`: the script's number with the program, which chooses addresses and ports, too.
Outcome run(const Script& script, std::size_t who, Program& program, RawWire& wire);

// The peer's address of the script with this number.
std::string peer_address(std::size_t who);

}  // namespace scripts
