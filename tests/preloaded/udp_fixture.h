// SPDX-License-Identifier: BSD-2-Clause
// Two programs that talk by UDP.
#pragma once

#include <gtest/gtest.h>

#include <iostream>
#include <memory>
#include <utility>

#include "tests/support/hosts/plain_test.h"

namespace testing_support {

class Udp : public testing::Test {
  protected:
    // Both agents with their sockets: a on port 5000, b on 6000.
    void start(Wire wire, RunOptions a, RunOptions b) {
        // On a busy machine the library may hear late that a neighbour has answered; until then the kernel
        // sends.
        wire.known_neighbours = neighbours_are_known;
        hosts = std::make_unique<TwoHosts>(wire);
        this->a = std::make_unique<Agent>(*hosts, Host::a, std::move(a));
        this->b = std::make_unique<Agent>(*hosts, Host::b, std::move(b));
        open_socket(*this->a, Host::a, 5000);
        open_socket(*this->b, Host::b, 6000);
    }
    // A conversation that must not pass through a's kernel.
    void expect_offloaded_conversation(int length) {
        expect_conversation(*a, *b, "198.18.1.2", 3, length);
        long before = kernel_datagrams(*a);
        expect_conversation(*a, *b, "198.18.1.2", 100, length);
        EXPECT_LE(kernel_datagrams(*a) - before, 2) << a->process().err();
        EXPECT_TRUE(hosts->offloaded(Host::a)) << a->process().err();
    }
    void TearDown() override {
        if (HasFailure() && a)
            std::cout << "log of a:\n" << a->process().err() << "log of b:\n" << b->process().err();
    }
    bool neighbours_are_known = true;
    std::unique_ptr<TwoHosts> hosts;
    std::unique_ptr<Agent> a, b;
};

}  // namespace testing_support
