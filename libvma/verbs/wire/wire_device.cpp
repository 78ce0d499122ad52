// SPDX-License-Identifier: BSD-2-Clause
// The data plane of an end point; see wire_device.h.
#include "libvma/verbs/wire/wire_device.h"

#include <sys/eventfd.h>

#include <cstring>

#include "libvma/os/calls.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/clock.h"

namespace vma::verbs::wire {
namespace {

constexpr std::size_t kEthernet = 14, kL4 = kEthernet + 20;  // the frames a rule matches have no IP options

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
    attr_.tx_checksum = config.tx_checksum != TxChecksum::none;
    attr_.lazy_tx = config.lazy_tx != LazyTx::off;
    set_calls({&WireDevice::post_send, &WireDevice::post_recv, &WireDevice::poll_cq, &WireDevice::req_notify_cq});
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
    return fill_channel(event_.get());
}

Result<ibv_qp*> WireDevice::create_qp(const ibv_qp_init_attr& init) {
    std::lock_guard guard(wire_.mutex_);
    if (!have_mr_ || have_qp_) return fail(EINVAL, "one memory region first, then one QP");
    slots_.resize(attr_.max_send_wr);
    return fill_qp(init);
}

Result<Flow*> WireDevice::create_flow(ibv_qp*, const FlowSpec& spec, std::uint32_t) {
    std::lock_guard guard(wire_.mutex_);
    auto [place, added] = flows_.try_emplace(spec);
    if (!added) return fail(EEXIST, "the flow rule exists");
    place->second = std::make_unique<Flow>(Flow{spec});
    return place->second.get();
}

void WireDevice::destroy_flow(Flow* flow) noexcept {
    std::lock_guard guard(wire_.mutex_);
    flows_.erase(FlowSpec(flow->spec));
}

void WireDevice::link_changed(const MacAddress& mac, std::uint32_t mtu) noexcept {
    std::lock_guard guard(wire_.mutex_);
    attr_.mac = mac;
    attr_.mtu = mtu;
}

// ---- receive side ----

std::uint32_t WireDevice::chunk_of(std::uint64_t address) const noexcept {
    return static_cast<std::uint32_t>((address - reinterpret_cast<std::uintptr_t>(mr_.addr)) / attr_.chunk_size);
}

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
        const bool valid = wr->num_sge == 1 && wr->sg_list->length == d.attr_.chunk_size && d.in_region(*wr->sg_list);
        if (!valid || d.owner_[d.chunk_of(wr->sg_list->addr)] != Owner::caller) {
            d.violations_++;
            return EINVAL;
        }
        d.owner_[d.chunk_of(wr->sg_list->addr)] = Owner::receive_queue;
        d.receives_.push_back({wr->wr_id, wr->sg_list->addr});
        std::memset(reinterpret_cast<void*>(wr->sg_list->addr), kPoison, wr->sg_list->length);
    }
    return 0;
}

// A frame from the wire. The rules are those of the XDP program: what it leaves to the kernel stays there here, too.
void WireDevice::arrive(const Frame& frame) {
    if (have_qp_ && steered(frame)) {
        receive(frame);
        return;
    }
    kernel_frames_++;
    to_kernel_.push_back(frame);
}

bool WireDevice::steered(const Frame& frame) const {
    if (frame.size() < kL4 + 4 || !std::equal(attr_.mac.begin(), attr_.mac.end(), frame.begin())) return false;
    if (read16(frame, 12) != htons(0x0800) || frame[kEthernet] != 0x45) return false;
    const std::uint8_t protocol = frame[kEthernet + 9];
    if (protocol != IPPROTO_UDP && protocol != IPPROTO_TCP) return false;
    if ((read16(frame, kEthernet + 6) & htons(0x3fff)) != 0) return false;  // a fragment
    if (protocol == IPPROTO_UDP && frame.size() > kEthernet + attr_.mtu) return false;
    const FlowSpec five{.protocol = protocol,
                        .dst_addr = read32(frame, kEthernet + 16),
                        .dst_port = read16(frame, kL4 + 2),
                        .src_addr = read32(frame, kEthernet + 12),
                        .src_port = read16(frame, kL4)};
    const FlowSpec three{.protocol = protocol, .dst_addr = five.dst_addr, .dst_port = five.dst_port};
    return flows_.contains(five) || flows_.contains(three);
}

