// SPDX-License-Identifier: BSD-2-Clause
// See lane.h.
#include "tools/vma_perf/rdma/lane.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>

#include "tools/common/sums.h"
#include "tools/vma_perf/message.h"

namespace vma_perf::rdma {
namespace {

constexpr std::size_t kLine = 64;                     // places begin at cache lines
constexpr std::size_t kRing = std::size_t{32} << 20;  // bytes that a ring may take before it gets shorter
constexpr unsigned kSendDepth = 128, kReceiveDepth = 512, kSignalEvery = 64, kLeastDepth = 4;
constexpr unsigned kUsualInline = 220;  // of the adapters in use; smaller ones say so

constexpr std::size_t stride(std::size_t bytes) noexcept { return (bytes + kLine - 1) / kLine * kLine; }

unsigned shorter(unsigned usual, std::size_t bytes) noexcept {
    return std::clamp(static_cast<unsigned>(kRing / bytes), kLeastDepth, usual);
}

}  // namespace

Depths depths_of(const Params& p, std::size_t head) noexcept {
    Depths d{};
    d.send = p.rdma.send_depth != 0
                 ? p.rdma.send_depth
                 : std::max(shorter(kSendDepth, stride(p.max_size)), std::min(p.burst, 32768u));
    d.receive =
        p.rdma.receive_depth != 0 ? p.rdma.receive_depth : shorter(kReceiveDepth, stride(head + p.max_size));
    d.signal_every = p.rdma.signal_every >= 0 ? static_cast<unsigned>(p.rdma.signal_every)
                                              : std::max(1u, std::min(kSignalEvery, d.send / 2));
    return d;
}

constexpr std::uint64_t VerbsLane::Counts::*kCounts[] = {
    &VerbsLane::Counts::sends,    &VerbsLane::Counts::signalled, &VerbsLane::Counts::send_completions,
    &VerbsLane::Counts::receives, &VerbsLane::Counts::events,    &VerbsLane::Counts::inlined};

VerbsLane::Counts& VerbsLane::Counts::operator+=(const Counts& other) noexcept {
    tools::add_members(*this, other, kCounts);
    return *this;
}

VerbsLane::VerbsLane(ibv_context* context, ibv_pd* pd, ibv_qp_type type, const Params& params,
                     unsigned number, const std::atomic<bool>& stop)
    : params_(params),
      datagrams_(type == IBV_QPT_UD),
      stop_(stop),
      depths_(depths_of(params, datagrams_ ? kGrh : 0)),
      send_stride_(stride(params.max_size)),
      receive_stride_(stride((datagrams_ ? kGrh : 0) + params.max_size)),
      queues_(params.lane_connections(number)),
      send_wr_(depths_.send),
      send_sge_(depths_.send) {
    const std::size_t each = depths_.send * send_stride_ + depths_.receive * receive_stride_;
    mapped_ = each * queues_.size();
    void* memory = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail_errno(fmt::format("{} bytes for {} queue pairs", mapped_, queues_.size()));
    memory_ = static_cast<std::byte*>(memory);
    for (std::size_t i = 0; i < queues_.size(); i++) {
        queues_[i].memory = memory_ + i * each;
        queues_[i].lengths.resize(depths_.send);
    }
    mr_.reset(ibv_reg_mr(pd, memory_, mapped_, IBV_ACCESS_LOCAL_WRITE));
    if (!mr_) fail_errno(fmt::format("registering {} bytes (is RLIMIT_MEMLOCK too low?)", mapped_));
    if (params.rdma.events || params.own_wait() != Wait::nonblocking) {
        channel_.reset(ibv_create_comp_channel(context));
        if (!channel_ || fcntl(channel_->fd, F_SETFL, O_NONBLOCK) != 0) fail_errno("a completion channel");
    }
    const auto make_cq = [&](std::size_t depth, ibv_comp_channel* channel) {
        CqPtr cq(ibv_create_cq(context, static_cast<int>(depth * queues_.size()), nullptr, channel, 0));
        if (!cq)
            fail_errno(fmt::format("a completion queue of {} entries", depth * queues_.size()), kUnsupported);
        return cq;
    };
    send_cq_ = make_cq(depths_.send, nullptr);
    receive_cq_ = make_cq(depths_.receive, channel_.get());
}

VerbsLane::~VerbsLane() {
    receive_cq_.reset();
    send_cq_.reset();
    mr_.reset();
    if (memory_ != nullptr) munmap(memory_, mapped_);
}

void VerbsLane::add_queue_pair(unsigned connection, Create create, void* context) {
    ibv_qp_init_attr_ex attr{};
    attr.qp_type = datagrams_ ? IBV_QPT_UD : IBV_QPT_RC;
    attr.send_cq = send_cq_.get();
    attr.recv_cq = receive_cq_.get();
    attr.comp_mask = IBV_QP_INIT_ATTR_PD;
    attr.pd = mr_->pd;
    if (params_.rdma.builder) {
        attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        attr.send_ops_flags = IBV_QP_EX_WITH_SEND;
    }
    const int wanted = params_.rdma.max_inline;
    unsigned size = wanted >= 0 ? static_cast<unsigned>(wanted) : std::min(kUsualInline, params_.max_size);
    Queue& queue = queues_[connection];
    while (true) {
        attr.cap = {depths_.send, depths_.receive, 1, 1, size};
        queue.qp = create(context, attr);
        if (queue.qp != nullptr || size == 0 || wanted >= 0) break;
        size = size > kLine ? kLine : 0;
    }
    if (queue.qp == nullptr)
        fail_errno(fmt::format("a queue pair with {} sends, {} receives, {} bytes inline{}", depths_.send,
                               depths_.receive, size, params_.rdma.builder ? ", ibv_wr_ functions" : ""),
                   kUnsupported);
    max_inline_ = size;
    if (params_.rdma.builder) {
        queue.builder = ibv_qp_to_qp_ex(queue.qp);
        if (queue.builder == nullptr)
            throw Failure(kUnsupported, "--wr-api: the device's library does not have it");
    }
    by_number_.emplace_back(queue.qp->qp_num, connection);
    std::sort(by_number_.begin(), by_number_.end());
}

void VerbsLane::start_receiving(unsigned connection) {
    std::vector<std::uint64_t> places(depths_.receive);
    for (std::size_t i = 0; i < places.size(); i++) places[i] = i;
    for (std::size_t i = 0; i < places.size(); i += kBatch)
        post_receives(queues_[connection], &places[i], std::min<std::size_t>(kBatch, places.size() - i));
}

void VerbsLane::set_destination(unsigned connection, ibv_ah* handle, std::uint32_t number,
                                std::uint32_t key) noexcept {
    Queue& queue = queues_[connection];
    queue.handle = handle;
    queue.peer = number;
    queue.key = key;
}

void VerbsLane::post_receives(Queue& queue, const std::uint64_t* places, std::size_t count) {
    std::array<ibv_recv_wr, kBatch> wr{};
    std::array<ibv_sge, kBatch> sge{};
    for (std::size_t i = 0; i < count; i++) {
        sge[i] = {reinterpret_cast<std::uintptr_t>(receive_place(queue, places[i])),
                  static_cast<std::uint32_t>(receive_stride_), mr_->lkey};
        wr[i].wr_id = places[i];
        wr[i].sg_list = &sge[i];
        wr[i].num_sge = 1;
        wr[i].next = i + 1 < count ? &wr[i + 1] : nullptr;
    }
    ibv_recv_wr* bad = nullptr;
    if (const int error = ibv_post_recv(queue.qp, wr.data(), &bad); error != 0) {
        errno = error;
        fail_errno("ibv_post_recv");
    }
}

std::byte* VerbsLane::prepare(unsigned connection) {
    Queue& queue = queues_[connection];
    if (queue.sent - queue.completed == depths_.send) reap_sends();
    if (queue.sent - queue.completed < depths_.send) return send_place(queue, queue.sent);
    if (depths_.signal_every == 0)
        throw Failure(
            kPeerEnded,
            fmt::format(
                "stalled: the send queue is full after {} sends, and with --signal-every 0 no completion "
                "will ever make room",
                queue.sent));
    return nullptr;
}

bool VerbsLane::send(unsigned connection, std::size_t length, bool more) {
    Queue& queue = queues_[connection];
    queue.lengths[queue.sent % depths_.send] = static_cast<std::uint32_t>(length);
    queue.sent++;
    // The place after the last one is not there yet: the chain goes now.
    if (!more || queue.sent - queue.completed == depths_.send) start(queue);
    return true;
}

void VerbsLane::start(Queue& queue) {
    if (queue.started == queue.sent) return;
    if (queue.builder != nullptr)
        start_builder(queue);
    else
        start_classic(queue);
    for (std::uint64_t i = queue.started; i < queue.sent; i++) {
        counts_.signalled += signals(i);
        counts_.inlined += queue.lengths[i % depths_.send] <= max_inline_;
    }
    counts_.sends += queue.sent - queue.started;
    queue.started = queue.sent;
}

void VerbsLane::start_classic(Queue& queue) {
    const std::size_t count = queue.sent - queue.started;
    for (std::size_t i = 0; i < count; i++) {
        const std::uint64_t number = queue.started + i;
        const std::uint32_t length = queue.lengths[number % depths_.send];
        send_sge_[i] = {reinterpret_cast<std::uintptr_t>(send_place(queue, number)), length, mr_->lkey};
        ibv_send_wr& wr = send_wr_[i];
        wr = {};
        wr.wr_id = number;
        wr.sg_list = &send_sge_[i];
        wr.num_sge = 1;
        wr.opcode = IBV_WR_SEND;
        wr.send_flags = (signals(number) ? unsigned{IBV_SEND_SIGNALED} : 0u) |
                        (length <= max_inline_ ? unsigned{IBV_SEND_INLINE} : 0u);
        wr.next = i + 1 < count ? &send_wr_[i + 1] : nullptr;
        if (datagrams_) {
            wr.wr.ud.ah = queue.handle;
            wr.wr.ud.remote_qpn = queue.peer;
            wr.wr.ud.remote_qkey = queue.key;
        }
    }
    ibv_send_wr* bad = nullptr;
    if (const int error = ibv_post_send(queue.qp, send_wr_.data(), &bad); error != 0) {
        errno = error;
        fail_errno("ibv_post_send");
    }
}

void VerbsLane::start_builder(Queue& queue) {
    ibv_qp_ex* qp = queue.builder;
    ibv_wr_start(qp);
    for (std::uint64_t number = queue.started; number < queue.sent; number++) {
        const std::uint32_t length = queue.lengths[number % depths_.send];
        std::byte* place = send_place(queue, number);
        qp->wr_id = number;
        // Soft-RoCE goes by the flag, others by the function that is called below.
        qp->wr_flags = (signals(number) ? unsigned{IBV_SEND_SIGNALED} : 0u) |
                       (length <= max_inline_ ? unsigned{IBV_SEND_INLINE} : 0u);
        ibv_wr_send(qp);
        if (datagrams_) ibv_wr_set_ud_addr(qp, queue.handle, queue.peer, queue.key);
        if (length <= max_inline_)
            ibv_wr_set_inline_data(qp, place, length);
        else
            ibv_wr_set_sge(qp, mr_->lkey, reinterpret_cast<std::uintptr_t>(place), length);
    }
    if (const int error = ibv_wr_complete(qp); error != 0) {
        errno = error;
        fail_errno("ibv_wr_complete");
    }
}

bool VerbsLane::answer(const Arrival& arrival) {
    std::byte* place = prepare(arrival.connection);
    for (; place == nullptr; place = prepare(arrival.connection)) {
        if (stop_.load(std::memory_order_relaxed)) return false;
        start(queues_[arrival.connection]);
    }
    memcpy(place, arrival.message.data(), arrival.message.size());
    // The answers of a batch share a doorbell: receive() rings it.
    return send(arrival.connection, arrival.message.size(), true);
}

VerbsLane::Queue& VerbsLane::queue_of(std::uint32_t number, unsigned& connection) {
    const auto found = std::lower_bound(by_number_.begin(), by_number_.end(), std::pair{number, 0u});
    if (found == by_number_.end() || found->first != number)
        throw Failure(kFailed, fmt::format("a completion of queue pair {}, which does not exist", number));
    connection = found->second;
    return queues_[connection];
}

void VerbsLane::reap_sends() {
    while (true) {
        const int n = ibv_poll_cq(send_cq_.get(), kBatch, completions_.data());
        if (n < 0) throw Failure(kFailed, "ibv_poll_cq failed");
        for (int i = 0; i < n; i++) {
            const ibv_wc& wc = completions_[static_cast<std::size_t>(i)];
            if (wc.status != IBV_WC_SUCCESS) fail(wc);
            unsigned connection = 0;
            Queue& queue = queue_of(wc.qp_num, connection);
            queue.completed = std::max(queue.completed, wc.wr_id + 1);
            counts_.send_completions++;
        }
        if (n < kBatch) return;
    }
}

void VerbsLane::fail(const ibv_wc& wc) const {
    switch (wc.status) {
        case IBV_WC_RETRY_EXC_ERR:
            throw Failure(kPeerEnded, "the other side does not acknowledge any more (--retry)");
        case IBV_WC_RNR_RETRY_EXC_ERR:
            throw Failure(kFailed,
                          "the other side has no receive posted: more of them (--receive-depth) or a longer "
                          "patience (--rnr-retry)");
        case IBV_WC_WR_FLUSH_ERR:
        case IBV_WC_REM_OP_ERR:
        case IBV_WC_REM_ABORT_ERR:
            throw Failure(kPeerEnded,
                          fmt::format("the connection is broken: {}", ibv_wc_status_str(wc.status)));
        default:
            throw Failure(kFailed, fmt::format("a work request failed: {} (vendor error {})",
                                               ibv_wc_status_str(wc.status), wc.vendor_err));
    }
}

void VerbsLane::wait_for_event() {
    pollfd ready{channel_->fd, POLLIN, 0};
    if (::poll(&ready, 1, static_cast<int>(kTick.count())) <= 0) return;
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    unsigned events = 0;
    while (ibv_get_cq_event(channel_.get(), &cq, &context) == 0) events++;
    if (events != 0) ibv_ack_cq_events(receive_cq_.get(), events);
    counts_.events += events;
}

std::size_t VerbsLane::receive(Receiver& receiver, bool may_wait) {
    for (Queue& queue : queues_) start(queue);
    reap_sends();
    std::array<ibv_wc, kBatch> arrived;
    int n = ibv_poll_cq(receive_cq_.get(), kBatch, arrived.data());
    if (n == 0 && may_wait && channel_) {
        if (const int error = ibv_req_notify_cq(receive_cq_.get(), 0); error != 0) {
            errno = error;
            fail_errno("ibv_req_notify_cq");
        }
        // What came before the request tells no event.
        n = ibv_poll_cq(receive_cq_.get(), kBatch, arrived.data());
        if (n == 0) {
            wait_for_event();
            n = ibv_poll_cq(receive_cq_.get(), kBatch, arrived.data());
        }
    }
    if (n < 0) throw Failure(kFailed, "ibv_poll_cq failed");
    std::size_t taken = 0;
    for (int i = 0; i < n;) {
        Arrival arrival;
        const std::uint32_t number = arrived[static_cast<std::size_t>(i)].qp_num;
        Queue& queue = queue_of(number, arrival.connection);
        // Neighbours of the same queue pair are posted again together.
        std::array<std::uint64_t, kBatch> places;
        std::size_t count = 0;
        for (; i < n && arrived[static_cast<std::size_t>(i)].qp_num == number; i++) {
            const ibv_wc& wc = arrived[static_cast<std::size_t>(i)];
            // The send that broke the queue pair tells why.
            if (wc.status == IBV_WC_WR_FLUSH_ERR) reap_sends();
            if (wc.status != IBV_WC_SUCCESS) fail(wc);
            places[count++] = wc.wr_id;
            counts_.receives++;
            const std::size_t head = datagrams_ ? kGrh : 0;
            if (wc.byte_len < head + kMinSize) continue;
            arrival.message = {receive_place(queue, wc.wr_id) + head, wc.byte_len - head};
            receiver.take(arrival);
            taken++;
        }
        post_receives(queue, places.data(), count);
        start(queue);
    }
    return taken;
}

}  // namespace vma_perf::rdma
