// SPDX-License-Identifier: BSD-2-Clause
// libvma.conf: what each line means, and that no line, however wrong, means something else.
#include "libvma/config/rules.h"

#include <arpa/inet.h>
#include <errno.h>
#include <gmock/gmock.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <regex>
#include <sstream>

#include "libvma/runtime/log.h"
#include "tests/support/child.h"

namespace {

using namespace vma::config;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using vma::net::Endpoint;

constexpr Transport kVma = Transport::vma, kOs = Transport::os;
constexpr const char* kNoId = "VMA_DEFAULT_APPLICATION_ID";

Endpoint at(const char* addr, unsigned port) {
    return {inet_addr(addr), htons(static_cast<std::uint16_t>(port))};
}

Endpoint at6(const char* addr, unsigned port) {
    in6_addr raw{};
    EXPECT_EQ(inet_pton(AF_INET6, addr, &raw), 1) << addr;
    return {vma::net::Address(raw), htons(static_cast<std::uint16_t>(port))};
}

struct Parsed {
    RuleTable rules;
    Complaints complaints;
    Transport operator()(Role role, Endpoint first) const {
        return rules.match(role, first, nullptr).transport;
    }
    Transport operator()(Role role, Endpoint first, Endpoint second) const {
        return rules.match(role, first, &second).transport;
    }
};

Parsed parse(std::string_view text, std::string_view program = "prog", std::string_view id = kNoId) {
    Parsed parsed;
    parsed.rules = RuleTable::parse(text, program, id, parsed.complaints);
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
    EXPECT_THAT(
        p.complaints,
        ElementsAre(
            "line 4, column 1: this block is never reached: block \"*\" \"*\" of line 1 comes first and fits "
            "every program that this one fits"));
}

TEST(Rules, IdThatNoBlockHas) {
    EXPECT_THAT(parse("application-id * a\n", "prog", "b").complaints,
                ElementsAre("no application-id has the id \"b\" of VMA_APPLICATION_ID"));
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
    EXPECT_THAT(p.complaints, ElementsAre("line 1, column 24: end of line expected: udp_receiver has one "
                                          "address only, the second one is ignored"));
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
    EXPECT_THAT(
        p.complaints,
        ElementsAre("line 1, column 1: log statements have no effect: VMA_TRACELEVEL and VMA_LOG_FILE set "
                    "up the log"));
    EXPECT_THAT(parse("log destination\n").complaints,
                ElementsAre("line 1, column 16: stderr, syslog or file expected, not the end of the line"));
    EXPECT_THAT(parse("log destination file\n").complaints, ElementsAre(HasSubstr("a file name expected")));
    EXPECT_THAT(parse("log min-level x\n").complaints,
                ElementsAre("line 1, column 15: a level (0 to 9) expected, not \"x\""));
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
             {"  :", "column 3: application-id, use or log expected, not \":\""},
             {"use", "column 4: vma, os or * expected, not the end of the line"},
             {"use OS tcp_server *:80", "column 5: vma, os or * expected, not \"OS\""},
             {"use os", "column 7: tcp_server, tcp_client"},
             {"use os server *:80",
              "column 8: tcp_server, tcp_client, udp_sender, udp_receiver or udp_connect expected, not "
              "\"server\""},
             {"use os tcp_server",
              "column 18: an address a.b.c.d[/prefix], [IPv6][/prefix] or * expected, not the end of the "
              "line"},
             {"use os tcp_server host:80",
              "column 19: an address a.b.c.d[/prefix], [IPv6][/prefix] or * expected, not \"host:80\""},
             {"use os tcp_server 256.1.1.1:80",
              "column 19: a number of an address (0 to 255) expected, not \"256\""},
             {"use os tcp_server 1.1.1.999999999999999999:80",
              "column 25: a number of an address (0 to 255) expected, not \"999999999999999999\""},
             {"use os tcp_server 01.2.3.4:80",
              "column 19: a number of an address (0 to 255) without leading zeros expected, not \"01\""},
             {"use os tcp_server 1.2.3:80",
              "column 24: a dot and the next of four numbers expected, not \":80\""},
             {"use os tcp_server 1.2.3.4.5:80", "column 26: a colon and ports expected, not \".5:80\""},
             {"use os tcp_server 1. 2.3.4:80",
              "column 21: a number of an address (0 to 255) expected, not a blank"},
             {"use os tcp_server 0.0.0.0:80",
              "column 19: an address or * for any address expected, not \"0.0.0.0\""},
             {"use os tcp_server *.*.*.*:80", "column 20: a colon and ports expected, not \".*.*.*:80\""},
             {"use os tcp_server 1.2.3.4/33:80", "column 27: a prefix length (0 to 32) expected, not \"33\""},
             {"use os tcp_server 1.2.3.4/08:80",
              "column 27: a prefix length (0 to 32) without leading zeros expected, not \"08\""},
             {"use os tcp_server 1.2.3.4/-1:80",
              "column 27: a prefix length (0 to 32) expected, not \"-1:80\""},
             {"use os tcp_server 1.2.3.4/255.255.0.0:80",
              "column 27: a prefix length (0 to 32) expected, not \"255\""},
             {"use os tcp_server */8:80", "column 20: a colon and ports expected, not \"/8:80\""},
             {"use os tcp_server *:65536", "column 21: a port (1 to 65535) expected, not \"65536\""},
             {"use os tcp_server *:5-65536", "column 23: a port (1 to 65535) expected, not \"65536\""},
             {"use os tcp_server *:99999999999",
              "column 21: a port (1 to 65535) expected, not \"99999999999\""},
             {"use os tcp_server *:080",
              "column 21: a port (1 to 65535) without leading zeros expected, not \"080\""},
             {"use os tcp_server *:0", "column 21: a port (1 to 65535) expected, not \"0\""},
             {"use os tcp_server *:10-5", "column 21: 5-10 expected, not 10-5: the lower port comes first"},
             {"use os tcp_server *:-5", "column 21: a port (1 to 65535) expected, not \"-5\""},
             {"use os tcp_server *:5-", "column 23: a port (1 to 65535) expected, not the end of the line"},
             {"use os tcp_server *:5-*", "column 23: a port (1 to 65535) expected, not \"*\""},
             {"use os tcp_server *:http", "column 21: a port (1 to 65535) expected, not \"http\""},
             {"use os tcp_server *:80x", "column 23: end of line expected, not \"x\""},
             {"use os tcp_server *:80 *:81", "column 24: end of line expected, not \"*:81\""},
             {"use os tcp_server *:80:",
              "column 24: an address a.b.c.d[/prefix], [IPv6][/prefix] or * expected, not the end"},
             {"use os tcp_server *:80:*:81:*:82", "column 28: end of line expected, not \":*:82\""},
             {"use os tcp_server *", "column 20: a colon and ports expected, not the end of the line"},
             {"use os tcp_server ::1:80",
              "column 19: an IPv6 address in brackets expected, as in [2001:db8::1]:80, not \"::1:80\""},
             {"use os tcp_server ::1 : 80",
              "column 19: an IPv6 address in brackets expected, as in [2001:db8::1]:80, not \"::1\""},
             {"use os tcp_server ::1: 80",
              "column 19: an IPv6 address in brackets expected, as in [2001:db8::1]:80, not \"::1:\""},
             {"use os tcp_server [::1:80",
              "column 19: an IPv6 address in brackets expected, not \"[::1:80\""},
             {"use os tcp_server [198.18.0.1]:80", "column 19: an IPv6 address in brackets expected"},
             {"use os tcp_server [fe80::1%eth0]:80", "column 19: an IPv6 address in brackets expected"},
             {"use os tcp_server 2001:db8:x", "column 19: an IPv6 address in brackets expected"},
             {"use os tcp_server [::1]/129:80",
              "column 25: a prefix length (0 to 128) expected, not \"129\""},
             {"use os tcp_server [::1]80", "column 24: a colon and ports expected, not \"80\""},
             {"use os tcp_client 198.18.0.1:80:[fe80::1]:80",
              "column 33: an address of the same kind as the first one expected"},
             {"use sdp tcp_server *:80",
              "column 5: vma, os or * expected: sdp is not supported, the rule is ignored"},
             {"use sa tcp_server *:*",
              "column 5: vma, os or * expected: sa is not supported, the rule is ignored"},
             {"application-id", "column 15: a program name or * expected, not the end of the line"},
             {"application-id prog",
              "column 20: an id or * expected after the program name, not the end of the line"},
             {"application-id prog x y", "column 23: end of line expected, not \"y\""},
             {"application-id /usr/bin/prog *",
              "column 16: a program name without its directory expected, not \"/usr/bin/prog\""},
         }) {
        Parsed p = parse(c.line);
        ASSERT_THAT(p.complaints, ElementsAre(HasSubstr(c.complaint))) << c.line;
        EXPECT_THAT(p.complaints[0], testing::StartsWith("line 1, column ")) << c.line;
        EXPECT_EQ(p(Role::tcp_server, at("198.18.0.1", 80)), kVma) << c.line;
        EXPECT_EQ(p(Role::tcp_server, at("0.0.0.0", 80)), kVma) << c.line;
    }
}

