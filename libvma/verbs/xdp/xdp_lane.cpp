// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/verbs/xdp/xdp_lane.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>

namespace vma::verbs::xdp {

XdpLane::XdpLane(XdpDevice& first, unsigned slot) : first_(first) {
    pool_ = first.pool();
    copies_ = first.copies();
    slot_ = slot;
    attr_ = first.attr();
    attr_.further_recv = attr_.further_send = 0;
    attr_.max_send_wr = pool_->sends();
    attr_.max_recv_wr = pool_->receives() * static_cast<std::uint32_t>(first.queues());
    attr_.recv_wr_hint = kSmallDepth * static_cast<std::uint32_t>(first.queues());
    attr_.borrowed_recv = attr_.max_recv_wr;
    scatter_ = first.scatters();
    memory_ = pool_->umem();
    open_super_frames(first.netdev(), first.inside());
    set_calls({&XdpSender::post_send, &XdpLane::post_recv, &XdpLane::poll_cq, &XdpSender::req_notify_cq});
}

XdpLane::~XdpLane() {
    if (copies_ != nullptr) copies_->close(slot_);
}

// Nothing to register: the memory is the ring's alone.
Result<ibv_mr*> XdpLane::reg_mr(void* addr, std::size_t length) {
    if (have_mr_) return fail(EBUSY, "the device has its memory region already");
    sent_.resize(pool_->umem_length(), attr_.chunk_size);
    posted_.reserve(attr_.max_recv_wr);
    return fill_mr(addr, length);
}

std::span<std::uint8_t> XdpLane::send_memory() noexcept {
    return {pool_->send_memory(slot_), pool_->send_bytes()};
}

Result<ibv_qp*> XdpLane::create_qp(const ibv_qp_init_attr& init) {
    if (!have_mr_ || have_qp_) return fail(EINVAL, "one memory region first, then one QP");
    queues_.reserve(STEER_MAX_QUEUES);
    taken_.reserve(STEER_MAX_QUEUES);
    while (queues_.size() < first_.queues())
        if (auto opened = open_queue(); !opened) return std::unexpected(opened.error());
    followed_ = queues_.size();
    if (auto opened = open_channel(first_.may_grow()); !opened) return std::unexpected(opened.error());
    slots_.resize(attr_.max_send_wr);
    return fill_qp(init);
}

// A socket beside the first device's on the next queue.
Result<void> XdpLane::open_queue() {
    const auto q = static_cast<std::uint32_t>(queues_.size());
    auto queue = std::make_unique<Xsk>();
    if (auto opened = queue->open(); !opened) return opened;
    const XskConfig config{.ifindex = attr_.ifindex,
                           .queue = q,
                           .rx_size = copies_ != nullptr ? 0 : pool_->receives(),
                           .tx_size = q == 0 ? attr_.max_send_wr : 0,
                           .own_pool = false};
    if (auto made = queue->make_rings(config); !made) return made;
    if (const int error = queue->bind(config, &first_.queue(q)); error != 0)
        return fail(error, fmt::format("cannot bind another socket to queue {} of {}: {}", q, first_.netdev(),
                                       strerror(error)));
    taken_.emplace_back().reserve(pool_->receives());
    Xsk& made = *queues_.emplace_back(std::move(queue));
    if (have_qp_)
        if (auto watched = watch(made); !watched) return watched;
    return copies_ != nullptr
               ? copies_->open(slot_, made.rx, first_.receives_before(slot_), pool_->receives())
               : first_.steering().set_socket(slot_ * STEER_MAX_QUEUES, q, made.fd());
}

// The first device's ring posts its receives.
std::uint32_t XdpLane::follow_queues() noexcept {
    try {
        followed_ = first_.queues();
        while (queues_.size() < followed_)
            if (!open_queue()) break;
        attr_.details = first_.attr().details;
    } catch (...) {
        // no memory: the kernel has their frames
    }
    return 0;
}

Result<Flow*> XdpLane::create_flow(ibv_qp*, const FlowSpec& spec, std::uint32_t) {
    if (auto added = first_.steering().add(spec, slot_ * STEER_MAX_QUEUES); !added)
        return std::unexpected(added.error());
    return new Flow{spec};
}

void XdpLane::destroy_flow(Flow* flow) noexcept {
    first_.steering().remove(flow->spec);
    delete flow;
}

// The program's map has one entry for the rule, whichever device it names.
Result<Flow*> XdpLane::take_flow(ibv_qp*, Device&, Flow* flow, std::uint32_t) {
    if (auto moved = first_.steering().move(flow->spec, slot_ * STEER_MAX_QUEUES); !moved)
        return std::unexpected(moved.error());
    return flow;
}

// The first device tells the program.
void XdpLane::link_changed(const MacAddress& mac, std::uint32_t mtu) noexcept {
    if (is_gone()) return;
    attr_.mac = mac;
    attr_.mtu = mtu;
}

// ---- receive side ----

int XdpLane::post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
    auto& d = device_of<XdpLane>(qp->context);
    for (; wr != nullptr; wr = wr->next) {
        if (d.posted_.size() == d.posted_.capacity()) {
            *bad = wr;
            return ENOMEM;
        }
        d.posted_.push_back({reinterpret_cast<std::uint8_t*>(wr->sg_list->addr), wr->wr_id});
    }
    return 0;
}

