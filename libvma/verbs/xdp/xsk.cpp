// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/verbs/xdp/xsk.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>

#include "libvma/os/calls.h"
#include "libvma/os/raw_syscall.h"

namespace vma::verbs::xdp {
namespace {

// struct xdp_umem_reg as of Linux 6.8; older kernels read its first four members.
struct UmemReg {
    std::uint64_t addr, len;
    std::uint32_t chunk_size, headroom, flags, tx_metadata_len;
};

Result<int> new_socket() {
    int fd = os::socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);
    if (fd < 0) return fail(errno, fmt::format("socket(AF_XDP): {}", strerror(errno)));
    return fd;
}

Result<xdp_mmap_offsets> offsets(int fd) {
    xdp_mmap_offsets off{};
    socklen_t len = sizeof off;
    if (os::getsockopt(fd, SOL_XDP, XDP_MMAP_OFFSETS, &off, &len) != 0)
        return fail(errno, fmt::format("XDP_MMAP_OFFSETS: {}", strerror(errno)));
    return off;
}

}  // namespace

void set_send_buffer(int fd, int bytes) noexcept {
    if (os::setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes) != 0)
        os::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

template <class Entry>
Result<void> XskRing<Entry>::create(int fd, int option, std::uint64_t page_offset,
                                    const xdp_ring_offset& where, std::uint32_t size) {
    if (os::setsockopt(fd, SOL_XDP, option, &size, sizeof size) != 0)
        return fail(errno, fmt::format("XDP ring {} of {} entries: {}", option, size, strerror(errno)));
    map_length_ = where.desc + size * sizeof(Entry);
    map_ = mmap(nullptr, map_length_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd,
                static_cast<off_t>(page_offset));
    if (map_ == MAP_FAILED) {
        map_ = nullptr;
        return fail(errno, fmt::format("mmap of an XDP ring: {}", strerror(errno)));
    }
    madvise(map_, map_length_, MADV_DONTFORK);  // a child must not touch the parent's rings
    use(map_, where, size);
    return {};
}

template <class Entry>
void XskRing<Entry>::use(void* memory, const xdp_ring_offset& where, std::uint32_t size) noexcept {
    auto* base = static_cast<std::uint8_t*>(memory);
    producer_ = reinterpret_cast<std::uint32_t*>(base + where.producer);
    consumer_ = reinterpret_cast<std::uint32_t*>(base + where.consumer);
    flags_ = reinterpret_cast<std::uint32_t*>(base + where.flags);
    entries_ = reinterpret_cast<Entry*>(base + where.desc);
    size_ = size;
    mask_ = size - 1;
    cached_producer_ = load(producer_);
    cached_consumer_ = load(consumer_);
}

template <class Entry>
XskRing<Entry>::~XskRing() {
    if (map_ != nullptr) munmap(map_, map_length_);
}

template class XskRing<std::uint64_t>;
template class XskRing<xdp_desc>;

std::vector<std::uint16_t> ways_to_bind(bool zero_copy, bool one_chunk) {
    std::vector<std::uint16_t> ways;
    for (std::uint16_t mode : {XDP_ZEROCOPY, XDP_COPY}) {
        if (mode == XDP_ZEROCOPY && !zero_copy) continue;
        ways.push_back(static_cast<std::uint16_t>(mode | XDP_USE_NEED_WAKEUP | XDP_USE_SG));
        if (one_chunk) ways.push_back(static_cast<std::uint16_t>(mode | XDP_USE_NEED_WAKEUP));
    }
    return ways;
}

Result<void> Xsk::open() {
    auto fd = new_socket();
    if (!fd) return std::unexpected(fd.error());
    fd_ = InternalFd(*fd);
    if (!fd_) return fail(EMFILE, "too many descriptors");
    return {};
}

