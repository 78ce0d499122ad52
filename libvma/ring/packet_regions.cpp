// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/ring/packet_regions.h"

#include "libvma/runtime/fork_renewal.h"

namespace vma::ring {
namespace {

void renew_regions() noexcept { PacketRegions::renew(); }
VMA_RENEW_IN_CHILD(renew_regions);

}  // namespace

constinit PacketRegions::Region PacketRegions::regions_[kMost]{};
constinit std::atomic<unsigned> PacketRegions::used_{0};

unsigned PacketRegions::add(const std::uint8_t* base, std::size_t length, std::span<RxBuffer> buffers,
                            std::span<SendBuffer> sends) noexcept {
    for (unsigned i = 0; i < kMost; i++) {
        Region& r = regions_[i];
        if (r.taken.exchange(true)) continue;
        const auto begin = reinterpret_cast<std::uintptr_t>(base);
        r.end.store(begin + length, std::memory_order_relaxed);
        r.begin.store(begin, std::memory_order_relaxed);
        r.count.store(static_cast<std::uint32_t>(buffers.size()), std::memory_order_relaxed);
        r.send_count.store(static_cast<std::uint32_t>(sends.size()), std::memory_order_relaxed);
        r.sends.store(sends.data(), std::memory_order_release);
        r.buffers.store(buffers.data(), std::memory_order_release);
        for (unsigned used = used_.load(); used <= i && !used_.compare_exchange_weak(used, i + 1);) {
        }
        return i;
    }
    return kNone;
}

void PacketRegions::clear(Region& region) noexcept {
    region.buffers.store(nullptr, std::memory_order_release);
    region.sends.store(nullptr, std::memory_order_release);
    region.count = 0;
    region.send_count = 0;
    region.begin = region.end = 0;
    region.taken = false;
}

void PacketRegions::remove(unsigned number) noexcept {
    if (number < kMost) clear(regions_[number]);
}

void PacketRegions::renew() noexcept {
    for (Region& r : regions_) clear(r);
    used_ = 0;
}

}  // namespace vma::ring
