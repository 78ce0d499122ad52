// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/ring/packet_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>

#include "libvma/ring/lent_memory.h"
#include "libvma/runtime/log.h"

namespace vma::ring {
namespace {

// Maps at least `length` bytes, and changes `length` to what munmap(2) needs. With `huge`: reserved huge
// pages where there are enough of them, else transparent ones where the kernel gives them.
Result<std::uint8_t*> map_memory(std::size_t& length, bool huge, bool warn) {
    constexpr std::size_t kHugePage = 2u << 20;
    const std::size_t rounded = (length + kHugePage - 1) & ~(kHugePage - 1);
    void* memory = MAP_FAILED;
    if (huge)
        memory =
            mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (memory == MAP_FAILED && huge && warn)
        log::once(log::Level::warn,
                  "not enough huge pages for {} MiB of buffers, ordinary pages are used: reserve {} more "
                  "(vm.nr_hugepages), or "
                  "set VMA_MEM_ALLOC_TYPE=1",
                  rounded >> 20, rounded / kHugePage);
    if (memory == MAP_FAILED)
        memory = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return fail(errno, fmt::format("mmap of {} KiB for buffers: {}", rounded / 1024, strerror(errno)));
    if (huge) madvise(memory, rounded, MADV_HUGEPAGE);
    madvise(memory, rounded, MADV_DONTFORK);
    length = rounded;
    return static_cast<std::uint8_t*>(memory);
}

}  // namespace

// A user may lock 8 MiB as a rule (RLIMIT_MEMLOCK), unless the program has CAP_IPC_LOCK. Fewer buffers are
// better than none: datagrams that sockets leave unread are copied out of them earlier, and longer bursts
// find none.
Result<void> PacketMemory::open(verbs::Device& device, const Config& config) {
    constexpr std::uint32_t kLeastReceive = 512, kLeastSend = 128;
    const verbs::DeviceAttr& attr = device.attr();
    std::uint32_t rx_chunks = config.rx_chunks;
    chunk_size_ = attr.chunk_size;
    tx_chunks_ = config.tx_chunks;
    const std::span<std::uint8_t> lent = device.send_memory();
    if (!lent.empty())
        tx_chunks_ = std::min(tx_chunks_, static_cast<std::uint32_t>(lent.size() / chunk_size_));
    for (;;) {
        const std::uint32_t send = lent.empty() ? tx_chunks_ + attr.further_send : 0;
        length_ = (std::size_t{rx_chunks} + send) * chunk_size_;
        if (!programs_) base_ = LentMemory::take(length_);
        programs_ = base_ != nullptr;
        if (!programs_) {
            auto mapped = map_memory(length_, config.huge_pages, config.warn_ordinary);
            if (!mapped) return std::unexpected(mapped.error());
            base_ = *mapped;
        }
        if (auto backed = device.back(base_, length_); !backed) return std::unexpected(backed.error());
        auto registered = device.reg_mr(base_, length_);
        if (registered) {
            mr_ = *registered;
            break;
        }
        if (!programs_) {
            munmap(base_, length_);
            base_ = nullptr;
        }
        // What several rings need does not get less.
        if (registered.error().code != ENOBUFS || rx_chunks / 2 < kLeastReceive || attr.further_send != 0)
            return std::unexpected(registered.error());
        rx_chunks /= 2;
        tx_chunks_ = std::max(tx_chunks_ / 2, std::min(tx_chunks_, kLeastSend));
    }
    if (rx_chunks != config.rx_chunks)
        log::once(log::Level::warn,
                  "locked memory is limited, so {} gets {} KiB of buffers only: raise the limit "
                  "(ulimit -l unlimited, "
                  "LimitMEMLOCK=infinity in a systemd unit), or give the program CAP_IPC_LOCK",
                  attr.name, length_ / 1024);
    tx_base_ = lent.empty() ? base_ + std::size_t{rx_chunks} * chunk_size_ : lent.data();
    rx_buffers_.resize(rx_chunks);
    for (std::uint32_t i = 0; i < rx_chunks; i++)
        rx_buffers_[i].frame = base_ + std::size_t{i} * chunk_size_ + attr.rx_offset;
    send_buffers_.resize(tx_chunks_);
    for (std::uint32_t i = 0; i < tx_chunks_; i++) {
        send_buffers_[i].frame = tx_base_ + std::size_t{i} * chunk_size_ + attr.tx_headroom;
        send_buffers_[i].room = chunk_size_ - attr.tx_headroom;
    }
    return {};
}

PacketMemory::~PacketMemory() {
    PacketRegions::remove(number_);
    if (base_ != nullptr && !programs_) munmap(base_, length_);
}

}  // namespace vma::ring
