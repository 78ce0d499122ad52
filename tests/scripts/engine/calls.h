// SPDX-License-Identifier: BSD-2-Clause
// The program under test (tests/scripts/program), seen from a script: calls by name, answers as text.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/support/hosts/two_hosts.h"

namespace scripts {

// One program serves many scripts, each by a socket of its own. Over AF_XDP one process holds an interface.
class Program {
  public:
    Program(const testing_support::TwoHosts& hosts, bool with_library, std::size_t scripts);
    // The answer of script number `who`'s call; "no answer" when none comes.
    std::string ask(std::size_t who, const std::string& call);
    // Ends the program. Segments that its host's kernel carried while it ran; -1: it did not report them.
    long end();
    std::string log() const { return process_.err(); }
    bool running() { return process_.running(); }

  private:
    std::vector<testing_support::Fd> ends_;
    testing_support::Process process_;
};

// Is `answer` what "= 0", "!= 0", ">= 5", "<= 5" or "= any" says?
bool as_wanted(const std::string& want, const std::string& answer);

}  // namespace scripts
