// SPDX-License-Identifier: BSD-2-Clause
// Programs drawn at random, on the kernel and with the library (tests/parity/random/program): what the
// program saw must be the same, as must what its peer on the other host saw.
//
// A few seeds are cases of their own. For as many as time allows:
//
//   TEST_RANDOM_SECONDS=3600 [TEST_RANDOM_FIRST=1000] random_program_test --gtest_filter=*ForAWhile*
//
// A seed that differs is tried again; when it still differs, the scenario is made shorter by leaving steps
// out, and the shortest that differs is shown, with both transcripts. By hand:
//
//   TEST_RANDOM_FIRST=1234 TEST_RANDOM_SECONDS=1 ...        one seed (and those after it, until a second is
//   over) TEST_RANDOM_STEPS_OF_ONE=40                             steps of each scenario
//   TEST_RANDOM_WITHOUT=fork,jump                           without these steps and events (steps.h)
//   TEST_RANDOM_KERNEL_TWICE=1                              the kernel beside itself: is the scenario's
//   outcome certain? TEST_RANDOM_SKIP=3,17                                   without these steps
//   TEST_RANDOM_GO_ON=1                                     after a difference
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <iostream>
#include <memory>
#include <set>
#include <sstream>

#include "tests/parity/random/program/stream.h"
#include "tests/support/hosts/device.h"
#include "tests/support/hosts/two_hosts.h"

namespace {

using namespace testing_support;

// What is not drawn, or not asked for, because the library is known to differ:
//   shared_set  a child uses an epoll set it inherited, or a set has members that were inherited
const char* const kKnown = "shared_set";

std::string setting(const char* name, const char* otherwise = "") {
    const char* value = getenv(name);
    return value != nullptr ? value : otherwise;
}

struct Outcome {
    Exit subject, peer;
    std::string transcript() const {
        std::string text = subject.out + "-- status " + std::to_string(subject.code) +
                           (subject.timed_out ? " (hangs)" : "") + "\n" + peer.out;
        return text;
    }
    bool sound() const {
        for (const char* fault :
             {"FAULT", "NEVER", "WRONG", "HANG", "LOST", "NOTHING", "NOBODY", "NO datagram", "NOT cancelled"})
            if (transcript().find(fault) != std::string::npos) return false;
        return !subject.timed_out && subject.code < 128;
    }
};

// How the library is set in a seed, so that all that parameters choose between is reached.
std::vector<std::string> environment_of(unsigned long seed) {
    static const std::vector<std::vector<std::string>> kAll = {{},
                                                               {},
                                                               {"VMA_RX_POLL=0", "VMA_SELECT_POLL=0"},
                                                               {"VMA_RX_POLL=-1", "VMA_SELECT_POLL=-1"},
                                                               {"VMA_THREAD_MODE=2"},
                                                               {"VMA_THREAD_MODE=3"},
                                                               {"VMA_INTERNAL_THREAD_ARM_CQ=1"},
                                                               {"VMA_THREAD_MODE=0"}};
    return kAll[seed % kAll.size()];
}

class RandomProgram : public testing::Test {
  protected:
    static void SetUpTestSuite() {
        try {
            hosts_ = std::make_unique<TwoHosts>(Wire{.links = 2});
        } catch (const std::exception& e) {
            why_ = e.what();
        }
    }
    static void TearDownTestSuite() { hosts_.reset(); }
    void SetUp() override { ASSERT_TRUE(hosts_) << why_; }

    struct Scenario {
        unsigned long seed;
        unsigned steps;
        std::set<unsigned> skip;
    };

