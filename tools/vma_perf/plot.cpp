// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tools/vma_perf/files.h"
#include "tools/vma_perf/status.h"

namespace vma_perf {
namespace {

constexpr double kWidth = 800, kHeight = 450;
constexpr double kLeft = 70, kRight = 20, kTop = 20, kBottom = 55;
// Colour-blind readers tell these colours apart, too.
constexpr const char* kColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                    "#e69f00", "#56b4e9", "#000000"};
constexpr const char* kDashes[] = {"", "6 3", "2 3"};

std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text) {
        switch (c) {
            case '&':
                out += "&amp;";
                break;
            case '<':
                out += "&lt;";
                break;
            case '>':
                out += "&gt;";
                break;
            case '"':
                out += "&quot;";
                break;
            default:
                // Control characters have no place in XML.
                if (static_cast<unsigned char>(c) >= 0x20) out += c;
        }
    }
    return out;
}

// 0 for 0 %, 1 for 90 %, 2 for 99 %, ...
double nines(double percentile) { return -std::log10(1 - percentile / 100); }

std::string percent_text(int nine) {
    if (nine == 0) return "0 %";
    if (nine == 1) return "90 %";
    return nine == 2 ? "99 %" : "99." + std::string(static_cast<std::size_t>(nine) - 2, '9') + " %";
}

class Axes {
  public:
    explicit Axes(const std::vector<Curve>& curves) {
        double low = INFINITY, high = 0;
        for (const Curve& curve : curves)
            for (const auto& [percentile, us] : curve.points) {
                if (percentile < 100) most_nines_ = std::max(most_nines_, nines(percentile));
                if (us > 0) low = std::min(low, us);
                high = std::max(high, us);
            }
        if (high <= 0) low = high = 1;
        // Whole steps of 1, 2, 5 below and above.
        low_ = step_at_most(low);
        high_ = step_at_most(high);
        if (high_ < high || high_ == low_) high_ = next_step(high_);
    }
    double x(double percentile) const {
        return kLeft + nines(percentile) / most_nines_ * (kWidth - kLeft - kRight);
    }
    double y(double us) const {
        const double part = std::log(std::max(us, low_) / low_) / std::log(high_ / low_);
        return kHeight - kBottom - part * (kHeight - kTop - kBottom);
    }
    std::string grid() const {
        std::string svg;
        for (int nine = 0; nine <= static_cast<int>(most_nines_ + 1e-9); ++nine) {
            const double at = kLeft + nine / most_nines_ * (kWidth - kLeft - kRight);
            svg += fmt::format(
                "<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"#ddd\"/>\n"
                "<text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4}</text>\n",
                at, kTop, kHeight - kBottom, kHeight - kBottom + 18, percent_text(nine));
        }
        for (double us = low_; us < high_ * 1.0001; us = next_step(us))
            svg += fmt::format(
                "<line x1=\"{0}\" y1=\"{1:.1f}\" x2=\"{2}\" y2=\"{1:.1f}\" stroke=\"#ddd\"/>\n"
                "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:g}</text>\n",
                kLeft, y(us), kWidth - kRight, kLeft - 6, y(us) + 4, us);
        return svg;
    }

  private:
    // 1, 2, 5, 10, 20, ... and as far below 1.
    static double step_at_most(double value) {
        const double power = std::pow(10, std::floor(std::log10(value) + 1e-9));
        const double digit = value / power * (1 + 1e-9);
        return (digit >= 5 ? 5 : digit >= 2 ? 2 : 1) * power;
    }
    static double next_step(double step) {
        const double power = std::pow(10, std::floor(std::log10(step) + 1e-9));
        const double digit = std::round(step / power);
        return digit < 2 ? 2 * power : digit < 5 ? 5 * power : 10 * power;
    }

    double most_nines_ = 1;
    double low_ = 1, high_ = 10;
};

}  // namespace

Curve curve_of(const nlohmann::json& result, const std::string& where) {
    try {
        Curve curve;
        curve.label = result.at("label").get<std::string>();
        curve.whole_round_trip = result.at("latency_of").get<std::string>() == "round trip";
        curve.points = result.at("curve").get<std::vector<std::pair<double, double>>>();
        const bool sound = std::all_of(curve.points.begin(), curve.points.end(), [](const auto& p) {
            return p.first >= 0 && p.first <= 100 && std::isfinite(p.second) && p.second >= 0;
        });
        if (!curve.points.empty() && sound) return curve;
    } catch (const nlohmann::json::exception&) {  // told below
    }
    throw Failure(kFailed, fmt::format("{}: no percentile curve of a vma_perf ping-pong in there", where));
}

void read_curves(const std::string& path, std::vector<Curve>& curves) {
    const nlohmann::json json = read_json(path);
    if (!json.is_object() || !json.contains("results")) {
        curves.push_back(curve_of(json, path));
        return;
    }
    for (const nlohmann::json& result : json["results"]) curves.push_back(curve_of(result, path));
}

std::string draw(const std::vector<Curve>& curves) {
    for (const Curve& curve : curves)
        if (curve.whole_round_trip != curves.front().whole_round_trip)
            throw Failure(kUsage, "--plot: some results are whole round trips (--rtt), others are halves");
    const Axes axes(curves);
    std::string svg = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
        "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" "
        "fill=\"white\"/>\n",
        kWidth, kHeight);
    svg += axes.grid();
    svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">percentile of the messages</text>\n",
                       (kLeft + kWidth - kRight) / 2, kHeight - 12);
    const double middle = (kTop + kHeight - kBottom) / 2;
    svg += fmt::format(
        "<text x=\"18\" y=\"{0}\" text-anchor=\"middle\" transform=\"rotate(-90 18 {0})\">{1}, us</text>\n",
        middle, curves.front().whole_round_trip ? "round trip" : "latency (half of the round trip)");
    for (std::size_t i = 0; i < curves.size(); ++i) {
        const char* const colour = kColours[i % std::size(kColours)];
        const char* const dash = kDashes[i / std::size(kColours) % std::size(kDashes)];
        std::string points;
        for (const auto& [percentile, us] : curves[i].points)
            if (percentile < 100) points += fmt::format("{:.1f},{:.1f} ", axes.x(percentile), axes.y(us));
        svg += fmt::format(
            "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"2\" stroke-dasharray=\"{}\" "
            "points=\"{}\"/>\n",
            colour, dash, points);
        const double y = kTop + 18 + 18 * static_cast<double>(i);
        svg += fmt::format(
            "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"{}\" stroke-width=\"2\" "
            "stroke-dasharray=\"{}\"/>\n"
            "<text x=\"{}\" y=\"{}\">{}</text>\n",
            kLeft + 12, y - 4, kLeft + 36, y - 4, colour, dash, kLeft + 42, y, escaped(curves[i].label));
    }
    return svg + "</svg>\n";
}

}  // namespace vma_perf
