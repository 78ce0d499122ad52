// SPDX-License-Identifier: BSD-2-Clause
// Packet scripts (docs/testing.md#packet-scripts): a raw peer sends and expects TCP segments, between calls
// of the program. Each script must pass on the kernel and with the library. Those that a run has chosen go
// at once, since they wait most of the time: with the kernel and with the library on two hosts each, and
// further hosts for scripts that want other settings.
//
//   SCRIPT_VERBOSE=1        prints what happened
//   SCRIPT_KERNEL_ONLY=N    runs each N times on the kernel alone: a new script must pass that first
#include <errno.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>

#include "engine/run.h"
#include "tests/support/hosts/on_host.h"
#include "tests/support/hosts/plain_test.h"

namespace {

using namespace scripts;
using namespace testing_support;

// At once, on a pair of hosts.
constexpr std::size_t kTogether = 100;

struct Both {
    std::vector<Outcome> kernel;
    Outcome library;
};

// What the program's host needs for a script to mean the same on each machine.
std::vector<std::string> settings(const std::vector<std::string>& own) {
    std::vector<std::string> all = {
        "net.ipv4.tcp_no_metrics_save=1",       "net.ipv4.tcp_rmem=4096 131072 6291456",
        "net.ipv4.tcp_wmem=4096 16384 4194304", "net.ipv4.tcp_ecn=2",
        "net.ipv4.tcp_autocorking=0",           "net.ipv4.tcp_fastopen=0"};
    all.insert(all.end(), own.begin(), own.end());
    return all;
}

// The peer is to see the segments, and not what a device would cut into them.
void without_super_frames() {
    const Fd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    for (unsigned command : {ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO}) {
        ethtool_value value{command, 0};
        ifreq request{};
        strcpy(request.ifr_name, TwoHosts::interface().c_str());
        request.ifr_data = reinterpret_cast<char*>(&value);
        if (ioctl(fd.get(), SIOCETHTOOL, &request) != 0)
            throw std::runtime_error(std::string("ethtool: ") + strerror(errno));
    }
}

// A pair of hosts, and the scripts that run on it.
class Ground {
  public:
    Ground(const std::vector<const Script*>& scripts, bool library) : scripts_(scripts), library_(library) {
        hosts_.sysctl(Host::b, settings(scripts[0]->sysctls));
        std::vector<std::string> neighbours;
        for (std::size_t i = 0; i < scripts.size(); i++)
            neighbours.push_back("neigh add " + peer_address(i) + " lladdr 02:00:5e:10:66:66 dev " +
                                 TwoHosts::interface() + " nud permanent");
        hosts_.ip_batch(Host::b, neighbours);
        for (Host host : {Host::a, Host::b}) {
            const On there(hosts_, host);
            without_super_frames();
        }
        wire_ = std::make_unique<RawWire>(hosts_);
        program_ = std::make_unique<Program>(hosts_, library, scripts.size());
    }
    void begin() {
        outcomes_.resize(scripts_.size());
        for (std::size_t i = 0; i < scripts_.size(); i++)
            threads_.emplace_back([this, i] {
                outcomes_[i] = {scripts_[i], run(*scripts_[i], i, *program_, *wire_)};
            });
    }
    // What speaks against the run as a whole; empty when nothing does.
    std::string end() {
        for (auto& thread : threads_) thread.join();
        long allowed = 0;
        for (const Script* script : scripts_) allowed += script->kernel_segments;
        const long carried = program_->end();
        log_ = program_->log();
        const std::string who = library_ ? "library: " : "kernel: ";
        if (carried < 0) return who + "the program did not end well";
        if (library_ && carried > allowed)
            return who + "the kernel carried " + std::to_string(carried) +
                   " segments; expected are at most " + std::to_string(allowed);
        if (!library_ && carried == 0) return "the kernel's counter counts nothing";
        return "";
    }
    const std::string& log() const { return log_; }
    bool library() const { return library_; }
    std::vector<std::pair<const Script*, Outcome>>& outcomes() { return outcomes_; }

  private:
    const std::vector<const Script*> scripts_;
    const bool library_;
    TwoHosts hosts_;
    std::unique_ptr<RawWire> wire_;
    std::unique_ptr<Program> program_;
    std::vector<std::thread> threads_;
    std::vector<std::pair<const Script*, Outcome>> outcomes_;
    std::string log_;
};

const std::vector<Script>& scripts_there() {
    static const std::vector<Script> all = [] {
        try {
            return all_scripts(VMA_SOURCE_DIR "/tests/scripts");
        } catch (const std::exception& e) {
            std::cerr << e.what() << "\n";
            exit(1);
        }
    }();
    return all;
}

class PacketScripts : public testing::TestWithParam<const Script*> {
  protected:
    static void SetUpTestSuite() {
        try {
            run_chosen();
        } catch (const std::exception& e) {
            why_ = e.what();
        }
    }

