// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/verbs/xdp/xdp_device.h"

#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "libvma/os/calls.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/log.h"
#include "libvma/verbs/xdp/ethtool.h"

namespace vma::verbs::xdp {
namespace {

constexpr std::uint32_t kTxHeadroom = 64;  // metadata needs 24 bytes; a cache line keeps headers aligned
constexpr std::uint32_t kSmallChunk = 2048, kLargeChunk = 4096;
constexpr std::uint32_t kFillBatch = 32;  // to one queue before the others have a turn
constexpr std::uint32_t kSmallDepth =
    128;  // for each queue, to begin with: the ring asks for more as sockets come
constexpr std::uint32_t kMaxSendSge = 17;  // MAX_SKB_FRAGS
constexpr int kKickTries = 8;  // of 32 frames each; if more are needed, the kernel holds the queue up

void pause_msec() noexcept {
    timespec pause{0, 1'000'000};
    os::raw_syscall(SYS_nanosleep, &pause, 0);
}

}  // namespace

Result<std::unique_ptr<XdpDevice>> XdpDevice::open(XdpConfig config) {
    if (const unsigned used = queues_in_use(config.name); used != 0)
        config.queues = std::min(config.queues, used);
    config.queues = std::clamp(config.queues, 1u, unsigned{STEER_MAX_QUEUES});
    const std::uint64_t deadline = clock::monotonic_ns() + config.patience_ns;
    for (;;) {
        pid_t pid = 0;
        const Holder::State holder = Holder::ask(config.ifindex, nullptr, &pid);
        if (holder == Holder::State::nobody) break;
        if (holder == Holder::State::alive || clock::monotonic_ns() >= deadline)
            return fail(EBUSY, fmt::format("another libvma process holds {}: process {}", config.name, pid));
        pause_msec();
    }
    Error last{ENODEV, "no XDP mode to try"};
    for (Mode mode : config.modes) {
        auto steering = Steering::attach(config.ifindex, config.name, mode, deadline);
        if (!steering) {
            last = steering.error();
            if (last.code == EBUSY || last.code == EPERM || last.code == EACCES) break;
            continue;
        }
        auto configured = steering->set_config(config.mac, config.mtu);
        if (!configured) return std::unexpected(configured.error());
        config.zero_copy = config.zero_copy && mode == Mode::drv;
        config.modes = {mode};
        auto device = std::unique_ptr<XdpDevice>(new XdpDevice(std::move(config), std::move(*steering)));
        device->deadline_ns_ = deadline;
        device->name_ = Holder::announce(device->config_.ifindex);
        return device;
    }
    return std::unexpected(last);
}

XdpDevice::XdpDevice(XdpConfig config, Steering steering)
    : config_(std::move(config)),
      steering_(std::move(steering)),
      lazy_(LazyKick::kBurstGapNs * clock::ticks_per_usec() / 1000, LazyKick::kLoneFrames,
            LazyKick::kHoldLimitNs * clock::ticks_per_usec() / 1000) {
    attr_.name = fmt::format("xdp:{} ({})", config_.name, config_.modes.front() == Mode::drv ? "drv" : "skb");
    attr_.ifindex = config_.ifindex;
    attr_.mac = config_.mac;
    attr_.mtu = config_.mtu;
    // A small chunk holds a whole frame of an ordinary Ethernet; larger frames come in several large ones.
    attr_.chunk_size = config_.mtu + 14 + kHeadroom <= kSmallChunk ? kSmallChunk : kLargeChunk;
    attr_.rx_offset = kHeadroom;
    attr_.tx_headroom = kTxHeadroom;
    attr_.max_send_sge = kMaxSendSge;
    attr_.max_send_wr = std::bit_floor(std::max(64u, config_.tx_entries));
    rx_per_queue_ = std::bit_floor(std::max(256u, config_.rx_entries / config_.queues));
    attr_.max_recv_wr = rx_per_queue_ * config_.queues;
    attr_.recv_wr_hint = kSmallDepth * config_.queues;
    attr_.level_events = true;
    attr_.partial_sums = config_.partial_sums;
    attr_.lazy_tx = true;
    if (auto opened = super_.open(config_.ifindex, config_.name); opened) {
        attr_.max_tso = SuperFrames::kMaxPayload;
        attr_.max_tso_sge = SuperFrames::kMaxPieces;
        attr_.tso_copies = true;
    } else {
        log::info("{}: TCP segments leave one by one: {}", attr_.name, opened.error().what);
    }
    set_calls({&XdpDevice::post_send, &XdpDevice::post_recv, &XdpDevice::poll_cq, &XdpDevice::req_notify_cq});
}

XdpDevice::~XdpDevice() = default;

Result<ibv_mr*> XdpDevice::reg_mr(void* addr, std::size_t length) {
    if (have_mr_) return fail(EBUSY, "the device has its memory region already");
    memory_ = static_cast<std::uint8_t*>(addr);
    auto first = std::make_unique<Xsk>();
    bool metadata = false;
    if (auto opened = first->open_with_umem(addr, length, attr_.chunk_size, metadata); !opened)
        return std::unexpected(opened.error());
    attr_.tx_checksum = metadata;
    queues_.push_back(std::move(first));
    receives_.start(memory_, length, attr_.chunk_size);
    sent_.resize(length, attr_.chunk_size);
    return fill_mr(addr, length);
}

// The descriptor is known once the queues are bound.
Result<ibv_comp_channel*> XdpDevice::create_comp_channel() { return fill_channel(-1); }

Result<ibv_qp*> XdpDevice::create_qp(const ibv_qp_init_attr& init) {
    if (!have_mr_ || have_qp_) return fail(EINVAL, "one memory region first, then one QP");
    XskConfig xsk{.ifindex = config_.ifindex, .rx_size = rx_per_queue_, .tx_size = attr_.max_send_wr};
    const bool one_chunk = config_.mtu + 14 + kHeadroom <= attr_.chunk_size;
    const std::vector<std::uint16_t> ways = ways_to_bind(config_.zero_copy, one_chunk);
    for (unsigned q = 0; q < config_.queues; q++) {
        if (q != 0) {
            queues_.push_back(std::make_unique<Xsk>());
            if (auto opened = queues_.back()->open(); !opened) return std::unexpected(opened.error());
            xsk.tx_size = 0;  // frames are sent on the first queue
        }
        xsk.queue = q;
        Xsk& socket = *queues_.back();
        if (auto made = socket.make_rings(xsk); !made) return std::unexpected(made.error());
        int error = EINVAL;
        for (std::uint16_t flags : ways) {
            xsk.bind_flags = flags;
            // This process's program is attached, so the process that holds the queue is ending: the kernel
            // takes 1 to 300 ms for it.
            while ((error = socket.bind(xsk, q == 0 ? nullptr : queues_.front().get())) == EBUSY &&
                   clock::monotonic_ns() < deadline_ns_)
                pause_msec();
            if (error == 0 || error == EBUSY || q != 0) break;
        }
        if (error == 0 && q == 0) scatter_ = (xsk.bind_flags & XDP_USE_SG) != 0;
        if (error == 0 && socket.zero_copy()) zero_copy_ = true;
        if (error == EINVAL && q != 0) {
            // The kernel tells how many queues were allocated, not how many are in use; this one is not. If
            // it is used later, its frames find no socket and pass to the kernel.
            queues_.pop_back();
            break;
        }
        if (error != 0)
            return fail(error, error == EBUSY
                                   ? fmt::format("another process holds queue {} of {}", q, config_.name)
                                   : fmt::format("cannot bind to queue {} of {}: {}", q, config_.name,
                                                 strerror(error)));
        if (auto set = steering_.set_socket(0, q, socket.fd()); !set) return std::unexpected(set.error());
    }
    if (queues_.size() == 1) {
        queues_.front()->mirror_fd(&channel_.fd);
    } else {
        epoll_ = InternalFd(static_cast<int>(os::raw_syscall(SYS_epoll_create1, EPOLL_CLOEXEC)));
        if (!epoll_) return fail(EMFILE, "epoll_create1");
        for (auto& queue : queues_) {
            epoll_event event{.events = EPOLLIN, .data = {}};
            os::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, queue->fd(), &event);
        }
        epoll_.mirror(&channel_.fd);
    }
    // There may be fewer queues than were asked for.
    attr_.max_recv_wr = rx_per_queue_ * static_cast<std::uint32_t>(queues_.size());
    slots_.resize(attr_.max_send_wr);
    return fill_qp(init);
}

