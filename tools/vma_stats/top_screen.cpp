// SPDX-License-Identifier: BSD-2-Clause
// --top: the live view on a terminal. What it shows is top_model's; here are the screen and the keys.
#include <langinfo.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ncurses last: it defines macros with common names.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/vma_stats/stop.h"
#include "tools/vma_stats/top_model.h"
#include "tools/vma_stats/watch.h"

#define NCURSES_NOMACROS
#define NCURSES_WIDECHAR 1
#include <ncurses.h>

namespace vma_stats {
namespace {

constexpr double kFastest = 0.1, kSlowest = 60;
constexpr int kScreenTick = 50;  // milliseconds between looks at the clock while no key is pressed
constexpr int kFirstLine = 3;

// Restores the terminal on every way out.
class Screen {
  public:
    Screen() : screen_(newterm(nullptr, stdout, stdin)) {
        if (screen_ == nullptr) return;
        set_term(screen_);
        cbreak();
        noecho();
        keypad(stdscr, true);
        curs_set(0);
        ::timeout(kScreenTick);
        if (has_colors()) {
            start_color();
            use_default_colors();
        }
    }
    ~Screen() {
        if (screen_ == nullptr) return;
        endwin();
        delscreen(screen_);
    }
    Screen(const Screen&) = delete;
    Screen& operator=(const Screen&) = delete;
    // False when the terminal's kind (TERM) is not known.
    explicit operator bool() const { return screen_ != nullptr; }

  private:
    SCREEN* screen_;
};

class Top {
  public:
    Top(const Options& options, Fleet& fleet)
        : options_(options),
          fleet_(fleet),
          model_(strcmp(nl_langinfo(CODESET), "UTF-8") == 0),
          interval_(options.interval) {}

    int run() {
        std::int64_t next = tools::now_ns(CLOCK_MONOTONIC);
        long reports = 0;
        while (!stopped() && !quit_) {
            if (!paused_ && tools::now_ns(CLOCK_MONOTONIC) >= next) {
                if (!take()) return fleet_.failed() ? kFailed : kOk;
                if (options_.cycles != 0 && ++reports > options_.cycles) break;
                next = tools::now_ns(CLOCK_MONOTONIC) + static_cast<std::int64_t>(interval_ * 1e9);
                draw();
            }
            const int key = getch();
            if (key == ERR) continue;
            const double before = interval_;
            press(key);
            if (before != interval_) next = tools::now_ns(CLOCK_MONOTONIC);
            draw();
        }
        return kOk;
    }
    // Messages for stderr after the screen is gone.
    const std::vector<std::string>& farewell() const { return farewell_; }

  private:
    // False: no process is left to watch.
    bool take() {
        std::vector<Sample> samples = fleet_.sample();
        for (std::string& line : fleet_.complaints()) farewell_.push_back(std::move(line));
        for (const Sample& sample : samples)
            if (sample.ended)
                farewell_.push_back(fmt::format("process {} ({}) has ended", sample.pid, sample.program));
        std::erase_if(samples, [](const Sample& sample) { return sample.ended; });
        model_.take(std::move(samples), options_.shape);
        return !fleet_.empty() || (options_.wait && !options_.pid);
    }

    void press(int key) {
        switch (key) {
            case 'q':
            case 'Q':
            case 27:
                quit_ = true;
                break;
            case '1':
            case '2':
            case '3':
            case '4':
                model_.page = static_cast<TopPage>(key - '0');
                first_ = 0;
                break;
            case '\t':
                model_.page = static_cast<TopPage>(static_cast<int>(model_.page) % 4 + 1);
                first_ = 0;
                break;
            case 's':
                model_.next_sort();
                break;
            case 'r':
                model_.reversed = !model_.reversed;
                break;
            case ' ':
            case 'p':
                paused_ = !paused_;
                break;
            case '+':
                interval_ = std::min(interval_ * 2, kSlowest);
                break;
            case '-':
                interval_ = std::max(interval_ / 2, kFastest);
                break;
            case 'h':
            case '?':
                help_ = !help_;
                break;
            case KEY_UP:
                first_--;
                break;
            case KEY_DOWN:
                first_++;
                break;
            case KEY_PPAGE:
                first_ -= room();
                break;
            case KEY_NPAGE:
                first_ += room();
                break;
            case KEY_HOME:
                first_ = 0;
                break;
            default:
                break;  // KEY_RESIZE: drawing anew is all it takes
        }
    }