// Spreads the frame over as many buffers as it needs, or drops all of it.
void WireDevice::receive(const Frame& frame) {
    const std::size_t room = attr_.chunk_size - attr_.rx_offset;
    const std::size_t pieces = std::max<std::size_t>(1, (frame.size() + room - 1) / room);
    if (receives_.size() < pieces) {
        rx_drops_++;
        return;
    }
    const bool was_empty = received_.empty();
    std::size_t at = 0;
    for (std::size_t i = 0; i < pieces; i++) {
        const PostedReceive buffer = receives_.front();
        receives_.pop_front();
        const std::size_t length = std::min(room, frame.size() - at);
        if (length != 0)
            std::memcpy(reinterpret_cast<std::uint8_t*>(buffer.address) + attr_.rx_offset, frame.data() + at, length);
        at += length;
        ibv_wc wc{};
        wc.wr_id = buffer.wr_id;
        wc.status = IBV_WC_SUCCESS;
        wc.opcode = IBV_WC_RECV;
        wc.byte_len = static_cast<std::uint32_t>(length);
        wc.qp_num = qp_.qp_num;
        wc.wc_flags = i + 1 < pieces ? kWcMore : 0;
        received_.push_back({wc, chunk_of(buffer.address)});
    }
    if (was_empty && event_) {
        const std::uint64_t one = 1;
        os::raw_syscall(SYS_write, event_.get(), &one, sizeof one);
    }
}

int WireDevice::poll_recv(int count, ibv_wc* wc) {
    int n = 0;
    for (; n < count && !received_.empty(); n++) {
        wc[n] = received_.front().wc;
        owner_[received_.front().chunk] = Owner::caller;
        received_.pop_front();
    }
    if (n != 0 && received_.empty() && event_) {
        std::uint64_t value;
        os::raw_syscall(SYS_read, event_.get(), &value, sizeof value);
    }
    return n;
}

int WireDevice::poll_cq(ibv_cq* cq, int count, ibv_wc* wc) {
    auto& d = device_of<WireDevice>(cq->context);
    std::lock_guard guard(d.wire_.mutex_);
    return cq == &d.recv_cq_ ? d.poll_recv(count, wc) : d.slots_.poll(count, wc);
}

// The channel is readable exactly while completions wait, so there is nothing to arm.
int WireDevice::req_notify_cq(ibv_cq*, int) { return 0; }

// ---- send side ----

std::uint64_t WireDevice::lazy_now() const noexcept {
    return config_.lazy_tx == LazyTx::real_clock ? clock::ticks() : wire_.now();
}

int WireDevice::send_one(const ibv_send_wr& wr) {
    if (refuse_sends_ || slots_.full()) return ENOMEM;
    bool valid = wr.num_sge > 0 && static_cast<std::uint32_t>(wr.num_sge) <= attr_.max_send_sge;
    for (int i = 0; valid && i < wr.num_sge; i++) {
        const ibv_sge& sge = wr.sg_list[i];
        valid = in_region(sge) && owner_[chunk_of(sge.addr)] == Owner::caller &&
                (i != 0 || (sge.addr - reinterpret_cast<std::uintptr_t>(mr_.addr)) % attr_.chunk_size >= attr_.tx_headroom);
        for (int j = 0; valid && j < i; j++) valid = chunk_of(wr.sg_list[j].addr) != chunk_of(sge.addr);
    }
    if (!valid) {
        violations_++;
        return EINVAL;
    }
    const bool checksum = (wr.send_flags & IBV_SEND_IP_CSUM) != 0 && attr_.tx_checksum;
    PostedSend send{slots_.next(), checksum, {wr.sg_list, wr.sg_list + wr.num_sge}};
    for (const ibv_sge& sge : send.pieces) owner_[chunk_of(sge.addr)] = Owner::send_queue;
    slots_.add(wr);
    unsent_.push_back(std::move(send));
    return 0;
}

int WireDevice::post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
    auto& d = device_of<WireDevice>(qp->context);
    std::lock_guard guard(d.wire_.mutex_);
    bool kick = false;
    int error = 0;
    for (; wr != nullptr; wr = wr->next) {
        error = d.send_one(*wr);
        if (error != 0) {
            *bad = wr;
            kick = !d.unsent_.empty();  // room comes only from sending what is held
            break;
        }
        kick |= !d.attr_.lazy_tx || d.lazy_.posted(d.lazy_now());
    }
    if (kick) d.kick();
    d.publish_held();
    return error;
}

// What ring and flusher see: frames held by the fake clock are the wire's business.
void WireDevice::publish_held() noexcept {
    if (config_.lazy_tx != LazyTx::real_clock) return;
    held_since_.store(lazy_.held_since(), std::memory_order_relaxed);
    visible_held_.store(lazy_.gathering() ? 0 : lazy_.held(), std::memory_order_relaxed);
}

