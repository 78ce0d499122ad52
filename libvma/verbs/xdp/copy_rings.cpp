// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/verbs/xdp/copy_rings.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "libvma/verbs/xdp/descriptors.h"

namespace vma::verbs::xdp {
namespace {

// The position of a BPF ring buffer's side. Each lies at the beginning of a page.
std::atomic_ref<std::uint64_t> position(const MapMemory& page) noexcept {
    return std::atomic_ref(*page.as<std::uint64_t>());
}

// Where XskRing finds the parts of a ring whose entries lie elsewhere.
xdp_ring_offset parts_of(const steer_ring& ring, const void* entries) noexcept {
    return {.producer = offsetof(steer_ring, producer),
            .consumer = offsetof(steer_ring, consumer),
            .desc = reinterpret_cast<std::uintptr_t>(entries) - reinterpret_cast<std::uintptr_t>(&ring),
            .flags = offsetof(steer_ring, flags)};
}

static_assert(STEER_HEADROOM == kHeadroom);

}  // namespace

CopyRings::CopyRings(CopyMaps maps) noexcept
    : sizes_(maps.sizes), memory_map_(std::move(maps.memory)), wakes_map_(std::move(maps.wakes)) {}

Result<std::unique_ptr<CopyRings>> CopyRings::make(CopyMaps maps) {
    const InternalFd rings = std::move(maps.rings), posted = std::move(maps.posted),
                     received = std::move(maps.received);
    std::unique_ptr<CopyRings> made(new CopyRings(std::move(maps)));
    if (!made->rings_.map(rings.get(), sizeof(steer_ring) * STEER_RINGS) ||
        !made->posted_.map(posted.get(), sizeof(std::uint64_t) * made->sizes_.posted) ||
        !made->received_.map(received.get(), sizeof(xdp_desc) * made->sizes_.received)) {
        const int error = errno;
        return fail(error, fmt::format("mmap of the tcx program's rings: {}", strerror(error)));
    }
    return made;
}

Result<void> CopyRings::back(void* memory, std::size_t length) {
    const long fd = make_chunks(length / STEER_CHUNK);
    if (fd < 0)
        return fail(static_cast<int>(-fd),
                    fmt::format("a map of {} KiB: {}", length / 1024, strerror(static_cast<int>(-fd))));
    const InternalFd map(static_cast<int>(fd));
    if (!map) return fail(EMFILE, "too many descriptors");
    if (mmap(memory, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, map.get(), 0) == MAP_FAILED)
        return fail(errno, fmt::format("mmap of {} KiB of a map: {}", length / 1024, strerror(errno)));
    madvise(memory, length, MADV_DONTFORK);
    const std::uint32_t only = 0;
    const int number = map.get();
    if (const long r = update_map(memory_map_.get(), &only, &number); r < 0)
        return fail(static_cast<int>(-r),
                    fmt::format("the tcx program's memory: {}", strerror(static_cast<int>(-r))));
    return {};
}

void CopyRings::use_posted(XskRing<std::uint64_t>& fill) noexcept {
    steer_ring& shared = ring(STEER_POSTED);
    fill.use(&shared, parts_of(shared, posted_.as<void>()), sizes_.posted);
    std::atomic_ref(shared.mask).store(sizes_.posted - 1, std::memory_order_release);
}

Result<void> CopyRings::open(unsigned slot, XskRing<xdp_desc>& rx, std::uint32_t first, std::uint32_t size) {
    const auto page = static_cast<std::size_t>(getpagesize());
    Wake& wake = wakes_[slot];
    long fd = make_wake();
    if (fd >= 0) wake.fd = InternalFd(static_cast<int>(fd));
    if (fd >= 0 && !wake.fd) return fail(EMFILE, "too many descriptors");
    if (fd >= 0 &&
        (!wake.consumer.map(wake.fd.get(), page) || !wake.producer.map(wake.fd.get(), page, false, page)))
        fd = -errno;
    const int number = wake.fd.get();
    if (fd >= 0) fd = update_map(wakes_map_.get(), &slot, &number);
    if (fd < 0)
        return fail(static_cast<int>(-fd),
                    fmt::format("the tcx program's wake-ups: {}", strerror(static_cast<int>(-fd))));
    steer_ring& shared = ring(slot);
    rx.use(&shared, parts_of(shared, received_.as<xdp_desc>() + first), size);
    shared.first = first;
    std::atomic_ref(shared.mask).store(size - 1, std::memory_order_release);
    return {};
}

void CopyRings::close(unsigned slot) noexcept {
    std::atomic_ref(ring(slot).mask).store(0, std::memory_order_release);
}

// The barrier's counterpart is in take(): whoever comes second sees what the other one wrote.
void CopyRings::arm(unsigned slot) noexcept {
    std::atomic_ref(ring(slot).armed).store(1, std::memory_order_seq_cst);
}

void CopyRings::consume(unsigned slot) noexcept {
    Wake& wake = wakes_[slot];
    position(wake.consumer)
        .store(position(wake.producer).load(std::memory_order_acquire), std::memory_order_release);
}

std::uint64_t CopyRings::dropped(unsigned slot) const noexcept {
    return std::atomic_ref(ring(slot).dropped).load(std::memory_order_relaxed);
}

}  // namespace vma::verbs::xdp