// What no editor shows: each such line is reported with its characters spelt out, the next one counts.
TEST(Rules, StrangeCharacters) {
    struct Case {
        std::string_view line;
        const char* complaint;
    };
    using namespace std::string_view_literals;
    for (const Case& c : std::initializer_list<Case>{
             {"use os\0tcp_server *:80"sv,
              "line 1, column 7: tcp_server, tcp_client, udp_sender, udp_receiver or udp_connect "
              "expected, not \"\\x00tcp_server\""},
             {"use os tcp_server *:80\0"sv, "line 1, column 23: end of line expected, not \"\\x00\""},
             {"\0\0\0\0"sv,
              "line 1, column 1: application-id, use or log expected, not \"\\x00\\x00\\x00\\x00\""},
             {"use os tcp_server\xc2\xa0*:80"sv,
              "line 1, column 18: an address a.b.c.d[/prefix], [IPv6][/prefix] or * expected, not "
              "\"\\xc2\\xa0*:80\""},
             {"\x1b[31muse"sv, "line 1, column 1: application-id, use or log expected, not \"\\x1b[31muse\""},
             {"application-id pr\0g *"sv,
              "line 1, column 18: a printable character expected, not \"\\x00\"; the rules below, up "
              "to the next application-id, are skipped"},
         }) {
        Parsed p = parse(std::string(c.line) + "\nuse os tcp_client *:1\n");
        EXPECT_THAT(p.complaints, ElementsAre(c.complaint));
        EXPECT_EQ(p(Role::tcp_server, at("198.18.0.1", 80)), kVma);
        EXPECT_EQ(p(Role::tcp_client, at("198.18.0.1", 1)), c.line.starts_with("app") ? kVma : kOs);
    }
    EXPECT_THAT(parse("# comment with \0 in it\nuse os tcp_client *:1"sv).complaints, IsEmpty());
    EXPECT_THAT(parse("\xff\xfeu\0s\0e\0\n\0"sv).complaints,
                ElementsAre("line 1, column 1: plain text expected, not UTF-16: the file is not used"));
}

