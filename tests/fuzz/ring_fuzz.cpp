// SPDX-License-Identifier: BSD-2-Clause
// A ring between a device that keeps verbs' rules and nothing else, and sinks that give buffers back in any
// order. What the device completes has any content: frames in one piece or in many, pieces that are empty or
// never end, errors in the midst of a frame, tags of no rule, headers that lie. It refuses receives and
// sends, stops with an error on either side, gives its requests back or loses them, and recovers or does not.
//
// The account of buffers has to be right at each moment: nothing is posted that a sink holds, or that is
// posted already, and in the end all are back.
//
// Input: options, then operations of a byte and their arguments.
#include <algorithm>
#include <deque>
#include <set>
#include <vector>

#include "libvma/net/checksum.h"
#include "libvma/ring/ring.h"
#include "libvma/runtime/log.h"
#include "libvma/verbs/software_device.h"
#include "tests/fuzz/input.h"
#include "tests/support/attacker/segment.h"

using namespace vma;

namespace {

constexpr std::uint32_t kChunk = 2048, kOffset = 256, kReceives = 128, kSends = 64;
constexpr std::uint16_t kDatagramsType = 0x88b5;
constexpr std::size_t kRxBuffers = 2 * kReceives;  // the ring takes as many again as may be posted

// Who has a receive buffer.
enum class Place : std::uint8_t { ring, device, sink };

class Device final : public verbs::SoftwareDevice {
  public:
    explicit Device(std::uint8_t how) {
        attr_.name = "fuzz";
        attr_.mtu = 9000;
        attr_.mac = {2, 0, 0, 0, 0, 1};
        attr_.chunk_size = kChunk;
        attr_.rx_offset = kOffset;
        attr_.max_send_sge = 17;
        attr_.max_send_wr = kSends;
        attr_.max_recv_wr = kReceives;
        attr_.recv_wr_hint = how & 1 ? 16 : 0;
        attr_.flow_tags = 4;
        attr_.level_events = true;
        attr_.partial_sums = how & 2;
        attr_.tx_checksum = how & 4;
        attr_.max_inline = how & 8 ? 128 : 0;
        attr_.max_tso = how & 16 ? 16000 : 0;
        attr_.datagrams_type = how & 64 ? kDatagramsType : 0;
        attr_.max_tso_sge = attr_.max_send_sge;
        loses = how & 32;
        set_calls({&Device::post_send, &Device::post_recv, &Device::poll_cq, [](ibv_cq*, int) { return 0; }});
    }
    Result<ibv_mr*> reg_mr(void* address, std::size_t length) override {
        FUZZ_CHECK(length / kChunk >= kRxBuffers + kSends);
        places.assign(kRxBuffers, Place::ring);
        return fill_mr(address, length);
    }
    Result<ibv_comp_channel*> create_comp_channel() override { return fill_channel(-1); }
    Result<ibv_qp*> create_qp(const ibv_qp_init_attr& init) override { return fill_qp(init); }
    Result<verbs::Flow*> create_flow(ibv_qp*, const verbs::FlowSpec& spec, std::uint32_t) override {
        return new verbs::Flow{spec};
    }
    void destroy_flow(verbs::Flow* flow) noexcept override { delete flow; }
    void stop(ibv_qp*) noexcept override {
        stopped_ = true;
        if (loses) return;
        while (!posted.empty()) complete({}, 0, 0, IBV_WC_WR_FLUSH_ERR);
        while (!sends_.empty()) complete_send(IBV_WC_WR_FLUSH_ERR);
    }
    void give_up_flows() noexcept override {
        in_flight_.clear();
    }  // the ring has failed, and no adapter reads its memory
    bool recover(ibv_qp*) noexcept override {
        if (refuses_recovery) return false;
        stopped_ = false;
        for (const auto& [id, address] : posted) places[id] = Place::ring;
        posted.clear();
        if (loses) {
            for (const ibv_wc& wc : done) places[wc.wr_id] = Place::ring;
            done.clear();
            sent_.clear();
        }
        sends_.clear();
        in_flight_.clear();
        return true;
    }

