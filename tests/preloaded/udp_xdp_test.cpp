// SPDX-License-Identifier: BSD-2-Clause
// UDP on the library over AF_XDP: both modes of an XDP program, and an interface that the library may not
// use.
#include "udp_fixture.h"

namespace {

using namespace testing_support;

TEST_F(Udp, GenericXdp) {
    start({}, with_library({"VMA_XDP_MODE=skb"}), {});
    expect_offloaded_conversation(1400);
    EXPECT_NE(hosts->ip(Host::a, {"link", "show", "dev", "veth1"}).find("xdpgeneric"), std::string::npos);
}

TEST_F(Udp, NativeXdp) {
    start({}, with_library({"VMA_XDP_MODE=drv"}), {});
    expect_offloaded_conversation(1400);
    std::string link = hosts->ip(Host::a, {"link", "show", "dev", "veth1"});
    EXPECT_EQ(link.find("xdpgeneric"), std::string::npos) << link;
}

TEST_F(Udp, InterfaceNotAllowed) {
    start({.links = 2}, with_library({"VMA_XDP_INTERFACES=veth2"}), {});
    expect_conversation(*a, *b, "198.18.1.2");
    EXPECT_FALSE(hosts->offloaded(Host::a, 1));
    open_socket(*a, Host::a, 5001, 2, "t");
    open_socket(*b, Host::b, 6001, 2, "t");
    b->post("echo t 10 2000");
    EXPECT_EQ(a->ask("ping t 198.18.2.2 6001 100 10 2000"), "answered 10");
    b->answer();
    EXPECT_TRUE(hosts->offloaded(Host::a, 2)) << a->process().err();
    EXPECT_FALSE(hosts->offloaded(Host::a, 1));
}

}  // namespace
