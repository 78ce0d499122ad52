// SPDX-License-Identifier: BSD-2-Clause
// Parser and matcher of libvma.conf; the file itself is read in rules_file.cpp.
//
// Statements are lines, so the parser is one cursor over a line and a function for each part of the grammar.
// A part that does not fit throws Mistake, which ends the line and nothing else.
#include "libvma/config/rules.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fnmatch.h>

#include <charconv>
#include <string>

namespace vma::config {
namespace {

constexpr std::size_t kMaxComplaints = 20;  // a file of another kind would otherwise fill the log
constexpr std::string_view kDefaultId = "VMA_DEFAULT_APPLICATION_ID";

struct Mistake {
    std::size_t column;  // from 0
    std::string text;
};

bool is_blank(char c) noexcept { return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f'; }
bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }
bool is_hex(char c) noexcept { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
bool is_keyword(char c) noexcept {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-';
}

// One line without its comment.
class Cursor {
  public:
    explicit Cursor(std::string_view line) noexcept : line_(line) { skip_blanks(); }

    bool at_end() const noexcept { return at_ == line_.size(); }
    std::size_t column() const noexcept { return at_; }
    std::string_view rest() const noexcept { return line_.substr(at_); }
    char peek() const noexcept { return at_end() ? '\0' : line_[at_]; }

    // Takes `c` if it comes next.
    bool accept(char c) noexcept {
        if (at_end() || line_[at_] != c) return false;
        at_++;
        skip_blanks();
        return true;
    }
    // Same for a character inside a token, after which no blank may come.
    bool accept_inside(char c) noexcept {
        if (at_end() || line_[at_] != c) return false;
        at_++;
        return true;
    }

    // A run of non-blank characters, possibly none.
    std::string_view word() noexcept {
        return run([](char c) { return !is_blank(c); });
    }
    // A run of letters, digits, _ and -, possibly none.
    std::string_view keyword() noexcept { return run(is_keyword); }

    // Decimal digits, value at most `max`; `what` is for the message.
    unsigned number(unsigned max, std::string_view what, bool inside_token = false) {
        std::size_t start = at_;
        while (!at_end() && is_digit(line_[at_])) at_++;
        std::string_view digits = line_.substr(start, at_ - start);
        if (digits.empty()) fail(start, fmt::format("{} expected, not {}", what, here()));
        if (digits.size() > 1 && digits[0] == '0') fail(start, fmt::format("{} with a leading zero", what));
        unsigned value = 0;
        auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
        if (error != std::errc() || value > max) fail(start, fmt::format("{} above {}", what, max));
        if (!inside_token) skip_blanks();
        return value;
    }

    void expect_end() {
        if (!at_end()) fail(at_, fmt::format("end of line expected, not {}", here()));
    }

    // What comes next, for a message.
    std::string here() const {
        if (at_end()) return "the end of the line";
        std::size_t size = 0;
        while (at_ + size < line_.size() && size < 40 && !is_blank(line_[at_ + size])) size++;
        return fmt::format("\"{}\"", line_.substr(at_, size));
    }

    [[noreturn]] static void fail(std::size_t column, std::string text) {
        throw Mistake{column, std::move(text)};
    }

  private:
    void skip_blanks() noexcept {
        while (at_ < line_.size() && is_blank(line_[at_])) at_++;
    }
    template <class F>
    std::string_view run(F belongs) noexcept {
        std::size_t start = at_;
        while (at_ < line_.size() && belongs(line_[at_])) at_++;
        std::string_view found = line_.substr(start, at_ - start);
        skip_blanks();
        return found;
    }

    std::string_view line_;
    std::size_t at_ = 0;
};

// A "use" statement with one blank between each two words and none elsewhere.
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

// Does an IPv6 address stand here? Either in brackets, or with more colons than an IPv4 endpoint can begin
// with.
bool looks_like_ipv6(std::string_view text) noexcept {
    if (text.starts_with('[') || text.starts_with("::")) return true;
    int colons = 0;
    bool digits = false;
    for (char c : text) {
        if (c == ':')
            colons++;
        else if (is_hex(c))
            digits = true;
        else
            break;
    }
    return digits && colons >= 2;
}

}  // namespace

class Rules::Parser {
  public:
    Parser(std::string_view program, std::string_view app_id, Complaints& complaints, std::string_view file)
        : program_(program), app_id_(app_id), complaints_(complaints), file_(file) {}