Result<Flow*> XdpDevice::create_flow(ibv_qp*, const FlowSpec& spec, std::uint32_t) {
    if (auto added = steering_.add(spec, 0); !added) return std::unexpected(added.error());
    return new Flow{spec};
}

void XdpDevice::destroy_flow(Flow* flow) noexcept {
    steering_.remove(flow->spec);
    delete flow;
}

void XdpDevice::link_changed(const MacAddress& mac, std::uint32_t mtu) noexcept {
    attr_.mac = mac;
    attr_.mtu = mtu;
    (void)steering_.set_config(mac, mtu);
}

std::uint64_t XdpDevice::rx_device_drops() noexcept {
    std::uint64_t sum = 0;
    for (auto& queue : queues_) sum += queue->rx_drops();
    return sum;
}

// ---- receive side ----

// Each queue gets back the buffers that it has used. A round robin would gather the buffers in queues without
// traffic.
Xsk* XdpDevice::emptiest_queue() noexcept {
    Xsk* emptiest = nullptr;
    for (const auto& queue : queues_)
        if ((emptiest == nullptr || queue->posted < emptiest->posted) && queue->fill.room(1) != 0)
            emptiest = queue.get();
    return emptiest;
}

int XdpDevice::post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
    auto& d = device_of<XdpDevice>(qp->context);
    while (wr != nullptr) {
        Xsk* queue = d.emptiest_queue();
        if (queue == nullptr) {
            *bad = wr;
            return ENOMEM;
        }
        const std::uint32_t room = std::min(queue->fill.room(kFillBatch), kFillBatch);
        std::uint32_t n = 0;
        for (; wr != nullptr && n < room; wr = wr->next) {
            std::uint64_t offset = wr->sg_list->addr - reinterpret_cast<std::uintptr_t>(d.memory_);
            d.receives_.posted(offset, wr->wr_id);
            queue->fill.back(n++) = offset;
        }
        queue->fill.submit(n);
        queue->posted += n;
        if (queue->fill.needs_wakeup()) queue->kick_rx();
    }
    return 0;
}

