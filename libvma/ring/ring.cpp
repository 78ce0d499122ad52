// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/ring/ring.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "libvma/net/checksum.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/ring/buffer_memory.h"
#include "libvma/ring/tx_flusher.h"
#include "libvma/runtime/clock.h"

namespace vma::ring {
namespace {

constexpr std::uint32_t kOffloadChecksumFrom = 256;  // below, summing while copying is cheaper than the metadata
constexpr unsigned kMaxPieces = 17;
constexpr std::uint32_t kSlack = 64;              // receives beyond what the sockets expect
constexpr std::uint32_t kBusyStreams = 16, kStreamBurst = 64;  // connections that count; frames of each
constexpr unsigned kMaxBatches = 8;               // in one poll()
constexpr std::uint32_t kIdlePost = 8;            // receives worth posting while there is nothing else to do

}  // namespace

std::size_t RxBuffer::copy_to(const iovec* iov, std::size_t count, std::size_t from) const noexcept {
    std::size_t left = payload_length > from ? payload_length - from : 0, copied = 0;
    const RxBuffer* piece = this;
    std::size_t at = payload_offset + from;  // from the start of the frame
    while (piece != nullptr && at >= piece->length) {
        at -= piece->length;
        piece = piece->more;
    }
    for (std::size_t i = 0; i < count && left != 0; i++) {
        std::size_t room = iov[i].iov_len, put = 0;
        while (put < room && left != 0 && piece != nullptr) {
            std::size_t n = std::min({room - put, left, static_cast<std::size_t>(piece->length) - at});
            std::memcpy(static_cast<std::uint8_t*>(iov[i].iov_base) + put, piece->frame + at, n);
            put += n;
            left -= n;
            at += n;
            if (at == piece->length) {
                piece = piece->more;
                at = 0;
            }
        }
        copied += put;
    }
    return copied;
}

void RxBuffer::release() noexcept {
    // A chain becomes a list of single buffers; the whole list is pushed at once.
    RxBuffer* last = this;
    for (RxBuffer* b = this; b != nullptr; b = b->more) {
        b->next = b->more;
        last = b;
    }
    std::atomic<RxBuffer*>& list = ring->returned_;
    RxBuffer* head = list.load(std::memory_order_relaxed);
    do {
        last->next = head;
    } while (!list.compare_exchange_weak(head, this, std::memory_order_release, std::memory_order_relaxed));
}

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

