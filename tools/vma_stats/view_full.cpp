// SPDX-License-Identifier: BSD-2-Clause
// View 3: everything. See views.h. Lines of the manual's example 3 keep its words. As in the manual, traffic
// lines with nothing but zeros are left out.
#include <fmt/format.h>
#include <sys/socket.h>

#include "tools/vma_stats/fields.h"
#include "tools/vma_stats/text.h"
#include "tools/vma_stats/views.h"

namespace vma_stats {
namespace {

constexpr const char* kRule = "======================================================\n";

class FullView {
  public:
    FullView(const Frame& frame, const Shape& shape)
        : frame_(frame), shape_(shape), shown_(frame.shown(shape.deltas)), s_(shape.deltas ? "/s" : "") {}

    std::string text() {
        for (const auto& row : shown_.sockets)
            if (shape_.sockets.contains(row.block.fd)) socket(row.block);
        for (const auto& line : mux_lines(frame_, shape_.deltas)) out_ += line;
        for (const auto& row : shown_.rings) completion_queue(row);
        for (const auto& row : shown_.rings) ring(row);
        for (const auto& row : shown_.pools) pool(row);
        out_ += kRule;
        process();
        return std::move(out_);
    }

  private:
    template <class... Args>
    void line(fmt::format_string<Args...> format, Args&&... args) {
        out_ += fmt::format(format, std::forward<Args>(args)...) + "\n";
    }
    std::uint64_t number(std::uint64_t value) const {
        return shape_.deltas ? per_second(value, frame_.seconds) : value;
    }

    void traffic(const char* name, const layout::Traffic& t) {
        if (t.packets == 0 && t.bytes == 0 && t.eagain == 0 && t.errors == 0) return;
        line("{}: {} KB / {} / {} / {} [bytes/packets/eagains/errors]{}", name, number(t.bytes) / 1024,
             number(t.packets), number(t.eagain), number(t.errors), s_);
    }

    void way(const char* direction, std::uint8_t path_value, std::uint16_t reason_value) {
        const auto kind = static_cast<layout::Path>(path_value);
        if (kind == layout::Path::offloaded)
            line("- {}: offloaded", direction);
        else
            line("- {}: {} ({})", direction, path(path_value), reason(reason_value));
    }

    void socket(const layout::SocketBlock& s) {
        out_ += kRule;
        line("Fd=[{}]", s.fd);
        line("- {}{}{}", s.blocking == 1 ? "Blocked" : "Non-blocked",
             (s.type & 0xf) == SOCK_DGRAM
                 ? (s.multicast_loop != 0 ? ", MC Loop Enabled" : ", MC Loop Disabled")
                 : "",
             s.state == 2 ? ", closed by the program" : "");
        line("- {}{}{}", protocol(s), tcp_state(s.tcp_state).empty() ? "" : ", ", tcp_state(s.tcp_state));
        line("- Bound IF = [{}]", s.local.family == 0 ? "0.0.0.0:0" : endpoint(s.local));
        if (s.peer.family != 0) line("- Foreign Address = [{}]", endpoint(s.peer));
        if (const auto& m = s.multicast_interface; m[0] != 0 || m[1] != 0 || m[2] != 0 || m[3] != 0)
            line("- MC IF = [{}.{}.{}.{}]", m[0], m[1], m[2], m[3]);
        for (const auto& group : shown_.groups)
            if (group.block.socket_id == s.id && s.id != 0)
                line("- Member of = [{}]", host(group.block.group));
        way("Receives", s.rx_path, s.rx_reason);
        way("Sends", s.tx_path, s.tx_reason);
        if (const std::string rule = vma_stats::text(s.rule); !rule.empty()) line("- Rule = [{}]", rule);
        if (const std::string detail = vma_stats::text(s.detail); !detail.empty())
            line("- Detail = [{}]", detail);
        if (s.ring >= 0) line("- Ring = [{}] on {}", s.ring, vma_stats::text(s.device));
        if (s.rx_thread != 0) line("- Rx thread id = {}", s.rx_thread);
        if (s.tx_thread != 0) line("- Tx thread id = {}", s.tx_thread);
        traffic("Tx Offload", s.tx_offload);
        traffic("Tx OS info", s.tx_os);
        if (s.tx_dummy != 0) line("Tx Dummy messages: {}{}", number(s.tx_dummy), s_);
        traffic("Rx Offload", s.rx_offload);
        traffic("Rx OS info", s.rx_os);
        line("Rx byte: cur {} / max {} / dropped{} {} / limit {}", s.rx_queue_bytes, s.rx_queue_max_bytes, s_,
             number(s.rx_drop_bytes), s.rx_queue_limit);
        line("Rx pkt : cur {} / max {} / dropped{} {}", s.rx_queue_packets, s.rx_queue_max_packets, s_,
             number(s.rx_drop_packets));
        if (s.tx_queue_limit != 0) line("Tx byte: cur {} / limit {}", s.tx_queue_bytes, s.tx_queue_limit);
        if (s.rx_poll_hit != 0 || s.rx_poll_miss != 0)
            line("Rx poll: {} / {} ({:.2f}%) [miss/hit]{}", number(s.rx_poll_miss), number(s.rx_poll_hit),
                 percent(s.rx_poll_hit, s.rx_poll_miss), s_);
        if (s.extra_polled_packets != 0)
            line("SocketXtreme: {} packets{}", number(s.extra_polled_packets), s_);
        if (s.extra_held_packets != 0)
            line("Extra API: {} packets held, {} bytes of the receive buffer", s.extra_held_packets,
                 s.extra_held_bytes);
        if (s.extra_callback_dropped + s.extra_callback_received + s.extra_callback_held != 0)
            line("Callback: {} / {} / {} [dropped/received/held]{}", number(s.extra_callback_dropped),
                 number(s.extra_callback_received), number(s.extra_callback_held), s_);
        if (s.ring_migrations != 0) line("Ring migrations: {}{}", number(s.ring_migrations), s_);
        if ((s.type & 0xf) == SOCK_STREAM) tcp(s);
    }

