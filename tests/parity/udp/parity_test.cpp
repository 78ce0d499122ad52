// SPDX-License-Identifier: BSD-2-Clause
// The kernel is the reference: each case of tests/parity/udp runs without the library and with it, and the
// transcripts must be equal. Each case has moreover a limit of datagrams through the kernel, seen in its UDP
// counters; otherwise falling back for everything would pass.
#include <gtest/gtest.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <memory>
#include <sstream>

#include "tests/parity/compare/kernel_report.h"
#include "tests/support/hosts/agent.h"
#include "tests/support/hosts/device.h"

namespace {

using namespace testing_support;

struct CaseName {
    std::string theme, name;
    long kernel_limit;  // datagrams
};
void PrintTo(const CaseName& c, std::ostream* out) { *out << c.theme << "." << c.name; }

std::vector<CaseName> list_cases() {
    std::istringstream list(tool({app("parity"), "--list"}));
    std::vector<CaseName> cases;
    std::string theme, name;
    long limit = 0;
    while (list >> theme >> name >> limit) cases.push_back({theme, name, limit});
    return cases;
}

struct Outcome {
    Exit exit;
    long kernel_datagrams = -1;
};

class Parity : public testing::TestWithParam<CaseName> {
  protected:
    static void SetUpTestSuite() {
        try {
            hosts_ = std::make_unique<TwoHosts>(
                Wire{.links = 2, .second_address = true, .known_neighbours = true});
            kernel_agent_ = std::make_unique<Agent>(*hosts_, Host::b);
        } catch (const std::exception& e) {
            why_ = e.what();
        }
    }
    static void TearDownTestSuite() {
        kernel_agent_.reset();
        library_agent_.reset();
        hosts_.reset();
    }
    void SetUp() override { ASSERT_TRUE(hosts_ && kernel_agent_) << why_; }

    // Made when first needed, because its host must be free of XDP for the kernel's own runs no longer than
    // necessary.
    static Agent& agent(bool library) {
        if (!library) return *kernel_agent_;
        if (!library_agent_)
            library_agent_ = std::make_unique<Agent>(*hosts_, Host::b, RunOptions{.preload = true});
        return *library_agent_;
    }

    static milliseconds limit() {
        const char* seconds = getenv("PARITY_SECONDS");
        return milliseconds(1000 * (seconds != nullptr ? atol(seconds) : 20));
    }
    static Outcome run(bool library, Agent& agent, std::vector<std::string> env = {}) {
        const KernelReport report;
        RunOptions options{.preload = library,
                           .env = std::move(env),
                           .fds = {{agent.control(), 100}, {report.fd(), KernelReport::kNumber}}};
        Process p = hosts_->run(Host::a, {app("parity"), GetParam().theme + "." + GetParam().name}, options);
        Outcome r{p.wait(limit())};
        agent.ask("reset");  // both agents live on one host: leave no port taken
        r.kernel_datagrams = report.packets();
        return r;
    }

    static void compare(const char* what, const Outcome& kernel, const Outcome& library) {
        SCOPED_TRACE(what);
        EXPECT_FALSE(library.exit.timed_out) << "the program hangs";
        EXPECT_EQ(kernel.exit.code, library.exit.code);
        if (kernel.exit.out != library.exit.out)
            ADD_FAILURE() << difference(kernel.exit.out, library.exit.out);
        expect_offloaded(library.kernel_datagrams, GetParam().kernel_limit);
        if (testing::Test::HasFailure()) {
            std::string log = library.exit.err;
            if (log.size() > 3000) log = log.substr(log.size() - 3000);
            std::cout << "log of the library:\n" << log << "\n";
        }
    }

  private:
    static std::string difference(const std::string& kernel, const std::string& library) {
        std::istringstream k(kernel), l(library);
        std::string text, a, b;
        int shown = 0;
        for (int line = 1; shown < 12; line++) {
            bool more_k = static_cast<bool>(std::getline(k, a)),
                 more_l = static_cast<bool>(std::getline(l, b));
            if (!more_k && !more_l) break;
            if (!more_k) a = "(nothing)";
            if (!more_l) b = "(nothing)";
            if (a == b) continue;
            text += "line " + std::to_string(line) + "\n  kernel:  " + a + "\n  library: " + b + "\n";
            shown++;
        }
        return "transcripts differ\n" + text;
    }

    static inline std::unique_ptr<TwoHosts> hosts_;
    static inline std::unique_ptr<Agent> kernel_agent_, library_agent_;
    static inline std::string why_;
};

// The library's waiting calls have two phases. By default a case meets both; these themes are worth a run
// that spins only.
bool worth_spinning(const std::string& theme) {
    return theme == "signal" || theme == "handler" || theme == "thread";
}

TEST_P(Parity, SameAsKernel) {
    if (sanitized() && GetParam().theme == std::string("thread") &&
        GetParam().name == std::string("cancellation"))
        GTEST_SKIP() << "AddressSanitizer does not follow the unwinding of pthread_cancel";
    Outcome kernel = run(false, agent(false));
    ASSERT_FALSE(kernel.exit.timed_out) << "the case hangs on the kernel:\n"
                                        << kernel.exit.out << kernel.exit.err;
    ASSERT_EQ(kernel.exit.code, 0) << kernel.exit.out << kernel.exit.err;
    if (getenv("PARITY_KERNEL_ONLY") != nullptr) {  // for checking that a new case is deterministic
        Outcome again = run(false, agent(false));
        EXPECT_EQ(kernel.exit.out, again.exit.out);
        std::cout << kernel.exit.out;
        return;
    }
    // An adapter differs below the ring only, and sanitizers see on both sides what they see on one.
    const bool once = simulated() || sanitized();
    if (!once) compare("library here, kernel there", kernel, run(true, agent(false)));
    compare("library on both sides", kernel, run(true, agent(true)));
    if (!once && worth_spinning(GetParam().theme))
        compare("spinning for ever", kernel,
                run(true, agent(true), {"VMA_RX_POLL=-1", "VMA_SELECT_POLL=-1"}));
}

INSTANTIATE_TEST_SUITE_P(Udp, Parity, testing::ValuesIn(list_cases()),
                         [](const auto& info) { return info.param.theme + "_" + info.param.name; });

}  // namespace
