// SPDX-License-Identifier: BSD-2-Clause
// The life of a ring. Its other parts: ring_receive.cpp, ring_flows.cpp, ring_send.cpp, ring_tso.cpp,
// ring_sleep.cpp, ring_recovery.cpp.
#include "libvma/ring/ring.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>

#include "libvma/ring/buffer_memory.h"
#include "libvma/ring/tx_flusher.h"
#include "libvma/runtime/log.h"

namespace vma::ring {
namespace {

constexpr std::uint32_t kOffloadChecksumFrom =
    256;  // below, summing while copying is cheaper than AF_XDP's metadata

}  // namespace

Result<std::unique_ptr<Ring>> Ring::create(std::unique_ptr<verbs::Device> device, const RingConfig& config) {
    auto ring = std::unique_ptr<Ring>(new Ring(std::move(device), config));
    if (auto started = ring->start(); !started) return std::unexpected(started.error());
    return {std::move(ring)};
}

Ring::Ring(std::unique_ptr<verbs::Device> device, const RingConfig& config)
    : device_(std::move(device)), config_(config), moderation_(config.moderation) {}

Result<void> Ring::start() {
    const verbs::DeviceAttr& attr = device_->attr();
    const std::uint32_t depth = attr.max_recv_wr;
    // As many buffers again as are posted: what sockets may hold before arriving frames are dropped.
    std::uint32_t rx_count = std::max(depth, std::min(2 * depth, config_.max_rx_buffers));
    // One datagram takes up to kMaxPieces of them.
    std::uint32_t tx_count = std::min(attr.max_send_wr, std::max(config_.max_tx_buffers, 4 * kMaxPieces));
    max_depth_ = depth;
    auto registered = register_memory(rx_count, tx_count);
    if (!registered) return registered;
    tx_count_ = tx_count;
    const std::size_t rx_bytes = std::size_t{rx_count} * attr.chunk_size;
    auto channel = device_->create_comp_channel();
    if (!channel) return std::unexpected(channel.error());
    channel_ = *channel;
    auto recv_cq = device_->create_cq(static_cast<int>(depth), channel_);
    if (!recv_cq) return std::unexpected(recv_cq.error());
    recv_cq_ = *recv_cq;
    auto send_cq = device_->create_cq(static_cast<int>(tx_count), nullptr);
    if (!send_cq) return std::unexpected(send_cq.error());
    send_cq_ = *send_cq;
    ibv_qp_init_attr init{};
    init.recv_cq = recv_cq_;
    init.send_cq = send_cq_;
    init.qp_type = IBV_QPT_RAW_PACKET;
    init.cap.max_recv_wr = depth;
    init.cap.max_send_wr = tx_count;
    init.cap.max_send_sge = attr.max_send_sge;
    init.cap.max_recv_sge = 1;
    auto qp = device_->create_qp(init);
    if (!qp) return std::unexpected(qp.error());
    qp_ = *qp;

    // A batch may not exceed what can be missing from the queue before that counts as a shortage.
    config_.batch = std::max(config_.batch, 1u);
    depth_ = attr.recv_wr_hint != 0 ? std::min(attr.recv_wr_hint, max_depth_) : max_depth_;
    config_.post_batch = std::clamp(config_.post_batch, 1u, std::max(low_water(), 1u));
    wc_.resize(config_.batch);
    batch_.reserve(2 * wc_.size());  // each frame adds one, and one more when its sink hands it on
    recv_wr_.resize(config_.post_batch);
    recv_sge_.resize(config_.post_batch);
    rx_buffers_.resize(rx_count);
    for (std::uint32_t i = rx_count; i-- > 0;) {
        RxBuffer& b = rx_buffers_[i];
        b.ring = this;
        b.frame = memory_ + std::size_t{i} * attr.chunk_size + attr.rx_offset;
    }
    rx_free_.reserve(rx_count);
    for (std::uint32_t i = rx_count; i-- > 0;) rx_free_.push_back(i);
    // Together, sockets with unread datagrams leave half of the buffers to all others, and one alone most of
    // that half, too.
    partial_sums_ = attr.partial_sums;
    plenty_ = rx_count / 2;
    hold_limit_ = rx_count / 8;
    post_free(true);

    // Of a netdev; where the device steers precisely, for what was in its queue when a rule went.
    if (attr.coarse_steering || attr.ifindex != 0) kernel_path_.open(attr.name, config_.is_local);

    tx_base_ = memory_ + rx_bytes;
    tx_room_ = attr.chunk_size - attr.tx_headroom;
    // A device that transmits at once sums for nothing.
    offload_from_ = !attr.tx_checksum ? ~0u : attr.lazy_tx ? kOffloadChecksumFrom : 0;
    max_inline_ = std::min(attr.max_inline, tx_room_);
    max_tso_ = attr.tx_checksum ? attr.max_tso : 0;
    tx_extras_ = max_inline_ != 0 || max_tso_ != 0;
    if (max_tso_ != 0) tso_.sge.resize(attr.max_send_sge);
    tx_free_.reserve(tx_count);
    for (std::uint32_t i = tx_count; i-- > 0;) tx_free_.push_back(i);
    tx_outstanding_.resize(std::bit_ceil(tx_count));  // a power of two, so that an index is a mask away
    signal_every_ = signal_every();
    if (attr.lazy_tx) TxFlusher::instance().add(this);
    moderate_device();
    device_->on_failure([this] { fail(); });
    return {};
}

Ring::~Ring() {
    if (device_->attr().lazy_tx) TxFlusher::instance().remove(this);
    if (qp_ != nullptr) device_->flush(qp_);
    for (auto& [key, entry] : flows_)
        if (entry->flow != nullptr) device_->destroy_flow(entry->flow);
    device_.reset();  // before the memory it uses
    if (memory_ != nullptr) munmap(memory_, memory_length_);
}

// Users may lock 8 MiB as a rule (RLIMIT_MEMLOCK), unless they have CAP_IPC_LOCK. Fewer buffers are better
// than none: what sockets leave unread is copied out of them earlier, and longer bursts find none.
Result<void> Ring::register_memory(std::uint32_t& rx_count, std::uint32_t& tx_count) {
    constexpr std::uint32_t kLeastReceive = 512, kLeastSend = 128;
    const std::uint32_t wanted = rx_count;
    for (;;) {
        const std::size_t bytes = (std::size_t{rx_count} + tx_count) * device_->attr().chunk_size;
        memory_length_ = bytes;
        auto memory = map_buffer_memory(memory_length_, config_.huge_pages, config_.warn_ordinary);
        if (!memory) return std::unexpected(memory.error());
        memory_ = *memory;
        auto mr = device_->reg_mr(memory_, memory_length_);
        if (mr) {
            mr_ = *mr;
            if (rx_count != wanted)
                log::once(log::Level::warn,
                          "locked memory is limited, so {} gets {} KiB of buffers only: raise the limit "
                          "(ulimit -l unlimited, "
                          "LimitMEMLOCK=infinity in a systemd unit), or give the program CAP_IPC_LOCK",
                          attr().name, memory_length_ / 1024);
            return {};
        }
        munmap(memory_, memory_length_);
        memory_ = nullptr;
        if (mr.error().code != ENOBUFS || rx_count / 2 < kLeastReceive) return std::unexpected(mr.error());
        rx_count /= 2;
        tx_count = std::max(tx_count / 2, std::min(tx_count, kLeastSend));
        max_depth_ = std::min(max_depth_, rx_count / 2);
    }
}

void Ring::rx_unlock() noexcept {
    if (__builtin_expect(any_doomed_.load(std::memory_order_relaxed), 0)) detach_doomed();
    rx_lock_.unlock();
    // What was added while the lock was still held would wait for the next poll.
    while (__builtin_expect(any_doomed_.load(std::memory_order_seq_cst), 0) && rx_lock_.try_lock()) {
        detach_doomed();
        rx_lock_.unlock();
    }
}

BufferCounts Ring::buffer_counts() noexcept {
    BufferCounts counts;
    {
        RxHold hold(*this);
        take_returned();
        counts.rx_total = static_cast<std::uint32_t>(rx_buffers_.size());
        counts.rx_posted = posted_;
        counts.rx_free = static_cast<std::uint32_t>(rx_free_.size());
    }
    tx_lock_.lock();
    reap_tx();
    counts.tx_total = tx_count_;
    counts.tx_free = static_cast<std::uint32_t>(tx_free_.size());
    tx_lock_.unlock();
    return counts;
}

RingCounters Ring::counters() noexcept {
    RingCounters c;
    if (rx_lock_.owned_by_me()) {  // exit() in a signal handler that interrupted poll()
        c = rx_counters_;
    } else {
        RxHold hold(*this);
        c = rx_counters_;
        c.rules = flows_.size();
    }
    c.tx_error = std::atomic_ref(tx_counters_.tx_error).load(std::memory_order_relaxed);
    c.tx_lost = std::atomic_ref(tx_counters_.tx_lost).load(std::memory_order_relaxed);
    c.tx_frames = std::atomic_ref(tx_counters_.tx_frames).load(std::memory_order_relaxed);
    c.tx_bytes = std::atomic_ref(tx_counters_.tx_bytes).load(std::memory_order_relaxed);
    c.tx_no_buffer = std::atomic_ref(tx_counters_.tx_no_buffer).load(std::memory_order_relaxed);
    c.rx_to_kernel = to_kernel_.load(std::memory_order_relaxed);
    c.tx_retransmits = tx_retransmits_.load(std::memory_order_relaxed);
    return c;
}

void Ring::reset_drained_max() noexcept {
    RxHold hold(*this);
    rx_counters_.rx_drained_max = 0;
}

}  // namespace vma::ring
