// SPDX-License-Identifier: BSD-2-Clause
// See script.h.
#include "script.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace scripts {
namespace {

constexpr std::string_view kLetters = "FSRP.UEW";  // by bit

// The words of a line. Throws what is wrong with them, without the line.
class Words {
  public:
    explicit Words(const std::string& line) : in_(line) { next(); }
    bool more() const { return more_; }
    const std::string& peek() const { return word_; }
    std::string take() {
        if (!more_) throw std::runtime_error("something is missing at the end");
        std::string word = word_;
        next();
        return word;
    }
    bool take_if(const std::string& word) {
        if (!more_ || word_ != word) return false;
        next();
        return true;
    }
    std::string rest() {
        std::string text;
        while (more_) text += (text.empty() ? "" : " ") + take();
        return text;
    }
    bool digit() const { return more_ && !word_.empty() && word_[0] >= '0' && word_[0] <= '9'; }

  private:
    void next() { more_ = static_cast<bool>(in_ >> word_); }
    std::istringstream in_;
    std::string word_;
    bool more_ = false;
};

std::uint32_t number(const std::string& text) {
    std::size_t end = 0;
    const unsigned long long v = std::stoull(text, &end);
    if (end != text.size() || v > 0xffffffffu) throw std::runtime_error("no number: " + text);
    return static_cast<std::uint32_t>(v);
}
double seconds(const std::string& text) {
    std::size_t end = 0;
    const double v = std::stod(text, &end);
    if (end != text.size()) throw std::runtime_error("no time: " + text);
    return v;
}
// "1", ">=1", "<=1"
Bound bound(const std::string& text) {
    if (text.starts_with(">=")) return {Bound::How::least, number(text.substr(2))};
    if (text.starts_with("<=")) return {Bound::How::most, number(text.substr(2))};
    return {Bound::How::equal, number(text)};
}
std::pair<std::uint32_t, std::uint32_t> range(const std::string& text) {
    const auto colon = text.find(':');
    if (colon == text.npos) return {number(text), number(text)};
    return {number(text.substr(0, colon)), number(text.substr(colon + 1))};
}

std::uint8_t flags(const std::string& text) {
    std::uint8_t bits = 0;
    if (text == "-") return 0;
    for (char c : text) {
        const auto at = kLetters.find(c);
        if (at == kLetters.npos) throw std::runtime_error("no flags: " + text);
        bits |= static_cast<std::uint8_t>(1u << at);
    }
    return bits;
}

std::string bytes(const std::string& hex) {
    std::string out;
    for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
        out += static_cast<char>(std::stoul(hex.substr(i, 2), nullptr, 16));
    while (out.size() % 4 != 0) out += '\1';
    return out;
}

Pattern pattern(Words& words) {
    Pattern p;
    p.flags = flags(words.take());
    const auto [from, to] = range(words.take());
    p.seq = from;
    p.length = to - from;
    while (words.more()) {
        const std::string word = words.take();
        if (word == "ack")
            p.ack = number(words.take());
        else if (word == "win")
            p.window = bound(words.take());
        else if (word == "mss")
            p.mss = words.digit() ? bound(words.take()) : Bound{};
        else if (word == "wscale")
            p.scale = words.digit() ? bound(words.take()) : Bound{};
        else if (word == "sackOK")
            p.sack_allowed = true;
        else if (word == "noTS")
            p.no_stamp = true;
        else if (word == "TS") {
            p.stamp = Stamp{};
            if (words.digit()) p.stamp->value = number(words.take());
            if (words.take_if("ecr")) p.stamp->echo = words.take();
        } else if (word == "sack") {
            while (words.digit()) p.sacks.push_back(range(words.take()));
        } else if (word == "urg")
            p.urgent = static_cast<std::uint16_t>(number(words.take()));
        else if (word == "ect1")
            p.ecn = 1;
        else if (word == "ect0")
            p.ecn = 2;
        else if (word == "ce")
            p.ecn = 3;
        else if (word == "badsum")
            p.bad_checksum = true;
        else if (word == "raw")
            p.raw = bytes(words.take());
        else
            throw std::runtime_error("what is " + word + "?");
    }
    return p;
}

// "+0.2" or "+0.2..0.6"
void gap(Step& s, std::string text) {
    text.erase(0, 1);
    const auto dots = text.find("..");
    s.least = seconds(text.substr(0, dots));
    if (dots != text.npos) s.most = seconds(text.substr(dots + 2));
}

// Of a line of several segments of one length, "1:10001 by 1000", one by one.
std::vector<Step> split(const Step& all, std::uint32_t by) {
    std::vector<Step> parts;
    const std::uint32_t end = all.pattern.seq + all.pattern.length;
    for (std::uint32_t at = all.pattern.seq; at != end;) {
        Step part = all;
        part.pattern.seq = at;
        part.pattern.length = std::min(by, end - at);
        if (!parts.empty()) part.least = part.most = 0;
        at += part.pattern.length;
        parts.push_back(part);
    }
    return parts;
}

std::vector<Step> steps(const std::string& line) {
    Words words(line);
    Step s;
    s.text = line;
    if (words.peek()[0] == '@') s.endpoint = static_cast<int>(number(words.take().substr(1)));
    const std::string first = words.take();
    if (first == "<" || first == ">" || first == ">*") {
        s.again = first == ">*";
        s.kind = first == "<" ? Step::Kind::send : Step::Kind::expect;
        if (first == "<" && words.take_if("icmp")) {
            s.kind = Step::Kind::icmp;
            s.call = words.take();
            if (words.digit()) s.number = number(words.take());
            if (!words.take_if("quoting")) throw std::runtime_error("\"quoting\" is missing");
            s.seq = number(words.take());
            return {s};
        }
        if (words.more() && words.peek()[0] == '+') gap(s, words.take());
        std::uint32_t by = 0;
        std::string rest = words.rest();
        if (const auto at = rest.find(" by "); at != rest.npos) {
            const auto end = std::min(rest.find(' ', at + 4), rest.size());
            by = number(rest.substr(at + 4, end - at - 4));
            rest.erase(at, end - at);
        }
        Words segment(rest);
        s.pattern = pattern(segment);
        return by == 0 ? std::vector<Step>{s} : split(s, by);
    }
    if (first == "nothing" || first == "sleep") {
        s.kind = first == "sleep" ? Step::Kind::sleep : Step::Kind::nothing;
        s.least = seconds(words.take());
        return {s};
    }
    if (first == "renumber") {
        s.kind = Step::Kind::renumber;
        s.number = number(words.take());
        return {s};
    }
    // "listen l 5 = 0", "recv c 100 >= 1"
    s.call = first;
    while (words.more() && words.peek() != "=" && words.peek() != ">=" && words.peek() != "<=" &&
           words.peek() != "!=")
        s.call += " " + words.take();
    s.want = words.rest();
    if (s.want.empty()) s.want = "= 0";
    return {s};
}

// Lines in front of the steps. False: the line is a step.
bool head(Script& s, const std::string& line) {
    Words words(line);
    const std::string first = words.take();
    if (first == "sysctl")
        s.sysctls.push_back(words.rest());
    else if (first == "kernel")
        s.kernel_segments = number(words.take());
    else if (first == "isn")
        s.first = number(words.take());
    else if (first == "differs:")
        s.differs = words.rest();
    else
        return false;
    return true;
}

// The lines that "passive OPTIONS" and "active OPTIONS" stand for: a handshake, in which the program's socket
// is called c and the peer offers OPTIONS. Before them may stand "rtt S", the round trip that the program
// measures, and "window N" of the ACK that ends a passive handshake.
std::vector<std::string> handshake(const std::string& line) {
    Words words(line);
    const std::string how = words.take();
    // Long enough for calls on a busy machine to come before a segment is repeated.
    std::string wait = "+0.2 ", window, answer = " mss";
    if (words.take_if("rtt")) wait = "+" + words.take() + " ";
    if (words.take_if("window")) window = " win " + words.take();
    std::string offer = words.rest();
    if (offer.empty()) offer = "mss 1000 sackOK wscale 7";
    Words offered(offer);
    while (offered.more())
        if (const std::string word = offered.take(); word == "sackOK" || word == "TS" || word == "wscale")
            answer += " " + word;
    if (how == "passive")
        return {"listen l", "< S 0 " + offer, "> S. 0 ack 1" + answer, "< " + wait + ". 1 ack 1" + window,
                "accept l c = 1"};
    return {"connect c = EINPROGRESS", "> S 0 mss sackOK TS wscale", "< " + wait + "S. 0 ack 1 " + offer,
            "> . 1 ack 1", "error c = 0"};
}

void add_line(std::vector<Script>& scripts, const std::string& theme, std::string line, int at) {
    const auto begin = line.find_first_not_of(" \t");
    if (begin == line.npos) return;
    line.erase(0, begin);
    if (line.starts_with("== ")) {
        scripts.push_back({.theme = theme, .name = line.substr(3)});
        return;
    }
    if (scripts.empty()) {
        if (line[0] == '#') return;
        throw std::runtime_error("no script has begun");
    }
    Script& s = scripts.back();
    if (line[0] == '#') {
        if (s.steps.empty()) s.why += line.substr(1);
        return;
    }
    if (const auto comment = line.find("  #"); comment != line.npos) line.erase(comment);
    if (s.steps.empty() && head(s, line)) return;
    if (line.starts_with("passive") || line.starts_with("active")) {
        for (const auto& part : handshake(line)) add_line(scripts, theme, part, at);
        return;
    }
    for (Step& step : steps(line)) {
        step.line = at;
        s.steps.push_back(std::move(step));
    }
}

}  // namespace

std::string flag_letters(std::uint8_t flags) {
    std::string text;
    for (unsigned bit : {1u, 0u, 2u, 3u, 6u, 7u, 5u, 4u})
        if (flags >> bit & 1) text += kLetters[bit];
    return text.empty() ? "-" : text;
}

std::vector<Script> read_scripts(const std::string& path) {
    std::ifstream file(path);
    if (!file) throw std::runtime_error("cannot read " + path);
    std::vector<Script> scripts;
    const std::string theme = std::filesystem::path(path).stem();
    int at = 0;
    for (std::string line; std::getline(file, line);) {
        at++;
        try {
            add_line(scripts, theme, line, at);
        } catch (const std::exception& e) {
            throw std::runtime_error(path + ":" + std::to_string(at) + ": " + e.what() + ": " + line);
        }
    }
    return scripts;
}

std::vector<Script> all_scripts(const std::string& directory) {
    std::vector<std::string> paths;
    for (const auto& entry : std::filesystem::directory_iterator(directory))
        if (entry.path().extension() == ".script") paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end());
    std::vector<Script> all;
    for (const auto& path : paths)
        for (auto& script : read_scripts(path)) all.push_back(std::move(script));
    return all;
}

}  // namespace scripts