// A descriptor that names no receive chunk costs a frame at most. False: there is no completion.
bool XdpLane::take(const xdp_desc& from, ibv_wc& out) noexcept {
    const xdp_desc desc = from;  // once: the ring is shared
    if (__builtin_expect(desc.addr >= pool_->first_bytes(), 0)) return false;
    const std::uint32_t start = static_cast<std::uint32_t>(desc.addr) & (attr_.chunk_size - 1);
    const std::uint32_t length = std::min({desc.len, attr_.chunk_size - start, attr_.chunk_size - kHeadroom});
    const Posted to = posted_.back();
    posted_.pop_back();
    std::memcpy(to.to + kHeadroom, pool_->memory() + desc.addr, length);
    out.wr_id = to.wr_id;
    out.status = IBV_WC_SUCCESS;
    out.opcode = IBV_WC_RECV;
    out.byte_len = length;
    out.qp_num = qp_.qp_num;
    out.wc_flags = (desc.options & XDP_PKT_CONTD) ? kWcMore : 0;
    return true;
}

// A handler that interrupted this thread in here leaves the chunks for the next call.
void XdpLane::give_back(std::size_t number) noexcept {
    std::vector<std::uint64_t>& chunks = taken_[number];
    if (chunks.empty() || pool_->fill_lock().owned_by_me()) return;
    Xsk& owner = first_.queue(number);
    const PoolGuard guard(pool_->fill_lock(), pool_waits_);
    const auto wanted = static_cast<std::uint32_t>(chunks.size());
    const std::uint32_t n = std::min(owner.fill.room(wanted), wanted);
    for (std::uint32_t i = 0; i < n; i++) owner.fill.back(i) = chunks[chunks.size() - 1 - i];
    owner.fill.submit(n);
    chunks.resize(chunks.size() - n);
    if (owner.fill.needs_wakeup()) owner.kick_rx();
}

int XdpLane::poll_recv(int count, ibv_wc* wc) noexcept {
    int n = 0;
    for (std::size_t tried = 0; tried < queues_.size() && n < count; tried++) {
        const std::size_t number = next_poll_;
        Xsk& queue = *queues_[number];
        std::vector<std::uint64_t>& chunks = taken_[number];
        const std::size_t room = std::min(
            {posted_.size(), chunks.capacity() - chunks.size(), static_cast<std::size_t>(count - n)});
        const std::uint32_t ready = std::min(queue.rx.available(), static_cast<std::uint32_t>(room));
        bool unfinished = false;
        for (std::uint32_t i = 0; i < ready; i++) {
            const xdp_desc& desc = queue.rx.front(i);
            const std::uint64_t chunk = desc.addr & ~std::uint64_t{attr_.chunk_size - 1};
            unfinished = (desc.options & XDP_PKT_CONTD) != 0;
            if (!take(desc, wc[n])) continue;
            n++;
            chunks.push_back(chunk);
        }
        if (ready != 0) queue.rx.release(ready);
        give_back(number);
        // The loop stays on this queue while a frame is unfinished: its pieces must come out together.
        if (unfinished) break;
        if (++next_poll_ == queues_.size()) next_poll_ = 0;
    }
    return n;
}

int XdpLane::poll_cq(ibv_cq* cq, int count, ibv_wc* wc) {
    auto& d = device_of<XdpLane>(cq->context);
    return cq == &d.recv_cq_ ? d.poll_recv(count, wc) : d.poll_send(count, wc);
}

}  // namespace vma::verbs::xdp
