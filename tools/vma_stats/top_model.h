// SPDX-License-Identifier: BSD-2-Clause
// The lines of text of the full-screen view. The model has no terminal, so that tests can read its lines.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tools/vma_stats/fleet.h"

namespace vma_stats {

enum class TopPage { sockets = 1, rings, waiting, reasons };
enum class TopSort { rate, receive, send, drops, fd };
inline constexpr int kTopSorts = 5;

// Columns of a sparkline and reports it goes back.
inline constexpr std::size_t kSparkline = 16;

// Heights of the values relative to the largest: eighths of blocks, or ASCII where the terminal has no UTF-8.
std::string sparkline(const std::deque<double>& values, bool utf8);

class TopModel {
  public:
    explicit TopModel(bool utf8) : utf8_(utf8) {}

    // Takes a report of all processes.
    void take(std::vector<Sample> samples, const Shape& shape);

    TopPage page = TopPage::sockets;
    TopSort sort = TopSort::rate;
    bool reversed = false;
    void next_sort() { sort = static_cast<TopSort>((static_cast<int>(sort) + 1) % kTopSorts); }
    const char* sort_name() const;

    std::string title() const;               // how many processes and sockets, rates of all together
    std::string heading() const;             // of the page
    std::vector<std::string> lines() const;  // of the page

  private:
    struct Rates {
        double rx_packets = 0, rx_bytes = 0, tx_packets = 0, tx_bytes = 0, drops = 0;
        double packets() const { return rx_packets + tx_packets; }
    };
    struct SocketLine {
        pid_t pid;
        std::string program;
        layout::SocketBlock block;
        Rates rates;
        const std::deque<double>* history;
    };
    using Key = std::pair<pid_t, std::uint64_t>;

    static Rates rates_of(const layout::SocketBlock& change, double seconds);
    std::vector<std::string> socket_lines() const;
    std::vector<std::string> ring_lines() const;
    std::vector<std::string> waiting_lines() const;
    std::vector<std::string> reason_lines() const;
    bool before(const SocketLine& a, const SocketLine& b) const;

    bool utf8_;
    std::vector<Sample> samples_;
    std::vector<SocketLine> sockets_;
    std::map<Key, std::deque<double>> histories_;
};

}  // namespace vma_stats
