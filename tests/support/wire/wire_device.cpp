// SPDX-License-Identifier: BSD-2-Clause
// The data plane of an end point; see wire_device.h.
#include "tests/support/wire/wire_device.h"

#include <sys/eventfd.h>

#include <cstring>
#include <utility>

#include "libvma/os/calls.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/clock.h"
#include "tests/support/wire/segments.h"

namespace vma::verbs::wire {
namespace {

constexpr std::size_t kEthernet = 14,
                      kTransport = kEthernet + 20;  // the frames a rule matches have no IP options

constexpr int kPoison = 0xdb;

std::uint16_t read16(const Frame& frame, std::size_t at) noexcept {
    std::uint16_t value;
    std::memcpy(&value, frame.data() + at, sizeof value);
    return value;
}
std::uint32_t read32(const Frame& frame, std::size_t at) noexcept {
    std::uint32_t value;
    std::memcpy(&value, frame.data() + at, sizeof value);
    return value;
}

}  // namespace

WireDevice::WireDevice(Wire& wire, const WireConfig& config)
    : wire_(wire),
      config_(config),
      lazy_(config.lazy_tx == LazyTx::real_clock ? config.burst_gap_ns * clock::ticks_per_usec() / 1000
                                                 : config.burst_gap_ns,
            1) {
    attr_.name = "wire:" + config.name;
    attr_.mac = config.mac;
    attr_.mtu = config.mtu;
    attr_.chunk_size = config.chunk_size;
    attr_.rx_offset = config.rx_offset;
    attr_.tx_headroom = config.tx_headroom;
    attr_.max_send_sge = config.max_send_sge;
    attr_.max_send_wr = config.max_send_wr;
    attr_.max_recv_wr = config.max_recv_wr;
    attr_.recv_wr_hint = config.recv_wr_hint;
    attr_.partial_sums = config.partial_sums;
    attr_.tx_checksum = config.tx_checksum != TxChecksum::none;
    attr_.level_events = !config.events;
    attr_.rx_checksum = config.rx_checksum;
    attr_.datagrams_type = config.datagrams_type;
    attr_.flow_tags = config.flow_tags;
    attr_.arrival_times = config.arrival_times;
    attr_.arrival_realtime = config.arrival_realtime;
    attr_.max_inline = config.max_inline;
    attr_.max_tso = config.max_tso;
    attr_.max_tso_sge = config.tso_copies ? 64 : config.max_send_sge;
    attr_.tso_copies = config.tso_copies;
    attr_.kernel_moves_bulk = config.kernel_moves_bulk;
    attr_.kernel_receives_bulk = config.kernel_receives_bulk;
    attr_.moderation = config.moderation;
    attr_.coarse_steering = config.coarse_steering;
    attr_.ifindex = config.ifindex;
    attr_.lazy_tx = config.lazy_tx != LazyTx::off;
    set_calls(
        {&WireDevice::post_send, &WireDevice::post_recv, &WireDevice::poll_cq, &WireDevice::req_notify_cq});
}

WireDevice::~WireDevice() { wire_.disconnect(*this); }

Result<ibv_mr*> WireDevice::reg_mr(void* addr, std::size_t length) {
    std::lock_guard guard(wire_.mutex_);
    if (have_mr_) return fail(EBUSY, "the device has its memory region already");
    if (length == 0 || length % attr_.chunk_size != 0 || reinterpret_cast<std::uintptr_t>(addr) % 4096 != 0)
        return fail(EINVAL, "a memory region is whole chunks from a page boundary on");
    owner_.assign(length / attr_.chunk_size, Owner::caller);
    return fill_mr(addr, length);
}

Result<ibv_comp_channel*> WireDevice::create_comp_channel() {
    event_ = InternalFd(static_cast<int>(os::raw_syscall(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK)));
    if (!event_) return fail(EMFILE, "eventfd");
    ibv_comp_channel* channel = fill_channel(event_.get());
    event_.mirror(&channel->fd);
    return channel;
}

Result<ibv_qp*> WireDevice::create_qp(const ibv_qp_init_attr& init) {
    std::lock_guard guard(wire_.mutex_);
    if (!have_mr_ || have_qp_) return fail(EINVAL, "one memory region first, then one QP");
    slots_.resize(attr_.max_send_wr);
    return fill_qp(init);
}

Result<Flow*> WireDevice::create_flow(ibv_qp*, const FlowSpec& spec, std::uint32_t tag) {
    std::lock_guard guard(wire_.mutex_);
    if (dead_) return fail(EIO, "the device is gone");
    if (tag > attr_.flow_tags) return fail(EINVAL, "the tag is too large");
    if (refuse_flows_ && spec.is_five_tuple()) return fail(ENOSPC, "the table of rules is full");
    auto [place, added] = flows_.try_emplace(spec);
    if (!added) return fail(EEXIST, "the flow rule exists");
    place->second = std::make_unique<Flow>(Flow{spec});
    tags_[spec] = tag;
    return place->second.get();
}

void WireDevice::destroy_flow(Flow* flow) noexcept {
    std::lock_guard guard(wire_.mutex_);
    tags_.erase(flow->spec);
    flows_.erase(FlowSpec(flow->spec));
}

void WireDevice::link_changed(const MacAddress& mac, std::uint32_t mtu) noexcept {
    std::lock_guard guard(wire_.mutex_);
    attr_.mac = mac;
    attr_.mtu = mtu;
}

// ---- receive side ----

// Within the region, and within one chunk.
bool WireDevice::in_region(const ibv_sge& sge) const noexcept {
    const std::uint64_t base = reinterpret_cast<std::uintptr_t>(mr_.addr);
    if (sge.lkey != mr_.lkey || sge.addr < base || sge.addr - base >= mr_.length) return false;
    return (sge.addr - base) % attr_.chunk_size + sge.length <= attr_.chunk_size;
}

int WireDevice::post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
    auto& d = device_of<WireDevice>(qp->context);
    std::lock_guard guard(d.wire_.mutex_);
    for (; wr != nullptr; wr = wr->next) {
        *bad = wr;
        if (d.receives_.size() + d.received_.size() >= d.attr_.max_recv_wr) return ENOMEM;
        const bool valid =
            wr->num_sge == 1 && wr->sg_list->length == d.attr_.chunk_size && d.in_region(*wr->sg_list);
        if (d.dead_) return EIO;
        if (!valid || d.owner_[d.chunk_of(wr->sg_list->addr)] != Owner::caller) {
            d.violations_++;
            return EINVAL;
        }
        d.owner_[d.chunk_of(wr->sg_list->addr)] = Owner::receive_queue;
        d.receives_.push_back({wr->wr_id, wr->sg_list->addr});
        std::memset(reinterpret_cast<void*>(wr->sg_list->addr), kPoison, wr->sg_list->length);
    }
    if (d.stopped_) d.flush_receives();
    return 0;
}