    static void run_chosen();
    // Waits for the scripts, and keeps what they brought.
    static void end(Ground& ground);
    static inline std::map<const Script*, Both> outcomes_;
    static inline std::string why_;  // what went wrong for all
};

// The chosen scripts, by the settings that they want; never too many together.
std::vector<std::vector<const Script*>> chosen() {
    std::map<std::vector<std::string>, std::vector<const Script*>> by_settings;
    const auto& suite = *testing::UnitTest::GetInstance()->current_test_suite();
    for (int i = 0; i < suite.total_test_count(); i++) {
        const testing::TestInfo& test = *suite.GetTestInfo(i);
        if (!test.should_run()) continue;
        const std::string name = test.name();
        for (const Script& script : scripts_there())
            if (name.ends_with("/" + script.id())) by_settings[script.sysctls].push_back(&script);
    }
    std::vector<std::vector<const Script*>> groups;
    for (const auto& [settings, all] : by_settings)
        for (std::size_t at = 0; at < all.size(); at += kTogether)
            groups.emplace_back(
                all.begin() + static_cast<std::ptrdiff_t>(at),
                all.begin() + static_cast<std::ptrdiff_t>(std::min(all.size(), at + kTogether)));
    return groups;
}

void PacketScripts::run_chosen() {
    const char* often = getenv("SCRIPT_KERNEL_ONLY");
    const auto groups = chosen();
    for (int i = 0; i < (often != nullptr ? std::max(1, atoi(often)) : 1); i++) {
        std::vector<std::unique_ptr<Ground>> grounds;
        for (const auto& group : groups)
            for (bool library : {false, true})
                if (!library || often == nullptr) grounds.push_back(std::make_unique<Ground>(group, library));
        for (auto& ground : grounds) ground->begin();
        for (auto& ground : grounds) end(*ground);
    }
}

void PacketScripts::end(Ground& ground) {
    if (const std::string wrong = ground.end(); !wrong.empty()) why_ += wrong + "\n" + ground.log();
    for (auto& [script, outcome] : ground.outcomes()) {
        if (ground.library())
            outcomes_[script].library = std::move(outcome);
        else
            outcomes_[script].kernel.push_back(std::move(outcome));
    }
}

void show(const Script& script, const char* who, const Outcome& outcome) {
    if (getenv("SCRIPT_VERBOSE") != nullptr)
        std::cout << script.id() << ", " << who << ":\n" << outcome.transcript;
}

// Says what differs, and keeps a capture.
void expect_passed(const Script& script, const std::string& who, const Outcome& outcome) {
    if (outcome.passed) return;
    const std::string directory = std::string(VMA_BUILD) + "/test-results/scripts";
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    const std::string capture = directory + "/" + script.id() + "." + who + ".pcap";
    write_capture(capture, outcome.frames);
    ADD_FAILURE() << script.id() << " does not pass with the " << who << ":\n"
                  << outcome.transcript << "The capture is " << capture;
}

TEST_P(PacketScripts, SameAsKernel) {
    // Once: it concerns no script more than others.
    EXPECT_EQ(std::exchange(why_, ""), "");
    const Script& script = *GetParam();
    const Both& both = outcomes_[&script];
    ASSERT_FALSE(both.kernel.empty()) << "the script did not run";
    for (const Outcome& outcome : both.kernel) {
        show(script, "kernel", outcome);
        expect_passed(script, "kernel", outcome);
    }
    if (getenv("SCRIPT_KERNEL_ONLY") != nullptr) return;
    show(script, "library", both.library);
    if (script.differs.empty())
        expect_passed(script, "library", both.library);
    else if (!script.differs.starts_with("now and then"))
        EXPECT_FALSE(both.library.passed)
            << "The library passes a script that says \"differs: " << script.differs
            << "\". Take that line out.";
}

std::vector<const Script*> pointers() {
    std::vector<const Script*> all;
    for (const Script& script : scripts_there()) all.push_back(&script);
    return all;
}

INSTANTIATE_TEST_SUITE_P(All, PacketScripts, testing::ValuesIn(pointers()),
                         [](const auto& info) { return info.param->id(); });

}  // namespace
