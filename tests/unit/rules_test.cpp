// SPDX-License-Identifier: BSD-2-Clause
// libvma.conf: what each line means, and that no line, however wrong, means something else.
#include "libvma/config/rules.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "libvma/runtime/log.h"
#include "tests/unit/child.h"

namespace {

using namespace vma::config;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr Transport kVma = Transport::vma, kOs = Transport::os;
constexpr const char* kNoId = "VMA_DEFAULT_APPLICATION_ID";

Endpoint at(const char* addr, unsigned port) {
    return {inet_addr(addr), htons(static_cast<std::uint16_t>(port))};
}

struct Parsed {
    Rules rules;
    Complaints complaints;
    Transport operator()(Role role, Endpoint first) const { return rules.match(role, first, nullptr).transport; }
    Transport operator()(Role role, Endpoint first, Endpoint second) const {
        return rules.match(role, first, &second).transport;
    }
};

Parsed parse(std::string_view text, std::string_view program = "prog", std::string_view id = kNoId) {
    Parsed parsed;
    parsed.rules = Rules::parse(text, program, id, parsed.complaints);
    return parsed;
}

TEST(Rules, NothingMeansVma) {
    for (const char* text : {"", "\n\n", "   \n\t\n", "# only a comment", "application-id * *\n"}) {
        Parsed p = parse(text);
        EXPECT_THAT(p.complaints, IsEmpty()) << text;
        EXPECT_EQ(p(Role::tcp_server, at("198.18.0.1", 80)), kVma);
        EXPECT_FALSE(p.rules.all_os(Role::tcp_server));
    }
}

TEST(Rules, ManualExample) {
    const char* text =
        "application-id tcp-lat B1\n"
        "use vma tcp_client 192.168.1.0/24:*:*:*\n"
        "use os tcp_server *:5001\n";
    Parsed p = parse(text, "tcp-lat", "B1");
    EXPECT_THAT(p.complaints, IsEmpty());
    EXPECT_EQ(p(Role::tcp_client, at("192.168.1.7", 1), at("198.18.0.1", 2)), kVma);
    EXPECT_EQ(p(Role::tcp_client, at("10.0.0.1", 1), at("198.18.0.1", 2)), kVma);
    EXPECT_EQ(p(Role::tcp_server, at("198.18.0.1", 5001)), kOs);
    EXPECT_EQ(p(Role::tcp_server, at("0.0.0.0", 5001)), kOs);
    EXPECT_EQ(p(Role::tcp_server, at("198.18.0.1", 5002)), kVma);
    EXPECT_EQ(p(Role::udp_receiver, at("198.18.0.1", 5001)), kVma);

    EXPECT_EQ(parse(text, "tcp-lat", "B2")(Role::tcp_server, at("198.18.0.1", 5001)), kVma);
    EXPECT_EQ(parse(text, "tcp-lat")(Role::tcp_server, at("198.18.0.1", 5001)), kVma);
    EXPECT_EQ(parse(text, "tcp-lat", "*")(Role::tcp_server, at("198.18.0.1", 5001)), kOs);
    EXPECT_EQ(parse(text, "other", "B1")(Role::tcp_server, at("198.18.0.1", 5001)), kVma);
}

TEST(Rules, ProgramPatternsOfTheManual) {
    auto os = [](const char* pattern, const char* program) {
        std::string text = std::string("application-id ") + pattern + " *\nuse os udp_sender *:*\n";
        return parse(text, program)(Role::udp_sender, at("198.18.0.1", 1)) == kOs;
    };
    EXPECT_TRUE(os("db2*", "db2"));
    EXPECT_TRUE(os("db2*", "db2sysc"));
    EXPECT_FALSE(os("db2*", "mydb2"));
    EXPECT_TRUE(os("t?cp", "ttcp"));
    EXPECT_FALSE(os("t?cp", "tcp"));
    EXPECT_TRUE(os("*", ""));
}

TEST(Rules, InstalledFile) {
    auto file =
        std::filesystem::path(__FILE__).parent_path().parent_path().parent_path() / "config" / "libvma.conf";
    std::ifstream in(file);
    ASSERT_TRUE(in) << file;
    std::ostringstream text;
    text << in.rdbuf();
    Parsed p = parse(text.str());
    EXPECT_THAT(p.complaints, IsEmpty());
    EXPECT_EQ(p(Role::udp_connect, at("198.18.0.1", 53), at("198.18.0.2", 4000)), kOs);
    EXPECT_EQ(p(Role::udp_connect, at("198.18.0.1", 54), at("198.18.0.2", 4000)), kVma);
    EXPECT_EQ(p(Role::udp_sender, at("198.18.0.1", 53)), kVma);
    for (Role role :
         {Role::tcp_server, Role::tcp_client, Role::udp_sender, Role::udp_receiver, Role::udp_connect})
        EXPECT_FALSE(p.rules.all_os(role));
    // The examples in its comments must be right as well.
    std::string examples;
    std::istringstream lines(text.str());
    for (std::string line; std::getline(lines, line);)
        if (line.starts_with("#     application-id ") || line.starts_with("#     use "))
            examples += line.substr(1) + "\n";
    Parsed e = parse(examples, "feed_handler", "live");
    EXPECT_THAT(e.complaints, IsEmpty());
    EXPECT_EQ(e(Role::udp_receiver, at("224.0.1.129", 320)), kOs);
    EXPECT_EQ(e(Role::udp_receiver, at("224.0.1.130", 320)), kVma);
    EXPECT_EQ(e(Role::tcp_client, at("192.0.2.9", 1)), kVma);
    EXPECT_EQ(e(Role::tcp_client, at("198.18.0.1", 1)), kOs);
}

TEST(Rules, FirstMatchInABlock) {
    Parsed p = parse(
        "use vma udp_sender 198.18.0.0/16:1000-2000\n"
        "use os udp_sender 198.18.0.0/15:*\n"
        "use vma udp_sender *:*\n");
    EXPECT_THAT(p.complaints, IsEmpty());
    EXPECT_EQ(p(Role::udp_sender, at("198.18.3.4", 1000)), kVma);
    EXPECT_EQ(p(Role::udp_sender, at("198.18.3.4", 2000)), kVma);
    EXPECT_EQ(p(Role::udp_sender, at("198.18.3.4", 999)), kOs);
    EXPECT_EQ(p(Role::udp_sender, at("198.18.3.4", 2001)), kOs);
    EXPECT_EQ(p(Role::udp_sender, at("198.19.3.4", 1500)), kOs);
    EXPECT_EQ(p(Role::udp_sender, at("198.20.3.4", 1500)), kVma);
}

TEST(Rules, FirstBlockDecidesAlone) {
    const char* text =
        "application-id prog *\n"
        "use os tcp_server *:80\n"
        "application-id pr* *\n"
        "use os tcp_server *:*\n"
        "use os tcp_client *:*\n"
        "application-id prog *\n"
        "use os udp_sender *:9\n";
    Parsed p = parse(text);
    EXPECT_THAT(p.complaints, IsEmpty());
    EXPECT_EQ(p(Role::tcp_server, at("198.18.0.1", 80)), kOs);
    EXPECT_EQ(p(Role::tcp_server, at("198.18.0.1", 81)), kVma);
    EXPECT_EQ(p(Role::tcp_client, at("198.18.0.1", 81)), kVma);
    EXPECT_EQ(p(Role::udp_sender, at("198.18.0.1", 9)), kOs) << "naming a block again continues it";
    Parsed other = parse(text, "pr");
    EXPECT_EQ(other(Role::tcp_server, at("198.18.0.1", 81)), kOs);
    EXPECT_EQ(other(Role::udp_sender, at("198.18.0.1", 9)), kVma);
}

TEST(Rules, RulesBeforeTheFirstBlockAreForAll) {
    Parsed p = parse(
        "use os tcp_server *:1\napplication-id * *\nuse os tcp_server *:2\napplication-id prog x\nuse os "
        "tcp_server *:3\n");
    EXPECT_EQ(p(Role::tcp_server, at("198.18.0.1", 1)), kOs);
    EXPECT_EQ(p(Role::tcp_server, at("198.18.0.1", 2)), kOs);
    EXPECT_EQ(p(Role::tcp_server, at("198.18.0.1", 3)), kVma);
    EXPECT_THAT(p.complaints,
                ElementsAre("line 4, column 16: this block has no effect: `* *` of line 1 comes first and "
                            "fits every program"));
}

TEST(Rules, IdThatNoBlockHas) {
    EXPECT_THAT(parse("application-id * a\n", "prog", "b").complaints,
                ElementsAre("no application-id has the id \"b\""));
    EXPECT_THAT(parse("application-id x b\n", "prog", "b").complaints, IsEmpty());
    EXPECT_THAT(parse("", "prog", "*").complaints, IsEmpty());
}

TEST(Rules, MaskAppliesToBothSides) {
    Parsed p = parse("use os tcp_client 198.18.0.7/24:*\nuse os udp_sender 1.2.3.4/0:5\n");
    EXPECT_EQ(p(Role::tcp_client, at("198.18.0.9", 1)), kOs);
    EXPECT_EQ(p(Role::tcp_client, at("198.18.1.7", 1)), kVma);
    EXPECT_EQ(p(Role::udp_sender, at("198.18.1.7", 5)), kOs);
}

TEST(Rules, SecondEndpoint) {
    Parsed p =
        parse("use os tcp_client 198.18.0.1:80:198.18.0.2:1000-2000\nuse os udp_connect *:*:198.18.0.2:*\n");
    EXPECT_THAT(p.complaints, IsEmpty());
    EXPECT_EQ(p(Role::tcp_client, at("198.18.0.1", 80), at("198.18.0.2", 1500)), kOs);
    EXPECT_EQ(p(Role::tcp_client, at("198.18.0.1", 80), at("198.18.0.2", 2500)), kVma);
    EXPECT_EQ(p(Role::tcp_client, at("198.18.0.1", 80), at("198.18.0.3", 1500)), kVma);
    EXPECT_EQ(p(Role::tcp_client, at("198.18.0.1", 80)), kOs);
    EXPECT_EQ(p(Role::udp_connect, at("198.18.9.9", 1), at("198.18.0.2", 1)), kOs);
    EXPECT_EQ(p(Role::udp_connect, at("198.18.9.9", 1), at("198.18.0.4", 1)), kVma);
    EXPECT_FALSE(p.rules.all_os(Role::udp_connect));
}

TEST(Rules, SecondEndpointWhereThereIsNone) {
    Parsed p = parse("use os udp_receiver *:5:198.18.0.9:7\n");
    EXPECT_EQ(p(Role::udp_receiver, at("198.18.0.1", 5), at("198.18.0.1", 1)), kOs);
    EXPECT_THAT(
        p.complaints,
        ElementsAre("line 1, column 24: udp_receiver knows one address only, the second one is ignored"));
}

TEST(Rules, BlanksCommentsAndLineEnds) {
    Parsed p = parse(
        "\xef\xbb\xbf# comment with a byte order mark\r\n"
        "\t use\tos  tcp_server\t198.18.0.1 / 32 : 10 - 20 # after a statement\r\n"
        "use os tcp_client *:*#directly behind\r\n"
        "  # indented\r\n"
        "\r\n"
        "use os udp_sender * : 5 : * : *");
    EXPECT_EQ(p.complaints.size(), 1u) << p.complaints[0];  // the second address of udp_sender
    EXPECT_EQ(p(Role::tcp_server, at("198.18.0.1", 15)), kOs);
    EXPECT_EQ(p(Role::tcp_client, at("198.18.0.1", 15)), kOs);
    EXPECT_EQ(p(Role::udp_sender, at("198.18.0.1", 5)), kOs);
}

TEST(Rules, LogStatements) {
    Parsed p = parse(
        "log min-level 3\n"
        "log destination stderr\n"
        "log destination ystderr\n"
        "log destination syslog min-level 9\n"
        "log min-level 1 destination file /tmp/libvma.log\n"
        "log destination yfile libvma.log min-level 2\n"
        "log\n");
    EXPECT_THAT(p.complaints, IsEmpty());
    EXPECT_THAT(parse("log destination\n").complaints,
                ElementsAre("line 1, column 16: stderr, syslog or file expected"));
    EXPECT_THAT(parse("log destination file\n").complaints, ElementsAre(HasSubstr("a file name expected")));
    EXPECT_THAT(parse("log min-level x\n").complaints,
                ElementsAre("line 1, column 15: a level expected, not \"x\""));
    EXPECT_THAT(parse("log level 3\n").complaints,
                ElementsAre(HasSubstr("destination or min-level expected")));
}

TEST(Rules, AMistakeCostsItsLineOnly) {
    Parsed p = parse(
        "use os tcp_server *:80\n"
        "use os tcp_server 198.18.0.1\n"
        "use os tcp_client *:80\n");
    EXPECT_THAT(p.complaints,
                ElementsAre("line 2, column 29: a colon and ports expected, not the end of the line"));
    EXPECT_EQ(p(Role::tcp_server, at("198.18.0.1", 80)), kOs);
    EXPECT_EQ(p(Role::tcp_server, at("198.18.0.1", 81)), kVma);
    EXPECT_EQ(p(Role::tcp_client, at("198.18.0.1", 80)), kOs);
}

TEST(Rules, Mistakes) {
    struct Case {
        const char* line;
        const char* complaint;
    };
    for (const Case& c : std::initializer_list<Case>{
             {"nonsense", "column 1: application-id, use or log expected, not \"nonsense\""},
             {"USE os tcp_server *:80", "column 1: application-id, use or log expected, not \"USE\""},
             {"  :", "column 1: application-id"},
             {"use", "column 4: vma or os expected, not the end of the line"},
             {"use OS tcp_server *:80", "column 5: vma or os expected, not \"OS\""},
             {"use os", "column 7: tcp_server, tcp_client"},
             {"use os server *:80",
              "column 8: tcp_server, tcp_client, udp_sender, udp_receiver or udp_connect expected, not "
              "\"server\""},
             {"use os tcp_server",
              "column 18: an address a.b.c.d[/prefix] or * expected, not the end of the line"},
             {"use os tcp_server host:80", "column 19: an address"},
             {"use os tcp_server 256.1.1.1:80", "column 19: a number of an address above 255"},
             {"use os tcp_server 1.1.1.999999999999999999:80", "column 25: a number of an address above 255"},
             {"use os tcp_server 01.2.3.4:80", "column 19: a number of an address with a leading zero"},
             {"use os tcp_server 1.2.3:80", "column 24: an address has four numbers"},
             {"use os tcp_server 1.2.3.4.5:80", "column 26: a colon and ports expected, not \".5:80\""},
             {"use os tcp_server 1. 2.3.4:80", "column 21: a number of an address expected"},
             {"use os tcp_server 1.2.3.4/33:80", "column 27: a prefix length above 32"},
             {"use os tcp_server 1.2.3.4/-1:80", "column 27: a prefix length expected, not \"-1:80\""},
             {"use os tcp_server *:65536", "column 21: a port above 65535"},
             {"use os tcp_server *:99999999999", "column 21: a port above 65535"},
             {"use os tcp_server *:080", "column 21: a port with a leading zero"},
             {"use os tcp_server *:0", "column 21: port 0 is no port"},
             {"use os tcp_server *:10-5", "column 21: the range 10-5 is reversed"},
             {"use os tcp_server *:-5", "column 21: a port expected, not \"-5\""},
             {"use os tcp_server *:5-", "column 23: a port expected, not the end of the line"},
             {"use os tcp_server *:http", "column 21: a port expected, not \"http\""},
             {"use os tcp_server *:80x", "column 23: end of line expected, not \"x\""},
             {"use os tcp_server *:80 *:81", "column 24: end of line expected, not \"*:81\""},
             {"use os tcp_server *:80:", "column 24: an address"},
             {"use os tcp_server *:80:*:81:*:82", "column 28: end of line expected"},
             {"use os tcp_server [::1]:80", "column 19: IPv6 addresses are not supported yet"},
             {"use os tcp_server ::1:80", "column 19: IPv6 addresses are not supported yet"},
             {"use os tcp_server 2001:db8::/32:80", "column 19: IPv6 addresses are not supported yet"},
             {"use os tcp_client *:80:fe80::1:80", "column 24: IPv6 addresses are not supported yet"},
             {"use sdp tcp_server *:80", "column 5: sdp is not supported, the rule is ignored"},
             {"use sa tcp_server *:*", "column 5: sa is not supported, the rule is ignored"},
             {"application-id", "column 15: a program name or * expected"},
             {"application-id prog", "column 20: an id or * expected"},
             {"application-id prog x y", "column 23: end of line expected, not \"y\""},
         }) {
        Parsed p = parse(c.line);
        ASSERT_THAT(p.complaints, ElementsAre(HasSubstr(c.complaint))) << c.line;
        EXPECT_EQ(p(Role::tcp_server, at("198.18.0.1", 80)), kVma) << c.line;
        EXPECT_EQ(p(Role::tcp_server, at("0.0.0.0", 80)), kVma) << c.line;
    }
}

TEST(Rules, ZeroMayBeginARange) {
    Parsed p = parse("use os tcp_server *:0-65535\n");
    EXPECT_THAT(p.complaints, IsEmpty());
    EXPECT_EQ(p(Role::tcp_server, at("198.18.0.1", 80)), kOs);
    EXPECT_TRUE(p.rules.all_os(Role::tcp_server));
}

TEST(Rules, AnyTransport) {
    Parsed p = parse(
        "use * tcp_server *:*\nuse * tcp_client *:*\nuse * udp_sender *:*\nuse * udp_receiver *:*\nuse * "
        "udp_connect *:*\n");
    EXPECT_THAT(p.complaints, IsEmpty());
    EXPECT_EQ(p(Role::tcp_server, at("198.18.0.1", 1)), kVma);
    EXPECT_EQ(p(Role::udp_sender, at("198.18.0.1", 1)), kVma);
    EXPECT_EQ(p(Role::tcp_client, at("198.18.0.1", 1)), kOs);
    EXPECT_EQ(p(Role::udp_connect, at("198.18.0.1", 1)), kOs);
    EXPECT_EQ(p(Role::udp_receiver, at("198.18.0.1", 1)), kOs);
    EXPECT_EQ(p(Role::udp_receiver, at("224.1.2.3", 1)), kVma);
    EXPECT_FALSE(p.rules.all_os(Role::tcp_client));
}

TEST(Rules, WhichRuleDecided) {
    Parsed p;
    p.rules = Rules::parse(
        "# first\n\n  use  vma\tudp_sender 198.18.0.0/16:*   # why\r\nuse os udp_sender * : 53\nuse os tcp_client *:*", "prog",
        kNoId, p.complaints, "my.conf");
    auto rule = [&](Endpoint to) { return p.rules.match(Role::udp_sender, to, nullptr); };
    ASSERT_NE(rule(at("198.18.0.1", 53)).rule, nullptr);
    EXPECT_EQ(*rule(at("198.18.0.1", 53)).rule, "my.conf:3: use vma udp_sender 198.18.0.0/16:*");
    EXPECT_FALSE(rule(at("198.18.0.1", 53)).os());
    EXPECT_STREQ(rule(at("203.0.113.1", 53)).text(), "my.conf:4: use os udp_sender *:53");
    EXPECT_TRUE(rule(at("203.0.113.1", 53)).os());
    EXPECT_EQ(rule(at("203.0.113.1", 54)).rule, nullptr);
    EXPECT_STREQ(rule(at("203.0.113.1", 54)).text(), "no rule");
    EXPECT_EQ(*p.rules.all_os(Role::tcp_client), "my.conf:5: use os tcp_client *:*");
}

TEST(Rules, AllOs) {
    auto all = [](const char* text) { return parse(text).rules.all_os(Role::udp_sender) != nullptr; };
    EXPECT_TRUE(all("use os udp_sender *:*\n"));
    EXPECT_TRUE(all("use os udp_sender 198.18.0.1:5\nuse os udp_sender *:*\nuse vma udp_sender *:*\n"));
    EXPECT_TRUE(all("use os udp_sender 0.0.0.0/0:1-65535\n"));
    EXPECT_FALSE(all("use vma udp_sender 198.18.0.1:5\nuse os udp_sender *:*\n"));
    EXPECT_FALSE(all("use os udp_sender *:1-65534\n"));
    EXPECT_FALSE(all("use os udp_receiver *:*\n"));
}

TEST(Rules, ManyMistakesAreCounted) {
    std::string text;
    for (int i = 0; i < 1000; i++) text += "x\n";
    text += "use os tcp_server *:80\n";
    Parsed p = parse(text);
    ASSERT_EQ(p.complaints.size(), 21u);
    EXPECT_EQ(p.complaints.back(), "980 more mistakes are not listed");
    EXPECT_EQ(p(Role::tcp_server, at("198.18.0.1", 80)), kOs);
}

TEST(Rules, AnyTextIsSurvived) {
    std::minstd_rand random(1);
    const std::string_view pieces[] = {
        "use", " ",           "os",         "vma",         "*",
        ":",   "-",           "/",          ".",           "1",
        "0",   "65536",       "tcp_server", "udp_connect", "application-id",
        "log", "destination", "file",       "\n",          "\r\n",
        "#",   "[",           "::",         "a",           std::string_view("\0", 1),
        "\xff"};
    for (int round = 0; round < 20000; round++) {
        std::string text;
        for (unsigned n = random() % 24; n > 0; n--) text += pieces[random() % std::size(pieces)];
        Parsed p = parse(text);
        p(Role::tcp_server, at("198.18.0.1", 80));
    }
}

// The process's own file.
TEST(Rules, FileOfTheProcess) {
    char name[] = "/tmp/vma_rules_test_XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    std::string dir = name;
    auto outcome = vma::test::in_child([&] {
        std::string file = dir + "/conf." + std::to_string(getpid());
        std::string self = std::filesystem::read_symlink("/proc/self/exe").filename();
        std::ofstream(file) << "application-id " << self << " id" << getpid()
                            << "\nuse os tcp_server *:80\nuse os x\n";
        setenv("VMA_CONFIG_FILE", (dir + "/conf.%d").c_str(), 1);
        setenv("VMA_APPLICATION_ID", "id%d", 1);
        EXPECT_EQ(rules().match(Role::tcp_server, at("198.18.0.1", 80), nullptr).transport, kOs);
        EXPECT_EQ(&rules(), &rules());
    });
    EXPECT_TRUE(outcome.passed());
    EXPECT_THAT(
        outcome.output,
        testing::MatchesRegex("VMA WARNING: [^\n]*/conf\\.[0-9]+: line 3, column 8: tcp_server[^\n]*\n"));
    std::filesystem::remove_all(dir);
}

TEST(Rules, MissingFileIsNoFault) {
    auto outcome = vma::test::in_child([] {
        setenv("VMA_CONFIG_FILE", "/no/such/libvma.conf", 1);
        EXPECT_EQ(rules().match(Role::tcp_server, at("198.18.0.1", 80), nullptr).transport, kVma);
    });
    EXPECT_TRUE(outcome.passed());
    EXPECT_EQ(outcome.output, "");
    outcome = vma::test::in_child([] {
        setenv("VMA_CONFIG_FILE", "/no/such/libvma.conf", 1);
        setenv("VMA_TRACELEVEL", "debug", 1);
        rules();
    });
    EXPECT_THAT(outcome.output,
                HasSubstr("/no/such/libvma.conf does not exist: every socket may be offloaded"));
}

TEST(Rules, NotARegularFile) {
    auto outcome = vma::test::in_child([] {
        setenv("VMA_CONFIG_FILE", "/tmp", 1);
        rules();
    });
    EXPECT_EQ(outcome.output, "VMA WARNING: /tmp is not a regular file: every socket may be offloaded\n");
}

}  // namespace
