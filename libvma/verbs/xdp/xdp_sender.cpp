// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/verbs/xdp/xdp_sender.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>

#include "libvma/os/calls.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/log.h"

namespace vma::verbs::xdp {
namespace {

constexpr int kKickTries = 8;  // of 32 frames each; if more are needed, the kernel holds the queue up

// Does the kernel ask to be asked again?
bool is_backlog(int error) noexcept { return error == EAGAIN || error == EBUSY || error == ENOBUFS; }

}  // namespace

XdpSender::XdpSender() noexcept
    : lazy_(LazyKick::kBurstGapNs * clock::ticks_per_usec() / 1000, LazyKick::kLoneFrames,
            LazyKick::kHoldLimitNs * clock::ticks_per_usec() / 1000) {}

void XdpSender::open_super_frames(const std::string& netdev, bool datagrams) {
    if (auto opened = super_.open(attr_.ifindex, netdev, datagrams); opened) {
        attr_.max_tso = SuperFrames::kMaxPayload;
        attr_.max_tso_sge = SuperFrames::kMaxPieces;
        attr_.tso_copies = true;
    } else {
        log::once(log::Level::info, "{}: TCP segments leave one by one: {}", attr_.name, opened.error().what);
    }
}

Result<void> XdpSender::watch(Xsk& queue) noexcept {
    epoll_event event{.events = EPOLLIN, .data = {}};
    if (os::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, queue.fd(), &event) == 0) return {};
    return fail(errno, "EPOLL_CTL_ADD");
}

Result<void> XdpSender::open_channel(bool grows) {
    if (copies_ != nullptr) {
        copies_->descriptor(slot_).mirror(&channel_.fd);
        return {};
    }
    if (queues_.size() == 1 && !grows) {
        queues_.front()->mirror_fd(&channel_.fd);
        return {};
    }
    epoll_ = InternalFd(static_cast<int>(os::raw_syscall(SYS_epoll_create1, EPOLL_CLOEXEC)));
    if (!epoll_) return fail(EMFILE, "epoll_create1");
    for (auto& queue : queues_)
        if (auto watched = watch(*queue); !watched) return watched;
    epoll_.mirror(&channel_.fd);
    return {};
}

// An XSK is readable exactly while its RX ring is not empty, so there is nothing to arm.
int XdpSender::req_notify_cq(ibv_cq* cq, int) {
    auto& d = device_of<XdpSender>(cq->context);
    if (d.copies_ != nullptr && cq == &d.recv_cq_) d.copies_->arm(d.slot_);
    return 0;
}

void XdpSender::consume_events(ibv_comp_channel*) noexcept {
    if (copies_ != nullptr) copies_->consume(slot_);
}

std::uint64_t XdpSender::rx_device_drops() noexcept {
    if (copies_ != nullptr) return copies_->dropped(slot_);
    std::uint64_t sum = 0;
    for (auto& queue : queues_) sum += queue->rx_drops();
    return sum;
}

// The kernel unbinds an XSK when its netdev leaves the namespace. Of one that is down it says ENETDOWN.
bool XdpSender::is_gone() noexcept {
    if (failed()) return true;
    if (queues_.empty() || queues_.front()->kick_tx() != ENXIO) return false;
    gone_.store(true, std::memory_order_release);
    log::info("{}: the interface is gone", attr_.name);
    if (on_gone_) on_gone_();
    return true;
}

void XdpSender::reap() noexcept {
    const auto done = [this](std::uint64_t offset) {
        if (const std::uint64_t slot = sent_.take(offset); slot != ChunksAway::kNone)
            slots_.piece_done(static_cast<std::uint32_t>(slot));
    };
    if (__builtin_expect(pool_ != nullptr, 0)) return pool_->take_sent(slot_, pool_waits_, done);
    XskRing<std::uint64_t>& ring = queues_.front()->completion;
    std::uint32_t ready = ring.available();
    if (ready == 0) return;
    for (std::uint32_t i = 0; i < ready; i++) done(ring.front(i));
    ring.release(ready);
}

int XdpSender::poll_send(int count, ibv_wc* wc) noexcept {
    reap();
    return slots_.poll(count, wc, qp_.qp_num);
}

