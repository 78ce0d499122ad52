// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/stats/report.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "libvma/config/params.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/runtime/pid_name.h"
#include "libvma/stats/counter.h"

namespace vma::stats {
namespace {

struct Row {
    const char* name;
    const Traffic& traffic;
};

double per_cent(std::uint64_t part, std::uint64_t whole) {
    return whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

std::string text_of(const Address& a) {
    if (a.family == 0) return "*:*";
    char text[INET6_ADDRSTRLEN] = "?";
    inet_ntop(a.family, a.bytes, text, sizeof text);
    return fmt::format("{}:{}", text, a.port);
}

std::string path_text(std::uint8_t path, std::uint16_t reason) {
    switch (static_cast<Path>(path)) {
        case Path::offloaded:
            return "offloaded";
        case Path::kernel:
            return fmt::format("kernel ({})", reason_text(static_cast<Reason>(reason)));
        case Path::closed:
            return "closed";
        case Path::undecided:
            break;
    }
    return "undecided";
}

const char* type_name(const SocketBlock& b) {
    return b.type == SOCK_STREAM ? "TCP" : b.type == SOCK_DGRAM ? "UDP" : "raw";
}

std::string decision(const SocketBlock& b) {
    std::string text = fmt::format("receive {}, send {}", path_text(b.rx_path, b.rx_reason),
                                   path_text(b.tx_path, b.tx_reason));
    if (const auto detail = stats::text_of(b.detail); !detail.empty()) text += fmt::format(", {}", detail);
    if (const auto rule = stats::text_of(b.rule); !rule.empty()) text += fmt::format(", rule: {}", rule);
    if (b.ring >= 0) text += fmt::format(", ring {} on {}", b.ring, stats::text_of(b.device));
    return text;
}

// Appends with one write(2). A limit on file sizes must not kill the program because of the library's lines.
void append(int fd, std::string_view text) noexcept {
    constexpr std::size_t kSetSize = 8;  // the kernel's sigset_t
    std::uint64_t block = 1ull << (SIGXFSZ - 1), before = 0, pending = 0;
    os::raw_syscall(SYS_rt_sigprocmask, SIG_BLOCK, &block, &before, kSetSize);
    os::raw_syscall(SYS_rt_sigpending, &pending, kSetSize);
    if (os::raw_syscall(SYS_write, fd, text.data(), text.size()) == -EFBIG && (pending & block) == 0) {
        timespec at_once{};
        os::raw_syscall(SYS_rt_sigtimedwait, &block, nullptr, &at_once, kSetSize);
    }
    os::raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, nullptr, kSetSize);
}

void write_file(const std::vector<std::string>& lines) {
    const std::string& name = config::get().stats_file;
    char path[4096];
    if (!expand_pid(name, os::raw_syscall(SYS_getpid), path, sizeof path)) {
        log::once(log::Level::warn, "VMA_STATS_FILE is too long");
        return;
    }
    const long fd =
        os::raw_syscall(SYS_openat, AT_FDCWD, static_cast<const char*>(path),
                        O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600);
    struct stat s {};
    const bool regular = fd >= 0 && os::raw_syscall(SYS_fstat, fd, &s) == 0 && S_ISREG(s.st_mode);
    if (regular) {
        std::string text;
        for (const std::string& line : lines) text += fmt::format("VMA: {}\n", line);
        append(static_cast<int>(fd), text);
    } else {
        log::once(log::Level::warn, "VMA_STATS_FILE=\"{}\" cannot be written: {}", name,
                  fd < 0 ? strerrordesc_np(static_cast<int>(-fd)) : "it is no ordinary file");
    }
    if (fd >= 0) os::raw_syscall(SYS_close, fd);
}

}  // namespace

std::vector<std::string> report_lines(const SocketBlock& b) {
    std::vector<std::string> lines;
    auto line = [&]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
        lines.push_back(fmt::format("[fd={}] {}", b.fd, fmt::format(format, std::forward<Args>(args)...)));
    };
    line("{} {} -> {}: {}", type_name(b), text_of(b.local), text_of(b.peer), decision(b));
    for (const Row& way : {Row{"Tx Offload", b.tx_offload}, Row{"Tx OS info", b.tx_os},
                           Row{"Rx Offload", b.rx_offload}, Row{"Rx OS info", b.rx_os}})
        line("{}: {} KB / {} / {} [bytes/packets/errors]", way.name, way.traffic.bytes / 1024,
             way.traffic.packets, way.traffic.errors);
    if (b.type == SOCK_DGRAM) {
        const std::uint64_t packets = b.rx_offload.packets + b.rx_drop_packets,
                            bytes = b.rx_offload.bytes + b.rx_drop_bytes;
        line("Rx byte: max {} / dropped {} ({:.2f}%) / limit {}", b.rx_queue_max_bytes, b.rx_drop_bytes,
             per_cent(b.rx_drop_bytes, bytes), b.rx_queue_limit);
        line("Rx pkt : max {} / dropped {} ({:.2f}%)", b.rx_queue_max_packets, b.rx_drop_packets,
             per_cent(b.rx_drop_packets, packets));
    }
    line("Rx poll: {} / {} ({:.2f}%) [miss/hit]", b.rx_poll_miss, b.rx_poll_hit,
         per_cent(b.rx_poll_hit, b.rx_poll_hit + b.rx_poll_miss));
    if (b.type == SOCK_STREAM) line("Retransmissions: {}", b.tcp_retransmits);
    return lines;
}