TEST(Rules, LineEnds) {
    for (const char* end : {"\n", "\r\n", "\r"}) {
        std::string text = "# all";
        for (const char* line : {"", "use os tcp_server *:80", "", "x", "use os tcp_client *:81"})
            (text += end) += line;
        Parsed p = parse(text);
        EXPECT_THAT(p.complaints,
                    ElementsAre(HasSubstr("line 5, column 1: application-id, use or log expected")));
        EXPECT_EQ(p(Role::tcp_server, at("198.18.0.1", 80)), kOs);
        EXPECT_EQ(p(Role::tcp_client, at("198.18.0.1", 81)), kOs);
    }
}

TEST(Rules, LongLines) {
    const std::string blanks(300'000, ' '), x(300'000, 'x');
    Parsed p = parse("use" + blanks + "os tcp_server *:80 #" + x + "\nuse os " + x + "\napplication-id " + x +
                     " *\n");
    EXPECT_THAT(
        p.complaints,
        ElementsAre("line 2, column 8: tcp_server, tcp_client, udp_sender, udp_receiver or udp_connect "
                    "expected, not \"" +
                        std::string(40, 'x') + "...\"",
                    HasSubstr("line 3, column 16: a program name of at most 255 bytes expected")));
    EXPECT_STREQ(p.rules.match(Role::tcp_server, at("198.18.0.1", 80), nullptr).text(),
                 "libvma.conf:1: use os tcp_server *:80");
}