void WireDevice::kick() {
    for (PostedSend& send : unsent_) {
        Frame frame;
        for (const ibv_sge& sge : send.pieces) {
            auto* bytes = reinterpret_cast<const std::uint8_t*>(sge.addr);
            frame.insert(frame.end(), bytes, bytes + sge.length);
        }
        if (send.checksum && config_.tx_checksum == TxChecksum::complete) complete_sums(frame);
        if (frame.size() < kEthernet || frame.size() > kEthernet + attr_.mtu)
            tx_invalid_++;
        else
            wire_.transmit(*this, std::move(frame));
        sent_.push_back(std::move(send));
    }
    unsent_.clear();
    lazy_.kicked(lazy_now());
    if (!hold_completions_) complete_sent();
}

void WireDevice::complete_sent() {
    for (const PostedSend& send : sent_)
        for (const ibv_sge& sge : send.pieces) {
            owner_[chunk_of(sge.addr)] = Owner::caller;
            slots_.piece_done(send.slot);
        }
    sent_.clear();
}

// The field holds the pseudo-header's sum, so the sum over the segment as it is, complemented, is the checksum.
void WireDevice::complete_sums(Frame& frame) const {
    if (frame.size() < kL4) return;
    const bool tcp = frame[kEthernet + 9] == IPPROTO_TCP;
    const std::size_t field = kL4 + (tcp ? 16 : 6);
    const std::size_t end = std::min<std::size_t>(frame.size(), kEthernet + ntohs(read16(frame, kEthernet + 2)));
    if (field + 2 > end) return;
    std::uint32_t sum = 0;
    for (std::size_t i = kL4; i < end; i++) sum += (i - kL4) % 2 == 0 ? frame[i] << 8 : frame[i];
    while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
    std::uint16_t checksum = static_cast<std::uint16_t>(~sum);
    if (checksum == 0 && !tcp) checksum = 0xffff;  // 0 would mean "none" (RFC 768)
    frame[field] = static_cast<std::uint8_t>(checksum >> 8);
    frame[field + 1] = static_cast<std::uint8_t>(checksum);
}

void WireDevice::flush_locked() {
    if (!unsent_.empty()) kick();
    lazy_.end_burst();
    publish_held();
}

void WireDevice::gather(ibv_qp*, bool on) noexcept {
    std::lock_guard guard(wire_.mutex_);
    lazy_.gather(on);
    if (!on && !unsent_.empty()) kick();
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

// ---- the host's kernel, and controls ----

void WireDevice::kernel_send(Frame frame) {
    std::lock_guard guard(wire_.mutex_);
    wire_.transmit(*this, std::move(frame));
}

std::vector<Frame> WireDevice::take_kernel_frames() {
    std::lock_guard guard(wire_.mutex_);
    std::vector<Frame> frames(std::make_move_iterator(to_kernel_.begin()), std::make_move_iterator(to_kernel_.end()));
    to_kernel_.clear();
    return frames;
}

std::uint64_t WireDevice::kernel_frames() const {
    std::lock_guard guard(wire_.mutex_);
    return kernel_frames_;
}

void WireDevice::receive_unsteered(Frame frame) {
    std::lock_guard guard(wire_.mutex_);
    receive(frame);
}

void WireDevice::refuse_sends(bool on) {
    std::lock_guard guard(wire_.mutex_);
    refuse_sends_ = on;
}

void WireDevice::hold_completions(bool on) {
    std::lock_guard guard(wire_.mutex_);
    hold_completions_ = on;
    if (!on) complete_sent();
}

std::uint64_t WireDevice::rx_device_drops() noexcept {
    std::lock_guard guard(wire_.mutex_);
    return rx_drops_;
}

unsigned WireDevice::held() const {
    std::lock_guard guard(wire_.mutex_);
    return lazy_.held();
}

std::size_t WireDevice::rules() const {
    std::lock_guard guard(wire_.mutex_);
    return flows_.size();
}

std::uint32_t WireDevice::receives_posted() const {
    std::lock_guard guard(wire_.mutex_);
    return static_cast<std::uint32_t>(receives_.size());
}

std::uint32_t WireDevice::receives_filled() const {
    std::lock_guard guard(wire_.mutex_);
    return static_cast<std::uint32_t>(received_.size());
}

std::uint64_t WireDevice::tx_invalid() const {
    std::lock_guard guard(wire_.mutex_);
    return tx_invalid_;
}

std::uint64_t WireDevice::violations() const {
    std::lock_guard guard(wire_.mutex_);
    return violations_;
}

}  // namespace vma::verbs::wire
