// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/sockets/tcp/defaults.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>

#include "libvma/config/params.h"
#include "libvma/os/calls.h"
#include "libvma/os/sysctl.h"
#include "libvma/runtime/errno_kept.h"
#include "libvma/sockets/tcp/system_settings.h"
#include "libvma/tcp/memory_bound.h"
#include "libvma/tcp/recovery/congestion.h"

namespace vma::sockets {
namespace {

// A window that large keeps 10 Gbit/s busy over 1.6 ms; more memory than that for one slow reader is not
// worth having.
constexpr std::uint32_t kMaxDefaultWindow = 2u << 20, kMinWindow = 4096;
constexpr std::int64_t kMinMss = 88, kMaxKernelMss = 32767;  // what TCP_MAXSEG takes

int option(int fd, int level, int name, int otherwise) noexcept {
    int value = otherwise;
    socklen_t len = sizeof value;
    return os::getsockopt(fd, level, name, &value, &len) == 0 ? value : otherwise;
}

// What the system, or the socket, has that the kernel looks at when it needs it.
void take_settings(int fd, const SystemSettings& system, tcp::Options& o) noexcept {
    const config::Params& params = config::get();
    auto count = [](long value, long most) { return static_cast<unsigned>(std::clamp(value, 0l, most)); };
    o.keep_idle = std::chrono::seconds(option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 7200));
    o.keep_interval = std::chrono::seconds(option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 75));
    o.keep_count = static_cast<unsigned>(option(fd, IPPROTO_TCP, TCP_KEEPCNT, 9));
    o.syn_retries = static_cast<unsigned>(option(fd, IPPROTO_TCP, TCP_SYNCNT, 6));
    o.linger2 = std::chrono::seconds(option(fd, IPPROTO_TCP, TCP_LINGER2, 60));
    // TCP_SYNCNT of a listener sets both.
    o.synack_retries =
        o.syn_retries != count(system.syn_retries, 255) ? o.syn_retries : count(system.synack_retries, 255);
    o.syn_linear_timeouts = count(system.syn_linear_timeouts, 127);
    o.syncookies = count(system.syncookies, 2);
    // From 3 on the kernel may speak accurate ECN; the library gives RFC 3168's form.
    o.ecn_asks = system.ecn == 1 || system.ecn == 3 || system.ecn == 4;
    o.ecn_answers = system.ecn != 0;
    o.ecn_fallback = system.ecn_fallback != 0;
    o.mtu_expires = std::chrono::seconds(system.mtu_expires);
    o.min_pmtu = count(system.min_pmtu, 0xffff);
    o.mtu_probing = count(system.mtu_probing, 2);
    o.base_mss = count(system.base_mss, 0xffff);
    o.mtu_probe_floor = count(system.mtu_probe_floor, 0xffff);
    o.invalid_ratelimit = clock::Msec(count(system.invalid_ratelimit, INT_MAX));
    o.retries1 = count(system.retries1, 255);
    o.retries2 = count(system.retries2, INT_MAX);
    o.orphan_retries = count(system.orphan_retries, 255);
    o.sack = system.sack != 0;
    o.dsack = system.dsack != 0;
    o.slow_start_after_idle = system.slow_start_after_idle != 0;
    o.window_scaling = params.window_scaling == -2 ? system.window_scaling != 0 : params.window_scaling >= 0;
    o.timestamps =
        params.tcp_timestamp_option == 2 ? system.timestamps != 0 : params.tcp_timestamp_option == 1;
    o.notsent_default = count(system.notsent_lowat, tcp::kNoLowat);
}