// IPv6 is not offloaded, so such a rule decides nothing; but it is read, and so are those around it.
TEST(Rules, Ipv6) {
    Parsed p = parse(
        "use os tcp_server [::1]:80\n"
        "use os tcp_server [2001:db8::]/32:*\n"
        "use os tcp_server 2001:db8::/33:80-90\n"
        "use os tcp_server [2001:db9::1] : 80\n"
        "use os tcp_server 2001:db9::1:*\n"
        "use os tcp_server :::*\n"
        "use os tcp_server [::]/0:80\n"
        "use os tcp_server 1:2:3:4:5:6:7:8:81\n"
        "use os tcp_server [::ffff:198.18.0.1]:80\n"
        "use os tcp_client [fe80::1]:80:[fe80::2]:*\n"
        "use os tcp_client *:80:[fe80::2]:*\n"
        "use os tcp_client [fe80::1]:81:*:*\n"
        "use vma udp_sender [fe80::]/10:*\n"
        "use os udp_sender *:*\n");
    EXPECT_THAT(
        p.complaints,
        ElementsAre(
            "line 3, column 1: this rule never decides: the one of line 2 comes first and fits all that "
            "this one fits",
            "line 9, column 1: this rule never decides: the one of line 7 comes first and fits all that "
            "this one fits"));
    EXPECT_EQ(p(Role::tcp_server, at("198.18.0.1", 80)), kVma);
    EXPECT_EQ(p(Role::tcp_client, at("198.18.0.1", 80), at("198.18.0.2", 80)), kVma);
    EXPECT_EQ(p(Role::tcp_client, at("198.18.0.1", 80)), kVma);
    EXPECT_EQ(p(Role::udp_sender, at("198.18.0.1", 80)), kOs);
    EXPECT_NE(p.rules.all_os(Role::udp_sender), nullptr) << "no IPv4 socket fits the rule before";
    EXPECT_EQ(p(Role::tcp_server, at6("2001:db8:1::5", 1234)), kOs);
    EXPECT_EQ(p(Role::tcp_server, at6("2001:dba::5", 1234)), kVma);
    EXPECT_EQ(p(Role::tcp_client, at6("fe80::7", 80), at6("fe80::2", 9)), kOs);
    EXPECT_EQ(p(Role::udp_sender, at6("fe80::7", 80)), kVma);
}

TEST(Rules, FamiliesDoNotMix) {
    Parsed p = parse(
        "use os tcp_server 0.0.0.0/0:1-100\n"
        "use os tcp_client *:80:198.18.0.0/16:*\n"
        "use os udp_receiver *:*\n");
    EXPECT_EQ(p(Role::tcp_server, at("198.18.0.1", 80)), kOs);
    EXPECT_EQ(p(Role::tcp_server, at6("2001:db8::1", 80)), kVma);
    EXPECT_EQ(p(Role::tcp_client, at6("2001:db8::1", 80)), kVma);
    EXPECT_EQ(p(Role::tcp_client, at("198.18.0.1", 80)), kOs);
    EXPECT_EQ(p(Role::udp_receiver, at6("2001:db8::1", 80)), kOs) << "* is any address";
}