    // The next posted buffer holds `bytes`; its completion says so, or `status`.
    void complete(std::span<const std::uint8_t> bytes, unsigned flags, std::uint32_t tag,
                  ibv_wc_status status) {
        if (posted.empty()) return;
        const auto [id, address] = posted.front();
        posted.pop_front();
        const std::size_t n = std::min<std::size_t>(bytes.size(), kChunk - kOffset);
        if (n != 0) memcpy(reinterpret_cast<void*>(address + kOffset), bytes.data(), n);
        ibv_wc wc{};
        wc.wr_id = id;
        wc.status = status;
        wc.byte_len = static_cast<std::uint32_t>(n);
        wc.wc_flags = flags;
        if (tag != 0) verbs::set_flow_tag(wc, tag);
        done.push_back(wc);
        if (status != IBV_WC_SUCCESS) stopped_ = true;
    }
    void complete_send(ibv_wc_status status) {
        if (sends_.empty()) return;
        const Send send = std::move(sends_.front());
        sends_.pop_front();
        for (const std::uint64_t chunk : send.chunks) in_flight_.erase(chunk);
        if (status != IBV_WC_SUCCESS) stopped_ = true;
        if (status == IBV_WC_SUCCESS && !send.signalled) return;
        ibv_wc wc{};
        wc.wr_id = send.wr_id;
        wc.status = status;
        sent_.push_back(wc);
    }
    std::size_t sends() const { return sends_.size(); }
    const std::uint8_t* memory() const { return static_cast<const std::uint8_t*>(mr_.addr); }

    std::deque<std::pair<std::uint64_t, std::uint64_t>> posted;
    std::deque<ibv_wc> done;
    std::vector<Place> places;
    bool loses = false;  // what was under way when it stopped does not come back
    bool refuses_recovery = false;
    unsigned takes = ~0u;  // receives, before it refuses
    unsigned takes_sends = ~0u;

  private:
    struct Send {
        std::uint64_t wr_id;
        bool signalled;
        std::vector<std::uint64_t> chunks;
    };

    static int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
        auto& d = device_of<Device>(qp->context);
        *bad = wr;
        FUZZ_CHECK(wr->next == nullptr);
        if (d.takes_sends == 0 || d.sends_.size() + d.sent_.size() >= kSends)
            return d.takes_sends == 0 ? EIO : ENOMEM;
        d.takes_sends--;
        Send send{wr->wr_id, (wr->send_flags & IBV_SEND_SIGNALED) != 0, {}};
        FUZZ_CHECK(wr->num_sge >= 1 && wr->num_sge <= 17);
        for (int i = 0; i < wr->num_sge; i++) {
            const ibv_sge& sge = wr->sg_list[i];
            const std::uint64_t chunk = (sge.addr - reinterpret_cast<std::uintptr_t>(d.mr_.addr)) / kChunk;
            FUZZ_CHECK(chunk >= kRxBuffers && chunk < kRxBuffers + kSends);
            FUZZ_CHECK(sge.addr % kChunk + sge.length <= kChunk);
            FUZZ_CHECK(!d.in_flight_.contains(chunk));
            if (wr->send_flags & IBV_SEND_INLINE) continue;
            d.in_flight_.insert(chunk);
            send.chunks.push_back(chunk);
        }
        d.sends_.push_back(std::move(send));
        if (d.stopped_) d.complete_send(IBV_WC_WR_FLUSH_ERR);
        return 0;
    }
    static int post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
        auto& d = device_of<Device>(qp->context);
        for (; wr != nullptr; wr = wr->next) {
            *bad = wr;
            if (d.takes == 0 || d.posted.size() + d.done.size() >= kReceives) return ENOMEM;
            d.takes--;
            FUZZ_CHECK(wr->wr_id < kRxBuffers && d.places[wr->wr_id] == Place::ring);
            FUZZ_CHECK(wr->sg_list->addr ==
                       reinterpret_cast<std::uintptr_t>(d.mr_.addr) + wr->wr_id * kChunk);
            d.places[wr->wr_id] = Place::device;
            d.posted.emplace_back(wr->wr_id, wr->sg_list->addr);
            if (d.stopped_ && !d.loses) d.complete({}, 0, 0, IBV_WC_WR_FLUSH_ERR);
        }
        return 0;
    }
    static int poll_cq(ibv_cq* cq, int count, ibv_wc* wc) {
        auto& d = device_of<Device>(cq->context);
        std::deque<ibv_wc>& from = cq == &d.recv_cq_ ? d.done : d.sent_;
        int n = 0;
        for (; n < count && !from.empty(); n++) {
            wc[n] = from.front();
            from.pop_front();
            if (cq == &d.recv_cq_) d.places[wc[n].wr_id] = Place::ring;
        }
        return n;
    }

    std::deque<Send> sends_;
    std::deque<ibv_wc> sent_;
    std::set<std::uint64_t> in_flight_;  // chunks
    bool stopped_ = false;
};