    static int room() { return std::max(1, LINES - kFirstLine - 1); }

    // A line, cut at the screen's edge. Sparklines are not ASCII, so the cut counts characters.
    static void put(int y, const std::string& line, attr_t attributes = A_NORMAL) {
        if (y >= LINES) return;
        std::size_t bytes = 0;
        int columns = 0;
        while (bytes < line.size() && columns < COLS) {
            bytes++;
            while (bytes < line.size() && (static_cast<unsigned char>(line[bytes]) & 0xc0) == 0x80) bytes++;
            columns++;
        }
        attr_set(attributes, 0, nullptr);
        mvaddnstr(y, 0, line.c_str(), static_cast<int>(bytes));
        // A heading goes over the whole width.
        if ((attributes & A_REVERSE) != 0)
            for (; columns < COLS; columns++) addch(' ');
        attr_set(A_NORMAL, 0, nullptr);
    }

    void draw() {
        erase();
        const auto lines = help_ ? help() : model_.lines();
        first_ = std::clamp(first_, 0, std::max(0, static_cast<int>(lines.size()) - room()));
        put(0, "vma_stats  " + model_.title(), A_BOLD);
        put(1, fmt::format("every {:g} s, sorted by {}{}{}", interval_, model_.sort_name(),
                           model_.reversed ? ", reversed" : "", paused_ ? "   PAUSED" : ""));
        put(2, help_ ? "KEYS" : model_.heading(), A_REVERSE);
        for (int i = 0; i < room() && first_ + i < static_cast<int>(lines.size()); i++)
            put(kFirstLine + i, lines[static_cast<std::size_t>(first_) + static_cast<std::size_t>(i)]);
        if (lines.empty()) put(kFirstLine, "nothing here");
        put(LINES - 1,
            "1 sockets  2 rings  3 waiting  4 reasons  s sort  r reverse  p pause  +/- interval  h keys  q "
            "quit",
            A_DIM);
        refresh();
    }

    static std::vector<std::string> help() {
        return {"1 2 3 4, tab   page: sockets, rings, waiting (select, poll, epoll), reasons",
                "s, r           next order; reversed",
                "p, space       pause",
                "+, -           longer, shorter interval",
                "up, down, page up, page down, home   scroll",
                "q, escape      quit",
                "",
                "RT: how a socket receives and sends: L libvma, k kernel, - neither yet",
                "HISTORY: packets of the last reports, the highest one full"};
    }

    const Options& options_;
    Fleet& fleet_;
    TopModel model_;
    double interval_;
    bool quit_ = false, paused_ = false, help_ = false;
    int first_ = 0;  // line at the top
    std::vector<std::string> farewell_;
};

}  // namespace

int top(const Options& options, Fleet& fleet) {
    if (isatty(STDIN_FILENO) == 0 || isatty(STDOUT_FILENO) == 0) {
        say("--top needs a terminal; use a view (-v) or --json instead");
        return kFailed;
    }
    setlocale(LC_CTYPE, "");
    Top view(options, fleet);
    int status = kFailed;
    bool known = false;
    {
        Screen screen;
        known = static_cast<bool>(screen);
        if (known) status = view.run();
    }
    if (!known) {
        const char* name = getenv("TERM");
        say(fmt::format("--top does not know this terminal (TERM={}); use a view (-v) or --json instead",
                        name != nullptr ? name : ""));
    }
    for (const std::string& line : view.farewell()) say(line);
    return status;
}

}  // namespace vma_stats
