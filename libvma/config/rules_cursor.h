// SPDX-License-Identifier: BSD-2-Clause
// Reads one line of libvma.conf from left to right. Text that does not fit throws Mistake, which ends that
// line only.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <string>
#include <string_view>

namespace vma::config {

struct Mistake {
    std::size_t column;  // from 0
    std::string text;
};

inline bool is_blank(char c) noexcept { return c == ' ' || c == '\t' || c == '\v' || c == '\f'; }
inline bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }
inline bool is_hex(char c) noexcept {
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}
inline bool is_control(char c) noexcept { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; }

// `text` in quotes for a message. It holds at most 40 bytes of `text`. Bytes that are not printable ASCII
// become \xNN, so that a binary file sends no control sequences to the terminal.
inline std::string quoted(std::string_view text) {
    std::string result = "\"";
    for (char c : text.substr(0, 40)) {
        if (is_control(c) || static_cast<unsigned char>(c) >= 0x80)
            fmt::format_to(std::back_inserter(result), "\\x{:02x}", static_cast<unsigned char>(c));
        else
            result += c;
    }
    return result + (text.size() > 40 ? "...\"" : "\"");
}

// A line without its comment.
class Cursor {
  public:
    explicit Cursor(std::string_view line) noexcept : line_(line) { skip_blanks(); }

    bool at_end() const noexcept { return at_ == line_.size(); }
    std::size_t column() const noexcept { return at_; }
    std::string_view rest() const noexcept { return line_.substr(at_); }
    char peek() const noexcept { return at_end() ? '\0' : line_[at_]; }

    // Passes `size` characters and the blanks behind them.
    void skip(std::size_t size) noexcept {
        at_ += size;
        skip_blanks();
    }
    // Takes `c`, and the blanks behind it, if `c` comes next.
    bool accept(char c) noexcept {
        if (!accept_inside(c)) return false;
        skip_blanks();
        return true;
    }
    // Same for a character inside a token, where no blank may follow.
    bool accept_inside(char c) noexcept {
        if (at_end() || line_[at_] != c) return false;
        at_++;
        return true;
    }

    // Takes a run of non-blank characters, possibly none. Control characters are a Mistake.
    std::string_view word() {
        for (std::size_t i = at_; i < line_.size() && !is_blank(line_[i]); i++)
            if (is_control(line_[i]))
                fail(i, fmt::format("a printable character expected, not {}", quoted(line_.substr(i, 1))));
        return run([](char c) { return !is_blank(c); });
    }
    // Takes a run of letters, digits, _ and -, possibly none.
    std::string_view keyword() noexcept {
        return run([](char c) {
            return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-';
        });
    }

    // Takes decimal digits with a value of at most `max`; `what` tells the range in the message. Passes the
    // blanks behind the digits unless they stand inside a token.
    unsigned number(unsigned max, std::string_view what, bool inside_token = false) {
        const std::size_t start = at_;
        while (!at_end() && is_digit(line_[at_])) at_++;
        const std::string_view digits = line_.substr(start, at_ - start);
        if (digits.empty()) fail(start, fmt::format("{} expected, not {}", what, here()));
        if (digits.size() > 1 && digits[0] == '0')
            fail(start, fmt::format("{} without leading zeros expected, not {}", what, quoted(digits)));
        unsigned value = 0;
        const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
        if (error != std::errc() || value > max)
            fail(start, fmt::format("{} expected, not {}", what, quoted(digits)));
        if (!inside_token) skip_blanks();
        return value;
    }

    void expect_end() const {
        if (!at_end()) fail(at_, fmt::format("end of line expected, not {}", here()));
    }

    // The next token, for a message.
    std::string here() const {
        if (at_end()) return "the end of the line";
        if (is_blank(line_[at_])) return "a blank";
        std::size_t size = 0;
        while (at_ + size < line_.size() && !is_blank(line_[at_ + size])) size++;
        return quoted(line_.substr(at_, size));
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
        const std::size_t start = at_;
        while (at_ < line_.size() && belongs(line_[at_])) at_++;
        const std::string_view found = line_.substr(start, at_ - start);
        skip_blanks();
        return found;
    }

    std::string_view line_;
    std::size_t at_ = 0;
};

}  // namespace vma::config
