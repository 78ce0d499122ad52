// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/tcp/handshake/handshake_answers.h"

#include <errno.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "libvma/tcp/ecn.h"
#include "libvma/tcp/handshake/isn.h"
#include "libvma/tcp/handshake/listener.h"
#include "libvma/tcp/handshake/syn_cookie.h"
#include "libvma/tcp/lwip/entry.h"
#include "libvma/tcp/timers/time.h"

namespace vma::tcp {

std::uint16_t announced_mss(std::uint32_t mtu, const Options& options) noexcept {
    std::uint32_t mss = mtu > 40 + 88 ? mtu - 40 : 88;
    if (options.maxseg != 0) mss = std::min(mss, options.maxseg);
    return static_cast<std::uint16_t>(std::min<std::uint32_t>(mss, 0xffff - 40));
}

// By the route, if it may be looked up; else where the segment came from. So is a neighbour that is not
// resolved yet: it has just shown its link address. False: there is no way.
bool HandshakeAnswers::find_way(const ArrivedSegment& segment, const Options& options, bool look_up,
                                ReturnPath& way) noexcept {
    const ring::RxBuffer& b = *segment.buffer;
    way.ring = b.ring;
    const auto& ethernet = *reinterpret_cast<const net::EthernetHeader*>(b.frame);
    std::copy_n(ethernet.dst, way.src_mac.size(), way.src_mac.begin());
    std::copy_n(ethernet.src, way.dst_mac.size(), way.dst_mac.begin());
    std::uint32_t mtu = b.ring->attr().mtu;
    if (look_up) {
        Path path;
        net::PathOptions from = options.path;
        from.lane = b.ring->lane();
        const int error = paths_.find(segment.ends, from, path);
        if (error != -EAGAIN && (error != 0 || path.ring == nullptr)) return false;
        way.ecn = path.ecn;
        if (path.mtu != 0) known_mtu_.store(mtu = path.mtu, std::memory_order_relaxed);
        if (error == 0) {
            way.ring = path.ring;
            way.src_mac = path.src_mac;
            way.dst_mac = path.dst_mac;
        }
    } else if (const std::uint32_t known = known_mtu_.load(std::memory_order_relaxed); known != 0) {
        mtu = std::min(mtu, known);
    }
    way.mss = announced_mss(mtu, options);
    return ((way.dst_mac[0] | way.src_mac[0]) & 1) == 0;  // no group is a sender
}

void HandshakeAnswers::send_syn_ack(const Handshake& h, const ReturnPath& way, const Options& options,
                                    bool cookie, ring::Ring* asked) noexcept {
    const Time now = Clock::now();
    const std::uint32_t stamp =
        (cookie ? make_cookie_stamp(h.said, now) : milliseconds(now)) + timestamp_offset(h.ends);
    const auto window =
        static_cast<std::uint16_t>(std::min<std::uint32_t>(parameters_of(options, way.mss, 0).wnd, 0xffff));
    std::uint8_t bytes[kMaxHandshakeBytes];
    send(h.ends, way, options, bytes, write_syn_ack(h, way.mss, window, stamp, bytes), asked);
}

void HandshakeAnswers::send_ack(const Handshake& h, const ReturnPath& way, const Options& options,
                                ring::Ring* asked) noexcept {
    const std::uint32_t window = parameters_of(options, way.mss, 0).wnd >> (h.said.has_scale ? h.scale : 0);
    const std::uint32_t stamp = milliseconds(Clock::now()) + timestamp_offset(h.ends);
    std::uint8_t bytes[kMaxHandshakeBytes];
    send(h.ends, way, options, bytes,
         write_ack(h, static_cast<std::uint16_t>(std::min(window, 0xffffu)), stamp, bytes), asked);
}

void HandshakeAnswers::send(const net::Endpoints& ends, const ReturnPath& way, const Options& options,
                            const std::uint8_t* segment, std::size_t length, ring::Ring* asked) noexcept {
    Answer answer;
    answer.asked = asked;
    answer.by = way.ring;
    answer.length = kFrameHeaders + length;
    net::UdpTemplate t;
    t.src_mac = way.src_mac;
    t.dst_mac = way.dst_mac;
    t.src_addr = ends.local.address.v4();
    t.dst_addr = ends.remote.address.v4();
    t.tos = options.path.tos & static_cast<std::uint8_t>(~Ecn::kIpBits);
    t.ttl = options.path.ttl;
    t.dont_fragment = options.path.dont_fragment;
    net::build_ip_headers(t, IPPROTO_TCP, answer.bytes.data());
    std::memcpy(answer.bytes.data() + kFrameHeaders, segment, length);
    if (asked != nullptr) {
        bool first = false;
        if (!keep(answer, first)) {
            send_batch(*asked);  // the earlier ones leave earlier
            if (!keep(answer, first)) asked = nullptr;
        }
        if (first) {
            listener_.ref();  // until its batch_end()
            asked->at_batch_end(&listener_);
        }
    }
    if (asked == nullptr) (void)answer.by->send_tcp(answer.bytes.data(), answer.length, nullptr, 0, 0);
}

// Puts the answer on the list. `first`: it is its ring's only one there. False: the list is full.
bool HandshakeAnswers::keep(const Answer& answer, bool& first) noexcept {
    const std::lock_guard guard(lock_);
    if (count_ == list_.size()) return false;
    first = std::none_of(list_.begin(), list_.begin() + count_,
                         [&](const Answer& other) { return other.asked == answer.asked; });
    list_[count_++] = answer;
    return true;
}

// In the order of arrival: who has connected first is accepted first. A place in the middle stays empty until
// those behind it are, too.
bool HandshakeAnswers::take(const ring::Ring& asked, Answer& answer) noexcept {
    const std::lock_guard guard(lock_);
    const auto end = list_.begin() + count_;
    const auto found = std::find_if(list_.begin(), end, [&](const Answer& a) { return a.asked == &asked; });
    if (found == end) return false;
    answer = *found;
    found->asked = nullptr;
    while (count_ != 0 && list_[count_ - 1].asked == nullptr) count_--;
    return true;
}

// The answers to a batch's segments share a kick.
void HandshakeAnswers::send_batch(ring::Ring& asked) noexcept {
    ring::Ring::Gather gather(&asked);
    Answer answer;
    while (take(asked, answer)) (void)answer.by->send_tcp(answer.bytes.data(), answer.length, nullptr, 0, 0);
}

}  // namespace vma::tcp
