// SPDX-License-Identifier: BSD-2-Clause
// Parses libvma.conf. Statements are lines, so the parser is one cursor over a line and a function for each
// part of the grammar.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <fnmatch.h>
#include <limits.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "libvma/config/rules.h"
#include "libvma/config/rules_cursor.h"

namespace vma::config {
namespace {

constexpr std::size_t kMaxComplaints = 20;  // a file of another kind would otherwise fill the log
// The parser compares a block or rule with so many before it, to see whether it can ever decide. Without a
// limit, a file of 1 MiB would take seconds.
constexpr std::size_t kMaxCompared = 500;
constexpr std::string_view kDefaultId = "VMA_DEFAULT_APPLICATION_ID";

constexpr const char* kOctet = "a number of an address (0 to 255)";
constexpr const char* kPort = "a port (1 to 65535)";

// A "use" statement with one blank between words and none elsewhere.
std::string plain(std::string_view text) {
    auto joins = [](char c) { return c == ':' || c == '/' || c == '-'; };
    std::string result;
    bool blank = false;
    for (char c : text) {
        if (is_blank(c)) {
            blank = true;
            continue;
        }
        if (blank && !result.empty() && !joins(c) && !joins(result.back())) result += ' ';
        blank = false;
        result += c;
    }
    return result;
}

// Does every name that fits `narrow` fit `wide`? Both are patterns of fnmatch(3). With brackets or
// backslashes, "no" may also mean "not certain".
bool pattern_covers(std::string_view wide, std::string_view narrow) {
    if (wide == narrow || wide == "*") return true;
    if ((std::string(wide) += narrow).find_first_of("[\\") != std::string::npos) return false;
    // fits[j]: the part of `wide` so far covers the first j characters of `narrow`.
    std::vector<char> fits(narrow.size() + 1);
    fits[0] = 1;
    for (char w : wide) {
        char before = fits[0];  // fits[j - 1] of the part of `wide` without w
        fits[0] = before && w == '*';
        for (std::size_t j = 1; j <= narrow.size(); j++) {
            const char n = narrow[j - 1], old = fits[j];
            if (w == '*')
                fits[j] = old || fits[j - 1];
            else
                fits[j] = before && n != '*' && (w == '?' || w == n);
            before = old;
        }
    }
    return fits.back() != 0;
}

// Does an IPv6 address stand here? It stands in brackets, or has more colons than an IPv4 endpoint can begin
// with.
bool looks_like_ipv6(std::string_view text) noexcept {
    if (text.starts_with('[') || text.starts_with("::")) return true;
    const std::size_t end =
        std::find_if_not(text.begin(), text.end(), [](char c) { return c == ':' || is_hex(c); }) -
        text.begin();
    return is_hex(text.empty() ? ' ' : text[0]) &&
           std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(end), ':') >= 2;
}

bool read_ipv6(std::string_view text, std::uint8_t* bytes) {
    return text.find('\0') == std::string_view::npos &&
           inet_pton(AF_INET6, std::string(text).c_str(), bytes) == 1;
}

// The length of an IPv6 address without brackets at the beginning of `text`. A colon ends the address if a
// prefix follows, or if the last colon cannot belong to the address. 0: there is no address, or the text has
// two meanings.
std::size_t ipv6_length(std::string_view text, std::uint8_t* bytes) {
    std::size_t end = 0;
    while (end < text.size() && (text[end] == ':' || text[end] == '.' || is_hex(text[end]))) end++;
    const std::string_view run = text.substr(0, end);
    const bool whole = read_ipv6(run, bytes);
    if (text.substr(end).starts_with('/')) return whole ? end : 0;
    const std::size_t colon = run.rfind(':');
    if (run.ends_with(':') && !text.substr(end).starts_with('*')) return 0;
    if (whole || colon == std::string_view::npos || !read_ipv6(run.substr(0, colon), bytes)) return 0;
    return colon;
}

}  // namespace

class RuleTable::Parser {
  public:
    Parser(std::string_view program, std::string_view called, std::string_view app_id, Complaints& complaints,
           std::string_view file)
        : program_(program),
          called_(called.empty() ? program : called),
          app_id_(app_id),
          complaints_(complaints),
          file_(file) {}