// A frame from the wire. The rules are those of the XDP program: what it leaves to the kernel stays there
// here, too.
void WireDevice::arrive(const Frame& frame) {
    if (dead_) return;
    if (const auto tag = have_qp_ ? steered(frame) : std::nullopt) {
        receive(frame, *tag);
        return;
    }
    kernel_frames_++;
    to_kernel_.push_back(frame);
}

std::optional<std::uint32_t> WireDevice::steered(const Frame& frame) const {
    if (frame.size() < kTransport + 4 || !std::equal(attr_.mac.begin(), attr_.mac.end(), frame.begin()))
        return std::nullopt;
    if (read16(frame, 12) != htons(0x0800) || frame[kEthernet] != 0x45) return std::nullopt;
    const std::uint8_t protocol = frame[kEthernet + 9];
    if (protocol != IPPROTO_UDP && protocol != IPPROTO_TCP) return std::nullopt;
    if ((read16(frame, kEthernet + 6) & htons(0x3fff)) != 0) return std::nullopt;  // a fragment
    if (protocol == IPPROTO_UDP && frame.size() > kEthernet + attr_.mtu) return std::nullopt;
    const FlowSpec five{.protocol = protocol,
                        .dst_addr = read32(frame, kEthernet + 16),
                        .dst_port = read16(frame, kTransport + 2),
                        .src_addr = read32(frame, kEthernet + 12),
                        .src_port = read16(frame, kTransport)};
    const FlowSpec three{.protocol = protocol, .dst_addr = five.dst_addr, .dst_port = five.dst_port};
    for (const FlowSpec& spec : {five, three})
        if (auto tag = tags_.find(spec); tag != tags_.end()) return tag->second;
    return std::nullopt;
}