const in_addr_t kHost = inet_addr("198.18.0.1"), kPeer = inet_addr("198.18.0.2");

// Keeps what it gets, and its places in `device`.
struct Sink final : ring::FrameSink {
    explicit Sink(Device& d) : device(d) {}
    bool deliver(ring::RxBuffer* b) noexcept override {
        if (refuses) return false;
        std::vector<char> bytes(b->payload_length);
        const iovec iov{bytes.data(), bytes.size()};
        FUZZ_CHECK(b->copy_to(&iov, 1) == bytes.size());
        FUZZ_CHECK(b->l4_offset + 8u <= b->payload_offset);
        ring::Ring& ring = *b->ring;
        if (copies && ring.should_copy(static_cast<std::uint32_t>(held.size()))) {
            ring::RxBuffer* copy = ring.swap_for_copy(b, queued);
            if (copy == nullptr) return false;
            b = copy;
        }
        queued += b->payload_length;
        held.push_back(b);
        mark(*b, Place::sink);
        if (in_turn && held.size() > 1) give_back(0);
        ring.at_batch_end(this);
        if (leaves) ring.detach_soon(spec, this, true);
        return true;
    }
    void batch_end(ring::Ring& ring) noexcept override {
        if (!answers) return;
        std::uint8_t headers[net::kUdpHeaders]{};
        const iovec iov{headers, sizeof headers};
        (void)ring.send_udp(headers, &iov, 1, sizeof headers);
    }
    void detached(ring::Ring&) noexcept override { attached = false; }
    void give_back(std::size_t which) {
        ring::RxBuffer* b = held[which];
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
        queued -= b->payload_length;
        mark(*b, Place::ring);
        b->release();
    }
    void mark(const ring::RxBuffer& first, Place place) {
        if (first.kind == ring::RxBuffer::Kind::copy) return;
        for (const ring::RxBuffer* b = &first; b != nullptr; b = b->more) {
            Place& at = device.places[static_cast<std::size_t>(b->frame - memory) / kChunk];
            FUZZ_CHECK(at == (place == Place::sink ? Place::ring : Place::sink));
            at = place;
        }
    }

    Device& device;
    const std::uint8_t* memory = nullptr;
    verbs::FlowSpec spec;
    std::vector<ring::RxBuffer*> held;
    std::uint64_t queued = 0;
    bool attached = false;
    bool refuses = false, copies = false, in_turn = false, answers = false, leaves = false;
};

// The frame of a datagram without a sum, or of a segment.
std::vector<std::uint8_t> frame(bool udp, std::uint16_t port, std::size_t length) {
    attacker::Segment s;
    s.from = kPeer;
    s.to = kHost;
    s.from_port = port;
    s.to_port = 90;
    s.flags = attacker::kAck;
    s.payload.assign(length, 'p');
    std::vector<std::uint8_t> bytes = attacker::build(s, {2, 0, 0, 0, 0, 2}, {2, 0, 0, 0, 0, 1});
    if (!udp) return bytes;
    bytes.erase(bytes.begin() + 34 + 8, bytes.begin() + 34 + 20);
    const std::size_t datagram = 8 + length, packet = 20 + datagram;
    const std::uint8_t ip[4] = {static_cast<std::uint8_t>(packet >> 8), static_cast<std::uint8_t>(packet)};
    memcpy(&bytes[16], ip, 2);
    bytes[23] = IPPROTO_UDP;
    bytes[24] = bytes[25] = 0;
    const std::uint16_t sum =
        static_cast<std::uint16_t>(~net::checksum_fold(net::checksum_add(&bytes[14], 20, 0)));
    memcpy(&bytes[24], &sum, 2);
    bytes[38] = static_cast<std::uint8_t>(datagram >> 8);
    bytes[39] = static_cast<std::uint8_t>(datagram);
    bytes[40] = bytes[41] = 0;
    return bytes;
}

