// SPDX-License-Identifier: BSD-2-Clause
// The life of a ring. Its other parts: ring_receive.cpp, ring_flows.cpp, ring_send.cpp, ring_tso.cpp,
// ring_sleep.cpp, ring_recovery.cpp.
#include "libvma/ring/ring.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>

#include "libvma/ring/buffer_memory.h"
#include "libvma/ring/tx_flusher.h"

namespace vma::ring {
namespace {

constexpr std::uint32_t kOffloadChecksumFrom = 256;  // below, summing while copying is cheaper than AF_XDP's metadata

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
    const std::uint32_t rx_count = std::max(depth, std::min(2 * depth, config_.max_rx_buffers));
    // One datagram takes up to kMaxPieces of them.
    const std::uint32_t tx_count = std::min(attr.max_send_wr, std::max(config_.max_tx_buffers, 4 * kMaxPieces));
    tx_count_ = tx_count;
    const std::size_t rx_bytes = std::size_t{rx_count} * attr.chunk_size;
    memory_length_ = rx_bytes + std::size_t{tx_count} * attr.chunk_size;
    auto memory = map_buffer_memory(memory_length_, config_.huge_pages, config_.warn_ordinary);
    if (!memory) return std::unexpected(memory.error());
    memory_ = *memory;

    auto mr = device_->reg_mr(memory_, memory_length_);
    if (!mr) return std::unexpected(mr.error());
    mr_ = *mr;
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
    depth_ = attr.recv_wr_hint != 0 ? std::min(attr.recv_wr_hint, attr.max_recv_wr) : attr.max_recv_wr;
    config_.post_batch = std::clamp(config_.post_batch, 1u, std::max(low_water(), 1u));
    wc_.resize(config_.batch);
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
    post_free(true);

    if (attr.coarse_steering) kernel_path_.open(attr.name, config_.is_local);

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
    c.tx_error = tx_counters_.tx_error;
    c.tx_lost = tx_counters_.tx_lost;
    c.tx_frames = tx_counters_.tx_frames;
    c.tx_bytes = tx_counters_.tx_bytes;
    c.tx_no_buffer = tx_counters_.tx_no_buffer;
    c.tx_retransmits = tx_retransmits_.load(std::memory_order_relaxed);
    return c;
}

void Ring::reset_drained_max() noexcept {
    RxHold hold(*this);
    rx_counters_.rx_drained_max = 0;
}

}  // namespace vma::ring
