// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/ring/tx_queue.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "libvma/net/checksum.h"
#include "libvma/ring/frame_log.h"
#include "libvma/ring/tcp_headers.h"
#include "libvma/ring/tx_flusher.h"
#include "libvma/ring/udp_chain.h"
#include "libvma/ring/udp_headers.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/log.h"
#include "libvma/stats/counter.h"

namespace vma::ring {
namespace {

// Bytes of payload below which summing while copying is cheaper than AF_XDP's metadata.
constexpr std::uint32_t kOffloadChecksumFrom = 256;

}  // namespace

void TxQueue::open(verbs::Device& device, ibv_qp* qp, ibv_cq* cq, PacketMemory& memory,
                   const RingConfig& config) {
    const verbs::DeviceAttr& attr = device.attr();
    device_ = &device;
    qp_ = qp;
    cq_ = cq;
    lazy_ = attr.lazy_tx;
    if (lazy_) device.leave_kicks();
    buffers_.open(memory, attr.tx_headroom);
    sends_ = memory.send_buffers();
    // A device that transmits at once sums for nothing.
    offload_from_ = !attr.tx_checksum ? ~0u : attr.lazy_tx ? kOffloadChecksumFrom : 0;
    max_inline_ = std::min(attr.max_inline, buffers_.room());
    tso_.open(attr.tx_checksum ? attr.max_tso : 0, attr.max_tso_sge, attr.tso_copies);
    extras_ = max_inline_ != 0 || tso_.available();
    signal_most_ = std::clamp(buffers_.count() / 4, 1u, std::max(config.signal_every, 1u));
    signal_every_ = signal_most_;
}

std::uint32_t TxQueue::max_udp_payload() const noexcept {
    const verbs::DeviceAttr& attr = device_->attr();
    std::uint32_t room = buffers_.room() * std::min(kMaxPieces, attr.max_send_sge);
    return std::min(attr.mtu, room - 14) - 28;
}

bool TxQueue::reap() noexcept {
    ibv_wc wc[16];
    bool any = false;
    for (;;) {
        int n = ibv_poll_cq(cq_, 16, wc);
        if (n <= 0) break;
        any = true;
        for (int i = 0; i < n; i++) {
            if (__builtin_expect(wc[i].status == IBV_WC_SUCCESS, 1)) continue;
            if (wc[i].status != IBV_WC_WR_FLUSH_ERR) stats::add(counters_.tx_error, 1);
            stats::add(counters_.tx_lost, 1);
            rx_lock_.note_error();
        }
        // wr_id is the number of the request's last place: everything before it is done as well.
        buffers_.done(wc[n - 1].wr_id);
        if (n < 16) break;
    }
    return any;
}

// Are there as many free buffers, and places in the queue? Waits a little. With lock_ held.
bool TxQueue::make_room(std::uint32_t buffers, std::uint32_t places) noexcept {
    auto enough = [&] { return buffers_.free() >= buffers && !buffers_.full(places); };
    // Completions exist only for what the kernel has seen, so what is held back goes first.
    for (int i = 0; !enough() && i < 16; i++)
        if (!reap()) device_->flush(qp_);
    if (enough()) return true;
    stats::add(counters_.tx_no_buffer, 1);
    return false;
}

// Posts `wr`, which has the last `pieces` places in the queue. 0, or ENOBUFS: then these are free again.
// With lock_ held. Inline, for each frame comes here.
[[gnu::always_inline]] inline int TxQueue::post(ibv_send_wr& wr, std::uint32_t pieces) noexcept {
    wr.wr_id = buffers_.posted();
    const bool signalled = unsignalled_ + pieces >= signal_every_;
    if (signalled) wr.send_flags |= IBV_SEND_SIGNALED;
    ibv_send_wr* bad = nullptr;
    const int error = ibv_post_send(qp_, &wr, &bad);
    if (__builtin_expect(error != 0, 0) && !post_again(wr, pieces, error)) return ENOBUFS;
    unsignalled_ = signalled ? 0 : unsignalled_ + pieces;  // a refused request will not complete
    return 0;
}

// The queue was full, perhaps: what is done makes room. False: the request's places in the queue are free
// again.
[[gnu::cold]] bool TxQueue::post_again(ibv_send_wr& wr, std::uint32_t pieces, int error) noexcept {
    ibv_send_wr* bad = nullptr;
    for (int i = 0; error == ENOMEM && i < 16; i++) {
        reap();
        device_->flush(qp_);
        error = ibv_post_send(qp_, &wr, &bad);
    }
    if (error == 0) return true;
    buffers_.untake(pieces);
    stats::add(counters_.tx_no_buffer, 1);
    return false;
}

// Posts a frame that lies in `count` buffers, whose places are the last ones taken. With lock_ held. Inline,
// for each frame comes here.
[[gnu::always_inline]] inline int TxQueue::post_built(ibv_sge* pieces, std::uint32_t count,
                                                      std::size_t header_length, std::size_t frame_length,
                                                      bool offload, bool as_inline) noexcept {
    ibv_send_wr wr{};
    wr.sg_list = pieces;
    wr.num_sge = static_cast<int>(count);
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = offload ? static_cast<unsigned>(IBV_SEND_IP_CSUM) : 0u;
    if (as_inline) wr.send_flags |= IBV_SEND_INLINE;
    if (const int error = post(wr, count); error != 0) return error;
    stats::add(counters_.tx_frames, 1);
    stats::add(counters_.tx_bytes, frame_length);
    if (__builtin_expect(log::enabled(log::Level::finer), 0))
        log_frame(device_->attr().name, "sends",
                  {reinterpret_cast<const std::uint8_t*>(pieces[0].addr), header_length}, frame_length,
                  net::Drop::none);
    if (lazy_) {
        in_burst_.store(true, std::memory_order_relaxed);
        if (device_->tx_held(qp_) == 1) TxFlusher::instance().held();
    }
    return 0;
}

template <class Finish>
int TxQueue::send_frame(const std::uint8_t* headers, std::size_t header_length, const iovec* iov,
                        std::size_t count, std::size_t length, Finish&& finish) noexcept {
    if (!lock()) return EBUSY;
    Hold hold(*this);
    const int error = post_frame(headers, header_length, iov, count, length, std::forward<Finish>(finish));
    if (__builtin_expect(buffers_.under_way() >= 2 * signal_every_, 0)) {
        reap();
        hold.attend();
    }
    return error;
}

// With lock_ held. Inline, for each frame comes here.
template <class Finish>
[[gnu::always_inline]] inline int TxQueue::post_frame(const std::uint8_t* headers, std::size_t header_length,
                                                      const iovec* iov, std::size_t count, std::size_t length,
                                                      Finish&& finish) noexcept {
    const std::uint32_t room = buffers_.room();
    const std::size_t frame_length = header_length + length;
    const std::uint32_t pieces =
        frame_length <= room ? 1 : static_cast<std::uint32_t>((frame_length + room - 1) / room);

    bool as_inline = false, full = false;
    if (extras_) {
        if (tso_.waiting()) send_gathered();
        as_inline = frame_length <= max_inline_;
        full = buffers_.full(pieces);
    }
    if (__builtin_expect(buffers_.free() < pieces || full, 0) && !make_room(pieces)) return ENOBUFS;

    ibv_sge sge[kMaxPieces];
    std::size_t left = length, at = 0, which = 0;  // position in the iovecs
    const bool offload = length >= offload_from_;
    std::uint64_t sum = 0;
    std::uint8_t* first = nullptr;
    bool odd = false;
    for (std::uint32_t p = 0; p < pieces; p++) {
        std::uint8_t* frame = buffers_.take(as_inline);
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
        sge[p] = {reinterpret_cast<std::uintptr_t>(frame), static_cast<std::uint32_t>(out - frame),
                  buffers_.lkey()};
    }
    finish(first, sum, offload);
    return post_built(sge, pieces, header_length, frame_length, offload, as_inline);
}

int TxQueue::send_udp(const std::uint8_t* headers, const iovec* iov, std::size_t count,
                      std::size_t length) noexcept {
    return send_frame(headers, net::kUdpHeaders, iov, count, length, UdpSums{length});
}

int TxQueue::lend(SendBuffer** out, unsigned count) noexcept {
    if (!lock()) return EBUSY;
    Hold hold(*this);
    if (!buffers_.may_lend(count) || !make_room(count, 0)) return ENOBUFS;
    for (unsigned i = 0; i < count; i++) out[i] = &sends_[buffers_.lend()];
    hold.attend();
    return 0;
}

int TxQueue::end_loan(SendBuffer& buffer) noexcept {
    if (!lock()) return EBUSY;
    Hold hold(*this);
    buffers_.end_loan(static_cast<std::uint32_t>(&buffer - sends_.data()));
    return 0;
}

// The headers go in front of the payload that the program has written.
int TxQueue::send_lent_udp(const std::uint8_t* headers, SendBuffer& buffer, std::size_t length) noexcept {
    if (!lock()) return EBUSY;
    Hold hold(*this);
    if (tso_.waiting()) send_gathered();
    if (buffers_.full(1) && !make_room(0, 1)) return ENOBUFS;
    const std::size_t frame_length = net::kUdpHeaders + length;
    const bool offload = length >= offload_from_, as_inline = frame_length <= max_inline_;
    std::memcpy(buffer.frame, headers, net::kUdpHeaders);
    const std::uint64_t sum = offload ? 0 : net::checksum_add(buffer.payload(), length, 0);
    net::finish_udp_frame(buffer.frame, length, sum, offload);
    buffers_.take_lent(static_cast<std::uint32_t>(&buffer - sends_.data()));
    ibv_sge piece{reinterpret_cast<std::uintptr_t>(buffer.frame), static_cast<std::uint32_t>(frame_length),
                  buffers_.lkey()};
    if (post_built(&piece, 1, net::kUdpHeaders, frame_length, offload, as_inline) != 0) {
        buffers_.lend_again();
        return ENOBUFS;
    }
    if (as_inline) buffers_.free_last();
    if (buffers_.under_way() >= 2 * signal_every_) reap();
    hold.attend();
    return 0;
}

unsigned TxQueue::send_udp_many(const std::uint8_t* headers, const iovec* datagrams,
                                unsigned count) noexcept {
    if (!lock()) return 0;
    Hold hold(*this);
    if (extras_ && tso_.waiting()) send_gathered();
    const bool first = gathering_.load(std::memory_order_relaxed) == 0;
    if (first) device_->gather(qp_, true);
    unsigned sent = 0;
    while (sent < count) {
        unsigned went = post_chain(headers, datagrams + sent, std::min(count - sent, UdpChain::kMost));
        if (went == 0) {
            const std::size_t length = datagrams[sent].iov_len;
            went = post_frame(headers, net::kUdpHeaders, &datagrams[sent], 1, length, UdpSums{length}) == 0;
        }
        if (went == 0) break;
        sent += went;
        if (__builtin_expect(buffers_.under_way() >= 2 * signal_every_, 0)) reap();
    }
    if (first) gather_ended();
    hold.attend();
    return sent;
}

// Posts datagrams as one list, and returns how many: 0 where the first one needs more than that.
unsigned TxQueue::post_chain(const std::uint8_t* headers, const iovec* datagrams, unsigned count) noexcept {
    if (__builtin_expect(log::enabled(log::Level::finer), 0)) return 0;  // one by one, for the log
    if ((buffers_.free() < count || buffers_.full(count)) && !make_room(count)) return 0;
    UdpChain chain;
    const unsigned made = chain.build(buffers_, {offload_from_, max_inline_, signal_every_}, unsignalled_,
                                      headers, datagrams, count);
    if (made == 0) return 0;
    ibv_send_wr* refused = nullptr;
    const int error = ibv_post_send(qp_, chain.list(), &refused);
    const unsigned went = __builtin_expect(error == 0, 1) ? made : chain.before(refused);
    for (unsigned i = 0; i < went; i++) unsignalled_ = chain.asks_for_completion(i) ? 0 : unsignalled_ + 1;
    stats::add(counters_.tx_frames, went);
    stats::add(counters_.tx_bytes, chain.bytes(went));
    chain.posted(buffers_, went, made);
    if (lazy_ && went != 0) in_burst_.store(true, std::memory_order_relaxed);
    return went;
}

int TxQueue::send_tcp(const std::uint8_t* headers, std::size_t header_length, const iovec* iov,
                      std::size_t count, std::size_t length) noexcept {
    if (gathering_.load(std::memory_order_relaxed) != 0 && tso_.available())
        if (int error = 0; gather_segment(headers, header_length, iov, count, length, error)) return error;
    return send_frame(headers, header_length, iov, count, length, TcpSums{header_length, length});
}

// True: the segment was kept, or `error` says why not. False: it is to be sent as it is.
bool TxQueue::gather_segment(const std::uint8_t* headers, std::size_t header_length, const iovec* iov,
                             std::size_t count, std::size_t length, int& error) noexcept {
    const std::uint32_t room = buffers_.room();
    const bool in_place = tso_.in_place();
    if (length == 0 || count > kMaxPieces) return false;
    if (in_place ? gatherer_.load(std::memory_order_relaxed) != thread_number()
                 : header_length + length > room * std::min<std::size_t>(kMaxPieces, tso_.max_pieces()))
        return false;
    if (!lock()) {
        error = EBUSY;
        return true;
    }
    Hold hold(*this);
    if (!tso_.waiting() || !tso_.continues(buffers_, headers, header_length, count, length)) {
        if (tso_.waiting()) send_gathered();
        if (gathering_.load(std::memory_order_relaxed) == 0)
            return false;  // another thread's gathering ended
        if (!in_place && !make_room(static_cast<std::uint32_t>((header_length + length + room - 1) / room))) {
            error = ENOBUFS;
            return true;
        }
        tso_.begin(buffers_, headers, header_length, length);
    }
    tso_.add(buffers_, headers, iov, count, length);
    hold.attend();
    return true;
}

// Posts what tso_ has. If the queue stays full it is lost, and TCP will find out. With lock_ held.
void TxQueue::send_gathered() noexcept {
    if (tso_.in_place() && tso_.segments() == 1) {
        std::array<iovec, kMaxPieces> iov;
        const Tso::Lone lone = tso_.take_lone(iov);
        if (post_frame(lone.headers, lone.header_length, iov.data(), lone.count, lone.length,
                       TcpSums{lone.header_length, lone.length}) != 0)
            stats::add(counters_.tx_lost, 1);
        return;
    }
    ibv_send_wr wr{};
    const Tso::Request request = tso_.finish(buffers_, max_inline_, wr);
    if (tso_.in_place() ? post_in_place(wr) != 0 : post(wr, request.pieces) != 0) {
        stats::add(counters_.tx_lost, request.segments);
        return;
    }
    if (__builtin_expect(log::enabled(log::Level::finer), 0))
        log_frame(device_->attr().name, "sends", {request.headers, request.header_length},
                  request.header_length + request.payload, net::Drop::none);
    stats::add(counters_.tx_frames, request.segments);
    stats::add(counters_.tx_bytes, request.payload + std::uint64_t{request.segments} * request.header_length);
    if (buffers_.under_way() >= 2 * signal_every_) reap();
}

}  // namespace vma::ring