    Rules run(std::string_view text) {
        if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // byte order mark of some editors
        while (!text.empty()) {
            line_++;
            std::size_t end = text.find('\n');
            std::string_view line = text.substr(0, end);
            text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
            statement_ = line.substr(0, line.find('#'));
            try {
                statement(Cursor(statement_));
            } catch (const Mistake& mistake) {
                complain(mistake.column, mistake.text);
            }
        }
        if (count_ > kMaxComplaints)
            complaints_.push_back(fmt::format("{} more mistakes are not listed", count_ - kMaxComplaints));
        if (app_id_ != kDefaultId && app_id_ != "*" && !id_seen_)
            complaints_.push_back(fmt::format("no application-id has the id \"{}\"", app_id_));
        Rules rules;
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
    };

    void complain(std::size_t column, std::string_view text) {
        if (++count_ <= kMaxComplaints)
            complaints_.push_back(fmt::format("line {}, column {}: {}", line_, column + 1, text));
    }

    bool fits(const Block& block) const {
        bool id = block.id == "*" || app_id_ == "*" || block.id == app_id_;
        return id && fnmatch(block.program.c_str(), program_.c_str(), 0) == 0;
    }

    void statement(Cursor line) {
        if (line.at_end()) return;
        std::string first = line.here();
        std::string_view keyword = line.keyword();
        if (keyword == "use")
            use(line);
        else if (keyword == "application-id")
            application(line);
        else if (keyword == "log")
            log(line);
        else
            Cursor::fail(0, fmt::format("application-id, use or log expected, not {}", first));
    }

    void application(Cursor& line) {
        std::size_t column = line.column();
        std::string_view program = line.word(), id = line.word();
        if (program.empty()) Cursor::fail(line.column(), "a program name or * expected");
        if (id.empty()) Cursor::fail(line.column(), "an id or * expected after the program name");
        line.expect_end();
        id_seen_ = id_seen_ || id == app_id_;
        for (std::size_t i = 0; i < blocks_.size(); i++) {
            if (blocks_[i].program == program && blocks_[i].id == id) {
                current_ = i;
                return;
            }
        }
        for (const Block& earlier : blocks_) {
            if (earlier.program != "*" || earlier.id != "*") continue;
            complain(
                column,
                fmt::format("this block has no effect: `* *` of line {} comes first and fits every program",
                            earlier.line));
            break;
        }
        open(program, id);
    }

    void open(std::string_view program, std::string_view id) {
        current_ = blocks_.size();
        blocks_.push_back({std::string(program), std::string(id), line_, {}});
    }

    void log(Cursor& line) {
        while (!line.at_end()) {
            std::size_t column = line.column();
            std::string_view keyword = line.keyword();
            if (keyword == "min-level") {
                line.number(9, "a level");
            } else if (keyword == "destination") {
                column = line.column();
                std::string_view to = line.keyword();
                if (to == "file" || to == "yfile") {
                    if (line.word().empty()) Cursor::fail(line.column(), "a file name expected");
                } else if (to != "stderr" && to != "ystderr" && to != "syslog") {
                    Cursor::fail(column, "stderr, syslog or file expected");
                }
            } else {
                Cursor::fail(column, "destination or min-level expected");
            }
        }
    }

    void use(Cursor& line) {
        struct Name {
            std::string_view name;
            Role role;
        };
        static constexpr Name kRoles[] = {{"tcp_server", Role::tcp_server},
                                          {"tcp_client", Role::tcp_client},
                                          {"udp_sender", Role::udp_sender},
                                          {"udp_receiver", Role::udp_receiver},
                                          {"udp_connect", Role::udp_connect}};
        Rule rule{};
        bool ignored = false;
        std::size_t transport_column = line.column();
        std::string transport_text = line.here();
        std::string_view transport;
        if (line.accept('*')) {
            rule.transport = Word::any;
        } else {
            transport = line.keyword();
            if (transport == "vma")
                rule.transport = Word::vma;
            else if (transport == "os")
                rule.transport = Word::os;
            else if (transport == "sdp" || transport == "sa")
                ignored = true;
            else
                Cursor::fail(transport_column, fmt::format("vma or os expected, not {}", transport_text));
        }
        std::size_t column = line.column();
        std::string role_text = line.here();
        std::string_view keyword = line.keyword();
        const Name* role = nullptr;
        for (const Name& candidate : kRoles)
            if (candidate.name == keyword) role = &candidate;
        if (role == nullptr)
            Cursor::fail(
                column,
                fmt::format(
                    "tcp_server, tcp_client, udp_sender, udp_receiver or udp_connect expected, not {}",
                    role_text));
        rule.first = addresses(line);
        std::size_t second_column = line.column();
        if (line.accept(':')) rule.second = addresses(line);
        line.expect_end();

        if (ignored) {
            complain(transport_column, fmt::format("{} is not supported, the rule is ignored", transport));
            return;
        }
        if (rule.second && role->role != Role::tcp_client && role->role != Role::udp_connect) {
            complain(second_column,
                     fmt::format("{} knows one address only, the second one is ignored", keyword));
            rule.second.reset();
        }
        rule.text = fmt::format("{}:{}: {}", file_, line_, plain(statement_));
        if (blocks_.empty()) open("*", "*");  // rules before the first application-id
        blocks_[current_].lists[static_cast<std::size_t>(role->role)].push_back(std::move(rule));
    }

