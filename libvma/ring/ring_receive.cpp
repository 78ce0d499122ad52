// SPDX-License-Identifier: BSD-2-Clause
// The receive side of a ring: completions become frames, frames find their sinks, and buffers go round.
#include <netinet/udp.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

#include "libvma/ring/ring.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/log.h"

namespace vma::ring {
namespace {

constexpr std::uint32_t kSlack = 64;                           // receives beyond what the sockets expect
constexpr std::uint32_t kBusyStreams = 16, kStreamBurst = 64;  // connections that count; frames of each
constexpr std::uint32_t kStreamWindow = 2048;                  // frames of a window of 2 MB
constexpr unsigned kMaxBatches = 8;                            // in one poll()
constexpr std::uint32_t kIdlePost = 8;  // receives worth posting while there is nothing else to do

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

// A copy's block: its descriptor, then the frame with its headers, since give_back() sends the whole.
static std::size_t copy_size(const RxBuffer& frame) noexcept {
    const std::size_t bytes = std::size_t{frame.payload_offset} + frame.payload_length;
    return sizeof(RxBuffer) + (bytes + alignof(RxBuffer) - 1) / alignof(RxBuffer) * alignof(RxBuffer);
}

void free_copy(RxBuffer* copy) noexcept {
    copy->ring->copied_bytes_.fetch_sub(copy_size(*copy), std::memory_order_relaxed);
    std::free(copy);  // trivially destructible
}
static_assert(std::is_trivially_destructible_v<RxBuffer>);

void RxBuffer::release() noexcept {
    if (__builtin_expect(copied, 0)) return free_copy(this);
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

void Ring::recycle(RxBuffer* chain) noexcept {
    while (chain != nullptr) {
        RxBuffer* more = chain->more;
        chain->more = nullptr;
        chain->length = 0;
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
        list->length = 0;
        rx_free_.push_back(index_of(list));
        list = next;
    }
}

bool Ring::still_short(std::uint32_t held) noexcept {
    take_returned();
    return held >= hold_limit_ || posted_ + rx_free_.size() < plenty_;
}

RxBuffer* Ring::swap_for_copy(RxBuffer* frame, std::uint64_t queued) noexcept {
    const std::size_t size = copy_size(*frame);
    if (copied_bytes_.load(std::memory_order_relaxed) + size > config_.max_copied &&
        queued + size > config_.max_copied / std::max(sinks_, 1u))
        return nullptr;
    void* block = std::aligned_alloc(alignof(RxBuffer), size);
    if (block == nullptr) return nullptr;
    copied_bytes_.fetch_add(size, std::memory_order_relaxed);
    auto* copy = new (block) RxBuffer(*frame);
    copy->copied = true;
    copy->next = copy->more = nullptr;
    copy->frame = static_cast<std::uint8_t*>(block) + sizeof(RxBuffer);
    copy->length = frame->payload_offset + frame->payload_length;
    std::memcpy(copy->frame, frame->frame, frame->payload_offset);
    iovec to{copy->frame + frame->payload_offset, frame->payload_length};
    frame->copy_to(&to, 1);
    recycle(frame);
    rx_counters_.rx_copied++;
    return copy;
}

void Ring::refill(bool all) noexcept {
    take_returned();
    post_free(all);
}

// Looks at the numbers of the buffers only: their descriptors left the caches long ago.
void Ring::post_free(bool all) noexcept {
    const verbs::DeviceAttr& attr = device_->attr();
    if (__builtin_expect(recovering_, 0)) return;
    while (!rx_free_.empty() && posted_ < depth_) {
        const auto left = static_cast<std::uint32_t>(rx_free_.size());
        std::uint32_t wanted = std::min({config_.post_batch, depth_ - posted_, left});
        if (!all && wanted < config_.post_batch) break;
        for (std::uint32_t i = 0; i < wanted; i++) {
            const std::uint32_t index = rx_free_[left - 1 - i];
            recv_sge_[i] = {
                reinterpret_cast<std::uintptr_t>(memory_) + std::uintptr_t{index} * attr.chunk_size,
                attr.chunk_size, mr_->lkey};
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

unsigned Ring::poll_locked() noexcept {
    int n = ibv_poll_cq(recv_cq_, static_cast<int>(wc_.size()), wc_.data());
    if (n <= 0) {
        // Nothing to do: the time to post what was taken. After a shortage there is no other: the queue may
        // be all but empty, and then nothing arrives that would fill it again.
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
            if (wc.status != IBV_WC_WR_FLUSH_ERR) rx_counters_.rx_error++;
            recycle(b);
            if (pieces_ != 0) lose_pieces();
            note_error();
            continue;
        }
        b->length = wc.byte_len;
        if (__builtin_expect((wc.wc_flags & verbs::kWcMore) != 0 || pieces_ != 0, 0)) {
            b = add_piece(b, (wc.wc_flags & verbs::kWcMore) != 0);
            if (b == nullptr) continue;
        }
        handle_frame(b, wc);
    }
    if (!batch_.empty()) end_batch();
    if (__builtin_expect(bulk_.load(std::memory_order_relaxed) != bulk_posted_, 0)) {
        bulk_posted_ = true;
        deepen();
    }
    const bool shortage = posted_ < low_water();
    if (depth_ - posted_ >= config_.post_batch || shortage) {
        refill(shortage);
    }
    return static_cast<unsigned>(n);
}

// Returns the frame when it is complete. An empty piece is not kept: a length of 0 says that a buffer is
// free.
RxBuffer* Ring::add_piece(RxBuffer* piece, bool more) noexcept {
    if (pieces_ <= kMaxRxPieces &&
        ++pieces_ > kMaxRxPieces) {  // a frame without an end must not take all buffers
        rx_counters_.rx_bad[static_cast<std::size_t>(net::Drop::bad_ip_header)]++;
        lose_pieces();
    }
    if (pieces_ > kMaxRxPieces || piece->length == 0) {
        recycle(piece);
    } else {
        (partial_first_ == nullptr ? partial_first_ : partial_last_->more) = piece;
        partial_last_ = piece;
    }
    if (more) return nullptr;
    pieces_ = 0;
    return std::exchange(partial_first_, nullptr);
}

// What is there of the unfinished frame goes, and what still comes of it.
void Ring::lose_pieces() noexcept {
    if (partial_first_ != nullptr) recycle(std::exchange(partial_first_, nullptr));
    pieces_ = kMaxRxPieces + 1;
}

void Ring::when_idle(FrameSink* sink) noexcept {
    const std::uint64_t due = clock::ticks() + config_.idle_usec * clock::ticks_per_usec();
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

// Receives are posted for what arrives, not for what the queue could hold: the device uses them in turn, so
// each posted buffer is one more that has left the caches when its turn comes. When polls keep finding full
// batches, this thread has fallen behind by a good part of the queue, and the queue gets deeper for good.
void Ring::grow_if_behind() noexcept {
    full_batches_++;
    if (full_batches_ * wc_.size() < depth_ / 4 || depth_ >= max_depth_) return;
    full_batches_ = 0;
    depth_ = std::min(depth_ * 4, max_depth_);
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
    const std::int64_t streams =
        std::min(streams_, kBusyStreams) * kStreamBurst + (bulk_posted_ ? kStreamWindow : 0);
    const std::int64_t all = expected_ + streams + kSlack;
    const auto wanted = static_cast<std::uint32_t>(std::min<std::int64_t>(max_depth_, all));
    if (wanted <= depth_) return;
    depth_ = wanted;
    refill(true);
}

void Ring::handle_frame(RxBuffer* first, const ibv_wc& wc) noexcept {
    const bool good = (wc.wc_flags & IBV_WC_IP_CSUM_OK) != 0;
    net::ParsedFrame f;
    net::Drop drop;
    if (__builtin_expect(first->more == nullptr, 1)) {
        rx_counters_.rx_bytes += first->length;
        drop = net::parse(std::span<const std::uint8_t>(first->frame, first->length), good, f, partial_sums_);
    } else {
        std::span<const std::uint8_t> pieces[kMaxRxPieces];
        std::size_t n = 0;
        for (RxBuffer* b = first; b != nullptr && n < kMaxRxPieces; b = b->more) {
            pieces[n++] = {b->frame, b->length};
            rx_counters_.rx_bytes += b->length;
        }
        drop = net::parse(net::FramePieces(pieces, n), good, f, partial_sums_);
    }
    rx_counters_.rx_frames++;
    if (__builtin_expect(log::enabled(log::Level::finer), 0)) {
        std::size_t length = 0;
        for (const RxBuffer* b = first; b != nullptr; b = b->more) length += b->length;
        log_frame("receives", {first->frame, first->length}, length, drop);
    }
    if (__builtin_expect(drop != net::Drop::none, 0)) {
        const bool whole = drop == net::Drop::fragment || drop == net::Drop::bad_ip_header ||
                           drop == net::Drop::bad_protocol;
        if (!whole || !give_to_kernel(*first)) rx_counters_.rx_bad[static_cast<std::size_t>(drop)]++;
        recycle(first);
        return;
    }
    FlowEntry* flow = (wc.wc_flags & verbs::kWcFlowTag) != 0 ? flow_of_tag(verbs::flow_tag(wc), f) : nullptr;
    if (flow == nullptr) flow = find_flow(f);
    if (__builtin_expect(flow == nullptr, 0)) {
        if (!give_to_kernel(*first)) rx_counters_.rx_no_socket++;
        recycle(first);
        return;
    }
    if (__builtin_expect(sources_ != nullptr, 0) && !flow->spec.is_five_tuple() &&
        !sources_->accepts(f.src_addr)) {
        rx_counters_.rx_bad_source++;
        recycle(first);
        return;
    }
    // The last resort, if sinks keep datagrams in spite of should_copy(): a quarter of the queue stays
    // filled, or the device would have no buffer for anybody. Connections copy what they keep when scarce()
    // says so, and what is lost to them costs their peers a timeout; so they get all.
    if (__builtin_expect(posted_ + rx_free_.size() < low_water(), 0) && f.protocol == IPPROTO_UDP) {
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
        stamp(*first, wc);
    } else {
        first->timestamp_ns = 0;
    }
    if (!pick_sink(*flow, f)->deliver(first)) {
        rx_counters_.rx_refused++;
        recycle(first);
    }
}

void Ring::stamp(RxBuffer& frame, const ibv_wc& wc) const noexcept {
    frame.device_ns = (wc.wc_flags & verbs::kWcTimestamp) != 0 ? verbs::arrival_ns(wc) : 0;
    if (frame.device_ns != 0 && device_->attr().arrival_realtime) {
        frame.timestamp_ns = static_cast<std::int64_t>(frame.device_ns);
        return;
    }
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    frame.timestamp_ns = now.tv_sec * 1'000'000'000ll + now.tv_nsec;
}

bool Ring::give(net::KernelPath& path, const RxBuffer& frame) noexcept {
    std::span<const std::uint8_t> pieces[kMaxRxPieces];
    std::size_t n = 0;
    for (const RxBuffer* b = &frame; b != nullptr && n < kMaxRxPieces; b = b->more)
        pieces[n++] = {b->frame, b->length};
    // The kernel would not believe a sum that is not complete of a packet that comes by this way.
    if (partial_sums_) net::complete_sum({frame.frame, frame.length}, net::FramePieces(pieces, n));
    return path.give(net::FramePieces(pieces, n), device_->attr().mac);
}

bool Ring::give_to_kernel(const RxBuffer& frame) noexcept {
    if (!kernel_path_ || !give(kernel_path_, frame)) return false;
    to_kernel_.fetch_add(1, std::memory_order_relaxed);
    return true;
}

bool Ring::give_back(const RxBuffer& frame) noexcept {
    // The checksum was good, but may be unfinished (a frame of this machine): 0 is "none", RFC 768.
    std::memset(frame.frame + frame.l4_offset + offsetof(udphdr, check), 0, sizeof(udphdr::check));
    RxHold hold(*this);
    if (!kernel_path_) kernel_path_.open(attr().name, config_.is_local);
    return kernel_path_ && give(kernel_path_, frame);
}

}  // namespace vma::ring