// Spreads the frame over as many buffers as it needs, or drops all of it.
void WireDevice::receive(const Frame& frame, std::uint32_t tag) {
    const std::size_t room = attr_.chunk_size - attr_.rx_offset;
    const std::size_t pieces = std::max<std::size_t>(1, (frame.size() + room - 1) / room);
    if (stopped_ || receives_.size() < pieces) {
        rx_drops_++;
        return;
    }
    const bool broken = std::exchange(fail_receive_, false);
    std::size_t at = 0;
    for (std::size_t i = 0; i < pieces; i++) {
        const std::size_t length = std::min(room, frame.size() - at);
        ibv_wc& wc = fill(std::span(frame).subspan(at, length));
        at += length;
        wc.wc_flags = i + 1 < pieces ? kWcMore : 0;
        if (broken) wc.status = IBV_WC_LOC_LEN_ERR;
        if (attr_.rx_checksum && sums_right(frame)) wc.wc_flags |= IBV_WC_IP_CSUM_OK;
        if (tag != 0) set_flow_tag(wc, tag);
        if (attr_.arrival_times) set_arrival_ns(wc, config_.arrival_base_ns + wire_.now());
    }
    notify();
    if (broken) fail_whole_qp_ ? break_qp() : flush_receives();
}

// Puts `bytes` into the next posted buffer, of which there is one. Its completion, in the queue.
ibv_wc& WireDevice::fill(std::span<const std::uint8_t> bytes) {
    const PostedReceive buffer = receives_.front();
    receives_.pop_front();
    if (!bytes.empty())
        std::memcpy(reinterpret_cast<std::uint8_t*>(buffer.address) + attr_.rx_offset, bytes.data(),
                    bytes.size());
    ibv_wc wc{};
    wc.wr_id = buffer.wr_id;
    wc.status = IBV_WC_SUCCESS;
    wc.opcode = IBV_WC_RECV;
    wc.byte_len = static_cast<std::uint32_t>(bytes.size());
    wc.qp_num = qp_.qp_num;
    received_.push_back({wc, chunk_of(buffer.address)});
    return received_.back().wc;
}

// There is a completion.
void WireDevice::notify() {
    if (!event_ || (config_.events && !std::exchange(armed_, false))) return;
    if (events_to_lose_ != 0) {
        events_to_lose_--;
        return;
    }
    const std::uint64_t one = 1;
    os::raw_syscall(SYS_write, event_.get(), &one, sizeof one);
}

int WireDevice::poll_recv(int count, ibv_wc* wc) {
    int n = 0;
    for (; n < count && !received_.empty(); n++) {
        wc[n] = received_.front().wc;
        owner_[received_.front().chunk] = Owner::caller;
        received_.pop_front();
    }
    if (n != 0 && received_.empty() && event_ && !config_.events) {
        std::uint64_t value;
        os::raw_syscall(SYS_read, event_.get(), &value, sizeof value);
    }
    return n;
}

int WireDevice::poll_cq(ibv_cq* cq, int count, ibv_wc* wc) {
    auto& d = device_of<WireDevice>(cq->context);
    std::lock_guard guard(d.wire_.mutex_);
    if (cq == &d.recv_cq_) return d.poll_recv(count, wc);
    int n = d.slots_.poll(count, wc, d.qp_.qp_num);
    for (; n < count && !d.send_errors_.empty(); n++) {
        wc[n] = d.send_errors_.front();
        d.send_errors_.pop_front();
    }
    return n;
}

// Strict: a completion that is there already brings no event.
int WireDevice::req_notify_cq(ibv_cq* cq, int) {
    auto& d = device_of<WireDevice>(cq->context);
    std::lock_guard guard(d.wire_.mutex_);
    d.armed_ = true;
    return 0;
}

void WireDevice::consume_events(ibv_comp_channel*) noexcept {
    std::uint64_t count;
    if (config_.events) os::raw_syscall(SYS_read, event_.get(), &count, sizeof count);
}

void WireDevice::moderate(ibv_cq*, std::uint16_t count, std::uint16_t period_usec) noexcept {
    std::lock_guard guard(wire_.mutex_);
    moderation_ = {count, period_usec};
}

// ---- send side ----

std::uint64_t WireDevice::lazy_now() const noexcept {
    return config_.lazy_tx == LazyTx::real_clock ? clock::ticks() : wire_.now();
}

