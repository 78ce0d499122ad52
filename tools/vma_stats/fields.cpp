// SPDX-License-Identifier: BSD-2-Clause
// See fields.h.
#include "tools/vma_stats/fields.h"

#include <iterator>

namespace vma_stats {
namespace {

using vma::stats::GroupBlock;
using vma::stats::MuxBlock;
using vma::stats::PoolBlock;
using vma::stats::RingBlock;
using vma::stats::SocketBlock;
using vma::stats::TotalsBlock;
constexpr Kind counter = Kind::counter;
constexpr Kind gauge = Kind::gauge;

// The rows of numbers.def as fields. A Traffic member is four of them.
#define FIELD(block, member, kind, metric, labels, scale, help) \
    {#member, metric, labels, offsetof(block, member), kind, help, scale},
#define TRAFFIC(block, member, metric, labels, verb)                                                     \
    FIELD(block, member.packets, counter, metric "_packets", labels, 1,                                  \
          "Datagrams " verb ", or calls that moved data of a stream")                                    \
    FIELD(block, member.bytes, counter, metric "_bytes", labels, 1, "Bytes of the program's data " verb) \
    FIELD(block, member.eagain, counter, metric "_eagain", labels, 1,                                    \
          "Calls that found nothing, or no room, and did not wait")                                      \
    FIELD(block, member.errors, counter, metric "_errors", labels, 1, "Calls that failed otherwise")

constexpr Field kSocket[] = {
#define VMA_SOCKET_NUMBER(...) FIELD(SocketBlock, __VA_ARGS__)
#define VMA_SOCKET_TRAFFIC(...) TRAFFIC(SocketBlock, __VA_ARGS__)
#include "libvma/stats/numbers.def"
};

constexpr Field kTotals[] = {
#define VMA_TOTALS_NUMBER(...) FIELD(TotalsBlock, __VA_ARGS__)
#define VMA_TOTALS_TRAFFIC(...) TRAFFIC(TotalsBlock, __VA_ARGS__)
#include "libvma/stats/numbers.def"
};

constexpr Field kRing[] = {
#define VMA_RING_NUMBER(...) FIELD(RingBlock, __VA_ARGS__)
#define VMA_CQ_NUMBER(name, kind, metric, labels, scale, help) \
    {"cq." #name, metric, labels, offsetof(RingBlock, cq_##name), kind, help, scale},
// The label of a drop is drop_name().
#define VMA_RING_DROP(reason)                                                            \
    {"drops." #reason,                                                                   \
     "ring_dropped_packets",                                                             \
     "reason=\"" #reason "\"",                                                           \
     offsetof(RingBlock, drops) +                                                        \
         static_cast<std::size_t>(vma::stats::RingDrop::reason) * sizeof(std::uint64_t), \
     counter,                                                                            \
     "Frames dropped, beside those that sockets count"},
#include "libvma/stats/numbers.def"
};

constexpr Field kPool[] = {
#define VMA_POOL_NUMBER(...) FIELD(PoolBlock, __VA_ARGS__)
#include "libvma/stats/numbers.def"
};

constexpr Field kMux[] = {
#define VMA_MUX_NUMBER(...) FIELD(MuxBlock, __VA_ARGS__)
#include "libvma/stats/numbers.def"
};

constexpr Field kGroup[] = {
#define VMA_GROUP_NUMBER(...) FIELD(GroupBlock, __VA_ARGS__)
#include "libvma/stats/numbers.def"
};

}  // namespace

template <>
std::span<const Field> fields_of<SocketBlock>() {
    return kSocket;
}
template <>
std::span<const Field> fields_of<RingBlock>() {
    return kRing;
}
template <>
std::span<const Field> fields_of<PoolBlock>() {
    return kPool;
}
template <>
std::span<const Field> fields_of<MuxBlock>() {
    return kMux;
}
template <>
std::span<const Field> fields_of<TotalsBlock>() {
    return kTotals;
}
template <>
std::span<const Field> fields_of<GroupBlock>() {
    return kGroup;
}

const char* drop_name(unsigned drop) {
    static constexpr const char* kNames[] = {
#define VMA_RING_DROP(name) #name,
#include "libvma/stats/numbers.def"
    };
    return drop < std::size(kNames) ? kNames[drop] : "other";
}

}  // namespace vma_stats