    Outcome run_once(const Scenario& s, bool library) {
        static int serial = 0;
        const std::string port = std::to_string(10'000 + serial++ % 1000 * 20), seed = std::to_string(s.seed);
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
            throw std::runtime_error("socketpair failed");
        Fd ends[2] = {Fd(pair[0]), Fd(pair[1])};
        std::vector<std::string> argv = {app("random_program"), "subject", seed, port,
                                         std::to_string(s.steps)};
        if (!s.skip.empty()) {
            std::string list;
            for (unsigned step : s.skip) list += (list.empty() ? "" : ",") + std::to_string(step);
            argv.insert(argv.end(), {"--skip", list});
        }
        std::string without = setting("TEST_RANDOM_WITHOUT", kKnown);
        // AddressSanitizer does not follow the unwinding: the frames that are gone stay forbidden, and the
        // end of the thread uses their places. GCC 12's does not guard its allocator against fork: the child
        // may wait for ever.
        if (sanitized()) without += ",cancel,fork";
        if (!without.empty()) argv.insert(argv.end(), {"--without", without});
        std::vector<std::string> env = library ? environment_of(s.seed) : std::vector<std::string>{};
        for (const char* passed : {"TEST_RANDOM_NAMES", "TEST_RANDOM_STAY"})
            if (getenv(passed) != nullptr) env.push_back(std::string(passed) + "=1");
        Process peer = hosts_->run(Host::b, {app("random_program"), "peer", seed, port},
                                   {.preload = library && s.seed % 4 == 3, .fds = {{ends[1].get(), 100}}});
        Process subject =
            hosts_->run(Host::a, argv, {.preload = library, .env = env, .fds = {{ends[0].get(), 100}}});
        ends[0].reset();
        ends[1].reset();
        Outcome r;
        r.subject = subject.wait(milliseconds(70'000));
        r.peer = peer.wait(milliseconds(20'000));
        return r;
    }

    // The device may still be held by the program before.
    Outcome run(const Scenario& s, bool library) {
        for (int attempt = 0;; attempt++) {
            Outcome r = run_once(s, library);
            if (r.subject.err.find("another process holds") == std::string::npos || attempt == 5) return r;
            usleep(20'000);
        }
    }

    bool differs(const Scenario& s, std::string* report = nullptr) {
        const bool twice = getenv("TEST_RANDOM_KERNEL_TWICE") != nullptr;
        const Outcome kernel = run(s, false), library = run(s, !twice);
        if (report != nullptr && !kernel.sound())
            *report = "on the kernel:\n" + kernel.transcript() + kernel.subject.err;
        if (!kernel.sound()) return true;
        if (library.sound() && kernel.transcript() == library.transcript()) return false;
        if (report != nullptr)
            *report = difference(kernel.transcript(), library.transcript()) + kernel.subject.err + "log:\n" +
                      end_of(library.subject.err);
        return true;
    }

    static std::string end_of(const std::string& text) {
        return text.size() < 3000 ? text : text.substr(text.size() - 3000);
    }

    // Both, up to where they part, and a little more.
    static std::string difference(const std::string& kernel, const std::string& library) {
        std::istringstream k(kernel), l(library);
        std::string text, a, b;
        int apart = 0;
        while (apart < 10) {
            const bool more_a = static_cast<bool>(std::getline(k, a)),
                       more_b = static_cast<bool>(std::getline(l, b));
            if (!more_a && !more_b) break;
            if (!more_a) a = "(nothing)";
            if (!more_b) b = "(nothing)";
            if (a == b) {
                text += "  " + a + "\n";
            } else {
                text += "- kernel:  " + a + "\n+ library: " + b + "\n";
                apart++;
            }
        }
        return text;
    }

    // Where the two part: the number of the step.
    unsigned parting(const Scenario& s) {
        const Outcome kernel = run(s, false), library = run(s, true);
        std::istringstream k(kernel.transcript()), l(library.transcript());
        std::string a, b;
        unsigned last = 0;
        while (std::getline(k, a) && std::getline(l, b)) {
            if (atoi(a.c_str()) > 0) last = static_cast<unsigned>(atoi(a.c_str()));
            if (a != b) break;
        }
        return last;
    }

    Scenario shortest(Scenario s) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(90);
        auto in_time = [&] { return std::chrono::steady_clock::now() < end; };
        const unsigned last = parting(s);
        Scenario shorter = s;
        if (last > 0 && last < s.steps) {
            shorter.steps = last;
            if (differs(shorter)) s = shorter;
        }
        for (unsigned piece = std::max(1u, s.steps / 4); in_time(); piece /= 2) {
            for (unsigned from = 1; from <= s.steps && in_time(); from += piece) {
                shorter = s;
                for (unsigned i = from; i < from + piece && i <= s.steps; i++) shorter.skip.insert(i);
                if (shorter.skip.size() != s.skip.size() && differs(shorter)) s = shorter;
            }
            if (piece == 1) break;
        }
        return s;
    }

    // Whether all was well.
    bool try_seed(unsigned long seed, unsigned steps) {
        Scenario s{seed, steps, {}};
        std::istringstream skip(setting("TEST_RANDOM_SKIP"));
        for (std::string part; std::getline(skip, part, ',');)
            s.skip.insert(static_cast<unsigned>(atoi(part.c_str())));
        std::string report;
        if (!differs(s, &report)) return true;
        std::cout << "seed " << seed << " differs\n" << report << std::flush;
        if (getenv("TEST_RANDOM_AS_IT_IS") == nullptr && (differs(s) || differs(s))) {
            s = shortest(s);
            std::string list;
            for (unsigned step : s.skip) list += (list.empty() ? "" : ",") + std::to_string(step);
            std::cout << "shortest: " << s.steps << " steps without " << list << "\n";
            for (int tries = 0; tries < 3 && !differs(s, &report); tries++) continue;
            std::cout << report << std::flush;
        }
        return false;
    }

    static inline std::unique_ptr<TwoHosts> hosts_;
    static inline std::string why_;
};

class RandomSeed : public RandomProgram, public testing::WithParamInterface<unsigned long> {};

TEST_P(RandomSeed, SameAsKernel) { EXPECT_TRUE(try_seed(GetParam(), simulated() ? 60 : 120)); }

INSTANTIATE_TEST_SUITE_P(Seeds, RandomSeed, testing::Range(1ul, 25ul));
// Which have shown faults.
INSTANTIATE_TEST_SUITE_P(Found, RandomSeed, testing::Values(37ul, 63ul, 114ul, 265ul, 277ul, 450ul));

// Two readers of one stream. A call of the first gave what stands before the second's piece and what stands
// behind it; the last byte of the one happens to be the byte before the other.
TEST(RandomProgramTally, ByteThatFitsBesideASeamIsNotReadTwice) {
    using namespace random_program;
    const Stream stream{12345};
    const uint64_t from = 101;
    uint64_t to = 150;
    while (stream.byte(to - 1) != stream.byte(from - 1)) to++;
    const uint64_t end = to + 100;
    std::vector<uint8_t> first(from + end - to), second(to - from);
    stream.fill(first.data(), static_cast<long>(from), 0);
    stream.fill(first.data() + from, static_cast<long>(end - to), to);
    stream.fill(second.data(), static_cast<long>(to - from), from);
    auto one = std::make_unique<SocketCounters>(), two = std::make_unique<SocketCounters>();
    one->reset(), two->reset();
    one->add(stream, first.data(), static_cast<long>(first.size()), false);
    two->add(stream, second.data(), static_cast<long>(second.size()), false);
    EXPECT_EQ(coverage(stream, {one.get(), two.get()}, 0, end), "");
    two->add(stream, second.data(), static_cast<long>(second.size()), false);
    EXPECT_EQ(coverage(stream, {one.get(), two.get()}, 0, end), "bytes twice");
}

TEST_F(RandomProgram, ForAWhile) {
    const int seconds = atoi(setting("TEST_RANDOM_SECONDS", "0").c_str());
    unsigned long seed = strtoul(setting("TEST_RANDOM_FIRST", "1000").c_str(), nullptr, 0), tried = 0,
                  bad = 0;
    const unsigned steps = static_cast<unsigned>(atoi(setting("TEST_RANDOM_STEPS_OF_ONE", "120").c_str()));
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    for (; std::chrono::steady_clock::now() < end; seed++, tried++) {
        if (try_seed(seed, steps)) continue;
        bad++;
        ADD_FAILURE() << "seed " << seed << ", " << steps << " steps";
        if (getenv("TEST_RANDOM_GO_ON") == nullptr) break;
    }
    if (seconds > 0) std::cout << tried << " seeds, " << bad << " of them differ\n";
}

}  // namespace