TEST(Rules, RulesThatNeverDecide) {
    struct Case {
        const char *earlier, *later;
        bool covered;
    };
    for (const Case& c : std::initializer_list<Case>{
             {"tcp_client *:*", "tcp_client 198.18.0.1:80", true},
             {"tcp_client *:*", "tcp_client *:*", true},
             {"tcp_client *:*", "tcp_client *:*:198.18.0.1:5", true},
             {"tcp_client *:80", "tcp_client *:80-81", false},
             {"tcp_client *:80-90", "tcp_client *:85-90", true},
             {"tcp_client *:80-90", "tcp_client *:*", false},
             {"tcp_client *:1-65535", "tcp_client *:*", true},
             {"tcp_client 198.18.0.0/16:*", "tcp_client 198.18.7.0/24:*", true},
             {"tcp_client 198.18.0.0/24:*", "tcp_client 198.18.0.0/16:*", false},
             {"tcp_client 198.18.0.0/24:*", "tcp_client 198.18.1.0/24:*", false},
             {"tcp_client 198.18.0.7/24:*", "tcp_client 198.18.0.9:5", true},
             {"tcp_client 198.18.0.1:*", "tcp_client *:5", false},
             {"tcp_client *:*:198.18.0.1:*", "tcp_client *:*", false},
             {"tcp_client *:*:*:*", "tcp_client *:*", true},
             {"tcp_client *:*:198.18.0.0/24:*", "tcp_client *:80:198.18.0.1:9", true},
             {"tcp_client *:*:198.18.0.0/24:*", "tcp_client *:80:198.18.1.1:9", false},
             {"tcp_client *:*", "tcp_server *:80", false},
         }) {
        Parsed p = parse(std::string("\nuse vma ") + c.earlier + "\n# between\n  use os " + c.later);
        if (c.covered)
            EXPECT_THAT(
                p.complaints,
                ElementsAre("line 4, column 3: this rule never decides: the one of line 2 comes first and "
                            "fits all that this one fits"))
                << c.earlier << " / " << c.later;
        else
            EXPECT_THAT(p.complaints, IsEmpty()) << c.earlier << " / " << c.later;
    }
    EXPECT_THAT(
        parse("application-id a *\nuse os tcp_client *:*\napplication-id b *\nuse os tcp_client *:*\n")
            .complaints,
        IsEmpty())
        << "another block";
}

TEST(Rules, BlocksThatAreNeverReached) {
    struct Case {
        const char *earlier, *later;
        bool covered;
    };
    for (const Case& c : std::initializer_list<Case>{
             {"* *", "prog x", true},
             {"* x", "prog x", true},
             {"* x", "prog y", false},
             {"* x", "prog *", false},
             {"prog *", "prog x", true},
             {"prog *", "* *", false},
             {"pr* *", "prog *", true},
             {"pr* *", "p* *", false},
             {"p* *", "pr?g* *", true},
             {"?* *", "prog *", true},
             {"???? *", "prog *", true},
             {"???? *", "pro* *", false},
             {"*o* *", "?*o? *", true},
             {"a*b*c *", "ab*c *", true},
             {"a*b*c *", "a*c *", false},
             {"prog? *", "prog *", false},
             {"[p]rog *", "[p]rog x", true},
             {"[p]* *", "prog *", false},  // true, but not seen
         }) {
        Parsed p = parse(std::string("application-id ") + c.earlier + "\napplication-id " + c.later, "none");
        EXPECT_EQ(p.complaints.size(), c.covered ? 1u : 0u) << c.earlier << " / " << c.later;
        for (const std::string& complaint : p.complaints)
            EXPECT_THAT(complaint,
                        testing::MatchesRegex(
                            "line 2, column 1: this block is never reached: block \"[^ ]*\" \"[^ ]*\" "
                            "of line 1 comes first and fits every program that this one fits"));
    }
    EXPECT_THAT(
        parse("application-id * *\napplication-id prog x\napplication-id * *\napplication-id prog x\n")
            .complaints,
        testing::SizeIs(1))
        << "once for each block";
}