int XdpDevice::poll_recv(int count, ibv_wc* wc) noexcept {
    int n = 0;
    for (std::size_t tried = 0; tried < queues_.size() && n < count; tried++) {
        Xsk& queue = *queues_[next_poll_];
        std::uint32_t ready = queue.rx.available();
        if (ready == 0) {
            if (++next_poll_ == queues_.size()) next_poll_ = 0;
            continue;
        }
        ready = std::min<std::uint32_t>(ready, static_cast<std::uint32_t>(count - n));
        bool unfinished = false;
        const int before = n;
        for (std::uint32_t i = 0; i < ready; i++) {
            const xdp_desc& desc = queue.rx.front(i);
            unfinished = (desc.options & XDP_PKT_CONTD) != 0;
            n += receives_.take(desc, qp_.qp_num, wc[n]);
        }
        queue.rx.release(ready);
        queue.posted -= std::min(queue.posted, static_cast<std::uint32_t>(n - before));
        // The loop stays on this queue while a frame is unfinished: its pieces must come out together.
        if (unfinished) break;
        if (++next_poll_ == queues_.size()) next_poll_ = 0;
    }
    if (__builtin_expect(zero_copy_, 0) && n == 0) wake_drivers();
    return n;
}

// A zero-copy driver without buffers sleeps until this process wakes it. No frame arrives meanwhile, so no
// later post would wake it either.
void XdpDevice::wake_drivers() noexcept {
    for (const auto& queue : queues_)
        if (queue->fill.needs_wakeup() && queue->posted != 0) queue->kick_rx();
}

int XdpDevice::poll_cq(ibv_cq* cq, int count, ibv_wc* wc) {
    auto& d = device_of<XdpDevice>(cq->context);
    return cq == &d.recv_cq_ ? d.poll_recv(count, wc) : d.poll_send(count, wc);
}

// The XSK is readable exactly while its RX ring is not empty, so there is nothing to arm.
int XdpDevice::req_notify_cq(ibv_cq*, int) { return 0; }

// ---- send side ----

void XdpDevice::reap() noexcept {
    XskRing<std::uint64_t>& ring = queues_.front()->completion;
    std::uint32_t ready = ring.available();
    if (ready == 0) return;
    for (std::uint32_t i = 0; i < ready; i++)
        if (const std::uint64_t slot = sent_.take(ring.front(i)); slot != ChunksAway::kNone)
            slots_.piece_done(static_cast<std::uint32_t>(slot));
    ring.release(ready);
}

int XdpDevice::poll_send(int count, ibv_wc* wc) noexcept {
    reap();
    return slots_.poll(count, wc, qp_.qp_num);
}

