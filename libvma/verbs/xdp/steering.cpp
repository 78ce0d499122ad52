// SPDX-License-Identifier: BSD-2-Clause
#include "libvma/verbs/xdp/steering.h"

#include <fmt/format.h>
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <time.h>

#include <cstring>

#include "libvma/os/raw_syscall.h"
#include "libvma/verbs/xdp/steer.h"
#include "libvma/verbs/xdp/steer_load.h"

namespace vma::verbs::xdp {
namespace {

long bpf(int command, bpf_attr& attr) noexcept { return os::raw_syscall(SYS_bpf, command, &attr, sizeof attr); }

long update(int map, const void* key, const void* value) noexcept {
    bpf_attr attr{};
    attr.map_fd = static_cast<std::uint32_t>(map);
    attr.key = reinterpret_cast<std::uintptr_t>(key);
    attr.value = reinterpret_cast<std::uintptr_t>(value);
    return bpf(BPF_MAP_UPDATE_ELEM, attr);
}

void erase(int map, const void* key) noexcept {
    bpf_attr attr{};
    attr.map_fd = static_cast<std::uint32_t>(map);
    attr.key = reinterpret_cast<std::uintptr_t>(key);
    bpf(BPF_MAP_DELETE_ELEM, attr);
}

// Is a program called like ours loaded by somebody else? Names the likely holder of a netdev for the log.
bool another_steer_program(int own_program) noexcept {
    bpf_attr attr{};
    bpf_prog_info info{};
    attr.info.bpf_fd = static_cast<std::uint32_t>(own_program);
    attr.info.info_len = sizeof info;
    attr.info.info = reinterpret_cast<std::uintptr_t>(&info);
    std::uint32_t own_id = bpf(BPF_OBJ_GET_INFO_BY_FD, attr) == 0 ? info.id : 0;
    std::uint32_t id = 0;
    for (;;) {
        attr = {};
        attr.start_id = id;
        if (bpf(BPF_PROG_GET_NEXT_ID, attr) != 0) return false;
        id = attr.next_id;
        if (id == own_id) continue;
        attr = {};
        attr.prog_id = id;
        long fd = bpf(BPF_PROG_GET_FD_BY_ID, attr);
        if (fd < 0) continue;
        info = {};
        attr = {};
        attr.info.bpf_fd = static_cast<std::uint32_t>(fd);
        attr.info.info_len = sizeof info;
        attr.info.info = reinterpret_cast<std::uintptr_t>(&info);
        bool same = bpf(BPF_OBJ_GET_INFO_BY_FD, attr) == 0 && std::strcmp(info.name, "vma_steer") == 0;
        os::raw_syscall(SYS_close, fd);
        if (same) return true;
    }
}

steer_five_tuple five(const FlowSpec& s) noexcept {
    return {.src_addr = s.src_addr, .dst_addr = s.dst_addr, .src_port = s.src_port, .dst_port = s.dst_port,
            .protocol = s.protocol};
}
steer_three_tuple three(const FlowSpec& s) noexcept {
    return {.dst_addr = s.dst_addr, .dst_port = s.dst_port, .protocol = s.protocol};
}

}  // namespace

Result<Steering> Steering::attach(int ifindex, const std::string& name, Mode mode) {
    steer_fds fds{};
    if (int error = steer_load(&fds); error != 0) {
        error = -error;
        return fail(error, error == EPERM || error == EACCES
                               ? std::string("no permission to load an XDP program (CAP_BPF and CAP_NET_ADMIN, or root)")
                               : fmt::format("cannot load the XDP program: {}", strerror(error)));
    }
    Steering s;
    s.program_ = InternalFd(fds.program);
    s.xsks_ = InternalFd(fds.xsks);
    s.flows5_ = InternalFd(fds.flows5);
    s.flows3_ = InternalFd(fds.flows3);
    s.config_ = InternalFd(fds.config);
    if (!s.program_ || !s.xsks_ || !s.flows5_ || !s.flows3_ || !s.config_) return fail(EMFILE, "too many descriptors");

    constexpr int kTries = 20;  // one millisecond apart: links of ended processes go within a few
    long link = -EBUSY;
    for (int i = 0; i < kTries && link == -EBUSY; i++) {
        if (i != 0) {
            timespec pause{0, 1'000'000};
            os::raw_syscall(SYS_nanosleep, &pause, 0);
        }
        bpf_attr attr{};
        attr.link_create.prog_fd = static_cast<std::uint32_t>(s.program_.get());
        attr.link_create.target_ifindex = static_cast<std::uint32_t>(ifindex);
        attr.link_create.attach_type = BPF_XDP;
        attr.link_create.flags = mode == Mode::drv ? XDP_FLAGS_DRV_MODE : XDP_FLAGS_SKB_MODE;
        link = bpf(BPF_LINK_CREATE, attr);
    }
    if (link == -EBUSY || link == -EEXIST)
        return fail(EBUSY, another_steer_program(s.program_.get())
                               ? fmt::format("another libvma process holds {}, or a foreign XDP program is attached", name)
                               : fmt::format("a foreign XDP program is attached to {}", name));
    if (link < 0)
        return fail(static_cast<int>(-link),
                    fmt::format("cannot attach an XDP program to {} ({} mode): {}", name,
                                mode == Mode::drv ? "drv" : "skb", strerror(static_cast<int>(-link))));
    s.link_ = InternalFd(static_cast<int>(link));
    if (!s.link_) return fail(EMFILE, "too many descriptors");
    return s;
}

Result<void> Steering::set_config(const MacAddress& mac, std::uint32_t mtu) {
    steer_config config{};
    std::memcpy(config.mac, mac.data(), 6);
    config.max_udp_frame = mtu + 14;
    std::uint32_t key = 0;
    if (long r = update(config_.get(), &key, &config); r < 0)
        return fail(static_cast<int>(-r), fmt::format("XDP program's configuration: {}", strerror(static_cast<int>(-r))));
    return {};
}

Result<void> Steering::set_socket(std::uint32_t slot, std::uint32_t queue, int xsk_fd) {
    std::uint32_t key = slot + queue, value = static_cast<std::uint32_t>(xsk_fd);
    if (long r = update(xsks_.get(), &key, &value); r < 0)
        return fail(static_cast<int>(-r), fmt::format("XDP socket map: {}", strerror(static_cast<int>(-r))));
    return {};
}

Result<void> Steering::add(const FlowSpec& spec, std::uint32_t slot) {
    long r;
    if (spec.is_five_tuple()) {
        steer_five_tuple key = five(spec);
        r = update(flows5_.get(), &key, &slot);
    } else {
        steer_three_tuple key = three(spec);
        r = update(flows3_.get(), &key, &slot);
    }
    if (r < 0) return fail(static_cast<int>(-r), fmt::format("flow rule: {}", strerror(static_cast<int>(-r))));
    return {};
}

void Steering::remove(const FlowSpec& spec) noexcept {
    if (spec.is_five_tuple()) {
        steer_five_tuple key = five(spec);
        erase(flows5_.get(), &key);
    } else {
        steer_three_tuple key = three(spec);
        erase(flows3_.get(), &key);
    }
}

}  // namespace vma::verbs::xdp
