// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/net/sources.h"

#include <algorithm>
#include <bit>

#include "libvma/net/address.h"

namespace vma::net {
namespace {

struct Interval {
    std::uint64_t first, last;
    std::uint8_t length;
    bool accepted;
};

// What is not unicast: the unspecified address, loopback, groups, broadcast.
struct Block {
    std::uint32_t first;
    std::uint8_t length;
    std::uint32_t last() const noexcept {
        return first | static_cast<std::uint32_t>((std::uint64_t{1} << (32 - length)) - 1);
    }
};
constexpr Block kNever[] = {{0, 32}, {127u << 24, 8}, {0xe0000000u, 4}, {0xffffffffu, 32}};

}  // namespace

SourceFilter::SourceFilter(std::vector<SourcePrefix> prefixes) {
    for (const Block& block : kNever) prefixes.push_back({htonl(block.first), block.length, false});
    std::vector<Interval> nested;
    for (const SourcePrefix& p : prefixes) {
        const unsigned length = std::min<unsigned>(p.length, 32);
        const std::uint64_t size = std::uint64_t{1} << (32 - length);
        const std::uint64_t first = ntohl(p.address) & ~(size - 1);
        // No address inside a block that is not unicast is a source.
        const bool never = std::ranges::any_of(kNever, [&](const Block& block) {
            return first >= block.first && first + size - 1 <= block.last();
        });
        nested.push_back({first, first + size - 1, static_cast<std::uint8_t>(length), p.accepted && !never});
    }
    // Sorts outer intervals before those inside; of equal ones the last given comes last.
    std::stable_sort(nested.begin(), nested.end(), [](const Interval& a, const Interval& b) {
        return a.first != b.first ? a.first < b.first : a.length < b.length;
    });
    auto add = [&](std::uint64_t from, bool accepted) {
        if (from > 0xffffffffu) return;
        const auto first = static_cast<std::uint32_t>(from);
        if (!ranges_.empty() && ranges_.back().first == first) ranges_.pop_back();
        if (ranges_.empty() || ranges_.back().accepted != accepted) ranges_.push_back({first, accepted});
    };
    add(0, false);
    std::vector<Interval> open;
    auto close_before = [&](std::uint64_t at) {
        while (!open.empty() && open.back().last < at) {
            const std::uint64_t end = open.back().last + 1;
            open.pop_back();
            add(end, !open.empty() && open.back().accepted);
        }
    };
    for (const Interval& i : nested) {
        close_before(i.first);
        open.push_back(i);
        add(i.first, i.accepted);
    }
    close_before(~std::uint64_t{0});
}

std::vector<SourcePrefix> SourceFilter::accepted_prefixes() const {
    std::vector<SourcePrefix> out;
    for (std::size_t i = 0; i < ranges_.size(); i++) {
        if (!ranges_[i].accepted) continue;
        std::uint64_t at = ranges_[i].first;
        const std::uint64_t end = i + 1 < ranges_.size() ? ranges_[i + 1].first : std::uint64_t{1} << 32;
        while (at < end) {
            // The largest block that begins here and does not exceed the end.
            unsigned bits = at == 0 ? 32 : static_cast<unsigned>(std::countr_zero(at));
            while ((std::uint64_t{1} << bits) > end - at) bits--;
            out.push_back(
                {htonl(static_cast<std::uint32_t>(at)), static_cast<std::uint8_t>(32 - bits), true});
            at += std::uint64_t{1} << bits;
        }
    }
    return out;
}

bool SourceFilter::refused_addresses(std::vector<in_addr_t>& out, std::size_t most) const {
    out.clear();
    for (std::size_t i = 0; i < ranges_.size(); i++) {
        if (ranges_[i].accepted) continue;
        std::uint64_t at = ranges_[i].first;
        const std::uint64_t end = i + 1 < ranges_.size() ? ranges_[i + 1].first : std::uint64_t{1} << 32;
        for (; at < end; at++) {
            const in_addr_t address = htonl(static_cast<std::uint32_t>(at));
            if (!Address(address).is_unicast()) {
                for (const Block& block : kNever)
                    if (at >= block.first && at <= block.last()) at = block.last();
                continue;
            }
            if (out.size() == most) return false;
            out.push_back(address);
        }
    }
    return true;
}

}  // namespace vma::net
