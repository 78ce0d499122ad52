// SPDX-License-Identifier: BSD-2-Clause
// Numbers and lists of numbers in options.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace tools {

// Reads a text from its beginning, piece by piece.
class Scanner {
  public:
    explicit Scanner(std::string_view text) : at_(text.data()), end_(at_ + text.size()) {}
    bool at_end() const noexcept { return at_ == end_; }
    // Steps over `c`. False: something else is next.
    bool skip(char c) noexcept {
        if (at_end() || *at_ != c) return false;
        ++at_;
        return true;
    }
    // Decimal digits without a sign. Nothing: no digit is next, or the number is too large for the type.
    template <class Number>
    std::optional<Number> number() noexcept {
        if (at_end() || *at_ < '0' || *at_ > '9') return std::nullopt;
        Number value{};
        const auto [next, error] = std::from_chars(at_, end_, value);
        if (error != std::errc()) return std::nullopt;
        at_ = next;
        return value;
    }

  private:
    const char* at_;
    const char* const end_;
};

// The number that the whole text is. Nothing: the text is something else.
template <class Number>
std::optional<Number> whole_number(std::string_view text) noexcept {
    Scanner scanner(text);
    const auto value = scanner.number<Number>();
    return scanner.at_end() ? value : std::nullopt;
}

// Numbers from `first` to `last`, both included.
struct Range {
    int first = 0, last = 0;
    friend bool operator==(const Range&, const Range&) = default;
};
// "0,2-4" -> 0 to 0, 2 to 4. Nothing: the text is no such list, or a number is above `most`.
std::optional<std::vector<Range>> parse_ranges(std::string_view text, int most);

}  // namespace tools