std::vector<std::string> dump_lines(const SocketBlock& b) {
    std::vector<std::string> lines;
    auto line = [&]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
        lines.push_back(fmt::format(format, std::forward<Args>(args)...));
    };
    line("Fd=[{}]", b.fd);
    line("- {}, {}, MC Loop {}, inode {}", type_name(b), b.blocking != 0 ? "Blocked" : "Non-blocked",
         b.multicast_loop != 0 ? "Enabled" : "Disabled", b.inode);
    line("- Local Address = [{}], Foreign Address = [{}]", text_of(b.local), text_of(b.peer));
    line("- {}", decision(b));
    line("- Thread ids of the last receiver and sender = [{}], [{}]", b.rx_thread, b.tx_thread);
    for (const Row& way : {Row{"Tx Offload", b.tx_offload}, Row{"Tx OS info", b.tx_os},
                           Row{"Rx Offload", b.rx_offload}, Row{"Rx OS info", b.rx_os}})
        line("{}: {} KB / {} / {} / {} [bytes/packets/eagains/errors]", way.name, way.traffic.bytes / 1024,
             way.traffic.packets, way.traffic.eagain, way.traffic.errors);
    line("Rx byte: cur {} / max {} / dropped {} / limit {}", b.rx_queue_bytes, b.rx_queue_max_bytes,
         b.rx_drop_bytes, b.rx_queue_limit);
    if (b.type == SOCK_DGRAM)
        line("Rx pkt : cur {} / max {} / dropped {}", b.rx_queue_packets, b.rx_queue_max_packets,
             b.rx_drop_packets);
    line("Rx poll: {} / {} ({:.2f}%) [miss/hit]", b.rx_poll_miss, b.rx_poll_hit,
         per_cent(b.rx_poll_hit, b.rx_poll_hit + b.rx_poll_miss));
    if (b.type == SOCK_STREAM) {
        line("Tx byte: cur {} / limit {}", b.tx_queue_bytes, b.tx_queue_limit);
        line(
            "State {}, retransmissions {}, timeouts {}, fast recoveries {}, tail probes {}, duplicate ACKs "
            "{}, out of order {}",
            b.tcp_state, b.tcp_retransmits, b.tcp_timeouts, b.tcp_fast_recoveries, b.tcp_tail_probes,
            b.tcp_dup_acks_in, b.tcp_out_of_order);
        line("RTT {} us +- {}, RTO {} us, cwnd {}, ssthresh {}, MSS {}, send window {}", b.tcp_rtt_us,
             b.tcp_rttvar_us, b.tcp_rto_us, b.tcp_cwnd_bytes, b.tcp_ssthresh_bytes, b.tcp_mss,
             b.tcp_send_window);
        if (b.tcp_accepted != 0 || b.tcp_state == 10)
            line("Accepted {}, waiting {}, held up by a full queue {}, half-open ones dropped {}",
                 b.tcp_accepted, b.tcp_accept_queue, b.tcp_accept_overflows, b.tcp_syn_dropped);
    }
    return lines;
}

bool reports_wanted() noexcept {
    return log::enabled(log::Level::debug) || !config::get().stats_file.empty();
}

void report(const SocketBlock& block) noexcept {
    const ErrnoKept kept;
    try {
        const auto lines = report_lines(block);
        if (!config::get().stats_file.empty()) write_file(lines);
        for (const std::string& line : lines) log::debug("{}", line);
    } catch (...) {
        // no memory for a report
    }
}

}  // namespace vma::stats
