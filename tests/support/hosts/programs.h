// SPDX-License-Identifier: BSD-2-Clause
// What tests of whole programs share: which side has the library, files in memory, servers that are several
// processes, and the question whether the library really carried a program's TCP.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "two_hosts.h"

namespace testing_support {

// Which of the two programs is preloaded. The server is on host b, the client on host a.
struct Sides {
    bool server = false, client = false;
};
std::string name_of(Sides sides);  // for the test's name
inline void PrintTo(Sides sides, std::ostream* out) { *out << name_of(sides); }

// A directory in memory, removed with what is in it. Open to other users, for servers that give up root.
class Scratch {
  public:
    Scratch();
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

    std::string path(const std::string& name) const { return (root_ / name).string(); }
    void write(const std::string& name, const std::string& content) const;
    std::string read(const std::string& name) const;
    // A file of `bytes` pseudo-random bytes that depend on `seed`; they do not compress.
    void fill(const std::string& name, std::size_t bytes, std::uint64_t seed = 1) const;
    // Both exist and have the same bytes.
    bool same(const std::string& name, const std::string& other) const;
    Fd open_to_read(const std::string& name) const;
    Fd open_to_write(const std::string& name) const;
    // Everything in files whose names begin so.
    std::string read_all(const std::string& prefix) const;

  private:
    std::filesystem::path root_;
};

// A program that serves, with the processes it started: they are its process group, and end with this object.
class Server {
  public:
    explicit Server(Process process) : process_(std::move(process)) {}
    Server(Server&&) noexcept = default;
    ~Server();

    Process& process() { return process_; }
    // Waits until a TCP socket listens on the port in the program's namespace.
    bool wait_listening(int port, milliseconds limit = milliseconds(10000));
    // Asks it to end by a signal, and waits.
    Exit end(int signal);

  private:
    Process process_;
};

// Did the library carry TCP in a process that wrote this log? Its counters, which stand in the log at level
// debug when the process ends, tell: connections with a flow rule of their own, and frames both ways.
bool tcp_was_offloaded(const std::string& log);

// Fails the test when a program is not installed.
void need(const std::vector<std::string>& programs);

// Two hosts and a scratch directory.
class HostsTest : public ::testing::Test {
  protected:
    void SetUp() override;

    std::unique_ptr<TwoHosts> hosts;
    std::unique_ptr<Scratch> scratch;
};

// Two hosts, a scratch directory, a server and clients on the sides that GetParam() tells.
class ProgramTest : public HostsTest, public ::testing::WithParamInterface<Sides> {
  protected:
    void TearDown() override;

    Server server(std::vector<std::string> argv, RunOptions options = {});
    Process client(std::vector<std::string> argv, RunOptions options = {});
    // Runs a client to its end and expects success; its standard output.
    std::string expect_client(std::vector<std::string> argv, milliseconds limit = milliseconds(30000),
                              RunOptions options = {});

    // Is this a case with the library preloaded to curl, under sanitizers?
    static bool curl_hangs() { return sanitized() && GetParam().client; }

    // The server's connections are accepted by children of the process that listens: those are the kernel's.
    bool server_may_use_kernel_ = false;

    const std::string address = TwoHosts::address(Host::b);  // the server's

  private:
    RunOptions with_log(RunOptions options, bool preload, const std::string& name) const;
};

}  // namespace testing_support