Result<void> Xsk::open_with_umem(void* memory, std::size_t length, std::uint32_t chunk, bool& metadata) {
    if (auto opened = open(); !opened) return opened;
    UmemReg reg{};
    reg.addr = reinterpret_cast<std::uintptr_t>(memory);
    reg.len = length;
    reg.chunk_size = chunk;
    reg.tx_metadata_len = sizeof(TxMetadata);
    // Kernels before 6.11 refuse the flag. Without it they ignore the length, or do not, so they get none.
    for (const bool flag : {true, false}) {
        reg.flags = flag ? XDP_UMEM_TX_METADATA_LEN : 0;
        metadata = flag;
        const socklen_t size = flag ? sizeof reg : offsetof(UmemReg, tx_metadata_len);
        if (os::setsockopt(fd(), SOL_XDP, XDP_UMEM_REG, &reg, size) == 0) return {};
        if (errno != EINVAL) break;
    }
    return fail(errno, fmt::format("XDP_UMEM_REG of {} KiB: {}", length / 1024, strerror(errno)));
}

Result<void> Xsk::make_rings(const XskConfig& config) {
    auto off = offsets(fd());
    if (!off) return std::unexpected(off.error());
    // A queue has its own fill and completion ring even when the umem is shared.
    const std::uint32_t fill_size = config.fill_size != 0 ? config.fill_size : config.rx_size;
    const std::uint32_t completion_size = config.tx_size == 0           ? 64
                                          : config.completion_size != 0 ? config.completion_size
                                                                        : config.tx_size;
    // Of an XSK that only sends, `fill` is the caller's: see CopyRings.
    XskRing<std::uint64_t> unused;
    XskRing<std::uint64_t>& fill_ring = config.rx_size != 0 ? fill : unused;
    if (config.own_pool) {
        if (auto r = fill_ring.create(fd(), XDP_UMEM_FILL_RING, XDP_UMEM_PGOFF_FILL_RING, off->fr, fill_size);
            !r)
            return r;
        if (auto r = completion.create(fd(), XDP_UMEM_COMPLETION_RING, XDP_UMEM_PGOFF_COMPLETION_RING,
                                       off->cr, completion_size);
            !r)
            return r;
    }
    if (config.rx_size != 0)
        if (auto r = rx.create(fd(), XDP_RX_RING, XDP_PGOFF_RX_RING, off->rx, config.rx_size); !r) return r;
    if (config.tx_size != 0) {
        // In copy mode the kernel charges each frame on its way to the socket's send buffer, whose default
        // size holds some 200 frames.
        constexpr int kCharge = 8192;  // for a frame, by a wide margin
        const int room =
            static_cast<int>(std::min<std::uint64_t>(std::uint64_t{config.tx_size} * kCharge, 1u << 30));
        set_send_buffer(fd(), room);
        if (auto r = tx.create(fd(), XDP_TX_RING, XDP_PGOFF_TX_RING, off->tx, config.tx_size); !r) return r;
    }
    return {};
}

int Xsk::bind(const XskConfig& config, const Xsk* owner) noexcept {
    sockaddr_xdp address{};
    address.sxdp_family = AF_XDP;
    address.sxdp_ifindex = static_cast<std::uint32_t>(config.ifindex);
    address.sxdp_queue_id = config.queue;
    if (owner != nullptr) {
        address.sxdp_flags = XDP_SHARED_UMEM;
        address.sxdp_shared_umem_fd = static_cast<std::uint32_t>(owner->fd());
    } else {
        address.sxdp_flags = config.bind_flags;
    }
    return os::bind(fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
}

int Xsk::kick_tx() noexcept {
    long r = os::raw_syscall(SYS_sendto, fd(), 0, 0, MSG_DONTWAIT, 0, 0);
    return r < 0 ? static_cast<int>(-r) : 0;
}

void Xsk::kick_rx() noexcept { os::raw_syscall(SYS_recvfrom, fd(), 0, 0, MSG_DONTWAIT, 0, 0); }

std::uint64_t Xsk::rx_drops() const noexcept {
    xdp_statistics s{};
    socklen_t len = sizeof s;
    if (os::getsockopt(fd(), SOL_XDP, XDP_STATISTICS, &s, &len) != 0) return 0;
    return s.rx_dropped + s.rx_ring_full + s.rx_invalid_descs;
}

bool Xsk::zero_copy() const noexcept {
    xdp_options options{};
    socklen_t len = sizeof options;
    return os::getsockopt(fd(), SOL_XDP, XDP_OPTIONS, &options, &len) == 0 &&
           (options.flags & XDP_OPTIONS_ZEROCOPY);
}

}  // namespace vma::verbs::xdp
