// SPDX-License-Identifier: BSD-2-Clause
// Drives tests/apps/agent.cpp: a program on one of the two hosts that sends and receives as told.
#pragma once

#include <string>

#include "two_hosts.h"

namespace testing_support {

class Agent {
  public:
    // `launcher` is put before the command line, to run the agent with fewer privileges for example.
    Agent(const TwoHosts& hosts, Host host, RunOptions options = {}, std::vector<std::string> launcher = {});

    // Sends a command and waits for its answer; "no answer" when the program died or the time is over.
    std::string ask(const std::string& command, milliseconds limit = milliseconds(20000));
    // Sends a command only; answer() collects. Commands run in order.
    void post(const std::string& command);
    std::string answer(milliseconds limit = milliseconds(20000));

    // Value of `key=` in an answer, -1 when absent.
    static long value(const std::string& answer, const std::string& key);

    Process& process() { return process_; }
    // Our end of the control socket; another program may use it while we do not.
    int control() const { return control_.get(); }
    // Ends the program as a well-behaved user would: end of commands, exit.
    Exit finish();

  private:
    Fd control_;
    Process process_;
};

}  // namespace testing_support
