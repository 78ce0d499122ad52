// SPDX-License-Identifier: BSD-2-Clause
#include "tools/vma_perf/groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/common/sums.h"
#include "tools/vma_perf/status.h"

namespace vma_perf {
namespace {

constexpr std::size_t kLines = 32;  // of the table, unless more groups have lost something

constexpr std::uint64_t Received::*kCounters[] = {&Received::messages, &Received::duplicates,
                                                  &Received::reordered};

// Received of what each socket was sent; a socket that got more than that lost nothing.
std::uint64_t missing(std::uint64_t sent, const Received& socket) noexcept {
    return sent > socket.messages ? sent - socket.messages : 0;
}

std::uint64_t all_messages(const std::vector<GroupResult>& groups) noexcept {
    std::uint64_t all = 0;
    for (const GroupResult& group : groups) all += group.sum().messages;
    return all;
}

double part_of(double rate, std::uint64_t messages, std::uint64_t all) noexcept {
    return all > 0 ? rate * static_cast<double>(messages) / static_cast<double>(all) : 0;
}

// What the sockets of a group received each: the least and the most.
std::string sockets_text(const GroupResult& group, double rate, std::uint64_t all) {
    const auto [least, most] = std::ranges::minmax(group.sockets, {}, &Received::messages);
    return fmt::format("   {} sockets, {:.0f}-{:.0f}/s each", group.sockets.size(),
                       part_of(rate, least.messages, all), part_of(rate, most.messages, all));
}

}  // namespace

Received& Received::operator+=(const Received& other) noexcept {
    tools::add_members(*this, other, kCounters);
    return *this;
}

GroupCounts::GroupCounts(const Params& params)
    : groups_(params.sockets.groups.size(), std::vector<Received>(params.sockets.group_sockets)) {}

void GroupCounts::add(unsigned connection, unsigned copy, const Received& counted) {
    if (!groups_.empty()) groups_[connection % groups_.size()][copy] += counted;
}

nlohmann::json GroupCounts::report() const {
    nlohmann::json report = nlohmann::json::array();
    for (const auto& group : groups_) {
        nlohmann::json sockets = nlohmann::json::array();
        for (const Received& socket : group)
            sockets.push_back({{"received", socket.messages},
                               {"duplicates", socket.duplicates},
                               {"reordered", socket.reordered}});
        report.push_back(std::move(sockets));
    }
    return report;
}

Received GroupResult::sum() const noexcept {
    Received all;
    for (const Received& socket : sockets) all += socket;
    return all;
}

std::uint64_t GroupResult::lost() const noexcept {
    std::uint64_t all = 0;
    for (const Received& socket : sockets) all += missing(sent, socket);
    return all;
}

bool GroupResult::in_order() const noexcept {
    const Received all = sum();
    return lost() + all.duplicates + all.reordered == 0;
}

std::vector<GroupResult> group_results(const Params& params, const std::vector<std::uint64_t>& sent,
                                       const nlohmann::json& report) {
    const auto& addresses = params.sockets.groups;
    std::vector<GroupResult> groups;
    if (addresses.empty()) return groups;
    if (report.size() != addresses.size())
        throw Failure(kVersion, "the server reports another number of groups");
    for (std::size_t g = 0; g < addresses.size(); ++g) {
        GroupResult group{addresses[g], 0, {}};
        for (std::size_t c = g; c < sent.size(); c += addresses.size()) group.sent += sent[c];
        for (const nlohmann::json& socket : report[g])
            group.sockets.push_back({socket.at("received").get<std::uint64_t>(),
                                     socket.at("duplicates").get<std::uint64_t>(),
                                     socket.at("reordered").get<std::uint64_t>()});
        if (group.sockets.size() != params.sockets.group_sockets)
            throw Failure(kVersion, "the server reports another number of sockets of a group");
        groups.push_back(std::move(group));
    }
    return groups;
}

nlohmann::json groups_json(const std::vector<GroupResult>& groups, double rate) {
    const std::uint64_t all = all_messages(groups);
    const auto counted = [&](const Received& r, std::uint64_t lost) {
        return nlohmann::json{{"received", r.messages},
                              {"lost", lost},
                              {"duplicates", r.duplicates},
                              {"reordered", r.reordered},
                              {"received_per_s", part_of(rate, r.messages, all)}};
    };
    nlohmann::json json = nlohmann::json::array();
    for (const GroupResult& group : groups) {
        nlohmann::json one = counted(group.sum(), group.lost());
        one["group"] = group.address;
        one["sent"] = group.sent;
        for (const Received& socket : group.sockets)
            one["sockets"].push_back(counted(socket, missing(group.sent, socket)));
        json.push_back(std::move(one));
    }
    return json;
}

std::string groups_text(const std::vector<GroupResult>& groups, double rate) {
    if (groups.empty()) return {};
    const std::uint64_t all = all_messages(groups);
    const bool several = groups.front().sockets.size() > 1;
    std::string text = fmt::format("  {:<16}{:>11}{:>11}{:>9}{:>12}{:>14}\n", "group", "sent", "received",
                                   "lost", "duplicates", "out of order");
    const bool all_lines = groups.size() <= kLines;
    std::size_t left_out = 0;
    for (const GroupResult& group : groups) {
        if (!all_lines && group.in_order()) {
            ++left_out;
            continue;
        }
        const Received sum = group.sum();
        text += fmt::format("  {:<16}{:>11}{:>11}{:>9}{:>12}{:>14}", group.address, group.sent, sum.messages,
                            group.lost(), sum.duplicates, sum.reordered);
        text += (several ? sockets_text(group, rate, all) : "") + "\n";
    }
    if (left_out > 0) text += fmt::format("  {} groups: everything came, once and in order\n", left_out);
    return text;
}

}  // namespace vma_perf
