// SPDX-License-Identifier: BSD-2-Clause
// See programs.h.
#include "programs.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace testing_support {

namespace fs = std::filesystem;

namespace {

constexpr const char* kServerLog = "log-server-";
constexpr const char* kClientLog = "log-client-";

bool listens(pid_t pid, int port) {
    char wanted[8];
    snprintf(wanted, sizeof wanted, ":%04X", static_cast<unsigned>(port));
    for (const char* table : {"/net/tcp", "/net/tcp6"}) {
        std::ifstream in("/proc/" + std::to_string(pid) + table);
        for (std::string line; std::getline(in, line);) {
            std::istringstream words(line);
            std::string slot, local, remote, state;
            words >> slot >> local >> remote >> state;
            if (state == "0A" && local.ends_with(wanted)) return true;
        }
    }
    return false;
}

// The number after " name " in a line, 0 without it.
long long counter(const std::string& line, const std::string& name) {
    auto at = line.find(" " + name + " ");
    return at == line.npos ? 0 : atoll(line.c_str() + at + name.size() + 2);
}

}  // namespace

std::string name_of(Sides sides) {
    if (sides.server && sides.client) return "Both";
    return sides.server ? "Server" : sides.client ? "Client" : "Kernel";
}

Scratch::Scratch() {
    char name[] = "/dev/shm/vma-test-XXXXXX";
    if (mkdtemp(name) == nullptr) throw std::runtime_error("no directory in /dev/shm");
    chmod(name, 01777);
    root_ = name;
}

Scratch::~Scratch() {
    std::error_code error;
    fs::remove_all(root_, error);
}

void Scratch::write(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
}

std::string Scratch::read(const std::string& name) const {
    std::ifstream in(path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

void Scratch::fill(const std::string& name, std::size_t bytes, std::uint64_t seed) const {
    std::ofstream out(path(name), std::ios::binary);
    std::vector<std::uint64_t> block(1 << 16);
    std::uint64_t x = seed * 0x9e3779b97f4a7c15ULL | 1;
    while (bytes > 0) {
        for (auto& word : block) {  // xorshift64
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            word = x;
        }
        const std::size_t count = std::min(bytes, block.size() * sizeof block[0]);
        out.write(reinterpret_cast<const char*>(block.data()), static_cast<std::streamsize>(count));
        bytes -= count;
    }
    if (!out.flush()) throw std::runtime_error("/dev/shm is full");
}

bool Scratch::same(const std::string& name, const std::string& other) const {
    bool ok = false;
    tool({"cmp", "-s", path(name), path(other)}, &ok);
    return ok;
}

Fd Scratch::open_to_read(const std::string& name) const {
    return Fd(open(path(name).c_str(), O_RDONLY | O_CLOEXEC));
}

Fd Scratch::open_to_write(const std::string& name) const {
    return Fd(open(path(name).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
}

std::string Scratch::read_all(const std::string& prefix) const {
    std::string text;
    for (const auto& entry : fs::directory_iterator(root_)) {
        std::string name = entry.path().filename();
        if (name.starts_with(prefix)) text += read(name);
    }
    return text;
}

Server::~Server() {
    if (process_.running()) ::kill(-process_.pid(), SIGKILL);
}

bool Server::wait_listening(int port, milliseconds limit) {
    auto end = std::chrono::steady_clock::now() + limit * patience();
    while (!listens(process_.pid(), port)) {
        if (!process_.running() || std::chrono::steady_clock::now() > end) return false;
        std::this_thread::sleep_for(milliseconds(2));
    }
    return true;
}

Exit Server::end(int signal) {
    process_.kill(signal);
    return process_.wait();
}

bool tcp_was_offloaded(const std::string& log) {
    std::istringstream in(log);
    for (std::string line; std::getline(in, line);)
        if (line.find("counters of ") != line.npos && counter(line, "tcp_connections") > 0 &&
            counter(line, "rx_frames") > 0 && counter(line, "tx_frames") > 0)
            return true;
    return false;
}

void HostsTest::SetUp() {
    try {
        hosts = std::make_unique<TwoHosts>();
        scratch = std::make_unique<Scratch>();
    } catch (const std::exception& e) {
        FAIL() << e.what();
    }
}

void ProgramTest::TearDown() {
    if (scratch == nullptr || IsSkipped()) return;
    struct {
        bool preloaded, must_offload;
        const char* side;
        const char* log;
    } const programs[] = {{GetParam().server, !server_may_use_kernel_, "server", kServerLog},
                          {GetParam().client, true, "client", kClientLog}};
    for (const auto& program : programs) {
        if (!program.preloaded) continue;
        const std::string log = scratch->read_all(program.log);
        EXPECT_FALSE(log.empty()) << "the library was not loaded into the " << program.side;
        const bool offloaded = tcp_was_offloaded(log);
        RecordProperty(std::string(program.side) + "_offloaded", offloaded ? "yes" : "no");
        if (program.must_offload) {
            EXPECT_TRUE(offloaded) << "the " << program.side << "'s TCP went through the kernel\n" << log;
        }
    }
}

void need(const std::vector<std::string>& programs) {
    for (const auto& program : programs) {
        bool found = false;
        tool({"which", program}, &found);
        ASSERT_TRUE(found) << program << " is not installed (tools/setup installs what the tests need)";
    }
}

RunOptions ProgramTest::with_log(RunOptions options, bool preload, const std::string& name) const {
    options.preload = preload;
    if (preload) {
        options.env.push_back("VMA_TRACELEVEL=debug");
        options.env.push_back("VMA_LOG_FILE=" + scratch->path(name + "%d"));
    }
    return options;
}

Server ProgramTest::server(std::vector<std::string> argv, RunOptions options) {
    return Server(
        hosts->run(Host::b, std::move(argv), with_log(std::move(options), GetParam().server, kServerLog)));
}

Process ProgramTest::client(std::vector<std::string> argv, RunOptions options) {
    return hosts->run(Host::a, std::move(argv), with_log(std::move(options), GetParam().client, kClientLog));
}

std::string ProgramTest::expect_client(std::vector<std::string> argv, milliseconds limit,
                                       RunOptions options) {
    const std::string what = argv[0];
    Exit end = client(std::move(argv), std::move(options)).wait(limit);
    EXPECT_FALSE(end.timed_out) << what << " did not end\n" << end.out << end.err;
    EXPECT_TRUE(end.ok()) << what << " ended with " << end.code << "\n" << end.out << end.err;
    return end.out;
}

}  // namespace testing_support
