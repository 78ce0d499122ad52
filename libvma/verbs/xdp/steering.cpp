// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/verbs/xdp/steering.h"

#include <fmt/format.h>
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "libvma/net/xdp_link.h"
#include "libvma/os/raw_syscall.h"
#include "libvma/runtime/clock.h"
#include "libvma/runtime/log.h"
#include "libvma/verbs/xdp/steer.h"
#include "libvma/verbs/xdp/steer_load.h"

namespace vma::verbs::xdp {
namespace {

// BPF_TCX_INGRESS: newer than Debian 12's headers (Linux 6.6).
constexpr auto kTcxIngress = 46;

// How long attach() waits for a program of another process. A program of this library goes any moment,
// another tool's stays. A process without CAP_SYS_ADMIN cannot tell which it is.
constexpr std::uint64_t kOurs = 1'000'000'000, kForeign = 20'000'000, kUnknown = 200'000'000;

void erase(int map, const void* key) noexcept {
    bpf_attr attr{};
    attr.map_fd = static_cast<std::uint32_t>(map);
    attr.key = reinterpret_cast<std::uintptr_t>(key);
    bpf(BPF_MAP_DELETE_ELEM, attr);
}

enum class Program { ours, foreign, unknown };

std::uint64_t patience(Program other) noexcept {
    return other == Program::ours ? kOurs : other == Program::foreign ? kForeign : kUnknown;
}

bpf_prog_info info_of(int program) noexcept {
    bpf_prog_info info{};
    bpf_attr attr{};
    attr.info.bpf_fd = static_cast<std::uint32_t>(program);
    attr.info.info_len = sizeof info;
    attr.info.info = reinterpret_cast<std::uintptr_t>(&info);
    if (bpf(BPF_OBJ_GET_INFO_BY_FD, attr) != 0) info = {};
    return info;
}

// Whose is the program with this id? One that has gone is foreign.
Program owner_of(std::uint32_t id) noexcept {
    bpf_attr attr{};
    attr.prog_id = id;
    const long fd = bpf(BPF_PROG_GET_FD_BY_ID, attr);
    if (fd < 0) return fd == -EPERM ? Program::unknown : Program::foreign;
    const bool same = info_of(static_cast<int>(fd)).name == kProgramName;
    os::raw_syscall(SYS_close, fd);
    return same ? Program::ours : Program::foreign;
}

// Whose XDP program does the netdev have? One that has just gone may have been anybody's.
Program xdp_program(int ifindex) {
    const std::uint32_t id = net::xdp_program(ifindex);
    return id == 0 ? Program::unknown : owner_of(id);
}

// Whose tcx programs does the netdev have? Foreign ones do not matter.
Program tcx_programs(int ifindex) noexcept {
    std::uint32_t ids[64]{};  // the kernel's limit
    bpf_attr attr{};
    attr.query.target_fd = static_cast<std::uint32_t>(ifindex);
    attr.query.attach_type = kTcxIngress;
    attr.query.prog_ids = reinterpret_cast<std::uintptr_t>(ids);
    attr.query.prog_cnt = std::size(ids);
    if (bpf(BPF_PROG_QUERY, attr) != 0) return Program::foreign;
    Program worst = Program::foreign;
    for (std::uint32_t i = 0; i < std::min<std::size_t>(attr.query.prog_cnt, std::size(ids)); i++) {
        const Program one = owner_of(ids[i]);
        if (one == Program::ours) return one;
        if (one == Program::unknown) worst = one;
    }
    return worst;
}

// A netdev may have several tcx programs, and the first one takes a frame. That of a process that is ending
// would swallow the frames of the next one with the same ports.
void await_predecessor(int ifindex) noexcept {
    const auto began = clock::monotonic_ns();
    for (;;) {
        const Program other = tcx_programs(ifindex);
        if (other == Program::foreign || clock::monotonic_ns() - began >= patience(other)) return;
        pause_msec();
    }
}

steer_five_tuple five(const FlowSpec& s) noexcept {
    return {.src_addr = s.src_addr,
            .dst_addr = s.dst_addr,
            .src_port = s.src_port,
            .dst_port = s.dst_port,
            .protocol = s.protocol};
}
steer_three_tuple three(const FlowSpec& s) noexcept {
    return {.dst_addr = s.dst_addr, .dst_port = s.dst_port, .protocol = s.protocol};
}

}  // namespace

void pause_msec() noexcept {
    timespec time{0, 1'000'000};
    os::raw_syscall(SYS_nanosleep, &time, 0);
}

const char* name_of(Mode mode) noexcept {
    switch (mode) {
        case Mode::drv:
            return "drv";
        case Mode::skb:
            return "skb";
        case Mode::tc:
            break;
    }
    return "tc";
}

Result<void> Steering::adopt(const SteerFds& loaded) {
    splits_ = loaded.splits;
    program_ = InternalFd(loaded.program);
    xsks_ = InternalFd(loaded.xsks);
    flows5_ = InternalFd(loaded.flows5);
    flows3_ = InternalFd(loaded.flows3);
    config_ = InternalFd(loaded.config);
    sources_ = InternalFd(loaded.sources);
    counts_fd_ = InternalFd(loaded.counts);
    rules_fd_ = InternalFd(loaded.rules);
    if (!program_ || !xsks_ || !flows5_ || !flows3_ || !config_ || !sources_ || !counts_fd_ || !rules_fd_)
        return fail(EMFILE, "too many descriptors");
    if (!counts_.map(counts_fd_.get()) || !rules_.map(rules_fd_.get()))
        return fail(ENOMEM, "no memory for the rules of the XDP program");
    std::ranges::copy(rules_.seeds(), values_.seeds);
    return {};
}

Result<Steering> Steering::attach(int ifindex, const std::string& name, Mode mode, std::uint64_t deadline_ns,
                                  CopyMaps& copies) {
    // A native driver's frames have no description that tells of datagrams, a generic program's none of tags.
    auto loaded = mode == Mode::tc ? load_steer_copy(copies)
                                   : load_steer(mode == Mode::drv ? Steer::tags : Steer::splits, ifindex);
    if (!loaded && mode == Mode::drv) {
        log::once(log::Level::debug,
                  "{}: frames of VLANs whose tag the driver takes off count as untagged: {}", name,
                  loaded.error().what);
        loaded = load_steer(Steer::plain);
    }
    if (!loaded) return std::unexpected(loaded.error());
    Steering s;
    if (auto adopted = s.adopt(*loaded); !adopted) return std::unexpected(adopted.error());

    if (mode == Mode::tc) await_predecessor(ifindex);
    long link = -EBUSY;
    Program other = Program::unknown;
    std::uint64_t until = deadline_ns;
    for (bool first = true;; first = false) {
        bpf_attr attr{};
        attr.link_create.prog_fd = static_cast<std::uint32_t>(s.program_.get());
        attr.link_create.target_ifindex = static_cast<std::uint32_t>(ifindex);
        attr.link_create.attach_type = mode == Mode::tc ? kTcxIngress : BPF_XDP;
        if (mode != Mode::tc)
            attr.link_create.flags = mode == Mode::drv ? XDP_FLAGS_DRV_MODE : XDP_FLAGS_SKB_MODE;
        link = bpf(BPF_LINK_CREATE, attr);
        if (link != -EBUSY && link != -EEXIST) break;
        // A process that ends gives up its name first and its program a little later.
        const std::uint64_t now = clock::monotonic_ns();
        if (first) {
            other = xdp_program(ifindex);
            until = std::min(deadline_ns, now + patience(other));
        }
        if (now >= until) break;
        pause_msec();
    }
    if (link == -EBUSY || link == -EEXIST)
        return fail(EBUSY, other == Program::ours ? fmt::format("another libvma process holds {}", name)
                           : other == Program::foreign
                               ? fmt::format("a foreign XDP program is attached to {}", name)
                               : fmt::format("another libvma process holds {}, or a foreign "
                                             "XDP program is attached",
                                             name));
    if (link < 0) {
        // A driver says more than the number of an error, but to rtnetlink only.
        const int error = static_cast<int>(-link);
        const std::string words =
            mode == Mode::drv && error != EPERM ? net::xdp_refusal(ifindex, s.program_.get()) : std::string();
        return fail(error, fmt::format("cannot attach a program to {} ({} mode): {}", name, name_of(mode),
                                       words.empty() ? strerror(error) : words));
    }
    s.link_ = InternalFd(static_cast<int>(link));
    if (!s.link_) return fail(EMFILE, "too many descriptors");
    return s;
}

Result<void> Steering::set_config(const MacAddress& mac, std::uint32_t mtu) {
    std::memcpy(values_.mac, mac.data(), 6);
    values_.max_udp_frame = mtu + 14;
    return write_config();
}

Result<void> Steering::write_config() {
    std::uint32_t key = 0;
    if (long r = update_map(config_.get(), &key, &values_); r < 0)
        return fail(static_cast<int>(-r),
                    fmt::format("XDP program's configuration: {}", strerror(static_cast<int>(-r))));
    return {};
}

Result<void> Steering::set_sources(const net::SourceFilter& sources) {
    std::vector<in_addr_t> refused;
    const bool few = sources.refused_addresses(refused, STEER_MAX_REFUSED);
    std::vector<net::SourcePrefix> listed;
    if (!few) listed = sources.accepted_prefixes();
    // The map cannot hold them all: then the kernel gets all frames that match only 3-tuple rules.
    bool full = listed.size() > STEER_MAX_SOURCES;
    if (full) listed.clear();
    auto key_of = [](const net::SourcePrefix& p) { return steer_source{p.length, p.address}; };
    // Both lists are in order.
    auto has = [](const std::vector<net::SourcePrefix>& list, const net::SourcePrefix& p) {
        return std::binary_search(
            list.begin(), list.end(), p, [](const net::SourcePrefix& a, const net::SourcePrefix& b) {
                return std::pair(ntohl(a.address), a.length) < std::pair(ntohl(b.address), b.length);
            });
    };
    // Adds new entries before it removes old ones; lookups meanwhile pass the frame to the kernel.
    std::uint32_t value = 1;
    for (const net::SourcePrefix& p : listed) {
        if (has(listed_, p)) continue;
        steer_source key = key_of(p);
        if (long r = update_map(sources_.get(), &key, &value); r < 0)
            return fail(static_cast<int>(-r),
                        fmt::format("XDP program's sources: {}", strerror(static_cast<int>(-r))));
    }
    values_.listed_sources_only = !few;
    std::memset(values_.refused, 0, sizeof values_.refused);
    if (few) std::copy(refused.begin(), refused.end(), values_.refused);
    auto written = write_config();
    for (const net::SourcePrefix& p : listed_) {
        if (has(listed, p)) continue;
        steer_source key = key_of(p);
        erase(sources_.get(), &key);
    }
    listed_ = std::move(listed);
    if (full) return fail(E2BIG, "more prefixes than the XDP program's map holds");
    return written;
}

Result<void> Steering::set_socket(std::uint32_t slot, std::uint32_t queue, int xsk_fd) {
    std::uint32_t key = slot + queue, value = static_cast<std::uint32_t>(xsk_fd);
    if (long r = update_map(xsks_.get(), &key, &value); r < 0)
        return fail(static_cast<int>(-r), fmt::format("XDP socket map: {}", strerror(static_cast<int>(-r))));
    return {};
}

__u64& Steering::count_of(const FlowSpec& spec) const noexcept {
    return (*counts_).rules[steer_table(spec.protocol)][spec.dst_port];
}

Result<void> Steering::write_hashed(const FlowSpec& spec, std::uint32_t slot, std::uint64_t how) const {
    long r;
    if (spec.is_five_tuple()) {
        steer_five_tuple key = five(spec);
        r = update_map(flows5_.get(), &key, &slot, how);
    } else {
        steer_three_tuple key = three(spec);
        r = update_map(flows3_.get(), &key, &slot, how);
    }
    if (r < 0)
        return fail(static_cast<int>(-r), fmt::format("flow rule: {}", strerror(static_cast<int>(-r))));
    return {};
}

std::uint64_t Steering::rules_at(const FlowSpec& spec) const noexcept {
    return std::atomic_ref(count_of(spec)).load(std::memory_order_relaxed) % STEER_HASHED;
}

// Devices of several rings share the counts, so these change atomically. A forked child has neither the
// memory nor the descriptors.
Result<void> Steering::add(const FlowSpec& spec, std::uint32_t slot) {
    if (!counts_fd_) return fail(EBADF, "the XDP program is the parent process's");
    std::atomic_ref count(count_of(spec));
    count.fetch_add(1);
    if (rules_.add(spec, slot)) return {};
    count.fetch_add(STEER_HASHED);
    auto written = write_hashed(spec, slot, BPF_ANY);
    if (!written) count.fetch_sub(STEER_HASHED + 1);
    return written;
}

Result<void> Steering::move(const FlowSpec& spec, std::uint32_t slot) {
    if (!counts_fd_) return fail(EBADF, "the XDP program is the parent process's");
    if (rules_.move(spec, slot)) return {};
    return write_hashed(spec, slot, BPF_EXIST);
}

void Steering::remove(const FlowSpec& spec) noexcept {
    if (!counts_fd_) return;
    std::atomic_ref count(count_of(spec));
    if (rules_.remove(spec)) {
        count.fetch_sub(1);
        return;
    }
    if (spec.is_five_tuple()) {
        steer_five_tuple key = five(spec);
        erase(flows5_.get(), &key);
    } else {
        steer_three_tuple key = three(spec);
        erase(flows3_.get(), &key);
    }
    count.fetch_sub(STEER_HASHED + 1);
}

}  // namespace vma::verbs::xdp