// Rules of a block whose beginning is wrong are not those of the block above.
TEST(Rules, WrongApplicationIdTakesItsRulesAlong) {
    for (const char* wrong :
         {"application-id prog", "application-id a b c", "Application-ID prog *", "application_id x *"}) {
        Parsed p = parse(std::string("use os tcp_server *:1\n") + wrong +
                         "\nuse os tcp_server *:2\napplication-id * *\nuse os tcp_server *:3");
        EXPECT_THAT(p.complaints,
                    ElementsAre(testing::AllOf(
                        testing::StartsWith("line 2, column "),
                        testing::EndsWith("; the rules below, up to the next application-id, are skipped"))));
        EXPECT_EQ(p(Role::tcp_server, at("198.18.0.1", 1)), kOs);
        EXPECT_EQ(p(Role::tcp_server, at("198.18.0.1", 2)), kVma);
        EXPECT_EQ(p(Role::tcp_server, at("198.18.0.1", 3)), kOs);
    }
}

// The time a senseless file takes is bounded.
TEST(Rules, ManyBlocksAndRules) {
    std::string text;
    for (int i = 0; i < 20000; i++) text += "use os tcp_client 198.18.0.1:" + std::to_string(i + 1) + "\n";
    for (int i = 0; i < 5000; i++) text += "application-id p" + std::to_string(i) + "* x" + "\n";
    Parsed p = parse(text);
    EXPECT_EQ(p(Role::tcp_client, at("198.18.0.1", 20000)), kOs);
    EXPECT_EQ(p.complaints.size(), 21u) << "blocks below the rules for all programs";
}

