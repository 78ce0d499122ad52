// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/ring/receiver.h"

#include <netinet/udp.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "libvma/ring/frame_log.h"
#include "libvma/ring/ring.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/log.h"
#include "libvma/runtime/wakes_held.h"

namespace vma::ring {
namespace {

constexpr unsigned kMaxBatches = 8;  // in one poll()
// How long frames that found the old rule may be on their way to the old ring, when a flow moves. The kernel
// hands out what it takes in one turn, 64 frames of a netdev.
constexpr std::chrono::microseconds kOnTheWay{100};
constexpr unsigned kTriesForLate = 2000;
// Times RingConfig::idle: what a program that has many events at hand may need until it comes to a sink's.
constexpr unsigned kProgramsTurn = 100;

// The chain from `first` on, as far as `out` has room.
net::FramePieces pieces_of(const RxBuffer& first, std::span<std::span<const std::uint8_t>> out) noexcept {
    std::size_t n = 0;
    for (const RxBuffer* b = &first; b != nullptr && n < out.size(); b = b->more)
        out[n++] = {b->frame, b->length};
    return out.first(n);
}

void describe(RxBuffer& first, const net::ParsedFrame& f) noexcept {
    first.l4_offset = static_cast<std::uint16_t>(f.l4_offset);
    first.payload_offset = f.payload_offset;
    first.payload_length = f.payload_length;
    first.src_addr = f.src_addr;
    first.dst_addr = f.dst_addr;
    first.src_port = f.src_port;
    first.dst_port = f.dst_port;
    first.tos = f.tos;
    first.ttl = f.ttl;
}

}  // namespace

void Receiver::open(verbs::Device& device, ibv_qp* qp, ibv_cq* cq, const RingConfig& config) {
    const verbs::DeviceAttr& attr = device.attr();
    device_ = &device;
    cq_ = cq;
    partial_sums_ = attr.partial_sums;
    room_ = attr.chunk_size - attr.rx_offset;
    idle_.set_waits(config.idle, kProgramsTurn * config.idle);
    is_local_ = config.is_local;
    wc_.resize(std::max(config.batch, 1u));
    batch_.reserve(2 * wc_.size());  // each frame adds one, and one more when its sink hands it on
    flows_.open(device, qp, config.owners.get(), &ring_);
    // Of a netdev; where the device steers precisely, for what was in its queue when a rule went.
    if (attr.coarse_steering || attr.ifindex != 0) kernel_path_.open(attr.name, is_local_);
}

unsigned Receiver::poll() noexcept {
    const WakesHeld wakes;
    if (!lock_.try_lock_to_poll()) return 0;
    polls_.store(polls_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    // A program that only writes polls once a call: the ACKs of one call's segments must not pile up.
    unsigned n = 0, taken;
    do {
        taken = poll_locked();
        n += taken;
    } while (taken == wc_.size() && n < kMaxBatches * wc_.size());
    if (n != 0) frames_.store(frames_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    if (__builtin_expect(n > counters_.rx_drained_max, 0)) counters_.rx_drained_max = n;
    lock_.unlock();
    return n;
}

unsigned Receiver::poll_locked() noexcept {
    int n = ibv_poll_cq(cq_, static_cast<int>(wc_.size()), wc_.data());
    if (n <= 0) {
        queue_.replenish_idle();
        if (__builtin_expect(!idle_.empty(), 0)) idle_.serve(ring_);
        return 0;
    }
    queue_.taken(static_cast<std::uint32_t>(n), static_cast<std::size_t>(n) == wc_.size());
    for (int i = 0; i < n; i++) {
        const ibv_wc& wc = wc_[i];
        RxBuffer* b = &queue_.buffer(wc.wr_id);
        b->more = nullptr;
        if (__builtin_expect(wc.status != IBV_WC_SUCCESS, 0)) {
            if (wc.status != IBV_WC_WR_FLUSH_ERR) counters_.rx_error++;
            queue_.recycle(b);
            if (pieces_ != 0) lose_pieces();
            lock_.note_error();
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
    queue_.replenish();
    return static_cast<unsigned>(n);
}

// Returns the frame when it is complete. An empty piece is not kept: a length of 0 says that a buffer is
// free.
RxBuffer* Receiver::add_piece(RxBuffer* piece, bool more) noexcept {
    if (pieces_ <= kMaxPieces &&
        ++pieces_ > kMaxPieces) {  // a frame without an end must not take all buffers
        counters_.rx_bad[static_cast<std::size_t>(net::Drop::bad_ip_header)]++;
        lose_pieces();
    }
    if (pieces_ > kMaxPieces || piece->length == 0) {
        queue_.recycle(piece);
    } else {
        (partial_first_ == nullptr ? partial_first_ : partial_last_->more) = piece;
        partial_last_ = piece;
    }
    if (more) return nullptr;
    pieces_ = 0;
    return std::exchange(partial_first_, nullptr);
}

// What is there of the unfinished frame goes, and what still comes of it.
void Receiver::lose_pieces() noexcept {
    if (partial_first_ != nullptr) queue_.recycle(std::exchange(partial_first_, nullptr));
    pieces_ = kMaxPieces + 1;
}

net::Drop Receiver::parse(RxBuffer& first, bool good, net::ParsedFrame& f) const noexcept {
    if (__builtin_expect(first.more == nullptr, 1))
        return net::parse(std::span<const std::uint8_t>(first.frame, first.length), good, f, partial_sums_);
    std::span<const std::uint8_t> pieces[kMaxPieces];
    return net::parse(pieces_of(first, pieces), good, f, partial_sums_);
}

// Rules of hardware also match frames with a tag. The kernel gives a priority tag's frame to the untagged
// interface, and other tags' frames to the VLAN's interface or to nobody.
bool Receiver::untag(RxBuffer& first) noexcept {
    const auto left = static_cast<std::uint32_t>(net::remove_priority_tag({first.frame, first.length}));
    return std::exchange(first.length, left) != left;
}

void Receiver::handle_frame(RxBuffer* first, const ibv_wc& wc) noexcept {
    const bool good = (wc.wc_flags & IBV_WC_IP_CSUM_OK) != 0;
    net::ParsedFrame f;
    net::Drop drop = parse(*first, good, f);
    std::uint32_t datagram_length = 0;
    if (__builtin_expect(drop == net::Drop::bad_ethertype, 0) &&
        ((datagram_length = take_mark(*first)) != 0 || untag(*first)))
        drop = parse(*first, good, f);
    for (const RxBuffer* b = first; b != nullptr; b = b->more) counters_.rx_bytes += b->length;
    counters_.rx_frames++;
    if (__builtin_expect(log::enabled(log::Level::finer), 0)) {
        std::size_t length = 0;
        for (const RxBuffer* b = first; b != nullptr; b = b->more) length += b->length;
        log_frame(device_->attr().name, "receives", {first->frame, first->length}, length, drop);
    }
    if (__builtin_expect(drop != net::Drop::none, 0)) {
        const bool whole = drop == net::Drop::fragment || drop == net::Drop::bad_ip_header ||
                           drop == net::Drop::bad_protocol;
        if (!whole || !give_to_kernel(*first)) counters_.rx_bad[static_cast<std::size_t>(drop)]++;
        queue_.recycle(first);
        return;
    }
    if (__builtin_expect(datagram_length != 0, 0) && f.protocol == IPPROTO_UDP &&
        f.payload_length > datagram_length)
        return split(first, f, wc, datagram_length);
    to_sink(first, f, wc);
}

void Receiver::to_sink(RxBuffer* first, const net::ParsedFrame& f, const ibv_wc& wc) noexcept {
    FlowTable::Entry* flow = flows_.find(f, wc);
    if (__builtin_expect(flow == nullptr, 0)) {
        if (hand_on(first, f)) return;
        if (!give_to_kernel(*first)) counters_.rx_no_socket++;
        queue_.recycle(first);
        return;
    }
    if (__builtin_expect(!flows_.accepts(*flow, f.src_addr), 0)) {
        counters_.rx_bad_source++;
        queue_.recycle(first);
        return;
    }
    // So that the device has a buffer for every flow. Connections copy what they keep when scarce() says so,
    // and what is lost to them costs their peers a timeout; so they get all.
    if (__builtin_expect(queue_.exhausted(), 0) && f.protocol == IPPROTO_UDP) {
        counters_.rx_no_buffer++;
        queue_.recycle(first);
        return;
    }
    describe(*first, f);
    if (timestamps_.load(std::memory_order_relaxed) > 0) {
        stamp(*first, wc);
    } else {
        first->arrived = {};
    }
    if (!FlowTable::sink_of(*flow, f)->deliver(first)) {
        counters_.rx_refused++;
        queue_.recycle(first);
    }
}

void Receiver::stamp(RxBuffer& frame, const ibv_wc& wc) const noexcept {
    const clock::Nsec by_device((wc.wc_flags & verbs::kWcTimestamp) != 0 ? verbs::arrival_ns(wc) : 0);
    frame.arrived_at_device = clock::DeviceTime(by_device);
    if (by_device != clock::Nsec::zero() && device_->attr().arrival_realtime)
        frame.arrived = clock::WallTime(by_device);
    else
        frame.arrived = clock::wall();
}

bool Receiver::give(const RxBuffer& frame) noexcept {
    std::span<const std::uint8_t> room[kMaxPieces];
    const net::FramePieces pieces = pieces_of(frame, room);
    // The kernel would not believe a sum that is not complete of a packet that comes by this way.
    if (partial_sums_) net::complete_sum({frame.frame, frame.length}, pieces);
    return kernel_path_.give(pieces, device_->attr().mac);
}

bool Receiver::give_to_kernel(const RxBuffer& frame) noexcept {
    if (!kernel_path_ || !give(frame)) return false;
    to_kernel_.fetch_add(1, std::memory_order_relaxed);
    return true;
}

bool Receiver::give_back(const RxBuffer& frame) noexcept {
    // The checksum was good, but may be unfinished (a frame of this machine): 0 is "none", RFC 768.
    std::memset(frame.frame + frame.l4_offset + offsetof(udphdr, check), 0, sizeof(udphdr::check));
    ReceiveLock::Hold hold(lock_);
    if (!kernel_path_) kernel_path_.open(device_->attr().name, is_local_);
    return kernel_path_ && give(frame);
}

bool Receiver::take_stray(std::span<std::uint8_t> frame, const net::ParsedFrame& f, bool own_rule) noexcept {
    const WakesHeld wakes;
    const ReceiveLock::Hold hold(lock_);
    FlowTable::Entry* flow = flows_.find(f, ibv_wc{});
    if (flow == nullptr || (own_rule && !flow->spec.is_five_tuple()) || !flows_.accepts(*flow, f.src_addr))
        return false;
    // As for this station, by whatever interface it came.
    std::ranges::copy(device_->attr().mac, frame.begin());
    RxBuffer whole;
    whole.ring = &ring_;
    whole.frame = frame.data();
    whole.length = static_cast<std::uint32_t>(frame.size());
    describe(whole, f);
    if (timestamps_.load(std::memory_order_relaxed) > 0) whole.arrived = clock::wall();
    RxBuffer* copy = queue_.copy_of(whole);
    if (copy == nullptr) {
        counters_.rx_no_buffer++;
        return true;
    }
    counters_.rx_strays++;
    if (!FlowTable::sink_of(*flow, f)->deliver(copy)) {
        counters_.rx_refused++;
        copy->release();
    }
    end_batch();
    return true;
}

// ---- sinks ----

void Receiver::end_batch() noexcept {
    // What several sinks send now, such as ACKs, shares a kick.
    const Ring::Gather together(batch_.size() > 1 ? &ring_ : nullptr, false);
    // A sink may ask again while it is served (it handed a frame to another one).
    for (std::size_t i = 0; i < batch_.size(); i++) batch_[i]->batch_end(ring_);
    batch_.clear();
}

void Receiver::detach(const verbs::FlowSpec& spec, FrameSink* sink, bool drain) noexcept {
    if (const FlowTable::Entry* last = flows_.begin_detach(spec, sink); last != nullptr) {
        // What is in the queue already is delivered. Not from within a batch: the completions it took are
        // being handed out.
        // A peer that goes on sending meanwhile sends to the kernel: no more than is there already.
        for (std::size_t left = drain && batch_.empty() ? queue_.posted() : 0; left != 0;) {
            const std::size_t taken = poll_locked();
            if (taken == 0) break;
            left -= std::min(left, taken);
        }
        flows_.finish_detach(spec, last);
    }
    idle_.remove(sink);  // at the end: what has just come may have made it ask once more
}

// ---- flows that move ----

Result<void> Receiver::take(const verbs::FlowSpec& spec, FrameSink* sink, Share share, Receiver& from) {
    auto left = flows_.take(spec, sink, share, from.flows_);
    if (!left) return std::unexpected(left.error());
    // Not longer than what was there needs, however much comes for other flows.
    const clock::Ticks until = clock::Ticks::now() + clock::to_ticks(kOnTheWay);
    for (std::size_t left = from.queue_.posted();;) {
        const std::size_t taken = from.poll_locked();
        left -= std::min(left, taken);
        if ((taken == 0 || left == 0) && clock::Ticks::now() > until) break;
    }
    idle_.move(sink, from.idle_);
    from.flows_.finish_detach(spec, *left);
    return {};
}

// A frame that comes out here although its flow has moved: it was on its way for long. True: it is dealt
// with.
bool Receiver::hand_on(RxBuffer* first, const net::ParsedFrame& f) noexcept {
    Ring* home = flows_.home_of(f);
    if (__builtin_expect(home == nullptr, 1)) return false;
    describe(*first, f);
    first->arrived = timestamps_.load(std::memory_order_relaxed) > 0 ? clock::wall() : clock::WallTime();
    first->arrived_at_device = {};
    return home->receiver().take_late(first, f, *this);
}

// The holder of this lock may be waiting for `from`'s in the same way, so this does not wait for long. A
// segment is lost then, and its peer repeats it: the kernel would reset a connection that it does not know.
bool Receiver::take_late(RxBuffer* first, const net::ParsedFrame& f, Receiver& from) noexcept {
    for (unsigned i = 0; !lock_.try_lock_once(); i++) {
        if (i == kTriesForLate) {
            if (f.protocol != IPPROTO_TCP) return false;
            from.counters_.rx_refused++;
            from.queue_.recycle(first);
            return true;
        }
        cpu_relax();
    }
    const std::size_t before = from.batch_.size();
    FlowTable::Entry* flow = flows_.find(f, ibv_wc{});
    const bool taken = flow != nullptr && FlowTable::sink_of(*flow, f)->deliver(first);
    // Its sink is this ring's. It may not be called without this lock, and what it asks of a ring it asks of
    // this one: detach() looks nowhere else.
    while (from.batch_.size() > before) {
        FrameSink* sink = from.batch_.back();
        from.batch_.pop_back();
        sink->batch_end(ring_);
    }
    if (flow != nullptr && !taken) {
        from.counters_.rx_refused++;
        from.queue_.recycle(first);
    }
    lock_.unlock();
    return flow != nullptr;
}

// ---- for the other parts of the ring ----

void Receiver::take_all() noexcept {
    unsigned n = 0;
    const std::size_t most = 4 * (queue_.total() / wc_.size() + 1);
    for (std::size_t i = 0; i < most; i++) {
        const unsigned taken = poll_locked();
        if (taken == 0) break;
        n += taken;
    }
    if (n != 0) frames_.store(frames_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
}

void Receiver::reclaim() noexcept {
    lose_pieces();
    pieces_ = 0;
    queue_.reclaim();
}

void Receiver::count(RxCounters& out) const noexcept {
    out = counters_;
    out.rx_to_kernel = to_kernel_.load(std::memory_order_relaxed);
}

}  // namespace vma::ring