int XdpSender::send_one(const ibv_send_wr& wr) noexcept {
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
int XdpSender::send_super(const ibv_send_wr& wr) noexcept {
    if (unsubmitted_ != 0 || backlog_) submit_and_kick();
    return super_.send(wr);
}

void XdpSender::submit() noexcept {
    if (unsubmitted_ == 0) return;
    queues_.front()->tx.submit(unsubmitted_);
    unsubmitted_ = 0;
}

// In copy mode the kernel takes at most 32 descriptors a call. It answers EAGAIN when more remain, or when
// its completion ring or the socket's send buffer is full. Then the loop takes completions and asks again.
int XdpSender::kick_tx() noexcept {
    int error = 0;
    for (int i = 0; i < kKickTries; i++) {
        error = queues_.front()->kick_tx();
        if (!is_backlog(error)) break;
        reap();
    }
    return error;
}

// Fills `run` with the frames from the first'th unsubmitted one on.
void XdpSender::find_run(std::uint32_t first, DatagramRun& run, std::span<iovec> frames) noexcept {
    XskRing<xdp_desc>& tx = queues_.front()->tx;
    run.clear();
    if (first != 0 && (tx.back(first - 1).options & XDP_PKT_CONTD) != 0) return;
    for (std::uint32_t i = first; i < unsubmitted_; i++) {
        const xdp_desc& desc = tx.back(i);
        std::uint8_t* frame = memory_ + desc.addr;
        const std::size_t n = run.count();
        if ((desc.options & XDP_PKT_CONTD) != 0 || !run.add({frame, desc.len})) return;
        frames[n] = {frame, desc.len};
    }
}

// Sends runs of datagrams as super-frames, and what is posted in front of each run before it. The rest stays
// unsubmitted, and so does everything from an error on. True: something was sent.
bool XdpSender::send_runs() noexcept {
    bool sent = false;
    XskRing<xdp_desc>& tx = queues_.front()->tx;
    DatagramRun run;
    std::array<iovec, DatagramRun::kMost> frames;
    std::uint32_t before = 0;
    while (unsubmitted_ - before >= DatagramRun::kFewest && super_.takes_datagrams()) {
        find_run(before, run, frames);
        const auto n = static_cast<std::uint32_t>(run.count());
        if (n < DatagramRun::kFewest) {
            before += std::max(n, 1u);
            continue;
        }
        if (before != 0) {
            tx.submit(before);
            unsubmitted_ -= before;
            before = 0;
            sent = true;
            if (kick_tx() != 0) return sent;
        }
        if (!super_.send(run, {frames.data(), n})) return sent;
        sent = true;
        for (std::uint32_t i = 0; i < n; i++)
            slots_.piece_done(static_cast<std::uint32_t>(sent_.take(tx.back(i).addr)));
        unsubmitted_ -= n;
        for (std::uint32_t i = 0; i < unsubmitted_; i++) tx.back(i) = tx.back(i + n);
    }
    return sent;
}

void XdpSender::submit_and_kick() noexcept {
    const bool sent = !backlog_ && !stuck_ && send_runs();
    int error = 0;
    if (!sent || unsubmitted_ != 0) {
        submit();
        error = kick_tx();
    }
    const std::uint64_t now = clock::ticks();
    lazy_.kicked(now);
    // Frames that the kernel did not take count as held, so that the flusher asks again. After another error
    // (the interface is down) the next send or flush asks again.
    backlog_ = is_backlog(error);
    stuck_ = error != 0 && !backlog_;
    held_since_.store(now, std::memory_order_relaxed);
    held_.store(backlog_ ? 1 : 0, std::memory_order_relaxed);
}

// Submits what is posted, for kick().
void XdpSender::leave_kick() noexcept {
    kick_left_ = unsubmitted_ != 0;
    submit();
    held_.store(0, std::memory_order_relaxed);
}

bool XdpSender::kick(ibv_qp*) noexcept {
    Xsk& queue = *queues_.front();
    const int error = queue.kick_tx();
    kick_ended_.store(clock::ticks(), std::memory_order_relaxed);
    return error == 0;
}

int XdpSender::post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
    auto& d = device_of<XdpSender>(qp->context);
    const bool alone = wr->next == nullptr && d.leaves_kicks_ && !d.lazy_.gathering();
    bool kick = false;
    int error = 0;
    const auto now = clock::ticks();  // a list is posted at once
    d.lazy_.kick_ended(d.kick_ended_.load(std::memory_order_relaxed));
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
        kick |= d.lazy_.posted(now) || d.stuck_;
        if (kick && wr->next != nullptr) {  // the kernel takes no more frames at a time
            d.submit_and_kick();
            kick = false;
        }
    }
    if (kick && alone && error == 0 && !d.stuck_ && !d.backlog_) {
        d.lazy_.kicked(d.send_runs() ? clock::ticks() : now);
        d.leave_kick();
    } else if (kick)
        d.submit_and_kick();
    else if (!d.lazy_.gathering())
        d.publish_held();
    return error;
}

// For the flusher.
void XdpSender::publish_held() noexcept {
    if (lazy_.held() == 0 || backlog_) return;
    held_since_.store(lazy_.held_since(), std::memory_order_relaxed);
    held_.store(lazy_.held(), std::memory_order_relaxed);
}

void XdpSender::gather(ibv_qp*, bool on) noexcept {
    if (on) return lazy_.gather();
    const bool kick = lazy_.end_gather(clock::ticks());
    if (unsubmitted_ != 0 && (kick || backlog_ || stuck_))
        submit_and_kick();
    else
        publish_held();
}

// A request without pieces is done when those before it are.
bool XdpSender::mark(ibv_qp*, std::uint64_t wr_id) noexcept {
    if (slots_.full()) return false;
    ibv_send_wr wr{};
    wr.wr_id = wr_id;
    wr.send_flags = IBV_SEND_SIGNALED;
    slots_.add(wr);
    return true;
}

void XdpSender::flush(ibv_qp*) noexcept {
    if (unsubmitted_ != 0 || backlog_ || stuck_) submit_and_kick();
    lazy_.end_burst();
}

}  // namespace vma::verbs::xdp