TEST(Rules, ZeroMayBeginARange) {
    Parsed p = parse("use os tcp_server *:0-65535\n");
    EXPECT_THAT(p.complaints, IsEmpty());
    EXPECT_EQ(p(Role::tcp_server, at("198.18.0.1", 80)), kOs);
    EXPECT_TRUE(p.rules.all_os(Role::tcp_server));
    // A port that is not known yet fits only what fits every port.
    p = parse("use os tcp_client *:*:*:0-100\nuse os udp_connect *:*:*:1-65535");
    EXPECT_EQ(p(Role::tcp_client, at("198.18.0.1", 80), at("198.18.0.2", 0)), kVma);
    EXPECT_EQ(p(Role::tcp_client, at("198.18.0.1", 80), at("198.18.0.2", 100)), kOs);
    EXPECT_EQ(p(Role::udp_connect, at("198.18.0.1", 80), at("198.18.0.2", 0)), kOs);
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
    p.rules = RuleTable::parse(
        "# first\n\n  use  vma\tudp_sender 198.18.0.0/16:*   # why\r\nuse os udp_sender * : 53\nuse os "
        "tcp_client *:*",
        "prog", kNoId, p.complaints, "my.conf");
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

// docs/configuration.md: its examples are right, and what it says of wrong lines is what the parser says.
TEST(Rules, DocumentedExamples) {
    auto file = std::filesystem::path(__FILE__).parent_path().parent_path().parent_path() / "docs" /
                "configuration.md";
    std::ifstream in(file);
    ASSERT_TRUE(in) << file;
    int examples = 0, mistakes = 0;
    std::string text;
    for (std::string line; std::getline(in, line);) {
        if (line == "```conf") {
            for (text.clear(); std::getline(in, line) && line != "```";) text += line + "\n";
            EXPECT_THAT(parse(text).complaints, IsEmpty()) << text;
            examples++;
        } else if (line.starts_with("| `use ") || line.starts_with("| `application-id ")) {
            const auto end = line.find("` | ");
            ASSERT_NE(end, line.npos) << line;
            const std::string message = line.substr(end + 4, line.size() - end - 6);
            EXPECT_THAT(parse(line.substr(3, end - 3)).complaints, ElementsAre(HasSubstr(message)));
            mistakes++;
        }
    }
    EXPECT_EQ(examples, 3);
    EXPECT_EQ(mistakes, 12);
}

// The file's own name and the one the program was called by both count.
TEST(Rules, TwoNamesOfAProgram) {
    auto at_port = [](const char* text, unsigned port) {
        Complaints complaints;
        const RuleTable rules =
            RuleTable::parse(text, "python3.11", kNoId, complaints, "libvma.conf", "python3");
        return rules.match(Role::tcp_server, at("198.18.0.1", port), nullptr).transport;
    };
    EXPECT_EQ(at_port("application-id python3 *\nuse os tcp_server *:80\n", 80), kOs);
    EXPECT_EQ(at_port("application-id python3.11 *\nuse os tcp_server *:80\n", 80), kOs);
    EXPECT_EQ(at_port("application-id python *\nuse os tcp_server *:80\n", 80), kVma);
    const char* both =
        "application-id *.11 *\nuse os tcp_server *:80\napplication-id python3 *\nuse os tcp_server *:81\n";
    EXPECT_EQ(at_port(both, 80), kOs);
    EXPECT_EQ(at_port(both, 81), kVma) << "the first block that fits";
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

TEST(Rules, NameTheProcessWasCalledBy) {
    char name[] = "/tmp/vma_rules_test_XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    const std::string file = std::string(name) + "/libvma.conf";
    std::ofstream(file) << "application-id through-a-link *\nuse os tcp_server *:80";
    auto outcome = vma::test::in_child([&] {
        setenv("VMA_CONFIG_FILE", file.c_str(), 1);
        setenv("VMA_TRACELEVEL", "debug", 1);
        program_invocation_short_name = const_cast<char*>("through-a-link");
        EXPECT_EQ(decide(Role::tcp_server, at("198.18.0.1", 80), nullptr).transport, kOs);
        EXPECT_EQ(decide(Role::tcp_server, at("198.18.0.1", 80), nullptr).transport, kOs);
        const Endpoint here = at("198.18.0.2", 4000);
        EXPECT_EQ(decide(Role::tcp_client, at("198.18.0.1", 80), &here).rule, nullptr);
    });
    EXPECT_TRUE(outcome.passed());
    // Said once at level info, each time at level debug.
    const std::string text =
        std::regex_replace(outcome.output, std::regex(" \\[pid [0-9]+ tid [0-9]+\\]"), "");
    EXPECT_EQ(text,
              "VMA INFO: left to the kernel: libvma.conf:2: use os tcp_server *:80\n"
              "VMA DEBUG: tcp_server 198.18.0.1:80: os (libvma.conf:2: use os tcp_server *:80)\n"
              "VMA DEBUG: tcp_server 198.18.0.1:80: os (libvma.conf:2: use os tcp_server *:80)\n"
              "VMA DEBUG: tcp_client 198.18.0.1:80:198.18.0.2:4000: vma (no rule)\n");
    std::filesystem::remove_all(name);
}

// The usual file need not exist; one that was asked for is missed.
TEST(Rules, MissingFile) {
    auto outcome = vma::test::in_child([] {
        setenv("VMA_CONFIG_FILE", "/no/such/libvma.conf", 1);
        EXPECT_EQ(rules().match(Role::tcp_server, at("198.18.0.1", 80), nullptr).transport, kVma);
    });
    EXPECT_TRUE(outcome.passed());
    EXPECT_EQ(outcome.output,
              "VMA WARNING: /no/such/libvma.conf does not exist: every socket may be offloaded\n");
    outcome = vma::test::in_child([] {
        setenv("VMA_CONFIG_FILE", "", 1);
        rules();
    });
    EXPECT_EQ(outcome.output, "VMA WARNING: VMA_CONFIG_FILE is empty: every socket may be offloaded\n");
    outcome = vma::test::in_child([] {
        unsetenv("VMA_CONFIG_FILE");
        rules();
    });
    EXPECT_THAT(outcome.output, Not(HasSubstr("does not exist")));
}

TEST(Rules, NotARegularFile) {
    auto outcome = vma::test::in_child([] {
        setenv("VMA_CONFIG_FILE", "/tmp", 1);
        rules();
    });
    EXPECT_EQ(outcome.output, "VMA WARNING: /tmp is not a regular file: every socket may be offloaded\n");
}

}  // namespace
