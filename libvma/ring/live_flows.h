// SPDX-License-Identifier: BSD-2-Clause
// Which TCP flows of five numbers have a rule in this process, roughly: asked before a stranger's word (an
// ICMP error) may cost a lock.
//
// Counts by a keyed hash. A flow that has a rule is always found; of others one in some thousands is. Who
// does not know the key cannot choose which. Any thread; no lock.
#pragma once

#include <cstdint>

#include "libvma/verbs/device.h"

namespace vma::ring::live_flows {

// Of the process, under a key of its own.
std::uint64_t hash_of(const verbs::FlowSpec& spec) noexcept;
// A rule comes, or goes. Of a flow without peer, or not of TCP, nothing is noted.
void add(const verbs::FlowSpec& spec) noexcept;
void remove(const verbs::FlowSpec& spec) noexcept;
// False: the flow has no rule.
bool maybe(const verbs::FlowSpec& spec) noexcept;

}  // namespace vma::ring::live_flows
