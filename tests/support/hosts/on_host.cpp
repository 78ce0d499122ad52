// SPDX-License-Identifier: BSD-2-Clause
#include "on_host.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netpacket/packet.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <stdexcept>

#include "device.h"

namespace testing_support {

On::On(const TwoHosts& hosts, Host host) : before_(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC)) {
    const Fd there(open(("/run/netns/" + hosts.netns(host)).c_str(), O_RDONLY | O_CLOEXEC));
    if (setns(there.get(), CLONE_NEWNET) != 0)
        throw std::runtime_error("setns: " + std::string(strerror(errno)));
}

On::~On() {
    if (setns(before_.get(), CLONE_NEWNET) != 0) abort();
}

Fd packet_socket(const std::string& interface, std::uint16_t protocol) {
    Fd fd(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, protocol));
    sockaddr_ll at{};
    at.sll_family = AF_PACKET;
    at.sll_protocol = protocol;
    at.sll_ifindex = static_cast<int>(if_nametoindex(interface.c_str()));
    if (fd && bind(fd.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0) fd.reset();
    return fd;
}

Fd load_program(bpf_prog_type type, std::span<const bpf_insn> program, const char* name, int attach) {
    bpf_attr load{};
    load.prog_type = type;
    load.expected_attach_type = static_cast<__u32>(attach);
    load.insns = reinterpret_cast<std::uintptr_t>(program.data());
    load.insn_cnt = static_cast<__u32>(program.size());
    load.license = reinterpret_cast<std::uintptr_t>("Dual BSD/GPL");
    strncpy(load.prog_name, name, sizeof load.prog_name - 1);
    return Fd(static_cast<int>(syscall(SYS_bpf, BPF_PROG_LOAD, &load, sizeof load)));
}

Fd link_program(const Fd& program, std::uint32_t target, int attach) {
    bpf_attr link{};
    link.link_create.prog_fd = static_cast<__u32>(program.get());
    link.link_create.target_fd = target;  // shares its place with target_ifindex
    link.link_create.attach_type = static_cast<__u32>(attach);
    return Fd(static_cast<int>(syscall(SYS_bpf, BPF_LINK_CREATE, &link, sizeof link)));
}

Fd tcx_program(const std::string& interface, Tcx where, std::span<const bpf_insn> program, const char* name) {
    constexpr int kTcxEgress = kTcxIngress + 1;  // BPF_TCX_EGRESS
    return link_program(load_program(BPF_PROG_TYPE_SCHED_CLS, program, name),
                        if_nametoindex(interface.c_str()), where == Tcx::ingress ? kTcxIngress : kTcxEgress);
}

sockaddr_in socket_address(const std::string& ip, std::uint16_t port) {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = inet_addr(ip.c_str());
    a.sin_port = htons(port);
    return a;
}

}  // namespace testing_support