    void tcp(const layout::SocketBlock& s) {
        constexpr std::uint32_t kListen = 10;
        if (s.tcp_state == kListen) {
            line("Listen: accepted {} / waiting {} / overflows {} / dropped SYNs {}{}",
                 number(s.tcp_accepted), s.tcp_accept_queue, number(s.tcp_accept_overflows),
                 number(s.tcp_syn_dropped), s_);
            return;
        }
        line("Segments: {} / {} [in/out]{}", number(s.tcp_segments_in), number(s.tcp_segments_out), s_);
        line("Retransmissions: {}{}", number(s.tcp_retransmits), s_);
        line("Timeouts: {} / fast recoveries {} / tail probes {} / duplicate ACKs {} / out of order {}{}",
             number(s.tcp_timeouts), number(s.tcp_fast_recoveries), number(s.tcp_tail_probes),
             number(s.tcp_dup_acks_in), number(s.tcp_out_of_order), s_);
        line("RTT: {} +- {} us / RTO {} us", s.tcp_rtt_us, s.tcp_rttvar_us, s.tcp_rto_us);
        line("Window: cwnd {} / ssthresh {} / peer's {} / MSS {}", s.tcp_cwnd_bytes, s.tcp_ssthresh_bytes,
             s.tcp_send_window, s.tcp_mss);
    }

    void count(const char* name, std::uint64_t value) {
        line("{:<25} {}{}{}", name, number(value), *s_ != '\0' ? " " : "", s_);
    }
    void level(const char* name, std::uint64_t value) { line("{:<25} {}", name, value); }
    void count_some(const char* name, std::uint64_t value) {
        if (value != 0) count(name, value);
    }

    void completion_queue(const Row<layout::RingBlock>& row) {
        const layout::RingBlock& r = row.block;
        out_ += kRule;
        line("CQ=[{}]", row.number);
        count("Packets dropped:", r.cq_dropped);
        level("Packets queue len:", r.cq_queue_length);
        level("Drained max:", r.cq_drained_max);
        level("Buffer pool size:", r.cq_posted);
    }

    void ring(const Row<layout::RingBlock>& row) {
        const layout::RingBlock& r = row.block;
        out_ += kRule;
        line("RING=[{}]", row.number);
        line("- {} by {}", vma_stats::text(r.interface), vma_stats::text(r.device));
        if (r.details[0] != '\0') line("- {}", vma_stats::text(r.details));
        if (r.logic != 0)
            line("- Number {} for {}, allocation logic {}, sockets {}", r.lane, vma_stats::text(r.owner),
                 r.logic, r.sockets);
        count("Packets count:", r.rx_packets);
        count("Packets bytes:", r.rx_bytes);
        count("Tx packets count:", r.tx_packets);
        count("Tx packets bytes:", r.tx_bytes);
        count_some("Retransmissions:", r.tx_retransmits);
        count_some("Tx no buffer:", r.tx_no_buffer);
        count_some("Tx errors:", r.tx_error);
        count_some("Tx lost by errors:", r.tx_lost);
        count_some("Recoveries:", r.recoveries);
        count_some("Given to the kernel:", r.rx_to_kernel);
        count_some("By way of the kernel:", r.rx_strays);
        count_some("Flows moved here:", r.migrations);
        count_some("Receive lock taken:", r.rx_lock_waits);
        count_some("Send lock taken:", r.tx_lock_waits);
        count_some("Device's locks taken:", r.device_lock_waits);
        count("Interrupt requests:", r.interrupts_requested);
        count("Interrupt received:", r.interrupts_received);
        level("Moderation frame count:", r.moderation_count);
        level("Moderation usec period:", r.moderation_period_us);
        level("Flow rules:", r.rules);
        level("Tx free:", r.tx_free);
        for (unsigned i = 0; i < layout::kRingDrops; i++)
            if (r.drops[i] != 0) count(fmt::format("Dropped, {}:", drop_name(i)).c_str(), r.drops[i]);
    }

    void pool(const Row<layout::PoolBlock>& row) {
        const layout::PoolBlock& p = row.block;
        out_ += kRule;
        line("BUFFER_POOL({})=[{}]", p.direction == 0 ? "Rx" : "Tx", row.number);
        if (p.ring >= 0) line("- Ring = [{}]", p.ring);
        level("Size:", p.free);
        level("Buffers:", p.buffers);
        level("Buffer bytes:", p.buffer_bytes);
        count("No buffers error:", p.no_buffer);
    }

    void process() {
        const layout::Header& h = shown_.header;
        line("Process {} {}, libvma {}, log level {}, details {}", h.pid, vma_stats::text(h.program),
             vma_stats::text(h.library), h.log_level, h.log_details);
        if (h.sockets_unseen != 0)
            line("Sockets without statistics of their own (VMA_STATS_FD_NUM): {}", h.sockets_unseen);
        out_ += kRule;
    }

    const Frame& frame_;
    const Shape& shape_;
    const Snapshot& shown_;
    const char* s_;
    std::string out_;
};

}  // namespace

std::string full_view(const Frame& frame, const Shape& shape) { return FullView(frame, shape).text(); }

}  // namespace vma_stats
