// SPDX-License-Identifier: BSD-2-Clause
// What comes to a connection before anybody has its lock: frames of a batch, and the wishes of threads that
// find the lock taken.
#pragma once

#include <atomic>
#include <cstdint>

#include "libvma/ring/ring.h"
#include "libvma/runtime/lock.h"

namespace vma::tcp {

// Frames of the running batch. Under the ring's rx_lock; the atomic members are read by the connection.
struct Staging {
    ring::RxBuffer* first = nullptr;
    ring::RxBuffer* last = nullptr;
    bool in_batch = false;    // the ring's list for batch_end() has the connection; a reference
    bool idle_asked = false;  // the ring has been told of an ACK that is due soon
    std::atomic<bool> ring_scarce{false};
    std::atomic<bool> held{false};  // on the ring's list of held senders
};

// For the owner of the connection's lock.
struct Backlog {
    Lock lock;  // a leaf; of first, last and icmp
    ring::RxBuffer* first = nullptr;
    ring::RxBuffer* last = nullptr;
    std::atomic<bool> any{false};
    std::atomic<bool> wants_output{false};  // send what is held back, or see abandon, close_requested
    std::atomic<bool> abandon{false};
    std::atomic<bool> icmp_any{false};
    ring::IcmpError icmp;                 // the last one
    std::atomic<int> close_requested{0};  // 1: close(), 2: close(reset)
};

}  // namespace vma::tcp
