// SPDX-License-Identifier: BSD-2-Clause
// Loss and order of each multicast group (--group): what its receiving sockets got of what was sent to it.
//
// A message has its connection and a number that counts on that connection. So each receiving socket knows
// what came twice and what came late, and the client knows how much it sent on each connection.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/vma_perf/params.h"

namespace vma_perf {

// What a receiving socket, or several together, counted of the measured messages.
struct Received {
    std::uint64_t messages = 0;  // duplicates are not in here
    std::uint64_t duplicates = 0, reordered = 0;

    Received& operator+=(const Received& other) noexcept;
};

// The server's side: sums of its sockets by group, and within a group by the number of the copy.
class GroupCounts {
  public:
    explicit GroupCounts(const Params& params);
    // What socket `copy` of the run's connection `connection` counted.
    void add(unsigned connection, unsigned copy, const Received& counted);
    // An array for each group, with an object for each of its copies.
    nlohmann::json report() const;

  private:
    std::vector<std::vector<Received>> groups_;
};

// A group in the result.
struct GroupResult {
    std::string address;
    std::uint64_t sent = 0;         // each of the sockets is to receive so many
    std::vector<Received> sockets;  // by the number of the copy

    Received sum() const noexcept;
    std::uint64_t lost() const noexcept;  // of all sockets together
    bool in_order() const noexcept;       // nothing lost, twice or late
};

// From what was sent on each connection, and GroupCounts::report() of the server. Empty without groups.
// Throws Failure with kVersion when the report is of other groups or sockets.
std::vector<GroupResult> group_results(const Params& params, const std::vector<std::uint64_t>& sent,
                                       const nlohmann::json& report);

// `rate`: messages per second that all sockets of all groups received. A socket's is its part of that.
nlohmann::json groups_json(const std::vector<GroupResult>& groups, double rate);
// A table for people: a line for each group; of more than 32 those in order have one line together. Empty
// without groups.
std::string groups_text(const std::vector<GroupResult>& groups, double rate);

}  // namespace vma_perf