    RuleTable run(std::string_view text) {
        if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // byte order mark of some editors
        if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")) {
            line_ = 1;
            complain(0, "plain text expected, not UTF-16: the file is not used");
            text = {};
        }
        while (!text.empty()) {
            line_++;
            const std::size_t end = text.find_first_of("\r\n");
            statement_ = text.substr(0, end);
            text.remove_prefix(end == std::string_view::npos ? text.size()
                                                             : end + (text.substr(end, 2) == "\r\n" ? 2 : 1));
            statement_ = statement_.substr(0, statement_.find('#'));
            try {
                statement(Cursor(statement_));
            } catch (const Mistake& mistake) {
                complain(mistake.column, mistake.text);
            }
        }
        if (count_ > kMaxComplaints)
            complaints_.push_back(fmt::format("{} more mistakes are not listed", count_ - kMaxComplaints));
        if (app_id_ != kDefaultId && app_id_ != "*" && !id_seen_)
            complaints_.push_back(
                fmt::format("no application-id has the id {} of VMA_APPLICATION_ID", quoted(app_id_)));
        RuleTable rules;
        for (Block& block : blocks_) {
            if (!fits(block)) continue;
            rules.lists_ = std::move(block.lists);
            break;
        }
        return rules;
    }

  private:
    struct Block {
        std::string program, id;
        unsigned line;
        Lists lists;
        std::array<std::vector<unsigned>, 5> lines;  // of each rule
        // No program has an empty name: rules below a wrong application-id apply to no program.
        bool dead() const noexcept { return program.empty(); }
    };

    void complain(std::size_t column, std::string_view text) {
        if (++count_ <= kMaxComplaints)
            complaints_.push_back(fmt::format("line {}, column {}: {}", line_, column + 1, text));
    }

    bool fits(const Block& block) const {
        const bool id = block.id == "*" || app_id_ == "*" || block.id == app_id_;
        if (!id || block.dead()) return false;
        auto fits_name = [&](const std::string& name) {
            return fnmatch(block.program.c_str(), name.c_str(), 0) == 0;
        };
        return fits_name(program_) || fits_name(called_);
    }

    void statement(Cursor line) {
        if (line.at_end()) return;
        const std::size_t column = line.column();
        const std::string first = line.here();
        const std::string_view keyword = line.keyword();
        if (keyword == "use") {
            use(line, column);
        } else if (keyword == "application-id") {
            try {
                application(line, column);
            } catch (Mistake& mistake) {
                open("", "");
                mistake.text += "; the rules below, up to the next application-id, are skipped";
                throw;
            }
        } else if (keyword == "log") {
            log(line, column);
        } else {
            std::string text = fmt::format("application-id, use or log expected, not {}", first);
            // The line most likely means to begin a block, whose rules must not join the block above.
            if (keyword.size() >= 3 && strncasecmp(keyword.data(), "app", 3) == 0) {
                open("", "");
                text += "; the rules below, up to the next application-id, are skipped";
            }
            Cursor::fail(column, text);
        }
    }

    void application(Cursor& line, std::size_t column) {
        const std::size_t program_column = line.column();
        const std::string_view program = line.word();
        const std::string_view id = line.word();
        if (program.empty())
            Cursor::fail(line.column(), "a program name or * expected, not the end of the line");
        if (program.find('/') != std::string_view::npos)
            Cursor::fail(program_column, fmt::format("a program name without its directory expected, not {}",
                                                     quoted(program)));
        if (program.size() > NAME_MAX)
            Cursor::fail(program_column, fmt::format("a program name of at most {} bytes expected, not {}",
                                                     NAME_MAX, quoted(program)));
        if (id.empty())
            Cursor::fail(line.column(),
                         "an id or * expected after the program name, not the end of the line");
        line.expect_end();
        id_seen_ = id_seen_ || id == app_id_;
        for (std::size_t i = 0; i < blocks_.size(); i++) {
            if (blocks_[i].program == program && blocks_[i].id == id) {
                current_ = i;
                return;
            }
        }
        for (std::size_t i = 0; i < blocks_.size() && i < kMaxCompared; i++) {
            const Block& earlier = blocks_[i];
            if (earlier.dead() || (earlier.id != "*" && earlier.id != id)) continue;
            if (!pattern_covers(earlier.program, program)) continue;
            complain(
                column,
                fmt::format("this block is never reached: block {} {} of line {} comes first and fits every "
                            "program that this one fits",
                            quoted(earlier.program), quoted(earlier.id), earlier.line));
            break;
        }
        open(program, id);
    }

    void open(std::string_view program, std::string_view id) {
        current_ = blocks_.size();
        blocks_.push_back({std::string(program), std::string(id), line_, {}, {}});
    }

    void log(Cursor& line, std::size_t begin) {
        while (!line.at_end()) {
            std::size_t column = line.column();
            std::string text = line.here();
            const std::string_view keyword = line.keyword();
            if (keyword == "min-level") {
                line.number(9, "a level (0 to 9)");
            } else if (keyword == "destination") {
                column = line.column();
                text = line.here();
                const std::string_view to = line.keyword();
                if (to == "file" || to == "yfile") {
                    if (line.word().empty())
                        Cursor::fail(line.column(), "a file name expected, not the end of the line");
                } else if (to != "stderr" && to != "ystderr" && to != "syslog") {
                    Cursor::fail(column, fmt::format("stderr, syslog or file expected, not {}", text));
                }
            } else {
                Cursor::fail(column, fmt::format("destination or min-level expected, not {}", text));
            }
        }
        if (!log_seen_)
            complain(begin, "log statements have no effect: VMA_TRACELEVEL and VMA_LOG_FILE set up the log");
        log_seen_ = true;
    }

    void use(Cursor& line, std::size_t begin) {
        static constexpr std::string_view kRoles[] = {"tcp_server", "tcp_client", "udp_sender",
                                                      "udp_receiver", "udp_connect"};  // in the order of Role
        Rule rule{};
        const std::size_t transport_column = line.column();
        const std::string transport_text = line.here();
        std::string_view ignored;
        if (line.accept('*')) {
            rule.transport = Word::any;
        } else {
            const std::string_view transport = line.keyword();
            if (transport == "vma")
                rule.transport = Word::vma;
            else if (transport == "os")
                rule.transport = Word::os;
            else if (transport == "sdp" || transport == "sa")
                ignored = transport;
            else
                Cursor::fail(transport_column, fmt::format("vma, os or * expected, not {}", transport_text));
        }
        const std::size_t role_column = line.column();
        const std::string role_text = line.here();
        const std::string_view keyword = line.keyword();
        const auto role =
            static_cast<std::size_t>(std::find(std::begin(kRoles), std::end(kRoles), keyword) - kRoles);
        if (role == std::size(kRoles))
            Cursor::fail(
                role_column,
                fmt::format(
                    "tcp_server, tcp_client, udp_sender, udp_receiver or udp_connect expected, not {}",
                    role_text));
        rule.first = addresses(line);
        const std::size_t second_column = line.column();
        if (line.accept(':')) {
            rule.second = addresses(line);
            const sa_family_t a = rule.first.family, b = rule.second->family;
            if (a != b && a != AF_UNSPEC && b != AF_UNSPEC)
                Cursor::fail(second_column + 1, "an address of the same kind as the first one expected");
        }
        line.expect_end();

        if (!ignored.empty()) {
            complain(transport_column,
                     fmt::format("vma, os or * expected: {} is not supported, the rule is ignored", ignored));
            return;
        }
        if (rule.second && role != static_cast<std::size_t>(Role::tcp_client) &&
            role != static_cast<std::size_t>(Role::udp_connect)) {
            complain(second_column,
                     fmt::format("end of line expected: {} has one address only, the second one is ignored",
                                 keyword));
            rule.second.reset();
        }
        rule.text = fmt::format("{}:{}: {}", file_, line_, plain(statement_));
        if (blocks_.empty()) open("*", "*");  // rules before the first application-id
        add(blocks_[current_], role, std::move(rule), begin);
    }

    void add(Block& block, std::size_t role, Rule rule, std::size_t begin) {
        std::vector<Rule>& list = block.lists[role];
        std::vector<unsigned>& lines = block.lines[role];
        for (std::size_t i = 0; i < list.size() && i < kMaxCompared && !block.dead(); i++) {
            if (!list[i].covers(rule)) continue;
            complain(
                begin,
                fmt::format("this rule never decides: the one of line {} comes first and fits all that this "
                            "one fits",
                            lines[i]));
            break;
        }
        list.push_back(std::move(rule));
        lines.push_back(line_);
    }

    // <address>:<ports>
    static Addresses addresses(Cursor& line) {
        Addresses result;
        if (looks_like_ipv6(line.rest()))
            ipv6(line, result);
        else if (!line.accept('*'))
            ipv4(line, result);
        if (!line.accept(':'))
            Cursor::fail(line.column(), fmt::format("a colon and ports expected, not {}", line.here()));
        if (line.accept('*')) return result;
        const std::size_t column = line.column();
        const unsigned low = line.number(65535, kPort);
        unsigned high = low;
        if (line.accept('-')) {
            high = line.number(65535, kPort);
            if (high < low)
                Cursor::fail(column, fmt::format("{0}-{1} expected, not {1}-{0}: the lower port comes first",
                                                 high, low));
        }
        if (high == 0) Cursor::fail(column, fmt::format("{} expected, not \"0\"", kPort));
        if (low <= 1 && high == 65535) return result;  // all valid ports
        result.low = static_cast<std::uint16_t>(std::max(low, 1u));
        result.high = static_cast<std::uint16_t>(high);
        return result;
    }

    static void ipv4(Cursor& line, Addresses& result) {
        const std::size_t column = line.column();
        if (!is_digit(line.peek()))
            Cursor::fail(column,
                         fmt::format("an address a.b.c.d[/prefix], [IPv6][/prefix] or * expected, not {}",
                                     line.here()));
        result.family = AF_INET;
        for (std::size_t i = 0; i < 4; i++) {
            if (i > 0 && !line.accept_inside('.'))
                Cursor::fail(line.column(),
                             fmt::format("a dot and the next of four numbers expected, not {}", line.here()));
            result.bytes[i] = static_cast<std::uint8_t>(line.number(255, kOctet, i < 3));
        }
        result.prefix = 32;
        if (line.accept('/'))
            result.prefix = static_cast<std::uint8_t>(line.number(32, "a prefix length (0 to 32)"));
        if (result.prefix == 32 &&
            std::all_of(result.bytes.begin(), result.bytes.end(), [](auto b) { return b == 0; }))
            Cursor::fail(column,
                         "an address or * for any address expected, not \"0.0.0.0\", which no packet has");
    }

    static void ipv6(Cursor& line, Addresses& result) {
        const std::size_t column = line.column();
        result.family = AF_INET6;
        std::size_t length = 0;
        std::uint8_t* bytes = result.bytes.data();
        const std::string_view rest = line.rest();
        if (rest.starts_with('[')) {
            const std::size_t end = rest.find(']');
            if (end == std::string_view::npos || !read_ipv6(rest.substr(1, end - 1), bytes))
                Cursor::fail(column,
                             fmt::format("an IPv6 address in brackets expected, not {}", line.here()));
            length = end + 1;
        } else if ((length = ipv6_length(rest, bytes)) == 0) {
            Cursor::fail(column,
                         fmt::format("an IPv6 address in brackets expected, as in [2001:db8::1]:80, not {}",
                                     line.here()));
        }
        line.skip(length);
        result.prefix = 128;
        if (line.accept('/'))
            result.prefix = static_cast<std::uint8_t>(line.number(128, "a prefix length (0 to 128)"));
    }

    const std::string program_, called_, app_id_;
    Complaints& complaints_;
    const std::string file_;
    std::string_view statement_;  // the line without its comment
    std::size_t count_ = 0;
    unsigned line_ = 0;
    std::vector<Block> blocks_;
    std::size_t current_ = 0;
    bool id_seen_ = false, log_seen_ = false;
};

RuleTable RuleTable::parse(std::string_view text, std::string_view program, std::string_view app_id,
                           Complaints& complaints, std::string_view file, std::string_view called) {
    return Parser(program, called, app_id, complaints, file).run(text);
}

}  // namespace vma::config
