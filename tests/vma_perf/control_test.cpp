// SPDX-License-Identifier: BSD-2-Clause
// The control connection: versions that match and that do not, strangers, and what goes wrong later.
#include "tools/vma_perf/control.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <nlohmann/json.hpp>
#include <thread>

namespace vma_perf {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

struct Pair {
    Pair() {
        int ends[2];
        EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
        ours = tools::Fd(ends[0]);
        theirs = tools::Fd(ends[1]);
    }
    void say(const std::string& bytes) const {
        EXPECT_EQ(write(theirs.get(), bytes.data(), bytes.size()), ssize_t(bytes.size()));
    }
    tools::Fd ours, theirs;
};

std::string framed(const std::string& text) {
    const std::uint32_t length = htonl(static_cast<std::uint32_t>(text.size()));
    return std::string(reinterpret_cast<const char*>(&length), 4) + text;
}

Clock::time_point shortly() { return Clock::now() + 200ms; }

template <class Do>
void expect_failure(Status status, const std::string& text, Do&& what) {
    try {
        what();
        ADD_FAILURE() << text;
    } catch (const Failure& failure) {
        EXPECT_EQ(failure.status(), status) << failure.what();
        EXPECT_THAT(failure.what(), HasSubstr(text));
    }
}

TEST(PerfControl, BothSidesOfTheSameVersion) {
    Pair pair;
    Control a(std::move(pair.ours), "a"), b(std::move(pair.theirs), "b");
    std::thread other([&] { b.hello(Clock::now() + 5s, nullptr); });
    a.hello(Clock::now() + 5s, nullptr);
    other.join();
    EXPECT_FALSE(a.look());
    b.send({{"x", std::string(100000, 'y')}});
    EXPECT_EQ(a.expect("x", Clock::now() + 5s, nullptr).get<std::string>().size(), 100000u);
    b.send({{"n", 1}});
    b.send({{"n", 2}});
    EXPECT_EQ(a.receive(shortly(), nullptr)["n"], 1);
    EXPECT_EQ(a.look().value()["n"], 2);
    b.send(error_message(Failure(kUnsupported, "no such thing")));
    expect_failure(kUnsupported, "a: no such thing", [&] { a.receive(shortly(), nullptr); });
    b.send({{"other", 1}});
    expect_failure(kVersion, "where \"x\" was expected", [&] { a.expect("x", shortly(), nullptr); });
    expect_failure(kPeerEnded, "a does not answer", [&] { a.receive(shortly(), nullptr); });
    const std::atomic<bool> stop{true};
    expect_failure(kInterrupted, "interrupted", [&] { a.receive(Clock::now() + 5s, &stop); });
}

TEST(PerfControl, OtherVersionsAndStrangers) {
    const auto hello_after = [](const std::string& bytes, Status status, const std::string& text) {
        Pair pair;
        pair.say(bytes);
        Control control(std::move(pair.ours), "host");
        expect_failure(status, text, [&] { control.hello(shortly(), nullptr); });
    };
    hello_after(kMagic + framed(R"({"protocol":2,"version":"9.9"})"), kVersion,
                "host is vma_perf 9.9 with protocol 2, this is");
    hello_after(kMagic + framed(R"({"version":"9.9"})"), kVersion, "protocol ?");
    hello_after(kMagic + framed(R"({"protocol":1,"version":"1","byte_order":"big"})"), kVersion,
                "another byte order");
    hello_after("SSH-2.0-OpenSSH\r\n", kVersion, "host is no vma_perf");
    hello_after("HT", kVersion, "host is no vma_perf");
    hello_after("", kVersion, "it says nothing");
    hello_after("VMAP", kVersion, "it says nothing");
    hello_after(kMagic + framed("[1]"), kVersion, "no JSON object");
    hello_after(kMagic + framed("{"), kVersion, "no JSON object");
    hello_after(std::string(kMagic) + "\xff\xff\xff\xff", kVersion, "bytes: no vma_perf does that");
}

TEST(PerfControl, TheOtherSideEnds) {
    Pair pair;
    pair.theirs = tools::Fd();
    Control control(std::move(pair.ours), "host");
    expect_failure(kPeerEnded, "host ended", [&] { control.hello(shortly(), nullptr); });
    Pair half;
    half.say(std::string(kMagic) + std::string("\0\0\0\x20{", 5));
    half.theirs = tools::Fd();
    Control other(std::move(half.ours), "host");
    expect_failure(kPeerEnded, "host", [&] { other.hello(shortly(), nullptr); });
}

}  // namespace
}  // namespace vma_perf