    tx_base_ = memory_ + rx_bytes;
    tx_free_.reserve(tx_count);
    for (std::uint32_t i = tx_count; i-- > 0;) tx_free_.push_back(i);
    tx_outstanding_.resize(std::bit_ceil(tx_count));  // a power of two, so that an index is a mask away
    signal_every_ = std::clamp(tx_count / 4, 1u, std::max(config_.signal_every, 1u));
    if (attr.lazy_tx) TxFlusher::instance().add(this);
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

// ---- receive ----

void Ring::recycle(RxBuffer* chain) noexcept {
    while (chain != nullptr) {
        RxBuffer* more = chain->more;
        chain->more = nullptr;
        rx_free_.push_back(index_of(chain));
        chain = more;
    }
}

void Ring::take_returned() noexcept {
    if (returned_.load(std::memory_order_relaxed) == nullptr) return;
    RxBuffer* list = returned_.exchange(nullptr, std::memory_order_acquire);
    while (list != nullptr) {
        RxBuffer* next = list->next;
        list->more = nullptr;
        rx_free_.push_back(index_of(list));
        list = next;
    }
}

void Ring::refill(bool all) noexcept {
    take_returned();
    post_free(all);
}

// Looks at the numbers of the buffers only: their descriptors left the caches long ago.
void Ring::post_free(bool all) noexcept {
    const verbs::DeviceAttr& attr = device_->attr();
    while (!rx_free_.empty() && posted_ < depth_) {
        const auto left = static_cast<std::uint32_t>(rx_free_.size());
        std::uint32_t wanted = std::min({config_.post_batch, depth_ - posted_, left});
        if (!all && wanted < config_.post_batch) break;
        for (std::uint32_t i = 0; i < wanted; i++) {
            const std::uint32_t index = rx_free_[left - 1 - i];
            recv_sge_[i] = {reinterpret_cast<std::uintptr_t>(memory_) + std::uintptr_t{index} * attr.chunk_size, attr.chunk_size,
                            mr_->lkey};
            recv_wr_[i].wr_id = index;
            recv_wr_[i].sg_list = &recv_sge_[i];
            recv_wr_[i].num_sge = 1;
            recv_wr_[i].next = i + 1 < wanted ? &recv_wr_[i + 1] : nullptr;
        }
        rx_free_.resize(left - wanted);
        posted_ += wanted;
        ibv_recv_wr* bad = nullptr;
        if (ibv_post_recv(qp_, recv_wr_.data(), &bad) != 0) {
            for (; bad != nullptr; bad = bad->next) {  // the queue is full: keep the rest
                rx_free_.push_back(static_cast<std::uint32_t>(bad->wr_id));
                posted_--;
            }
            break;
        }
    }
}

unsigned Ring::poll() noexcept {
    // A loop that polls takes the lock again before a waiter can wake up, so it steps back where one waits.
    if (rx_waiters_.load(std::memory_order_relaxed) != 0 || !rx_lock_.try_lock()) return 0;
    polls_.store(polls_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    // A program that only writes polls once a call: the ACKs of one call's segments must not pile up.
    unsigned n = 0, taken;
    do {
        taken = poll_locked();
        n += taken;
    } while (taken == wc_.size() && n < kMaxBatches * wc_.size());
    if (n != 0) frames_.store(frames_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    if (__builtin_expect(n > rx_counters_.rx_drained_max, 0)) rx_counters_.rx_drained_max = n;
    rx_unlock();
    return n;
}

unsigned Ring::woken() noexcept {
    moderation_lock_.lock();
    const std::uint64_t hold = moderation_.hold_ns();
    moderation_lock_.unlock();
    if (hold != 0) {
        pollfd channel{channel_->fd, POLLIN, 0};
        timespec now{0, 0}, pause{0, static_cast<long>(hold)};
        if (os::raw_syscall(SYS_ppoll, &channel, 1, &now, nullptr, 8) == 1) os::raw_syscall(SYS_nanosleep, &pause, nullptr);
    }
    const unsigned n = poll();
    if (n == 0) return 0;
    const std::uint64_t now = clock::monotonic_ns();
    moderation_lock_.lock();
    moderation_.interrupt(frames_.load(std::memory_order_relaxed), now);
    moderation_lock_.unlock();
    return n;
}

ModerationCounters Ring::moderation_counters() noexcept {
    moderation_lock_.lock();
    ModerationCounters c{arms_.load(std::memory_order_relaxed), moderation_.received(), frames_.load(std::memory_order_relaxed),
                         moderation_.count(), moderation_.period_usec()};
    moderation_lock_.unlock();
    return c;
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

unsigned Ring::poll_locked() noexcept {
    int n = ibv_poll_cq(recv_cq_, static_cast<int>(wc_.size()), wc_.data());
    if (n <= 0) {
        // Nothing to do: the time to post what was taken. After a shortage there is no other: the queue may be all but
        // empty, and then nothing arrives that would fill it again.
        if (depth_ - posted_ >= kIdlePost) {
            refill(true);
        }
        full_batches_ = 0;
        if (__builtin_expect(!idle_.empty(), 0)) serve_idle();
        return 0;
    }
    posted_ -= static_cast<std::uint32_t>(n);
    if (static_cast<std::size_t>(n) == wc_.size())
        grow_if_behind();
    else
        full_batches_ = 0;
    for (int i = 0; i < n; i++) {
        const ibv_wc& wc = wc_[i];
        RxBuffer* b = &rx_buffers_[wc.wr_id];
        b->more = nullptr;
        if (__builtin_expect(wc.status != IBV_WC_SUCCESS, 0)) {
            rx_counters_.rx_error++;
            recycle(b);
            continue;
        }
        b->length = wc.byte_len;
        if (__builtin_expect((wc.wc_flags & verbs::kWcMore) != 0 || partial_first_ != nullptr, 0)) {
            if (partial_first_ == nullptr)
                partial_first_ = b;
            else
                partial_last_->more = b;
            partial_last_ = b;
            if (wc.wc_flags & verbs::kWcMore) continue;
            b = partial_first_;
            partial_first_ = partial_last_ = nullptr;
        }
        handle_frame(b);
    }
    if (!batch_.empty()) end_batch();
    const bool shortage = posted_ < low_water();
    if (depth_ - posted_ >= config_.post_batch || shortage) {
        refill(shortage);
    }
    return static_cast<unsigned>(n);
}

void Ring::when_idle(FrameSink* sink, std::uint64_t ticks) noexcept {
    const std::uint64_t due = clock::ticks() + ticks;
    if (idle_.empty() || due < idle_due_) idle_due_ = due;
    try {
        idle_.push_back(sink);
    } catch (...) {
        // No memory: its timer does it.
    }
}

void Ring::serve_idle() noexcept {
    if (clock::ticks() < idle_due_) return;
    for (std::size_t i = 0; i < idle_.size(); i++) idle_[i]->idle(*this);
    idle_.clear();
}

void Ring::end_batch() noexcept {
    // A sink may ask again while it is served (it handed a frame to another one).
    for (std::size_t i = 0; i < batch_.size(); i++) batch_[i]->batch_end(*this);
    batch_.clear();
}

// Receives are posted for what arrives, not for what the queue could hold: the device uses them in turn, so each posted
// buffer is one more that has left the caches when its turn comes. When polls keep finding full batches, this thread has
// fallen behind by a good part of the queue, and the queue gets deeper for good.
void Ring::grow_if_behind() noexcept {
    full_batches_++;
    if (full_batches_ * wc_.size() < depth_ / 4 || depth_ >= device_->attr().max_recv_wr) return;
    full_batches_ = 0;
    depth_ = std::min(depth_ * 4, device_->attr().max_recv_wr);
    refill(true);
}

void Ring::expect(std::int64_t delta) noexcept {
    RxHold hold(*this);
    expected_ = std::max<std::int64_t>(0, expected_ + delta);
    deepen();
}

void Ring::expect_stream(bool more) noexcept {
    RxHold hold(*this);
    streams_ += more ? 1 : -1u;
    if (more && streams_ <= kBusyStreams) deepen();
}

void Ring::deepen() noexcept {
    const std::int64_t all = expected_ + std::min(streams_, kBusyStreams) * kStreamBurst + kSlack;
    const auto wanted = static_cast<std::uint32_t>(std::min<std::int64_t>(device_->attr().max_recv_wr, all));
    if (wanted <= depth_) return;
    depth_ = wanted;
    refill(true);
}

Ring::FlowEntry* Ring::find_flow(const net::ParsedFrame& f) noexcept {
    verbs::FlowSpec five{f.protocol, f.dst_addr, f.dst_port, f.src_addr, f.src_port};
    FlowKey key = key_of(five);
    if (last_flow_ != nullptr && key == last_key_) return last_flow_;
    auto it = flows_.find(key);
    if (it == flows_.end()) it = flows_.find(key_of({f.protocol, f.dst_addr, f.dst_port, 0, 0}));
    if (it == flows_.end()) return nullptr;
    last_key_ = key;
    last_flow_ = it->second.get();
    return last_flow_;
}

FrameSink* Ring::pick_sink(const FlowEntry& entry, const net::ParsedFrame& f) noexcept {
    if (entry.sinks.size() == 1) return entry.sinks.back().first;
    Share group = Share::spread_any;
    for (auto s = entry.sinks.rbegin(); s != entry.sinks.rend() && group == Share::spread_any; ++s) {
        if (s->second == Share::latest || s->second == Share::only) return s->first;
        group = s->second;
    }
    // A SO_REUSEPORT group: every datagram of a peer goes to the same member.
    std::uint64_t h = (std::uint64_t{f.src_addr} << 16 | f.src_port) * 0x9e3779b97f4a7c15u;
    std::size_t members = 0;
    for (auto& s : entry.sinks) members += s.second == group;
    std::size_t pick = static_cast<std::size_t>((h >> 32) % members);
    for (auto& s : entry.sinks)
        if (s.second == group && pick-- == 0) return s.first;
    return entry.sinks.back().first;
}

void Ring::handle_frame(RxBuffer* first) noexcept {
    net::ParsedFrame f;
    net::Drop drop;
    if (__builtin_expect(first->more == nullptr, 1)) {
        rx_counters_.rx_bytes += first->length;
        drop = net::parse(std::span<const std::uint8_t>(first->frame, first->length), false, f);
    } else {
        std::span<const std::uint8_t> pieces[64];
        std::size_t n = 0;
        for (RxBuffer* b = first; b != nullptr && n < 64; b = b->more) {
            pieces[n++] = {b->frame, b->length};
            rx_counters_.rx_bytes += b->length;
        }
        drop = net::parse(net::FramePieces(pieces, n), false, f);
    }
    rx_counters_.rx_frames++;
    if (__builtin_expect(drop != net::Drop::none, 0)) {
        rx_counters_.rx_bad[static_cast<std::size_t>(drop)]++;
        recycle(first);
        return;
    }
    FlowEntry* flow = find_flow(f);
    if (__builtin_expect(flow == nullptr, 0)) {
        rx_counters_.rx_no_socket++;
        recycle(first);
        return;
    }
    // Sockets may hold at most what leaves a quarter of the queue filled; beyond that arriving frames are dropped, or
    // the device would have no buffer for anybody.
    if (__builtin_expect(posted_ + rx_free_.size() < low_water(), 0)) {
        take_returned();
        if (posted_ + rx_free_.size() < low_water()) {
            rx_counters_.rx_no_buffer++;
            recycle(first);
            return;
        }
    }
    first->l4_offset = static_cast<std::uint16_t>(f.l4_offset);
    first->payload_offset = f.payload_offset;
    first->payload_length = f.payload_length;
    first->src_addr = f.src_addr;
    first->dst_addr = f.dst_addr;
    first->src_port = f.src_port;
    first->dst_port = f.dst_port;
    first->tos = f.tos;
    first->ttl = f.ttl;
    if (timestamps_.load(std::memory_order_relaxed) > 0) {
        timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        first->timestamp_ns = now.tv_sec * 1'000'000'000ll + now.tv_nsec;
    } else {
        first->timestamp_ns = 0;
    }
    if (!pick_sink(*flow, f)->deliver(first)) {
        rx_counters_.rx_refused++;
        recycle(first);
    }
}

Result<void> Ring::attach(const verbs::FlowSpec& spec, FrameSink* sink, Share share) {
    RxHold hold(*this);
    last_flow_ = nullptr;
    // One that is to go any moment is none any more.
    if (share == Share::only && hold.mine && any_doomed_.load(std::memory_order_acquire)) detach_doomed();
    if (auto it = flows_.find(key_of(spec)); it != flows_.end()) {
        if (share == Share::only) return std::unexpected(Error{EEXIST, "the flow is another socket's"});
        it->second->sinks.emplace_back(sink, share);
        return {};
    }
    auto entry = std::make_unique<FlowEntry>();
    entry->spec = spec;
    entry->sinks.emplace_back(sink, share);
    FlowEntry& placed = *flows_.emplace(key_of(spec), std::move(entry)).first->second;
    auto flow = device_->create_flow(qp_, spec);
    if (!flow) {
        flows_.erase(key_of(spec));
        return std::unexpected(flow.error());
    }
    placed.flow = *flow;
    if (spec.protocol == IPPROTO_TCP && spec.src_addr != 0) rx_counters_.tcp_connections++;
    return {};
}

void Ring::detach(const verbs::FlowSpec& spec, FrameSink* sink) noexcept {
    RxHold hold(*this);
    detach_locked(spec, sink, true);
}

void Ring::detach_soon(const verbs::FlowSpec& spec, FrameSink* sink) noexcept {
    doomed_lock_.lock();
    try {
        doomed_.emplace_back(spec, sink);
    } catch (...) {
        // No memory: the rule stays, its frames are dropped by the sink, which lives on.
    }
    any_doomed_.store(true, std::memory_order_seq_cst);
    doomed_lock_.unlock();
    if (rx_lock_.owned_by_me() || !rx_lock_.try_lock()) return;  // its owner sees the mark
    rx_unlock();
}

void Ring::detach_doomed() noexcept {
    for (;;) {
        doomed_lock_.lock();
        if (doomed_.empty()) {
            any_doomed_.store(false, std::memory_order_relaxed);
            doomed_lock_.unlock();
            return;
        }
        auto [spec, sink] = doomed_.back();
        doomed_.pop_back();
        doomed_lock_.unlock();
        // What is in the ring already may be of the next connection with these numbers, whose peer was quick.
        detach_locked(spec, sink, false);
        sink->detached(*this);
    }
}

// `drain`: the sink still gets what is in the ring already.
void Ring::detach_locked(const verbs::FlowSpec& spec, FrameSink* sink, bool drain) noexcept {
    last_flow_ = nullptr;
    std::erase(idle_, sink);
    auto it = flows_.find(key_of(spec));
    auto is_sink = [&](auto& s) { return s.first == sink; };
    if (it != flows_.end() && std::ranges::any_of(it->second->sinks, is_sink)) {
        FlowEntry& entry = *it->second;
        if (entry.sinks.size() == 1) {
            // First the rule, so that new frames go to the kernel; then what is already in the ring is delivered.
            if (entry.flow != nullptr) device_->destroy_flow(entry.flow);
            entry.flow = nullptr;
            // Not from within a batch: the completions it took are being handed out.
            for (int i = 0; drain && batch_.empty() && i < 4096 && poll_locked() != 0; i++) {
            }
            last_flow_ = nullptr;
            flows_.erase(it);
        } else {
            std::erase_if(entry.sinks, is_sink);
        }
    }
}

void Ring::icmp_error(const verbs::FlowSpec& spec, const IcmpError& error) noexcept {
    RxHold hold(*this);
    auto it = flows_.find(key_of(spec));
    if (it == flows_.end()) return;
    for (auto& sink : it->second->sinks) sink.first->icmp_error(*this, error);
}

void Ring::arm() noexcept {
    arms_.fetch_add(1, std::memory_order_relaxed);
    ibv_req_notify_cq(recv_cq_, 0);
}

// ---- send ----

std::uint32_t Ring::max_udp_payload() const noexcept {
    const verbs::DeviceAttr& attr = device_->attr();
    std::uint32_t room = (attr.chunk_size - attr.tx_headroom) * std::min(kMaxPieces, attr.max_send_sge);
    return std::min(attr.mtu, room - 14) - 28;
}

bool Ring::reap_tx() noexcept {
    ibv_wc wc[16];
    bool any = false;
    for (;;) {
        int n = ibv_poll_cq(send_cq_, 16, wc);
        if (n <= 0) break;
        any = true;
        // wr_id is the running number of the request's last chunk: everything before it is done as well.
        std::uint64_t upto = wc[n - 1].wr_id;
        while (tx_reaped_ < upto) tx_free_.push_back(tx_outstanding_[tx_reaped_++ & (tx_outstanding_.size() - 1)]);
        if (n < 16) break;
    }
    return any;
}

template <class Finish>
int Ring::send_frame(const std::uint8_t* headers, std::size_t header_length, const iovec* iov, std::size_t count,
                     std::size_t length, Finish&& finish) noexcept {
    const verbs::DeviceAttr& attr = device_->attr();
    const std::uint32_t room = attr.chunk_size - attr.tx_headroom;
    const std::size_t frame_length = header_length + length;
    const std::uint32_t pieces = frame_length <= room ? 1 : static_cast<std::uint32_t>((frame_length + room - 1) / room);

    if (!tx_lock_.try_lock()) {
        if (tx_lock_.owned_by_me()) return EBUSY;
        tx_lock_.lock();
    }
    struct Unlock {
        Lock& lock;
        ~Unlock() { lock.unlock(); }
    } unlock{tx_lock_};

    if (__builtin_expect(tx_free_.size() < pieces, 0)) {
        // Completions exist only for what the kernel has seen, so what is held back goes first.
        for (int i = 0; tx_free_.size() < pieces && i < 16; i++)
            if (!reap_tx()) device_->flush(qp_);
        if (tx_free_.size() < pieces) {
            tx_counters_.tx_no_buffer++;
            return ENOBUFS;
        }
    }

    ibv_sge sge[kMaxPieces];
    std::size_t left = length, at = 0, which = 0;  // position in the iovecs
    const bool offload = attr.tx_checksum && length >= kOffloadChecksumFrom;
    std::uint64_t sum = 0;
    std::uint8_t* first = nullptr;
    bool odd = false;
    for (std::uint32_t p = 0; p < pieces; p++) {
        std::uint32_t chunk = tx_free_.back();
        tx_free_.pop_back();
        tx_outstanding_[tx_posted_++ & (tx_outstanding_.size() - 1)] = chunk;
        std::uint8_t* frame = tx_base_ + std::size_t{chunk} * attr.chunk_size + attr.tx_headroom;
        std::uint8_t* out = frame;
        std::size_t space = room;
        if (p == 0) {
            first = frame;
            std::memcpy(out, headers, header_length);
            out += header_length;
            space -= header_length;
        }
        std::uint8_t* piece_start = out;
        while (space != 0 && left != 0 && which < count) {
            if (at == iov[which].iov_len) {
                which++;
                at = 0;
                continue;
            }
            std::size_t n = std::min({space, left, iov[which].iov_len - at});
            std::memcpy(out, static_cast<const std::uint8_t*>(iov[which].iov_base) + at, n);
            out += n;
            space -= n;
            left -= n;
            at += n;
        }
        if (!offload) {
            // A piece that starts at an odd position contributes byte-swapped (RFC 1071, section 2B).
            std::size_t n = static_cast<std::size_t>(out - piece_start);
            std::uint16_t part = net::checksum_fold(net::checksum_add(piece_start, n, 0));
            sum += odd ? static_cast<std::uint16_t>(part << 8 | part >> 8) : part;
            odd ^= (n & 1) != 0;
        }
        sge[p] = {reinterpret_cast<std::uintptr_t>(frame), static_cast<std::uint32_t>(out - frame), mr_->lkey};
    }
    finish(first, sum, offload);

    ibv_send_wr wr{};
    wr.wr_id = tx_posted_;
    wr.sg_list = sge;
    wr.num_sge = static_cast<int>(pieces);
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = offload ? static_cast<unsigned>(IBV_SEND_IP_CSUM) : 0u;
    const bool signalled = unsignalled_ + pieces >= signal_every_;
    if (signalled) wr.send_flags |= IBV_SEND_SIGNALED;
    ibv_send_wr* bad = nullptr;
    int error = ibv_post_send(qp_, &wr, &bad);
    for (int i = 0; error == ENOMEM && i < 16; i++) {
        reap_tx();
        device_->flush(qp_);
        error = ibv_post_send(qp_, &wr, &bad);
    }
    if (error != 0) {
        for (std::uint32_t p = 0; p < pieces; p++) tx_free_.push_back(tx_outstanding_[--tx_posted_ & (tx_outstanding_.size() - 1)]);
        tx_counters_.tx_no_buffer++;
        return ENOBUFS;
    }
    unsignalled_ = signalled ? 0 : unsignalled_ + pieces;  // a refused request will not complete
    tx_counters_.tx_frames++;
    tx_counters_.tx_bytes += frame_length;
    if (attr.lazy_tx) {
        in_burst_.store(true, std::memory_order_relaxed);
        if (device_->tx_held(qp_) == 1) TxFlusher::instance().held();
    }
    if (tx_posted_ - tx_reaped_ >= 2 * signal_every_) reap_tx();
    return 0;
}

int Ring::send_udp(const std::uint8_t* headers, const iovec* iov, std::size_t count, std::size_t length) noexcept {
    return send_frame(headers, net::kUdpHeaders, iov, count, length, [&](std::uint8_t* frame, std::uint64_t sum, bool offload) {
        net::finish_udp_headers(frame, static_cast<std::uint16_t>(length));
        auto* ip = reinterpret_cast<const net::Ipv4Header*>(frame + sizeof(net::EthernetHeader));
        auto* udp = reinterpret_cast<net::UdpHeader*>(frame + sizeof(net::EthernetHeader) + sizeof(net::Ipv4Header));
        const std::uint32_t udp_length = static_cast<std::uint32_t>(length) + sizeof(net::UdpHeader);
        std::uint64_t pseudo = net::pseudo_header_sum(ip->src, ip->dst, IPPROTO_UDP, udp_length);
        if (offload) {
            udp->checksum = net::checksum_fold(pseudo);
            return;
        }
        sum = net::checksum_add(udp, sizeof *udp, sum + pseudo);
        std::uint16_t folded = static_cast<std::uint16_t>(~net::checksum_fold(sum));
        udp->checksum = folded == 0 ? 0xffff : folded;  // 0 would mean "none" (RFC 768)
    });
}

int Ring::send_tcp(const std::uint8_t* headers, std::size_t header_length, const iovec* iov, std::size_t count,
                   std::size_t length) noexcept {
    return send_frame(headers, header_length, iov, count, length, [&](std::uint8_t* frame, std::uint64_t sum, bool offload) {
        constexpr std::size_t kTcpAt = sizeof(net::EthernetHeader) + sizeof(net::Ipv4Header);
        auto* ip = reinterpret_cast<net::Ipv4Header*>(frame + sizeof(net::EthernetHeader));
        ip->total_length = htons(static_cast<std::uint16_t>(header_length - sizeof(net::EthernetHeader) + length));
        ip->checksum = 0;
        ip->checksum = static_cast<std::uint16_t>(~net::checksum_fold(net::checksum_add(ip, sizeof *ip, 0)));
        auto* tcp = reinterpret_cast<net::TcpHeader*>(frame + kTcpAt);
        const std::size_t tcp_header = header_length - kTcpAt;
        const std::uint64_t pseudo =
            net::pseudo_header_sum(ip->src, ip->dst, IPPROTO_TCP, static_cast<std::uint32_t>(tcp_header + length));
        tcp->checksum = 0;
        if (offload)
            tcp->checksum = net::checksum_fold(pseudo);
        else
            tcp->checksum = static_cast<std::uint16_t>(~net::checksum_fold(net::checksum_add(tcp, tcp_header, sum + pseudo)));
    });
}

void Ring::hold(HeldSender* sender) noexcept {
    HeldSender* head = held_.load(std::memory_order_relaxed);
    do {
        if (head == nullptr) held_since_.store(clock::ticks(), std::memory_order_relaxed);
        sender->next_held_ = head;
    } while (!held_.compare_exchange_weak(head, sender, std::memory_order_release, std::memory_order_relaxed));
    in_burst_.store(true, std::memory_order_relaxed);
    if (head == nullptr) TxFlusher::instance().held();
}

void Ring::send_all_held() noexcept {
    HeldSender* list = held_.exchange(nullptr, std::memory_order_acquire);
    while (list != nullptr) {
        HeldSender* next = list->next_held_;
        list->send_held();
        list = next;
    }
}

// False: there is nothing to gather.
bool Ring::gather(int change) noexcept {
    if (!device_->attr().lazy_tx || tx_lock_.owned_by_me()) return false;
    tx_lock_.lock();
    gathering_ += change;
    if (gathering_ == (change > 0 ? 1 : 0)) device_->gather(qp_, change > 0);
    tx_lock_.unlock();
    return true;
}

void Ring::flush_slow() noexcept {
    if (tx_lock_.owned_by_me()) return;  // a signal handler inside send_udp()
    if (held_.load(std::memory_order_relaxed) != nullptr) send_all_held();
    tx_lock_.lock();
    in_burst_.store(false, std::memory_order_relaxed);
    device_->flush(qp_);
    tx_lock_.unlock();
}

std::uint64_t Ring::flush_older(std::uint64_t now, std::uint64_t age) noexcept {
    if (held_.load(std::memory_order_relaxed) != nullptr) {
        const std::uint64_t oldest = held_since_.load(std::memory_order_relaxed);
        if (now < oldest + age) return oldest + age;
        send_all_held();
        flush_slow();
        return now + age;
    }
    if (device_->tx_held(qp_) == 0) return 0;
    std::uint64_t since = device_->tx_held_since(qp_);
    if (now < since + age) return since + age;
    if (tx_lock_.try_lock()) {  // a sender holds it otherwise, and decides itself
        device_->flush(qp_);
        tx_lock_.unlock();
        return now + age;  // a burst is going on: look again
    }
    return now + age / 8;
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