// `length`: of what the request's pieces hold.
bool WireDevice::valid_send(const ibv_send_wr& wr, std::size_t& length) const {
    bool valid = wr.num_sge > 0 && static_cast<std::uint32_t>(wr.num_sge) <= attr_.max_send_sge;
    const bool tso = wr.opcode == IBV_WR_TSO;
    length = 0;
    for (int i = 0; valid && i < wr.num_sge; i++) {
        const ibv_sge& sge = wr.sg_list[i];
        valid = in_region(sge) && owner_[chunk_of(sge.addr)] == Owner::caller &&
                (i != 0 || (sge.addr - reinterpret_cast<std::uintptr_t>(mr_.addr)) % attr_.chunk_size >=
                               attr_.tx_headroom);
        for (int j = 0; valid && j < i; j++) valid = chunk_of(wr.sg_list[j].addr) != chunk_of(sge.addr);
        length += sge.length;
    }
    if (tso)
        return valid && length > wr.tso.mss && length <= attr_.max_tso && wr.tso.mss != 0 &&
               wr.tso.hdr_sz >= kTransport + 20 && (wr.send_flags & IBV_SEND_IP_CSUM) != 0;
    return valid && wr.opcode == IBV_WR_SEND &&
           ((wr.send_flags & IBV_SEND_INLINE) == 0 || length <= attr_.max_inline);
}

int WireDevice::refusal() noexcept {
    if (dead_) return EIO;
    if (refuse_sends_ || slots_.full()) return ENOMEM;
    if (refusals_.times == 0 || refusals_.after-- != 0) return 0;
    refusals_.after = 0;
    refusals_.times--;
    return refusals_.error;
}

int WireDevice::send_one(const ibv_send_wr& wr) {
    if (const int error = refusal(); error != 0) return error;
    std::size_t length;
    if (!valid_send(wr, length)) {
        violations_++;
        return EINVAL;
    }
    const bool checksum = (wr.send_flags & IBV_SEND_IP_CSUM) != 0 && attr_.tx_checksum;
    PostedSend send{slots_.next(), checksum, {wr.sg_list, wr.sg_list + wr.num_sge}, {}, 0};
    if (wr.opcode == IBV_WR_TSO) {
        tso_requests_++;
        const auto* header = static_cast<const std::uint8_t*>(wr.tso.hdr);
        send.copied.assign(header, header + wr.tso.hdr_sz);
        send.mss = wr.tso.mss;
    }
    slots_.add(wr);
    if ((wr.send_flags & IBV_SEND_INLINE) != 0) {
        inline_requests_++;
        send.copied = frames_of(send).front();
        for (int i = 0; i < wr.num_sge; i++)  // free at once
            std::memset(reinterpret_cast<void*>(wr.sg_list[i].addr), kPoison, wr.sg_list[i].length);
        send.pieces.clear();
        for (int i = 1; i < wr.num_sge; i++) slots_.piece_done(send.slot);  // the frame counts as one
    }
    for (const ibv_sge& sge : send.pieces) owner_[chunk_of(sge.addr)] = Owner::send_queue;
    unsent_.push_back(std::move(send));
    if (std::exchange(fail_send_, false)) break_qp();
    return 0;
}

// What a request puts on the wire.
std::vector<Frame> WireDevice::frames_of(const PostedSend& send) const {
    Frame payload;
    for (const ibv_sge& sge : send.pieces) {
        auto* bytes = reinterpret_cast<const std::uint8_t*>(sge.addr);
        payload.insert(payload.end(), bytes, bytes + sge.length);
    }
    if (send.mss == 0) return {send.pieces.empty() ? send.copied : payload};
    return cut_segments(send.copied, payload, send.mss);
}

int WireDevice::post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
    auto& d = device_of<WireDevice>(qp->context);
    std::lock_guard guard(d.wire_.mutex_);
    const bool alone = wr->next == nullptr && d.leaves_kicks_ && d.kick_hook_ && !d.lazy_.gathering();
    bool kick = false;
    int error = 0;
    for (; wr != nullptr; wr = wr->next) {
        if (wr->opcode == IBV_WR_TSO && d.attr_.tso_copies) {
            error = d.send_copying(*wr);
            if (error == 0) continue;
        } else {
            error = d.send_one(*wr);
        }
        if (error != 0) {
            *bad = wr;
            kick = !d.unsent_.empty();  // room comes only from sending what is held
            break;
        }
        kick |= !d.attr_.lazy_tx || d.lazy_.posted(d.lazy_now());
    }
    if (d.stopped_)
        d.break_qp();
    else if (kick && alone && error == 0)
        d.kick_left_ = true;
    else if (kick)
        d.kick();
    d.publish_held();
    return error;
}