tcp::Options read_defaults(int fd) noexcept {
    tcp::Options o;
    const config::Params& params = config::get();
    o.path.tos = static_cast<std::uint8_t>(option(fd, IPPROTO_IP, IP_TOS, 0));
    o.path.ttl = static_cast<std::uint8_t>(option(fd, IPPROTO_IP, IP_TTL, 64));
    o.path.dont_fragment = forbids_fragments(option(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_WANT));
    o.settings = settings_number();
    take_settings(fd, system_settings(), o);
    o.nodelay = params.tcp_nodelay != 0;
    o.delayed_ack = clock::Msec(params.tcp_quickack != 0 ? 0 : params.tcp_delayed_ack_msec);
    long memory[3];
    const long largest = os::read_sysctl("ipv4/tcp_rmem", memory) == 3 ? memory[2] : 6 << 20;
    o.receive_window =
        static_cast<std::uint32_t>(std::clamp<long>(largest / 2, kMinWindow, kMaxDefaultWindow));
    o.receive_auto = true;
    // The largest window that the factor can announce. What scale is announced follows from the window.
    if (params.window_scaling >= 0)
        o.receive_window = std::min(o.receive_window, 0xffffu << params.window_scaling);
    if (params.mss != 0) o.maxseg = static_cast<std::uint32_t>(std::max(params.mss, kMinMss));
    char name[16] = "";
    socklen_t len = sizeof name;
    using tcp::CongestionAlgorithm;
    o.congestion = CongestionAlgorithm::cubic;
    if (os::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &len) == 0 &&
        strncmp(name, "reno", sizeof name) == 0)
        o.congestion = CongestionAlgorithm::newreno;
    switch (params.tcp_cc_algo) {
        case 0:
            o.congestion = CongestionAlgorithm::newreno;
            break;
        case 1:
            o.congestion = CongestionAlgorithm::cubic;
            break;
        case 2:
            o.congestion = CongestionAlgorithm::none;
            break;
        default:
            break;  // the kernel's
    }
    return o;
}

}  // namespace

tcp::Options default_tcp_options(int fd) noexcept {
    // Not a static variable with an initializer: a signal handler that makes a socket would wait for the
    // thread that it has interrupted. Who comes second reads them once more.
    static constinit std::atomic<const tcp::Options*> known{nullptr};
    const tcp::Options* options = known.load(std::memory_order_acquire);
    const ErrnoKept kept;
    if (options == nullptr) {
        tcp::memory_bound::set(static_cast<std::size_t>(config::get().tcp_mem));
        const tcp::Options fresh = read_defaults(fd);
        const auto* const mine = new (std::nothrow) tcp::Options(fresh);
        if (mine == nullptr) return fresh;  // the next socket tries again
        if (known.compare_exchange_strong(options, mine, std::memory_order_acq_rel)) return *mine;
        delete mine;
    }
    tcp::Options all = *options;
    follow_settings(fd, all);
    return all;
}

bool follow_settings(int fd, tcp::Options& options) noexcept {
    const std::uint32_t number = settings_number();
    if (__builtin_expect(number == options.settings, 1)) return false;
    const ErrnoKept kept;
    take_settings(fd, system_settings(), options);
    options.settings = number;
    return true;
}

void set_tcp_defaults_on(int fd) noexcept {
    const config::Params& params = config::get();
    int saved = errno, on = 1;
    if (params.tcp_nodelay != 0) os::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (params.tcp_quickack != 0) os::setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof on);
    if (params.mss != 0) {
        const int mss = static_cast<int>(std::clamp(params.mss, kMinMss, kMaxKernelMss));
        os::setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &mss, sizeof mss);
    }
    if (params.tcp_cc_algo == 0) os::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
    if (params.tcp_cc_algo == 1) os::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
    errno = saved;
}

unsigned somaxconn() noexcept {
    (void)settings_number();
    return static_cast<unsigned>(std::clamp<long>(system_settings().somaxconn, 0, 1 << 20));
}

// For TCP the kernel sets DF with these two only (ip_dont_fragment), not with IP_PMTUDISC_PROBE and what
// followed it.
bool forbids_fragments(int mtu_discover) noexcept {
    return mtu_discover == IP_PMTUDISC_WANT || mtu_discover == IP_PMTUDISC_DO;
}

// The kernel doubles what the program asks for, and gives half of the buffer to the window
// (net.ipv4.tcp_adv_win_scale 1).
std::uint32_t window_of_receive_buffer(int value) noexcept {
    return std::max(static_cast<std::uint32_t>(std::max(value, 0)) / 2, kMinWindow);
}

}  // namespace vma::sockets
