// SPDX-License-Identifier: BSD-2-Clause
// The source addresses from which an interface accepts packets for this host. As in the kernel, these are not
// the host's own addresses. With net.ipv4.conf.*.rp_filter, the route back to them must be right.
//
// The whole address space is cut into ranges without neighbours of the same kind, so that an answer is one
// search. A refusal means "ask the kernel", where the kernel can get the frame (the XDP program passes such
// frames on).
#pragma once

#include <netinet/in.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace vma::net {

// A prefix, in network order; the longest one that matches an address decides.
struct SourcePrefix {
    in_addr_t address = 0;
    std::uint8_t length = 0;
    bool accepted = false;
    friend bool operator==(const SourcePrefix&, const SourcePrefix&) = default;
};

class SourceFilter {
  public:
    struct Range {
        std::uint32_t first;  // in host order; a range ends where the next one begins
        bool accepted;
        friend bool operator==(const Range&, const Range&) = default;
    };
    // Accepts all addresses that may be a source.
    SourceFilter() : SourceFilter(std::vector<SourcePrefix>{{0, 0, true}}) {}
    // Refuses addresses that match no prefix; of two equal prefixes the last one counts. May throw
    // std::bad_alloc.
    explicit SourceFilter(std::vector<SourcePrefix> prefixes);

    bool accepts(in_addr_t source) const noexcept {
        const std::uint32_t a = ntohl(source);
        auto after = std::upper_bound(ranges_.begin(), ranges_.end(), a,
                                      [](std::uint32_t v, const Range& r) { return v < r.first; });
        return std::prev(after)->accepted;
    }
    // In order, from address 0 on; no two neighbours of the same kind.
    const std::vector<Range>& ranges() const noexcept { return ranges_; }
    // The accepted ranges as prefixes; no two overlap.
    std::vector<SourcePrefix> accepted_prefixes() const;
    // The refused addresses that are unicast. False: there are more than `most`.
    bool refused_addresses(std::vector<in_addr_t>& out, std::size_t most) const;
    friend bool operator==(const SourceFilter&, const SourceFilter&) = default;

  private:
    std::vector<Range> ranges_;
};

}  // namespace vma::net
