// SPDX-License-Identifier: BSD-2-Clause
// Frames with a VLAN tag that reach the untagged interface: the program gets with the library what it gets
// without. A priority tag (VLAN 0) says no VLAN; other tags are for interfaces that there are not. A tag
// stands in the frame, or the kernel keeps it beside the frame: so it does when the tag was taken off, and
// when the sending netdev was to put it in.
#include <sys/socket.h>

#include <set>
#include <string>
#include <vector>

#include "tests/support/hosts/on_host.h"
#include "tests/support/hosts/plain_test.h"
#include "tests/support/wire/udp_frames.h"

namespace {

using namespace testing_support;

// Tags in front of the IPv4 packet.
const std::vector<std::vector<std::uint8_t>> kTags = {
    {},
    {0x81, 0, 0, 0},        // priority 0
    {0x81, 0, 0xe0, 0},     // priority 7
    {0x81, 0, 0x30, 0},     // priority 1, may be dropped
    {0x81, 0, 0, 100},      // a VLAN that this host has not
    {0x81, 0, 0xa0, 100},   //
    {0x81, 0, 0x0f, 0xff},  // reserved
    {0x88, 0xa8, 0, 0},     // of a provider's bridge
    {0x88, 0xa8, 0, 100},
    {0x81, 0, 0, 0, 0x81, 0, 0, 0},
    {0x81, 0, 0, 0, 0x81, 0, 0, 100},
    {0x81, 0, 0, 100, 0x81, 0, 0, 0},
};

// The same, beside the frame: protocol and tag.
struct Pushed {
    std::uint16_t protocol, tag;
};
constexpr Pushed kPushed[] = {{0x8100, 0},    {0x8100, 0xe000}, {0x8100, 100}, {0x8100, 0xa064},
                              {0x8100, 4094}, {0x88a8, 0},      {0x88a8, 100}};

// A program on an interface of this host that gives each frame it sends this tag, as netdev's to put in.
Fd push_tag(const std::string& interface, Pushed pushed) {
    constexpr int kVlanPush = 18, kNext = -1;  // bpf_skb_vlan_push(), TCX_NEXT
    const bpf_insn insns[] = {{BPF_ALU64 | BPF_MOV | BPF_K, 2, 0, 0, htons(pushed.protocol)},
                              {BPF_ALU64 | BPF_MOV | BPF_K, 3, 0, 0, pushed.tag},
                              {BPF_JMP | BPF_CALL, 0, 0, 0, kVlanPush},
                              {BPF_ALU | BPF_MOV | BPF_K, 0, 0, 0, kNext},
                              {BPF_JMP | BPF_EXIT, 0, 0, 0, 0}};
    return tcx_program(interface, Tcx::egress, insns);
}

class VlanTags : public testing::Test {
  protected:
    // The tags whose datagram the program gets. `beside`: kPushed, else kTags.
    std::set<std::size_t> heard(RunOptions options, bool beside = false) {
        TwoHosts hosts(Wire{.known_neighbours = true});
        Agent agent(hosts, Host::a, std::move(options)), peer(hosts, Host::b);
        open_socket(agent, Host::a, 5000);
        open_socket(peer, Host::b, 6000);
        expect_conversation(agent, peer, "198.18.1.2", 3);
        On host(hosts, Host::b);
        Fd wire = packet_socket("veth1");
        std::set<std::size_t> all;
        for (std::size_t i = 0; i < (beside ? std::size(kPushed) : kTags.size()); i++) {
            udp_frames::Udp u;
            u.dst_mac = {0x02, 0, 0x5e, 0x10, 1, 1};
            u.src_mac = {0x02, 0, 0x5e, 0x10, 1, 2};
            u.src = "198.18.1.2";
            u.dst = "198.18.1.1";
            u.src_port = 6000;
            u.dst_port = 5000;
            u.payload = std::string(100 + i, 'x');
            udp_frames::Bytes frame = udp_frames::make(u);
            Fd pushing;
            if (beside)
                EXPECT_TRUE(pushing = push_tag("veth1", kPushed[i]));
            else
                frame.insert(frame.begin() + 12, kTags[i].begin(), kTags[i].end());
            EXPECT_EQ(send(wire.get(), frame.data(), frame.size(), 0), static_cast<ssize_t>(frame.size()));
        }
        for (;;) {
            const long length = Agent::value(agent.ask("recv s 200"), "len");
            if (length < 100) return all;
            all.insert(static_cast<std::size_t>(length) - 100);
        }
    }
};

TEST_F(VlanTags, ReachWhomTheyReachOnTheKernel) {
    const std::set<std::size_t> kernel = heard({});
    EXPECT_TRUE(kernel.contains(0));
    EXPECT_TRUE(kernel.contains(2));
    EXPECT_FALSE(kernel.contains(4));
    std::vector<std::string> modes = {"auto"};
    if (!simulated()) modes.insert(modes.end(), {"skb", "drv"});
    for (const std::string& mode : modes)
        EXPECT_EQ(heard(with_library({"VMA_XDP_MODE=" + mode})), kernel) << mode;
}

// But for generic XDP (skb), whose programs do not see such tags.
TEST_F(VlanTags, BesideTheFrameReachWhomTheyReachOnTheKernel) {
    const std::set<std::size_t> kernel = heard({}, true);
    EXPECT_EQ(kernel, (std::set<std::size_t>{0, 1, 5})) << "those of VLAN 0";
    std::vector<std::string> modes = {"auto"};
    if (!simulated()) modes.insert(modes.end(), {"tc", "drv"});
    for (const std::string& mode : modes)
        EXPECT_EQ(heard(with_library({"VMA_XDP_MODE=" + mode}), true), kernel) << mode;
}

// A SYN of a VLAN opens nothing.
TEST_F(VlanTags, BesideTheFrameDoNotReachListeners) {
    std::vector<std::string> modes = {"kernel", "auto"};
    if (!simulated()) modes.insert(modes.end(), {"tc", "drv"});
    for (const std::string& mode : modes) {
        SCOPED_TRACE(mode);
        TwoHosts hosts(Wire{.known_neighbours = true});
        Agent agent(hosts, Host::a, mode == "kernel" ? RunOptions{} : with_library({"VMA_XDP_MODE=" + mode}));
        Agent peer(hosts, Host::b);
        EXPECT_EQ(agent.ask("listen l 198.18.1.1 5000"), "ok 5000");
        EXPECT_EQ(peer.ask("dial first 198.18.1.1 5000"), "ok");
        EXPECT_EQ(agent.ask("accept l c 3000"), "ok");
        Fd pushing;
        {
            On host(hosts, Host::b);
            EXPECT_TRUE(pushing = push_tag("veth1", {0x8100, 100}));
        }
        peer.post("dial second 198.18.1.1 5000");
        EXPECT_EQ(agent.ask("accept l d 300"), "timeout");
        pushing.reset();
        EXPECT_EQ(peer.answer(), "ok") << "the peer repeats its SYN";
        EXPECT_EQ(agent.ask("accept l d 3000"), "ok");
    }
}

}  // namespace