class Run {
  public:
    Run(const std::uint8_t* data, std::size_t size) : in(data, size) {
        auto made = std::make_unique<Device>(in.take<std::uint8_t>());
        device = made.get();
        auto created = ring::Ring::create(std::move(made), {.max_copied = 20'000, .huge_pages = false});
        FUZZ_CHECK(created.has_value());
        ring = std::move(*created);
        const verbs::FlowSpec specs[3] = {{IPPROTO_TCP, kHost, htons(90), 0, 0},
                                          {IPPROTO_UDP, kHost, htons(90), 0, 0},
                                          {IPPROTO_TCP, kHost, htons(90), kPeer, htons(1001)}};
        for (int i = 0; i < 3; i++) {
            sinks.push_back(std::make_unique<Sink>(*device));
            sinks[i]->spec = specs[i];
            sinks[i]->memory = device->memory();
            sinks[i]->copies = i == 1;
            attach(*sinks[i]);
        }
    }

    void run() {
        for (int i = 0; i < 300 && !in.rest().empty(); i++) {
            operation(in.take<std::uint8_t>());
            if (i % 8 == 7) check_counts();
        }
        finish();
    }

  private:
    void attach(Sink& s) {
        if (s.attached) return;
        s.leaves = false;
        s.attached = ring->attach(s.spec, &s, ring::Share::latest).has_value();
        FUZZ_CHECK(s.attached || ring->failed());
    }

    void operation(std::uint8_t op) {
        Sink& sink = *sinks[(op >> 3) % sinks.size()];
        switch (op % 8) {
            case 0:
            case 1:
                receive(op);
                break;
            case 2: {  // any bytes
                std::vector<std::uint8_t> bytes(
                    std::min<std::size_t>(in.take<std::uint8_t>(), in.rest().size()));
                for (auto& b : bytes) b = in.take<std::uint8_t>();
                device->complete(bytes, op & 8 ? verbs::kWcMore : 0, op & 16 ? op >> 5 : 0, IBV_WC_SUCCESS);
                break;
            }
            case 3:  // an error: of a receive, or of a send
                if (op & 8)
                    device->complete({}, op & 16 ? verbs::kWcMore : 0, 0, IBV_WC_LOC_LEN_ERR);
                else if (op & 16)
                    device->complete_send(IBV_WC_REM_OP_ERR);
                else
                    for (unsigned n = 1u + (op >> 5) * 8; n != 0; n--) device->complete_send(IBV_WC_SUCCESS);
                break;
            case 4:  // owners give back
                for (unsigned n = 1u + (op >> 5); n != 0 && !sink.held.empty(); n--)
                    sink.give_back(in.take<std::uint8_t>() % sink.held.size());
                break;
            case 5: {
                const auto what = in.take<std::uint8_t>();
                sink.refuses = what & 1;
                sink.in_turn = what & 2;
                sink.answers = what & 4;
                sink.leaves = what & 8;
                if (what & 16) attach(sink);
                device->refuses_recovery = what & 32 && what & 1;
                device->takes = what & 64 ? op >> 4 : ~0u;
                device->takes_sends = what & 128 ? op >> 4 : ~0u;
                if (what == 0) ring->detach(sink.spec, &sink), sink.attached = false;
                break;
            }
            case 6:
                send(op);
                break;
            default:
                if (op & 8) ring->check();
                if (op & 16)
                    ring->expect(op & 32 ? 64 : -64);
                else
                    (void)ring->poll();
        }
    }

    // A frame whose beginning is right, perhaps in pieces.
    void receive(std::uint8_t op) {
        const auto length = in.take<std::uint16_t>(), cut = in.take<std::uint16_t>();
        std::vector<std::uint8_t> bytes =
            frame(op & 1, 1000u + (length & 1), length % (op & 16 ? 9000u : 1500u));
        if (device->attr().datagrams_type != 0 && (op & 1) && (length & 2)) {  // a super-frame of datagrams
            bytes[12] = kDatagramsType >> 8;
            bytes[13] = kDatagramsType & 0xff;
            const std::uint16_t each = cut % 2000;
            memcpy(&bytes[40], &each, sizeof each);
        }
        if (op & 8) {  // its headers lie
            const auto at = in.take<std::uint8_t>();
            bytes[at % bytes.size()] = in.take<std::uint8_t>();
            bytes[14 + at % 28] ^= in.take<std::uint8_t>();
        }
        const std::size_t step = op & 16 ? cut % 1700 : kChunk - kOffset;
        const std::uint32_t tag = op & 32 ? cut & 7 : 0;
        const unsigned good = op & 64 ? IBV_WC_IP_CSUM_OK : 0;
        std::size_t at = 0;
        for (int pieces = 0; pieces < 80; pieces++) {
            const std::size_t n = std::min(step, bytes.size() - at);
            const bool last = at + n >= bytes.size() && !(op & 128);
            device->complete(std::span(bytes).subspan(at, n), good | (last ? 0 : verbs::kWcMore), tag,
                             IBV_WC_SUCCESS);
            at += n;
            if (last || (n == 0 && pieces > (cut >> 11))) break;
        }
    }

    void send(std::uint8_t op) {
        const auto length = in.take<std::uint16_t>();
        const std::size_t n = length % (op & 8 ? 8000u : 200u);
        const iovec iov[2] = {{payload.data(), n / 2}, {payload.data() + n / 2, n - n / 2}};
        if (op & 16) {
            std::uint8_t headers[net::kUdpHeaders]{};
            (void)ring->send_udp(headers, iov, 2, n);
            return;
        }
        // Segments that follow one another.
        ring::Ring::Gather gather(op & 32 ? ring.get() : nullptr);
        for (unsigned i = 0; i <= op >> 6; i++) {
            std::uint8_t headers[54]{};
            headers[46] = 5 << 4;
            const std::uint32_t seq = htonl(next_seq);
            memcpy(headers + 38, &seq, 4);
            (void)ring->send_tcp(headers, sizeof headers, iov, 2, n);
            next_seq += static_cast<std::uint32_t>(n);
        }
    }

    std::size_t held() const {
        return static_cast<std::size_t>(
            std::count(device->places.begin(), device->places.end(), Place::sink));
    }
    void check_counts() {
        // Letting go of the ring recovers it where there was an error, and delivers what waits.
        const std::size_t before = held();
        const ring::BufferCounts counts = ring->buffer_counts();
        if (held() == before) FUZZ_CHECK(counts.rx_posted + counts.rx_free + before <= counts.rx_total);
        FUZZ_CHECK(counts.tx_free <= counts.tx_total);
    }

    void finish() {
        device->takes = device->takes_sends = ~0u;
        for (const auto& s : sinks) s->refuses = true;
        // A frame that is unfinished ends. Its end needs a buffer, which sinks may have.
        for (int i = 0; i < 3; i++) {
            for (const auto& s : sinks)
                while (!s->held.empty()) s->give_back(s->held.size() - 1);
            while (ring->poll() != 0) {
            }
            (void)ring->poll();
            device->complete({}, 0, 0, IBV_WC_SUCCESS);
        }
        while (ring->poll() != 0) {
        }
        while (device->sends() != 0) device->complete_send(IBV_WC_SUCCESS);
        for (const auto& s : sinks) {
            if (s->attached) ring->detach(s->spec, s.get());
        }
        (void)ring->buffer_counts();
        ring->check();
        const ring::BufferCounts counts = ring->buffer_counts();
        FUZZ_CHECK(ring->copied_bytes() == 0);
        FUZZ_CHECK(counts.tx_total - counts.tx_free <=
                   kSends / 4 + 17);  // a completion for a quarter of the requests
        if (ring->failed()) return;
        FUZZ_CHECK(counts.rx_posted + counts.rx_free == counts.rx_total);
        FUZZ_CHECK(counts.rx_posted == device->posted.size());
        FUZZ_CHECK(counts.rx_posted != 0);
    }

    fuzz::Input in;
    Device* device = nullptr;
    std::unique_ptr<ring::Ring> ring;
    std::vector<std::unique_ptr<Sink>> sinks;
    std::uint32_t next_seq = 1;
    static inline std::vector<std::uint8_t> payload = std::vector<std::uint8_t>(8192);
};

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
    log::set_level(log::Level::none);
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    Run(data, size).run();
    return 0;
}