    static Addresses addresses(Cursor& line) {
        Addresses result;
        if (!line.accept('*')) {
            std::size_t column = line.column();
            if (looks_like_ipv6(line.rest())) Cursor::fail(column, "IPv6 addresses are not supported yet");
            if (!is_digit(line.peek()))
                Cursor::fail(column,
                             fmt::format("an address a.b.c.d[/prefix] or * expected, not {}", line.here()));
            std::uint32_t host = 0;
            for (int i = 0; i < 4; i++) {
                if (i > 0 && !line.accept_inside('.'))
                    Cursor::fail(line.column(), "an address has four numbers with dots between them");
                host = host << 8 | line.number(255, "a number of an address", i < 3);
            }
            unsigned prefix = 32;
            if (line.accept('/')) prefix = line.number(32, "a prefix length");
            std::uint32_t mask = prefix == 0 ? 0 : ~std::uint32_t{0} << (32 - prefix);
            result.mask = htonl(mask);
            result.addr = htonl(host & mask);
        }
        if (!line.accept(':'))
            Cursor::fail(line.column(), fmt::format("a colon and ports expected, not {}", line.here()));
        if (line.accept('*')) return result;
        std::size_t column = line.column();
        unsigned low = line.number(65535, "a port"), high = low;
        if (line.accept('-')) {
            high = line.number(65535, "a port");
            if (high < low) Cursor::fail(column, fmt::format("the range {}-{} is reversed", low, high));
        }
        if (high == 0) Cursor::fail(column, "port 0 is no port");
        result.low = static_cast<std::uint16_t>(low);
        result.high = static_cast<std::uint16_t>(high);
        return result;
    }

    const std::string program_, app_id_;
    Complaints& complaints_;
    const std::string file_;
    std::string_view statement_;  // the line without its comment
    std::size_t count_ = 0;
    unsigned line_ = 0;
    std::vector<Block> blocks_;
    std::size_t current_ = 0;
    bool id_seen_ = false;
};

Rules Rules::parse(std::string_view text, std::string_view program, std::string_view app_id,
                   Complaints& complaints, std::string_view file) {
    return Parser(program, app_id, complaints, file).run(text);
}

bool Rules::Addresses::matches(Endpoint endpoint) const noexcept {
    std::uint16_t port = ntohs(endpoint.port);
    return (endpoint.addr & mask) == addr && port >= low && port <= high;
}

Decision Rules::match(Role role, Endpoint first, const Endpoint* second) const {
    for (const Rule& rule : lists_[static_cast<std::size_t>(role)]) {
        if (!rule.first.matches(first)) continue;
        if (rule.second && second != nullptr && !rule.second->matches(*second)) continue;
        switch (rule.transport) {
            case Word::vma:
                return {Transport::vma, &rule.text};
            case Word::os:
                return {Transport::os, &rule.text};
            case Word::any: {
                bool unicast_receiver = role == Role::udp_receiver && !IN_MULTICAST(ntohl(first.addr));
                bool os = role == Role::tcp_client || role == Role::udp_connect || unicast_receiver;
                return {os ? Transport::os : Transport::vma, &rule.text};
            }
        }
    }
    return {};
}

const std::string* Rules::all_os(Role role) const {
    for (const Rule& rule : lists_[static_cast<std::size_t>(role)]) {
        if (rule.transport != Word::os) return nullptr;
        if (rule.first.everything() && (!rule.second || rule.second->everything())) return &rule.text;
    }
    return nullptr;
}

}  // namespace vma::config