// What ring and flusher see: frames held by the fake clock are the wire's business.
void WireDevice::publish_held() noexcept {
    if (config_.lazy_tx != LazyTx::real_clock) return;
    held_since_.store(lazy_.held_since(), std::memory_order_relaxed);
    visible_held_.store(lazy_.gathering() ? 0 : lazy_.held(), std::memory_order_relaxed);
}

// A request whose payload is anywhere, with headers of the whole: see DeviceAttr::tso_copies.
int WireDevice::send_copying(const ibv_send_wr& wr) {
    if (dead_) return EIO;
    if (refuse_sends_) return ENOMEM;
    Frame payload;
    for (int i = 0; i < wr.num_sge; i++) {
        auto* bytes = reinterpret_cast<const std::uint8_t*>(wr.sg_list[i].addr);
        payload.insert(payload.end(), bytes, bytes + wr.sg_list[i].length);
    }
    const auto* header = static_cast<const std::uint8_t*>(wr.tso.hdr);
    const std::size_t ip_length = std::size_t{header[kEthernet + 2]} << 8 | header[kEthernet + 3];
    if (wr.num_sge <= 0 || static_cast<std::uint32_t>(wr.num_sge) > attr_.max_tso_sge ||
        payload.size() <= wr.tso.mss || payload.size() > attr_.max_tso || wr.tso.mss == 0 ||
        wr.tso.hdr_sz < kTransport + 20 || ip_length != wr.tso.hdr_sz - kEthernet + payload.size()) {
        violations_++;
        return EINVAL;
    }
    if (!unsent_.empty()) kick();
    tso_requests_++;
    Frame head(header, header + wr.tso.hdr_sz);
    if (config_.super_frames) {
        head.insert(head.end(), payload.begin(), payload.end());
        complete_sums(head);
        wire_.transmit(*this, std::move(head));
    } else {
        transmit_all(cut_segments(head, payload, wr.tso.mss), true);
    }
    wire_.now_.fetch_add(config_.kick_ns, std::memory_order_relaxed);
    return 0;
}

void WireDevice::transmit_all(std::vector<Frame> frames, bool checksum) {
    for (Frame& frame : frames) {
        if (checksum && config_.tx_checksum == TxChecksum::complete) complete_sums(frame);
        if (frame.size() < kEthernet || frame.size() > kEthernet + attr_.mtu)
            tx_invalid_++;
        else
            wire_.transmit(*this, std::move(frame));
    }
}

void WireDevice::kick() {
    for (PostedSend& send : unsent_) {
        transmit_all(frames_of(send), send.checksum);
        sent_.push_back(std::move(send));
    }
    unsent_.clear();
    wire_.now_.fetch_add(config_.kick_ns, std::memory_order_relaxed);
    lazy_.kicked(lazy_now());
    if (!hold_completions_) complete_sent();
}

void WireDevice::complete_sent() {
    for (const PostedSend& send : sent_) {
        for (const ibv_sge& sge : send.pieces) {
            owner_[chunk_of(sge.addr)] = Owner::caller;
            slots_.piece_done(send.slot);
        }
        if (send.pieces.empty()) slots_.piece_done(send.slot);
    }
    sent_.clear();
}

bool WireDevice::kick(ibv_qp* qp) noexcept {
    if (!kick_hook_()) return false;
    kick_again(qp);
    return true;
}

void WireDevice::kick_again(ibv_qp*) noexcept {
    std::lock_guard guard(wire_.mutex_);
    kick();
    publish_held();
}

void WireDevice::flush_locked() {
    if (!unsent_.empty()) kick();
    lazy_.end_burst();
    publish_held();
}

void WireDevice::gather(ibv_qp*, bool on) noexcept {
    std::lock_guard guard(wire_.mutex_);
    if (on)
        lazy_.gather();
    else if (lazy_.end_gather(lazy_now()))
        kick();
    publish_held();
}

void WireDevice::flush(ibv_qp*) noexcept {
    std::lock_guard guard(wire_.mutex_);
    flush_locked();
}

std::optional<std::uint64_t> WireDevice::hold_ends() const {
    if (config_.lazy_tx != LazyTx::fake_clock || lazy_.held() == 0) return std::nullopt;
    return lazy_.held_since() + LazyKick::kHoldLimitNs;
}

}  // namespace vma::verbs::wire
