// SPDX-License-Identifier: BSD-2-Clause
// See fleet.h.
#include "tools/vma_stats/fleet.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "tools/vma_stats/process.h"

namespace vma_stats {
namespace {

constexpr const char* kNobody = "Failed to identify process...";
// A refresh is worth a moment: the process answers in less than a millisecond unless it is stopped.
constexpr std::chrono::milliseconds kRefreshPatience{200};

bool ended(const Snapshot& snapshot) {
    return static_cast<layout::Life>(snapshot.header.life) == layout::Life::ended;
}

Refusal refusal_for(const Problem& problem) {
    Refusal refusal{.may_come = problem.gone};
    if (problem.gone) refusal.lines.emplace_back(kNobody);
    refusal.lines.push_back(problem.text);
    return refusal;
}

}  // namespace

std::expected<void, Refusal> Fleet::find() {
    members_.clear();
    if (!options_.pid) return find_all();
    auto attachment = attach(options_.directory, *options_.pid, options_.clean);
    if (!attachment) return std::unexpected(refusal_for(attachment.error()));
    members_.push_back({.process = std::move(*attachment)});
    return {};
}

std::expected<void, Refusal> Fleet::find_all() {
    Found found = discover(options_.directory, options_.clean);
    if (!found.directory_problem.empty()) return std::unexpected(Refusal{.lines = {found.directory_problem}});
    const auto other = [&](pid_t pid) { return !options_.name.empty() && !runs_program(pid, options_.name); };
    std::erase_if(found.processes,
                  [&](const Attachment& a) { return other(a.pid()) && a.program() != options_.name; });
    std::erase_if(found.problems, [&](const Problem& p) { return other(p.pid); });
    if (found.processes.empty()) {
        Refusal refusal{.may_come = std::all_of(found.problems.begin(), found.problems.end(),
                                                [](auto& p) { return p.gone; })};
        refusal.lines.emplace_back(kNobody);
        for (const Problem& problem : found.problems) refusal.lines.push_back(problem.text);
        if (refusal.may_come)
            refusal.lines.push_back(fmt::format(
                "no running process{} has statistics of libvma in {} (for another "
                "VMA_STATS_SHMEM_DIR see -k)",
                options_.name.empty() ? "" : " of the program " + options_.name, options_.directory));
        return std::unexpected(std::move(refusal));
    }
    if (!all_ && found.processes.size() > 1) {
        Refusal refusal;
        refusal.lines.push_back(
            fmt::format("{} processes run with libvma; choose one with -p, or with -n by its program:",
                        found.processes.size()));
        for (const Attachment& a : found.processes)
            refusal.lines.push_back(fmt::format("  {:>7}  {}", a.pid(), a.program()));
        return std::unexpected(std::move(refusal));
    }
    // With one process chosen, problems of others do not matter.
    if (all_)
        for (const Problem& problem : found.problems) complain(problem);
    for (Attachment& a : found.processes) members_.push_back({.process = std::move(a)});
    return {};
}

// The end of a process is no problem to report.
void Fleet::complain(const Problem& problem) {
    if (!problem.gone && complained_.insert(problem.text).second) complaints_.push_back(problem.text);
}

std::vector<std::string> Fleet::complaints() { return std::exchange(complaints_, {}); }

void Fleet::join() {
    if (!all_ || options_.pid) return;
    Found found = discover(options_.directory, options_.clean);
    for (Attachment& a : found.processes) {
        const bool known = std::any_of(members_.begin(), members_.end(),
                                       [&](auto& m) { return m.process.pid() == a.pid(); });
        if (known ||
            (!options_.name.empty() && !runs_program(a.pid(), options_.name) && a.program() != options_.name))
            continue;
        members_.push_back({.process = std::move(a)});
    }
    std::sort(members_.begin(), members_.end(),
              [](auto& a, auto& b) { return a.process.pid() < b.process.pid(); });
    for (const Problem& problem : found.problems)
        if (options_.name.empty() || runs_program(problem.pid, options_.name)) complain(problem);
}

void Fleet::follow(Member& member) {
    if (!member.process.replaced() || !member.process.alive()) return;
    auto next = attach(options_.directory, member.process.pid(), options_.clean);
    if (!next) return;
    member = Member{.process = std::move(*next)};
}

std::vector<Sample> Fleet::sample() {
    join();
    std::vector<Sample> samples;
    std::erase_if(members_, [&](Member& member) {
        follow(member);
        // alive() comes first: the next report then notices a process that ends between the two calls.
        const bool alive = member.process.alive();
        if (member.refreshes && alive)
            member.refreshes =
                command(member.process, {vma::stats::Command::refresh}, kRefreshPatience).has_value();
        auto snapshot = member.process.read();
        if (!snapshot) {
            complain(snapshot.error());
            failed_ = true;
            return true;
        }
        const bool last = !alive || ended(*snapshot);
        samples.push_back({.pid = member.process.pid(),
                           .program = member.process.program(),
                           .frame = member.sampler.next(std::move(*snapshot)),
                           .ended = last});
        return last;
    });
    return samples;
}

std::vector<int> Fleet::pidfds() const {
    std::vector<int> out;
    for (const Member& member : members_)
        if (member.process.pidfd() >= 0) out.push_back(member.process.pidfd());
    return out;
}

}  // namespace vma_stats