int XdpDevice::send_one(const ibv_send_wr& wr) noexcept {
    Xsk& queue = *queues_.front();
    const std::uint32_t pieces = static_cast<std::uint32_t>(wr.num_sge);
    if (pieces == 0 || pieces > (scatter_ ? kMaxSendSge : 1)) return EINVAL;
    if (slots_.full()) return ENOMEM;  // the caller polls the send CQ first
    if (queue.tx.room(unsubmitted_ + pieces) < unsubmitted_ + pieces) return ENOMEM;
    for (std::uint32_t i = 0; i < pieces; i++) {
        const ibv_sge& sge = wr.sg_list[i];
        xdp_desc& desc = queue.tx.back(unsubmitted_ + i);
        desc.addr = sge.addr - reinterpret_cast<std::uintptr_t>(memory_);
        desc.len = sge.length;
        desc.options = i + 1 < pieces ? XDP_PKT_CONTD : 0;
        sent_.give(desc.addr, slots_.next());
        if (i == 0 && (wr.send_flags & IBV_SEND_IP_CSUM) && attr_.tx_checksum) {
            auto* frame = reinterpret_cast<std::uint8_t*>(sge.addr);
            auto* meta = reinterpret_cast<TxMetadata*>(frame - sizeof(TxMetadata));
            meta->flags = kTxMetadataChecksum;
            meta->checksum_start = 14 + 20;  // the library's frames have no IP options
            meta->checksum_offset = frame[14 + 9] == IPPROTO_TCP ? 16 : 6;
            desc.options |= XDP_TX_METADATA;
        }
    }
    slots_.add(wr);
    unsubmitted_ += pieces;
    return 0;
}

// Frames that were posted before leave before.
int XdpDevice::send_super(const ibv_send_wr& wr) noexcept {
    if (unsubmitted_ != 0 || backlog_) submit_and_kick();
    return super_.send(wr);
}

void XdpDevice::submit_and_kick() noexcept {
    Xsk& queue = *queues_.front();
    if (unsubmitted_ != 0) {
        queue.tx.submit(unsubmitted_);
        unsubmitted_ = 0;
    }
    // In copy mode the kernel takes at most 32 descriptors a call. It answers EAGAIN when more remain, or
    // when its completion ring or the socket's send buffer is full. Then the loop takes completions and asks
    // again.
    int error = 0;
    for (int i = 0; i < kKickTries; i++) {
        error = queue.kick_tx();
        if (error != EAGAIN && error != EBUSY && error != ENOBUFS) break;
        reap();
    }
    const std::uint64_t now = clock::ticks();
    lazy_.kicked(now);
    // Frames that the kernel did not take count as held, so that the flusher asks again. After another error
    // (the interface is down) the next send or flush asks again.
    backlog_ = error == EAGAIN || error == EBUSY || error == ENOBUFS;
    stuck_ = error != 0 && !backlog_;
    held_since_.store(now, std::memory_order_relaxed);
    held_.store(backlog_ ? 1 : 0, std::memory_order_relaxed);
}

int XdpDevice::post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
    auto& d = device_of<XdpDevice>(qp->context);
    bool kick = false;
    int error = 0;
    for (; wr != nullptr; wr = wr->next) {
        if (wr->opcode == IBV_WR_TSO) {
            error = d.send_super(*wr);
            if (error == 0) continue;
        } else {
            error = d.send_one(*wr);
        }
        if (error != 0) {
            *bad = wr;
            kick = d.unsubmitted_ != 0;  // only sending the held frames makes room
            break;
        }
        kick |= d.lazy_.posted(clock::ticks()) || d.stuck_;
    }
    if (kick) {
        d.submit_and_kick();
    } else if (d.lazy_.held() != 0 && !d.backlog_ && !d.lazy_.gathering()) {
        d.held_since_.store(d.lazy_.held_since(), std::memory_order_relaxed);
        d.held_.store(d.lazy_.held(), std::memory_order_relaxed);
    }
    return error;
}

void XdpDevice::gather(ibv_qp*, bool on) noexcept {
    lazy_.gather(on);
    if (!on && unsubmitted_ != 0) submit_and_kick();
}

void XdpDevice::flush(ibv_qp*) noexcept {
    if (unsubmitted_ != 0 || backlog_ || stuck_) submit_and_kick();
    lazy_.end_burst();
}

}  // namespace vma::verbs::xdp
